"""SPIN-Distill and RePreM: results of their first stages, and resuming after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import FileAdapterFactory, NoopAdapterFactory

import spin_d3rlpy
from spin_d3rlpy import (
    IQL,
    SAINT,
    SPINIDQL,
    SPINIQL,
    IQLConfig,
    RePreMIQL,
    SPINDistill,
    SPINDistillIQL,
)
from spin_d3rlpy.asm import ActionStructureModel
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.policies import SPIN, SlotPolicy
from spin_d3rlpy.policies.features import QueryFeatures
from spin_d3rlpy.policies.reprem import pretrain_reprem
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.work import WorkClock
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.algos.runs import CrashError, assert_equal, fit, make, outcome, seed

STATES = np.random.default_rng(0).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)
OTHERS = [
    getattr(spin_d3rlpy, policy + objective)
    for policy in ("SPINDistill", "RePreM")
    for objective in ("AWAC", "BCQ")
]


@pytest.mark.parametrize("algo_class", OTHERS)
def test_every_objective_trains_saves_and_loads(algo_class: Any, tmp_path: Path) -> None:
    algo = make(algo_class)
    fit(algo, None, n_steps=3)
    assert algo.is_pretrained
    algo.save(str(tmp_path / "policy.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "policy.d3"))
    assert type(loaded) is algo_class
    assert loaded.is_pretrained
    assert loaded.predict(STATES).tolist() == algo.predict(STATES).tolist()


def test_a_config_creates_the_named_algorithm_of_its_policy() -> None:
    policy = SPIN(TINY, train_queries=False)
    config = IQLConfig(batch_size=7, policy=policy)
    algo = config.create()
    assert type(algo) is SPINIQL
    assert (algo.config.policy, algo.batch_size) == (policy, 7)
    assert type(IQLConfig(policy=SPINDistill(TINY)).create()) is SPINDistillIQL
    # The objective alone takes any policy.
    assert IQL(config=IQLConfig(policy=SAINT(TINY))).config.policy == SAINT(TINY)
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        SPIN(widht=3)  # type: ignore[call-arg]


def parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("algo_class", [SPINDistillIQL, RePreMIQL])
@pytest.mark.parametrize("cached", [True, False])
def test_features_do_not_change_in_the_second_stage_and_heads_do(
    algo_class: Any, cached: bool
) -> None:
    algo = make(algo_class, cache_features=cached)
    fit(algo, None, n_steps=1)
    policy = algo.impl.policy
    features, heads = parameters(policy.features), parameters(policy.heads)
    fit(algo, None, n_steps=3)
    assert_equal(features, parameters(policy.features))
    assert all(not torch.equal(v, heads[k]) for k, v in parameters(policy.heads).items())
    names = {name for name, _ in policy.trainable_modules()}
    assert names == {"heads"}


@pytest.mark.slow
@pytest.mark.parametrize("query_init", ["mask", "random"])
def test_the_student_is_taught_the_asms_features(query_init: str) -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY)
    fields = {**tiny_fields(SPINDistillIQL), "query_init": query_init, "hidden_units": [64]}
    fields["distillation"].n_updates = 300
    fields["distillation"].learning_rate = 3e-3
    algo = new_algorithm(SPINDistillIQL, asm=asm, **fields)
    data = DeviceReplayBuffer.from_replay_buffer(random_replay_buffer(100, 40), NVEC)
    records = algo.distill(data, show_progress=False, logger_adapter=NoopAdapterFactory())
    assert records[-1]["unexplained"] < 0.3
    assert algo.is_pretrained
    if query_init == "mask":
        teacher = QueryFeatures(OBSERVATION_SIZE, 3, TINY, True, query_init="mask").eval()
        teacher.load_asm(asm)
        states = random_buffer(seed=1).observations
        with torch.no_grad():
            target = teacher(states)
            assert algo.impl is not None
            assert isinstance(algo.impl.policy, SlotPolicy)
            error = (algo.impl.policy.features(states) - target).square().mean()
            variance = (target - target.mean(0)).square().mean()
        assert error / variance < 0.3


def test_distilling_needs_a_teacher() -> None:
    with pytest.raises(RuntimeError, match="no teacher"):
        make(SPINDistillIQL).distill(random_buffer())


def test_held_out_error_is_logged(tmp_path: Path) -> None:
    algo = make(SPINDistillIQL)
    fit(algo, None, n_steps=2, logger_adapter=FileAdapterFactory(str(tmp_path)))
    [folder] = tmp_path.glob("SPINDistillIQL_student_*")
    steps = [line.split(",")[1] for line in (folder / "student_mse.csv").read_text().split()]
    assert steps == ["3", "5"]
    [folder] = tmp_path.glob("SPINDistillIQL_pretraining_*")
    assert (folder / "asm_loss.csv").exists()


def test_reprem_keeps_the_encoder_that_it_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def recording(model: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(model)
        return pretrain_reprem(model, *args, **kwargs)

    monkeypatch.setattr("spin_d3rlpy.policies.stages.pretrain_reprem", recording)
    algo = make(RePreMIQL)
    fit(algo, None, n_steps=2)
    encoder = algo.impl.policy.features.state_encoder
    assert_equal(dict(encoder.state_dict()), dict(trained[0].state_encoder.state_dict()))


@pytest.mark.parametrize(
    ("algo_class", "sampler"),
    [
        (SPINDistillIQL, "sample_observations_and_actions"),
        (RePreMIQL, "sample_index"),
    ],
)
def test_a_run_that_crashes_in_any_stage_ends_like_an_uninterrupted_one(
    algo_class: Any, sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(1)
    whole = make(algo_class)
    expected = outcome(whole, fit(whole, None))
    original = getattr(DeviceReplayBuffer, sampler)
    n_calls = 5 if algo_class is RePreMIQL else 5 + 1 + 5 + 2  # the student is measured twice
    for crash in range(1, n_calls + 1, 3):
        folder = tmp_path / str(crash)
        calls = 0

        def sample(self: Any, *args: Any, crash: int = crash) -> Any:
            nonlocal calls
            calls += 1
            if calls == crash:
                raise CrashError
            return original(self, *args)

        monkeypatch.setattr(DeviceReplayBuffer, sampler, sample)
        seed(1)
        with pytest.raises(CrashError):
            fit(make(algo_class), folder, checkpoint_interval=1)
        monkeypatch.setattr(DeviceReplayBuffer, sampler, original)
        seed(99 if crash > 1 else 1)  # before the first step there is nothing to resume
        again = make(algo_class)
        assert_equal(expected, outcome(again, fit(again, folder, checkpoint_interval=1)))


def test_a_policy_of_another_kind_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"SPINDistillIQL needs policy=SPINDistill\(...\), got SPIN"
    ):
        SPINDistillIQL(policy=SPIN())


@pytest.mark.parametrize("algo_class", [SPINIQL, SPINIDQL, RePreMIQL])
def test_a_first_stage_is_trained_for_a_given_time(algo_class: Any) -> None:
    fields = {**tiny_fields(algo_class), "compile_graph": False}
    updates = []
    for seconds in (0.1, 0.4):
        algo = new_algorithm(algo_class, **fields)
        rows = algo.pretrain(
            random_buffer(),
            seconds=seconds,
            clock="ops",
            logger_adapter=NoopAdapterFactory(),
            show_progress=False,
        )
        assert algo.is_pretrained
        updates.append(rows[-1]["step"])
    assert updates[1] > 2 * updates[0] > 0


def test_a_students_time_is_all_its_own() -> None:
    algo = new_algorithm(SPINDistillIQL, **tiny_fields(SPINDistillIQL))
    options: Any = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    budget = Budget(0.3, WorkClock())
    algo.pretrain(random_buffer(), seconds=budget, **options)
    assert 0.0 < budget.spent < 0.25  # the share of a run's seconds that is the stage's
    assert algo.distill(random_buffer(), seconds=0.1, clock="ops", **options)
