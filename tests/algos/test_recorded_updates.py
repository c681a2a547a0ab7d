"""`compile_graph`: recorded updates do what updates do. The GPU's recorder is in `test_cuda.py`.

Here, a tape (`tests.algos.tape`) takes its place, and code that has a path of its own on CPUs takes
the other one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import itertools
import weakref
from pathlib import Path
from typing import Any

import d3rlpy
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.optimizers import AdamFactory, SGDFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import MultiplyRewardScaler, StandardObservationScaler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spin_d3rlpy import SPINIQL, DecQN, FactoredIQL, MultiDiscreteFQE, MultiDiscreteFQEConfig
from spin_d3rlpy.algos import base, impl, recorded
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast import dropout, precision
from spin_d3rlpy.files.yaml_settings import format_settings
from spin_d3rlpy.policies import reprem
from spin_d3rlpy.runs import training
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.search import tree_search
from spin_d3rlpy.training import graphs
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    each_algorithm,
    has_field,
    learning_rates,
    new_algorithm,
    optimizers,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.algos.tape import TapeRecorder, refuse_unrecordable

STAGED = ("SPIN", "RePreM")  # whose first stage is recorded, too
RATE = 2.0**-10  # the same in float32, as which recorded optimizers have it
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


@pytest.fixture
def gpu_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the paths that other devices than CPUs take."""
    monkeypatch.setattr(dropout, "_BITS", {})
    monkeypatch.setattr(precision, "onednn_multiplies_float32", lambda: False)
    monkeypatch.setattr(reprem, "contrastive_loss", reprem.masked_contrastive_loss)
    monkeypatch.setattr(tree_search, "may_wait", lambda _: False)


@pytest.fixture
def _tape(gpu_code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (base, recorded, graphs):
        monkeypatch.setattr(module, "can_record", lambda _device: True)
    monkeypatch.setattr(graphs, "CudaRecorder", TapeRecorder)
    TapeRecorder.made = 0


taped = pytest.mark.usefixtures("_tape")


def make(algo_class: Any, compile_graph: bool = True, **fields: Any) -> Any:
    d3rlpy.seed(1)
    fields = {
        "batch_size": 19,
        **tiny_fields(algo_class),
        **learning_rates(algo_class, RATE),
        **fields,
    }
    if has_field(algo_class, "lr_decay"):
        fields["lr_decay"] = 0.5  # so that rates are the same in float32, too
    if has_field(algo_class, "pretraining"):
        fields["pretraining"] = dataclasses.replace(
            fields["pretraining"], max_updates=6, learning_rate=RATE
        )
    return new_algorithm(algo_class, compile_graph=compile_graph, **fields)


def built(algo_class: Any, compile_graph: bool = True, **fields: Any) -> Any:
    algo = make(algo_class, compile_graph, **fields)
    algo.build_with_dataset(random_buffer())
    return algo


def parts(algo: Any) -> dict[str, torch.Tensor]:
    networks = algo.impl.modules.get_torch_modules().items()
    return {
        f"{n}.{k}": v.clone() for n, network in networks for k, v in network.state_dict().items()
    }


def assert_same(one: Any, other: Any) -> None:
    assert one.grad_step == other.grad_step
    found, expected = parts(one), parts(other)
    assert [key for key, value in expected.items() if not torch.equal(found[key], value)] == []


@taped
@each_algorithm
def test_fit_ends_with_the_same_weights_and_losses(algo_class: Any) -> None:
    algos, metrics = [], []
    for compile_graph in (True, False):
        algos.append(make(algo_class, compile_graph))
        metrics.append(algos[-1].fit(random_buffer(), n_steps=9, **QUIET)[-1][1])
    assert TapeRecorder.made == 1 + algo_class.__name__.startswith(STAGED)
    assert_same(*algos)
    for key, value in metrics[1].items():
        if not key.startswith(("time", "seconds")):
            assert metrics[0][key] == value, key


@taped
def test_replayed_steps_differ_from_each_other() -> None:
    """Each draws its own batch and its own dropout, and continues from the step before."""
    algo = built(FactoredIQL)
    seen: list[dict[str, torch.Tensor]] = []
    losses: list[float] = []
    for _ in range(8):
        losses.append(algo.sample_and_update(random_buffer_of(algo))["critic_loss"].item())
        seen.append(parts(algo))
    assert TapeRecorder.made == 1
    assert len(set(losses)) == 8
    for one, other in itertools.pairwise(seen):
        moved = [k for k in one if not torch.equal(one[k], other[k])]
        assert len(moved) == len(one)


def random_buffer_of(algo: Any) -> Any:
    """The same buffer at every call."""
    if not hasattr(algo, "test_buffer"):
        algo.test_buffer = random_buffer()
    return algo.test_buffer


@taped
@each_algorithm
def test_update_takes_batches_of_either_kind(algo_class: Any) -> None:
    ours, stock = random_buffer(), random_replay_buffer()
    algos = [built(algo_class, compile_graph) for compile_graph in (True, False)]
    for algo in algos:
        d3rlpy.seed(2)
        for _ in range(6):
            algo.update(ours.sample_transition_batch(19))
        for _ in range(6):
            algo.update(stock.sample_transition_batch(19))
    assert TapeRecorder.made >= 1
    assert_same(*algos)


@taped
@pytest.mark.parametrize("factory", [AdamFactory, SGDFactory])
def test_learning_rates_follow_their_schedule(factory: Any) -> None:
    algos = []
    for compile_graph in (True, False):
        schedule = CosineAnnealingLRFactory(T_max=7)
        fields = optimizers(FactoredIQL, factory(lr_scheduler_factory=schedule))
        algos.append(make(FactoredIQL, compile_graph, **fields))
        algos[-1].fit(random_buffer(), n_steps=9, **QUIET)
    # Adam reads its rate from the device; SGD's is part of a recording, so there is none.
    assert TapeRecorder.made == (factory is AdamFactory)
    found, expected = (parts(algo) for algo in algos)
    for key, value in expected.items():  # rates in float32 here, in float64 there
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-7, msg=key)
    rates = [algo.impl.policy_optim.param_groups[0]["lr"] for algo in algos]
    assert rates[0] == rates[1] != RATE
    assert isinstance(rates[0], float)


