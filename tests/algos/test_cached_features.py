"""Fixed queries and features of the whole dataset computed once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINAWAC, SPINBC, SPINBCQ, SPINIQL
from spin_d3rlpy.asm import ActionStructureModel
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.policies import SlotPolicy, feature_cache
from spin_d3rlpy.policies.feature_cache import CachedFeatures, compute_features
from spin_d3rlpy.policies.features import QueryFeatures
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    flat_parameters,
    random_buffer,
    tiny_fields,
)

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NO_DROPOUT = dataclasses.replace(TINY, dropout=0.0, attention_dropout=0.0)


def make(algo_class: Any = SPINIQL, **fields: Any) -> Any:
    torch.manual_seed(1)
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, NO_DROPOUT)
    torch.manual_seed(2)
    return algo_class(**{"batch_size": 19, **tiny_fields(algo_class), "asm": asm, **fields})


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
    algo = SPINIQL(**fields)
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
        SPINIQL(cache_features=True)


def test_a_number_of_steps_for_queries_is_refused() -> None:
    with pytest.raises(ValueError, match="train_queries True or False, got 5"):
        SPINIQL(train_queries=5)  # type: ignore[arg-type]


def test_fields_of_the_encoder_are_taken_beside_the_others() -> None:
    algo = SPINIQL(train_queries=False, query_init="mask", transformer=TINY, batch_size=7)
    factory: Any = algo.config.actor_encoder_factory
    assert (factory.train_queries, factory.query_init) == (False, "mask")
    assert factory.transformer == TINY
    assert algo.config.batch_size == 7


def test_what_does_not_fit_in_memory_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_available_host_bytes", lambda: 0)
    algo = make(train_queries=False, cache_features=True)
    fit(algo)
    network, observations = features_of(algo), random_buffer().observations
    features = compute_features(network, observations, show_progress=False)
    with autocast("cpu", "float32"):
        assert torch.equal(features, network.eval()(observations).bfloat16())


def test_no_room_anywhere_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_available_host_bytes", lambda: 0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match=r"0\.0 GiB are needed.*No space left.*TMPDIR"):
        fit(make(train_queries=False, cache_features=True))


def test_free_memory_is_read_from_the_system() -> None:
    assert 10**8 < feature_cache._available_host_bytes() < 10**14
