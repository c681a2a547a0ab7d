"""Trains a model of few couriers and orders, and acts with many.

python examples/act_large.py --out act-large
"""

import argparse
import itertools
import time
from contextlib import closing
from pathlib import Path

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, LockstepEvaluator, load_dataset
from spin_d3rlpy.files.results import format_table, write_csv
from spin_envs import reference_scores


def train(couriers: int, seconds: float, size: int, seed: int) -> SPINIDQL:
    """Imitates an expert for CPU seconds; the model acts alone, the surest couriers first."""
    d3rlpy.seed(seed)
    dataset, env = load_dataset(f"spin/dispatch-n{couriers}/expert-v0", size=size)
    env.close()
    algo = SPINIDQL(
        recipe="tuned",
        n_action_samples=1,
        search_sweeps=0,
        candidate_temperature=0.0,
        held_out_share=0.0,
    )
    algo.config.policy.pretraining.budget_share = 0.98
    algo.fit(dataset, seconds=seconds, clock="cpu", logger_adapter=NoopAdapterFactory())
    return algo


def act(algo: SPINIDQL, couriers: int, episodes: int) -> dict[str, float]:
    """Returns the mean return in percent of the expert's, and milliseconds a decision."""
    with closing(gymnasium.make("spin/dispatch-v0", couriers=couriers)) as env:
        acting = algo.resized(env)
        with closing(LockstepEvaluator(env, episodes, seed=1_000)) as evaluator:
            mean = float(evaluator.returns(acting).mean())
        scores, (observation, _), times = reference_scores(env), env.reset(seed=0), []
        for _ in range(20):
            began = time.perf_counter()
            acting.predict(observation[None])
            times.append(time.perf_counter() - began)
    row = {"return": round(mean, 2), "milliseconds": round(1e3 * float(np.median(times)), 1)}
    return row if scores is None else row | {"percent": round(100.0 * mean / scores[1], 1)}


def main(args: argparse.Namespace) -> None:
    rows = []
    args.out.mkdir(parents=True, exist_ok=True)
    for seed, few in itertools.product(args.seeds, args.trained):
        algo = train(few, args.seconds, args.size, seed)
        for n in args.acting:
            run = {"trained": few, "seconds": args.seconds, "acting": n, "seed": seed}
            rows.append(run | act(algo, n, args.episodes))
        write_csv(args.out / "act_large.csv", rows)
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trained", type=int, nargs="+", default=[10, 20], help="couriers")
    parser.add_argument("--acting", type=int, nargs="+", default=[5, 10, 20, 50, 100])
    parser.add_argument("--seconds", type=float, default=60.0, help="of a CPU core, each")
    parser.add_argument("--size", type=int, default=100_000, help="transitions of each dataset")
    parser.add_argument("--episodes", type=int, default=20, help="of each evaluation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("act-large"))
    main(parser.parse_args())
