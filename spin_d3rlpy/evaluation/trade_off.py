"""What can be had of one reward for another: a policy for each weighting, and what it returns.

One training serves all weightings (`IDQL.with_weights`). A limit is kept by a policy whose interval
lies within it. Weightings are tried from the most careful one on and no further than the first
that does not keep the limit, so that trying many of them does not find one by luck (fixed-sequence
testing; Angelopoulos et al., Learn then Test, 2021).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from d3rlpy.base import DeviceArg
from tqdm import tqdm

from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.named_rewards import check_weights
from spin_d3rlpy.errors import InvalidDatasetError, listed, shown
from spin_d3rlpy.evaluation.halves import HalvesEstimate, estimate_by_halves
from spin_d3rlpy.evaluation.limits import Constraint, Limit, limits_of

REFINEMENTS = 3  # weightings between the last that keeps a limit and the first that does not
MOST_WEIGHTINGS = 200


@dataclasses.dataclass(frozen=True)
class TradeOffPoint:
    """A weighting and what its policy returns.

    Attributes:
        weights: of the rewards.
        estimates: mean return of the policy by each reward.
        acts_by: `"search"`, `"imitation"` or `"samples"`, see `spin_d3rlpy.search.trust`.
    """

    weights: dict[str, float]
    estimates: dict[str, HalvesEstimate]
    acts_by: str

    @property
    def is_answered(self) -> bool:
        """Whether the log can tell what the policy returns by all rewards."""
        return all(estimate.is_answered for estimate in self.estimates.values())


Measure = Callable[[dict[str, float]], TradeOffPoint]


@dataclasses.dataclass(frozen=True)
class TradeOff:
    """Points of a curve, and the one that is delivered.

    Attributes:
        directions: of each reward, above 0 if more of it is better, below 0 if less is.
        points: by weighting, in the order in which they were tried.
        limits: that the delivered policy has to keep.
        decisions: mean number of an episode's decisions.
        kept: of each point, whether it surely keeps the limits; all do where there are none.
        delivered: number of the point that is delivered; None if none surely keeps the limits.
    """

    directions: dict[str, float]
    points: list[TradeOffPoint]
    limits: list[Limit]
    decisions: float
    kept: list[bool]
    delivered: int | None

    @property
    def dominated(self) -> list[bool]:
        """Of each point, whether another one is better by one reward and no worse by any."""
        returns = [self._signed(point) for point in self.points]
        return [
            any(
                all(a >= b for a, b in zip(other, own, strict=True)) and other != own
                for other in returns
            )
            for own in returns
        ]

    @property
    def worse_by(self) -> list[str]:
        """Rewards by which the delivered policy is surely worse than those who logged."""
        if self.delivered is None:
            return []
        gains = {k: e.gain for k, e in self.points[self.delivered].estimates.items()}
        return [
            name
            for name, sign in self.directions.items()
            if (gains[name].high < 0.0 if sign > 0.0 else gains[name].low > 0.0)
        ]

    def _signed(self, point: TradeOffPoint) -> list[float]:
        return [
            math.copysign(1.0, sign) * point.estimates[name].value.value
            for name, sign in self.directions.items()
        ]

    def __str__(self) -> str:
        if not all(point.is_answered for point in self.points):
            unclear = next(point for point in self.points if not point.is_answered)
            reasons = [str(e) for e in unclear.estimates.values() if not e.is_answered]
            return f"{reasons[0]}"
        limits = " and ".join(map(str, self.limits))
        if self.delivered is None:
            return (
                f"No policy surely keeps {limits} by the upper or lower end of its interval. Log "
                "more, or relax the limit."
            )
        point = self.points[self.delivered]
        weights = ", ".join(f"{name} {weight:.4g}" for name, weight in point.weights.items())
        returns = ", ".join(f"{name} {estimate}" for name, estimate in point.estimates.items())
        keeps = f" It surely keeps {limits}." if limits else ""
        worse = f" By {listed(self.worse_by)} the log is surely better." if self.worse_by else ""
        return f"Delivered: the policy of the weights {weights}: {returns}.{keeps}{worse}"


def weightings(
    dataset: DeviceReplayBuffer, directions: Mapping[str, float], n: int = 9
) -> list[dict[str, float]]:
    """Returns weightings that are spread evenly, in units of what returns differ by.

    Of two rewards these are n; of more, those of a lattice with about so many.

    Args:
        dataset: the log.
        directions: of each reward, above 0 if more of it is better, below 0 if less is.
        n: how many.

    Raises:
        ValueError: there are fewer than two rewards, or n is not from 2 to 200.
        InvalidDatasetError: the dataset has one reward.
    """
    if len(directions) < 2 or not 2 <= n <= MOST_WEIGHTINGS:
        raise ValueError(
            f"Expected two rewards or more and from 2 to {MOST_WEIGHTINGS} weightings, got "
            f"{shown(list(directions))} and {n}."
        )
    units = {}
    for name, sign in directions.items():
        units[name] = math.copysign(1.0, sign) / _spread(dataset, name)
    parts = n - 1
    if len(units) > 2:
        parts = next(m for m in itertools.count(1) if math.comb(m + len(units) - 1, m) >= n)
    lattice = [
        shares
        for shares in itertools.product(range(parts + 1), repeat=len(units))
        if sum(shares) == parts
    ]
    return [
        {
            name: share / parts * unit
            for share, (name, unit) in zip(shares, units.items(), strict=True)
        }
        for shares in reversed(lattice)
    ]


def trade_off(
    algo: IDQL[Any],
    dataset: DeviceReplayBuffer,
    directions: Mapping[str, float],
    constraints: Mapping[str, Constraint] | Sequence[Limit] = (),
    *,
    n: int = 9,
    gamma: float = 1.0,
    n_steps: int = 1_000,
    level: float = 0.9,
    seed: int = 0,
    device: DeviceArg = False,
    show_progress: bool = True,
) -> TradeOff:
    """Estimates what a policy of each of several weightings returns, by every reward.

        curve = trade_off(algo, held_out, {"revenue": 1, "complaints": -1},
                          {"complaints": ("<=", "today")})
        policy = algo.with_weights(curve.points[curve.delivered].weights, held_out)

    Without limits the policy of the weights that `algo` was trained by is delivered.

    Args:
        algo: that learned values by several rewards apart, see `IDQL.with_weights`.
        dataset: logged episodes that it was not trained on.
        directions: of each reward, above 0 if more of it is better, below 0 if less is.
        constraints: limits by reward: `("<=", "today")` (or `">="`), a number for an episode's
            return, or a number with `"per decision"`.
        n: weightings; more are tried near a limit.
        gamma: discount of the returns that are estimated.
        n_steps: gradient steps of each evaluation, see `estimate_by_halves`.
        level: of the intervals. A limit holds by one end, so 0.9 is meant for 19 of 20 logs.
        seed: of the evaluations.
        device: as in d3rlpy.
        show_progress: draw a progress bar.

    Raises:
        ValueError: directions or limits of unknown rewards, or `n` is out of range.
        InvalidDatasetError: the dataset has one reward, or too few episodes.
    """

    def measure(weights: dict[str, float]) -> TradeOffPoint:
        return measure_point(algo, dataset, weights, gamma, n_steps, level, seed, device)

    return trace(measure, algo, dataset, directions, constraints, n, show_progress)


def measure_point(
    algo: IDQL[Any],
    dataset: DeviceReplayBuffer,
    weights: dict[str, float],
    gamma: float = 1.0,
    n_steps: int = 1_000,
    level: float = 0.9,
    seed: int = 0,
    device: DeviceArg = False,
) -> TradeOffPoint:
    """Returns what the policy of one weighting returns; see `trade_off` for arguments and errors.

    Raises:
        ValueError: see `trade_off`.
        InvalidDatasetError: see `trade_off`.
    """
    weighed = algo.with_weights(weights, dataset)

    def act(states: Any, masks: Any) -> Any:
        return weighed.predict(states) if masks is None else weighed.predict_masked(states, masks)

    seen = dataset.seen_by(algo)
    estimates = estimate_by_halves(
        seen, act, gamma=gamma, n_steps=n_steps, level=level, seed=seed, device=device
    )
    trust = weighed.trust
    return TradeOffPoint(weights, estimates, "search" if trust is None else trust.acts_by)


def trace(
    measure: Measure,
    algo: IDQL[Any],
    dataset: DeviceReplayBuffer,
    directions: Mapping[str, float],
    constraints: Mapping[str, Constraint] | Sequence[Limit] = (),
    n: int = 9,
    show_progress: bool = True,
) -> TradeOff:
    """Measures the points of a curve and chooses among them, see `trade_off`.

    Raises:
        ValueError: see `trade_off`.
        InvalidDatasetError: see `trade_off`.
    """
    if dataset.named_rewards is None:
        raise InvalidDatasetError(
            "Expected a dataset with several rewards, from_table(..., rewards={...}); this one has "
            "one."
        )
    check_weights(directions, dataset.named_rewards.names)
    limits = limits_of(constraints, list(directions)) if constraints else []
    tried = weightings(dataset, directions, n)
    own = algo.config.reward_weights
    if not limits and own is not None:
        tried = [own, *tried]
    spreads = {name: _spread(dataset, name) for name in dataset.named_rewards.names}
    tried.sort(key=lambda weights: _care(weights, limits, spreads), reverse=True)
    decisions = dataset.transition_count / dataset.size()
    points, kept = [], []
    with tqdm(total=len(tried), disable=not show_progress, unit="weighting") as bar:
        for weights in tried:
            bar.set_description(", ".join(f"{k} {v:.3g}" for k, v in weights.items()))
            points.append(measure(weights))
            kept.append(_keeps(points[-1], limits, decisions))
            bar.update()
        reached = next((i for i, keeps in enumerate(kept) if not keeps), len(points))
        if limits and 0 < reached < len(points):
            last, first = points[reached - 1].weights, points[reached].weights
            for _ in range(REFINEMENTS):
                between = _between(last, first)
                point = measure(between)
                keeps = _keeps(point, limits, decisions)
                points.insert(reached, point)
                kept.insert(reached, keeps)
                if not keeps:
                    break
                last, reached = between, reached + 1
    curve = TradeOff(dict(directions), points, limits, decisions, kept, None)
    if not limits:
        delivered: int | None = None if own is None else [p.weights for p in points].index(own)
    else:
        delivered = _best(curve, reached)
    return dataclasses.replace(curve, delivered=delivered)


def _spread(dataset: DeviceReplayBuffer, name: str) -> float:
    """Returns what episodes' returns by one reward differ by; 1 if they do not."""
    return float(dataset.with_weights({name: 1.0}).returns().std()) or 1.0


