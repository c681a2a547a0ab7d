"""SPIN on an attention-free structure model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy import load_learnable
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPIN, SPINIQL, SPINDistillIQL, load_policy, save_policy
from spin_d3rlpy.asm import ActionStructureModel, MLPConfig, PretrainingConfig, save_asm
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.policies import SlotPolicy
from spin_d3rlpy.policies.feature_cache import compute_features
from spin_d3rlpy.policies.features import QueryFeatures
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
SIZES = MLPConfig(width=13)
HEADS = {"heads.weight", "heads.bias"}


def make(**fields: Any) -> Any:
    torch.manual_seed(1)
    pretraining = PretrainingConfig(masking="any_order", batch_size=32, max_updates=5)
    given = {"architecture": "mlp", "mlp": SIZES, "head_init": "asm", "pretraining": pretraining}
    return new_algorithm(SPINIQL, **{"batch_size": 19, **tiny_fields(SPINIQL), **given, **fields})


def policy_of(algo: Any) -> SlotPolicy:
    policy = algo.impl.policy
    assert isinstance(policy, SlotPolicy)
    return policy


def moved_by_training(algo: Any) -> set[str]:
    algo.build_with_dataset(random_buffer())
    algo.pretrain(random_buffer(), **QUIET)
    before = flat_parameters(policy_of(algo))
    algo.fit(random_buffer(), n_steps=3, **QUIET)
    after = flat_parameters(policy_of(algo))
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_before_training_the_policy_is_the_fully_masked_model() -> None:
    algo = make()
    algo.pretrain(random_buffer(), **QUIET)
    asm, x = algo.asm, torch.randn(6, OBSERVATION_SIZE)
    assert asm.config == SIZES
    expected = asm(x, asm.mask_ids.expand(6, -1))
    torch.testing.assert_close(policy_of(algo).eval()(x), expected)
    actions = np.tile([m - 1 for m in NVEC], (6, 1))
    tokens = torch.from_numpy(actions)
    tokens[:, 1] = NVEC[1]
    alone = asm.slot_layout.split(asm(x, tokens)).log_softmax(-1)[:, 1, NVEC[1] - 1]
    found = algo.support(x.numpy(), np.tile([m - 1 for m in NVEC], (6, 1)))[:, 1]
    np.testing.assert_allclose(found, alone.detach().numpy(), rtol=1e-5)


def test_heads_train_and_the_trunk_only_if_asked_to() -> None:
    assert moved_by_training(make()) == HEADS
    features = {name for name in moved_by_training(make(train_trunk=True)) if "trunk" in name}
    trunk = policy_of(make_built()).features
    assert isinstance(trunk, QueryFeatures)
    assert features == {f"features.trunk.{name}" for name, _ in trunk.trunk.named_parameters()}


def make_built(**fields: Any) -> Any:
    algo = make(**fields)
    algo.build_with_dataset(random_buffer())
    return algo


def test_a_transformers_trunk_trains_from_the_structure_model_too() -> None:
    algo = make(architecture="transformer", train_trunk=True, query_init="mask")
    moved = moved_by_training(algo)
    assert {"features.queries.weight", "features.trunk.blocks.1.attention.out.weight"} <= moved


def test_training_on_cached_features_equals_training_on_observations() -> None:
    """Up to the features' rounding to bfloat16."""
    torch.manual_seed(4)
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, SIZES)
    algos = [make(asm=asm), make(asm=asm, cache_features=True)]
    results = []
    for algo in algos:
        torch.manual_seed(3)
        results.append(algo.fit(random_buffer(), n_steps=8, **QUIET)[-1][1])
    assert results[1]["actor_loss"] == pytest.approx(results[0]["actor_loss"], rel=5e-3)
    x = random_buffer().observations[:50]
    features = policy_of(algos[1]).features
    assert compute_features(features, x, show_progress=False).shape == (50, 1, SIZES.width)
    a, b = (policy_of(algo)(x) for algo in algos)
    torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_what_caching_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="no train_trunk"):
        make(cache_features=True, train_trunk=True)
    with pytest.raises(ValueError, match="'transformer' or 'mlp'"):
        SPIN(architecture="mixer")  # type: ignore[arg-type]


def test_saved_policies_act_the_same(tmp_path: Path) -> None:
    algo = make(cache_features=True)
    algo.fit(random_buffer(), n_steps=3, **QUIET)
    x = np.random.default_rng(0).normal(size=(9, OBSERVATION_SIZE)).astype(np.float32)
    algo.save(str(tmp_path / "algo.d3"))
    save_policy(algo, tmp_path / "policy.safetensors")
    d3: Any = load_learnable(str(tmp_path / "algo.d3"))
    own: Any = load_policy(tmp_path / "policy.safetensors")
    for loaded in (d3, own):
        assert loaded.config.policy.structure == SIZES
        np.testing.assert_array_equal(loaded.predict(x), algo.predict(x))


def test_an_asms_file_brings_its_architecture(tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(ActionStructureModel(OBSERVATION_SIZE, NVEC, SIZES), path)
    algo: Any = SPINIQL(asm=path)
    assert algo.config.policy.structure == SIZES
    algo = make(asm=ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY))
    assert algo.config.policy.structure == TINY
    with pytest.raises(NvecMismatchError, match="needs an ASM with a Transformer"):
        SPINDistillIQL(asm=path)
