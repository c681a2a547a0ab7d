"""The page of a policy: what it changes, what it is worth, where not to trust that."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from spin_d3rlpy import (
    ActionStructureModel,
    BehaviorProbabilities,
    DeviceReplayBuffer,
    GreedyPolicy,
    MLPConfig,
    from_table,
    importance_sampling,
    save_asm,
    save_dataset,
)
from spin_d3rlpy.asm.rules import all_different, within_budget
from spin_d3rlpy.cli import app
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidObservationError,
    UntrustedRuleError,
)
from spin_d3rlpy.evaluation.decisions import (
    Comparison,
    keeps_rule,
    never_logged,
    share_of_new_combinations,
)
from spin_d3rlpy.evaluation.estimates import Estimate
from spin_d3rlpy.runs.page import Page
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.report import ReportSettings, RunReport, measure_run
from spin_d3rlpy.runs.report_page import doubts, sentence, write_page, write_report
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.runs.training import run_training
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search

QUICK = ReportSettings(fqe_steps=2, model_updates=4, n_examples=3)
NAME = "clinic/log-v0"
MASKED = "clinic/masked-v0"


class Tags(HTMLParser):
    """Collects the tags of a page, and whether each one is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def table(patients: int = 40) -> dict[str, Any]:
    """A log of two days each in which dose 100 of drug y is never given."""
    rng = np.random.default_rng(0)
    n = 2 * patients
    drug = rng.choice(["none", "x", "y"], n)
    dose = np.where(drug == "y", 0, rng.choice([0, 50], n))
    return {
        "patient": np.repeat(np.arange(patients), 2),
        "pulse": rng.normal(80.0, 9.0, n),
        "drug": drug,
        "dose": dose,
        "reward": rng.normal(1.0, 0.1, n),
        "harm": np.arange(n) % 7,
        "died": np.tile([0, 1], patients),
    }


def masks() -> np.ndarray[Any, Any]:
    """Masks `(rows, 2, 3)` of the table, which allow what was done and one choice more."""
    rng, columns = np.random.default_rng(1), table()
    done = np.stack(
        [
            np.array([["none", "x", "y"].index(drug) for drug in columns["drug"]]),
            columns["dose"] // 50,
        ],
        axis=1,
    )
    allowed = np.zeros((len(done), 2, 3), bool)
    for choices in (done, (done + rng.integers(1, 3, size=done.shape)) % 3):
        np.put_along_axis(allowed, choices[..., None], True, axis=2)
    return allowed


@pytest.fixture(scope="module", autouse=True)
def _datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        options: dict[str, Any] = {
            "observations": ["pulse"],
            "actions": ["drug", "dose"],
            "choices": {"drug": ["none", "x", "y"], "dose": [0, 50, 100]},
            "reward": "reward",
            "episode": "patient",
            "terminal": "died",
        }
        log = from_table(table(), **options)
        save_dataset(from_table(table(), masks=masks(), **options), MASKED)
        save_dataset(log, NAME)
        save_dataset(log, "clinic/later-v0")
        several = {"reward": None, "rewards": {"good": "reward", "bad": "harm"}}
        both = from_table(table(), **{**options, **several}, weights={"good": 1.0, "bad": -0.1})
        save_dataset(both, "clinic/both-v0")
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "bc"
    settings = train_settings(
        {"dataset": NAME, "algorithm": "FactoredBC", "n_steps": 2, "n_steps_per_epoch": 2}, "test"
    )
    run_training(folder, settings, show_progress=False)
    return folder


def report(run: Path, **options: Any) -> RunReport:
    return measure_run(run, QUICK, show_progress=False, **options)


def test_decisions_are_compared_slot_by_slot() -> None:
    logged = np.array([[0, 1, 2], [0, 1, 2], [1, 1, 2], [1, 0, 2]])
    chosen = np.array([[1, 1, 2], [1, 1, 2], [0, 1, 2], [1, 0, 2]])
    log_prob = np.log([0.5, 0.4, 0.3, 0.2])
    found = Comparison(logged, chosen, log_prob, log_prob - 2.0)
    assert found.changed.mean(0).tolist() == [0.75, 0.0, 0.0]
    changes = found.most_frequent_changes(0)
    assert [(c.logged, c.chosen, c.share) for c in changes] == [(0, 1, 0.5), (1, 0, 0.25)]
    assert found.most_frequent_changes(1) == []
    assert found.unusual.tolist() == [True, True, True, True]
    assert found.examples(2) == [0, 2]
    assert never_logged(logged, [3, 2, 4]) == [[2], [], [0, 1, 3]]
    assert share_of_new_combinations(logged, np.array([[1, 1, 2], [0, 0, 2]])) == 0.5
    with pytest.raises(InvalidActionSpaceError, match="of one shape"):
        Comparison(logged, chosen[:2], log_prob, log_prob)


