"""Returns of uniformly random actions in the maze, compared with the published scores.

Run with `python -m tests.measure.maze_random [--out FILE.csv]`. Seeds are 0 to 1,999.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from spin_d3rlpy.files.results import format_table, write_csv
from spin_envs.rollout import rollout
from spin_envs.scores import PUBLISHED_SCORES
from spin_envs.vector import make_batch

EPISODES = 2000
ACTUATORS = (3, 5, 7, 10, 12, 15)
BATCH = 100


def random_returns(actuators: int, seeds: range) -> NDArray[np.float64]:
    """Returns the return of an episode of uniformly random actions per seed."""
    streams = [np.random.default_rng([seed, actuators]) for seed in seeds]

    def act(observations: NDArray[np.float32], episodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([streams[i].integers(0, 2, actuators) for i in episodes])

    with closing(make_batch("spin/maze-v0", BATCH, actuators=actuators)) as envs:
        episodes = rollout(envs, act, seeds, record=False)
        return np.array([episode.rewards.sum() for episode in episodes])


def measure(actuators: int) -> dict[str, Any]:
    """Returns mean and standard error, the published mean and how many errors lie between.

    The published means' own error is unknown (they come without a number of episodes), so `z`
    counts ours only and is larger than it should be.
    """
    returns = random_returns(actuators, range(EPISODES))
    published = PUBLISHED_SCORES[f"spin/maze-a{actuators}"][0]
    error = returns.std(ddof=1) / len(returns) ** 0.5
    return {
        "actuators": actuators,
        "episodes": len(returns),
        "reached_goal": int((returns > 0).sum()),
        "mean_return": f"{returns.mean():.3f}",
        "standard_error": f"{error:.3f}",
        "published": published,
        "z": f"{(returns.mean() - published) / error:.2f}" if error else "",
    }


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
) -> None:
    """Measure what uniformly random actions return in the maze."""
    found = [measure(actuators) for actuators in ACTUATORS]
    print(format_table(found))
    if out is not None:
        write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
