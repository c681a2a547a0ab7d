"""Places of a page, each of which shows an item: duplicates and similar items lose value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from spin_envs.action_grid import check_integer
from spin_envs.base import MultiDiscreteEnv, StepResult, fill_cell
from spin_envs.layout import ActionLayout
from spin_envs.tasks import COORDINATION_EPISODE_STEPS, DEFAULT_SLOTS

CATEGORIES = 5
ITEMS_A_PLACE = 2
CANNIBALIZATION = 0.5  # what an even page's number of better items of its category leaves an item
INTERESTS = 1.5  # standard deviation of an episode's first logits
DRIFT = 0.3  # standard deviation of a step of the interests' logits
SATIATION = 1.0  # what a category loses that fills the page

_COLORS = ((200, 60, 60), (60, 140, 200), (80, 170, 80), (220, 160, 40), (150, 90, 190))


def item_qualities(items: int) -> NDArray[np.float64]:
    """Returns the items' qualities, from 1 down to 0.1; item k is of category `k % 5`."""
    return np.linspace(1.0, 0.1, items)


def rank_factors(items: NDArray[np.int64], places: int) -> NDArray[np.float64]:
    """Returns the share of each item's value that the items before it leave, `(n,)`.

    `items` `(n,)` are distinct ones, best first, on a page of so many places.
    """
    same = (items[:, None] % CATEGORIES) == (items % CATEGORIES)
    better = np.tril(same, -1).sum(1)
    factors: NDArray[np.float64] = CANNIBALIZATION ** (better * CATEGORIES / places)
    return factors


class SlateEnv(MultiDiscreteEnv):
    """A page with N places, each of which shows one of 2 N items, and a user whose interests drift.

    Items have a quality (`item_qualities`) and one of 5 categories. An item shown pays the user's
    interest in its category times its quality times 0.5 to the number of better items of that
    category on the page, in units of N / 5; an item shown again pays nothing. Rewards are divided
    by the largest one that any page could pay to a user with a single interest. Where an item
    stands does not matter, so that every page has N! equally good orders.

    Interests are the softmax of logits that follow a random walk and fall where a category fills
    the page. The observation, float32 `(5,)`, holds the interests. Episodes are truncated after 50
    steps. The info's `collisions` is the number of places that repeat an item.

    Args:
        places: their number N (2 to 100).
        render_mode: `None` or `"rgb_array"`; `gymnasium.make` takes `"human"`, too.
        size: width and height of rendered frames in pixels (at least 32).
    """

    def __init__(
        self, places: int = DEFAULT_SLOTS, render_mode: str | None = None, size: int = 400
    ) -> None:
        check_integer("places", places, 2, 100)
        check_integer("size", size, 32, 4096)
        items = ITEMS_A_PLACE * places
        super().__init__(
            Box(0.0, 1.0, (CATEGORIES,), np.float32),
            np.full(places, items, dtype=np.int64),
            render_mode,
            render_fps=2,
        )
        self._quality = item_qualities(items).tolist()
        self.layout = ActionLayout(
            shared_choices=True,
            choice_features=tuple(
                (quality, *(float(k % CATEGORIES == c) for c in range(CATEGORIES)))
                for k, quality in enumerate(self._quality)
            ),
        )
        self._factors = rank_factors(CATEGORIES * np.arange(places), places).tolist()
        self._largest = sum(
            q * f for q, f in zip(self._quality[::CATEGORIES], self._factors, strict=False)
        )
        self._size = size
        self._logits = [0.0] * CATEGORIES
        self._interests = [0.0] * CATEGORIES
        self._page: list[int] = []

    def _start(
        self, seed: int | None, out: NDArray[np.float32], options: dict[str, Any] | None
    ) -> dict[str, Any]:
        self._page = []
        self._set_logits([INTERESTS * x for x in self._noise()], out)
        return {}

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        self._page = action.tolist()
        items = sorted(set(self._page))  # the best ones first
        better = [0] * CATEGORIES
        reward = 0.0
        for item in items:
            category = item % CATEGORIES
            value = self._interests[category] * self._quality[item]
            reward += value * self._factors[better[category]]
            better[category] += 1
        filled = [0] * CATEGORIES
        for item in self._page:
            filled[item % CATEGORIES] += 1
        walked = zip(self._logits, self._noise(), filled, strict=True)
        n = len(self._page)
        self._set_logits([x + DRIFT * e - SATIATION * places / n for x, e, places in walked], out)
        truncated = self._elapsed >= COORDINATION_EPISODE_STEPS
        return reward / self._largest, False, truncated, {"collisions": n - len(items)}

    def _noise(self) -> list[float]:
        noise: list[float] = self.np_random.standard_normal(CATEGORIES).tolist()
        return noise

    def _set_logits(self, logits: list[float], out: NDArray[np.float32]) -> None:
        largest = max(logits)
        self._logits = [x - largest for x in logits]
        weights = [math.exp(x) for x in self._logits]
        total = sum(weights)
        self._interests = [w / total for w in weights]
        out[:] = self._interests

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.full((self._size, self._size, 3), 255, np.uint8)
        side = int(np.ceil(np.sqrt(len(self.nvec))))
        drawn: set[int] = set()
        for place, item in enumerate(self._page):
            color = (190, 190, 190) if item in drawn else _COLORS[item % CATEGORIES]
            drawn.add(item)
            share = 0.3 + 0.6 * self._quality[item]
            fill_cell(frame, side, place % side, side - 1 - place // side, share, color)
        return frame
