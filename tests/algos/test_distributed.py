"""Two processes that train one model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import d3rlpy
import pytest
import torch

from spin_d3rlpy import SPINIQL, FactoredIQL
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.distributed import SingleProcess
from spin_d3rlpy.errors import InvalidCheckpointError
from tests.algos.problems import random_buffer, tiny_fields
from tests.algos.test_resume import assert_equal
from tests.subprocesses import ROOT

PROGRAM = """
import dataclasses, sys
import d3rlpy, torch
from d3rlpy.logging import NoopAdapterFactory
from spin_d3rlpy import SPINIQL, FactoredIQL
from tests.algos.problems import random_buffer, tiny_fields

folder = sys.argv[1]
torch.set_num_threads(1)
rank = d3rlpy.distributed.init_process_group("gloo")

# Each process has other weights at first, and updates on its half of a batch.
d3rlpy.seed(rank)
sgd = d3rlpy.optimizers.SGDFactory()
algo = FactoredIQL(
    enable_ddp=True, actor_optim_factory=sgd, critic_optim_factory=sgd,
    actor_learning_rate=0.1, critic_learning_rate=0.1, **tiny_fields(FactoredIQL),
)
algo.build_with_dataset(random_buffer())
algo.save(f"{folder}/before-{rank}.d3")
batch = torch.load(f"{folder}/batch.pt", weights_only=False)
half = {
    f.name: getattr(batch, f.name)[rank::2] if isinstance(getattr(batch, f.name), torch.Tensor)
    else getattr(batch, f.name)
    for f in dataclasses.fields(batch)
}
algo.update(type(batch)(**half))
algo.save(f"{folder}/after-{rank}.d3")

# Both stages of SPIN, then a file that both load.
d3rlpy.seed(10 + rank)
spin = SPINIQL(enable_ddp=True, batch_size=19, **tiny_fields(SPINIQL))
fields = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
spin.fit(random_buffer(), n_steps=3, **fields)
spin.save(f"{folder}/spin-{rank}.d3")
spin.save_model(f"{folder}/spin-{rank}.pt")
spin.load_model(f"{folder}/spin-{rank}.pt")
spin.fit(random_buffer(), n_steps=1, **fields)
spin.save(f"{folder}/spin-later-{rank}.d3")
d3rlpy.distributed.destroy_process_group()
"""


def networks(path: Path) -> dict[str, torch.Tensor]:
    algo: Any = d3rlpy.load_learnable(str(path))
    return {
        f"{name}.{key}": value
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[key]) for key, value in one.items())


def run_two(program: str, folder: Path, expected: int = 0) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "envs")])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == expected, errors[-2000:]


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    batch = random_buffer().sample_transition_batch(64)
    torch.save(batch, tmp_path / "batch.pt")
    run_two(PROGRAM, tmp_path)
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


# Both programs run the same thing; the first is killed, the second crashes on its way.
RESUMING = """
import os, signal, sys
import d3rlpy, torch
from pathlib import Path
import spin_d3rlpy.asm.pretraining as pretraining
from tests.algos.test_resume import SPINIQL, CrashError, fit, make, outcome, seed

folder = Path(sys.argv[1])
torch.set_num_threads(1)
rank = d3rlpy.distributed.init_process_group("gloo")

def run(checkpoints, seeded, callback=None):
    seed(1 + rank if seeded else 99)
    algo = make(SPINIQL, enable_ddp=True)
    return outcome(algo, fit(algo, checkpoints, callback=callback))
"""

KILLED = (
    RESUMING
    + """
torch.save(run(None, True), folder / f"whole-{rank}.pt")
original, count = pretraining.mask_actions, 0
def mask_actions(*args):
    global count
    count += 1
    if count == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)
pretraining.mask_actions = mask_actions
run(folder / "checkpoints", True)
"""
)

GOING_ON = (
    RESUMING
    + """
def crash(_algo, _epoch, step):
    if step == 7:
        raise CrashError

try:
    run(folder / "checkpoints", False, crash)
except CrashError:
    torch.save(run(folder / "checkpoints", False), folder / f"resumed-{rank}.pt")
# What process 0 finds wrong, all refuse.
for path in (folder / "checkpoints").glob("*.ckpt"):
    path.write_bytes(b"something else")
try:
    run(folder / "checkpoints", False)
except Exception as error:
    (folder / f"refused-{rank}").write_text(type(error).__name__)
d3rlpy.distributed.destroy_process_group()
"""
)


def test_a_killed_run_of_two_processes_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    run_two(KILLED, tmp_path, expected=-signal.SIGKILL)
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert "pretraining_0000000006.ckpt" in names
    run_two(GOING_ON, tmp_path)
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
        assert (tmp_path / f"refused-{rank}").read_text() == "InvalidCheckpointError"


def test_checkpoints_of_another_number_of_processes_are_refused(tmp_path: Path) -> None:
    class Two(SingleProcess):
        count = 2

    Checkpoints(tmp_path, 1, {}, dict, Two()).save("training", 1, {})
    with pytest.raises(InvalidCheckpointError, match="processes was 2, is 1"):
        Checkpoints(tmp_path, 1, {}, dict).start(resume=True)


def test_ddp_without_a_process_group_is_an_error() -> None:
    algo = FactoredIQL(enable_ddp=True, **tiny_fields(FactoredIQL))
    with pytest.raises(RuntimeError, match="torchrun"):
        algo.build_with_dataset(random_buffer())
