"""Layouts of actions in a dataset's metadata and of environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minari import MinariDataset

from spin_d3rlpy.errors import InvalidDatasetError, listed, shown
from spin_envs import ActionLayout as ActionLayout
from spin_envs.layout import NONE

KEY = "action_layout"  # in Minari's metadata


def layout_of(env: object) -> ActionLayout | None:
    """Returns what an environment's `unwrapped.layout` says of its actions, if it says anything."""
    layout = getattr(getattr(env, "unwrapped", env), "layout", None)
    return layout if isinstance(layout, ActionLayout) else None


def layout_of_table(
    content: Mapping[str, Any],
    features_of: Mapping[str | int, Sequence[int]],
    observation_size: int,
    nvec: Sequence[int],
) -> ActionLayout:
    """Returns the layout that a table's column names describe.

    Args:
        content: fields of `ActionLayout`; `slot_columns`, `choice_columns`, `pair_columns` and
            `object_columns` hold names of the table's columns instead of numbers, and None where a
            choice or a pair lacks a feature. With features of choices, `choice_identity` is True
            unless it says otherwise.
        features_of: a column's features in the state, by its name.
        observation_size: number of features of the state.
        nvec: number of choices of each slot.

    Raises:
        ValueError: it names a column that is not part of the state, or does not fit the table.
    """

    def numbers(field: str, row: int, name: str | int | None) -> Sequence[int]:
        if name is None:
            return [NONE]
        if name not in features_of:
            raise ValueError(
                f"{field}[{row}] of the layout names the column {shown(name)}, which is not part "
                f"of the state; it has {listed(features_of)}."
            )
        return features_of[name]

    def table(field: str, rows: Sequence[Sequence[str | int | None]]) -> list[list[int]]:
        return [
            [number for name in names for number in numbers(field, row, name)]
            for row, names in enumerate(rows)
        ]

    fields = dict(content)
    for field in ("slot_columns", "choice_columns", "object_columns"):
        fields[field] = table(field, content.get(field, ()))
    fields["pair_columns"] = [
        table(f"pair_columns[{slot}]", rows)
        for slot, rows in enumerate(content.get("pair_columns", ()))
    ]
    # A table's choices have names: the same thing in every row.
    of_choices = ("choice_columns", "choice_features", "pair_columns")
    if fields.get("shared_choices") and any(fields.get(name) for name in of_choices):
        fields.setdefault("choice_identity", True)
    layout = ActionLayout.from_dict(fields)
    layout.check(observation_size, nvec)
    return layout


def read_layout(
    dataset: MinariDataset, observation_size: int, nvec: Sequence[int]
) -> ActionLayout | None:
    """Returns the layout in a dataset's metadata; InvalidDatasetError if it does not fit it."""
    content = dataset.storage.metadata.get(KEY)
    if content is None:
        return None
    try:
        layout = ActionLayout.from_dict(content)
        layout.check(observation_size, nvec)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidDatasetError(
            f"The layout of actions in the metadata of {dataset.id} does not fit it. {error}"
        ) from error
    return layout
