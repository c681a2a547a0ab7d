"""A structure model's scaling stays with it: in policies, their files and other algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardObservationScaler

from spin_d3rlpy import SPINBC, SPINIDQL, SPINIQL, load_asm, load_policy, save_asm, save_policy
from spin_d3rlpy.asm import sampling
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler, scaler_to_dict
from spin_d3rlpy.errors import InvalidObservationError
from spin_d3rlpy.evaluation.probabilities import BehaviorProbabilities
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SCALERS: list[Any] = [
    ClippedStandardObservationScaler(eps=1e-3, clip=1.5),
    StandardObservationScaler(),
    MinMaxObservationScaler(),
    None,
]


def shifted_buffer() -> DeviceReplayBuffer:
    buffer = random_buffer()
    buffer.observations.mul_(7.0).add_(100.0)
    return buffer


def fitted(algo_class: Any, scaler: Any) -> Any:
    torch.manual_seed(0)
    algo = new_algorithm(algo_class, **tiny_fields(algo_class), observation_scaler=scaler)
    algo.fit(shifted_buffer(), n_steps=2, **QUIET)
    return algo


@pytest.mark.parametrize("scaler", SCALERS, ids=lambda s: s and s.get_type())
@pytest.mark.parametrize("algo_class", [SPINIDQL, SPINIQL])
def test_a_loaded_policys_model_scales_as_in_pre_training(
    algo_class: Any, scaler: Any, tmp_path: Path
) -> None:
    algo = fitted(algo_class, scaler)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    save_asm(loaded.asm, tmp_path / "asm.safetensors")
    states = shifted_buffer().observations[:9].numpy()
    actions = shifted_buffer().actions[:9].numpy().astype(np.int64)
    expected = algo.support(states, actions)
    known = BehaviorProbabilities(algo.asm).log_prob(states, actions)
    for asm in (algo.asm, loaded.asm, load_asm(tmp_path / "asm.safetensors")):
        assert asm.observation_scaler == scaler_to_dict(algo.config.observation_scaler)
        scores = asm.log_likelihood(states, actions).per_slot.numpy()
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        found = BehaviorProbabilities(asm).log_prob(states, actions)
        np.testing.assert_allclose(found, known, rtol=1e-5)
        scaled = algo.network_input(states)
        np.testing.assert_allclose(
            asm.log_prob(states, actions), sampling.log_prob(asm, scaled, actions), rtol=1e-5
        )
        noise = torch.zeros(1, len(states), sum(asm.nvec))
        assert torch.equal(
            asm.sample(states, noise=noise, order=(0, 1, 2)),
            sampling.sample(asm, scaled, noise=noise, order=(0, 1, 2)),
        )


@pytest.mark.parametrize("scaler", SCALERS[:2], ids=lambda s: s.get_type())
@pytest.mark.parametrize("algo_class", [SPINIDQL, SPINBC])
def test_an_algorithm_takes_a_loaded_policys_model_with_its_scaling(
    algo_class: Any, scaler: Any, tmp_path: Path
) -> None:
    algo = fitted(SPINIDQL, scaler)
    save_policy(algo, tmp_path / "policy.safetensors")
    asm = load_policy(tmp_path / "policy.safetensors").asm
    other = algo_class(asm=asm)
    encoded = scaler_to_dict(algo.config.observation_scaler)
    assert scaler_to_dict(other.config.observation_scaler) == encoded
    other.build_with_dataset(shifted_buffer())
    assert other.asm.observation_scaler == encoded


def test_a_model_refuses_observations_that_it_was_not_made_for() -> None:
    asm = fitted(SPINIQL, None).asm
    actions = np.zeros((2, 3), np.int64)
    for wrong in (np.zeros((2, 3)), np.zeros(7), np.full((2, 7), np.nan)):
        with pytest.raises(InvalidObservationError, match="observations"):
            asm.log_likelihood(wrong, actions)


def test_a_scaler_that_only_d3rlpy_knows_is_named() -> None:
    asm = fitted(SPINIQL, None).asm
    asm.observation_scaler = {"type": "of_a_user", "params": {}}
    with pytest.raises(ValueError, match=r"of_a_user.*network_input"):
        asm.sample(np.zeros((1, 7)))
