"""Actions of a Minari dataset as choices: of any space, those of continuous parts by bins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple
from minari import MinariDataset
from numpy.typing import NDArray

from spin_d3rlpy.data.action_spaces import KEY, flat_actions_of_space, read_flat_actions
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, check_finite
from spin_d3rlpy.data.buffer.masks import INFO, Bits, pack
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.nvec import choices_of, nvec_from_space
from spin_envs import Bins, FlatActions, InvalidActionError
from spin_envs.action_grid import is_integer
from spin_envs.action_numbers import ActionNumbers, parts_of
from spin_envs.flat_actions import BinsOf, check_bins, is_flat

_INDEX = "_index_"
Log: TypeAlias = Callable[[], Iterator[NDArray[np.float64]]]  # each episode's numbers `(T, N)`


@dataclasses.dataclass(frozen=True)
class ActionReader:
    """How a dataset's actions become choices.

    Attributes:
        kept: how choices become what its environment takes; None where both are the same.
        nvec: number of choices of each slot.
        space: of the actions as they are stored.
        is_stored_flat: whether they are stored as choices, or as numbers of one row.
    """

    kept: FlatActions | None
    nvec: list[int]
    space: Space[Any]
    is_stored_flat: bool

    @classmethod
    def of(
        cls, dataset: MinariDataset, bins: BinsOf | FlatActions | None, log: Log
    ) -> ActionReader:
        """Looks at a dataset; `log` reads its actions, by which bins may be made.

        Raises:
            InvalidDatasetError: a space that cannot be converted, or bins where none are needed, or
                none where some are.
            ValueError: bad bins.
        """
        space = dataset.action_space
        _check_bins(dataset, bins)
        if is_flat(space):
            nvec = nvec_from_space(space)
            kept = read_flat_actions(dataset.storage.metadata.get(KEY), nvec)
            return cls(kept or flat_actions_of_space(space), nvec, space, True)
        if isinstance(space, Box) and _is_numbers(bins):
            actions = FlatActions(space, _grids(bins))
        elif bins is None or isinstance(bins, FlatActions):
            actions = FlatActions.made(space, bins)
        else:
            check_bins(space, bins)  # before anything is read
            actions = FlatActions(space, bins, np.concatenate(list(log())))
        return cls(actions, actions.nvec.tolist(), space, False)

    def read(self, episode: EpisodeArrays) -> EpisodeArrays:
        """Returns an episode with choices `(T, N)`.

        Raises:
            InvalidDatasetError: an action is not in the space; the text names episode and place.
        """
        if self.is_stored_flat:
            if not np.any(getattr(self.space, "start", 0)):
                return episode
            choices = choices_of(self.space, episode.actions)
            return dataclasses.replace(episode, actions=choices)
        assert self.kept is not None
        rows = episode.actions.reshape(len(episode.actions), -1)
        check_finite("action", rows, episode.name, kind="")
        try:
            choices = self.kept.choices(rows.astype(np.float64))
        except InvalidActionError as error:
            raise InvalidDatasetError(f"Actions of {episode.name} are wrong. {error}") from error
        return dataclasses.replace(episode, actions=choices)

    def actions(self, episode: EpisodeArrays) -> Sequence[Any]:
        """Returns an episode's actions as the environment takes them."""
        if self.kept is None or self.is_stored_flat:
            return list(episode.actions)
        return [self.kept.unflatten(row) for row in self.read(episode).actions]

    def masks(self, given: Any, length: int, name: str) -> Bits:
        """Returns an episode's masks in infos, stacked in each part, as bits `(T + 1, bytes)`.

        Raises:
            InvalidDatasetError: they are of another form or length.
        """
        if self.is_stored_flat or self.kept is None:
            return pack(np.asarray(given), self.nvec, f"{INFO} of {name}")
        try:
            masks = [self.kept.mask(_step_of(given, step)) for step in range(length + 1)]
        except (IndexError, ValueError) as error:
            raise InvalidDatasetError(f"The {INFO} of {name} is wrong. {error}") from error
        return pack(np.stack(masks), self.nvec, f"{INFO} of {name}")


def _check_bins(dataset: MinariDataset, bins: BinsOf | FlatActions | None) -> None:
    try:
        has_boxes = any(part.is_binned for part in parts_of(dataset.action_space))
    except ValueError as error:
        raise InvalidDatasetError(f"Dataset {dataset.id} cannot be used. {error}") from error
    if has_boxes == (bins is None):
        raise InvalidDatasetError(
            "Expected bins= for continuous actions (bins=7 takes the nearest of 7 values of each "
            f"dimension) and none for others. Dataset {dataset.id} has {dataset.action_space}."
        )


def _is_numbers(bins: Any) -> bool:
    return is_integer(bins) or (
        isinstance(bins, Sequence | np.ndarray) and all(is_integer(n) for n in bins)
    )


def _grids(bins: Any) -> BinsOf:
    """The nearest of evenly spaced values, as `DiscretizeAction` takes them."""
    return Bins(bins, "grid") if is_integer(bins) else [Bins(n, "grid") for n in bins]


def numbers_of(space: Space[Any], actions: Any, length: int) -> NDArray[Any]:
    """Returns an episode's actions as Minari reads them: as they are, or one row of numbers each.

    Raises:
        InvalidDatasetError: they are not of this space.
    """
    if not isinstance(space, Dict | Tuple):
        return np.asarray(actions)
    try:
        return ActionNumbers(space).of_batch(actions, length)
    except InvalidActionError as error:
        raise InvalidDatasetError(f"The actions are not of the dataset's space. {error}") from error


def _step_of(mask: Any, step: int) -> Any:
    """Returns a step's mask of those that Minari has stacked in each part."""
    if isinstance(mask, Mapping):
        parts = {key: _step_of(part, step) for key, part in mask.items()}
        # Minari reads a tuple in infos as a dictionary.
        is_tuple = list(parts) == [f"{_INDEX}{i}" for i in range(len(parts))]
        return tuple(parts.values()) if parts and is_tuple else parts
    return mask[step]
