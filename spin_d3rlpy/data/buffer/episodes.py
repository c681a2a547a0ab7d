"""Checking episodes and laying them out as contiguous arrays."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from spin_d3rlpy.data.buffer.masks import Bits, bytes_of, check_logged, open_where_empty
from spin_d3rlpy.data.buffer.named_rewards import NamedRewards
from spin_d3rlpy.data.buffer.source_rows import SourceRows
from spin_d3rlpy.data.rounding import StateRounding
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.files.untrusted import require_memory
from spin_envs import ObservationLayout

_ADVICE = (
    "Pass memory_map=True to keep observations in a file, max_episodes= to read fewer, or check "
    "whether the dataset is damaged."
)


@dataclasses.dataclass(frozen=True)
class EpisodeArrays:
    """One episode of T transitions, as read from its source."""

    name: str  # what error messages call it, e.g. `"episode 3"`.
    observations: NDArray[Any]  # `(T + 1, obs)`; the last one follows the last action
    actions: NDArray[Any]  # `(T, N)`, or `(T,)` for a single slot
    rewards: NDArray[Any]  # `(T,)`
    terminated: bool  # whether the task ended the episode (rather than a time limit)
    masks: Bits | None = None  # `(T + 1, bytes)`: of the states, see `masks.py`
    infos: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by key, if any are used
    images: NDArray[np.uint8] | None = None  # `(T + 1, p)`: pixels; `observations` are the rest


@dataclasses.dataclass(frozen=True)
class StackedEpisodes:
    """Episodes one after the other."""

    observations: NDArray[np.float32]  # `(sum(T + 1), obs)` float32
    actions: NDArray[np.integer[Any]]  # `(n, N)` of the smallest integer type
    rewards: NDArray[np.float32]  # `(n,)` float32
    terminals: NDArray[np.float32]  # `(n,)` float32, 1 where the task ended the episode
    lengths: list[int]  # T of each episode
    nvec: list[int]  # number of choices of each slot
    masks: Bits | None = None  # `(sum(T + 1), bytes)`, see `spin_d3rlpy.data.buffer.masks`
    source: SourceRows | None = None  # if the rows that it was read from have another order
    named_rewards: NamedRewards | None = None  # if there are several of each transition
    images: NDArray[np.uint8] | None = None  # `(sum(T + 1), p)`: pixels, apart from `observations`
    observation_layout: ObservationLayout | None = None  # of both, if there are images

    def weighed(self, weights: object) -> StackedEpisodes:
        """Returns the same episodes with a reward that is made of several.

        Raises:
            ValueError: `weights` are none, see `NamedRewards.made_by`.
            InvalidDatasetError: a function in `weights` returns no finite numbers.
        """
        assert self.named_rewards is not None
        named, rewards = self.named_rewards.made_by(weights)
        return dataclasses.replace(self, named_rewards=named, rewards=rewards)


def action_dtype(nvec: Sequence[int]) -> np.dtype[Any]:
    """Returns the integer type in which datasets store choices."""
    largest = max(nvec)
    return np.dtype(np.int8 if largest <= 127 else np.int16 if largest <= 32767 else np.int64)


def no_transitions() -> InvalidDatasetError:
    """Returns the error for a dataset without transitions."""
    return InvalidDatasetError("The dataset has no transitions to learn from.")


def stack_episodes(
    episodes: Iterable[EpisodeArrays],
    lengths: Sequence[int],
    nvec: Sequence[int],
    integral_floats: bool = False,
    map_in: Path | None = None,
    rounding: StateRounding | None = None,
    observation_layout: ObservationLayout | None = None,
) -> StackedEpisodes:
    """Checks episodes one by one and copies each into place, so that memory is needed once.

    `integral_floats` accepts float actions that are whole numbers; `map_in` is the folder of a file
    that holds observations instead of memory; `rounding` sees them as they were before they are
    rounded; `observation_layout` is that of episodes with images. Raises InvalidDatasetError or
    NvecMismatchError, which name episode and step.
    """
    n = sum(lengths)
    if n == 0:
        raise no_transitions()
    stacked: StackedEpisodes | None = None
    row = step = features = 0
    for episode, length in zip(episodes, lengths, strict=True):
        _check_shapes(episode, length)
        if stacked is None:
            features, rows = episode.observations.shape[1], n + len(lengths)
            pixels = 0 if episode.images is None else episode.images.shape[1]
            if map_in is None:
                _require_room(n, len(lengths), features, pixels, nvec)
            stacked = StackedEpisodes(
                observations=allocate_observations(rows, features, map_in),
                actions=np.empty((n, len(nvec)), action_dtype(nvec)),
                rewards=np.empty(n, np.float32),
                terminals=np.zeros(n, np.float32),
                lengths=list(lengths),
                nvec=list(nvec),
                masks=_allocate_masks(episode, rows, nvec),
                images=allocate_images(rows, pixels, map_in) if pixels else None,
                observation_layout=observation_layout,
            )
        observations = stacked.observations[row : row + length + 1]
        rewards = stacked.rewards[step : step + length]
        if episode.observations.shape[1] != features:
            raise InvalidDatasetError(
                f"Observations of {episode.name} have {episode.observations.shape[1]} features, "
                f"those of earlier episodes {features}."
            )
        if stacked.images is not None:
            assert episode.images is not None  # by one layout
            stacked.images[row : row + length + 1] = episode.images
        if rounding is not None:
            rounding.add(episode.observations)
        # What float32 cannot hold becomes infinite, which the check reports.
        with np.errstate(over="ignore"):
            observations[:] = episode.observations
            rewards[:] = episode.rewards
        check_finite("observation", observations, episode.name)
        check_finite("reward", rewards, episode.name)
        stacked.actions[step : step + length] = _checked_actions(episode, nvec, integral_floats)
        stacked.terminals[step + length - 1] = float(episode.terminated)
        if (episode.masks is None) != (stacked.masks is None):
            raise InvalidDatasetError(
                f"Expected masks of all episodes or of none: {episode.name} differs from the first."
            )
        if stacked.masks is not None and episode.masks is not None:
            bits = stacked.masks[row : row + length + 1]
            bits[:] = _checked_masks(episode, stacked.actions[step : step + length], nvec)
        row += length + 1
        step += length
    assert stacked is not None
    return stacked


def _allocate_masks(episode: EpisodeArrays, rows: int, nvec: Sequence[int]) -> Bits | None:
    """Returns an array for all masks, if the first episode has some."""
    if episode.masks is None:
        return None
    n_bytes = rows * bytes_of(nvec)
    require_memory(n_bytes, f"Masks of {rows} states", _ADVICE, InvalidDatasetError)
    return np.empty((rows, bytes_of(nvec)), np.uint8)


def _checked_masks(
    episode: EpisodeArrays, actions: NDArray[np.integer[Any]], nvec: Sequence[int]
) -> Bits:
    """Returns an episode's masks; after its last action a slot without a choice has all."""
    masks, shape = episode.masks, (len(actions) + 1, bytes_of(nvec))
    assert masks is not None
    if masks.shape != shape or masks.dtype != np.uint8:
        raise InvalidDatasetError(
            f"Expected masks of {episode.name} as bytes of shape {shape}, one row for each state, "
            f"got shape {masks.shape} and dtype {masks.dtype}."
        )
    check_logged(masks, actions, nvec, episode.name)
    return np.concatenate([masks[:-1], open_where_empty(masks[-1:], nvec)])


