"""Reading episodes from Minari datasets and d3rlpy replay buffers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from d3rlpy.dataset import BasicTransitionPicker, EpisodeBase, MixedReplayBuffer, ReplayBufferBase
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from minari import MinariDataset
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.episodes import (
    EpisodeArrays,
    StackedEpisodes,
    no_transitions,
    stack_episodes,
)
from spin_d3rlpy.data.buffer.masks import BITS_KEY, INFO, Bits, bytes_of, pack
from spin_d3rlpy.data.minari.actions import ActionReader, numbers_of
from spin_d3rlpy.data.minari.environments import HDF5_FILE, check_episode_count
from spin_d3rlpy.data.minari.info_rewards import RewardReader
from spin_d3rlpy.data.minari.records import misplaced_end, record_problems
from spin_d3rlpy.data.minari.staging import Checksum
from spin_d3rlpy.data.observation_spaces import (
    is_vector,
    layout_of_arrays,
    observation_layout_of,
    split_episode,
)
from spin_d3rlpy.data.rounding import StateRounding
from spin_d3rlpy.errors import InvalidDatasetError, InvalidObservationError, SpinError
from spin_d3rlpy.files.untrusted import require_memory
from spin_d3rlpy.nvec import check_nvec
from spin_envs import FlatActions, ObservationLayout
from spin_envs.flat_actions import BinsOf

_MAX_RATIO = 1100  # of bytes in memory to bytes stored: deflate reaches 1032
_MIN_ARRAY = 2**20  # bytes that an array may always take
_ADVICE = "Pass max_episodes= to read fewer, or check whether the dataset is damaged."
# What h5py, Minari and NumPy raise for files that are not what they should be.
DAMAGE = (
    OSError,
    KeyError,
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    AssertionError,
    MemoryError,
    OverflowError,
)


def read_minari(
    dataset: MinariDataset,
    max_episodes: int | None = None,
    bins: BinsOf | FlatActions | None = None,
    map_in: Path | None = None,
    rewards: RewardReader | None = None,
) -> tuple[StackedEpisodes, FlatActions | None]:
    """Reads episodes of T + 1 observations and T actions, which d3rlpy's `get_minari` misaligns.

    `rewards` reads several rewards of each step. The second result is how choices become what the
    dataset's environment takes, unless both are the same.

    Raises:
        InvalidDatasetError: files are damaged, or there are no usable transitions.
        ValueError: `max_episodes` below 1, or bad bins.
    """
    if max_episodes is not None and max_episodes < 1:
        raise ValueError(f"Expected max_episodes to be at least 1, got {max_episodes}.")
    check_episode_count(dataset.storage.data_path, len(dataset.episode_indices), dataset.id)
    indices = [int(i) for i in dataset.episode_indices[:max_episodes]]
    if not indices:  # an empty hdf5 file cannot even be opened
        raise no_transitions()
    try:
        actions = ActionReader.of(dataset, bins, lambda: _logged_numbers(dataset, indices))
    except SpinError:
        raise
    except DAMAGE as error:
        if isinstance(error, ValueError) and bins is not None:  # of the bins
            raise
        raise _damaged(dataset, error) from error
    try:
        checksum = Checksum()
        lengths, episodes = _open_episodes(dataset, indices, actions, checksum, rewards)
        named: list[NDArray[np.float32]] = []
        with closing(episodes):
            chosen: Iterator[EpisodeArrays] = map(actions.read, episodes)
            if rewards is not None:
                chosen = _with_rewards(chosen, rewards, named)
            rounding = StateRounding()
            stacked = stack_episodes(
                chosen,
                lengths,
                actions.nvec,
                map_in=map_in,
                rounding=rounding,
                observation_layout=_images_of(dataset),
            )
    except SpinError:
        raise
    except DAMAGE as error:
        raise _damaged(dataset, error) from error
    rounding.warn(f"dataset {dataset.id}")
    if len(indices) == int(dataset.storage.total_episodes):
        _compare_with_record(dataset, stacked, checksum)
    if rewards is not None:
        stacked = rewards.add(stacked, np.concatenate(named))
    return stacked, actions.kept


def _images_of(dataset: MinariDataset) -> ObservationLayout | None:
    """Returns where images and numbers of a dataset's observations lie; None without images.

    Raises:
        InvalidDatasetError: next to images there is what networks cannot take.
    """
    try:
        return observation_layout_of(
            dataset.observation_space, f"Dataset {dataset.id} cannot be used."
        )
    except InvalidObservationError as error:
        raise InvalidDatasetError(str(error)) from error


def _damaged(dataset: MinariDataset, error: Exception) -> InvalidDatasetError:
    return InvalidDatasetError(
        f"Dataset {dataset.id} cannot be read ({error!r}). Its files are damaged: delete them to "
        "build or download it again."
    )


def _logged_numbers(dataset: MinariDataset, indices: list[int]) -> Iterator[NDArray[np.float64]]:
    """Yields the numbers of each episode's actions, `(T, N)`."""
    if dataset.storage.FORMAT == "hdf5":
        _check_declared_sizes(dataset.storage.data_path / HDF5_FILE, indices)
    for stored in dataset.storage.get_episodes(indices):
        length = len(np.asarray(stored["rewards"]))
        numbers = numbers_of(dataset.action_space, stored["actions"], length)
        yield numbers.reshape(length, -1).astype(np.float64)


