"""A curve that is learned from a log of the shop, compared with the true one."""

from typing import Any

import d3rlpy
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from market import (
    CUSTOMER,
    N_TYPES,
    OFFER,
    Array,
    draw_customers,
    hypervolume,
    todays_offers,
    true_curve,
    value,
)
from write_contacts import contacts

from spin_d3rlpy import SPINIDQL, DeviceReplayBuffer, from_table
from spin_d3rlpy.evaluation.trade_off import trade_off, weightings

DIRECTIONS = {"revenue": 1.0, "complaints": -1.0}


def read(table: dict[str, list[Any]]) -> DeviceReplayBuffer:
    """Returns the table of contacts as a dataset."""
    return from_table(
        table,
        observations=CUSTOMER,
        actions=list(OFFER),
        choices=OFFER,
        rewards={"revenue": "revenue", "complaints": "complaints"},
        weights={"revenue": 1.0, "complaints": -100.0},
        episode="contact",
        terminal=True,
    )


def compare(n: int, seconds: float, seed: int, steps: int | None) -> dict[str, Any]:
    """Learns from one log, and returns what its curve and its delivered policy really are.

    Args:
        n: contacts of the log.
        seconds: nominal ones of training.
        seed: of the log and the training.
        steps: of each evaluation of a delivered policy; None delivers none.
    """
    learned, held_out = read(contacts(n, seed)).split(0.3, seed)
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
    true = true_curve(customers)
    reference = 0.0, max(complaints for _, complaints in true)
    row: dict[str, Any] = {
        "seed": seed,
        "today": today,
        "curve": [(round(x, 2), round(y, 4)) for x, y in found],
        "share": hypervolume(found, reference) / hypervolume(true, reference),
    }
    if steps is not None:
        limits = {"complaints": ("<=", "today")}
        curve = trade_off(
            algo, held_out, DIRECTIONS, limits, n=5, n_steps=steps, seed=seed, show_progress=False
        )
        row["delivered"] = curve.delivered is not None
        if curve.delivered is not None:
            chosen = curve.points[curve.delivered]
            row["returns"] = value(customers, offers(chosen.weights))
            row["estimates"] = [str(chosen.estimates[name].value) for name in DIRECTIONS]
            row["kept"] = row["returns"][1] <= today[1]
    return row
