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


def learn(n: int, seconds: float, seed: int) -> tuple[SPINIDQL, DeviceReplayBuffer]:
    """Learns from a log of n contacts; returns what acts, and contacts that it did not see.

    Args:
        n: contacts of the log.
        seconds: nominal ones of training.
        seed: of the log and the training.
    """
    learned, held_out = read(contacts(n, seed)).split(0.3, seed)
    d3rlpy.seed(seed)
    algo = SPINIDQL(recipe="tuned")
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(learned, seconds=seconds, clock="ops", **quiet)
    return algo, held_out


def _draw_types(seed: int) -> tuple[Array, tuple[float, float]]:
    """Returns customers by which values are means, and the value of today's offers to them."""
    rng = np.random.default_rng(10_000 + seed)
    customers = draw_customers(N_TYPES, rng)
    return customers, value(customers, todays_offers(customers, rng))


def compare_curve(n: int, seconds: float, seed: int, points: int) -> dict[str, Any]:
    """Returns the true values of policies of several weightings, and their hypervolume's share.

    Args:
        n: see `learn`.
        seconds: see `learn`.
        seed: see `learn`.
        points: weightings.
    """
    algo, held_out = learn(n, seconds, seed)
    customers, today = _draw_types(seed)
    found = []
    for weights in weightings(held_out, DIRECTIONS, points):
        offers = algo.with_weights(weights, held_out).predict(customers.astype(np.float32))
        found.append(value(customers, np.asarray(offers)))
    true = true_curve(customers)
    reference = 0.0, max(complaints for _, complaints in true)
    return {
        "seed": seed,
        "today": today,
        "curve": [(round(x, 2), round(y, 4)) for x, y in found],
        "share": hypervolume(found, reference) / hypervolume(true, reference),
    }


def keep_limit(n: int, seconds: float, seed: int, steps: int) -> dict[str, Any]:
    """Returns what a policy of no more complaints than today's really returns, if there is one.

    Args:
        n: see `learn`.
        seconds: see `learn`.
        seed: see `learn`.
        steps: of each evaluation.
    """
    algo, held_out = learn(n, seconds, seed)
    customers, today = _draw_types(seed)
    limits = {"complaints": ("<=", "today")}
    curve = trade_off(
        algo, held_out, DIRECTIONS, limits, n=5, n_steps=steps, seed=seed, show_progress=False
    )
    row = {"seed": seed, "today": today, "delivered": curve.delivered is not None}
    if curve.delivered is None:
        return row
    chosen = curve.points[curve.delivered]
    offers = algo.with_weights(chosen.weights, held_out).predict(customers.astype(np.float32))
    returns = value(customers, np.asarray(offers))
    return row | {
        "returns": returns,
        "estimates": [str(chosen.estimates[name].value) for name in DIRECTIONS],
        "kept": returns[1] <= today[1],
    }
