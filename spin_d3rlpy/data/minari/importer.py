"""Import of published datasets, which are pickles, as Minari datasets."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.minari.restricted_pickle import Record, load_restricted, without_placeholder
from spin_d3rlpy.data.minari.specs import LEVELS, NAMESPACE
from spin_d3rlpy.data.minari.staging import (
    Staging,
    episode_buffer,
    recorded_scores,
    staged_dataset,
    write_episodes,
)
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from spin_d3rlpy.files.untrusted import require_memory
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

_LEVEL = "|".join(sorted(LEVELS, key=len, reverse=True))
_PATH = re.compile(
    rf"(?P<bins>[1-9]\d*)_bins/(?P<task>[A-Za-z0-9_]+-[A-Za-z0-9_]+)-(?P<level>{_LEVEL})"
    r"(?:\.pkl|\.pickle)?"
)
_NAME = re.compile(rf"{NAMESPACE}(?P<task>{TASK_NAME_PATTERN})/(?:{_LEVEL})-published-v0")
# Honest files take up to about 8 bytes in memory for one on disk (whole numbers below 256).
_MEMORY_PER_BYTE = 16
_MIN_MEMORY = 2**20
_ADVICE = "Free memory, or check whether the file is damaged."
# Names of the columns of replay buffers, in the order of a transition's entries.
_COLUMNS = (
    ("states", "state", "observations", "obs"),
    ("actions", "action", "acts"),
    ("rewards", "reward", "rews"),
    ("next_states", "next_state", "next_observations", "next_obs"),
    ("dones", "done", "terminals", "terminated"),
)
_SIZES = ("size", "_size", "current_size")
_POSITIONS = ("ptr", "_ptr", "position", "pos")


def published_files(path: Path) -> list[Path]:
    """Returns the file itself, or a folder's files `<bins>_bins/<domain>-<task>-<level>`.

    Raises:
        DatasetNotFoundError: the folder has no such file.
    """
    if path.is_file():
        return [path]
    files = sorted(p for p in path.rglob("*") if p.is_file() and _name_of(p))
    if not files:
        raise DatasetNotFoundError(
            f"There is no file <bins>_bins/<domain>-<task>-<level> in {path}. Pass one file and "
            "--name to import a file of another name."
        )
    return files


def _name_of(path: Path) -> str | None:
    """Returns the name of a published file's dataset; None for other files."""
    match = _PATH.fullmatch("/".join(path.resolve().parts[-2:]))
    if match is None:
        return None
    task = BenchmarkTask(match["task"], int(match["bins"]))
    return f"{NAMESPACE}{task.name}/{match['level']}-published-v0"


