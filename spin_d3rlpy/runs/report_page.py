"""A policy's report as one page: what it changes, what it is worth, where not to trust that."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.asm.rules import AnyRule
from spin_d3rlpy.errors import SpinError
from spin_d3rlpy.evaluation.decisions import UNUSUAL
from spin_d3rlpy.evaluation.estimates import Estimate
from spin_d3rlpy.runs.page import Page
from spin_d3rlpy.runs.report import REPORT, ReportSettings, Returns, RunReport, measure_run
from spin_d3rlpy.runs.training import POLICY

MOST_UNUSUAL = 0.05  # share of decisions
_QUANTILES = (0.01, 0.1, 0.5, 0.9)
_SHOWN_FEATURES = 6
_SHOWN_SLOTS = 40
_AS_LOGGED = "as logged"


def write_report(
    folder: Path,
    settings: ReportSettings | None = None,
    out: Path | None = None,
    *,
    dataset: str | None = None,
    asm: Path | None = None,
    rule: AnyRule | None = None,
    device: str = "cpu:0",
    trust: bool = False,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Measures a run and writes its page.

    Args:
        folder: of a finished `spin-d3rlpy train`.
        settings: defaults if None.
        out: file of the page; `report.html` in the folder if None.
        dataset: see `measure_run`, as all that follow.
        asm: file of a model of the log.
        rule: what decisions must keep; the policy's rules if None.
        device: as in d3rlpy.
        trust: see `load_dataset`.
        show_progress: draw progress bars.

    Returns:
        The page's `file`, its `finding` in a sentence, the `doubts` about it, and the figures.

    Raises:
        FileNotFoundError: the folder has no policy or no settings.
        DatasetNotFoundError: see `load_dataset`.
        InvalidDatasetError: see `load_dataset`.
        NvecMismatchError: the log has other actions or states than the policy.
    """
    report = measure_run(
        folder,
        settings,
        dataset=dataset,
        asm=asm,
        rule=rule,
        device=device,
        trust=trust,
        show_progress=show_progress,
    )
    path = out or folder / REPORT
    write_page(report, path)
    comparison = report.comparison
    return {
        "file": str(path),
        "finding": sentence(report),
        "doubts": doubts(report),
        "logged": _as_row(report.logged),
        "policy": [_as_row(estimate) for estimate in report.policy],
        "trial": [_as_row(estimate) for estimate in report.trial],
        "by_reward": {
            name: {
                "logged": _as_row(returns.logged),
                "policy": [_as_row(estimate) for estimate in returns.policy],
                "trial": [_as_row(estimate) for estimate in returns.trial],
            }
            for name, returns in report.by_reward.items()
        },
        "changed": float(comparison.changed.any(1).mean()),
        "changed_by_slot": comparison.changed.mean(0).tolist(),
        "unusual": float(comparison.unusual.mean()),
        "new_combinations": report.new_combinations,
        "rule_kept": report.rule_kept,
        "against_masks": report.against_masks,
    }


def write_report_of_training(
    folder: Path, device: str = "cpu:0", trust: bool = False, show_progress: bool = True
) -> str | None:
    """Writes the page of a finished training by itself, unless it is newer than the policy.

    Args:
        folder: of the training.
        device: as in d3rlpy.
        trust: see `load_dataset`.
        show_progress: draw progress bars.

    Returns:
        The page's file, or None if there is none.

    Warns:
        UserWarning: the log does not allow a report; the training is complete nonetheless.
    """
    page = folder / REPORT
    if page.exists() and page.stat().st_mtime >= (folder / POLICY).stat().st_mtime:
        return str(page)
    try:
        write_report(folder, device=device, trust=trust, show_progress=show_progress)
    except (SpinError, ValueError) as error:
        warnings.warn(f"{page} was not written: {error}", UserWarning, stacklevel=2)
        return None
    return str(page)


def write_page(report: RunReport, path: Path) -> None:
    """Writes the page, one HTML file, atomically."""
    page = Page(
        f"{report.algorithm} on {report.dataset}",
        f"Decisions of a trained policy compared with those of a log: {report.episodes:,} episodes "
        f"of {report.steps:,} steps"
        + (
            f", drawn from {report.all_episodes:,} episodes."
            if report.episodes < report.all_episodes
            else "."
        ),
    )
    _verdict(page, report)
    _values(page, report)
    _changes(page, report)
    _support(page, report)
    _trust_and_rules(page, report)
    _how(page, report)
    page.write(path)


