"""What only a GPU can show. `test_recorded_updates.py` holds what can be shown without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.optimizers import AdamFactory, RMSpropFactory, SGDFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import (
    SPINIDQL,
    SPINIQL,
    AutoregressiveBCQ,
    DecQN,
    FactoredIDQL,
    FactoredIQL,
)
from spin_d3rlpy.asm import MLPConfig
from spin_d3rlpy.training import graphs
from tests.algos.pictures import SMALL, pictures
from tests.algos.problems import (
    ALGORITHMS,
    OBSERVATION_SIZE,
    has_field,
    new_algorithm,
    optimizers,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.algos.test_overfitting_critics import fitted
from tests.asm.test_overfitting_models import error, rates, trained

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
each_algorithm = pytest.mark.parametrize("algo_class", ALGORITHMS)
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
OBSERVATIONS = np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)
STEPS = 12


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Every recording that is made; and no test leaves a synchronization mode behind."""
    made: list[object] = []
    record = graphs.CudaRecorder.record

    def recorded(self: Any, step: Any) -> Any:
        made.append(step)
        return record(self, step)

    monkeypatch.setattr(graphs.CudaRecorder, "record", recorded)
    yield made
    torch.cuda.set_sync_debug_mode("default")


def make(algo_class: Any, compile_graph: bool = False, **fields: Any) -> Any:
    d3rlpy.seed(1)
    fields = {
        "batch_size": 19,
        **tiny_fields(algo_class),
        # With the usual epsilon, gradients that are zero but for rounding become whole steps.
        **optimizers(algo_class, AdamFactory(eps=1e-3)),
        **fields,
    }
    if has_field(algo_class, "pretraining"):
        fields["pretraining"] = dataclasses.replace(fields["pretraining"], max_updates=8)
    return new_algorithm(algo_class, device="cuda:0", compile_graph=compile_graph, **fields)


def fit(algo: Any, n_steps: int = STEPS, dataset: Any = None, **settings: Any) -> Any:
    dataset = random_buffer() if dataset is None else dataset
    return algo.fit(dataset, n_steps=n_steps, **{**QUIET, **settings})


