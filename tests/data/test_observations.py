from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
    flatten,
)

from spin_d3rlpy.data.minari.sources import flatten_observations
from spin_d3rlpy.errors import InvalidDatasetError

SPACE = Dict(
    {
        "z": Box(-1, 1, (2, 3)),
        "a": Tuple((Discrete(4, start=2), MultiBinary(3), MultiDiscrete([2, 5]))),
        "m": Dict({"y": Box(0, 255, (2,), np.uint8), "b": Discrete(2)}),
    },
    seed=0,
)


def columns(samples: list[Any]) -> Any:
    """Samples as Minari reads an episode: one array for each part."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: columns([s[key] for s in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(columns([s[i] for s in samples]) for i in range(len(first)))
    return np.stack(samples)


def test_nested_observations_flatten_as_gymnasium_does() -> None:
    samples: list[Any] = [SPACE.sample() for _ in range(9)]
    found = flatten_observations(SPACE, columns(samples), "the dataset")
    assert found.shape == (9, 6 + 4 + 3 + 7 + 2 + 2)
    expected: list[Any] = [flatten(SPACE, sample) for sample in samples]
    assert np.array_equal(found, np.stack(expected))


def test_vectors_stay_as_they_are() -> None:
    rows = np.ones((3, 2), np.float32)
    assert flatten_observations(Box(-1, 1, (2,)), rows, "the dataset") is rows


@pytest.mark.parametrize("space", [Box(0, 1, (2, 2)), Discrete(3), MultiDiscrete([2, 2])])
def test_other_top_level_spaces_are_refused(space: Any) -> None:
    with pytest.raises(InvalidDatasetError, match=r"dataset x has .*FlattenObservation"):
        flatten_observations(space, np.zeros((1, 2)), "dataset x")


@pytest.mark.parametrize("part", [Text(3), Sequence(Box(0, 1))])
def test_parts_without_a_fixed_size_are_refused(part: Any) -> None:
    with pytest.raises(InvalidDatasetError, match="dataset x have a part that cannot be flattened"):
        flatten_observations(Dict({"p": part}), {"p": np.zeros(1)}, "dataset x")