@taped
def test_plain_gradient_descent_is_recorded_too() -> None:
    algos = []
    for compile_graph in (True, False):
        algos.append(make(FactoredIQL, compile_graph, **optimizers(FactoredIQL, SGDFactory())))
        algos[-1].fit(random_buffer(), n_steps=9, **QUIET)
    assert TapeRecorder.made == 1
    assert_same(*algos)


def set_rate(algo: Any, _path: Path) -> None:
    algo.impl.policy_optim.param_groups[0]["lr"] = 4 * RATE


def set_weight_decay(algo: Any, _path: Path) -> None:
    algo.impl.policy_optim.param_groups[0]["weight_decay"] = 0.1


def reset(algo: Any, _path: Path) -> None:
    algo.reset_optimizer_states()


def load(algo: Any, path: Path) -> None:
    algo.load_model(str(path / f"{algo.config.compile_graph}.pt"))


def set_batch_size(algo: Any, _path: Path) -> None:
    algo.config.batch_size = 23


def act(algo: Any, _path: Path) -> None:
    algo.predict(torch.randn(3, OBSERVATION_SIZE).numpy())  # leaves evaluation mode behind
    algo.save_policy(str(_path / "policy.pt"))  # freezes and thaws


@taped
@pytest.mark.parametrize(
    ("change", "recordings"),
    [(set_rate, 1), (set_weight_decay, 2), (reset, 2), (load, 2), (set_batch_size, 2), (act, 1)],
)
@pytest.mark.parametrize("algo_class", [FactoredIQL, SPINIQL])
def test_what_changes_between_steps_counts(
    algo_class: Any, change: Any, recordings: int, tmp_path: Path
) -> None:
    algos = []
    for compile_graph in (True, False):
        algo = built(algo_class, compile_graph, **({"asm": None} if algo_class is SPINIQL else {}))
        algo.update(random_buffer().sample_transition_batch(5))
        algo.save_model(str(tmp_path / f"{compile_graph}.pt"))
        algo._grad_step = 0
        buffer = random_buffer_of(algo)
        for step in range(14):
            if step == 7:
                change(algo, tmp_path)
                torch.manual_seed(5)
            algo.sample_and_update(buffer)
        algos.append(algo)
    assert TapeRecorder.made == recordings
    assert_same(*algos)


