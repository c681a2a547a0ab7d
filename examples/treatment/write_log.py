"""Writes the table of a simulated ward with five doctors, and one of new patients.

Run with `python examples/treatment/write_log.py --patients 10000`; seconds.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from doctors import HABITS, STATE, draw, habit, probabilities, treat
from ward import Array, at_admission, optimum, policy_values

from spin_d3rlpy.files.results import format_table, write_csv


def ward_log(patients: int, seed: int) -> dict[str, list[Any]]:
    """The table of patients of all doctors, who treat as many each, by columns."""
    rng = np.random.default_rng(seed + 1)
    names = list(HABITS)
    of_patient = rng.integers(0, len(names), patients)
    usual = np.stack([habit(name) for name in names])

    def act(alive: Array, states: Array, seen: dict[str, list[Any]]) -> Array:
        kind, response, severity = states.T
        return draw(usual[of_patient[alive], kind, response, severity - 1], rng)

    table = treat(act, patients, seed)
    doctors = [names[of_patient[i - 1]] for i in table["patient"]]
    return {"patient": table.pop("patient"), "doctor": doctors, **table}


def main(patients: int, seed: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = ward_log(patients, seed)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    write_csv(folder / "log.csv", rows)
    admitted = ward_log(20, seed + 2)
    new = {row[0]: row for row in reversed(list(zip(*admitted.values(), strict=True)))}
    first = [dict(zip(admitted, new[i], strict=True)) for i in range(1, 21)]
    write_csv(folder / "new.csv", [{k: row[k] for k in ("patient", *STATE)} for row in first])

    exact = {name: at_admission(policy_values(probabilities(name))) for name in HABITS}
    exact["all five"] = float(np.mean(list(exact.values())))
    exact["the best policy"] = at_admission(optimum()[0])
    print(format_table([{"treated by": k, "value": f"{v:.3f}"} for k, v in exact.items()]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path())
    args = parser.parse_args()
    main(args.patients, args.seed, args.folder)
