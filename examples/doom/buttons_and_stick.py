"""A game with three buttons and a stick: bins made by hand and by `FlatActions`, compared.

The actions of `defend_the_center` are a dict, with a stick that has no bounds. The same log of a
scripted player is read three times: with seven turns that somebody chose, and with seven bins of
`FlatActions`, of the same width or by quantiles of the log. Networks, seeds and work are the same.
Run `pip install vizdoom`, then `python examples/doom/buttons_and_stick.py`.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from stick import ByHand, StickEnv, dataset_of, play_script

from spin_d3rlpy import SPINIDQL, LockstepEvaluator
from spin_envs import Bins, FlatActions, FlattenAction

QUIET: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def main(episodes: int, seconds: float, seeds: list[int], test_episodes: int, out: Path) -> None:
    game = StickEnv()
    actions, log = play_script(game, episodes)
    mean = log["rewards"].sum() / episodes
    by_hand = ByHand(game)
    envs: dict[str, Any] = {"by hand": by_hand}
    read = {"by hand": dataset_of([by_hand.choices(action) for action in actions], log)}
    for name, bins in (("equal bins", Bins(7)), ("quantiles", Bins(7, by="quantiles"))):
        flat = FlatActions(game.action_space, bins, actions)
        envs[name] = FlattenAction(game, actions=flat)
        read[name] = dataset_of(flat.flatten_all(actions), log)
        print(name, [round(flat.value(3, i), 1) for i in range(7)])
    rows: list[Any] = [("script", "", mean, "", "")]
    for seed in seeds:
        for name, env in envs.items():
            d3rlpy.seed(seed)
            algo: Any = SPINIDQL(recipe="tuned", nvec=env.action_space.nvec.tolist())
            algo.fit(read[name], seconds=seconds, clock="ops", **QUIET)
            evaluator, played = LockstepEvaluator(env, n_trials=1), []
            for number in range(1000, 1000 + test_episodes):
                evaluator.seeds = range(number, number + 1)
                played.append(evaluator(algo))
            error = np.std(played) / len(played) ** 0.5
            rows.append((name, seed, np.mean(played), f"{error:.2f}", algo.trust.acts_by))
            print(*rows[-1], flush=True)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["bins", "seed", "return", "standard_error", "acts_by"])
        writer.writerows((*row[:2], f"{row[2]:.2f}", *row[3:]) for row in rows)
    print(f"{'bins':12} seed  return\n{'-' * 32}")
    for name, seed, value, error, _ in rows:
        print(f"{name:12} {seed!s:4} {value:7.2f} +- {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=200, help="of the script")
    parser.add_argument("--seconds", type=float, default=20.0, help="nominal, of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--test-episodes", type=int, default=30, help="of each policy")
    parser.add_argument("--out", type=Path, default=Path("hybrid.csv"))
    main(**vars(parser.parse_args()))
