"""Draws docs/figures/trust.png: what critics confirm of a search, and what the search gains."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

from spin_d3rlpy.search.trust_bounds import LEAST_CONFIRMED

FOLDER = Path(__file__).parent
TABLE = FOLDER.parents[1] / "examples" / "paper" / "results" / "trust.csv"

with TABLE.open() as file:
    rows = list(csv.DictReader(file))
figure = Figure(figsize=(8, 4.5), layout="constrained")
axes = figure.subplots()
for number, data in enumerate(dict.fromkeys(row["data"] for row in rows)):
    points = [row for row in rows if row["data"] == data]
    share = [100 * float(row["confirmed_share"]) for row in points]
    usual = [abs(float(row["imitation"])) for row in points]
    gain = [100 * (float(row["search"]) - float(row["imitation"])) for row in points]
    gain = [of_one / own for of_one, own in zip(gain, usual, strict=True)]
    error = [
        100 * float(row["standard_error"]) / own for row, own in zip(points, usual, strict=True)
    ]
    axes.errorbar(
        share,
        gain,
        error,
        fmt="os^DvPX*hp<>"[number],
        alpha=0.8,
        label=data,
    )
axes.axvline(100 * LEAST_CONFIRMED, color="gray", linewidth=1)
axes.axhline(0, color="black", linewidth=1)
axes.set_yscale("symlog", linthresh=50)
axes.set_ylim(-65, 250)
ticks = [-50, -25, 0, 25, 50, 100, 200]
axes.set_yticks(ticks, [str(tick) for tick in ticks])
axes.set_xlabel("confirmed by the other critics, % of the gain")
axes.set_ylabel("search against imitation, % of return")
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
figure.savefig(FOLDER / "trust.png", dpi=120)
