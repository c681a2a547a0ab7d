"""Draws docs/figures/switch.png: what `SPINIDQL` chose, and what it could have chosen."""

import csv
from collections import defaultdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "examples" / "results" / "switch"


def shares(name: str, seed: int = 0) -> dict[str, dict[str, float]]:
    """Returns by task and policy the returns of a seed: 0 is the log's, 1 the best policy's."""
    returns: dict[str, dict[str, float]] = defaultdict(dict)
    with (RESULTS / f"{name}.csv").open() as table:
        for row in csv.DictReader(table):
            if row["seed"] == str(seed) and row["policy"] != "rule":
                returns[row["task"]][row["policy"]] = float(row["mean"])
    decided = RESULTS / f"{name}_decided.csv"  # by the rules of today, not those of the training
    if decided.exists():
        with decided.open() as table:
            for row in csv.DictReader(table):
                if row["seed"] == str(seed):
                    returns[row["task"]]["default"] = float(row["mean"])
    found = {}
    for task, by_policy in returns.items():
        log, best = by_policy.pop("log"), max(by_policy.values())
        unit = max(best - log, 0.02 * abs(log))  # where nothing is better than the log
        found[task] = {policy: (mean - log) / unit for policy, mean in by_policy.items()}
    return found


def draw(
    axes: Axes, policies: dict[str, float], height: float, color: str, fill: str | None = None
) -> None:
    """Draws what was chosen of a training's policies, and what could have been."""
    searches = [share for policy, share in policies.items() if policy.startswith("search")]
    axes.plot(searches, [height] * len(searches), "|", color="gray", ms=7)
    axes.plot(policies["imitation"], height, "x", color="gray", ms=6)
    axes.plot(policies["samples"], height, "+", color="gray", ms=7)
    axes.plot(policies["default"], height, "o", color=color, mfc=fill or color, ms=8)


# Six tasks without a model of states, four and six with its first forms, and six. The last six
# were written after all settings of their day.
before: dict[str, dict[str, float]] = {}
for name in ("before", "fresh", "later", "unseen"):
    before |= shares(name)
# The newest training of each task.
after = shares("new_logs", seed=2) | shares("others")
after |= shares("own_columns", seed=2) | shares("unknown_states", seed=2)
after |= shares("fifth_logs", seed=4)
tasks = [*before, *(task for task in after if task not in before)]
figure = Figure(figsize=(8.5, 15.0), layout="constrained")
axes = figure.subplots()
for row, task in enumerate(tasks):
    if task in before:
        draw(axes, before[task], row - 0.25, "C3", fill="none")
    draw(axes, after[task], row, "C0")
axes.plot([], [], "o", mfc="none", color="C3", label="chosen before")
axes.plot([], [], "o", color="C0", label="chosen now")
axes.plot([], [], "|", color="gray", ms=9, label="searches")
axes.plot([], [], "x", color="gray", label="the most likely action")
axes.plot([], [], "+", color="gray", label="samples")
axes.axvline(0.0, color="black", linewidth=1)
axes.axvline(1.0, color="gray", linewidth=1, linestyle=":")
axes.set_xscale("symlog", linthresh=1.0)
axes.set_xlim(-100, 1.3)
axes.set_xticks([-100, -10, -1, 0, 1], ["-100", "-10", "-1", "0", "1"])
axes.set_yticks(range(len(tasks)), tasks)
axes.margins(y=0.01)
axes.invert_yaxis()
axes.set_xlabel("return: 0 as the log, 1 as the best of the policy's choices")
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
figure.savefig(FOLDER / "switch.png", dpi=110)
