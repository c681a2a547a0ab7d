"""What today's rules of trust choose by figures on record, and what that returned.

    python -m tests.measure.decisions examples/results/switch/new_logs.csv --out decided.csv

Whoever changes a rule, or a bound (`--bound MOST_BEYOND=1`), sees in seconds what it decides on
trainings that took hours (`tests.measure.switch` writes both files). Searches are compared in the
model of states again, in the order in which `fit` does it, by the figures that `switch` has of all
of them.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.files.yaml_settings import check_name
from spin_d3rlpy.search import trust_bounds
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from tests.measure.switch import name_of

ENOUGH = 0.9  # of the way from the log to the best policy


class Training(NamedTuple):
    """A training on record.

    Attributes:
        task: its name.
        seed: of the log and the training.
        trust: as `fit` measured it.
        rows: of the CSV, by policy.
    """

    task: str
    seed: int
    trust: Trust
    rows: dict[str, dict[str, str]]

    def returned(self, policy: str) -> float:
        """Returns the mean return of a policy, of the log or of the rule."""
        return float(self.rows[policy]["mean"])

    def error(self, *policies: str) -> float:
        """Returns the standard error of a difference of mean returns."""
        return math.hypot(*(float(self.rows[policy]["standard_error"]) for policy in policies))

    @property
    def choices(self) -> dict[str, float]:
        """Mean returns by what could have acted."""
        others = {"log", "rule", "default"}
        return {policy: self.returned(policy) for policy in self.rows if policy not in others}


def trainings(table: Path) -> Iterator[Training]:
    """Yields the trainings of a CSV and of the file of figures next to it."""
    rows: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    with table.open() as lines:
        for row in csv.DictReader(lines):
            rows.setdefault((row["task"], row["seed"]), {})[row["policy"]] = row
    for line in table.with_suffix(".jsonl").read_text().splitlines():
        figures: dict[str, Any] = json.loads(line)
        task, seed = figures.pop("task"), figures.pop("seed")
        searches = tuple(Search(*way) for way in figures.pop("searches"))
        by_search = {name: tuple(v) for name, v in figures.items() if isinstance(v, list)}
        trust = Trust(searches, **(figures | by_search))
        yield Training(task, seed, trust, rows[task, str(seed)])


def decide(training: Training) -> str:
    """Returns by what policy today's rules act."""
    trust = training.trust
    if trust.has_model:
        trust = compare_again(training)
    if trust.chooses_samples:
        return "default"
    return name_of(trust.best) if trust.acts_by == "search" else trust.acts_by


def compare_again(training: Training) -> Trust:
    """Returns trust with what searches return in the model of states, as today's rules ask for it.

    What `fit` measured counts, and of other searches what `switch` found.
    """
    measured = training.trust
    figures = [_in_model(training, number) for number in range(len(measured.searches))]
    untried = dataclasses.replace(measured, modeled=(), modeled_errors=(), beyond=())

    def returns_more(bolder: int, milder: int) -> bool:
        gain, error, _ = figures[bolder]
        return gain - figures[milder][0] > error

    return untried.compared(
        lambda it, number: it.with_figures(number, *figures[number]), returns_more
    )


def _in_model(training: Training, number: int) -> tuple[float, float, float]:
    """Returns what a search gains in the model of states, its error, and the share beyond."""
    trust = training.trust
    if trust.modeled_errors[number] != trust_bounds.NOT_TRIED:
        return trust.modeled[number], trust.modeled_errors[number], trust.beyond[number]
    row = training.rows[name_of(trust.searches[number])]
    return float(row["in_model"]), float(row["in_model_error"]), float(row["beyond"])


def share(training: Training, policy: str) -> float:
    """Returns how far a policy goes from the log, 0, to the best of what could have acted, 1."""
    log, best = training.returned("log"), max(training.choices.values())
    return (training.returned(policy) - log) / max(best - log, 0.02 * abs(log))


def surely_less(training: Training, policy: str, other: str, part: float = 1.0) -> bool:
    """Returns whether a policy surely goes less than a part of the way from the log to another.

    By two standard errors; the best of several policies that are level looks better than it is.
    """
    log = training.returned("log")
    wanted = log + part * (training.returned(other) - log)
    return training.returned(policy) + 2.0 * training.error(policy, other) < wanted


def main(
    table: Annotated[Path, typer.Argument(help="A CSV of `tests.measure.switch`.")],
    out: Annotated[Path | None, typer.Option(help="The CSV.")] = None,
    bound: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of `search.trust_bounds`, repeatable.")
    ] = None,
) -> None:
    """Make decisions on record again."""
    for name, _, value in (text.partition("=") for text in bound or ()):
        check_name(name, [key for key in vars(trust_bounds) if key.isupper()], "bounds")
        setattr(trust_bounds, name, float(value))
    rows: list[dict[str, Any]] = []
    for training in trainings(table):
        policy = decide(training)
        best = max(training.choices, key=training.choices.__getitem__)
        row: dict[str, Any] = {"task": training.task, "seed": training.seed, "policy": policy}
        row |= {"mean": training.returned(policy), "log": training.returned("log")}
        row |= {"best": best, "best_mean": training.returned(best)}
        row["share"] = f"{share(training, policy):.3g}"
        row["is_below_log"] = surely_less(training, policy, "log")
        row["is_short"] = surely_less(training, policy, best, ENOUGH)
        rows.append(row)
        typer.echo("  ".join(map(str, row.values())))
    below, short = (sum(row[name] for row in rows) for name in ("is_below_log", "is_short"))
    typer.echo(
        f"{len(rows)} trainings: {below} are surely below the log, {short} surely short of "
        f"{ENOUGH:.0%} of the way from the log to the best"
    )
    if out is not None:
        write_csv(out, rows)


if __name__ == "__main__":
    typer.run(main)
