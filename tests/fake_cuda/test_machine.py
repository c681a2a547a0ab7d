"""The GPU that is not there sees what a training step must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from torch import nn

from spin_d3rlpy import FactoredIQL
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields
from tests.fake_cuda import stubs
from tests.fake_cuda.machine import GPU, FakeGPU

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(stubs.MISSING is not None, reason=str(stubs.MISSING)),
    pytest.mark.filterwarnings("ignore"),
]
Fault = Callable[[torch.Tensor], object]
WAITS: dict[str, Fault] = {
    "item": lambda loss: loss.item(),
    "bool": lambda loss: bool(loss > 0),
    "to the host": lambda loss: loss.cpu(),
    "list": lambda loss: loss[None].tolist(),
    "nonzero": lambda loss: loss[None].nonzero(),
    "mask": lambda loss: loss[None][loss[None] > 0],
    "equal": lambda loss: torch.equal(loss, loss),
    "synchronize": lambda loss: torch.cuda.synchronize(),
}
COPIES: dict[str, Fault] = {
    "tensor of a list": lambda loss: torch.tensor([1.0, 2.0], device=loss.device),
    "tensor of a number": lambda loss: torch.tensor(1.0, device=loss.device),
    "to the device": lambda loss: torch.zeros(3).to(loss.device),
    "copy_": lambda loss: torch.zeros(3, device=loss.device).copy_(torch.ones(3)),
}
MIXES: dict[str, Fault] = {
    "sum": lambda loss: loss + torch.zeros(3),
    "index": lambda loss: loss[None][torch.zeros(2, dtype=torch.long)],
    "layer": lambda loss: nn.Linear(1, 2)(loss[None]),
    "generator": lambda loss: torch.empty_like(loss).exponential_(generator=torch.Generator()),
}


def fit_with(fault: Fault, compile_graph: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    algo: Any = new_algorithm(
        FactoredIQL,
        device=GPU,
        batch_size=19,
        compile_graph=compile_graph,
        **tiny_fields(FactoredIQL),
    )
    algo.build_with_dataset(random_buffer())
    update = algo.impl.compute_update

    def faulty(batch: Any, grad_step: int) -> Any:
        metrics = update(batch, grad_step)
        fault(metrics["critic_loss"])
        return metrics

    monkeypatch.setattr(algo.impl, "compute_update", faulty)
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    algo.fit(random_buffer(), n_steps=6, **quiet)
    return algo


@pytest.mark.parametrize("fault", WAITS.values(), ids=WAITS)
def test_waits_are_seen(gpu: FakeGPU, fault: Fault) -> None:
    loss = torch.ones((), device=GPU)
    with gpu.watch():
        fault(loss)
    assert {event.kind for event in gpu.events} == {"wait"}


@pytest.mark.parametrize("fault", COPIES.values(), ids=COPIES)
def test_copies_are_seen(gpu: FakeGPU, fault: Fault) -> None:
    loss = torch.ones((), device=GPU)
    with gpu.watch():
        fault(loss)
    assert {event.kind for event in gpu.events} == {"copy"}


@pytest.mark.parametrize("fault", MIXES.values(), ids=MIXES)
def test_mixed_devices_are_errors(gpu: FakeGPU, fault: Fault) -> None:
    with gpu.watch(), pytest.raises(RuntimeError, match="same device"):
        fault(torch.ones((), device=GPU))
    assert {event.kind for event in gpu.events} == {"mix"}


@pytest.mark.parametrize("fault", [WAITS["item"], WAITS["mask"], COPIES["tensor of a list"]])
def test_recording_is_refused_or_left_out(
    gpu: FakeGPU,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be recorded.*compile_graph=False"):
        fit_with(fault, True, monkeypatch)
    assert gpu.stream == "default"  # not the one that was recorded on
    capfd.readouterr()
    algo = fit_with(fault, "auto", monkeypatch)
    assert (gpu.recordings, algo.grad_step) == (0, 6)
    log = "".join(capfd.readouterr())
    assert "not recorded as a CUDA graph" in log
    assert "test_machine.py" in log


def test_no_memory_is_said_to_be_no_memory(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_loss: torch.Tensor) -> None:
        if gpu.is_recording:
            raise torch.OutOfMemoryError("CUDA out of memory")

    for compile_graph in (True, "auto"):
        with pytest.raises(torch.OutOfMemoryError):
            fit_with(fault, compile_graph, monkeypatch)


def test_autocast_has_cudnns_lstm_in_half_precision(gpu: FakeGPU) -> None:
    lstm = nn.LSTM(4, 5).to(GPU)
    with torch.autocast("cuda", torch.bfloat16):
        assert lstm(torch.zeros(3, 2, 4, device=GPU))[0].dtype == torch.float16


def test_kernels_are_counted(gpu: FakeGPU) -> None:
    x = torch.zeros(4, 3, device=GPU)
    with gpu.watch():
        (x.T @ x).relu().view(9)
    assert gpu.operations == {"mm": 1, "relu": 1}
    assert gpu.kernels == 2
