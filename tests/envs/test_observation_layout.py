"""Where images and numbers of an observation lie in a flat row."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from spin_envs import FlattenImages, ObservationLayout, ObservationShapeError


def image(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


SPACES: dict[str, Space[Any]] = {
    "channels first": image(3, 5, 7),
    "channels last": image(5, 7, 3),
    "gray": image(5, 7),
    "dict": Dict(
        {
            "camera": image(5, 7, 3),
            "arm": Tuple([Box(-1, 1, (2, 2)), MultiDiscrete([3, 4], start=[1, -1])]),
            "eye": image(1, 4, 6),
            "gear": Discrete(3, start=2),
            "lamps": MultiBinary(2),
        }
    ),
    "tuple": Tuple([Box(-1, 1, (2,)), image(5, 7)]),
}


def layout_of(space: Space[Any]) -> ObservationLayout:
    layout = ObservationLayout.of_space(space)
    assert layout is not None
    return layout


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(is_equal(one[key], other[key]) for key in one) and one.keys() == other.keys()
    if isinstance(one, tuple):
        return all(is_equal(*both) for both in zip(one, other, strict=True))
    return np.array_equal(one, other)


@pytest.mark.parametrize("name", SPACES)
def test_rows_hold_numbers_then_pixels_and_become_observations_again(name: str) -> None:
    space, layout = SPACES[name], layout_of(SPACES[name])
    space.seed(0)
    observations = [space.sample() for _ in range(4)]
    stacked = layout.stacked(observations)
    numbers, pixels = layout.split(stacked, 4)
    assert numbers.shape == (4, layout.n_numbers)
    assert pixels.shape == (4, layout.n_pixels)
    assert pixels.dtype == np.uint8
    rows = layout.rows(stacked, 4)
    assert np.array_equal(rows, np.concatenate([numbers, pixels], axis=1))
    for row, observation in zip(rows, observations, strict=True):
        assert np.array_equal(layout.row(observation), row)
        assert np.array_equal(layout.row(row), row)  # those that are rows already stay
    again = layout.joined(*layout.split(rows, 4))
    for i, observation in enumerate(observations):
        assert is_equal(_at(again, i), observation)
    assert layout_of(layout.space) == layout
    assert ObservationLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


def _at(batch: Any, i: int) -> Any:
    if isinstance(batch, dict):
        return {key: _at(part, i) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_at(part, i) for part in batch)
    return batch[i]


def test_numbers_have_the_order_of_the_space() -> None:
    layout = layout_of(SPACES["dict"])
    observation = {
        "camera": np.full((5, 7, 3), 9, np.uint8),
        "arm": (np.array([[0.1, 0.2], [0.3, 0.4]], np.float32), np.array([2, 2])),
        "eye": np.full((1, 4, 6), 8, np.uint8),
        "gear": 4,
        "lamps": np.array([0, 1], np.int8),
    }
    row = layout.row(observation)
    numbers = [0.1, 0.2, 0.3, 0.4, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1]
    assert row[: layout.n_numbers] == pytest.approx(numbers)
    assert row[layout.n_numbers :].tolist() == [9] * 105 + [8] * 24


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        *(((3, 64, 64), (3, 64, 64)), ((64, 48, 3), (3, 64, 48)), ((30, 40), (1, 30, 40))),
        *(((4, 64, 48, 3), (12, 64, 48)), ((4, 3, 64, 48), (12, 64, 48))),
    ],
)
def test_channels_are_the_shorter_of_the_outer_axes(shape: Any, channels_first: Any) -> None:
    assert layout_of(image(*shape)).images[0].image_shape == channels_first


def test_spaces_without_images_have_no_layout() -> None:
    for space in (Box(-1, 1, (3,)), Box(0, 255, (128,), np.uint8), Dict({"x": Text(3)})):
        assert ObservationLayout.of_space(space) is None


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"eyes": Tuple([image(2, 4, 3, 8, 8)])}), r'observation\["eyes"\]\[0\].*a stack'),
        (Dict({"eye": image(8, 8), "note": Text(9)}), r'observation\["note"\].*Text'),
    ],
)
def test_parts_that_networks_cannot_take_are_refused_by_their_place(
    space: Space[Any], message: str
) -> None:
    with pytest.raises(ObservationShapeError, match=message):
        ObservationLayout.of_space(space)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"camera": np.zeros((4, 5, 7), np.uint8)}, r'\["camera"\].*\(5, 7, 3\).*got shape \(4, 5'),
        ({"camera": np.full((5, 7, 3), 0.5)}, r'\["camera"\] to be whole numbers from 0 to 255'),
        ({"arm": (np.zeros((2, 2)),)}, r'\["arm"\]\[1\].*without it'),
        ({"gear": 9}, r'\["gear"\] has a value'),
    ],
)
def test_other_observations_are_refused_by_their_place(
    change: dict[str, Any], message: str
) -> None:
    space = SPACES["dict"]
    with pytest.raises(ObservationShapeError, match=message):
        layout_of(space).row({**space.sample(), **change})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("parts"),
        lambda d: d.update(parts=[]),
        lambda d: d["parts"][0].update(shape=[2**40, 2**40]),
        lambda d: d["parts"][0].update(is_image="yes"),
        lambda d: d["parts"][0].update(path=[[1]]),
    ],
)
def test_damaged_descriptions_are_refused(spoil: Any) -> None:
    content = layout_of(SPACES["dict"]).to_dict()
    spoil(content)
    with pytest.raises(ValueError, match="Expected"):
        ObservationLayout.from_dict(content)


class _Camera(gymnasium.Env[Any, Any]):
    def __init__(self, order: str = "ab", size: int = 6) -> None:
        parts = {"a": Box(-1, 1, (2,)), "b": image(size, 8)}
        self.observation_space = Dict([(key, parts[key]) for key in order])
        self.action_space = MultiBinary(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}


def test_an_environment_gives_rows_in_the_order_of_the_data() -> None:
    entry: Any = _Camera
    gymnasium.register("test/camera-v0", entry_point=entry)
    try:
        known = layout_of(_Camera("ab").observation_space)
        env = FlattenImages(gymnasium.make("test/camera-v0", order="ba"), known)
        observation, _ = env.reset(seed=3)
        assert env.observation_space.contains(observation)
        seen, _ = _Camera("ba").reset(seed=3)
        assert np.array_equal(observation, [*seen["a"], *seen["b"].ravel()])
        assert env.spec is not None
        copy, _ = gymnasium.make(env.spec).reset(seed=3)
        assert np.array_equal(copy, observation)
    finally:
        del gymnasium.registry["test/camera-v0"]
    with pytest.raises(ObservationShapeError, match=r'\["b"\].*\(6, 8\), got an image.*\(5, 8\)'):
        FlattenImages(_Camera(size=5), known)
    with pytest.raises(ValueError, match="Expected observations with images"):
        FlattenImages(gymnasium.make("CartPole-v1"))
