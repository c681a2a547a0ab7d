"""Offline RL from the screen of a game, ViZDoom's `defend_the_center`, with seven buttons.

The data come from a scripted player that aims at monsters and presses other buttons, too: in some
episodes rarely, in others most of the time. Observations are the gray screen (uint8), health and
ammunition; each network has a small convolutional encoder of its own. All trainings have equal
work. Run `pip install vizdoom`, then `python examples/doom/train_on_images.py`.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from doom import DoomEnv, Script

from spin_d3rlpy import SPINIDQL, FactoredIQL, LockstepEvaluator, collect

CARE = (0.8, 0.6, 0.4, 0.2)  # of the scripted players
QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def main(episodes: int, seconds: float, seeds: list[int], test_episodes: int, out: Path) -> None:
    env = DoomEnv()
    script = Script(env, CARE, seed=0)
    dataset = collect(env, script, episodes=episodes)
    returns = dataset.returns().numpy()
    care = np.array(script.episodes)
    rows: list[Any] = []
    for level in CARE:
        own = returns[care == level]
        if not len(own):
            continue
        rows.append((f"script, care {level}", "", own.mean(), own.std() / len(own) ** 0.5))
    evaluator = LockstepEvaluator(env, n_trials=1)
    for seed in seeds:
        for algo_class in (FactoredIQL, SPINIDQL):
            d3rlpy.seed(seed)
            algo: Any = algo_class(recipe="tuned")
            algo.fit(dataset, seconds=seconds, clock="ops", **QUIET)
            played = []
            for number in range(test_episodes):
                evaluator.seeds = range(number, number + 1)
                played.append(evaluator(algo))
            error = np.std(played) / len(played) ** 0.5
            rows.append((algo_class.__name__, seed, np.mean(played), error))
            print(*rows[-1], flush=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["policy", "seed", "return", "standard_error"])
                writer.writerows((*row[:2], f"{row[2]:.2f}", f"{row[3]:.2f}") for row in rows)
    print(f"{'':20} seed  return\n{'-' * 40}")
    for name, seed, mean, error in rows:
        print(f"{name:20} {seed!s:4} {mean:7.2f} +- {error:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="of the script")
    parser.add_argument("--seconds", type=float, default=60.0, help="nominal, of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test-episodes", type=int, default=30, help="of each policy")
    parser.add_argument("--out", type=Path, default=Path("doom.csv"))
    main(**vars(parser.parse_args()))
