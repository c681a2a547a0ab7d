"""Fixed queries and features of the whole dataset computed once."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINAWAC, SPINBC, SPINBCQ, SPINIQL
from spin_d3rlpy.asm import ActionStructureModel
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.files.untrusted import available_memory
from spin_d3rlpy.policies import SlotPolicy, feature_cache
from spin_d3rlpy.policies.feature_cache import (
    CachedFeatures,
    NotWorthwhileError,
    compute_features,
)
from spin_d3rlpy.policies.features import QueryFeatures
from spin_d3rlpy.training.budget import Budget
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    flat_parameters,
    new_algorithm,
    random_buffer,
    tiny_fields,
)

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NO_DROPOUT = dataclasses.replace(TINY, dropout=0.0, attention_dropout=0.0)


def make(algo_class: Any = SPINIQL, **fields: Any) -> Any:
    torch.manual_seed(1)
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, NO_DROPOUT)
    torch.manual_seed(2)
    return new_algorithm(
        algo_class, **{"batch_size": 19, **tiny_fields(algo_class), "asm": asm, **fields}
    )


def policy_of(algo: Any) -> SlotPolicy:
    policy = algo.impl.policy
    assert isinstance(policy, SlotPolicy)
    return policy


def features_of(algo: Any) -> QueryFeatures:
    features = policy_of(algo).features
    assert isinstance(features, QueryFeatures)
    return features


def fit(algo: Any, n_steps: int = 8) -> list[tuple[int, dict[str, float]]]:
    torch.manual_seed(3)
    return algo.fit(random_buffer(), n_steps=n_steps, **QUIET)  # type: ignore[no-any-return]


@pytest.mark.parametrize("algo_class", [SPINIQL, SPINAWAC, SPINBCQ, SPINBC])
def test_training_on_cached_features_equals_training_on_observations(algo_class: Any) -> None:
    """Up to the features' rounding to bfloat16: eight bits, so 0.4 % of a feature."""
    fields = {"train_queries": False, "query_init": "mask"}
    plain, cached = make(algo_class, **fields), make(algo_class, cache_features=True, **fields)
    plain_metrics, cached_metrics = fit(plain)[-1][1], fit(cached)[-1][1]
    for name, value in plain_metrics.items():
        if "loss" in name:
            assert cached_metrics[name] == pytest.approx(value, rel=5e-3, abs=1e-4), name
    observations = random_buffer().observations[:50]
    torch.testing.assert_close(
        policy_of(plain)(observations), policy_of(cached)(observations), rtol=0.02, atol=0.02
    )


def test_features_are_those_of_the_network_in_evaluation_mode() -> None:
    fields: Any = tiny_fields(SPINIQL)  # with dropout
    algo = new_algorithm(SPINIQL, **fields)
    algo.build_with_dataset(random_buffer())
    network = features_of(algo).train()
    observations = random_buffer().observations
    features = compute_features(network, observations, lambda x: 2 * x, show_progress=False)
    assert features.shape == (len(observations), len(NVEC), TINY.width)
    assert network.training
    with autocast("cpu", "float32"):
        expected = network.eval()(2 * observations).bfloat16()
    assert torch.equal(features, expected)


def test_batches_carry_the_features_of_their_rows() -> None:
    buffer = random_buffer()
    cache = torch.randn(len(buffer.observations), 3, 4)
    batch: Any = CachedFeatures(buffer, cache).sample_transition_batch(64)
    for features, observations in (
        (batch.features, batch.observations),
        (batch.next_features, batch.next_observations),
    ):
        rows = (observations[:, None] == buffer.observations).all(-1).int().argmax(1)
        assert torch.equal(features, cache[rows])


def test_fixed_queries_stay_and_heads_train() -> None:
    algo = make(train_queries=False)
    algo.build_with_dataset(random_buffer())
    before = flat_parameters(policy_of(algo))
    fit(algo)
    after = flat_parameters(policy_of(algo))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"heads.weight1", "heads.bias1", "heads.weight2", "heads.bias2"}


def test_caching_with_queries_that_always_change_is_refused() -> None:
    with pytest.raises(ValueError, match="train_queries=False"):
        new_algorithm(SPINIQL, cache_features=True)


def test_a_number_of_steps_for_queries_is_refused() -> None:
    with pytest.raises(ValueError, match="train_queries to be true or false, got 5"):
        new_algorithm(SPINIQL, train_queries=5)


def test_what_does_not_fit_in_memory_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "available_memory", lambda: 0)
    algo = make(train_queries=False, cache_features=True)
    fit(algo)
    network, observations = features_of(algo), random_buffer().observations
    features = compute_features(network, observations, show_progress=False)
    with autocast("cpu", "float32"):
        assert torch.equal(features, network.eval()(observations).bfloat16())


def test_no_room_anywhere_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "available_memory", lambda: 0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match=r"0\.0 GiB are needed.*No space left.*TMPDIR"):
        fit(make(train_queries=False, cache_features=True))


