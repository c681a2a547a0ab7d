from __future__ import annotations

import math

import numpy as np
import pytest

from spin_envs import ActionGrid, InvalidActionError

LOW = np.array([-1.0, 0.0, 2.0])
HIGH = np.array([1.0, 3.0, 4.0])


def test_values_are_evenly_spaced_and_include_both_ends() -> None:
    grid = ActionGrid(LOW, HIGH, 3)
    assert grid.nvec.tolist() == [3, 3, 3]
    np.testing.assert_array_equal(grid.to_continuous([0, 0, 0]), LOW)
    np.testing.assert_array_equal(grid.to_continuous([1, 1, 1]), [0.0, 1.5, 3.0])
    np.testing.assert_array_equal(grid.to_continuous([2, 2, 2]), HIGH)


def test_each_dimension_may_have_its_own_number_of_bins() -> None:
    grid = ActionGrid(LOW, HIGH, [2, 7, 5])
    assert grid.nvec.tolist() == [2, 7, 5]
    np.testing.assert_array_equal(grid.to_continuous([1, 6, 4]), HIGH)
    np.testing.assert_array_equal(grid.to_continuous([0, 2, 1]), [-1.0, 1.0, 2.5])


@pytest.mark.parametrize("bins", [2, 1001, np.int64(3), (2, 3, 5), np.array([2, 3, 5])])
def test_bins_may_be_any_integers_in_range(bins: int) -> None:
    expected = [bins] * 3 if np.ndim(bins) == 0 else np.asarray(bins).tolist()
    assert ActionGrid(LOW, HIGH, bins).nvec.tolist() == expected


@pytest.mark.parametrize(
    ("bins", "message"),
    [
        (1, "an integer from 2 to 1001, got 1"),
        (0, "got 0"),
        (-3, "got -3"),
        (1002, "got 1002"),
        ([3, 1, 3], "got 1"),
        (True, "got True"),
        ([3, True, 3], "got True"),
        (3.0, "got 3.0"),
        ([3, 3.0, 3], "got 3.0"),
        (math.nan, "got nan"),
        (None, "got None"),
        ("333", "got '3'"),
        ([3, 3], "one number of bins or 3 of them"),
        ([], "got 0"),
        ([[3, 3, 3]], "got 1"),
    ],
)
def test_bad_bins_are_refused(bins: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActionGrid(LOW, HIGH, bins)


@pytest.mark.parametrize(
    "action",
    [
        [1, 0, 2],
        (1, 0, 2),
        np.array([1, 0, 2], dtype=np.int8),
        np.array([1, 0, 2], dtype=np.uint64),
        [np.int64(1), 0, np.int32(2)],
    ],
)
def test_any_integers_in_range_are_accepted(action: object) -> None:
    np.testing.assert_array_equal(ActionGrid(LOW, HIGH, 3).to_continuous(action), [0.0, 0.0, 4.0])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0, 0], r"shape \(3,\), one integer per slot, got shape \(2,\)"),
        ([[0, 0, 0]], r"got shape \(1, 3\).*vector environment"),
        (1, r"got shape \(\)"),
        (None, r"got shape \(\)"),
        ([[0, 1], [0], 2], r"got \[\[0, 1\], \[0\], 2\]"),
        ([0.0, 1.0, 2.0], "dtype float64.*not continuous values"),
        ([0.0, math.nan, 2.0], "dtype float64"),
        ([True, False, True], "dtype bool"),
        (["0", "1", "2"], "Expected integer choices"),
        ([0, -1, 2], r"Slot 1 is -1, expected 0 to 2.*\[0, -1, 2\]"),
        ([0, 0, 3], "Slot 2 is 3, expected 0 to 2"),
        (np.array([2**63, 0, 0], dtype=np.uint64), "Slot 0 is 9223372036854775808"),
    ],
)
def test_bad_actions_are_refused(action: object, message: str) -> None:
    with pytest.raises(InvalidActionError, match=message):
        ActionGrid(LOW, HIGH, 3).to_continuous(action)


def test_a_choice_is_checked_against_its_own_dimension() -> None:
    grid = ActionGrid(LOW, HIGH, [2, 7, 5])
    with pytest.raises(InvalidActionError, match="Slot 0 is 2, expected 0 to 1"):
        grid.to_continuous([2, 2, 2])


def test_nearest_bins() -> None:
    grid = ActionGrid(LOW, HIGH, [3, 4, 5])
    values = np.array([[-1.0, 0.0, 2.0], [0.49, 1.49, 2.26], [0.51, 1.51, 2.24], [-9.0, 9.0, 9.0]])
    assert grid.nearest(values).tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 0], [0, 3, 4]]
    every = np.stack([np.arange(24) % 3, np.arange(24) % 4, np.arange(24) % 5], axis=1)
    assert np.array_equal(grid.nearest(grid.values(every)), every)


def test_nearest_bin_where_both_ends_coincide() -> None:
    assert ActionGrid(np.ones(1), np.ones(1), 3).nearest(np.array([[1.0]])).tolist() == [[0]]