def allocate_observations(rows: int, features: int, map_in: Path | None) -> NDArray[np.float32]:
    """Returns an array for observations, in memory or in a file of a folder.

    Raises:
        InvalidDatasetError: the folder has no room.
    """
    return _allocate((rows, features), np.float32, "features", map_in)


def allocate_images(rows: int, pixels: int, map_in: Path | None) -> NDArray[np.uint8]:
    """Returns an array for images; arguments and errors are those of `allocate_observations`."""
    return _allocate((rows, pixels), np.uint8, "pixels", map_in)


def _allocate(
    shape: tuple[int, int], dtype: DTypeLike, columns: str, map_in: Path | None
) -> NDArray[Any]:
    what = f"{shape[0]} observations of {shape[1]} {columns}"
    if map_in is not None and shape[1]:  # a file of no bytes cannot be mapped
        try:
            return mapped_array(shape, dtype, map_in)
        except OSError as error:
            raise InvalidDatasetError(
                f"{what} cannot be mapped: {error.strerror}. "
                "Pass memory_map= a folder with room, or max_episodes= to read fewer."
            ) from error
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    require_memory(n_bytes, what, _ADVICE, InvalidDatasetError)
    return np.empty(shape, dtype)


def _require_room(n: int, n_episodes: int, features: int, pixels: int, nvec: Sequence[int]) -> None:
    """Compares everything that is stacked with the available memory, before any of it is taken."""
    state_bytes = 4 * features + pixels
    row = state_bytes + len(nvec) * action_dtype(nvec).itemsize + 2 * 4  # reward and terminal
    of_images = f" and {pixels} pixels" if pixels else ""
    what = f"{n} transitions with {features} features{of_images}"
    require_memory(n * row + n_episodes * state_bytes, what, _ADVICE, InvalidDatasetError)


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike, folder: str | Path) -> NDArray[Any]:
    """Returns a new array in an unnamed file that disappears with the array or the process.

    Raises:
        OSError: the folder has no room, with the size that was needed.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # the mapping keeps it when it is closed
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk is found out later
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    except OSError as error:
        raise OSError(
            error.errno, f"{size / 2**30:.1f} GiB are needed in {folder}: {error.strerror}"
        ) from error


def _check_shapes(episode: EpisodeArrays, length: int) -> None:
    observations, actions, rewards = episode.observations, episode.actions, episode.rewards
    shapes = (observations.shape[:1], actions.shape[:1], rewards.shape)
    if (
        (observations.ndim != 2 or observations.dtype.kind not in "fiub")
        or (length < 1 or actions.ndim not in (1, 2))
        or shapes != ((length + 1,), (length,), (length,))
    ):
        raise InvalidDatasetError(
            f"Expected flat numeric observations (T + 1, obs), actions (T, N) and T rewards with "
            f"T = {length}, {episode.name} has observations of shape {observations.shape} and "
            f"dtype {observations.dtype}, actions {actions.shape} and rewards {rewards.shape}. "
            "Flatten numbers first, and keep images as uint8."
        )


def _checked_actions(
    episode: EpisodeArrays, nvec: Sequence[int], integral_floats: bool
) -> NDArray[Any]:
    actions = episode.actions.reshape(len(episode.actions), -1)
    if actions.shape[1] != len(nvec):
        raise NvecMismatchError(
            f"Expected {len(nvec)} slots (nvec={list(nvec)}), {episode.name} has "
            f"{actions.shape[1]}."
        )
    advice = "" if actions.dtype.kind in "iub" else " Discretize continuous actions first."
    if advice and not (integral_floats and actions.dtype.kind == "f"):
        raise InvalidDatasetError(
            f"Expected integer actions, {episode.name} has dtype {actions.dtype}.{advice}"
        )
    outside = (actions < 0) | (actions >= np.asarray(nvec))
    if advice:
        outside |= actions != np.floor(actions)
    places = np.argwhere(outside)
    if len(places):
        step, slot = places[0]
        raise InvalidDatasetError(
            f"Slot {slot} at step {step} of {episode.name} is {actions[step, slot]:g}, "
            f"expected a whole number from 0 to {nvec[slot] - 1}.{advice}"
        )
    return actions


def check_finite(what: str, array: NDArray[Any], name: str, kind: str = " as float32") -> None:
    """Raises InvalidDatasetError at the first step where `array` `(T, ...)` is not finite."""
    if not np.isfinite(array).all():
        step = int(np.argwhere(~np.isfinite(array))[0, 0])
        raise InvalidDatasetError(
            f"The {what} at step {step} of {name} is not finite{kind} (NaN or infinite). "
            "Remove or repair the episode."
        )
