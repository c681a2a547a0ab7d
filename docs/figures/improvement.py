"""Draws docs/figures/improvement.png: greedy returns over seconds, means of seeds."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
TABLE = FOLDER.parents[1] / "examples" / "paper" / "results" / "improvement_by_second.csv"
STYLES = {
    "joint with search": ("SPINIDQL", "#0072B2", "-"),
    "F with search": ("F with search", "#0072B2", "--"),
    "joint, best of 32": ("best of 32, joint", "#009E73", "--"),
    "AR, best of 32": ("best of 32, AR", "#D55E00", "--"),
    "imitation": ("imitation", "#D55E00", "-"),
    "F": ("F", "#009E73", "-"),
    "SPIN": ("SPIN", "#56B4E9", "-"),
    "AR": ("AR", "#CC79A7", "-"),
    "SAINT": ("SAINT", "#E69F00", "-"),
    "DecQN": ("DecQN", "#000000", ":"),
}

with TABLE.open() as file:
    rows = list(csv.DictReader(file))
datasets = list(dict.fromkeys(row["dataset"] for row in rows))
figure = Figure(figsize=(13, 2.7 * ((len(datasets) + 2) // 3)), layout="constrained")
panels = figure.subplots((len(datasets) + 2) // 3, 3).flat
for axes, dataset in zip(panels, datasets, strict=False):
    for method, (label, color, line) in STYLES.items():
        points = [row for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
        seconds, returns = ([float(row[key]) for row in points] for key in ("seconds", "greedy"))
        if points:
            axes.plot(seconds, returns, line, color=color, marker=".", label=label)
    axes.set_title(dataset.removeprefix("spin/").removesuffix("-v0"), fontsize=10)
    axes.set_ylim(bottom=0)
for axes in figure.axes[len(datasets) :]:
    axes.set_axis_off()
figure.supxlabel("CPU seconds, pre-training included")
figure.supylabel("return of greedy episodes")
handles, labels = figure.axes[
    datasets.index("spin/slate-n10/medium-v0")
].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside right upper", frameon=False)
figure.savefig(FOLDER / "improvement.png", dpi=110)
