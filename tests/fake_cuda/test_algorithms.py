"""Every algorithm on a GPU that is not there: no step waits, copies or mixes devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import (
    SPINIQL,
    AutoregressiveBCQ,
    FactoredIQL,
    MultiDiscreteActionMatchEvaluator,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    RePreMIQL,
    SPINDistillIQL,
    load_policy,
    save_asm,
    save_policy,
)
from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, pretrain
from spin_d3rlpy.data.scalers import scaler_to_dict
from spin_d3rlpy.evaluation.metrics import LockstepEvaluator
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.training.loop import Run
from tests.algos.problems import (
    ALGORITHMS,
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    has_field,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.fake_cuda import stubs
from tests.fake_cuda.machine import GPU, FakeGPU, on_gpu

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(stubs.MISSING is not None, reason=str(stubs.MISSING)),
    pytest.mark.filterwarnings("ignore"),  # of torch's about fakes
]
each_algorithm = pytest.mark.parametrize("algo_class", ALGORITHMS)
each_precision = pytest.mark.parametrize("precision", ["float32", "bfloat16", "tf32"])
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
OBSERVATIONS = np.random.default_rng(0).normal(size=(5, OBSERVATION_SIZE)).astype(np.float32)
ACTIONS = np.zeros((5, len(NVEC)), int)
STEPS = 7


def make(algo_class: Any, **fields: Any) -> Any:
    fields = {"batch_size": 19, **tiny_fields(algo_class), **fields}
    if has_field(algo_class, "pretraining"):
        precision = fields.get("precision", "float32")
        fields["pretraining"] = dataclasses.replace(
            fields["pretraining"], max_updates=6, precision=precision
        )
    return new_algorithm(algo_class, device=GPU, **fields)


def fit(algo: Any, n_steps: int = STEPS, **settings: Any) -> Any:
    algo.fit(random_buffer(), n_steps=n_steps, **{**QUIET, **settings})
    return algo


def tensors(algo: Any) -> list[torch.Tensor]:
    networks = algo.impl.modules.get_torch_modules().values()
    return [value for network in networks for value in network.state_dict().values()]


@each_precision
@each_algorithm
def test_an_update_neither_waits_nor_copies(gpu: FakeGPU, algo_class: Any, precision: str) -> None:
    algo, buffer = make(algo_class, precision=precision, compile_graph=False), random_buffer()
    buffer = buffer.to(GPU)
    algo.build_with_dataset(buffer)
    for _ in range(2):
        algo.sample_and_update(buffer)
    with gpu.watch():
        algo.sample_and_update(buffer)
    assert gpu.events == []
    assert gpu.kernels > 20
    assert all(map(on_gpu, tensors(algo)))


@pytest.mark.parametrize("compile_graph", [True, "auto"])
@each_algorithm
def test_everything_is_recorded(gpu: FakeGPU, algo_class: Any, compile_graph: Any) -> None:
    algo = fit(make(algo_class, compile_graph=compile_graph, precision="bfloat16"))
    has_recorded_stage = algo_class.__name__.startswith(("SPIN", "RePreM"))
    assert gpu.recordings == 1 + has_recorded_stage
    assert gpu.replays > 0
    assert not any(event.recording or event.kind == "mix" for event in gpu.events)
    assert algo._recorded is None  # neither dataset nor graph is kept
    assert gpu.stream == "default"


@pytest.mark.parametrize("compile_graph", [False, "auto"])
@each_algorithm
def test_all_verbs(gpu: FakeGPU, algo_class: Any, compile_graph: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_dir": tmp_path / "run", "checkpoint_interval": 3}
    evaluators = {"match": MultiDiscreteActionMatchEvaluator("slot")}
    scaler = {"observation_scaler": StandardObservationScaler(), "compile_graph": compile_graph}
    fit(make(algo_class, **scaler), evaluators=evaluators, n_steps_per_epoch=4, **settings)
    algo = make(algo_class, **scaler)
    fit(algo, STEPS + 3, resume=True, n_steps_per_epoch=4, evaluators=evaluators, **settings)
    assert algo.predict(OBSERVATIONS).shape == algo.sample_action(OBSERVATIONS).shape == (5, 3)
    if not algo_class.__name__.endswith("BC"):
        assert algo.predict_value(OBSERVATIONS, ACTIONS).shape == (5,)
    algo.update(random_replay_buffer().sample_transition_batch(19))
    save_policy(algo, tmp_path / "policy.safetensors")
    assert all(map(on_gpu, tensors(load_policy(tmp_path / "policy.safetensors", GPU))))
    algo.save(str(tmp_path / "algo.d3"))
    algo.save_policy(str(tmp_path / "policy.pt"))
    exported = torch.jit.load(str(tmp_path / "policy.pt"))
    assert "cuda" not in str(exported.inlined_graph)
    assert exported(torch.zeros(4, OBSERVATION_SIZE)).shape == (4, 3)
    assert not any(event.kind == "mix" for event in gpu.events)


@pytest.mark.parametrize("compile_graph", [False, "auto"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_cached_features(gpu: FakeGPU, compile_graph: Any, precision: str) -> None:
    fields = {"cache_features": True, "train_queries": False}
    fit(make(SPINIQL, **fields, compile_graph=compile_graph, precision=precision), 12)
    assert gpu.recordings == (2 if compile_graph else 0)
    assert not any(event.recording or event.kind == "mix" for event in gpu.events)


@pytest.mark.parametrize("algo_class", [SPINDistillIQL, RePreMIQL])
def test_cached_features_of_other_policies(gpu: FakeGPU, algo_class: Any) -> None:
    fit(make(algo_class, cache_features=True), 9)
    assert not any(event.recording or event.kind == "mix" for event in gpu.events)


def test_features_in_host_memory_are_not_recorded(
    gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 1))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    fit(make(SPINIQL, cache_features=True, train_queries=False))
    assert gpu.recordings == 1  # pre-training
    assert "cached features are in host memory" in "".join(capfd.readouterr())


@pytest.mark.parametrize("objective", ["masked", "variational", "contrastive"])
@pytest.mark.parametrize("masking", ["bernoulli", "any_order"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_pretraining_with_validation(
    gpu: FakeGPU, objective: Any, masking: Any, precision: Any
) -> None:
    if objective != "masked" and masking == "any_order":
        pytest.skip("masking is of masked modeling")
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY).to(GPU)
    train, held_out = random_buffer().split(0.3)
    config = PretrainingConfig(
        objective=objective,
        masking=masking,
        batch_size=32,
        max_updates=6,
        precision=precision,
        validation_share=0.3,
        patience=3,
    )
    run = Run(False, compile_graph="auto")
    pretrain(asm, train.to(GPU), config, run, held_out=held_out.to(GPU))
    assert gpu.recordings == 1
    assert not any(event.recording or event.kind == "mix" for event in gpu.events)


@pytest.mark.parametrize("given_as", ["path", "model on the host"])
def test_structure_models_and_their_scalers_come_to_the_gpu(
    gpu: FakeGPU, given_as: str, tmp_path: Path
) -> None:
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY).eval()
    mean, std = np.zeros(OBSERVATION_SIZE, np.float32), np.ones(OBSERVATION_SIZE, np.float32)
    asm.observation_scaler = scaler_to_dict(StandardObservationScaler(mean=mean, std=std))
    save_asm(asm, tmp_path / "asm.safetensors")
    algo = make(SPINIQL, asm=tmp_path / "asm.safetensors" if given_as == "path" else asm)
    algo.build_with_dataset(random_buffer())
    assert algo.support(OBSERVATIONS, ACTIONS).shape == (5, 3)
    algo.update(random_replay_buffer().sample_transition_batch(19))
    assert algo.predict(OBSERVATIONS).shape == (5, 3)
    fit(algo)


def test_one_scaler_may_be_of_algorithms_on_two_devices(gpu: FakeGPU) -> None:
    scaler = StandardObservationScaler()
    on_host = FactoredIQL(observation_scaler=scaler, batch_size=19)
    on_host.fit(random_buffer(), n_steps=1, **QUIET)
    fit(make(FactoredIQL, observation_scaler=scaler))


def test_a_changed_frozen_trunk_is_recorded_again(gpu: FakeGPU) -> None:
    algo, buffer = make(SPINIQL), random_buffer().to(GPU)
    algo.build_with_dataset(buffer)
    for _ in range(6):
        algo.sample_and_update(buffer)
    assert gpu.recordings == 1
    algo.policy.load_state_dict(algo.policy.state_dict())
    for _ in range(6):
        algo.sample_and_update(buffer)
    assert gpu.recordings == 2


def test_bfloat16_leaves_the_lstm_in_float32(gpu: FakeGPU) -> None:
    algo = make(AutoregressiveBCQ, precision="bfloat16")
    algo.build_with_dataset(random_buffer())
    actions = torch.zeros(6, 3, dtype=torch.long, device=GPU)
    with autocast(GPU, "bfloat16"):
        logits = algo.policy(torch.zeros(6, OBSERVATION_SIZE, device=GPU), actions)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("mode", ["greedy", "sample"])
@pytest.mark.parametrize("algo_class", [FactoredIQL, SPINIQL, AutoregressiveBCQ])
def test_off_policy_evaluation(gpu: FakeGPU, algo_class: Any, mode: Any) -> None:
    algo = make(algo_class)
    algo.build_with_dataset(random_buffer())
    config = MultiDiscreteFQEConfig(batch_size=19)
    fqe = MultiDiscreteFQE(algo, config, device=GPU, mode=mode)
    fqe.fit(random_buffer(), n_steps=6, **QUIET)
    assert gpu.recordings == 1
    assert not any(event.recording or event.kind == "mix" for event in gpu.events)


def test_evaluation_forks_the_policys_gpu_only(
    gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium

    forked: list[Any] = []
    fork = torch.random.fork_rng

    def noting(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
        forked.append(devices)
        return fork(devices, *args, **kwargs)

    monkeypatch.setattr(torch.random, "fork_rng", noting)
    env = gymnasium.make("spin/maze-v0", actuators=3)
    algo = FactoredIQL(device=GPU)
    algo.build_with_env(env)
    LockstepEvaluator(env, n_trials=1).returns(algo)
    assert forked == [[torch.device(GPU)]]


def test_d3rlpys_files_are_read_on_the_host(gpu: FakeGPU, tmp_path: Path) -> None:
    fit(make(FactoredIQL)).save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"), device="cpu:0")
    assert loaded.predict(OBSERVATIONS).shape == (5, 3)