@taped
def test_another_dataset_is_drawn_from() -> None:
    algos = []
    for compile_graph in (True, False):
        algo = make(DecQN, compile_graph)
        for seed in (0, 1):
            algo.fit(random_buffer(seed=seed), n_steps=6, **QUIET)
        algos.append(algo)
    assert TapeRecorder.made == 2
    assert_same(*algos)


@taped
def test_features_in_host_memory_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Any] = {"train_queries": False, "cache_features": True}
    monkeypatch.setattr(DeviceReplayBuffer, "is_on_one_device", False)
    algos = []
    for compile_graph in (True, False):
        algos.append(make(SPINIQL, compile_graph, **fields))
        algos[-1].fit(random_buffer(), n_steps=6, **QUIET)
    assert TapeRecorder.made == 1  # pre-training
    assert_same(*algos)


@taped
@each_algorithm
def test_bfloat16_is_recorded_too(algo_class: Any) -> None:
    algos = []
    for compile_graph in (True, False):
        algo = built(algo_class, compile_graph, precision="bfloat16")
        buffer = random_buffer_of(algo)
        for _ in range(6):
            algo.sample_and_update(buffer)
        algos.append(algo)
    assert TapeRecorder.made == 1
    assert_same(*algos)


@taped
def test_scalers_and_clipping_are_recorded_too() -> None:
    algos = []
    for compile_graph in (True, False):
        algo = make(
            FactoredIQL,
            compile_graph,
            **optimizers(FactoredIQL, AdamFactory(clip_grad_norm=0.1)),
            observation_scaler=StandardObservationScaler(),
            reward_scaler=MultiplyRewardScaler(3.0),
        )
        algo.fit(random_buffer(), n_steps=9, **QUIET)
        algos.append(algo)
    assert TapeRecorder.made == 1
    assert_same(*algos)


@taped
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_policy_evaluation_is_recorded_too(mode: Any) -> None:
    evaluated = built(FactoredIQL, compile_graph=False)
    estimates = []
    for compile_graph in (True, False):
        d3rlpy.seed(4)
        config = MultiDiscreteFQEConfig(
            batch_size=19, learning_rate=RATE, compile_graph=compile_graph, lr_schedule="constant"
        )
        estimates.append(MultiDiscreteFQE(evaluated, config, mode=mode))
        estimates[-1].fit(random_buffer(), n_steps=9, **QUIET)
    assert TapeRecorder.made == 1
    assert_same(*estimates)


@taped
def test_what_cannot_be_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = built(FactoredIQL)
    original = algo.impl.compute_update

    def reading(batch: Any, grad_step: int) -> Any:
        metrics = original(batch, grad_step)
        assert metrics["critic_loss"].item() > 0
        return metrics

    monkeypatch.setattr(algo.impl, "compute_update", reading)
    with pytest.raises(RuntimeError, match=r"cannot be recorded.*compile_graph=False"):
        algo.fit(random_buffer(), n_steps=9, **QUIET)
    assert algo.grad_step == 3


def test_nothing_is_recorded_on_a_cpu() -> None:
    """As in d3rlpy: the same configuration serves on machines with and without a GPU."""
    algos = []
    for compile_graph in (True, False):
        algos.append(make(SPINIQL, compile_graph))
        algos[-1].fit(random_buffer(), n_steps=6, **QUIET)
        assert not algos[-1].compiled
    found, expected = (parts(algo) for algo in algos)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


# -- another device than the CPU -------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses what is not on the device `meta`, and what could not be recorded."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        refuse_unrecordable(func, args)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                assert leaf.device.type == "meta", f"{func} meets a tensor on {leaf.device}"
        return result


