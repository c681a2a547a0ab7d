"""Import of published datasets, which are pickles, as Minari datasets."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path
from numpy.typing import NDArray

from spin_d3rlpy.data.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.restricted_pickle import Record, load_restricted, plain
from spin_d3rlpy.data.specs import LEVELS, NAMESPACE
from spin_d3rlpy.data.staging import Staging, staged_dataset
from spin_d3rlpy.data.writing import DatasetWriter, episode_buffer, recorded_scores
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

_LEVEL = "|".join(sorted(LEVELS, key=len, reverse=True))
_PUBLISHED_PATH = re.compile(
    rf"(?P<bins>[1-9]\d*)_bins/(?P<task>[A-Za-z0-9_]+-[A-Za-z0-9_]+)-(?P<level>{_LEVEL})"
    r"(?:\.pkl|\.pickle)?"
)
_PUBLISHED_NAME = re.compile(rf"{NAMESPACE}(?P<task>{TASK_NAME_PATTERN})/(?:{_LEVEL})-published-v0")
# What the columns of a replay buffer are called.
# In this order in a transition; the first name is what errors call it.
_COLUMNS = (
    ("observation", "observations", "state", "states", "obs", "s"),
    ("action", "actions", "a"),
    ("reward", "rewards", "r"),
    ("next_observation", "next_observations", "next_state", "next_states", "next_obs", "s_"),
    ("done", "dones", "terminal", "terminals", "d"),
)
# How many of a buffer's rows are filled; where there is no such number, its position says it until
# the buffer is full.
_SIZES = ("size", "current_size", "n_transitions", "length", "count")
_POSITIONS = ("ptr", "pos", "position", "pointer", "index", "idx", "mem_cntr")
# Honest files take up to about 8 bytes in memory for one on disk (whole numbers below 256).
_MEMORY_PER_BYTE = 16
_MIN_MEMORY = 2**20


def published_name(path: Path) -> str:
    """Returns a published file's name `<bins>_bins/<domain>-<task>-<level>` by its path.

    Raises:
        DatasetNotFoundError: the path has another form.
    """
    match = _published(path)
    if match is None:
        raise DatasetNotFoundError(
            f"Expected a file <bins>_bins/<domain>-<task>-<level>, got {path}. Name it "
            "with --name spin/<task>-b<bins>/<level>-published-v0 (maze: spin/maze-a<actuators>)."
        )
    task = BenchmarkTask(match["task"], int(match["bins"]))
    return f"{NAMESPACE}{task.name}/{match['level']}-published-v0"


def _published(path: Path) -> re.Match[str] | None:
    return _PUBLISHED_PATH.fullmatch("/".join(path.resolve().parts[-2:]))


def published_files(path: Path) -> list[Path]:
    """Returns the file itself, or a folder's files `<bins>_bins/<domain>-<task>-<level>`.

    Raises:
        DatasetNotFoundError: there are none.
    """
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and _published(p))
    if not found:
        raise DatasetNotFoundError(
            f"There is no file <bins>_bins/<domain>-<task>-<level> in {path}. Pass one file and "
            "--name to import a file of another name."
        )
    return found


def import_published(path: Path, name: str | None = None) -> str:
    """Writes a published file's transitions as a Minari dataset, unless that exists.

    Episodes end at done flags, where the next observation is not the next transition's observation,
    and at the time limit. Those done before the limit are terminated, others truncated; in the
    suite only `lqr` terminates, so done flags of other tasks count as truncation. Unfilled rows of
    a replay buffer are skipped.

    Args:
        path: a pickled list of `(s, a, r, s', done)`, or a pickled replay buffer.
        name: `spin/<task>/<level>-published-v0`; by the path if None.

    Returns:
        The dataset's name.

    Raises:
        DatasetNotFoundError: neither path nor `name` identifies the dataset.
        InvalidDatasetError: the name is taken by another file, or the content is invalid or does
            not fit the environment.
        DatasetWriteError: the disk is full.
    """
    name = published_name(path) if name is None else name
    match = _PUBLISHED_NAME.fullmatch(name)
    if match is None:
        raise DatasetNotFoundError(
            f"Expected a name spin/<task>-b<bins>/<level>-published-v0 or "
            f"spin/maze-a<actuators>/<level>-published-v0, got {name!r}."
        )
    task = BenchmarkTask.parse(match["task"])
    with staged_dataset(name) as staging:
        if staging is None:
            _check_source(path, name)
        else:
            try:
                _write(path, name, task, staging)
            except InvalidDatasetError as error:
                raise InvalidDatasetError(f"Cannot import {path}. {error}") from error
    return name


def _check_source(path: Path, name: str) -> None:
    """Raises an error unless the dataset was imported from this file."""
    metadata = MinariStorage.read_raw_metadata(get_dataset_path(name) / "data")
    imported = metadata.get("source", {}).get("sha256")
    if _file_digest(path) != imported:
        raise InvalidDatasetError(
            f"Dataset {name!r} exists, made from another file than {path}. Delete it "
            f"(minari delete {name}) to import this one."
        )


def _write(path: Path, name: str, task: BenchmarkTask, staging: Staging) -> None:
    with closing(gymnasium.make(task.env_id, **task.env_kwargs)) as env:
        nvec = nvec_from_space(env.action_space)
        assert env.observation_space.shape is not None
        (size,) = env.observation_space.shape
        transitions = _read_transitions(path, size, len(nvec))
        t = transitions
        edges = episode_edges(t.observations, t.following, t.done, task.max_episode_steps)
        writer = DatasetWriter(staging, env.observation_space, env.action_space, env.spec)
    with closing(writer):
        ends = enumerate(itertools.pairwise(edges))
        writer.add_all(_episode(transitions, i, *pair, task, nvec) for i, pair in ends)
    writer.finish(
        {
            "dataset_id": name,
            "description": f"Imported from a published file, {path.name}; made by its authors.",
            "requirements": ["spin-d3rlpy"],
            **recorded_scores(task),
            "source": {"file": path.name, "sha256": _file_digest(path)},
        }
    )


def _episode(
    transitions: _Transitions, i: int, start: int, end: int, task: BenchmarkTask, nvec: list[int]
) -> EpisodeBuffer:
    early = task.can_terminate and end - start < task.max_episode_steps
    terminated = early and bool(transitions.done[end - 1])
    last = transitions.following[end - 1 : end]
    episode = EpisodeArrays(
        name=f"episode {i}, which begins at transition {start},",
        observations=np.concatenate([transitions.observations[start:end], last]),
        actions=transitions.actions[start:end],
        rewards=transitions.rewards[start:end],
        terminated=terminated,
    )
    checked = stack_episodes([episode], [end - start], nvec, integral_floats=True)
    return episode_buffer(checked.observations, checked.actions, checked.rewards, terminated)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


@dataclasses.dataclass(frozen=True)
class _Transitions:
    """All transitions of a file, n rows each; actions are checked when stored."""

    observations: NDArray[np.float32]
    actions: NDArray[np.float64]
    rewards: NDArray[np.float32]
    following: NDArray[np.float32]
    done: NDArray[np.bool_]


def _read_transitions(path: Path, observation_size: int, n_slots: int) -> _Transitions:
    content = load_restricted(path)
    columns = _columns(content)
    n = len(columns[0]) if columns else 0
    if not columns or n == 0 or {len(c) for c in columns} != {n}:
        raise InvalidDatasetError(
            "Expected a list of (s, a, r, s', done), or a replay buffer with such a list or with "
            f"columns of equal length; found {type(content).__name__}."
        )
    widths = (observation_size, n_slots, 1, observation_size, 1)
    types = [np.dtype(code) for code in ("f4", "f8", "f4", "f4", "f8")]
    needed = n * sum(w * t.itemsize for w, t in zip(widths, types, strict=True))
    allowed = max(_MIN_MEMORY, _MEMORY_PER_BYTE * path.stat().st_size)
    if needed > allowed:
        raise InvalidDatasetError(
            f"Its {n} transitions would take {needed} bytes, over {_MEMORY_PER_BYTE} times the "
            "file's size: it repeats a few arrays many times, which no dataset does."
        )
    stacked = [
        _stack(column, names[0], width, kind)
        for column, names, width, kind in zip(columns, _COLUMNS, widths, types, strict=True)
    ]
    for names, array in zip(_COLUMNS[:-1], stacked[:-1], strict=True):
        finite = np.isfinite(array).all(axis=1)
        if not finite.all():
            raise InvalidDatasetError(
                f"The {names[0]} of transition {int(finite.argmin())} is not finite as float32 "
                "(NaN or infinite). Remove or repair it."
            )
    observations, actions, rewards, following, done = stacked
    if not any(array[-1].any() for array in stacked):
        filled = max(int(array.nonzero()[0].max(initial=-1)) for array in stacked) + 1
        raise InvalidDatasetError(
            f"All transitions from number {filled} on are zeros, and the file does not give the "
            "number of filled rows. Truncate the buffer there."
        )
    flags = np.isin(done[:, 0], (0, 1))
    if not flags.all():
        row = int(flags.argmin())
        raise InvalidDatasetError(
            f"Expected done to be 0 or 1, that of transition {row} is {done[row, 0]:g}."
        )
    return _Transitions(observations, actions, rewards[:, 0], following, done[:, 0] == 1)


def _columns(content: Any) -> list[Any] | None:
    """Returns observations, actions, rewards, next observations and dones, not yet stacked."""
    state = content.state if isinstance(content, Record) else content
    if isinstance(state, Mapping):
        plainly = {str(k).strip("_").removesuffix("_buf").removesuffix("_buffer"): k for k in state}
        known = {**plainly, **{str(k): k for k in state}}
        keys = [[known[n] for n in names if n in known][:1] for names in _COLUMNS]
        if all(keys):
            columns = [plain(state[key]) for (key,) in keys]
            if not all(isinstance(c, np.ndarray | list) for c in columns):
                return None
            filled = _filled({name: plain(state[key]) for name, key in known.items()})
            return [column[:filled] for column in columns]
        present = [plain(state[key]) for found in keys for key in found]
        if sum(isinstance(c, np.ndarray | list) for c in present) > 1:
            missing = [names[0] for names, key in zip(_COLUMNS, keys, strict=True) if not key]
            raise InvalidDatasetError(
                f"Expected columns of observations, actions, rewards, next observations and dones. "
                f"It has no {', no '.join(missing)}; its entries are {', '.join(map(str, state))}."
            )
        lists = [v for v in state.values() if isinstance(v, list) and v]
        state = lists[0] if len(lists) == 1 else None
    if not isinstance(state, list | tuple):
        return None
    rows = [row.arguments if isinstance(row, Record) else row for row in state]
    for i, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != len(_COLUMNS):
            raise InvalidDatasetError(
                f"Expected transitions of {len(_COLUMNS)} entries (s, a, r, s', done), "
                f"number {i} is a {type(row).__name__}."
            )
    return [[row[k] for row in rows] for k in range(len(_COLUMNS))]


def _filled(entries: Mapping[str, Any]) -> int | None:
    """Returns a buffer's number of filled rows, or None if unknown."""
    numbers = {
        name: int(value)
        for name, value in entries.items()
        if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0
    }
    sizes = [numbers[name] for name in _SIZES if name in numbers]
    if not sizes and entries.get("full") in (False, 0):
        sizes = [numbers[name] for name in _POSITIONS if name in numbers]
    return sizes[0] if sizes else None


def _stack(column: Any, name: str, width: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Returns a column's entries as `(n, width)`, each checked before it is copied."""
    out = np.empty((len(column), width), kind)
    for i, entry in enumerate(column):
        value = plain(entry)
        if isinstance(value, list | tuple) and len(value) == width:
            flat = all(isinstance(x, int | float | np.generic) for x in value)
            value = np.array(value) if flat else None
        elif isinstance(value, int | float | np.generic):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise InvalidDatasetError(
                f"Expected the {name} of transition {i} to be {width} numbers, "
                f"found {type(entry).__name__}."
            )
        if value.size != width:
            raise InvalidDatasetError(
                f"Expected the {name} of transition {i} to be {width} numbers, as the environment "
                f"has them, found shape {value.shape}."
            )
        with np.errstate(over="ignore"):  # infinite ones are reported where they are checked
            out[i] = value.reshape(-1)
    return out
