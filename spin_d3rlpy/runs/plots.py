"""All figures of this package, in one color-blind-safe style."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.files.atomic import write_bytes

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by readers with any form of color blindness. Lines differ in
# their markers, too, for print without colors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Of lines: where there are more of them than colors, the next ones are dashed.
DASHES = ("-", "--", ":")
MOST_IN_A_LEGEND = 6  # of one panel; a longer legend would hide its lines
# From dark blue to yellow, even in lightness: reads the same with any form of color blindness.
COLOR_MAP = "cividis"
FORMATS = (".png", ".pdf", ".svg")
LINE_STYLES = ("--", ":", "-.", (0, (8, 4)))  # of horizontal lines
OFFLINE_STEPS = "gradient steps of offline RL"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Returns of one method over gradient steps, or over seconds."""

    steps: NDArray[np.float64]  # (T,), increasing
    returns: NDArray[np.float64]  # (seeds, T), means over episodes
    # Where pre-training ends that begins at 0, in units of `steps`. In it nothing is measured.
    pretrained_at: float = 0.0


def plot_curve_panels(
    path: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    ylabel: str = "mean return of the evaluation episodes",
    reference_lines: Mapping[str, Mapping[str, float]] | None = None,
    xlabel: str = OFFLINE_STEPS,
) -> None:
    """Draws one panel per dataset: each method's mean and range over seeds.

    A method looks the same in all panels. `reference_lines` are named horizontal lines by dataset.
    Pre-training is shaded, and no line leads through it.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    crowded = max(map(len, panels.values())) > MOST_IN_A_LEGEND
    figure = _figure((7.2 if crowded else 5.2) * columns, 3.6 * rows)
    all_axes = figure.subplots(rows, columns, squeeze=False).flatten()
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    for axes, (dataset, lines) in zip(all_axes, panels.items(), strict=False):
        for label, curve in lines.items():
            i = labels.index(label)
            style = _Style(
                COLORS[i % len(COLORS)],
                MARKERS[i % len(MARKERS)],
                DASHES[i // len(COLORS) % len(DASHES)],
            )
            _draw_curve(axes, curve, label, style)
        for i, (label, value) in enumerate((reference_lines or {}).get(dataset, {}).items()):
            dashes = LINE_STYLES[i % len(LINE_STYLES)]
            axes.axhline(value, color="0.5", linewidth=1.0, linestyle=dashes, label=label)
        _finish(axes, short_name(dataset), xlabel, ylabel)
        if crowded:
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    save_figure(figure, path)


class _Style(NamedTuple):
    """How a line looks."""

    color: str
    marker: str
    dashes: str = "-"


def _draw_curve(axes: Axes, curve: Curve, label: str, style: _Style) -> None:
    """Draws the mean over seeds, their range if there are several, and pre-training's span."""
    steps, returns, color = curve.steps, curve.returns, style.color
    if curve.pretrained_at > 0.0:
        axes.axvspan(
            0.0,
            curve.pretrained_at,
            color=color,
            alpha=0.12,
            linewidth=0,
            label=f"{label} is pre-trained, not measured",
        )
        # NaN interrupts lines and ranges.
        gap = int(np.searchsorted(steps, curve.pretrained_at))
        steps = np.insert(steps, gap, curve.pretrained_at)
        returns = np.insert(returns, gap, np.nan, axis=1)
    several = len(returns) > 1
    name = f"{label} ({len(returns)} seed{'s' if several else ''})"
    axes.plot(
        steps,
        returns.mean(0),
        color=color,
        linestyle=style.dashes,
        marker=style.marker,
        markersize=3.5,
        label=name,
    )
    if several:
        low, high = returns.min(0), returns.max(0)
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


def plot_returns(path: Path, groups: Mapping[str, Sequence[float]], title: str) -> None:
    """Draws a histogram of episodes' undiscounted returns, stacked by group (who acted)."""
    figure = _figure(7.0, 4.0)
    axes = figure.subplots()
    axes.hist(
        list(groups.values()),
        bins=50,
        stacked=True,
        color=[COLORS[i % len(COLORS)] for i in range(len(groups))],
        label=[f"{name} ({len(values)} episodes)" for name, values in groups.items()],
    )
    _finish(axes, title, "undiscounted return", "episodes", grid=False)
    save_figure(figure, path)


