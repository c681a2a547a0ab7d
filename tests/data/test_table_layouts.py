"""Slots and choices with features, described by the names of a table's columns."""

from __future__ import annotations

from typing import Any

import minari
import pytest

from spin_d3rlpy import SPINIDQL, from_table, save_dataset
from spin_d3rlpy.data import DeviceReplayBuffer
from tests.algos.problems import new_algorithm, tiny_fields

# Two porters choose among two beds and waiting; beds are in wards of words.
TABLE: dict[str, list[Any]] = {
    "shift": [0, 0, 0, 1, 1, 1],
    "porter_0": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "porter_1": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "hour": [7, 8, 9, 7, 8, 9],
    "ward": ["a", "b", "a", "b", "a", "b"],
    "bed_0": [9.0, 8.0, 7.0, 6.0, 5.0, 4.0],
    "bed_1": [1.0, 1.5, 2.5, 2.0, 3.5, 4.0],
    "goes_0": [0, 1, 2, 0, 1, 2],
    "goes_1": [1, 0, 1, 0, 2, 2],
    "reward": [1.0, 0.0, 0.5, 1.0, 0.0, 0.5],
}
LAYOUT: dict[str, Any] = {
    "shared_choices": True,
    "slot_columns": [["porter_0"], ["porter_1"]],
    "choice_columns": [["bed_0"], ["bed_1"], [None]],
    "choice_features": [[0.0], [0.0], [1.0]],
    "compared": [(0, 0)],
}


def read(layout: dict[str, Any], **changes: Any) -> DeviceReplayBuffer:
    fields: dict[str, Any] = {
        "observations": ["ward", "porter_0", "porter_1", "hour", "bed_0", "bed_1"],
        "actions": ["goes_0", "goes_1"],
        "reward": "reward",
        "episode": "shift",
        "nvec": [3, 3],
    }
    return from_table(TABLE, **fields | changes, layout=layout)


def test_names_become_the_numbers_of_features() -> None:
    layout = read(LAYOUT).layout
    assert layout is not None
    # The ward's words are two features, so the other columns are moved by one.
    assert layout.slot_columns == ((2,), (3,))
    assert layout.choice_columns == ((5,), (6,), (-1,))
    assert layout.context_columns(7) == [0, 1, 4]


def test_names_of_pairs_become_numbers() -> None:
    pairs = [[["bed_0"], ["bed_1"], [None]], [["bed_1"], ["bed_0"], ["hour"]]]
    layout = read({"shared_choices": True, "pair_columns": pairs}).layout
    assert layout is not None
    assert layout.pair_columns == (((5,), (6,), (-1,)), ((6,), (5,), (4,)))
    with pytest.raises(ValueError, match=r"pair_columns\[1\]\[0\].*'bed_9'"):
        read(
            {
                "shared_choices": True,
                "pair_columns": [pairs[0], [["bed_9"], ["bed_0"], ["hour"]]],
            }
        )


def test_names_of_what_slots_look_at_become_numbers() -> None:
    looking = {
        "shared_choices": True,
        "slot_columns": [["porter_0"], ["porter_1"]],
        "object_columns": [["bed_0"], ["bed_1"]],
    }
    layout = read(looking).layout
    assert layout is not None
    assert layout.object_columns == ((5,), (6,))
    with pytest.raises(ValueError, match=r"object_columns\[0\].*'bed_9'"):
        read(looking | {"object_columns": [["bed_9"]]})


def test_an_algorithm_uses_it_and_a_saved_dataset_keeps_it() -> None:
    buffer = read(LAYOUT)
    algo = new_algorithm(SPINIDQL, **tiny_fields(SPINIDQL))
    algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    assert algo.config.layout == buffer.layout
    save_dataset(buffer, "user/porters-v0")
    loaded = DeviceReplayBuffer.from_minari(minari.load_dataset("user/porters-v0"))
    assert loaded.layout == buffer.layout


def test_it_may_say_no_more_than_that_slots_share_their_choices() -> None:
    layout = read({"shared_choices": True}).layout
    assert layout is not None
    assert (layout.shared_choices, layout.has_features) == (True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot_columns": [["porter_0"], ["hours"]]}, r"slot_columns\[1\] .* 'hours', which is"),
        ({"choice_columns": [["bed_0"], ["bed_1"]]}, "choice_columns and choice_features of the"),
        ({"slot_columns": [["porter_0"]]}, "slot_columns to have 2 rows"),
        ({"slot_columns": [["porter_0"], ["ward"]]}, "rows of the same length in slot_columns"),
        ({"places": []}, "no field 'places'"),
    ],
)
def test_layouts_that_do_not_fit_the_table(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(LAYOUT | changes)