def _compare_with_record(
    dataset: MinariDataset, stacked: StackedEpisodes, checksum: Checksum
) -> None:
    """Warns if the data are not what the dataset's metadata say; a record that is none is none."""
    starts = np.cumsum([0, *stacked.lengths[:-1]])
    returns = np.add.reduceat(stacked.rewards.astype(np.float64), starts).tolist()
    digest = str(checksum) if checksum.episodes == len(starts) else None
    try:
        problems = record_problems(dataset.storage.metadata, stacked.lengths, returns, digest)
    except (KeyError, TypeError, ValueError, AttributeError):  # of another program
        return
    if problems:
        warnings.warn(
            f"Dataset {dataset.id} differs from its own record: {' '.join(problems[:3])} Delete it "
            "to build or download it again; `spin-d3rlpy data check` says more.",
            UserWarning,
            stacklevel=2,
        )


def _with_rewards(
    episodes: Iterable[EpisodeArrays], reader: RewardReader, read: list[NDArray[np.float32]]
) -> Iterator[EpisodeArrays]:
    """Yields the episodes, and adds each one's several rewards `(T, R)` to a list."""
    for episode in episodes:
        arrays = episode.observations, episode.actions, episode.rewards
        read.append(reader.read(episode.infos, *arrays, episode.name))
        yield episode


def _open_episodes(
    dataset: MinariDataset,
    indices: Sequence[int],
    actions: ActionReader,
    checksum: Checksum,
    rewards: RewardReader | None,
) -> tuple[list[int], Generator[EpisodeArrays]]:
    """Returns the episodes' lengths and an iterator of episodes, which adds to the checksum."""
    flat = isinstance(dataset.observation_space, Box) and len(dataset.observation_space.shape) == 1
    if isinstance(dataset.action_space, Dict | Tuple):
        flat = False
    if not flat or dataset.storage.FORMAT != "hdf5":
        if dataset.storage.FORMAT == "hdf5":
            _check_declared_sizes(dataset.storage.data_path / HDF5_FILE, indices)
        lengths = [int(m["total_steps"]) for m in dataset.storage.get_episode_metadata(indices)]
        raw = zip(indices, dataset.storage.get_episodes(indices), strict=True)
        return lengths, _stored_episodes(dataset, raw, actions)
    file = h5py.File(dataset.storage.data_path / HDF5_FILE, "r")
    # HDF5's metadata cache would take 30 kB per episode, and is never reused.
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = 2**16
    file.id.set_mdc_config(config)
    groups = [_member(file.id, f"episode_{i}", h5py.h5g) for i in indices]
    lengths = [_total_steps(group) for group in groups]
    members = zip(indices, groups, lengths, strict=True)
    keys = [] if rewards is None else rewards.keys
    return lengths, _hdf5_episodes(dataset, file, members, actions, checksum, keys)


