"""Treats simulated patients by a trained policy, which shows what no log can: the truth.

Run with `python examples/treatment/treat_with.py runs/ward` after a training; a minute.
"""

import argparse
from typing import Any

from outcomes import share_of_harmful, treated_by, value
from ward import at_admission, optimum
from write_log import ward_log

from spin_d3rlpy.files.results import format_table
from spin_d3rlpy.runs.policy import open_policy


def main(run: str, patients: int) -> None:
    log = ward_log(patients, seed=1)
    harmful = share_of_harmful(log)
    rows: dict[str, dict[str, Any]] = {
        "the doctors": {"value": value(log)[0], "harmful": harmful},
        "the policy": treated_by(open_policy(run).algorithm, patients, seed=1),
        "the best policy": {"value": at_admission(optimum()[0]), "harmful": 0.0},
    }
    table = [
        {
            "treated by": name,
            "value": f"{row['value']:.2f}",
            "harmful pairs": f"{row['harmful']:.1%}",
        }
        for name, row in rows.items()
    ]
    print(format_table(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of `spin-d3rlpy train`")
    parser.add_argument("--patients", type=int, default=2_000)
    args = parser.parse_args()
    main(args.run, args.patients)
