"""Draws how SPIN works: `python docs/figures/schema.py` writes spin.png."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from spin_d3rlpy.runs.plots import COLORS, save_figure

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN = COLORS[0], COLORS[1], COLORS[2]
GRAY = "0.45"
SLOTS = ["hip", "knee", "foot", "arm"]


def box(
    axes: Axes, x: float, y: float, width: float, text: str, color: str, height: float = 0.62
) -> None:
    """Draws a rounded box with its center at (x, y)."""
    corner = (x - width / 2, y - height / 2)
    shape = FancyBboxPatch(
        corner,
        width,
        height,
        boxstyle="round,pad=0.02,rounding_size=0.1",
        fc="white",
        ec=color,
        lw=1.6,
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color="0.1")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draws an arrow."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.3, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", end, start, arrowprops=style)


def stage(
    axes: Axes, title: str, inputs: list[str], trunk: str, color: str, trunk_color: str
) -> None:
    """Draws one stage: inputs at the bottom, trunk, heads, choices at the top."""
    xs = [0.7, *(2.2 + 1.2 * i for i in range(len(SLOTS)))]
    for x, text in zip(xs, inputs, strict=True):
        is_state = text == "state"
        box(axes, x, 0.4, 1.0, text, GRAY if is_state else color)
        arrow(axes, (x, 0.76), (x, 1.28), GRAY)
    box(axes, 3.25, 1.72, 6.1, trunk, trunk_color, 0.8)
    for x, name in zip(xs[1:], SLOTS, strict=True):
        arrow(axes, (x, 2.16), (x, 2.62), GRAY)
        box(axes, x, 2.98, 1.0, "head", color)
        arrow(axes, (x, 3.33), (x, 3.72), GRAY)
        axes.text(x, 3.9, name, ha="center", va="center", fontsize=9)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlim(0.0, 6.5)
    axes.set_ylim(-0.35, 4.15)
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> None:
    """Draws both stages side by side."""
    figure = Figure(figsize=(11.0, 4.3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    stage(
        left,
        "1  Pre-training: which choices go together? (no rewards)",
        ["state", "+", "hidden", "0", "hidden"],
        "Transformer, trained: every slot looks at the state\nand at the other slots",
        GREEN,
        GREEN,
    )
    stage(
        right,
        "2  Offline RL: which of them are worth it?",
        ["state", "query", "query", "query", "query"],
        "the same Transformer, frozen",
        ORANGE,
        BLUE,
    )
    captions = {
        left: "trained (green): everything, to guess the hidden choices of logged actions",
        right: "trained (orange): queries, heads, and a critic that adds up per-slot values",
    }
    for axes, caption in captions.items():
        axes.text(3.25, -0.2, caption, ha="center", fontsize=8.5, color="0.35")
    save_figure(figure, FOLDER / "spin.png")


if __name__ == "__main__":
    main()
