"""What algorithms learn from the log of a ward whose best policy is known.

Run with `python examples/treatment/compare_on_ward.py`; half an hour a seed on one core.
"""

import argparse
import dataclasses
import itertools
from itertools import compress
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from doctors import HABITS, probabilities, treat
from outcomes import read_log, share_of_harmful, treated_by
from ward import ACTIONS, at_admission, optimum, policy_values
from write_log import ward_log

from spin_d3rlpy import SPINIDQL, SPINIQL, DecQN, FactoredIQL
from spin_d3rlpy.files.results import format_table, write_csv

ALGORITHMS = {
    "imitation": SPINIDQL,  # its structure model alone
    "FactoredIQL": FactoredIQL,
    "DecQN": DecQN,
    "SPINIQL": SPINIQL,
    "SPINIDQL": SPINIDQL,
}


def create(name: str) -> Any:
    algorithm: Any = ALGORITHMS[name]
    if name != "imitation":
        return algorithm(recipe="tuned")
    pretraining = algorithm(recipe="tuned").config.actor_encoder_factory.pretraining
    alone = dataclasses.replace(pretraining, budget_share=0.99)
    return algorithm(recipe="tuned", n_action_samples=1, search_sweeps=0, pretraining=alone)


def known_rows(log: dict[str, list[Any]], patients: int) -> list[dict[str, Any]]:
    """Exact values of the doctors, of all together and of the best policy."""
    rows = []
    for name in HABITS:
        is_own = [doctor == name for doctor in log["doctor"]]
        own = {column: list(compress(cells, is_own)) for column, cells in log.items()}
        exact = at_admission(policy_values(probabilities(name)))
        rows.append({"treated by": name, "value": exact, "harmful": share_of_harmful(own)})
    mean = float(np.mean([row["value"] for row in rows]))
    rows.append({"treated by": "all five", "value": mean, "harmful": share_of_harmful(log)})
    values, best = optimum()
    table = treat(lambda _, s, __: ACTIONS[best[s[:, 0], s[:, 1], s[:, 2] - 1]], patients, seed=1)
    harmful = share_of_harmful(table)
    return [*rows, {"treated by": "optimum", "value": at_admission(values), "harmful": harmful}]


def main(patients: int, seconds: float, seeds: list[int], names: list[str], out: Path) -> None:
    log = ward_log(patients, seed=0)
    data, rows = read_log(log), known_rows(log, patients)
    low, high = rows[-2]["value"], rows[-1]["value"]
    for seed, name in itertools.product(seeds, names):
        d3rlpy.seed(seed)
        algo = create(name)
        quiet = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
        algo.fit(data, seconds=seconds, clock="cpu", **quiet)
        trust = str(getattr(algo, "trust", ""))
        found = treated_by(algo, patients // 2, seed=1)
        rows.append({"treated by": name, "seed": seed, **found, "trust": trust})
        write_csv(out, rows)  # after each, because all take hours
    for row in rows:
        row["percent of the way"] = 100 * (row["value"] - low) / (high - low)
    write_csv(out, rows)
    shown = ("treated by", "value", "percent of the way", "harmful")
    print(
        format_table(
            [{k: x if isinstance(x := row[k], str) else f"{x:.2f}" for k in shown} for row in rows]
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=150, help="of CPU time, each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=Path("ward.csv"))
    args = parser.parse_args()
    main(args.patients, args.seconds, args.seeds, args.algorithms, args.out)