def test_a_rule_is_kept_by_whole_actions() -> None:
    actions = np.array([[0, 1, 2], [0, 1, 1], [2, 2, 2]])
    states = np.zeros((3, 1))
    assert keeps_rule(all_different(3), actions, states).tolist() == [True, False, False]
    costs = [[0.0, 1.0, 2.0]] * 3
    assert keeps_rule(within_budget(costs, 3.0), actions, states).tolist() == [True, True, False]
    with pytest.raises(InvalidActionSpaceError, match=r"Expected a mask \(B, N, K\)"):
        keeps_rule(lambda partial: torch.ones(len(partial), 3), actions, states)


def of_one_feature(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """A rule that sees one observation, in the log's units: nobody with a fast pulse gets y."""
    assert state.shape[1] == 1
    allowed = torch.ones(*partial.shape, 3, dtype=torch.bool)
    allowed[:, 0, 2] = state[:, 0] < 80.0
    return allowed


def test_a_policy_that_sees_a_history_is_reported_evaluated_and_drawn(tmp_path: Path) -> None:
    fields = {"history": 2, "history_actions": True, "rules": [of_one_feature]}
    values = {"dataset": NAME, "algorithm": "FactoredBC", "n_steps": 2, "n_steps_per_epoch": 2}
    settings = train_settings({**values, "fields": fields}, "test")
    run_training(folder := tmp_path / "run", settings, show_progress=False)
    found = report(folder)
    log = minari.load_dataset(NAME)
    fast = [e.actions[t, 0] == 2 and e.observations[t, 0] >= 80.0 for e in log for t in range(2)]
    assert np.allclose(found.rule_kept or (), (1.0 - np.mean(fast), 1.0))
    assert 0.0 < np.mean(fast) < 1.0
    assert all(len(example.state) == 1 for example in found.examples)
    commands = [
        ["evaluate", str(folder), "--dataset", NAME, "--steps", "90", "--gamma", "0"],
        ["plot", "actions", NAME, "--policy", str(folder), "--out", str(tmp_path / "a.png")],
    ]
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    (tmp_path / "new.csv").write_text("pulse,patient\n80,1\n")
    done = CliRunner().invoke(app, ["predict", str(folder), str(tmp_path / "new.csv")])
    assert isinstance(done.exception, InvalidObservationError)
    assert "act(observation) keeps them" in str(done.exception)


def test_a_report_has_both_estimators_and_the_tables_names(run: Path, tmp_path: Path) -> None:
    found = report(run)
    assert (found.episodes, found.steps, found.nvec) == (40, 80, [3, 3])
    # Too few weights for the policy itself: the doubly robust estimate is not tried.
    assert found.policy[0].effective_size < 30
    assert [e.estimator.split()[-1] for e in found.policy] == ["episodes"]
    assert [e.estimator.split()[-1] for e in found.trial] == ["episodes", "robust"]
    assert found.gamma == 0.99
    returns = [1.0 * sum(found.gamma**t for t in range(2))]
    assert found.logged.value == pytest.approx(returns[0], abs=0.05)
    assert found.logged.low < found.logged.value < found.logged.high
    assert found.never_logged == [[], [2]]
    write_page(found, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "dose: no one chose 100." in text
    assert "pulse: " in text
    assert ">drug</td>" in text
    assert "learned from these same episodes" in text
    again = report(run)
    assert again.logged == found.logged
    assert str(again.policy) == str(found.policy)  # NaN is not equal to itself


def test_a_page_is_one_file_for_phones_and_paper(run: Path) -> None:
    found = write_report(run, QUICK, show_progress=False)
    text = Path(found["file"]).read_text()
    assert found["file"] == str(run / "report.html")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "script" not in tags.names
    assert not re.search(r"https?://|src=(?!\"data:)|<link", text)
    assert 'name="viewport"' in text
    assert "@media print" in text


def test_what_a_log_has_not_seen_is_no_reason_for_doubt_about_itself(run: Path) -> None:
    found = report(run, dataset="clinic/later-v0")
    assert not found.learned_from_it
    assert not any("same episodes" in doubt for doubt in doubts(found))


def test_each_of_several_rewards_has_its_returns(run: Path, tmp_path: Path) -> None:
    found = report(run, dataset="clinic/both-v0")
    rows = table()
    for name, column in (("good", rows["reward"]), ("bad", rows["harm"])):
        returns = found.by_reward[name]
        # Of two days each, the second discounted.
        expected = (column[0::2] + found.gamma * column[1::2]).mean()
        assert returns.logged.value == pytest.approx(expected, rel=1e-4)
        assert len(returns.trial) >= 1
    write_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "By the reward good alone:" in page
    assert "By the reward bad alone:" in page
    assert report(run).by_reward == {}


def test_part_of_a_large_log_is_whole_episodes(run: Path) -> None:
    settings = dataclasses.replace(QUICK, n_steps=21)
    found = measure_run(run, settings, show_progress=False)
    assert (found.episodes, found.steps, found.all_episodes) == (10, 20, 40)


def answer(name: str, low: float, high: float, size: float = 200.0) -> Estimate:
    return Estimate(name, (low + high) / 2.0, low, high, 0.9, size, 400)


def test_doubts_are_named(run: Path) -> None:
    found = report(run)
    sure = dataclasses.replace(
        found,
        learned_from_it=False,
        policy=[answer("a", 1.0, 2.0), answer("b", 1.5, 2.5)],
        trial=[answer("a", 1.0, 2.0), answer("b", 1.5, 2.5)],
        new_combinations=0.0,
        comparison=dataclasses.replace(
            found.comparison, chosen_log_prob=found.comparison.logged_log_prob
        ),
    )
    assert doubts(sure) == []
    assert "the policy is estimated to return 1.5 (90% interval 1 to 2, a)" in sentence(sure)
    cases: dict[str, dict[str, Any]] = {
        "do not overlap": {"policy": [answer("a", 1.0, 2.0), answer("b", 2.1, 2.5)]},
        "count as 3.0": {"policy": [answer("a", 1.0, 2.0, size=3.0)]},
        "25.0% of the policy's decisions are combinations": {"new_combinations": 0.25},
        "break the rule": {"rule_kept": (1.0, 0.5)},
        "The critics are not trusted: the policy acts by imitation": {
            "trust": Trust((Search(0.9, 0.02),), (1.0,), (0.1,), (0.1,), 50)
        },
        "The critics are not trusted: the policy acts by samples": {
            "trust": Trust((Search(0.9, 0.02),), (1.0,), (0.1,), (0.1,), 50, likeliest_gain=-1.0)
        },
    }
    for text, change in cases.items():
        [doubt] = doubts(dataclasses.replace(sure, **change))
        assert text in doubt
    unsure = dataclasses.replace(sure, policy=[answer("a", 1.0, 2.0, size=3.0)])
    assert "a trial in which the policy makes 10% of the decisions" in sentence(unsure)
    neither = dataclasses.replace(unsure, trial=[answer("a", 1.0, 2.0, size=3.0)])
    assert "neither what the policy returns nor" in sentence(neither)


def test_rules_and_trust_are_on_the_page(run: Path, tmp_path: Path) -> None:
    found = report(run, rule=all_different(3))
    assert found.rule_kept is not None
    logged = found.comparison.logged
    assert found.rule_kept[0] == pytest.approx((logged[:, 0] != logged[:, 1]).mean())
    found = dataclasses.replace(
        found, trust=Trust((Search(0.9, 0.02),), (1.0,), (0.9,), (0.1,), 50)
    )
    write_page(found, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "acts by search: other critics confirm 90% of what a search" in text
    assert "of the logged decisions and" in text


def test_all_of_a_report_keeps_to_the_masks_of_the_log(run: Path, tmp_path: Path) -> None:
    algo, allowed = open_policy(str(run)).algorithm, masks()
    torch.manual_seed(0)
    asm = ActionStructureModel(1, [3, 3], MLPConfig(width=8, n_layers=1))
    save_asm(asm, tmp_path / "asm.safetensors")
    found = report(run, dataset=MASKED, asm=tmp_path / "asm.safetensors")
    states = table()["pulse"].astype(np.float32)[:, None]
    chosen = found.comparison.chosen
    assert np.take_along_axis(allowed, chosen[..., None], axis=2).all()
    assert np.array_equal(chosen, algo.predict_masked(states, allowed))
    free = np.take_along_axis(allowed, algo.predict(states)[..., None], axis=2)[..., 0]
    assert found.against_masks is not None
    assert found.against_masks == pytest.approx(1.0 - free.all(1).mean())
    assert 0.0 < found.against_masks < 1.0
    behavior = BehaviorProbabilities(asm)
    kept = behavior.masked(allowed)
    for actions, log_prob in (
        (chosen, found.comparison.chosen_log_prob),
        (found.comparison.logged, found.comparison.logged_log_prob),
    ):
        np.testing.assert_allclose(log_prob, kept.log_prob(states, actions), rtol=1e-5)
    log = DeviceReplayBuffer.from_minari(minari.load_dataset(MASKED))
    options: dict[str, Any] = {"gamma": found.gamma, "level": 0.9, "seed": 0}
    trial = importance_sampling(log, GreedyPolicy(algo, 0.9, behavior), behavior, **options)
    assert found.trial[0] == trial
    write_page(found, tmp_path / "r.html")
    sentence = f"would choose what they forbid in {found.against_masks:.1%} of the states"
    assert sentence in (tmp_path / "r.html").read_text()


def test_a_log_without_masks_has_no_sentence_about_them(run: Path, tmp_path: Path) -> None:
    found = report(run)
    assert found.against_masks is None
    write_page(found, tmp_path / "r.html")
    assert "masks" not in (tmp_path / "r.html").read_text()


def test_a_policys_own_rules_need_not_be_named_again(tmp_path: Path) -> None:
    rules = [all_different(3).to_dict(), {"name": "function", "path": "no_such_module:rule"}]
    fields = {"rules": rules[:1]}
    settings = {"dataset": NAME, "algorithm": "FactoredBC", "n_steps": 2, "n_steps_per_epoch": 2}
    folder = tmp_path / "run"
    run_training(folder, train_settings(settings | {"fields": fields}, "test"), False)
    found = report(folder)
    assert found.rule_kept is not None
    assert found.rule_kept[0] < found.rule_kept[1] == 1.0
    # A function needs trust, wherever it is named.
    with pytest.raises(UntrustedRuleError, match=r"no_such_module:rule.*trust=True"):
        run_training(
            tmp_path / "other",
            train_settings(settings | {"fields": {"rules": rules}}, "test"),
            False,
        )


def test_the_command_takes_a_rule_of_the_users(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rule = "from spin_d3rlpy.asm.rules import all_different\nno_equal_numbers = all_different(3)\n"
    Path("clinic_rules.py").write_text(rule)
    arguments = ["report", str(run), "--steps", "2", "--out", "r.html", "--no-progress", "--json"]

    def call(*more: str) -> Any:
        return CliRunner().invoke(app, [*arguments, *more])

    result = call("--rule", "clinic_rules.py:no_equal_numbers")
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(result.stdout)
    assert 0.0 < found["rule_kept"][0] < 1.0
    assert found["policy"][0]["answered"] is False
    assert "The rule" in Path("r.html").read_text()
    for wrong, text in {
        "rules": "<file>:<function>",
        "clinic_rules.py:x": "no function 'x'",
    }.items():
        failed = call("--rule", wrong)
        assert isinstance(failed.exception, ValueError)
        assert text in str(failed.exception)


def test_settings_out_of_range_and_missing_runs_are_refused(tmp_path: Path) -> None:
    for name, value in {"gamma": 0.0, "soften": 1.0, "fqe_steps": 0, "level": 1.0}.items():
        with pytest.raises(ValueError, match=f"Expected {name} "):
            dataclasses.replace(QUICK, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"There is no config\.yaml in"):
        measure_run(tmp_path, QUICK)


def test_pages_escape_what_they_show() -> None:
    page = Page("<b>", "a & b")
    page.table([{"x": "<script>", "y": ""}])
    page.warning("<i>")
    text = page.text()
    assert "<title>&lt;b&gt;</title>" in text
    assert "&lt;script&gt;" in text
    assert "<i>" not in text
    assert ">y</th>" not in text  # empty everywhere


def test_a_folder_whose_settings_name_no_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("algorithm: SPINIDQL\n")
    with pytest.raises(ValueError, match="does not say what the policy was trained on"):
        measure_run(tmp_path)