def plot_attention(path: Path, maps: NDArray[Any], labels: Sequence[str], title: str) -> None:
    """Draws attention maps, a row of panels per block and a column per head.

    `maps` are weights `(blocks, H, T, T)` from `spin_d3rlpy.asm.probe.attention_maps`, `labels` the
    names of the T tokens.
    """
    n_blocks, n_heads, n_tokens, _ = maps.shape
    figure = _figure(2.3 * n_heads + 1.0, 2.3 * n_blocks + 0.6)
    all_axes = figure.subplots(n_blocks, n_heads, squeeze=False)
    ticks = range(0, n_tokens, -(-n_tokens // 12))  # no more than fit
    for (block, head), axes in np.ndenumerate(all_axes):
        image = axes.imshow(maps[block, head], cmap=COLOR_MAP, vmin=0.0, vmax=float(maps.max()))
        axes.set_title(f"block {block + 1}, head {head + 1}", fontsize=8)
        axes.set_xticks(ticks, [labels[t] for t in ticks], rotation=90, fontsize=6)
        axes.set_yticks(ticks, [labels[t] for t in ticks], fontsize=6)
    figure.colorbar(image, ax=all_axes, shrink=0.6, label="attention weight")
    figure.supxlabel("attended token", fontsize=9)
    figure.supylabel("token that attends", fontsize=9)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def plot_action_marginals(
    path: Path, marginals: Mapping[str, NDArray[np.float64]], title: str
) -> None:
    """Draws each choice's frequency per slot, one panel per source.

    `marginals` are shares `(N, K)` by source, NaN past a slot's last choice.
    """
    n_slots, n_choices = next(iter(marginals.values())).shape
    wide = min(9.0, 1.6 + 0.45 * n_choices)
    figure = _figure(wide * len(marginals) + 0.8, min(9.0, 1.4 + 0.32 * n_slots))
    all_axes = figure.subplots(1, len(marginals), squeeze=False)[0]
    for axes, (source, shares) in zip(all_axes, marginals.items(), strict=True):
        image = axes.imshow(shares, cmap=COLOR_MAP, vmin=0.0, vmax=1.0, aspect="auto")
        axes.set_title(source, fontsize=9)
        axes.set_xlabel("choice")
        axes.set_xticks(range(0, n_choices, -(-n_choices // 12)))
        axes.set_yticks(range(0, n_slots, -(-n_slots // 24)))
    all_axes[0].set_ylabel("slot")
    figure.colorbar(image, ax=all_axes, label="share of steps")
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def short_name(dataset: str) -> str:
    """Returns a dataset's name without the part that all names share."""
    return dataset.removeprefix("spin/").removesuffix("-v0")


def save_figure(figure: Figure, path: Path) -> None:
    """Atomically writes a figure in the format of the file's suffix.

    Raises:
        ValueError: another suffix.
        FileWriteError: the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"Expected a file ending in {', '.join(FORMATS)}; got {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:])
    write_bytes(path, content.getbuffer())


def _figure(width: float, height: float) -> Figure:
    """Returns an empty figure (sizes in inches) that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _finish(
    axes: Axes, title: str, xlabel: str, ylabel: str, grid: bool = True, legend: bool = True
) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if grid:
        axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8)


class TradeOffMark(NamedTuple):
    """A policy in a picture of two rewards; each reward is a low end, a value and a high end."""

    kind: str  # "policy", "dominated", "delivered" or "today"
    x: tuple[float, float, float]
    y: tuple[float, float, float]


class _MarkStyle(NamedTuple):
    color: str
    marker: str
    size: float
    label: str


_MARK_STYLES = {
    "dominated": _MarkStyle("0.65", "o", 5.0, "another policy is better by both"),
    "policy": _MarkStyle(COLORS[0], "o", 6.0, "policy of a weighting"),
    "today": _MarkStyle(COLORS[6], "s", 8.0, "today's decisions"),
    "delivered": _MarkStyle(COLORS[1], "D", 9.0, "delivered"),
}


def plot_trade_off(
    path: Path,
    names: tuple[str, str],
    marks: Sequence[TradeOffMark],
    bounds: Sequence[float | None] = (None, None),
) -> None:
    """Draws policies by two rewards with their intervals, those on the curve joined by a line.

    Args:
        path: of the picture.
        names: of the rewards, across and up.
        marks: what is drawn.
        bounds: limits of the two rewards, None without.
    """
    figure = _figure(7.2, 4.6)
    axes = figure.subplots()
    on_curve = [m for m in marks if m.kind in ("policy", "delivered")]
    on_curve.sort(key=lambda mark: mark.x[1])
    axes.plot(
        [m.x[1] for m in on_curve], [m.y[1] for m in on_curve], color=COLORS[0], linewidth=1.2
    )
    for kind, style in _MARK_STYLES.items():
        some = [mark for mark in marks if mark.kind == kind]
        if not some:
            continue
        x, y = (np.array([getattr(mark, axis) for mark in some]).T for axis in "xy")
        axes.errorbar(
            x[1],
            y[1],
            xerr=[x[1] - x[0], x[2] - x[1]],
            yerr=[y[1] - y[0], y[2] - y[1]],
            linestyle="",
            marker=style.marker,
            markersize=style.size,
            color=style.color,
            elinewidth=0.8,
            label=style.label,
            zorder=3 if kind in ("today", "delivered") else 2,
        )
    for bound, draw in zip(bounds, (axes.axvline, axes.axhline), strict=True):
        if bound is not None:
            draw(bound, color=COLORS[3], linestyle="--", linewidth=1.2, label="limit")
    _finish(axes, "", names[0], names[1], legend=False)
    # Intervals reach into all corners.
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=5)
    save_figure(figure, path)
