"""Compares curves that were learned from logs with the true one, or counts kept limits.

Run with `python examples/offers/compare.py --seeds 0 1 2`; three minutes a log. With `--limit 300`
each log delivers a policy of no more complaints than today's, evaluated by so many steps.
"""

import argparse
from pathlib import Path
from typing import Any

from curves import compare_curve, keep_limit

from spin_d3rlpy.files.results import format_table, read_csv, write_csv


def main(
    n: int, seconds: float, seeds: list[int], points: int, limit: int | None, out: Path
) -> None:
    rows: list[dict[str, Any]] = list(read_csv(out)) if out.exists() else []
    done = {int(row["seed"]) for row in rows}
    for seed in seeds:
        if seed in done:
            continue
        if limit is None:
            rows.append(compare_curve(n, seconds, seed, points))
        else:
            rows.append(keep_limit(n, seconds, seed, limit))
        write_csv(out, rows)  # after each, because all take long
    shown = ("seed", "share") if limit is None else ("seed", "delivered", "kept")
    print(format_table([{k: row.get(k, "") for k in shown} for row in rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contacts", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="nominal ones of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--points", type=int, default=25, help="weightings of a curve")
    parser.add_argument("--limit", type=int, default=None, help="steps of each evaluation")
    parser.add_argument("--out", type=Path, default=Path("offers.csv"))
    args = parser.parse_args()
    main(args.contacts, args.seconds, args.seeds, args.points, args.limit, args.out)
