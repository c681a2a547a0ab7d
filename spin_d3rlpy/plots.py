"""All figures of this package, in one color-blind-safe style."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by readers with any form of color blindness. Lines differ in
# their markers, too, for print without colors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# From dark blue to yellow, even in lightness: reads the same with any form of color blindness.
COLOR_MAP = "cividis"
FORMATS = (".png", ".pdf", ".svg")
LABEL_HEIGHT = 0.06  # of the name of a horizontal line, as a share of the axis
OFFLINE_STEPS = "gradient steps of offline RL"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Returns of one method over gradient steps."""

    steps: NDArray[np.float64]  # (T,)
    returns: NDArray[np.float64]  # (seeds, T), means over episodes


def plot_learning_curves(
    path: Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    title: str,
    ylabel: str = "mean return of the evaluation episodes",
    reference_lines: Mapping[str, float] | None = None,
    xlabel: str = OFFLINE_STEPS,
) -> None:
    """Draws a line with a band per algorithm, and named horizontal reference lines.

    `curves` are (x values as `xlabel` says, mean returns, half-widths of the band).
    """
    figure = _figure(7.0, 4.4)
    axes = figure.subplots()
    for i, (name, (steps, means, bands)) in enumerate(curves.items()):
        low, high = np.subtract(means, bands), np.add(means, bands)
        _line(axes, i, name, steps, means, low, high)
    _reference_lines(axes, reference_lines or {})
    _finish(axes, title, xlabel, ylabel)
    save_figure(figure, path)


def plot_curve_panels(
    path: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    ylabel: str = "mean return of the evaluation episodes",
    reference_lines: Mapping[str, Mapping[str, float]] | None = None,
    xlabel: str = OFFLINE_STEPS,
) -> None:
    """Draws one panel per dataset: each method's mean and range over seeds.

    `reference_lines` are horizontal lines by dataset and name.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(5.2 * columns, 3.6 * rows)
    all_axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (dataset, lines) in zip(all_axes, panels.items(), strict=False):
        for i, (label, curve) in enumerate(lines.items()):
            returns = curve.returns
            seeds = f"{len(returns)} seed{'s' if len(returns) > 1 else ''}"
            mean, low, high = returns.mean(0), returns.min(0), returns.max(0)
            _line(axes, i, f"{label} ({seeds})", curve.steps, mean, low, high)
        _reference_lines(axes, (reference_lines or {}).get(dataset, {}))
        _finish(axes, short_name(dataset), xlabel, ylabel)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    save_figure(figure, path)


def plot_time_to_target(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draws bars of gradient steps to a target return, one group per dataset.

    Rows have `dataset`, `method`, `reached` (such as "2 of 3"), `median_steps` ("" if not reached)
    and `of_all_steps`.
    """
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = _figure(max(5.2, 2.2 * len(datasets)), 3.6)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    for row in rows:
        i = methods.index(row["method"])
        x = datasets.index(row["dataset"]) + (i - (len(methods) - 1) / 2) * width
        is_reached = row["median_steps"] != ""
        height = row["median_steps"] if is_reached else row["of_all_steps"]
        color = COLORS[i % len(COLORS)] if is_reached else "none"
        axes.bar(x, height, width, color=color, edgecolor=COLORS[i % len(COLORS)])
        axes.annotate(row["reached"], (x, height), ha="center", va="bottom", fontsize=6)
    for i, method in enumerate(methods):
        axes.bar(0, 0, color=COLORS[i % len(COLORS)], label=method)
    names = [short_name(name).replace("/", "\n") for name in datasets]
    axes.set_xticks(range(len(datasets)), names, fontsize=7)
    title = "Seeds that reach the target; empty bars: none within these steps"
    _finish(axes, title, "", "gradient steps to target", grid=False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)


def plot_profiles(path: Path, scores: Mapping[str, Sequence[NDArray[Any]]]) -> None:
    """Draws the share of runs above each normalized score, a line per method.

    `scores` are, by method, one array per dataset.
    """
    together = {label: np.concatenate(list(strata)) for label, strata in scores.items()}
    everything = np.concatenate(list(together.values()))
    thresholds = np.linspace(min(0.0, everything.min()), max(100.0, everything.max()), 201)
    figure = _figure(5.2, 3.6)
    axes = figure.subplots()
    for i, (label, values) in enumerate(together.items()):
        shares = (values[:, None] > thresholds).mean(0)
        axes.step(thresholds, shares, color=COLORS[i % len(COLORS)], label=label, where="post")
    _finish(axes, "", "normalized score", "share of runs above the score")
    save_figure(figure, path)


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
    """Draws each choice's frequency per sub-action, one panel per source.

    `marginals` are shares `(N, K)` by source, NaN past a sub-action's last choice.
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
        if n_slots * n_choices <= 120:
            for (slot, choice), share in np.ndenumerate(shares):
                if np.isfinite(share):
                    color = "white" if share < 0.55 else "black"
                    text = f"{share:.2f}"
                    axes.text(choice, slot, text, ha="center", va="center", color=color, fontsize=7)
    all_axes[0].set_ylabel("sub-action")
    figure.colorbar(image, ax=all_axes, label="share of steps")
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def short_name(dataset: str) -> str:
    """Returns a dataset's name without the part that all names share."""
    return dataset.removeprefix("spin/").removesuffix("-v0")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of the file's suffix.

    Raises:
        ValueError: the suffix is not PNG's, PDF's or SVG's.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"Expected a file ending in {', '.join(FORMATS)}; got {path.name!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _figure(width: float, height: float) -> Figure:
    """Returns an empty figure (sizes in inches) that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _line(axes: Axes, number: int, label: str, steps: Any, mean: Any, low: Any, high: Any) -> None:
    """Draws a line `(T,)` with a band from `low` to `high`."""
    color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    axes.plot(steps, mean, color=color, marker=marker, markersize=3.5, label=label)
    axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


def _reference_lines(axes: Axes, lines: Mapping[str, float]) -> None:
    """Draws horizontal lines; lines close to each other share one label."""
    low, high = axes.get_ylim()
    span = max(high, *lines.values()) - min(low, *lines.values()) if lines else 0.0
    groups: list[list[str]] = []
    for name in sorted(lines, key=lambda name: lines[name]):
        axes.axhline(lines[name], color="0.5", linewidth=1.0, linestyle="--")
        if groups and lines[name] - lines[groups[-1][0]] < LABEL_HEIGHT * span:
            groups[-1].append(name)
        else:
            groups.append([name])
    for names in groups:
        axes.annotate(
            _joined(names),
            (1.0, lines[names[-1]]),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            color="0.35",
            fontsize=8,
        )


def _joined(names: Sequence[str]) -> str:
    """`["published F", "published AR"]` as `published F, AR`."""
    first, *others = names
    prefix = first.partition(" ")[0] + " "
    return ", ".join([first, *(name.removeprefix(prefix) for name in others)])


def _finish(axes: Axes, title: str, xlabel: str, ylabel: str, grid: bool = True) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if grid:
        axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
