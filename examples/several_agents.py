"""Several agents as one action: five agents cover five landmarks (MPE2's simple_spread).

python examples/several_agents.py --out several-agents
"""

import argparse
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from mpe2 import simple_spread_v3
from scipy.optimize import linear_sum_assignment

import spin_envs
from spin_d3rlpy import (
    SPINIDQL,
    ActionLayout,
    FactoredIDQL,
    FactoredIQL,
    LockstepEvaluator,
    collect,
)
from spin_d3rlpy.files.results import format_table, write_csv

AGENTS = 5
NOISE = 0.3  # share of the logged choices that are made at random
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SPINIDQL": (SPINIDQL, {}),
    "SPINIDQL, without layout": (SPINIDQL, {"layout": ActionLayout()}),
    "FactoredIDQL": (FactoredIDQL, {}),
    "FactoredIQL": (FactoredIQL, {}),
}


def make_env() -> spin_envs.JointAction:
    """The particles of MPE2, five actions each."""
    team = simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25)
    return spin_envs.joint_action(team, reward="mean")


def toward(observation: np.ndarray, is_assigned: bool) -> np.ndarray:
    """Every agent moves to its nearest landmark, or to one that no other agent is sent to."""
    agents = observation.reshape(AGENTS, -1)
    velocities, offsets = agents[:, :2], agents[:, 4 : 4 + 2 * AGENTS].reshape(AGENTS, AGENTS, 2)
    distances = np.linalg.norm(offsets, axis=2)
    targets = linear_sum_assignment(distances)[1] if is_assigned else distances.argmin(1)
    ahead = offsets[np.arange(AGENTS), targets] - 0.5 * velocities
    axis = np.abs(ahead).argmax(1)
    step = ahead[np.arange(AGENTS), axis]
    return np.where(np.abs(step) < 0.05, 0, 1 + 2 * axis + (step > 0))


class Function:
    """A function of one observation, as evaluators call policies."""

    def __init__(self, choose: Any) -> None:
        self._choose = choose

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.stack([self._choose(observation) for observation in x])

    def sample_action(self, x: np.ndarray) -> np.ndarray:
        return self.predict(x)


def main(seconds: float, episodes: int, evaluated: int, seeds: list[int], out: Path) -> None:
    """Collects a log of noisy assignments, trains on it, and writes a table of mean returns."""
    entry_point: Any = make_env
    gymnasium.register("example/spread-v0", entry_point=entry_point)
    env, rng = gymnasium.make("example/spread-v0"), np.random.default_rng(0)

    def noisy(x: np.ndarray) -> np.ndarray:
        at_random = rng.random(AGENTS) < NOISE
        return np.where(at_random, rng.integers(5, size=AGENTS), toward(x, True))

    evaluator, rows = LockstepEvaluator(env, evaluated, seed=1_000_000), []

    def record(name: str, policy: Any, seed: int | str = "") -> None:
        returns = evaluator.returns(policy)
        figures = {"return": returns.mean(), "standard_error": returns.std() / evaluated**0.5}
        rounded = {key: round(float(value), 2) for key, value in figures.items()}
        rows.append({"policy": name, "seed": seed, **rounded})
        write_csv(out, rows)  # after each, because they take minutes

    record("nearest landmark", Function(lambda x: toward(x, False)))
    record("assigned landmark", Function(lambda x: toward(x, True)))
    record("the log", Function(noisy))
    log = collect(env, noisy, episodes)
    for seed in seeds:
        for name, (algorithm, fields) in METHODS.items():
            d3rlpy.seed(seed)
            algo = algorithm(recipe="tuned", **fields)
            quiet = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
            algo.fit(log, seconds=seconds, clock="cpu", **quiet)
            record(name, algo, seed)
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a CPU core, each")
    parser.add_argument("--episodes", type=int, default=2_000, help="of the log")
    parser.add_argument("--evaluated", type=int, default=100, help="episodes of each policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("several_agents.csv"))
    main(**vars(parser.parse_args()))
