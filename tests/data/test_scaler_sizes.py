"""A scaler for observations with another number of slots and choices."""

import numpy as np
import pytest
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy.data.scalers import resize_scaler
from spin_envs import ActionLayout


def layout(slots: tuple[int, ...], *choices: tuple[int, int]) -> ActionLayout:
    columns = tuple((slot,) for slot in slots)
    return ActionLayout(shared_choices=True, slot_columns=columns, choice_columns=choices)


# One slot and two choices, with two features of choices; -1 where a choice lacks one.
SECOND_LACKED = layout((0,), (1, -1), (2, -1))
BOTH_KNOWN = layout((0,), (1, 3), (2, -1))


def test_columns_of_a_feature_share_its_scale() -> None:
    fitted = StandardObservationScaler(np.array([1.0, 2.0, 2.0]), np.array([3.0, 4.0, 4.0]))
    larger = layout((0, 1), (2, -1), (3, -1), (4, -1))
    scaler = resize_scaler(fitted, SECOND_LACKED, larger, 5)
    assert isinstance(scaler, StandardObservationScaler)
    np.testing.assert_array_equal(scaler.mean, [1, 1, 2, 2, 2])
    np.testing.assert_array_equal(scaler.std, [3, 3, 4, 4, 4])


def test_a_feature_that_training_never_observed_has_no_scale() -> None:
    fitted = StandardObservationScaler(np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match=r"feature 2 .* had none"):
        resize_scaler(fitted, SECOND_LACKED, BOTH_KNOWN, 4)