def doubts(report: RunReport) -> list[str]:
    """Returns the reasons not to trust the estimates, in plain sentences."""
    reasons = []
    if report.learned_from_it:
        reasons.append(
            "The policy learned from these same episodes, so estimates lean towards it, and mean "
            "weights above 1 are to be expected. Give a log that it has not seen (--dataset)."
        )
    for what, estimates in (("policy", report.policy), ("trial", report.trial)):
        reasons += [f"The {what}: {e}" for e in estimates if not e.is_answered]
        if _disagree(estimates):
            reasons.append(
                f"The {what}: the intervals of the two estimators do not overlap, so one of them "
                "is wrong."
            )
    unusual = float(report.comparison.unusual.mean())
    if unusual > MOST_UNUSUAL:
        reasons.append(
            f"{unusual:.1%} of the policy's decisions are less likely in the log than "
            f"{1.0 - UNUSUAL:.0%} of the logged ones. What follows from them is a guess."
        )
    if report.new_combinations > 0.0:
        reasons.append(
            f"{report.new_combinations:.1%} of the policy's decisions are combinations of choices "
            "that the log does not have."
        )
    if report.trust is not None and report.trust.acts_by != "search":
        reasons.append(f"The critics are not trusted: the policy {report.trust}.")
    if report.rule_kept is not None and report.rule_kept[1] < 1.0:
        reasons.append(f"{1.0 - report.rule_kept[1]:.1%} of the policy's decisions break the rule.")
    return reasons


def sentence(report: RunReport) -> str:
    """Returns the finding in one sentence."""
    log = f"The log returns {_number(report.logged.value)}"
    trial = _first_answer(report.trial)
    policy = _first_answer(report.policy)
    share = f"{1.0 - report.settings.soften:.0%}"
    if policy is not None:
        return f"{log}, the policy is estimated to return {_interval(policy)}."
    if trial is not None:
        return (
            f"{log}. It cannot say what the policy returns; a trial in which the policy makes "
            f"{share} of the decisions is estimated to return {_interval(trial)}."
        )
    return f"{log}. It can say neither what the policy returns nor what a careful trial would."


def _verdict(page: Page, report: RunReport) -> None:
    changed = float(report.comparison.changed.any(1).mean())
    page.paragraph(sentence(report))
    page.paragraph(f"The policy decides otherwise than the log in {changed:.1%} of the decisions.")
    if report.against_masks is not None:
        page.paragraph(
            "The log has masks of what may be chosen in each state. All decisions, likelihoods and "
            "estimates here keep to them. Without masks, the policy would choose what they forbid "
            f"in {report.against_masks:.1%} of the states: give it the mask of each state "
            "(predict_masked)."
        )
    page.paragraph("Where not to trust this", "h2")
    for text in doubts(report):
        page.warning(text)
    page.paragraph(
        "No estimate from a log knows what the deciders knew and the log lacks. If that ruled "
        "their decisions, all numbers here are wrong, and nothing in the log shows it."
    )


def _values(page: Page, report: RunReport) -> None:
    page.paragraph("Returns", "h2")
    page.paragraph(
        f"Discounted by {report.gamma:g} a step, with {report.settings.level:.0%} intervals. "
        f"Undiscounted, the log returns {_number(report.mean_return)} an episode. "
        "The column count as: how many of the policy's own episodes the log is worth."
    )
    page.table(_value_rows(report, Returns(report.logged, report.policy, report.trial)))
    for name, returns in report.by_reward.items():
        page.paragraph(f"By the reward {name} alone:")
        page.table(_value_rows(report, returns))


def _value_rows(report: RunReport, returns: Returns) -> list[dict[str, Any]]:
    share = f"{1.0 - report.settings.soften:.0%}"
    rows = [_value_row("the log", returns.logged)]
    rows += [_value_row("the policy", estimate) for estimate in returns.policy]
    return rows + [_value_row(f"a trial, {share} by the policy", e) for e in returns.trial]


def _value_row(who: str, estimate: Estimate) -> dict[str, Any]:
    is_log = estimate.estimator == "mean of the log"
    answers = is_log or estimate.is_answered
    return {
        "who": who,
        "estimator": estimate.estimator,
        "return": _number(estimate.value) if answers else "no answer",
        "low": _number(estimate.low) if answers else "",
        "high": _number(estimate.high) if answers else "",
        "episodes": estimate.n_episodes,
        "count_as": f"{estimate.effective_size:,.0f}",
    }


def _changes(page: Page, report: RunReport) -> None:
    page.paragraph("Decisions that change", "h2")
    names, comparison = _slots(report), report.comparison
    shares = comparison.changed.mean(0)
    order = np.argsort(-shares, kind="stable")
    rows = []
    for slot in order[:_SHOWN_SLOTS].tolist():
        most = [
            f"{_choice(report, slot, change.logged)} to {_choice(report, slot, change.chosen)} "
            f"({change.share:.1%})"
            for change in comparison.most_frequent_changes(slot)
        ]
        rows.append(
            {
                "slot": names[slot],
                "most frequent changes (share of all decisions)": "; ".join(most) or "none",
                "changed": f"{shares[slot]:.1%}",
            }
        )
    page.table(rows)
    if len(names) > _SHOWN_SLOTS:
        page.paragraph(f"Of {len(names)} slots, the {_SHOWN_SLOTS} that change most.")
    if report.examples:
        page.paragraph("Examples, spread over the log. Choices that stay are not repeated.")
        page.table([_example_row(report, i) for i in range(len(report.examples))])


