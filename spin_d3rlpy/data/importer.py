"""Published datasets, which are pickles, as Minari datasets."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from numpy.typing import NDArray

from spin_d3rlpy.data.builder import Checksum, return_statistics, staged_dataset
from spin_d3rlpy.data.episodes import EpisodeArrays, action_dtype, stack_episodes
from spin_d3rlpy.data.restricted_pickle import Record, load_restricted, plain
from spin_d3rlpy.data.specs import LEVELS, NAMESPACE
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs import reference_scores
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

_LEVEL = "|".join(sorted(LEVELS, key=len, reverse=True))
_PUBLISHED_PATH = re.compile(
    rf"(?P<bins>[1-9]\d*)_bins/(?P<task>[A-Za-z0-9_]+-[A-Za-z0-9_]+)-(?P<level>{_LEVEL})"
    r"(?:\.pkl|\.pickle)?"
)
_PUBLISHED_NAME = re.compile(rf"{NAMESPACE}(?P<task>{TASK_NAME_PATTERN})/(?:{_LEVEL})-published-v0")
# What the columns of a replay buffer are called.
_COLUMNS = (
    ("observation", "observations", "state", "states", "obs", "s"),
    ("action", "actions", "a"),
    ("reward", "rewards", "r"),
    ("next_observation", "next_observations", "next_state", "next_states", "next_obs", "s_"),
    ("done", "dones", "terminal", "terminals", "d"),
)


def published_name(path: Path) -> str:
    """Names a published file `<bins>_bins/<domain>-<task>-<level>` by its path.

    Raises:
        DatasetNotFoundError: the path has another form.
    """
    match = _PUBLISHED_PATH.fullmatch("/".join(path.resolve().parts[-2:]))
    if match is None:
        raise DatasetNotFoundError(
            f"Expected a file <bins>_bins/<domain>-<task>-<level>, got {path}. Say what it is "
            "with --name spin/<task>-b<bins>/<level>-published-v0 (maze: spin/maze-a<actuators>)."
        )
    task = BenchmarkTask(match["task"], int(match["bins"]))
    return f"{NAMESPACE}{task.name}/{match['level']}-published-v0"


def published_files(path: Path) -> list[Path]:
    """Returns the file itself, or a folder's files `<bins>_bins/<domain>-<task>-<level>`.

    Raises:
        DatasetNotFoundError: there are none.
    """
    if path.is_file():
        return [path]
    found = sorted(
        p
        for p in (path.rglob("*") if path.is_dir() else [])
        if p.is_file() and _PUBLISHED_PATH.fullmatch("/".join(p.resolve().parts[-2:]))
    )
    if not found:
        raise DatasetNotFoundError(
            f"Found no file <bins>_bins/<domain>-<task>-<level> in {path}. Pass one file and "
            "--name to import a file of another name."
        )
    return found


def import_published(path: Path, name: str | None = None) -> str:
    """Writes a published file's transitions as a Minari dataset, unless that is there already.

    Episodes end where a transition is done, where its next observation is not the next
    transition's observation, and at the environment's time limit. One that is done before the
    limit was terminated, the others are truncated.

    Args:
        path: a pickled list of `(s, a, r, s', done)`, or a pickled replay buffer.
        name: name of the dataset, `spin/<task>/<level>-published-v0`; by the path if None.

    Returns:
        The dataset's name.

    Raises:
        DatasetNotFoundError: neither path nor `name` says what it is.
        InvalidDatasetError: it holds something else, or does not fit the environment.
    """
    name = published_name(path) if name is None else name
    match = _PUBLISHED_NAME.fullmatch(name)
    if match is None:
        raise DatasetNotFoundError(
            f"Expected a name spin/<task>-b<bins>/<level>-published-v0 or "
            f"spin/maze-a<actuators>/<level>-published-v0, got {name!r}."
        )
    task = BenchmarkTask.parse(match["task"])
    with staged_dataset(name) as folder:
        if folder is not None:
            _write(path, name, task, folder)
    return name


def _write(path: Path, name: str, task: BenchmarkTask, folder: Path) -> None:
    observations, actions, rewards, following, done = _columns(load_restricted(path), path)
    with closing(gymnasium.make(task.env_id, **task.env_kwargs)) as env:
        size = env.observation_space.shape
        if observations.shape[1:] != size or following.shape != observations.shape:
            raise InvalidDatasetError(
                f"Observations of {task.env_id} have shape {size}, those in {path} "
                f"{observations.shape[1:]} and {following.shape[1:]}."
            )
        storage = MinariStorage.new(
            folder,
            observation_space=env.observation_space,
            action_space=env.action_space,
            env_spec=env.spec,
            data_format="hdf5",
        )
        nvec = nvec_from_space(env.action_space)
    checksum, returns = Checksum(), []
    edges = episode_edges(observations, following, done, task.max_episode_steps)
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        terminated = bool(done[end - 1]) and end - start < task.max_episode_steps
        episode = EpisodeArrays(
            name=f"episode {i}",
            observations=np.concatenate([observations[start:end], following[end - 1 : end]]),
            actions=actions[start:end],
            rewards=rewards[start:end],
            terminated=terminated,
        )
        checked = stack_episodes([episode], [end - start], nvec, integral_floats=True)
        flags = np.zeros((2, end - start), dtype=bool)
        flags[0 if terminated else 1, -1] = True
        checksum.add(checked.observations, checked.actions, checked.rewards, flags[0])
        returns.append(float(checked.rewards.sum(dtype=np.float64)))
        storage.update_episodes(
            [
                EpisodeBuffer(
                    observations=checked.observations,
                    actions=checked.actions.astype(action_dtype(nvec)),
                    rewards=checked.rewards,
                    terminations=flags[0],
                    truncations=flags[1],
                    infos={},
                )
            ]
        )
    scores = reference_scores(task.env_id, **task.env_kwargs)
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": minari.__version__,
            "description": f"Imported from a published file, {path.name}; made by its authors.",
            "requirements": ["spin-d3rlpy"],
            **({} if scores is None else {"ref_min_score": scores[0], "ref_max_score": scores[1]}),
            "returns": return_statistics(returns),
            "checksum": str(checksum),
        }
    )


def episode_edges(
    observations: NDArray[np.float32],
    following: NDArray[np.float32],
    done: NDArray[np.bool_],
    max_episode_steps: int,
) -> list[int]:
    """Returns where episodes begin, and the number of transitions n.

    Args:
        observations: `(n, obs)`.
        following: `(n, obs)` next observations.
        done: `(n,)`.
        max_episode_steps: no episode is longer.
    """
    breaks = done.copy()
    breaks[:-1] |= (following[:-1] != observations[1:]).any(axis=1)
    breaks[-1] = True
    edges = [0]
    for end in (np.flatnonzero(breaks) + 1).tolist():
        # An episode that ends where the next one starts does not show otherwise.
        edges += range(edges[-1] + max_episode_steps, end, max_episode_steps)
        edges.append(end)
    return edges


def _columns(content: Any, path: Path) -> tuple[NDArray[Any], ...]:
    """Returns observations, actions, rewards, next observations and dones, n rows each."""
    state = content.state if isinstance(content, Record) else content
    if isinstance(state, Mapping):
        columns = _named_columns(state)
        if columns is None:
            lists = [v for v in state.values() if isinstance(v, list | deque) and v]
            state = lists[0] if len(lists) == 1 else None
    else:
        columns = None
    if columns is None and isinstance(state, list | tuple | deque):
        columns = _from_rows(state)
    if columns is None or len({len(c) for c in columns}) != 1 or not len(columns[0]):
        raise InvalidDatasetError(
            f"Expected {path} to hold a list of (s, a, r, s', done), or a replay buffer with such "
            f"a list or with columns of equal length; found {type(content).__name__}."
        )
    observations, actions, rewards, following, done = columns
    n = len(observations)
    return (
        observations.reshape(n, -1).astype(np.float32),
        actions.reshape(n, -1),
        rewards.reshape(n).astype(np.float32),
        following.reshape(n, -1).astype(np.float32),
        done.reshape(n) != 0,
    )


def _named_columns(state: Mapping[Any, Any]) -> list[NDArray[Any]] | None:
    known = {str(k).strip("_").removesuffix("_buf").removesuffix("_buffer"): k for k in state}
    names = [next((known[n] for n in column if n in known), None) for column in _COLUMNS]
    if None in names:
        return None
    return [_stack(state[name]) for name in names]


def _from_rows(rows: Sequence[Any]) -> list[NDArray[Any]] | None:
    def fields() -> Iterator[tuple[Any, ...]]:
        for row in rows:
            entry = row.arguments if isinstance(row, Record) else row
            if not isinstance(entry, tuple | list) or len(entry) != len(_COLUMNS):
                raise InvalidDatasetError(
                    f"Expected transitions of {len(_COLUMNS)} entries (s, a, r, s', done), found "
                    f"{type(entry).__name__}."
                )
            yield tuple(entry)

    return [_stack(column) for column in zip(*fields(), strict=True)] or None


def _stack(column: Iterable[Any]) -> NDArray[Any]:
    column = plain(column)
    try:
        array = np.array(column if isinstance(column, np.ndarray) else [*map(plain, column)])
    except (TypeError, ValueError) as error:  # rows of different shapes
        raise InvalidDatasetError(f"A column of transitions cannot be stacked: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidDatasetError(f"A column of transitions holds {array.dtype}, not numbers.")
    return array
