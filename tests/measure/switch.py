"""What `SPINIDQL` chooses on 76 tasks, and what it could have chosen.

    python -m tests.measure.switch machines signals --seed 0 --seed 1 --out switch.csv

Trains by the recipe, then plays the default, imitation, samples and every search of `algo.trust`,
which is kept next to the CSV, so that decisions can be made again (`tests.measure.decisions`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import numpy as np
import torch
import typer
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, from_table
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.files.yaml_settings import check_name
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from tests.measure.tasks import TASKS, Task, logged, returns

SINGLE_STEPS = 500  # that each policy is played for where a decision is an episode
FIRST_EPISODE = 10_000  # seed of the episodes that are played


def dataset_of(task: Task, seed: int) -> tuple[DeviceReplayBuffer, np.ndarray]:
    """Returns a log as a dataset, and its returns."""
    observations, actions, rewards, over = logged(task, seed)
    n, length = rewards.shape
    before = np.concatenate([np.zeros((n, 1), bool), over[:, :-1]], 1)
    table: dict[str, Any] = {"episode": np.repeat(np.arange(n), length), "reward": rewards.ravel()}
    table["ends"] = over.ravel()
    seen = [f"x{i}" for i in range(observations.shape[2])]
    chosen = [f"a{i}" for i in range(actions.shape[2])]
    table |= dict(zip(seen, observations.reshape(-1, len(seen)).astype(np.float32).T, strict=True))
    table |= dict(zip(chosen, actions.reshape(-1, len(chosen)).T, strict=True))
    table = {name: column[~before.ravel()] for name, column in table.items()}
    ends: dict[str, Any] = {"terminal": "ends"} if over.any() else {}
    if length == 1:
        ends = {"terminal": True}
    dataset = from_table(
        table,
        observations=seen,
        actions=chosen,
        nvec=task.nvec,
        episode="episode",
        reward="reward",
        **ends,
    )
    return dataset, rewards.sum(1)


def acting_by(trust: Trust, number: int) -> Trust:
    """Returns trust of which one search is the best."""
    gains = tuple(1.0 if i == number else -1.0 for i in range(len(trust.searches)))
    none = (0.0,) * len(gains)
    chosen = dataclasses.replace(trust, promised=gains, confirmed=gains, standard_errors=none)
    chosen = dataclasses.replace(chosen, spread=1.0, likeliest_gain=0.0, likeliest_error=0.0)
    return dataclasses.replace(chosen, modeled=(), modeled_errors=(), foresees=False)


def in_model(algo: SPINIDQL, trust: Trust, number: int | None) -> dict[str, float]:
    """Returns what a search returns in the model of states more than imitation, if there is one.

    Of samples if the number is None.
    """
    impl, held_out = algo.impl, algo._held_out
    if impl is None or held_out is None or not trust.has_model:
        return {}
    assert impl.state_model is not None
    torch.manual_seed(0)
    index = torch.randperm(held_out.transition_count)
    starts, n_steps = impl.state_model.starts(held_out, index, 0.0)
    only = dataclasses.replace(trust, states=0) if number is None else acting_by(trust, number)
    found = impl.compare_in_model(only, algo._held_out_states(starts)[0], n_steps)
    if number is None:
        return {"in_model": found.samples_gain, "in_model_error": found.samples_error}
    return {
        "in_model": found.modeled[number],
        "in_model_error": found.modeled_errors[number],
        "beyond": found.beyond[number],
    }


def name_of(search: Search) -> str:
    """Returns what the results call a search."""
    return f"search by {search.gamma:g}, {search.action_flexibility:g}"


def train(name: str, seed: int, seconds: float) -> tuple[Task, SPINIDQL, np.ndarray]:
    """Trains on a task's log, and returns its returns, too."""
    task = TASKS[name]()
    dataset, of_log = dataset_of(task, seed)
    d3rlpy.seed(seed)
    algo = SPINIDQL(recipe="tuned")
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(dataset, seconds=seconds, clock="ops", **quiet)
    return task, algo, of_log


def compare(
    name: str, seed: int, task: Task, algo: SPINIDQL, of_log: np.ndarray, episodes: int
) -> Iterator[dict[str, Any]]:
    """Yields a row for the log, the rule and each policy."""
    trust, n = algo.trust, SINGLE_STEPS if task.horizon == 1 else episodes
    assert trust is not None

    def row(policy: str, returned: np.ndarray, **figures: float) -> dict[str, Any]:
        values = {
            "mean": returned.mean(),
            "standard_error": returned.std() / len(returned) ** 0.5,
            **figures,
        }
        rounded = {key: f"{value:.4g}" for key, value in values.items()}
        return {"task": name, "seed": seed, "policy": policy, **rounded}

    def play(act: Any) -> Any:
        return returns(task, act, n, FIRST_EPISODE)

    yield row("log", of_log)
    yield row("rule", play(lambda _: task.rule()))
    yield row("default", play(algo.predict))
    impl = algo.impl
    assert impl is not None
    algo.config.search = "never"
    yield row("imitation", play(algo.predict))
    yield row("samples", play(algo.sample_action), **in_model(algo, trust, None))
    algo.config.search = "always"
    for i, way in enumerate(trust.searches):
        figures = {"promised": trust.promised[i], "confirmed": trust.confirmed[i]}
        figures |= in_model(algo, trust, i)
        impl.trust_critics(acting_by(trust, i))
        yield row(name_of(way), play(algo.predict), **figures)


def main(
    tasks: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    out: Annotated[Path, typer.Option(help="The CSV.")] = Path("switch.csv"),
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable; default: 0.")] = None,
    seconds: Annotated[float, typer.Option(help="Nominal ones of each training.")] = 60.0,
    episodes: Annotated[int, typer.Option(help="That each policy is played for.")] = 30,
) -> None:
    """Compare what is chosen with what could have been chosen."""
    for name in tasks or ():
        check_name(name, list(TASKS), "tasks")
    rows: list[dict[str, Any]] = []
    with out.with_suffix(".jsonl").open("w") as measured:
        for number in seed or [0]:
            for name in tasks or TASKS:
                task, algo, of_log = train(name, number, seconds)
                assert algo.trust is not None
                print(name, number, algo.trust, flush=True)
                figures = dataclasses.asdict(algo.trust)
                measured.write(json.dumps({"task": name, "seed": number, **figures}) + "\n")
                measured.flush()
                rows += compare(name, number, task, algo, of_log, episodes)
                write_csv(out, rows)


if __name__ == "__main__":
    typer.run(main)