def _stored_episodes(
    dataset: MinariDataset, raw: Iterable[tuple[int, Mapping[str, Any]]], actions: ActionReader
) -> Generator[EpisodeArrays]:
    for index, stored in raw:
        episode = episode_arrays(dataset, index, stored, actions)
        ends = stored["terminations"], stored["truncations"]
        _require_ends(dataset, *ends, len(episode.rewards), episode.name)
        yield episode


def _require_ends(
    dataset: MinariDataset, terminations: object, truncations: object, length: int, name: str
) -> None:
    if problem := misplaced_end(terminations, truncations, length, name):
        raise InvalidDatasetError(
            f"{problem} The steps of dataset {dataset.id} belong to other episodes than it says: "
            "correct its terminations and truncations, or cut its episodes there."
        )


def _hdf5_episodes(
    dataset: MinariDataset,
    file: Any,
    groups: Iterable[tuple[int, Any, int]],
    reader: ActionReader,
    checksum: Checksum,
    keys: Sequence[str],
) -> Generator[EpisodeArrays]:
    """Reads the required arrays of each episode after checking their declared sizes.

    (Minari also reads infos, and allocates any declared size.) `keys` are infos to read.
    """
    with file:
        for index, group, length in groups:
            name = f"episode {index}"
            shape = (length + 1, *dataset.observation_space.shape)
            terminations = _array(group, "terminations", (length,), name)
            truncations = _array(group, "truncations", (length,), name)
            _require_ends(dataset, terminations, truncations, length, name)
            masks = _hdf5_masks(group, length, reader.nvec, name)
            observations = _array(group, "observations", shape, name)
            actions = _array(group, "actions", (length, *dataset.action_space.shape), name)
            rewards = _array(group, "rewards", (length,), name)
            checksum.add(observations, actions, rewards)
            checksum.add(terminations)
            checksum.episodes += 1
            yield EpisodeArrays(
                name=name,
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminated=length > 0 and bool(terminations[-1]),
                masks=masks,
                infos=_hdf5_infos(group, keys, length, name) if keys else {},
            )


def _hdf5_masks(group: Any, length: int, nvec: list[int], name: str) -> Bits | None:
    """Reads an episode's masks from its infos: our bits, or arrays as environments give them."""
    if not group.links.exists(b"infos"):
        return None
    infos = _member(group, "infos", h5py.h5g)
    if infos.links.exists(BITS_KEY.encode()):
        return _array(infos, BITS_KEY, (length + 1, bytes_of(nvec)), name)
    if infos.links.exists(INFO.encode()):
        stored = _member(infos, INFO, h5py.h5d).shape
        per_state = stored[1:] if len(stored) == 2 else (len(nvec), max(nvec))  # flat, or (N, K)
        masks = _array(infos, INFO, (length + 1, *per_state), name)
        return pack(masks, nvec, f"{INFO} of {name}")
    return None


def _hdf5_infos(group: Any, keys: Sequence[str], length: int, name: str) -> dict[str, NDArray[Any]]:
    """Reads numbers of an episode's infos, `(T,)` or `(T + 1,)`, those that there are."""
    if not group.links.exists(b"infos"):
        return {}
    infos = _member(group, "infos", h5py.h5g)
    read = {}
    for key in keys:
        if infos.links.exists(key.encode()):
            stored = _member(infos, key, h5py.h5d).shape
            shape = (length,) if stored == (length,) else (length + 1,)
            read[key] = _array(infos, key, shape, name)
    return read


# h5py's classes for groups and datasets cost more time than reading an episode does.


