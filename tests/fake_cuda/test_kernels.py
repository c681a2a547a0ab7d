"""How many kernels an update launches, so that they do not creep up unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import spin_d3rlpy
from spin_d3rlpy import fast
from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig
from spin_d3rlpy.data import DeviceReplayBuffer
from tests.fake_cuda import stubs
from tests.fake_cuda.machine import GPU, FakeGPU
from tests.measure.speed import CHEETAH, random_buffer

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(stubs.MISSING is not None, reason=str(stubs.MISSING)),
]
BATCH_SIZE = 256
FIXED = {"train_queries": False}
CACHED = {"train_queries": False, "cache_features": True}
# Counted when this was written, in float32 and in bfloat16.
COUNTED: list[tuple[str, dict[str, Any], int, int]] = [
    ("SPINIQL", {}, 194, 218),
    ("SPINIQL", FIXED, 142, 165),
    ("SPINIQL", CACHED, 99, 119),
    ("SAINTIQL", {}, 245, 271),
    ("FactoredIQL", {}, 99, 118),
    ("AutoregressiveIQL", {}, 172, 201),
    ("DecQN", {}, 59, 69),
]
ASM = [("float32", 219), ("bfloat16", 230)]
TOLERANCE = 1.01


def update_of(name: str, fields: dict[str, Any], buffer: DeviceReplayBuffer) -> Callable[[], Any]:
    algo = getattr(spin_d3rlpy, name)(device=GPU, batch_size=BATCH_SIZE, **fields)
    algo.build_with_dataset(buffer)
    algo._show_progress = False
    source = algo.batch_source_at(buffer, 1.0)
    return lambda: algo.sample_and_update(source)


def pretraining_update(precision: Any, buffer: DeviceReplayBuffer) -> Callable[[], Any]:
    asm = ActionStructureModel(CHEETAH.observation_size, CHEETAH.nvec).to(GPU)
    config = PretrainingConfig()
    objective = config.create_objective(asm)
    optimizer = torch.optim.Adam(objective.parameters(), fused=True)

    def update() -> None:
        observations, actions = buffer.sample_observations_and_actions(BATCH_SIZE)
        optimizer.zero_grad()
        objective.add_gradients(observations, actions, precision)
        torch.nn.utils.clip_grad_norm_(objective.parameters(), config.clip_grad_norm)
        optimizer.step()

    return update


def kernels(gpu: FakeGPU, update: Callable[[], Any]) -> int:
    for _ in range(2):  # optimizer states, weights that are folded once
        update()
    with gpu.watch():
        update()
    assert gpu.events == []
    return gpu.kernels


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "fields", "float32", "bfloat16"), COUNTED)
def test_updates_take_no_more_kernels_than_they_did(
    gpu: FakeGPU, name: str, fields: dict[str, Any], float32: int, bfloat16: int, precision: str
) -> None:
    buffer = random_buffer(CHEETAH, 2).to(GPU)
    counted = kernels(gpu, update_of(name, {**fields, "precision": precision}, buffer))
    assert counted <= TOLERANCE * (float32 if precision == "float32" else bfloat16)


@pytest.mark.parametrize(("precision", "expected"), ASM)
def test_pretraining_takes_no_more_kernels_than_it_did(
    gpu: FakeGPU, precision: str, expected: int
) -> None:
    buffer = random_buffer(CHEETAH, 2).to(GPU)
    assert kernels(gpu, pretraining_update(precision, buffer)) <= TOLERANCE * expected


def test_the_plain_formulation_takes_many_more(gpu: FakeGPU) -> None:
    buffer = random_buffer(CHEETAH, 2).to(GPU)
    with fast.plain():
        assert kernels(gpu, update_of("SPINIQL", {}, buffer)) > 1.4 * COUNTED[0][2]
