"""Observations that are no vectors: with images in them, nested, or of several axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError, InvalidObservationError, SpinError
from spin_envs import FlattenImages, ObservationLayout, ObservationShapeError
from spin_envs.action_numbers import place
from spin_envs.observation_layout import parts_of

NO_INPUT = "The environment's observations cannot be used."


@contextmanager
def _explained(what: str, kind: type[SpinError] = InvalidObservationError) -> Iterator[None]:
    try:
        yield
    except ObservationShapeError as error:
        raise kind(f"{what} {error}") from error


def observation_layout_of(space: Space[Any], source: str = NO_INPUT) -> ObservationLayout | None:
    """Returns where images and numbers of a space's observations lie in a row; None without images.

    Raises:
        InvalidObservationError: a part is none that networks can take; `source` begins the text.
    """
    with _explained(source):
        return ObservationLayout.of_space(space)


def observation_layout_of_env(env: gymnasium.Env[Any, Any]) -> ObservationLayout | None:
    """Returns where an environment has images in its observations, also if they are rows already.

    Raises:
        InvalidObservationError: a part of them is none that networks can take.
    """
    wrapped = env
    while isinstance(wrapped, gymnasium.Wrapper):
        if isinstance(wrapped, FlattenImages):
            return wrapped.layout
        wrapped = wrapped.env
    return observation_layout_of(env.observation_space)


def is_vector(space: Space[Any]) -> bool:
    """Whether a space's observations are vectors of numbers as they are."""
    return isinstance(space, Box | MultiBinary) and len(space.shape) == 1


def check_flattens(space: Space[Any]) -> None:
    """Refuses a space whose observations Gymnasium's `flatten` makes no vectors of.

    Raises:
        InvalidObservationError: a part has no fixed size.
    """
    for path, part in parts_of(space):
        if not isinstance(part, Box | Discrete | MultiBinary | MultiDiscrete):
            raise InvalidObservationError(
                f"{NO_INPUT} Expected {place(path, 'observation')} to be numbers (Box, Discrete, "
                f"MultiBinary or MultiDiscrete), or a Dict or Tuple of them, got {part}. Leave it "
                "out or convert it in a wrapper."
            )


def flat_rows(space: Space[Any], observations: Sequence[Any], name: str) -> NDArray[np.float32]:
    """Returns observations without images as rows `(T, obs)`, flattened as by Gymnasium.

    Raises:
        InvalidDatasetError: one is none of the space; `name` says whose they are.
    """
    if is_vector(space):
        return np.asarray(observations, np.float32)
    rows = np.empty((len(observations), flatdim(space)), np.float32)
    for i, observation in enumerate(observations):
        try:
            flat: Any = flatten(space, observation)
            rows[i] = flat
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidDatasetError(
                f"Expected observations of {space}, step {i} of {name} has {observation!r:.200}."
            ) from error
    return rows


def with_flat_observations(
    env: gymnasium.Env[Any, Any], kept: ObservationLayout | None = None
) -> gymnasium.Env[Any, Any]:
    """Returns an environment whose observations are rows: itself, or in a wrapper that flattens.

    Args:
        env: any environment.
        kept: where a dataset or policy has images in its rows, if it has some.

    Raises:
        InvalidObservationError: the environment's images are other ones than those.
    """
    own = observation_layout_of(env.observation_space)
    if own is None:
        if kept is not None and env.observation_space.shape != (kept.size,):
            raise InvalidObservationError(
                f"Expected an environment with {kept.images[0].where} of shape "
                f"{kept.images[0].shape}, as the data have it, got {env.observation_space}."
            )
        if is_vector(env.observation_space):
            return env
        check_flattens(env.observation_space)
        return FlattenObservation(env)
    if kept is None:
        return FlattenImages(env)
    with _explained("The environment's observations are not those of the data."):
        return FlattenImages(env, kept)


def holds_rows(layout: ObservationLayout, observations: Any) -> bool:
    """Whether observations are an array of rows rather than as the space has them."""
    if not isinstance(observations, np.ndarray):
        return False
    return not layout.is_one_image or observations.shape[1:] == (layout.size,)


def rows_of(layout: ObservationLayout, observations: Any) -> NDArray[np.float32]:
    """Returns B observations as rows `(B, obs)` float32.

    Args:
        layout: of the rows.
        observations: as the space has them, with B rows in each part; or rows.

    Raises:
        InvalidObservationError: they are neither.
    """
    with _explained("These observations cannot be used."):
        return layout.rows(observations, layout.count(observations))


def row_of(layout: ObservationLayout, observation: Any) -> NDArray[np.float32]:
    """Returns one observation, as the space has it or as a row, as `(1, obs)` float32.

    Raises:
        InvalidObservationError: it is neither.
    """
    with _explained("This observation cannot be used."):
        return layout.rows(layout.stacked([observation]), 1)


def is_single(layout: ObservationLayout, observation: Any) -> bool:
    """Whether it is one observation, not several; InvalidObservationError if it is neither."""
    with _explained("These observations cannot be used."):
        return layout.is_single(observation)


def shown_images(layout: ObservationLayout | None) -> str:
    """Returns the parts of observations with images for a message."""
    if layout is None:
        return "observations without images"
    return ", ".join(f"{part.where} of shape {part.shape}" for part in layout.parts)


def split_episode(
    layout: ObservationLayout, observations: Any, n: int, name: str
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Returns an episode's observations as numbers `(n, v)` and pixels `(n, p)`.

    Raises:
        InvalidDatasetError: a part is missing, or of another shape or type.
    """
    with _explained(f"The observations of {name} are wrong.", InvalidDatasetError):
        return layout.split(observations, n)


def split_list(
    layout: ObservationLayout, observations: Sequence[Any], name: str
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Returns an episode's observations, as an environment gave them one by one, likewise.

    Raises:
        InvalidDatasetError: a part is missing, or of another shape or type.
    """
    with _explained(f"The observations of {name} are wrong.", InvalidDatasetError):
        return layout.split(layout.stacked(observations), len(observations))


def layout_of_arrays(
    observations: Any, known: ObservationLayout | None = None
) -> ObservationLayout | None:
    """Returns the layout of an episode's observations in d3rlpy's form, by their shapes.

    Args:
        observations: an array `(T, ...)`, or a list or tuple of them.
        known: where rows of its length have images.

    Raises:
        InvalidDatasetError: an array that is neither an image of uint8 nor a row of numbers.
    """
    several = isinstance(observations, list | tuple)
    if known is not None and not several and observations.shape[1:] == (known.size,):
        return known
    spaces = [_space_of(array) for array in (observations if several else [observations])]
    space: Space[Any] = Tuple(spaces) if several else spaces[0]
    with _explained("The replay buffer cannot be used.", InvalidDatasetError):
        layout = ObservationLayout.of_space(space)
    for part in layout.numbers if layout is not None else ():
        if len(part.shape) > 1:
            raise InvalidDatasetError(
                f"Expected {part.where} to be an image of uint8 or a row of numbers, got shape "
                f"{part.shape}. Keep images as uint8: encoders divide them by 255."
            )
    return layout


def _space_of(array: NDArray[Any]) -> Box:
    low, high = (0, 255) if array.dtype == np.uint8 else (-np.inf, np.inf)
    dtype = np.uint8 if array.dtype == np.uint8 else np.float32
    return Box(low, high, array.shape[1:], dtype)
