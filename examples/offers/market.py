"""A shop that calls and writes to its customers: revenue and complaints, both known exactly.

Customers, products and their answers are invented. An offer is five choices at once. What sells is
not what annoys least: calls in the evening and reminders sell, and irritable customers complain.
"""

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

OFFER: dict[str, list[Any]] = {
    "product": ["card", "loan", "insurance", "travel", "savings", "phone"],
    "discount": [0, 5, 10, 20],  # percent
    "channel": ["letter", "e-mail", "call"],
    "time": ["morning", "noon", "evening"],
    "reminders": [0, 1, 3],
}
NVEC = [len(choices) for choices in OFFER.values()]
ACTIONS = np.array(list(itertools.product(*map(range, NVEC))))  # (648, 5) numbers of choices
PRICES = np.array([40.0, 120.0, 90.0, 70.0, 30.0, 60.0])  # of the products, euros
CUSTOMER = ["age", "income", "children", "years", "visits", "irritable"]
# How well a product (rows) suits a customer by standardized age, income, children, years, visits.
SUITS = np.array(
    [
        [-0.6, 0.3, 0.0, 0.2, 0.5],
        [-0.2, -0.5, 0.6, 0.0, 0.0],
        [0.5, 0.2, 0.7, 0.3, 0.0],
        [0.2, 0.8, -0.6, 0.0, 0.3],
        [0.7, -0.2, 0.3, 0.5, -0.2],
        [-0.8, 0.0, 0.2, -0.4, 0.4],
    ]
)
SUITED_TIME = np.array([1, 2, 2, 0, 0, 1])  # of the products: when they sell best
N_TYPES = 4000  # customers by which expected values are means


def draw_customers(n: int, rng: np.random.Generator) -> Array:
    """Customers `(n, 6)` in the units of the table."""
    age = rng.uniform(18, 85, n).round()
    income = rng.gamma(4.0, 9.0, n).round(1)  # thousand euros a year
    children = rng.poisson(0.9, n).clip(0, 5)
    years, visits = rng.exponential(5.0, n).round(1), rng.poisson(3.0, n)
    irritable = rng.beta(2.0, 3.0, n).round(2)
    return np.stack([age, income, children, years, visits, irritable], axis=1)


def _standardized(customers: Array) -> Array:
    mean = np.array([51.0, 36.0, 0.9, 5.0, 3.0])
    return np.asarray((customers[:, :5] - mean) / np.array([19.0, 18.0, 1.0, 5.0, 1.7]))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def expected(customers: Array, actions: Array) -> tuple[Array, Array]:
    """Expected revenue and complaints of offers `(n, 5)` to customers `(n, 6)`, `(n,)` each."""
    product, discount, channel, time, reminders = actions.T
    x, irritable = _standardized(customers), customers[:, 5]
    suits = (SUITS[product] * x).sum(1)
    percent = np.array(OFFER["discount"])[discount]
    young = x[:, 0] < 0.0
    sells = -2.2 + 1.2 * suits + 0.06 * percent
    # Together: a call at the product's time, e-mail to the young, a letter to the old.
    sells += np.where((channel == 2) & (time == SUITED_TIME[product]), 1.2, 0.0)
    sells += np.where((channel == 1) & young, 0.7, 0.0) + np.where((channel == 0) & ~young, 0.5, 0)
    sells += np.where(channel == 2, 0.3, 0.0)
    # A reminder helps where there is a discount to remind of.
    sells += np.choose(reminders, [0.0, 0.2 + 0.5 * (percent > 0), 0.3 + 0.8 * (percent > 0)])
    revenue = _sigmoid(sells) * PRICES[product] * (1.0 - percent / 100.0)
    annoys = -5.0 + 2.0 * irritable + np.choose(reminders, [0.0, 0.5, 1.6]) * (0.5 + irritable)
    annoys += np.where(channel == 2, 0.6 + 1.5 * irritable, 0.0)
    annoys += np.where((channel == 2) & (time == 2), 1.0, 0.0)  # the evening is for oneself
    annoys += np.where((channel == 2) & (reminders == 2), 0.8, 0.0) - 0.8 * np.minimum(suits, 1.0)
    return np.asarray(revenue), _sigmoid(annoys)


def todays_offers(customers: Array, rng: np.random.Generator) -> Array:
    """What the shop's people do: a rule of thumb by age, and often something else."""
    n = len(customers)
    age, irritable = customers[:, 0], customers[:, 5]
    usual = np.stack(
        [
            np.where(age < 30, 5, np.where(age < 60, 1, 2)),
            np.full(n, 1),
            np.where(irritable > 0.6, 0, np.where(age < 45, 1, 2)),
            np.full(n, 1),
            np.where(irritable > 0.6, 0, 1),
        ],
        axis=1,
    )
    deviates = rng.random(usual.shape) < 0.4
    return np.where(deviates, rng.integers(0, NVEC, usual.shape), usual)


def value(customers: Array, actions: Array) -> tuple[float, float]:
    """Mean expected revenue and complaints of a contact."""
    revenue, complaints = expected(customers, actions)
    return float(revenue.mean()), float(complaints.mean())


PRICES_OF_COMPLAINTS = [0.0, *np.geomspace(2.0, 2e4, 60), 1e6]


def true_curve(customers: Array) -> list[tuple[float, float]]:
    """Revenue and complaints of the best offers by many prices of a complaint."""
    n = len(customers)
    of_all = [expected(customers, np.tile(action, (n, 1))) for action in ACTIONS]
    revenue, complaints = np.stack(of_all, axis=1)  # (648, n) each
    curve = []
    for price in PRICES_OF_COMPLAINTS:
        best = (revenue - price * complaints).argmax(0), np.arange(n)
        curve.append((float(revenue[best].mean()), float(complaints[best].mean())))
    return curve


def hypervolume(points: list[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Returns the area of revenue and complaints that points dominate, up to a reference point."""
    area, least = 0.0, reference[1]
    for revenue, complaints in sorted(points, reverse=True):
        if revenue > reference[0] and complaints < least:
            area += (revenue - reference[0]) * (least - complaints)
            least = complaints
    return area
