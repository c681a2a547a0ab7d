"""A trade-off as one page: the curve, its numbers, and what is delivered."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import listed
from spin_d3rlpy.evaluation.limits import Limit
from spin_d3rlpy.evaluation.trade_off import TradeOff
from spin_d3rlpy.runs.page import Page
from spin_d3rlpy.runs.plots import TradeOffMark, plot_trade_off


def write_page(
    curve: TradeOff,
    path: Path,
    log: str,
    held_out: DeviceReplayBuffer,
    gamma: float,
    level: float,
) -> None:
    """Writes the page, one HTML file, atomically.

    Args:
        curve: what was measured.
        path: of the page.
        log: name of the log.
        held_out: what was estimated from.
        gamma: discount.
        level: of the intervals.
    """
    names = list(curve.directions)
    page = Page(
        f"{' against '.join(names)}: {log}",
        f"What policies are estimated to return in an episode, from {held_out.size():,} episodes "
        f"of {held_out.transition_count:,} decisions that they were not trained on. One training, "
        f"{len(curve.points)} weightings of its rewards.",
    )
    page.paragraph(str(curve))
    if any(not point.is_answered for point in curve.points):
        page.warning("The log cannot tell the returns of some policies: see the table.")
    if curve.limits and curve.delivered is None:
        page.warning(f"No policy surely keeps {' and '.join(map(str, curve.limits))}.")
    if curve.worse_by:
        page.warning(f"By {listed(curve.worse_by)} the log is surely better.")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "curve.png"
        plot_trade_off(picture, (names[0], names[1]), _marks(curve, names), _bounds(curve, names))
        page.picture(picture, _description(curve, names))
    page.paragraph("The numbers", "h2")
    page.table(_table(curve, names))
    page.paragraph("How this was measured", "h2")
    page.items(
        [
            f"Returns are discounted by {gamma:g} a decision; intervals are of {level:.0%}.",
            "Each policy is evaluated on halves of the held-out episodes (fitted Q evaluation) and "
            "read on the other half, together with the policy that logged, whose return is known: "
            "what both evaluations miss alike cancels out. Where the log's own return is missed, "
            "there is no answer.",
            "A limit is kept if the far end of the interval is within it; where the limit is "
            "today's, that of the difference from the log. Weightings are tried from the most "
            "careful one on, up to the first that does not keep it.",
            "No estimate from a log knows what the deciders knew and the log lacks.",
        ]
    )
    page.write(path)


def _marks(curve: TradeOff, names: Sequence[str]) -> list[TradeOffMark]:
    dominated, marks = curve.dominated, []
    for i, point in enumerate(curve.points):
        x, y = (point.estimates[name].value for name in names[:2])
        is_delivered = i == curve.delivered
        kind = "delivered" if is_delivered else "dominated" if dominated[i] else "policy"
        marks.append(TradeOffMark(kind, (x.low, x.value, x.high), (y.low, y.value, y.high)))
    x, y = (curve.points[0].estimates[name].logged for name in names[:2])
    return [*marks, TradeOffMark("today", (x.low, x.value, x.high), (y.low, y.value, y.high))]


def _bounds(curve: TradeOff, names: Sequence[str]) -> list[float | None]:
    """Returns the limits of the two rewards that are drawn, of an episode."""
    return [
        next((_bound(limit, curve) for limit in curve.limits if limit.reward == name), None)
        for name in names[:2]
    ]


def _bound(limit: Limit, curve: TradeOff) -> float:
    if limit.bound is None:
        return curve.points[0].estimates[limit.reward].logged.value
    return limit.bound * (curve.decisions if limit.per_decision else 1.0)


def _description(curve: TradeOff, names: Sequence[str]) -> str:
    return (
        f"Estimated returns of {len(curve.points)} policies with intervals, {names[0]} across and "
        f"{names[1]} up, and today's decisions. The table has the numbers."
    )


def _table(curve: TradeOff, names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "policy": "today",
            **{name: f"{curve.points[0].estimates[name].logged}" for name in names},
            **{f"weight of {name}": "" for name in names},
            "what": "",
        }
    ]
    dominated = curve.dominated
    for i, point in enumerate(curve.points):
        notes = [] if point.acts_by == "search" else ["imitates"]
        notes += ["dominated"] if dominated[i] else []
        notes += ["keeps the limits"] if curve.limits and curve.kept[i] else []
        notes += ["delivered"] if i == curve.delivered else []
        rows.append(
            {
                "policy": str(i + 1),
                **{
                    name: f"{estimate.value}" if estimate.is_answered else "no answer"
                    for name, estimate in point.estimates.items()
                    if name in names
                },
                **{f"weight of {name}": f"{point.weights[name]:.4g}" for name in names},
                "what": ", ".join(notes),
            }
        )
    return rows
