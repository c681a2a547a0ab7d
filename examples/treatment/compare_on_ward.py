"""What algorithms learn from the log of a ward whose best policy is known.

Run with `python examples/treatment/compare_on_ward.py`; half an hour a seed on one core.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import d3rlpy
from d3rlpy.logging import NoopAdapterFactory
from outcomes import known_rows, read_log, treated_by
from write_log import ward_log

from spin_d3rlpy import SPINIDQL, SPINIQL, DecQN, FactoredIDQL, FactoredIQL
from spin_d3rlpy.files.results import format_table, write_csv

ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "imitation": (SPINIDQL, {"n_action_samples": 1, "search_sweeps": 0}),
    "FactoredIQL": (FactoredIQL, {}),
    "DecQN": (DecQN, {}),
    "SPINIQL": (SPINIQL, {}),
    "SPINIDQL": (SPINIDQL, {}),
    "FactoredIDQL": (FactoredIDQL, {}),
}


def create(name: str) -> Any:
    algorithm, fields = ALGORITHMS[name]
    algo = algorithm(recipe="tuned", **fields)
    if name == "imitation":  # the structure model alone, with all seconds
        algo.config.policy.pretraining.budget_share = 0.99
    return algo


def main(patients: int, seconds: float, seeds: list[int], names: list[str], out: Path) -> None:
    log = ward_log(patients, seed=0)
    data, rows = read_log(log), known_rows(log, patients)
    low, high = rows[-2]["value"], rows[-1]["value"]
    for seed, name in itertools.product(seeds, names):
        d3rlpy.seed(seed)
        algo = create(name)
        quiet = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
        algo.fit(data, seconds=seconds, clock="ops", **quiet)
        trust = str(getattr(algo, "trust", ""))
        found = treated_by(algo, patients // 2, seed=1)
        rows.append({"treated by": name, "seed": seed, **found, "trust": trust})
        write_csv(out, rows)  # after each, because all take hours
    for row in rows:
        row["percent"] = 100 * (row["value"] - low) / (high - low)
    write_csv(out, rows)
    for row in rows:
        for column in ("value", "harmful", "percent"):
            row[column] = f"{row[column]:.3g}"
    columns = ("treated by", "value", "harmful", "percent")
    print(format_table([{column: row[column] for column in columns} for row in rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=150, help="nominal ones of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=Path("ward.csv"))
    args = parser.parse_args()
    main(args.patients, args.seconds, args.seeds, args.algorithms, args.out)
