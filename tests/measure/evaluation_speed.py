"""Lock-step evaluation against episode after episode.

Run with `python -m tests.measure.evaluation_speed`. Both play the same seeded cheetah-run
episodes with the same greedy policy of the paper's size; they alternate within one process and
the ratio of each pair is reported.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from spin_d3rlpy.algos import SPINIQL, FactoredIQL
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_d3rlpy.files.results import format_table, write_csv


def sequential_returns(
    algo: Any, env: gymnasium.Env[Any, Any], seeds: range
) -> NDArray[np.float64]:
    """Plays one episode after the other with a batch of one."""
    returns = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action = algo.predict(observation[None])[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    return np.array(returns)


def measure(
    algo_class: type[SPINIQL] | type[FactoredIQL], episodes: int = 10, repeats: int = 3
) -> dict[str, Any]:
    """Returns the times of both ways, their ratio and the largest difference of returns."""
    torch.manual_seed(0)
    env = gymnasium.make("spin/cheetah-run-v0", bins=3)
    algo = algo_class()
    algo.build_with_env(env)
    evaluator = LockstepEvaluator(env, n_trials=episodes)
    pairs, difference = [], 0.0
    for _ in range(repeats):
        started = time.perf_counter()
        sequential = sequential_returns(algo, env, evaluator.seeds)
        middle = time.perf_counter()
        together = evaluator.returns(algo)
        pairs.append((middle - started, time.perf_counter() - middle))
        difference = max(difference, float(np.abs(sequential - together).max()))
    ratios = [a / b for a, b in pairs]
    return {
        "algorithm": algo_class.__name__,
        "episodes": episodes,
        "sequential_s": f"{statistics.median(a for a, _ in pairs):.2f}",
        "lockstep_s": f"{statistics.median(b for _, b in pairs):.2f}",
        "ratio": f"{statistics.median(ratios):.2f}",
        "ratio_min": f"{min(ratios):.2f}",
        "ratio_max": f"{max(ratios):.2f}",
        "max_return_difference": f"{difference:.3g}",
    }


def rows(repeats: int = 3) -> list[dict[str, Any]]:
    """Measures the slowest and the fastest policy."""
    return [measure(algo_class, repeats=repeats) for algo_class in (SPINIQL, FactoredIQL)]


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
) -> None:
    """Time lock-step evaluation compared with episode after episode."""
    found = rows()
    print(format_table(found))
    if out is not None:
        write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
