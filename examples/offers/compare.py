"""Compares curves that were learned from logs with the true one, and counts kept limits.

Run with `python examples/offers/compare.py --seeds 0 1 2`; about two minutes a log for the curve, and as
many more with `--limit`, which also delivers a policy of no more complaints than today's.
"""

import argparse
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from market import (
    CUSTOMER,
    N_TYPES,
    OFFER,
    Array,
    best_offers,
    draw_customers,
    todays_offers,
    value,
)
from write_log import contacts

from spin_d3rlpy import SPINIDQL, from_table
from spin_d3rlpy.evaluation.trade_off import trade_off, weightings
from spin_d3rlpy.files.results import format_table, read_csv, write_csv

DIRECTIONS = {"revenue": 1.0, "complaints": -1.0}
PRICES = [0.0, *np.geomspace(2.0, 2e4, 60), 1e6]  # of a complaint, by which the true curve is drawn


def hypervolume(points: list[tuple[float, float]], reference: tuple[float, float]) -> float:
    """The area of revenue and complaints that points dominate, up to a reference point."""
    area, least = 0.0, reference[1]
    for revenue, complaints in sorted(points, reverse=True):
        if revenue > reference[0] and complaints < least:
            area += (revenue - reference[0]) * (least - complaints)
            least = complaints
    return area


def compare(n: int, seconds: float, seed: int, steps: int | None) -> dict[str, Any]:
    """One log: hypervolumes of the learned and the true curve, and whether a limit is kept.

    Args:
        n: contacts.
        seconds: nominal ones of training.
        seed: of the log and the training.
        steps: of each evaluation of a delivered policy; None delivers none.
    """
    data = from_table(
        contacts(n, seed),
        observations=CUSTOMER,
        actions=list(OFFER),
        choices=OFFER,
        rewards={"revenue": "revenue", "complaints": "complaints"},
        weights={"revenue": 1.0, "complaints": -100.0},
        episode="contact",
        terminal=True,
    )
    learned, held_out = data.split(0.3, seed)
    d3rlpy.seed(seed)
    algo = SPINIDQL(recipe="tuned")
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(learned, seconds=seconds, clock="ops", **quiet)
    rng = np.random.default_rng(10_000 + seed)
    customers = draw_customers(N_TYPES, rng)
    today = value(customers, todays_offers(customers, rng))

    def offers(weights: dict[str, float]) -> Array:
        weighed = algo.with_weights(weights, held_out)
        return np.asarray(weighed.predict(customers.astype(np.float32)))

    tried = weightings(held_out, DIRECTIONS, 9)
    found = [value(customers, offers(weights)) for weights in tried]
    true = [value(customers, best_offers(customers, price)) for price in PRICES]
    # Nothing is as bad as this: no revenue, and as many complaints as where nobody minds them.
    reference = 0.0, max(complaints for _, complaints in true)
    row = {
        "seed": seed,
        "contacts": n,
        "seconds": seconds,
        "today: revenue": today[0],
        "today: complaints": today[1],
        "hypervolume": hypervolume(found, reference),
        "true hypervolume": hypervolume(true, reference),
    }
    row["share"] = row["hypervolume"] / row["true hypervolume"]
    if steps is not None:
        limits = {"complaints": ("<=", "today")}
        curve = trade_off(
            algo, held_out, DIRECTIONS, limits, n=5, n_steps=steps, seed=seed, show_progress=False
        )
        row["delivered"] = curve.delivered is not None
        if curve.delivered is not None:
            chosen = curve.points[curve.delivered]
            true_value = value(customers, offers(chosen.weights))
            estimates = [chosen.estimates[name].value for name in DIRECTIONS]
            row |= {"revenue": true_value[0], "complaints": true_value[1]}
            row |= {
                "estimated revenue": str(estimates[0]),
                "estimated complaints": str(estimates[1]),
            }
            row["kept"] = true_value[1] <= today[1]
    return row


def main(n: int, seconds: float, seeds: list[int], steps: int | None, out: Path) -> None:
    rows: list[dict[str, Any]] = list(read_csv(out)) if out.exists() else []
    done = {int(row["seed"]) for row in rows}
    for seed in seeds:
        if seed not in done:
            rows.append(compare(n, seconds, seed, steps))
            write_csv(out, rows)  # after each, because all take long
    print(format_table([{k: row.get(k, "") for k in ("seed", "share", "kept")} for row in rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contacts", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="nominal ones of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=None, help="steps of each evaluation")
    parser.add_argument("--out", type=Path, default=Path("offers.csv"))
    args = parser.parse_args()
    main(args.contacts, args.seconds, args.seeds, args.limit, args.out)