def _array(group: Any, key: str, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    data = _member(group, key, h5py.h5d)
    created = data.get_create_plist()
    elsewhere = created.get_layout() == h5py.h5d.VIRTUAL or created.get_external_count()
    if data.shape != shape or data.dtype.kind not in "biuf" or elsewhere:
        raise InvalidDatasetError(
            f"Expected {key} of {name} to be numbers in this file of shape {shape}, found shape "
            f"{data.shape} and dtype {data.dtype}{' elsewhere' if elsewhere else ''}."
        )
    needed = math.prod(shape) * data.dtype.itemsize
    _check_size(needed, data.get_storage_size(), f"{key} of {name}")
    array: NDArray[Any] = np.empty(shape, data.dtype)
    data.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return array


def _check_size(needed: int, stored: int, what: str) -> None:
    """Compares an array's bytes in memory with those in the file, and with what is available."""
    if needed > max(_MIN_ARRAY, _MAX_RATIO * stored):
        raise InvalidDatasetError(
            f"The {what} take {needed} bytes in memory and {stored} in the file: most of them are "
            "not stored."
        )
    # Zeros compress by a thousand, so that the ratio alone lets small files grow to gigabytes. To
    # ask for the memory that is left takes longer than to read a short episode.
    if needed > _MIN_ARRAY:
        require_memory(needed, f"Reading the {what}", _ADVICE, InvalidDatasetError)


def _check_declared_sizes(path: Path, indices: Iterable[int]) -> None:
    """Checks what Minari would allocate for each episode, infos included."""
    with h5py.File(path, "r") as file:
        for index in indices:
            total = 0
            for array in _arrays(file[f"episode_{index}"]):
                what = f"{array.name} of episode {index}"
                _check_size(array.nbytes, array.id.get_storage_size(), what)
                total += array.nbytes
            require_memory(total, f"Reading episode {index}", _ADVICE, InvalidDatasetError)


def _arrays(group: Any) -> Iterator[Any]:
    """Yields the arrays in a group and the groups below it, of which links are no part."""
    arrays: list[Any] = []

    def visit(_name: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset):
            arrays.append(member)

    group.visititems(visit)
    yield from arrays


def _member(group: Any, key: str, kind: Any) -> Any:
    """Opens a member of the group; links, which could lead to any file, are refused."""
    if group.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
        raise InvalidDatasetError(f"{key} is a link to another file.")
    return kind.open(group, key.encode())


def _total_steps(group: Any) -> int:
    attribute = h5py.h5a.open(group, b"total_steps")
    if attribute.shape != ():
        raise InvalidDatasetError(f"Expected one total_steps per episode, got {attribute.shape}.")
    value = np.empty((), np.int64)
    attribute.read(value)
    return int(value)


def episode_arrays(
    dataset: MinariDataset, index: int, episode: Mapping[str, Any], actions: ActionReader
) -> EpisodeArrays:
    """Converts an episode from Minari's storage, but for its actions, which `actions` reads.

    Raises as `flatten_observations`.
    """
    infos, rewards = episode.get("infos") or {}, np.asarray(episode["rewards"])
    masks = None
    if BITS_KEY in infos:
        masks = np.asarray(infos[BITS_KEY])
    elif INFO in infos:
        masks = actions.masks(infos[INFO], len(rewards), f"episode {index}")
    name, images = f"episode {index}", None
    if (layout := _images_of(dataset)) is not None:
        seen = episode["observations"]
        observations, images = split_episode(layout, seen, len(rewards) + 1, name)
    else:
        observations = flatten_observations(
            dataset.observation_space, episode["observations"], f"dataset {dataset.id}"
        )
    return EpisodeArrays(
        name=name,
        observations=observations,
        images=images,
        actions=numbers_of(dataset.action_space, episode["actions"], len(rewards)),
        rewards=rewards,
        terminated=bool(episode["terminations"][-1]),
        masks=masks,
        infos=infos,
    )


def flatten_observations(space: Space[Any], observations: Any, source: str) -> NDArray[Any]:
    """Returns an episode's observations `(T + 1, obs)`, flattened as by Gymnasium's `flatten`.

    Raises:
        InvalidDatasetError: a part of the space has no fixed size.
    """
    if is_vector(space):
        return np.asarray(observations)
    return np.concatenate(_parts(space, observations, source), axis=1)


def _parts(space: Space[Any], observations: Any, source: str) -> list[NDArray[Any]]:
    if isinstance(space, Dict | Tuple):
        inside = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return [p for key, inner in inside for p in _parts(inner, observations[key], source)]
    rows = np.asarray(observations)
    rows = rows.reshape(len(rows), -1)
    if isinstance(space, Box | MultiBinary):
        return [rows]
    if isinstance(space, Discrete | MultiDiscrete):
        columns = (rows - np.ravel(space.start)).T
        sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
        return [np.eye(n, dtype=np.float32)[c] for c, n in zip(columns, sizes, strict=True)]
    raise InvalidDatasetError(
        f"Observations of {source} have a part that cannot be flattened to a vector: {space}."
    )


def read_d3rlpy(
    buffer: ReplayBufferBase,
    nvec: Sequence[int],
    observation_layout: ObservationLayout | None = None,
) -> StackedEpisodes:
    """Reads a d3rlpy replay buffer's episodes, with T observations for T actions.

    The last transition of a terminated one is kept, with its observation repeated as a next one
    that is never used. `observation_layout` is that of rows with images. Buffers with features
    that would be ignored (frame stacks, ...) are refused.

    Raises:
        InvalidDatasetError: a buffer with features that would be ignored.
    """
    picker = type(getattr(buffer, "transition_picker", None))
    if isinstance(buffer, MixedReplayBuffer) or picker is not BasicTransitionPicker:
        raise InvalidDatasetError(
            "Expected a replay buffer with the default BasicTransitionPicker (for a "
            "MixedReplayBuffer, pass one of its buffers), got a "
            f"{type(buffer).__name__} with a {picker.__name__}. Its episodes are read, step by "
            "step, from ReplayBuffer(InfiniteBuffer(), episodes=buffer.episodes)."
        )
    episodes = [(i, e) for i, e in enumerate(buffer.episodes) if e.transition_count]
    lengths = [e.transition_count for _, e in episodes]
    rounding = StateRounding()
    layout = None
    if episodes:
        layout = layout_of_arrays(episodes[0][1].observations, observation_layout)
    stacked = stack_episodes(
        (_from_d3rlpy(i, e, layout) for i, e in episodes),
        lengths,
        check_nvec(nvec),
        integral_floats=True,
        rounding=rounding,
        observation_layout=layout,
    )
    rounding.warn("the replay buffer")
    return stacked


def largest_choices(buffer: ReplayBufferBase) -> list[int]:
    """Returns each slot's largest choice plus one in a d3rlpy buffer.

    Raises:
        InvalidDatasetError: there are no transitions.
    """
    if not buffer.episodes:
        raise no_transitions()
    largest = [e.actions.reshape(len(e.actions), -1).max(0) for e in buffer.episodes]
    return [int(m) + 1 for m in np.max(largest, axis=0)]


def _from_d3rlpy(
    index: int, episode: EpisodeBase, layout: ObservationLayout | None
) -> EpisodeArrays:
    if layout is None and not isinstance(episode.observations, np.ndarray):
        raise InvalidDatasetError(
            f"Expected flat observations, episode {index} has a tuple of arrays to concatenate."
        )
    length, name = episode.transition_count, f"episode {index}"
    rewards = np.asarray(episode.rewards)
    observations: Any = episode.observations
    images: Any = None
    if layout is not None:
        observations, images = split_episode(layout, observations, len(rewards), name)
    if episode.terminated:
        observations = np.concatenate([observations, observations[-1:]])
        images = None if images is None else np.concatenate([images, images[-1:]])
    return EpisodeArrays(
        name=name,
        observations=observations,
        images=images,
        actions=np.asarray(episode.actions)[:length],
        rewards=(rewards[:, 0] if rewards.shape[1:] == (1,) else rewards)[:length],
        terminated=bool(episode.terminated),
    )
