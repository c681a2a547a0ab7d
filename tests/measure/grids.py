"""Ten agents on a grid, in two forms that were written after own columns and alike slots.

    python -m tests.measure.grids --out grids.csv

Logs are by rules with noise.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from spin_d3rlpy.files.results import write_csv
from tests.measure.switch import compare, train
from tests.measure.tasks import TASKS
from tests.measure.tasks.base import Floats, Ints, Task

SIDE, N = 10, 10


class _Grid(Task):
    """Agents take single steps to where something is, and then it is elsewhere."""

    nvec, horizon, episodes = [5] * N, 50, 400
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    n_items: int
    cost: float  # of each pair in one cell

    def begin(self) -> None:
        self.agents = self.rng.integers(0, SIDE, (self.n, N, 2))
        self.items = self.rng.integers(0, SIDE, (self.n, self.n_items, 2))

    @abstractmethod
    def found(self) -> Any:
        """Returns by item whether it is reached."""

    @abstractmethod
    def targets(self) -> Any:
        """Returns where each agent goes."""

    def advance(self, actions: Ints) -> Floats:
        self.agents = np.clip(self.agents + self.moves[actions], 0, SIDE - 1)
        found = self.found()
        new = self.rng.integers(0, SIDE, self.items.shape)
        self.items = np.where(found[..., None], new, self.items)
        pairs = (self.agents[:, :, None] == self.agents[:, None]).all(-1).sum((1, 2)) - N
        reward: Floats = found.sum(1) - self.cost * pairs / 2
        return reward

    def rule(self) -> Ints:
        way = self.targets() - self.agents
        along_x = np.where(way[..., 0] > 0, 1, 2)
        along_y = np.where(way[..., 1] > 0, 3, 4)
        longer = np.where(np.abs(way[..., 0]) >= np.abs(way[..., 1]), along_x, along_y)
        return np.where((way == 0).all(-1), 0, longer)

    def log(self) -> Ints:
        return self.mixed(self.rule(), 0.4)

    def places(self, of: Any) -> Any:
        """Returns places between -1 and 1, one after the other."""
        return of.reshape(self.n, -1) / 4.5 - 1.0


class Harvest(_Grid):
    """Twelve items for all, whose places come first; meeting costs 0.3."""

    n_items, cost = 12, 0.3

    def observe(self) -> Floats:
        return np.concatenate([self.places(self.items), self.places(self.agents)], 1)

    def found(self) -> Any:
        return (self.agents[:, :, None] == self.items[:, None]).all(-1).any(1)

    def targets(self) -> Any:
        away = np.abs(self.agents[:, :, None] - self.items[:, None]).sum(-1)
        return np.take_along_axis(self.items, away.argmin(2)[..., None], 1)


class Errands(_Grid):
    """Each has a goal of its own; goals come after all places; meeting costs 0.2."""

    n_items, cost = N, 0.2

    def observe(self) -> Floats:
        return np.concatenate([self.places(self.agents), self.places(self.items)], 1)

    def found(self) -> Any:
        return (self.agents == self.items).all(-1)

    def targets(self) -> Any:
        return self.items


GRIDS = {"ten agents, items": Harvest, "ten agents, errands": Errands}


def main(
    out: Annotated[Path, typer.Option(help="The CSV.")] = Path("grids.csv"),
    seed: Annotated[int, typer.Option(help="Of the logs and trainings.")] = 0,
    seconds: Annotated[float, typer.Option(help="Nominal ones of each training.")] = 60.0,
    episodes: Annotated[int, typer.Option(help="That each policy is played for.")] = 30,
) -> None:
    """Train on the logs of both grids, and compare what is chosen with what could have been."""
    TASKS.update(GRIDS)
    rows: list[dict[str, Any]] = []
    for name in GRIDS:
        task, algo, of_log = train(name, seed, seconds)
        print(name, algo.trust, flush=True)
        rows += compare(name, seed, task, algo, of_log, episodes)
        write_csv(out, rows)


if __name__ == "__main__":
    typer.run(main)