def test_free_memory_is_read_from_the_system() -> None:
    assert 10**8 < available_memory() < 10**14


# -- within a budget of seconds ----------------------------------------------------------------


class SlowNetwork:
    """Makes features take time by a clock, some seconds a row, more from the third call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_row: float, later: float = 0.0) -> None:
        self.now, self.rows = 0.0, 0
        forward, calls = QueryFeatures.forward, 0

        def slow(network: QueryFeatures, observations: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            self.rows += len(observations)
            self.now += len(observations) * (per_row if calls < 3 or not later else later)
            return forward(network, observations)

        monkeypatch.setattr(QueryFeatures, "forward", slow)

    def __call__(self) -> float:
        return self.now


def build(**fields: Any) -> Any:
    algo = make(train_queries=False, cache_features=True, **fields)
    algo.build_with_dataset(random_buffer())
    return algo


def test_features_that_would_take_too_long_are_given_up_after_a_few_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, observations = features_of(build()), torch.zeros(20_000, OBSERVATION_SIZE)
    clock = SlowNetwork(monkeypatch, per_row=1e-3)  # 20 s for all of them
    budget = Budget(39.0, clock)
    with pytest.raises(NotWorthwhileError, match=r"take 20\.0 s, expected at most 19\.5 s"):
        compute_features(network, observations, show_progress=False, budget=budget)
    assert clock.rows == 2 * feature_cache.TRIAL_ROWS
    budget = Budget(41.0, clock)
    features = compute_features(network, observations, show_progress=False, budget=budget)
    assert torch.equal(features, compute_features(network, observations, show_progress=False))


def test_features_that_become_slower_are_given_up_at_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, observations = features_of(build()), torch.zeros(20_000, OBSERVATION_SIZE)
    clock = SlowNetwork(monkeypatch, per_row=1e-3, later=4e-3)
    budget = Budget(60.0, clock)
    with pytest.raises(NotWorthwhileError):
        compute_features(network, observations, show_progress=False, budget=budget)
    assert clock.now < 30.0


@pytest.mark.parametrize(("seconds", "cached"), [(0.5, False), (50.0, True)])
def test_a_timed_fit_caches_where_that_pays_and_keeps_its_seconds(
    seconds: float, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo = build()
    clock = SlowNetwork(monkeypatch, per_row=0.002)  # 0.47 s for the dataset's 234 rows
    budget = Budget(seconds, clock, n_epochs=1)
    if cached:  # steps on cached features take no time by this clock
        budget.spent = seconds - 1.0
        monkeypatch.setattr(CachedFeatures, "sample_transition_batch", _takes_a_second(clock))
    algo.fit(random_buffer(), seconds=budget, **QUIET)
    assert algo.caches_features is cached
    assert budget.spent <= 1.1 * seconds + 1.0


def _takes_a_second(clock: SlowNetwork) -> Any:
    sample = CachedFeatures.sample_transition_batch

    def slow(source: CachedFeatures, batch_size: int) -> Any:
        clock.now += 1.0
        return sample(source, batch_size)

    return slow


@pytest.mark.parametrize("cached", [True, False])
def test_a_resumed_run_caches_if_the_interrupted_one_did(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: Any = {**QUIET, "checkpoint_dir": tmp_path, "checkpoint_interval": 1, "resume": True}

    class StopError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StopError

    def trained(per_row: float, callback: Any) -> bool | None:
        algo = build()
        with monkeypatch.context() as patches:
            clock = SlowNetwork(patches, per_row)
            patches.setattr(CachedFeatures, "sample_transition_batch", _takes_a_second(clock))
            budget = Budget(6.0, clock, n_epochs=2)
            algo.fit(random_buffer(), seconds=budget, callback=callback, **kept)
        found: bool | None = algo.caches_features
        return found

    # By the speed of the machine that resumes, the opposite would be decided.
    first, second = (0.001, 0.1) if cached else (0.015, 0.005)
    with pytest.raises(StopError):
        trained(first, lambda _algo, _epoch, step: stop() if step == 2 else None)
    assert list(tmp_path.glob("training_*.ckpt"))
    assert trained(second, None) is cached


@pytest.mark.slow
def test_a_tuned_fit_of_six_seconds_takes_six_seconds() -> None:
    """Caching its features takes twice as long on a CPU."""
    rng, n_episodes, length = np.random.default_rng(0), 200, 1000
    episodes = (
        EpisodeArrays(
            name=f"episode {i}",
            observations=rng.normal(size=(length + 1, 17)).astype(np.float32),
            actions=rng.integers(3, size=(length, 6)),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=False,
        )
        for i in range(n_episodes)
    )
    buffer = DeviceReplayBuffer(stack_episodes(episodes, [length] * n_episodes, [3] * 6))
    algo = new_algorithm(SPINIQL, recipe="tuned", architecture="transformer")
    began = time.monotonic()
    algo.fit(buffer, seconds=6, **QUIET)
    assert time.monotonic() - began == pytest.approx(6.0, abs=1.0)
