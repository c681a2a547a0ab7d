"""The two stages of SPIN inside IQL."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import FileAdapterFactory, NoopAdapterFactory
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardObservationScaler

from spin_d3rlpy import SPIN, SPINIQL, load_asm, save_asm
from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, TransformerConfig
from spin_d3rlpy.data.scalers import scaler_from_dict, scaler_to_dict
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.policies import SlotPolicy
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


def make_asm(nvec: list[int] | None = None, config: TransformerConfig = TINY) -> Any:
    torch.manual_seed(4)
    return ActionStructureModel(OBSERVATION_SIZE, nvec or NVEC, config)


def make(**fields: Any) -> SPINIQL:
    torch.manual_seed(1)
    algo: SPINIQL = new_algorithm(SPINIQL, **{"batch_size": 19, **tiny_fields(SPINIQL), **fields})
    return algo


def policy_of(algo: SPINIQL) -> SlotPolicy:
    assert algo.impl is not None
    policy = algo.impl.policy
    assert isinstance(policy, SlotPolicy)
    return policy


def features_of(algo: SPINIQL) -> QueryFeatures:
    features = policy_of(algo).features
    assert isinstance(features, QueryFeatures)
    return features


def test_trunk_equals_the_asms_bit_for_bit_and_never_changes() -> None:
    algo = make()
    algo.fit(random_buffer(), n_steps=6, **QUIET)
    assert algo.asm is not None
    expected = algo.asm.trunk.state_dict()
    found = features_of(algo).trunk.state_dict()
    assert list(expected) == list(found)
    assert all(torch.equal(expected[k], found[k]) for k in expected)


def test_only_queries_heads_and_critics_train() -> None:
    algo = make(asm=make_asm())
    algo.build_with_dataset(random_buffer())
    assert algo.impl is not None
    networks = algo.impl.modules.get_torch_modules()
    before = {name: flat_parameters(net) for name, net in networks.items()}
    for _ in range(3):
        algo.update(random_buffer().sample_transition_batch(19))
    moved = {
        f"{name}.{k.split('.')[0]}.{k.split('.')[1]}"
        for name, net in networks.items()
        for k, v in net.named_parameters()
        if not torch.equal(before[name][k], v)
    }
    policy_parts = {m for m in moved if m.startswith("policy")}
    assert policy_parts == {
        "policy.features.queries",
        "policy.heads.weight1",
        "policy.heads.bias1",
        "policy.heads.weight2",
        "policy.heads.bias2",
    }
    assert {m.split(".")[0] for m in moved} == {"policy", "q_funcs", "targ_q_funcs", "value_func"}


def test_exporting_does_not_thaw_the_trunk() -> None:
    algo = make(asm=make_asm())
    algo.build_with_dataset(random_buffer())
    assert algo.impl is not None
    algo.impl.modules.freeze()  # what d3rlpy's save_policy does around an export
    algo.impl.modules.unfreeze()
    policy = policy_of(algo)
    assert not any(p.requires_grad for p in features_of(algo).trunk.parameters())
    assert all(p.requires_grad for p in policy.heads.parameters())
    assert features_of(algo).queries.weight.requires_grad


def test_fit_pretrains_once_and_a_given_asm_not_at_all() -> None:
    algo = make()
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    first = algo.asm
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    assert algo.asm is first
    given: ActionStructureModel = make_asm()
    weights = {k: v.clone() for k, v in given.state_dict().items()}
    other = make(asm=given)
    other.fit(random_buffer(), n_steps=2, **QUIET)
    assert other.asm is given
    assert all(torch.equal(weights[k], v) for k, v in given.state_dict().items())


def test_a_loaded_policy_is_not_pretrained_again(tmp_path: Path) -> None:
    algo = make()
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    algo.save(str(tmp_path / "spin.d3"))
    loaded = d3rlpy.load_learnable(str(tmp_path / "spin.d3"))
    assert isinstance(loaded, SPINIQL)
    assert loaded.is_pretrained
    trunk = {k: v.clone() for k, v in features_of(loaded).trunk.state_dict().items()}
    loaded.fit(random_buffer(), n_steps=2, **QUIET)
    assert loaded.asm is None
    after = features_of(loaded).trunk.state_dict()
    assert all(torch.equal(trunk[k], after[k]) for k in trunk)


def test_an_asm_file_is_reused_by_another_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    algo = make(observation_scaler=StandardObservationScaler())
    algo.fit(random_buffer(), n_steps=2, **QUIET)
    assert algo.asm is not None
    save_asm(algo.asm, path)
    other = make(asm=path)
    other.fit(random_buffer(), n_steps=2, **QUIET)
    scaler, expected = (vars(one.config)["observation_scaler"] for one in (other, algo))
    assert isinstance(scaler, StandardObservationScaler)
    assert np.array_equal(np.asarray(scaler.mean), np.asarray(expected.mean))
    trunk = load_asm(path).trunk.state_dict()
    found = features_of(other).trunk.state_dict()
    assert all(torch.equal(trunk[k], found[k]) for k in trunk)


def test_an_asm_with_other_scaling_is_refused() -> None:
    with pytest.raises(NvecMismatchError, match="different observation scaling"):
        make(asm=make_asm(), observation_scaler=MinMaxObservationScaler())


def test_sizes_are_taken_from_a_given_asm() -> None:
    config = TransformerConfig(width=8, n_blocks=1, n_heads=2)
    algo = make(asm=make_asm(config=config))
    algo.build_with_dataset(random_buffer())
    assert features_of(algo).config == config


def test_an_asm_of_another_action_space_is_refused() -> None:
    with pytest.raises(NvecMismatchError, match=r"\[3, 5, 2\].*\[3, 5, 4\]"):
        make(nvec=NVEC, asm=make_asm([3, 5, 4]))
    algo = make(asm=make_asm([3, 5, 4]))
    with pytest.raises(NvecMismatchError, match="the dataset"):
        algo.fit(random_buffer(), n_steps=1, **QUIET)


def test_an_asm_of_another_observation_size_is_refused() -> None:
    algo = make(asm=ActionStructureModel(OBSERVATION_SIZE + 2, NVEC, TINY))
    with pytest.raises(NvecMismatchError, match="length 9, not 7"):
        algo.fit(random_buffer(), n_steps=1, **QUIET)


def test_pretraining_is_logged_and_saved(tmp_path: Path) -> None:
    pretraining = PretrainingConfig(n_epochs=3, batch_size=100, checkpoint_interval=2)
    algo = make(pretraining=pretraining)
    algo.fit(
        random_buffer(),
        n_steps=2,
        logger_adapter=FileAdapterFactory(str(tmp_path)),
        experiment_name="run",
        with_timestamp=False,
        show_progress=False,
    )
    folder = tmp_path / "run_pretraining"
    with (folder / "asm_loss.csv").open() as f:
        rows = list(csv.reader(f))
    updates = -(-random_buffer().transition_count // 100)
    assert [(int(r[0]), int(r[1])) for r in rows] == [(e, e * updates) for e in (1, 2, 3)]
    saved = sorted(p.name for p in folder.glob("*.safetensors"))
    assert saved == ["asm_2.safetensors", "asm_3.safetensors"]  # of epochs
    assert algo.asm is not None
    last = load_asm(folder / "asm_3.safetensors").state_dict()
    assert all(torch.equal(last[k], v) for k, v in algo.asm.state_dict().items())


def test_queries_and_heads_can_start_from_the_asm() -> None:
    asm = make_asm()
    factory = SPIN(transformer=TINY, query_init="mask", head_init="asm")
    algo = make(asm=asm, policy=factory)
    algo.build_with_dataset(random_buffer())
    policy = policy_of(algo)
    assert torch.equal(features_of(algo).queries.weight, asm.mask_embeddings)
    observations = torch.randn(4, OBSERVATION_SIZE)
    all_masked = asm.mask_ids.expand(4, -1)
    torch.testing.assert_close(policy.eval()(observations), asm.eval()(observations, all_masked))


def test_unknown_initialization_is_refused() -> None:
    with pytest.raises(ValueError, match="query_init to be 'random' or 'mask'"):
        SPIN(transformer=TINY, query_init="zeros")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="head_init to be 'random' or 'asm'"):
        SPIN(transformer=TINY, head_init="zeros")  # type: ignore[arg-type]


@pytest.mark.parametrize("frozen_dropout", [True, False])
def test_dropout_of_the_frozen_trunk_is_a_switch(frozen_dropout: bool) -> None:
    factory = SPIN(transformer=TINY, frozen_dropout=frozen_dropout)
    algo = make(asm=make_asm(), policy=factory)
    algo.build_with_dataset(random_buffer())
    features = features_of(algo)
    observations = torch.randn(4, OBSERVATION_SIZE)
    differs = not torch.equal(features(observations), features(observations))
    assert differs == frozen_dropout
    features.eval()
    assert torch.equal(features(observations), features(observations))


def test_a_scaler_from_a_file_is_on_no_device_yet() -> None:
    """d3rlpy's scalers keep the tensors of the first device that they see."""
    scaler = StandardObservationScaler(mean=np.zeros(3), std=np.ones(3))
    read = scaler_from_dict(scaler_to_dict(scaler) or {}, 3)
    assert read.transform(torch.zeros(2, 3, device="meta")).device.type == "meta"


def test_an_asm_moves_to_the_algorithms_device_as_a_copy() -> None:
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY)
    algo = SPINIQL(asm=asm)
    assert algo.asm is asm
    algo._device = "meta"
    algo.set_asm(asm)
    assert algo.asm is not None
    assert next(algo.asm.parameters()).device.type == "meta"
    assert next(asm.parameters()).device.type == "cpu"


def test_algorithms_that_are_given_one_scaler_have_their_own() -> None:
    scaler = StandardObservationScaler()
    algos = [make(observation_scaler=scaler) for _ in range(2)]
    for algo in algos:
        algo.build_with_dataset(random_buffer())
    assert scaler.built  # by the first
    own = [vars(algo.config)["observation_scaler"] for algo in algos]
    assert own[0] is not own[1]
    assert np.array_equal(np.asarray(own[0].mean), np.asarray(own[1].mean))
