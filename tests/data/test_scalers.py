"""Scalers fitted to data that do not vary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import (
    MinMaxObservationScaler,
    MinMaxRewardScaler,
    ReturnBasedRewardScaler,
    StandardObservationScaler,
    StandardRewardScaler,
)

from spin_d3rlpy import FactoredIQL
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler, fit_scaler
from spin_d3rlpy.errors import InvalidDatasetError
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


@pytest.mark.parametrize("value", [0.0, 1.0, -3e9, 1e-30])
@pytest.mark.parametrize(
    "scaler_class",
    [MinMaxObservationScaler, StandardObservationScaler, ClippedStandardObservationScaler],
)
def test_a_constant_feature_is_scaled_to_a_number(scaler_class: Any, value: float) -> None:
    buffer = random_buffer()
    buffer.observations[:, 2] = value
    scaler = scaler_class()
    fit_scaler(scaler, buffer)
    scaled = scaler.transform(buffer.observations)
    assert torch.isfinite(scaled).all()
    assert scaled[:, 2].unique().numel() == 1
    assert (scaled[:, 0].std() > 0.1) & (scaled.abs().max() <= 12.0)
    algo = new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL), observation_scaler=scaler_class())
    algo.fit(buffer, n_steps=2, **QUIET)
    assert np.isfinite(
        algo.predict_value(buffer.observations[:3].numpy(), np.zeros((3, 3), int))
    ).all()


@pytest.mark.parametrize("scaler", [MinMaxRewardScaler(), ReturnBasedRewardScaler()])
def test_rewards_that_are_all_equal_cannot_be_divided_by_how_much_they_vary(scaler: Any) -> None:
    buffer = random_buffer()
    buffer.rewards.fill_(0.0)
    with pytest.raises(InvalidDatasetError, match=r"RewardScaler makes rewards.*another scaler"):
        new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL), reward_scaler=scaler).fit(
            buffer, n_steps=1
        )
    new_algorithm(
        FactoredIQL, **tiny_fields(FactoredIQL), reward_scaler=StandardRewardScaler()
    ).fit(buffer, n_steps=1, **QUIET)
