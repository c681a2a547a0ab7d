"""Five agents that share out landmarks, as one action: returns of rules and of what is learned.

Run with `python -m tests.measure.several_agents`; it needs `spin-d3rlpy[pettingzoo]`. The log is of
a rule that assigns agents to landmarks at each step, with three choices in ten at random.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import gymnasium
import numpy as np
import typer
from d3rlpy.logging import NoopAdapterFactory
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from spin_d3rlpy import SPINIDQL, FactoredBC, FactoredIQL, LockstepEvaluator, collect
from spin_d3rlpy.files.results import format_table, write_csv
from spin_envs import joint_action
from tests.algos.problems import new_algorithm

AGENTS = 5
NOISE = 0.3  # share of random choices in the log
FIRST_SEED = 1_000  # of evaluation episodes
ENV_ID = "measured/spread-v0"

Rule = Callable[[NDArray[Any]], NDArray[Any]]


def make_env(**_: Any) -> gymnasium.Env[Any, Any]:
    """Returns `simple_spread_v3` with the mean of the agents' rewards."""
    simple_spread_v3 = importlib.import_module("mpe2.simple_spread_v3")
    return joint_action(simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25), reward="mean")


def walk(observation: NDArray[Any], assign: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Each agent's step towards its landmark, by distances of all agents to all landmarks."""
    agents = observation.reshape(AGENTS, -1)
    places = agents[:, 4 : 4 + 2 * AGENTS].reshape(AGENTS, AGENTS, 2)  # as each agent sees them
    everyone = np.arange(AGENTS)
    target = places[everyone, assign(np.linalg.norm(places, axis=2))]
    ahead = target - 0.5 * agents[:, :2]  # it moves on
    axis = np.abs(ahead).argmax(1)
    return np.asarray(1 + 2 * axis + (ahead[everyone, axis] > 0))


def nearest(observation: NDArray[Any]) -> NDArray[Any]:
    """Every agent to its nearest landmark."""
    return walk(observation, lambda distances: distances.argmin(1))


def assigned(observation: NDArray[Any]) -> NDArray[Any]:
    """Agents to landmarks with the least sum of distances."""
    return walk(observation, lambda distances: linear_sum_assignment(distances)[1])


def with_noise(rule: Rule, rng: np.random.Generator) -> Rule:
    """Returns a rule whose choices are random in a share of cases."""

    def choose(observation: NDArray[Any]) -> NDArray[Any]:
        at_random = rng.random(AGENTS) < NOISE
        return np.where(at_random, rng.integers(5, size=AGENTS), rule(observation))

    return choose


class _Acts:
    """A rule as an evaluator asks an algorithm."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        return np.stack([self._rule(row) for row in x])


# All episodes are of one rule, so all count alike; and the model gets all seconds.
_ALIKE: dict[str, Any] = {"trajectory_weights": None}
_ALONE: dict[str, Any] = {"search_sweeps": 0, "n_action_samples": 1, "held_out_share": 0.0}
METHODS: dict[str, Callable[[], Any]] = {
    "SPINIDQL": lambda: SPINIDQL(recipe="tuned"),
    "SPINIDQL, imitation alone": lambda: _alone(
        new_algorithm(SPINIDQL, recipe="tuned", **_ALONE, **_ALIKE)
    ),
    "FactoredIQL": lambda: FactoredIQL(recipe="tuned"),
    "FactoredBC": lambda: new_algorithm(FactoredBC, recipe="tuned", **_ALIKE),
}


def _alone(algo: SPINIDQL) -> SPINIDQL:
    algo.config.policy.pretraining.budget_share = 0.99
    return algo


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ...")] = 3,
    seconds: Annotated[float, typer.Option(help="CPU seconds of a training.")] = 60.0,
    episodes: Annotated[int, typer.Option(help="Episodes of the log.")] = 2_000,
    trials: Annotated[int, typer.Option(help="Episodes of an evaluation.")] = 100,
) -> None:
    """Returns of rules and of policies learned from a log, on simple_spread with five agents."""
    gymnasium.register(ENV_ID, entry_point=make_env)
    env, rng = gymnasium.make(ENV_ID), np.random.default_rng(0)
    log = collect(env, with_noise(assigned, rng), episodes, progress=False)
    rows: list[dict[str, Any]] = []
    with closing(LockstepEvaluator(env, trials, seed=FIRST_SEED)) as evaluator:

        def add(name: str, seed: int | str, algo: Any) -> None:
            returns = evaluator.returns(algo)
            error = returns.std() / len(returns) ** 0.5
            row = {"method": name, "seed": seed}
            rows.append(row | {"return": f"{returns.mean():.2f}", "error": f"{error:.2f}"})
            if out is not None:
                write_csv(out, rows)

        rules = {"nearest": nearest, "assigned": assigned, "log": with_noise(assigned, rng)}
        for name, rule in rules.items():
            add(f"rule: {name}", "", _Acts(rule))
        for seed, (name, create) in itertools.product(range(seeds), METHODS.items()):
            d3rlpy.seed(seed)
            algo = create()
            algo.fit(
                log,
                seconds=seconds,
                clock="cpu",
                logger_adapter=NoopAdapterFactory(),
                show_progress=False,
            )
            add(name, seed, algo)
    print(format_table(rows))


if __name__ == "__main__":
    typer.run(main)
