"""A robot whose velocities are hidden: by one observation, by the last ones, and by all it has.

python examples/hidden_velocity.py --seconds 600 --seeds 0 1 2 --out hidden-velocity
"""

import argparse
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation

from spin_d3rlpy import SPINIQL, LockstepEvaluator, load_dataset
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.files.results import format_table, write_csv

DATASET = "spin/cheetah-run-b3/random-medium-expert-v0"
POSITIONS = 8  # of 17 numbers; the others are velocities


def hidden(dataset: DeviceReplayBuffer) -> DeviceReplayBuffer:
    """Returns a dataset without velocities."""
    return dataset.with_observations(dataset.observations[:, :POSITIONS].contiguous())


def without_velocities(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Returns an environment that does not show them."""
    space = Box(-np.inf, np.inf, (POSITIONS,), np.float32)
    return TransformObservation(env, lambda seen: seen[:POSITIONS], space)


def main(args: argparse.Namespace) -> None:
    dataset, env = load_dataset(DATASET, size=args.size)
    positions, blind = hidden(dataset), without_velocities(env)
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "positions": (positions, blind, {}),
        f"last {args.history} positions": (positions, blind, {"history": args.history}),
        f"last {args.history} positions and actions": (
            positions,
            blind,
            {"history": args.history, "history_actions": True},
        ),
        "positions and velocities": (dataset, env, {}),
    }
    rows = []
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for name, (data, played, fields) in kinds.items():
            d3rlpy.seed(seed)
            algo = SPINIQL(recipe="tuned", device="cpu:0", **fields)
            # The same work for each: "ops" counts it by what networks compute.
            algo.fit(data, seconds=args.seconds, clock="ops", logger_adapter=NoopAdapterFactory())
            row = {"state": name, "seed": seed, "seconds": args.seconds}
            for mode in ("greedy", "sample"):
                evaluator = LockstepEvaluator(played, args.episodes, 1_000, mode)
                row[mode] = round(float(evaluator.returns(algo).mean()), 1)
            rows.append(row)
            write_csv(args.out / "hidden_velocity.csv", rows)
    env.close()
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="nominal, of each training")
    parser.add_argument("--history", type=int, default=3, help="observations")
    parser.add_argument("--size", type=int, help="transitions of the dataset; all by default")
    parser.add_argument("--episodes", type=int, default=20, help="of each evaluation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("hidden-velocity"))
    main(parser.parse_args())
