"""BraVE as published in all cells of CoNE with pits at once, on one GPU.

    python -m tests.measure.brave_cells --device cuda:0 --out brave

The networks are small: a GPU is busy only if many are trained in turns, each on a stream of its
own. Steps are those of `fit`, recorded; after every evaluation's steps the weights are written, and
processes play one episode by them on CPUs. (`python -m examples.paper run cone-brave` trains the
same cells one by one.)
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import torch
import typer

from examples.paper.settings import EVALUATION_SEED
from examples.paper.specs import placed
from spin_d3rlpy import BraVE, LockstepEvaluator, load_dataset
from spin_d3rlpy.files.results import write_csv, write_json
from spin_d3rlpy.runs.machine import describe_machine

CORRECTED = {"stop_at_terminals": True, "detach_targets": True, "overwrite_branch_values": True}
SHARES = (5, 10, 25, 50, 75, 100)  # per cent of the interior cells that are pits
Cell = tuple[int, int]  # per cent of pits, placement


def dataset_of(cell: Cell) -> str:
    """Returns the name of a cell's dataset; its placement is the seed of the training, too."""
    share, placement = cell
    return placed(f"spin/cone-d8-p{share}/mixed-v0", placement)


def built(cell: Cell, device: str, corrected: bool = False) -> tuple[BraVE, Any]:
    """Returns a new algorithm, and its dataset on the device.

    Args:
        cell: which.
        device: where the networks are.
        corrected: what looks like slips in the published code is mended.
    """
    buffer, env = load_dataset(dataset_of(cell), progress=False)
    env.close()
    buffer = buffer.to(device)
    d3rlpy.seed(cell[1])
    fields: dict[str, Any] = CORRECTED if corrected else {}
    algo = BraVE(precision="float32", device=device, **fields)
    algo.build_with_dataset(buffer)
    return algo, buffer


def _network(algo: BraVE) -> torch.nn.Module:
    modules: Any = algo.require_built().modules
    network: torch.nn.Module = modules.network
    return network


@functools.cache
def _player(cell: Cell) -> tuple[BraVE, LockstepEvaluator]:
    torch.set_num_threads(1)
    algo, _ = built(cell, "cpu:0")
    _, env = load_dataset(dataset_of(cell), progress=False)
    return algo, LockstepEvaluator(env, 1, EVALUATION_SEED, "greedy")


def played(cell: Cell, weights: Path) -> float:
    """Returns the greedy return of written weights; nothing in an episode is random."""
    algo, evaluator = _player(cell)
    _network(algo).load_state_dict(torch.load(weights, weights_only=True))
    return float(evaluator.returns(algo).mean())


class Cells:
    """Trainings that take turns.

    Args:
        cells: what is trained.
        device: where.
        corrected: see `built`.
    """

    def __init__(self, cells: list[Cell], device: str, corrected: bool = False) -> None:
        self._is_on_gpu = device.startswith("cuda")
        self.cells = cells
        self._algos = []
        self._sources = []
        self._streams = []
        for cell in cells:
            algo, buffer = built(cell, device, corrected)
            self._algos.append(algo)
            self._sources.append(algo.batch_source(buffer))
            self._streams.append(torch.cuda.Stream(device) if self._is_on_gpu else None)
        self.synchronize()

    def train(self, n_steps: int) -> None:
        """Does steps of all cells, in turns."""
        turns = list(zip(self._algos, self._sources, self._streams, strict=True))
        for _ in range(n_steps):
            for algo, source, stream in turns:
                with torch.cuda.stream(stream) if self._is_on_gpu else nullcontext():
                    algo.sample_and_update(source)
        self.synchronize()

    def write(self, folder: Path, step: int) -> list[Path]:
        """Writes the weights of all cells; returns the files."""
        paths = []
        for (share, placement), algo in zip(self.cells, self._algos, strict=True):
            paths.append(folder / f"{share}_{placement}_{step}.pt")
            state = _network(algo).state_dict()
            torch.save({name: value.cpu() for name, value in state.items()}, paths[-1])
        return paths

    def synchronize(self) -> None:
        """Waits for the device."""
        if self._is_on_gpu:
            torch.cuda.synchronize()


def main(
    out: Annotated[Path, typer.Option(help="Folder of the results.")],
    device: str = "cuda:0",
    steps: int = 20_000,
    evaluations: int = 20,
    placements: int = 5,
    shares: Annotated[list[int] | None, typer.Option()] = None,
    players: Annotated[int, typer.Option(help="Processes that play.")] = 12,
    corrected: Annotated[
        bool, typer.Option(help="Mend what looks like slips in the published code.")
    ] = False,
) -> None:
    """Trains the cells, and writes every evaluation."""
    chosen = tuple(shares or SHARES)
    cells = [(share, placement) for placement in range(placements) for share in chosen]
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "weights"
    weights.mkdir(exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(players, spawn) as pool:
        list(pool.map(_made, cells))  # datasets, where there are none yet
        running = Cells(cells, device, corrected)
        began = time.monotonic()
        waiting: list[tuple[Cell, int, float, Future[float]]] = []
        interval = steps // evaluations
        for step in range(interval, steps + 1, interval):
            running.train(interval)
            spent = time.monotonic() - began
            typer.echo(f"{step} steps of {len(running.cells)} cells: {spent:.1f} s")
            for cell, path in zip(running.cells, running.write(weights, step), strict=True):
                waiting.append((cell, step, spent, pool.submit(played, cell, path)))
        rows = [
            {
                "dataset": dataset_of(cell),
                "pits_percent": cell[0],
                "placement": cell[1],
                "step": step,
                "seconds_of_all": round(spent, 1),
                "greedy_return": round(future.result(), 2),
            }
            for cell, step, spent, future in waiting
        ]
    rows.sort(key=lambda row: (row["pits_percent"], row["placement"], row["step"]))
    write_csv(out / "brave_cells.csv", rows)
    write_json(out / "machine.json", describe_machine())
    last = [row for row in rows if row["step"] == steps]
    typer.echo("\n".join(f"{row['dataset']}: {row['greedy_return']}" for row in last))


def _made(cell: Cell) -> None:
    _, env = load_dataset(dataset_of(cell), progress=False)
    env.close()


if __name__ == "__main__":
    typer.run(main)
