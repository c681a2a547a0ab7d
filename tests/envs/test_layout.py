"""Layouts of actions: what they accept, refuse and tell."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

from spin_envs import ActionLayout

GOOD: dict[str, Any] = {
    "shared_choices": True,
    "slot_columns": [[0, 1], [2, 3]],
    "choice_columns": [[4], [5], [-1]],
    "choice_features": [[0], [0], [1]],
    "compared": [[0, 0]],
}


def test_json_and_back() -> None:
    layout = ActionLayout(**GOOD)
    assert ActionLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    with pytest.raises(ValueError, match="no field 'size'"):
        ActionLayout.from_dict({"size": 1})


def test_columns_that_belong_to_nothing_are_context() -> None:
    assert ActionLayout(**GOOD).context_columns(8) == [6, 7]


PAIRS: dict[str, Any] = {
    "shared_choices": True,
    "pair_columns": [[[0], [1], [-1]], [[2], [3], [4]]],
}


def test_features_of_pairs() -> None:
    layout = ActionLayout(**PAIRS)
    assert layout.has_choice_features
    assert layout.has_slot_features
    assert layout.n_pair_columns == 1
    layout.check(6, [3, 3])
    assert layout.context_columns(6) == [5]
    np.testing.assert_array_equal(layout.alike(6), [0, 0, 0, 0, 0, 5])
    assert layout.by_feature(6) == [[0, 1, 2, 3, 4], [5]]
    assert ActionLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    with pytest.raises(ValueError, match="2 rows, one of each slot, of 4 choices, got 2 of 3"):
        layout.check(6, [4, 4])
    with pytest.raises(ValueError, match=r"pair_columns\[1\]\[2\] names column 4"):
        layout.check(4, [3, 3])


OBJECTS: dict[str, Any] = {
    "shared_choices": True,
    "slot_columns": [[0, 1, 2], [3, 4, 5]],  # x, y and load
    "object_columns": [[6, 7], [8, 9], [10, 11]],  # x and y
}


def test_what_slots_look_at_is_measured_as_they_are() -> None:
    layout = ActionLayout(**OBJECTS)
    layout.check(13, [4, 4])
    assert layout.context_columns(13) == [12]
    np.testing.assert_array_equal(layout.alike(13), [0, 1, 2] * 2 + [0, 1] * 3 + [12])
    assert layout.by_feature(13) == [[0, 3], [1, 4], [2, 5], [6, 8, 10], [7, 9, 11], [12]]
    assert ActionLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    wide = ActionLayout(**OBJECTS | {"slot_columns": [[0], [3]]})
    np.testing.assert_array_equal(wide.alike(12)[[6, 7, 8, 9]], [0, 7, 0, 7])
    with pytest.raises(ValueError, match=r"object_columns\[2\] names column 10"):
        layout.check(10, [4, 4])


def test_columns_of_a_feature_are_alike_and_compared_ones_too() -> None:
    group = ActionLayout(**GOOD).alike(8)
    np.testing.assert_array_equal(group, [0, 1, 0, 1, 0, 0, 6, 7])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot_columns": [[0, 1], [2]]}, "rows of the same length in slot_columns"),
        ({"slot_columns": 3}, "slot_columns to be rows of numbers"),
        ({"choice_features": [[0], [1]]}, "same number of choices, got 3 and 2"),
        ({"shared_choices": False}, "shared_choices=True with features of choices"),
        ({"compared": [[2, 0]]}, "features 2 of slots and 0 of choices"),
        ({"pair_columns": [[[0], [1]], [[2]]]}, "same numbers of choices and of features"),
        ({"pair_columns": [[[0], [1, 2]]]}, r"same length in pair_columns\[0\]"),
        ({"pair_columns": [[0, 1]]}, r"pair_columns\[0\] to be rows of numbers"),
        ({"pair_columns": 3}, "pair_columns of each slot and choice, got 3"),
        ({"object_columns": [[6], [7]]}, "object_columns .* without features of choices"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActionLayout(**(GOOD | changes))


def test_objects_are_something_to_slots_with_columns() -> None:
    with pytest.raises(ValueError, match="object_columns with slot_columns"):
        ActionLayout(shared_choices=True, object_columns=((0,), (1,)))


@pytest.mark.parametrize(
    ("changes", "size", "nvec", "message"),
    [
        (
            {},
            5,
            [3, 3],
            r"choice_columns\[1\] names column 5; .* columns 0 to 4",
        ),
        ({"slot_columns": [[0, -1], [2, 3]]}, 8, [3, 3], r"slot_columns\[0\] names column -1"),
        ({}, 8, [3, 3, 3], "slot_columns to have 3 rows, one of each slot, got 2"),
        ({}, 8, [4, 4], "choice_columns to have 4 rows, one of each choice, got 3"),
        ({}, 8, [3, 2], "they have from 2 to 3 choices"),
    ],
)
def test_layouts_that_do_not_fit(
    changes: dict[str, Any], size: int, nvec: list[int], message: str
) -> None:
    layout = ActionLayout(**(GOOD | changes))
    with pytest.raises(ValueError, match=message):
        layout.check(size, nvec)


@pytest.mark.parametrize("name", ["spin/dispatch-v0", "spin/slate-v0"])
def test_environments_declare_what_fits_them(name: str) -> None:
    env = gymnasium.make(name)
    layout = env.unwrapped.layout  # type: ignore[attr-defined]
    space: Any = env.action_space
    assert env.observation_space.shape is not None
    layout.check(env.observation_space.shape[0], space.nvec.tolist())
    assert layout.has_features


def test_dispatch_says_where_couriers_and_orders_are() -> None:
    env = gymnasium.make("spin/dispatch-v0", couriers=3)
    x, _ = env.reset(seed=0)
    inner: Any = env.unwrapped
    places = [tuple(x[list(columns)]) for columns in inner.layout.slot_columns]
    assert places == [tuple(np.float32(c / 9) for c in cell) for cell in inner._couriers]
    orders = [tuple(x[list(columns)]) for columns in inner.layout.choice_columns[:3]]
    expected = [(o[0] / 9, o[1] / 9, o[2] / 8) for o in inner._orders]
    np.testing.assert_allclose(orders, expected, rtol=1e-6)
