"""The training loop that all stages share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spin_d3rlpy.errors import DivergenceError
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.loop import Loop, Metrics, Run

QUIET = Run(show_progress=False)


class CrashError(Exception):
    """Stands for whatever ends a run."""


def train(run: Run, crash: int | None = None, n_steps: int = 11) -> tuple[nn.Linear, list[Any]]:
    """Trains a small network in epochs of four steps; returns it and the rows."""
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    loop = Loop(run, "stage", n_steps, 4, {"network": network, "optimizer": optimizer})

    def step() -> Metrics:
        if crash is not None and loop.step == crash:
            raise CrashError
        optimizer.zero_grad()
        loss = network(torch.randn(5, 3)).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    for _ in loop.epochs(step):
        loop.add_row(loop.take_row())
    return network, [{k: v for k, v in row.items() if k != "seconds"} for row in loop.rows]


def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder, 3, {"run": 1}, dict)


def test_there_is_a_row_an_epoch_and_the_last_epoch_may_be_shorter() -> None:
    _, rows = train(QUIET)
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 4), (2, 8), (3, 11)]
    assert rows[-1]["loss"] < rows[0]["loss"]


@pytest.mark.parametrize("crash", [4, 6, 10])
def test_a_resumed_run_ends_like_an_uninterrupted_one(crash: int, tmp_path: Path) -> None:
    whole, expected = train(QUIET)
    with checkpoints(tmp_path) as first:
        first.start(resume=True)
        with pytest.raises(CrashError):
            train(Run(False, first), crash)
    with checkpoints(tmp_path) as second:
        second.start(resume=True)
        torch.manual_seed(9)
        resumed, rows = train(Run(False, second))
    assert rows == expected
    assert torch.equal(resumed.weight, whole.weight)


def test_a_finished_run_makes_no_step_when_it_is_resumed(tmp_path: Path) -> None:
    for _ in range(2):
        with checkpoints(tmp_path) as kept:
            kept.start(resume=True)
            _, rows = train(
                Run(False, kept), crash=None if not list(tmp_path.glob("*.ckpt")) else 0
            )
    assert len(rows) == 3


def test_it_stops_without_a_better_score_and_keeps_the_best_weights() -> None:
    network = nn.Linear(1, 1)
    scores = iter([0.1, 0.5, math.nan, 0.4, 0.9])
    loop = Loop(QUIET, "stage", 99, 1, patience=2, keep_best=network)

    def step() -> Metrics:
        with torch.no_grad():
            network.weight.fill_(loop.step + 1)
        return {}

    for _ in loop.epochs(step):
        loop.add_row(loop.take_row(), next(scores))
    assert (len(loop.rows), loop.best) == (4, 2)
    assert loop.is_over(len(loop.rows))
    assert network.weight.item() == 2


def test_losses_that_are_not_finite_stop_it() -> None:
    loop = Loop(QUIET, "stage", 2, 2)
    assert list(loop.epochs(lambda: {"loss": torch.tensor(math.nan)})) == [1]
    with pytest.raises(DivergenceError, match="loss is nan at step 2 of stage"):
        loop.take_losses()