def import_published(path: Path, name: str | None = None) -> str:
    """Writes a published file's transitions as a Minari dataset, unless that exists.

    Episodes end at done flags, where the next observation is not the next transition's observation,
    and at the time limit. Those done before the limit are terminated, others truncated; in the
    suite only `lqr` terminates, so done flags of other tasks count as truncation.

    Args:
        path: a pickled list of `(s, a, r, s', done)`, or a pickled replay buffer with such a list
            or with one array for each entry. Of such arrays the first `size` rows are read, from
            the oldest to the newest if `ptr` says that a full buffer was overwritten.
        name: `spin/<task>/<level>-published-v0`; by the path if None.

    Returns:
        The dataset's name.

    Raises:
        DatasetNotFoundError: the path tells no name and none is given.
        InvalidDatasetError: the content is not transitions, or the name is taken by another file's.
    """
    name = name or _name_of(path)
    match = _NAME.fullmatch(name or "")
    if name is None or match is None:
        raise DatasetNotFoundError(
            f"Expected a file <bins>_bins/<domain>-<task>-<level>, or --name "
            "spin/<task>-b<bins>/<level>-published-v0 (maze: spin/maze-a<actuators>/...), got "
            f"{name or path}."
        )
    with path.open("rb") as file:
        source = {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    with staged_dataset(name) as staging:
        if staging is not None:
            try:
                _write(path, name, BenchmarkTask.parse(match["task"]), staging, source)
            except InvalidDatasetError as error:
                raise InvalidDatasetError(f"Cannot import {path}. {error}") from error
            return name
    metadata = MinariStorage.read_raw_metadata(get_dataset_path(name) / "data")
    if metadata.get("source", {}).get("sha256") != source["sha256"]:
        raise InvalidDatasetError(
            f"Dataset {name!r} exists, made from another file than {path}. Delete it "
            f"(minari delete {name}) to import this one."
        )
    return name


def _write(
    path: Path, name: str, task: BenchmarkTask, staging: Staging, source: dict[str, str]
) -> None:
    with closing(gymnasium.make(task.env_id, **task.env_kwargs)) as env:
        nvec = nvec_from_space(env.action_space)
        assert env.observation_space.shape is not None
        transitions = _read_transitions(path, env.observation_space.shape[0], len(nvec))
    episodes = _episodes(transitions, task, nvec)
    storage = write_episodes(staging, env.observation_space, env.action_space, env.spec, episodes)
    storage.update_metadata(
        {
            "dataset_id": name,
            "description": f"Imported from a published file, {path.name}; made by its authors.",
            "requirements": ["spin-d3rlpy"],
            **recorded_scores(task),
            "source": source,
        }
    )


def _episodes(
    transitions: NDArray[Any], task: BenchmarkTask, nvec: list[int]
) -> Iterator[EpisodeBuffer]:
    observations, following = transitions["observation"], transitions["next_observation"]
    done = transitions["done"] == 1
    edges = episode_edges(observations, following, done, task.max_episode_steps)
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        early = task.can_terminate and end - start < task.max_episode_steps
        episode = EpisodeArrays(
            name=f"episode {i}, which begins at transition {start},",
            observations=np.concatenate([observations[start:end], following[end - 1 : end]]),
            actions=transitions["action"][start:end],
            rewards=transitions["reward"][start:end],
            terminated=early and bool(done[end - 1]),
        )
        checked = stack_episodes([episode], [end - start], nvec, integral_floats=True)
        yield episode_buffer(
            checked.observations, checked.actions, checked.rewards, episode.terminated
        )


def episode_edges(
    observations: NDArray[np.float32],
    following: NDArray[np.float32],
    done: NDArray[np.bool_],
    max_episode_steps: int,
) -> list[int]:
    """Returns the starts of the episodes of n transitions, and n; rows are `(n, obs)`."""
    breaks = done.copy()
    breaks[:-1] |= (following[:-1] != observations[1:]).any(axis=1)
    breaks[-1] = True
    edges = [0]
    for end in (np.flatnonzero(breaks) + 1).tolist():
        # An episode that ends where the next one starts does not show otherwise.
        edges += range(edges[-1] + max_episode_steps, end, max_episode_steps)
        edges.append(end)
    return edges


def _read_transitions(path: Path, observation_size: int, n_slots: int) -> NDArray[Any]:
    """Returns a file's transitions as a structured array; actions are checked when stored."""
    kind = np.dtype(
        [
            ("observation", "f4", (observation_size,)),
            ("action", "f8", (n_slots,)),
            ("reward", "f4"),
            ("next_observation", "f4", (observation_size,)),
            ("done", "f8"),
        ]
    )
    # A file with holes takes little space on the disk.
    require_memory(path.stat().st_size, f"Reading {path}", _ADVICE, InvalidDatasetError)
    content = load_restricted(path)
    stored = _stored_columns(content)
    rows = [] if stored else _rows(content)
    order = _time_order(content.state if isinstance(content, Record) else content, stored)
    n = len(order) if stored else len(rows)
    if n * kind.itemsize > max(_MIN_MEMORY, _MEMORY_PER_BYTE * path.stat().st_size):
        raise InvalidDatasetError(
            f"Its {n} transitions take over {_MEMORY_PER_BYTE} times the file's size: "
            "it repeats a few arrays many times, which no dataset does."
        )
    what = f"A table of the {n} transitions of {path}"
    require_memory(n * kind.itemsize, what, _ADVICE, InvalidDatasetError)
    transitions = np.empty(n, kind)
    columns = {name: transitions[name].reshape(n, -1) for name in kind.names or ()}
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        if stored:
            _fill_by_column(columns, stored, order)
        else:
            _fill_by_row(columns, rows)
    done = columns.pop("done")[:, 0]
    wrong = np.flatnonzero(~np.isin(done, (0, 1)))
    if len(wrong):
        i = wrong[0]
        raise InvalidDatasetError(f"Expected done 0 or 1, that of transition {i} is {done[i]:g}.")
    return transitions


def _fill_by_row(columns: Mapping[str, NDArray[Any]], rows: list[Any]) -> None:
    for i, row in enumerate(rows):
        entries = row.arguments if isinstance(row, Record) else row
        if not isinstance(entries, tuple | list) or len(entries) != len(columns):
            raise InvalidDatasetError(
                f"Expected transitions of {len(columns)} entries (s, a, r, s', done), "
                f"number {i} is a {_described(entries)}."
            )
        for (name, column), entry in zip(columns.items(), entries, strict=True):
            column[i] = _numbers(entry, column.shape[1], f"{name} of transition {i}")


def _fill_by_column(
    columns: Mapping[str, NDArray[Any]], stored: list[NDArray[Any]], order: NDArray[np.int64]
) -> None:
    for (name, column), array in zip(columns.items(), stored, strict=True):
        width = column.shape[1]
        if array.dtype.kind not in "biuf" or array.size != len(array) * width:
            raise InvalidDatasetError(
                f"Expected the {name} of each transition to be {width} numbers, as the environment "
                f"has them, found an array of shape {array.shape} and type {array.dtype}."
            )
        column[:] = array.reshape(len(array), width)[order]


def _stored_columns(content: Any) -> list[NDArray[Any]]:
    """Returns the five arrays of a replay buffer by columns; none for other content."""
    state = content.state if isinstance(content, Record) else content
    if not isinstance(state, Mapping):
        return []
    entries = [
        next((without_placeholder(state[n]) for n in names if n in state), None)
        for names in _COLUMNS
    ]
    arrays = [a for a in entries if isinstance(a, np.ndarray) and a.ndim]
    if not arrays:
        return []
    if len(arrays) < len(_COLUMNS):
        raise InvalidDatasetError(
            "Expected a replay buffer with arrays of states, actions, rewards, next_states and "
            f"dones; its entries are {', '.join(map(str, state))}."
        )
    lengths = [len(a) for a in arrays]
    if len(set(lengths)) > 1 or not all(a.size for a in arrays):
        raise InvalidDatasetError(
            f"Expected arrays with the same number of transitions, at least one; got {lengths}."
        )
    return arrays


def _time_order(state: Any, stored: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Returns the numbers of a buffer's filled rows, from the oldest to the newest."""
    if not stored:
        return np.arange(0)
    room = len(stored[0])
    position = _whole_number(state, _POSITIONS)
    size = _whole_number(state, _SIZES)
    if size is None:
        if any(array[-1].any() for array in stored):
            size = room
        else:
            raise InvalidDatasetError(
                "The buffer's last rows are zeros, and it has no size to say how many rows are "
                "filled. Cut its arrays after the last transition."
            )
    if not 0 < size <= room:
        raise InvalidDatasetError(
            f"Expected a buffer with a size from 1 to {room}, the rows of its arrays, got {size}."
        )
    if position is not None and not 0 <= position <= room:
        raise InvalidDatasetError(f"Expected ptr from 0 to {room}, the buffer's rows: {position}.")
    rows = np.arange(size)
    return np.roll(rows, -position) if size == room and position else rows


def _whole_number(state: Mapping[Any, Any], names: tuple[str, ...]) -> int | None:
    values = (state[name] for name in names if name in state)
    return next((int(v) for v in values if isinstance(v, int | np.integer)), None)


def _described(value: Any) -> str:
    """Names what a file holds in a reader's words."""
    if isinstance(value, Record):
        return f"an object with the entries {', '.join(map(str, value.state)) or '(none)'}"
    return type(without_placeholder(value)).__name__


def _rows(content: Any) -> list[Any]:
    state = content.state if isinstance(content, Record) else content
    if isinstance(state, Mapping):
        lists = [value for value in state.values() if isinstance(value, list) and value]
        state = lists[0] if len(lists) == 1 else None
    if not isinstance(state, list | tuple) or not state:
        raise InvalidDatasetError(
            "Expected a list of (s, a, r, s', done), or a replay buffer with such a list or with "
            f"arrays by column; found {_described(content)}."
        )
    return list(state)


def _numbers(entry: Any, n: int, name: str) -> NDArray[Any]:
    """Returns an entry of a transition as an array of `n` numbers."""
    array = value = without_placeholder(entry)
    listed = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(x, int | float | np.generic) for x in listed):
        array = np.array(listed)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.size != n:
        raise InvalidDatasetError(
            f"Expected the {name} to be {n} numbers, as the environment has them, found "
            f"{_described(value)} {getattr(array, 'shape', '')}."
        )
    return array.reshape(-1)
