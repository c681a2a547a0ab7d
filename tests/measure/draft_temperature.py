"""Returns of a search by how many drafts of pairs it starts from, and by their temperature.

Run with `python -m tests.measure.draft_temperature --keep FOLDER`. The algorithms are those of
`tests.measure.search_speed`, trained or as they are in the folder; all rows of a task are of the
same networks and episodes, and gains are over the first one's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.policies import joint
from spin_d3rlpy.training.threads import one_thread
from tests.measure.search_speed import returns_of, trained

EPISODES = {"dispatch-n20": 200, "dispatch-n50": 60}
DRAFTS = ((32, 1.0), (16, 1.0), (16, 0.7), (16, 0.5), (16, 0.35), (8, 0.5), (32, 0.5))


def rows_of(task: str, episodes: int, train: float, keep: Path | None) -> list[dict[str, Any]]:
    """Returns a row for each number of drafts and temperature."""
    algo = trained(task, train, keep)
    rows: list[dict[str, Any]] = []
    first = None
    for n, temperature in DRAFTS:
        algo.config.n_action_samples = n
        joint.PAIR_DRAFTS_SHARE, joint.PAIR_DRAFTS_TEMPERATURE = 1.0, temperature
        returns = returns_of(algo, task, episodes)
        first = returns if first is None else first
        gains = returns - first
        rows.append(
            {
                "task": task,
                "drafts": n,
                "temperature": temperature,
                "return": f"{returns.mean():.3f}",
                "episodes": episodes,
                "gain": f"{gains.mean():.3f}",
                "standard_error": f"{gains.std() / episodes**0.5:.3f}",
            }
        )
        print(format_table(rows), flush=True)
    return rows


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A folder for trained algorithms.")] = None,
    train: Annotated[float, typer.Option(help="Processor seconds of each training.")] = 45.0,
) -> None:
    """Play episodes of 20 and 50 couriers by searches from several numbers of drafts."""
    found: list[dict[str, Any]] = []
    with one_thread():
        for task, episodes in EPISODES.items():
            found += rows_of(task, episodes, train, keep)
            if out is not None:
                write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