def parts(algo: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def assert_close(one: Any, other: Any, *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    found, expected = parts(one), parts(other)
    for key, value in expected.items():
        # The keys' half of this bias has no gradient but rounding errors, which Adam makes steps of
        # in pre-training.
        if not key.endswith("key_value.bias"):
            torch.testing.assert_close(found[key], value, rtol=rtol, atol=atol, msg=key)


@each_algorithm
@pytest.mark.parametrize("compile_graph", [False, True])
def test_trains_on_a_gpu_and_acts_the_same_on_a_cpu(
    algo_class: Any, compile_graph: bool, tmp_path: Path
) -> None:
    algo = make(algo_class, compile_graph)
    metrics = fit(algo)[-1][1]
    assert all(np.isfinite(v) for v in metrics.values())
    assert all(p.is_cuda for p in parts(algo).values())
    algo.save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"), device="cpu:0")
    found, expected = loaded.predict(OBSERVATIONS), algo.predict(OBSERVATIONS)
    assert (found == expected).mean() > 0.9
    loaded.update(random_buffer().sample_transition_batch(19))  # optimizer states came along


@each_algorithm
def test_a_recorded_update_is_the_update(algo_class: Any, recordings: list[object]) -> None:
    algos = [make(algo_class, compile_graph=True)]
    metrics = [fit(algos[0])[-1][1]]
    has_recorded_stage = algo_class.__name__.startswith(("SPIN", "RePreM"))
    assert len(recordings) == 1 + has_recorded_stage
    algos.append(make(algo_class))
    metrics.append(fit(algos[1])[-1][1])
    assert_close(*algos)
    for key, value in metrics[1].items():
        if not key.startswith(("time", "seconds")):
            assert metrics[0][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


@each_algorithm
@pytest.mark.parametrize("compile_graph", [False, True])
def test_no_step_waits_for_the_device(algo_class: Any, compile_graph: bool) -> None:
    def watch(_algo: Any, _epoch: int, step: int) -> None:
        if step == 5:
            torch.cuda.set_sync_debug_mode("error")
        if step == STEPS:  # losses are fetched after the last one
            torch.cuda.set_sync_debug_mode("default")

    fit(make(algo_class, compile_graph), callback=watch)


def test_waiting_for_the_device_would_be_seen() -> None:
    def wait(algo: Any, _epoch: int, step: int) -> None:
        if step == 5:
            torch.cuda.set_sync_debug_mode("error")
        if step == 6:
            next(iter(parts(algo).values())).sum().item()

    with pytest.raises(RuntimeError, match="synchroniz"):
        fit(make(FactoredIQL), callback=wait)


@each_algorithm
def test_bfloat16_is_recorded_too(algo_class: Any) -> None:
    algos = []
    for compile_graph in (True, False):
        algos.append(make(algo_class, compile_graph, precision="bfloat16"))
        fit(algos[-1])
    # Sums in another order may round to another of bfloat16's few numbers.
    assert_close(algos[0], algos[1], rtol=2e-2, atol=2e-3)


def set_rate(algo: Any, _path: Path) -> None:
    algo.impl.policy_optim.param_groups[0]["lr"] = 1e-2


def set_weight_decay(algo: Any, _path: Path) -> None:
    algo.impl.policy_optim.param_groups[0]["weight_decay"] = 0.1


def reset(algo: Any, _path: Path) -> None:
    algo.reset_optimizer_states()


def load(algo: Any, path: Path) -> None:
    algo.load_model(str(path / f"{algo.config.compile_graph}.pt"))


def set_batch_size(algo: Any, _path: Path) -> None:
    algo.config.batch_size = 23


@pytest.mark.parametrize(
    ("change", "expected"),
    [(set_rate, 1), (set_weight_decay, 2), (reset, 2), (load, 2), (set_batch_size, 2)],
)
def test_what_changes_between_steps_counts(
    change: Any, expected: int, tmp_path: Path, recordings: list[object]
) -> None:
    algos = []
    for compile_graph in (True, False):
        algo = make(FactoredIQL, compile_graph)
        buffer = random_buffer().to("cuda:0")
        algo.build_with_dataset(buffer)
        algo.save_model(str(tmp_path / f"{compile_graph}.pt"))
        for step in range(14):
            if step == 7:
                change(algo, tmp_path)
            algo.sample_and_update(buffer)
        algos.append(algo)
    assert len(recordings) == expected
    assert_close(*algos)


@pytest.mark.parametrize("factory", [AdamFactory, SGDFactory, RMSpropFactory])
@pytest.mark.parametrize("scheduled", [False, True])
def test_every_optimizer_can_be_recorded(
    factory: Any, scheduled: bool, recordings: list[object]
) -> None:
    algos = []
    for compile_graph in (True, False):
        fields: dict[str, Any] = {"clip_grad_norm": 0.5}
        if scheduled:
            fields["lr_scheduler_factory"] = CosineAnnealingLRFactory(T_max=9)
        algos.append(make(FactoredIQL, compile_graph, **optimizers(FactoredIQL, factory(**fields))))
        fit(algos[-1])
    assert len(recordings) == (factory is AdamFactory or not scheduled)
    assert_close(algos[0], algos[1], rtol=1e-3, atol=1e-4)


def test_stock_batches_are_copied_to_where_the_recording_reads(recordings: list[object]) -> None:
    algos = []
    for compile_graph in (True, False):
        algo = make(
            AutoregressiveBCQ, compile_graph, observation_scaler=StandardObservationScaler()
        )
        algo.build_with_dataset(random_buffer())
        d3rlpy.seed(2)
        stock = random_replay_buffer()
        for _ in range(8):
            algo.update(stock.sample_transition_batch(19))
        algos.append(algo)
    assert len(recordings) == 1
    assert_close(*algos)


class CrashError(Exception):
    """Stands for whatever ends a run."""


def test_a_run_goes_on_with_its_random_numbers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_interval": 3}

    def crash(_algo: Any, _epoch: int, step: int) -> None:
        if step == 8:
            raise CrashError

    whole = make(SPINIQL, compile_graph=True)
    fit(whole)
    with pytest.raises(CrashError):
        fit(make(SPINIQL, compile_graph=True), callback=crash, **settings)
    again = make(SPINIQL, compile_graph=True)
    d3rlpy.seed(99)
    fit(again, resume=True, **settings)
    assert_close(again, whole)


def test_what_cannot_be_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = make(FactoredIQL, compile_graph=True)
    algo.build_with_dataset(random_buffer())
    original = algo.impl.compute_update

    def reading(batch: Any, grad_step: int) -> Any:
        metrics = original(batch, grad_step)
        assert np.isfinite(metrics["critic_loss"].item())
        return metrics

    monkeypatch.setattr(algo.impl, "compute_update", reading)
    with pytest.raises(RuntimeError, match=r"cannot be recorded.*compile_graph=False"):
        fit(algo)
    assert torch.rand(2, device="cuda:0").isfinite().all()  # random numbers did not end with it
    fit(make(FactoredIQL, compile_graph=True))


@pytest.mark.parametrize("algo_class", [FactoredIQL, SPINIQL, SPINIDQL, AutoregressiveBCQ, DecQN])
@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("kind", ["vector", "image", "mixed"])
def test_images_and_histories_are_recorded_and_act_the_same_on_a_cpu(
    kind: str, history: int, algo_class: Any, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"image_encoder_factory": SMALL} if kind != "vector" else {}
    if history > 1:
        fields |= {"history": history, "history_actions": True}
    dataset: Any = random_buffer() if kind == "vector" else pictures(kind)
    algos = []
    for compile_graph in (True, False):
        algos.append(make(algo_class, compile_graph, **fields))
        fit(algos[-1], dataset=dataset)
    assert_close(algos[0], algos[1], rtol=1e-3, atol=1e-4)  # convolutions' sums have no fixed order
    assert all(p.is_cuda for p in parts(algos[0]).values())
    states = dataset.with_history(history, actions=True) if history > 1 else dataset
    rows = states.observations_at(torch.arange(11)).numpy()
    algos[0].save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"), device="cpu:0")
    assert (loaded.predict(rows) == algos[0].predict(rows)).mean() > 0.9


@pytest.mark.parametrize("algo_class", [SPINIDQL, FactoredIDQL])
def test_distributions_of_returns_are_recorded_and_act_the_same_on_a_cpu(
    algo_class: Any, tmp_path: Path, recordings: list[object]
) -> None:
    fields = {"joint_critic": True, "expectile": 0.5, "return_bins": 21}
    algos = []
    for compile_graph in (True, False):
        algos.append(make(algo_class, compile_graph, **fields))
        fit(algos[-1])
    assert algos[0].config.n_bins == 21
    assert len(recordings) == (2 if algo_class is SPINIDQL else 1)
    assert_close(*algos)
    algos[0].save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"), device="cpu:0")
    assert (loaded.predict(OBSERVATIONS) == algos[0].predict(OBSERVATIONS)).mean() > 0.9


@pytest.mark.parametrize("compile_graph", [False, True])
def test_critics_that_overfit_drop_out_from_then_on(
    compile_graph: bool, recordings: list[object]
) -> None:
    algo = fitted(3.0, device="cuda:0", compile_graph=compile_graph)
    assert algo.impl is not None
    assert algo.impl.dropout_rate == 0.5
    # The model's, and the critics' before and after the rise.
    assert len(recordings) == (3 if compile_graph else 0)


def test_structure_models_that_overfit_drop_out_from_then_on() -> None:
    models = [trained(MLPConfig(width=64), rate, True, "cuda:0") for rate in (0.0, 0.5)]
    assert [rates(asm) for asm in models] == [{0.0}, {0.5}]
    without, with_dropout = map(error, models)
    assert np.log(4) < with_dropout < without