@pytest.fixture
def _meta(gpu_code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets algorithms train on torch's device of tensors without data."""
    monkeypatch.setattr(base, "autocast", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(impl, "backward", torch.Tensor.backward)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *_: None)


@pytest.mark.usefixtures("_meta")
@each_algorithm
def test_updates_neither_meet_the_host_nor_wait_for_the_device(algo_class: Any) -> None:
    algo = make(algo_class, nvec=NVEC)
    algo.build_with_dataset(random_buffer())  # fits scalers
    algo._device = "meta"
    algo.create_impl((OBSERVATION_SIZE,), 0)
    buffer = random_buffer().to("meta")
    algo.sample_and_update(buffer)  # creates what is created once
    with OneDevice():  # type: ignore[no-untyped-call]
        algo.sample_and_update(buffer)


@pytest.mark.usefixtures("_meta")
def test_meeting_the_host_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = make(FactoredIQL, nvec=NVEC)
    algo._device = "meta"
    algo.create_impl((OBSERVATION_SIZE,), 0)
    buffer = random_buffer().to("meta")
    algo.sample_and_update(buffer)
    original = algo.impl.bootstrap
    monkeypatch.setattr(algo.impl, "bootstrap", lambda b, v: original(b, v) + torch.zeros(()))
    strict = OneDevice()  # type: ignore[no-untyped-call]
    with strict, pytest.raises(AssertionError, match="on cpu"):
        algo.sample_and_update(buffer)


class FailedGraph:
    """torch's context of a recording that fails: the side stream stays the current one."""

    def __init__(self, graph: object, stream: object) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        STREAMS.append(self._stream)

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


STREAMS: list[object] = []


class Generator:
    """Counts the numbers that it drew, and may replace its state."""

    drawn = 0

    def clone_state(self) -> int:
        return self.drawn

    def graphsafe_set_state(self, state: int) -> None:
        self.drawn = state


GENERATOR = Generator()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> graphs.CudaRecorder:
    """A recorder whose recordings fail, on a device that is chosen before anything is made."""
    order: list[str] = []

    @contextlib.contextmanager
    def stream(chosen: object) -> Any:
        before = STREAMS[-1]
        STREAMS.append(chosen)
        try:
            yield
        finally:
            STREAMS.append(before)

    @contextlib.contextmanager
    def device(_chosen: object) -> Any:
        order.append("device")
        yield

    def graph() -> object:
        assert order == ["device"]
        return object()

    STREAMS[:] = ["default"]
    for name, value in {
        "Stream": lambda _device: "side",
        "stream": stream,
        "device": device,
        "CUDAGraph": graph,
        "graph": FailedGraph,
        "current_device": lambda: 1,
        "default_generators": (None, GENERATOR),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return graphs.CudaRecorder("cuda:1")


def test_a_failed_recording_leaves_the_stream_as_it_was(failing: graphs.CudaRecorder) -> None:
    with pytest.raises(RuntimeError, match="during capture"):
        failing.record(lambda: None)
    assert STREAMS[-1] == "default"


def test_a_failed_recording_leaves_random_numbers_as_they_were(
    failing: graphs.CudaRecorder,
) -> None:
    def step() -> None:
        GENERATOR.drawn += 3

    before = GENERATOR.drawn
    with pytest.raises(RuntimeError, match="during capture"):
        failing.record(step)
    assert GENERATOR.drawn == before
    assert gc.isenabled()


def test_nothing_is_collected_during_a_recording_but_before(failing: graphs.CudaRecorder) -> None:
    """An older CUDA graph that is freed then ends the recording."""
    left = [Generator()]
    left.append(left)  # type: ignore[arg-type]
    old = weakref.ref(left[0])
    del left

    def step() -> None:
        assert not gc.isenabled()
        assert old() is None

    with pytest.raises(RuntimeError, match="during capture") as caught:
        failing.record(step)
    assert not isinstance(caught.value.__context__, AssertionError)


@pytest.mark.parametrize("compile_graph", [True, "auto"])
def test_no_memory_while_recording_is_no_unrecordable_step(
    failing: graphs.CudaRecorder, compile_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    graphed = graphs.GraphedStep(step, [], "cuda:1", compile_graph)
    with pytest.raises(torch.OutOfMemoryError):
        graphed._record()


@taped
def test_nothing_is_kept_of_a_recording_after_fit() -> None:
    algo = make(FactoredIQL)
    algo.fit(random_buffer(), n_steps=6, **QUIET)
    assert TapeRecorder.made == 1
    assert algo._recorded is None


def test_runs_with_and_without_recording_are_the_same_runs(tmp_path: Path) -> None:
    settings = train_settings({"dataset": "any", "n_steps": 5}, "test")
    old = dataclasses.replace(settings, fields={**settings.fields, "compile_graph": True})
    assert old != settings
    (tmp_path / training.CONFIG).write_text(format_settings(old))
    (tmp_path / training.RESULT).write_text('{"steps": 5}')
    assert training.run_training(tmp_path, settings) == {"steps": 5}