def _keeps(point: TradeOffPoint, limits: Sequence[Limit], decisions: float) -> bool:
    return all(limit.is_kept(point.estimates[limit.reward], decisions) for limit in limits)


def _care(
    weights: Mapping[str, float], limits: Sequence[Limit], spreads: Mapping[str, float]
) -> float:
    """How much a weighting is for what is limited, in (0, 1); the first reward without limits."""
    sizes = {name: abs(weight) * spreads[name] for name, weight in weights.items()}
    limited = {limit.reward for limit in limits} or {next(iter(weights))}
    return sum(sizes[name] for name in limited) / sum(sizes.values())


def _between(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: 0.5 * (weight + other[name]) for name, weight in one.items()}


def _best(curve: TradeOff, reached: int) -> int | None:
    """Returns the number of the best of the points that keep the limits, by what has none."""
    limited = {limit.reward for limit in curve.limits}
    free = {name: sign for name, sign in curve.directions.items() if name not in limited}
    if reached == 0:
        return None

    def worth(i: int) -> float:
        estimates = curve.points[i].estimates
        return sum(
            math.copysign(1.0, sign) * estimates[name].gain.value / _scale(curve, name)
            for name, sign in (free or curve.directions).items()
        )

    return max(range(reached), key=worth)


def _scale(curve: TradeOff, name: str) -> float:
    """How much points differ by a reward, by which several free ones are compared."""
    values = [point.estimates[name].value.value for point in curve.points]
    return max(values) - min(values) or 1.0
