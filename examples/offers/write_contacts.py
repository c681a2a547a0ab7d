"""Writes the table of a shop's contacts: what was offered to whom, revenue and complaints.

Run with `python examples/offers/write_contacts.py contacts.csv`; seconds.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from market import CUSTOMER, OFFER, PRICES, draw_customers, expected, todays_offers

from spin_d3rlpy.files.results import format_table, write_csv


def contacts(n: int, seed: int) -> dict[str, list[Any]]:
    """A table of n contacts, each of another customer, by columns."""
    rng = np.random.default_rng(seed)
    customers = draw_customers(n, rng)
    actions = todays_offers(customers, rng)
    revenue, complaints = expected(customers, actions)
    price = PRICES[actions[:, 0]] * (1.0 - np.array(OFFER["discount"])[actions[:, 1]] / 100.0)
    table: dict[str, list[Any]] = {"contact": list(range(1, n + 1))}
    table |= {name: customers[:, i].tolist() for i, name in enumerate(CUSTOMER)}
    table |= {
        name: [choices[i] for i in actions[:, slot]]
        for slot, (name, choices) in enumerate(OFFER.items())
    }
    sold = rng.random(n) < revenue / price
    table["revenue"] = np.where(sold, price, 0.0).round(2).tolist()
    table["complaints"] = (rng.random(n) < complaints).astype(int).tolist()
    return table


def main(out: Path, n: int, seed: int) -> None:
    table = contacts(n, seed)
    write_csv(
        out, [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    )
    means = {name: f"{np.mean(table[name]):.3g}" for name in ("revenue", "complaints")}
    print(format_table([{"table": out, "contacts": f"{n:,}", **means}]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--contacts", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    main(args.out, args.contacts, args.seed)
