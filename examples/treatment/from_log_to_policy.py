"""From a log of treatments (CSV) to a policy, its estimated value and its support in the log.

Run with `python examples/treatment/from_log_to_policy.py`; about two minutes on a CPU.
"""

import argparse
import csv
from typing import Any

import numpy as np
from simulator import DOSES, GAMMA, STATES, doctor, simulate, value

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    MultiDiscreteFQE,
    PretrainingConfig,
    TransformerConfig,
    from_table,
)
from spin_d3rlpy.files.results import format_table


def main(patients: int, pretraining_updates: int, steps: int, folder: str) -> None:
    rng = np.random.default_rng(0)
    log = simulate(lambda states: doctor(states, rng), patients, seed=0)
    with open(f"{folder}/log.csv", "w", newline="") as file:
        csv.writer(file).writerows([log.keys(), *zip(*log.values(), strict=True)])
    data = from_table(  # from here on, only the log is known
        f"{folder}/log.csv",
        observations=STATES,
        actions=list(DOSES),
        reward="reward",
        episode="patient",
        time="day",
        terminal="ended",
        choices=DOSES,
        last_step="drop",  # where observation ends, treatment does not
    )
    sizes = TransformerConfig(width=64, n_blocks=2, dropout=0.0, attention_dropout=0.0)
    pretraining = PretrainingConfig(max_updates=pretraining_updates, mask_prob_max=1.0)
    start: dict[str, Any] = {"query_init": "mask", "head_init": "asm", "train_queries": False}
    algo = SPINIQL(gamma=GAMMA, policy=SPIN(sizes, pretraining, cache_features=True, **start))
    algo.fit(data, n_steps=steps, n_steps_per_epoch=steps)
    fqe = MultiDiscreteFQE(algo, check=steps >= 1_000)  # fewer settle nothing
    fqe.fit(data, n_steps=steps, n_steps_per_epoch=steps)
    first = np.stack([episode.observations[0] for episode in data.episodes])
    estimated = fqe.predict_value(first, algo.predict(first)).mean()

    # Log-probability of each dose given the others, compared with the log's own actions.
    seen = data.observations[data.observation_index].numpy()
    usual = np.quantile(algo.support(seen, data.actions.numpy()).min(1), 0.01)
    both = np.tile([3, 0, 2], (len(seen), 1))
    actions = {"the policy": algo.predict(seen), "chemotherapy together with cells": both}
    for name, action in actions.items():
        support = algo.support(seen, action).min(1)
        rare = (support < usual).mean()
        warning = "  WARNING: not supported by the log" if rare > 0.5 else ""
        print(f"Doses of {name}: unusual in {rare:.1%} of the states{warning}")
    values = {
        "log": value(log),
        "policy, estimated from the log": estimated,
        "policy, simulated": value(simulate(algo.predict, patients, seed=1)),
    }
    print(format_table([{"treatment": k, "value": f"{v:.2f}"} for k, v in values.items()]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=1_000)
    parser.add_argument("--pretraining-updates", type=int, default=1_500)
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps of IQL and FQE")
    parser.add_argument("--folder", default=".", help="output folder")
    args = parser.parse_args()
    main(args.patients, args.pretraining_updates, args.steps, args.folder)