def _example_row(report: RunReport, number: int) -> dict[str, Any]:
    example, comparison = report.examples[number], report.comparison
    logged, chosen = comparison.logged[example.row], comparison.chosen[example.row]
    features = (
        [f"{i}" for i in range(len(example.state))]
        if report.preparation is None
        else report.preparation.features
    )
    first_features = list(zip(features, example.state.tolist(), strict=True))[:_SHOWN_FEATURES]
    state = ", ".join(f"{name}: {value:.4g}" for name, value in first_features)
    names = _slots(report)
    changed = np.flatnonzero(logged != chosen).tolist()
    return {
        "state": state + (", ..." if len(example.state) > _SHOWN_FEATURES else ""),
        "logged": ", ".join(f"{names[s]}: {_choice(report, s, logged[s])}" for s in changed),
        "policy": ", ".join(f"{names[s]}: {_choice(report, s, chosen[s])}" for s in changed),
        "likelihood_logged": _likelihood(comparison.logged_log_prob[example.row]),
        "likelihood_policy": _likelihood(comparison.chosen_log_prob[example.row]),
        "episode": example.episode,
        "step": example.step,
    }


def _support(page: Page, report: RunReport) -> None:
    page.paragraph("How usual the decisions are in the log", "h2")
    comparison = report.comparison
    page.paragraph(
        "Likelihoods of whole decisions by a model of the log. "
        f"{comparison.unusual.mean():.1%} of the policy's decisions are less likely than "
        f"{1.0 - UNUSUAL:.0%} of the log's; {report.new_combinations:.1%} are combinations that "
        "it does not have."
    )
    rows = []
    for who, values in (
        ("the log", comparison.logged_log_prob),
        ("the policy", comparison.chosen_log_prob),
    ):
        quantiles = np.quantile(values, _QUANTILES)
        columns = {
            f"{q:.0%} are below": _likelihood(x) for q, x in zip(_QUANTILES, quantiles, strict=True)
        }
        rows.append({"decisions of": who, **columns})
    page.table(rows)
    names = _slots(report)
    page.items(
        [
            f"{names[slot]}: no one chose {', '.join(_choice(report, slot, c) for c in missing)}."
            for slot, missing in enumerate(report.never_logged)
            if missing
        ]
    )


def _trust_and_rules(page: Page, report: RunReport) -> None:
    if report.trust is not None:
        page.paragraph("The critics", "h2")
        page.paragraph(f"The policy {report.trust}.")
    if report.rule_kept is not None:
        page.paragraph("The rule", "h2")
        logged, chosen = report.rule_kept
        page.paragraph(
            f"Kept by {logged:.1%} of the logged decisions and {chosen:.1%} of the policy's."
        )


def _how(page: Page, report: RunReport) -> None:
    page.paragraph("How this was measured", "h2")
    settings = report.settings
    page.paragraph(
        "Importance sampling weighs each episode by how much likelier the policy would have made "
        "its decisions than whoever logged them. The doubly robust estimate, made only where these "
        f"weights suffice, adds a value function of {settings.fqe_steps:,} gradient steps, learned "
        "on other episodes than those it is "
        "used for. Both need the probabilities of the logged decisions, which a model of the log "
        "gives. Each is refused where the log counts as fewer than 30 of the policy's episodes, "
        "or where the mean weight is not 1 within two standard errors. In the trial, whoever "
        f"logged makes {settings.soften:.0%} of the decisions, the policy the others. "
        f"Random numbers: seed {settings.seed}."
    )


def _disagree(estimates: list[Estimate]) -> bool:
    answers = [e for e in estimates if e.is_answered]
    return len(answers) > 1 and max(e.low for e in answers) > min(e.high for e in answers)


def _first_answer(estimates: list[Estimate]) -> Estimate | None:
    return next((estimate for estimate in estimates if estimate.is_answered), None)


def _interval(estimate: Estimate) -> str:
    return (
        f"{_number(estimate.value)} ({estimate.level:.0%} interval {_number(estimate.low)} to "
        f"{_number(estimate.high)}, {estimate.estimator})"
    )


def _as_row(estimate: Estimate) -> dict[str, Any]:
    """An estimate's fields for JSON, which has no NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in estimate.as_row().items()
    }


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""


def _likelihood(log_prob: float) -> str:
    return f"{math.exp(log_prob):.2g}"


def _slots(report: RunReport) -> list[str]:
    if report.preparation is not None:
        return [str(name) for name in report.preparation.actions]
    if report.flat_actions is not None:
        return report.flat_actions.names
    return [f"slot {i}" for i in range(len(report.nvec))]


def _choice(report: RunReport, slot: int, choice: int) -> str:
    value: Any = int(choice)
    if report.preparation is not None:
        value = report.preparation.choices[slot][value]
    elif report.flat_actions is not None:
        value = report.flat_actions.value(slot, value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
