"""Two processes that train one model."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import d3rlpy
import pytest
import torch

from spin_d3rlpy import SPINIQL, FactoredIQL
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.distributed import Processes
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields
from tests.algos.runs import (
    assert_equal,
    shared_run_that_goes_on,
    shared_run_that_is_killed,
    train_together,
)
from tests.subprocesses import run_processes


def networks(path: Path) -> dict[str, torch.Tensor]:
    algo: Any = d3rlpy.load_learnable(str(path))
    return {
        f"{name}.{key}": value
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


def run_two(target: Any, folder: Path, expected: int = 0) -> None:
    """Calls a function of `tests.algos.runs` in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_processes(target, [(rank, port, folder) for rank in range(2)], expected)


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    batch = random_buffer().sample_transition_batch(64)
    torch.save(batch, tmp_path / "batch.pt")
    run_two(train_together, tmp_path)
    for name in ("before", "after", "spin", "spin-later"):
        first, second = (networks(tmp_path / f"{name}-{rank}.d3") for rank in range(2))
        assert same(first, second), name
    # Two halves in two processes are one batch in one.
    alone: Any = d3rlpy.load_learnable(str(tmp_path / "before-0.d3"))
    alone.update(batch)
    together = networks(tmp_path / "after-0.d3")
    moved = 0
    for key, before in networks(tmp_path / "before-0.d3").items():
        name, _, rest = key.partition(".")
        found = alone.impl.modules.get_torch_modules()[name].state_dict()[rest]
        torch.testing.assert_close(found, together[key], rtol=1e-4, atol=1e-6)
        moved += not torch.equal(found, before)
    assert moved > 10
    # A file written by two processes is an ordinary one.
    spin: Any = d3rlpy.load_learnable(str(tmp_path / "spin-0.d3"))
    assert isinstance(spin, SPINIQL)
    assert spin.is_pretrained


@pytest.mark.slow
def test_a_killed_run_of_two_processes_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    run_two(shared_run_that_is_killed, tmp_path, expected=-signal.SIGKILL)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert "pretraining_0000000006.ckpt" in names
    run_two(shared_run_that_goes_on, tmp_path)
    outcomes = {
        (name, rank): torch.load(tmp_path / f"{name}-{rank}.pt")
        for name in ("whole", "resumed")
        for rank in range(2)
    }
    # Each draws its own batches, and its losses are its own.
    assert outcomes["whole", 0]["next"] != outcomes["whole", 1]["next"]
    for key in outcomes["whole", 1]:
        if key != "results":  # the first epoch's losses are those that process 0 had kept
            assert_equal(outcomes["whole", 1][key], outcomes["resumed", 1][key], key)
    assert_equal(outcomes["whole", 0], outcomes["resumed", 0])
    for rank in range(2):
        assert (tmp_path / f"refused-{rank}").exists()


def test_checkpoints_of_another_number_of_processes_are_refused(tmp_path: Path) -> None:
    class Two(Processes):
        count = 2

    Checkpoints(tmp_path, 1, {}, dict, Two()).save("training", 1, {})
    with pytest.raises(InvalidCheckpointError, match="processes was 2, is 1"):
        Checkpoints(tmp_path, 1, {}, dict).start(resume=True)


def test_ddp_without_a_process_group_is_an_error() -> None:
    algo = new_algorithm(FactoredIQL, enable_ddp=True, **tiny_fields(FactoredIQL))
    with pytest.raises(RuntimeError, match="torchrun"):
        algo.build_with_dataset(random_buffer())
