"""Logged decisions in a table as a dataset, and saving datasets in Minari's format."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import gymnasium
import numpy as np
from d3rlpy.dataset import ReplayBufferBase
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer import DeviceReplayBuffer
from spin_d3rlpy.data.cells import SHOWN_VALUES, plain, read_choices, read_flags
from spin_d3rlpy.data.csv_files import read_csv
from spin_d3rlpy.data.environments import storable_spec
from spin_d3rlpy.data.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.layouts import KEY as LAYOUT_KEY
from spin_d3rlpy.data.layouts import layout_of_table
from spin_d3rlpy.data.loader import as_device_buffer
from spin_d3rlpy.data.mask_columns import (
    mask_columns,
    masks_of_rows,
    require_allowed,
)
from spin_d3rlpy.data.masks import Bits
from spin_d3rlpy.data.preparation import (
    KEY,
    Missing,
    TablePreparation,
    is_empty,
    learn_column,
    read_times,
)
from spin_d3rlpy.data.rounding import warn_of_columns
from spin_d3rlpy.data.specs import NAMESPACE, is_dataset_name
from spin_d3rlpy.data.staging import episode_buffer, staged_dataset, write_episodes
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    InvalidDatasetError,
    NvecMismatchError,
    require_one_of,
)
from spin_d3rlpy.nvec import check_nvec, nvec_from_space
from spin_envs import MissingDependencyError

LastStep = Literal["keep", "drop"]


class Columns(Protocol):
    """Columns by name: a mapping of arrays, a pandas or polars data frame."""

    def __getitem__(self, name: str, /) -> Any: ...


def from_table(
    table: str | Path | Columns,
    *,
    observations: Sequence[str],
    actions: Sequence[str],
    reward: str,
    episode: str,
    time: str | None = None,
    terminal: str | bool = False,
    choices: Mapping[str, Sequence[Any]] | None = None,
    nvec: Sequence[int] | None = None,
    last_step: LastStep = "keep",
    subtract: Mapping[str, float] | None = None,
    terminal_values: Sequence[Any] | None = None,
    missing: Missing = "refuse",
    categories: Sequence[str] = (),
    layout: Mapping[str, Any] | None = None,
    masks: Mapping[str, Sequence[str]] | NDArray[np.bool_] | None = None,
) -> DeviceReplayBuffer:
    """Reads logged decisions: one row has a state, the action taken and its reward.

    An episode's last row may have empty actions and reward: it is the final state. Without it, and
    unless the episode is terminal, the state after the last step is unknown: see `last_step`. One
    line on standard error counts what was read and what did not enter.

    Args:
        table: a `.csv` or `.parquet` file (the latter needs pyarrow: `pip install
            "spin-d3rlpy[parquet]"`), or columns by name, such as a data frame.
        observations: columns of the state. Numbers stay numbers; dates (ISO 8601, such as
            2024-05-31 or 2024-05-31T08:30+02:00, or a data frame's) become days since the earliest;
            true and false, yes and no become 1 and 0; words become one feature each. What a
            column's first cell is, all must be.
        actions: columns of the sub-actions, one each (N of them).
        reward: column of the reward that follows the action.
        episode: column that identifies an episode's rows.
        time: column of numbers or dates that orders an episode's rows. Without it they must be
            consecutive and in order.
        terminal: column that is 1 (true, yes) in the row whose action ended the episode for good
            (death does, the end of observation does not); or one answer for all episodes.
        choices: the values of an action column in the order of their numbers, e.g. `{"dose": [0,
            50, 100]}`. Other columns hold the numbers 0, 1, 2, ...
        nvec: number of choices of each sub-action, needed for columns without `choices`, because a
            choice that was never made does not appear in the data.
        last_step: what to do with a last step after which the state is unknown. `"keep"` keeps it
            and its reward and bootstraps nothing from the unknown state, as after a terminal step
            (it is marked terminal); `"drop"` leaves out step and reward, which suits logs that
            were cut off at any time and whose rewards do not come at the end.
        subtract: numbers to subtract from columns of the state before they are rounded to float32,
            which keeps 24 bits of each: as seconds since 1970, times closer than 128 seconds become
            equal. Subtract the same from states that you pass to `predict`.
        terminal_values: values of the column `terminal` that end an episode, such as `["dead"]`;
            all others, also empty ones, do not.
        missing: empty cells of the state are an error (`"refuse"`), or the column's mean, or the
            last value of the same episode and before the first the mean (`"forward"`). A feature is
            added that is 1 where the cell was empty.
        categories: columns of the state whose values are names though they may look like numbers.
        layout: what slots and choices are, as fields of `ActionLayout` whose `slot_columns`,
            `choice_columns` and `pair_columns` hold names of columns of the state (None where a
            choice or a pair lacks a feature). `{"shared_choices": True}` alone says that all slots
            choose among the same things. Choices with features also have an embedding each, as a
            name is the same thing in every row; where it is not (`order_1` is another order each
            time), say `"choice_identity": False`.
        masks: which choices may be made in each row's state: for an action column the columns, one
            for each of its choices in their order, that are 1 (true, yes) where it may be made,
            e.g. `{"dose": ["dose_0_ok", "dose_50_ok", "dose_100_ok"]}`; or a bool array
            `(rows, N, K)`. Actions without such columns are free, and so is an empty cell of a
            final state.

    Returns:
        The dataset in main memory, for `fit`. Its attribute `preparation` says how columns became
        features; `save_dataset` and trained policies keep it, for `predict_table`.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidDatasetError: a column is missing or a cell invalid (the text names row and column),
            a row's own mask forbids its action, or all rewards other than 0 would be left out.
        ValueError: an unknown `last_step` or `missing`, `subtract` or `categories` names no column
            of the state, `terminal_values` without a column in `terminal`, or a `layout` that does
            not fit the table.
        NvecMismatchError: `nvec`, `actions`, `choices` and `masks` disagree.
        MissingDependencyError: a Parquet file without pyarrow.

    Warns:
        UserWarning: a column of the state loses distinct values in float32 (more than a tenth of
            them, if they are not whole numbers), or a few outliers rule its scale.
    """
    if last_step not in get_args(LastStep):
        raise ValueError(f"Expected last_step 'keep' or 'drop', got {last_step!r}.")
    require_one_of("missing", missing, Missing)
    choices = {} if choices is None else choices
    _check_choices(choices)
    _check_names(observations, categories, terminal, terminal_values)
    subtract = subtract or {}
    _check_subtract(subtract, observations)
    sizes = _sizes(actions, choices, nvec)
    names = [*observations, *actions, reward, episode]
    names += [name for name in (time, terminal) if isinstance(name, str)]
    names += mask_columns(masks, actions, sizes)
    columns = _read(table, names)
    with _named_file(table):
        if not len(columns[episode]):
            raise InvalidDatasetError("The table has no rows.")
        groups = _episode_rows(
            columns[episode], None if time is None else read_times(columns[time], time)
        )
        state_only = _final_states(columns, [*actions, reward], groups)
        values = [choices.get(name, range(size)) for name, size in zip(actions, sizes, strict=True)]
        preparation = TablePreparation(
            columns=[
                learn_column(columns[name], name, subtract.get(name), missing, name in categories)
                for name in observations
            ],
            actions=list(actions),
            choices=[_plain_values(known) for known in values],
            missing=missing,
            episode=episode,
        )
        states = preparation.states(columns, list(groups.values()))
        log = _Log(
            states=states,
            state_only=state_only,
            chosen=np.stack(
                [
                    read_choices(columns[name], name, known, state_only)
                    for name, known in zip(actions, values, strict=True)
                ],
                axis=1,
            ),
            rewards=_numbers(columns, reward, state_only),
            ended=_terminal(columns, terminal, terminal_values, len(states)),
        )
        if masks is not None:
            bits = masks_of_rows(masks, columns, actions, sizes, state_only)
            require_allowed(bits, log.chosen, ~state_only, actions, values)
            log = dataclasses.replace(log, masks=bits)
        episodes = _cut(log, groups, terminal, last_step)
        stacked = stack_episodes(episodes, [len(e.rewards) for e in episodes], sizes)
    warn_of_columns(states, preparation.features, subtract)
    buffer = DeviceReplayBuffer(stacked)
    buffer.preparation = preparation
    if layout is not None:
        buffer.layout = layout_of_table(layout, preparation.features_of, states.shape[1], sizes)
    return buffer


def read_states(table: str | Path | Columns, preparation: TablePreparation) -> NDArray[np.float32]:
    """Returns the states `(rows, obs)` of a table's rows, prepared as those of a log.

    Args:
        table: as of `from_table`.
        preparation: of the log.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidDatasetError: a column is missing or a cell invalid; the text names row and column.
    """
    names = [column.name for column in preparation.columns]
    whole: Any = _open(Path(table)) if isinstance(table, str | Path) else table
    with _named_file(table):
        forward = preparation.missing == "forward"
        known = [*names, preparation.episode] if forward else names
        columns = _read(whole, known)
        groups: dict[Any, list[int]] = {}
        if forward:
            for row, episode in enumerate(columns[preparation.episode].tolist()):
                groups.setdefault(episode, []).append(row)
        states = preparation.states(columns, [np.array(rows) for rows in groups.values()])
    return states.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class _Log:
    """A table's rows in their order."""

    states: NDArray[np.float64]  # (rows, obs)
    state_only: NDArray[np.bool_]  # (rows,): final states, without an action
    chosen: NDArray[np.int64]  # (rows, N)
    rewards: NDArray[np.float64]  # (rows,)
    ended: NDArray[np.bool_]  # (rows,): by the column of ends
    masks: Bits | None = None  # (rows, bytes)


@contextmanager
def _named_file(table: object) -> Iterator[None]:
    """Adds a file's name to errors about its content."""
    try:
        yield
    except InvalidDatasetError as error:
        if not isinstance(table, str | Path):
            raise
        raise InvalidDatasetError(f"{table} cannot be used. {error}") from error


def _final_states(
    columns: Mapping[str, NDArray[Any]],
    decisions: Sequence[str],
    groups: Mapping[Any, NDArray[np.int64]],
) -> NDArray[np.bool_]:
    """Returns which rows are final states: an episode's last, without all of the decisions."""
    empty = np.stack([is_empty(columns[name]) for name in decisions], axis=1)
    state_only: NDArray[np.bool_] = np.zeros(len(empty), bool)
    last = [group[-1] for group in groups.values()]
    state_only[last] = empty[last].all(1)
    wrong = np.argwhere(empty & ~state_only[:, None])
    if len(wrong):
        row, column = wrong[0]
        raise InvalidDatasetError(
            f"Row {row} has no {decisions[column]!r}. Only an episode's last row may "
            "leave actions and reward empty, and then all of them."
        )
    return state_only


def _cut(
    log: _Log,
    groups: Mapping[Any, NDArray[np.int64]],
    terminal: str | bool,
    last_step: LastStep,
) -> list[EpisodeArrays]:
    """Returns the episodes with a step, and reports what was left out."""
    episodes, kept, unknown = [], [], 0
    for name, group in groups.items():
        steps = group[~log.state_only[group]]
        # A flag may stand in the last step's row or in that of the final state.
        tail = group[max(len(steps) - 1, 0) :]
        earlier = group[: -len(tail)]
        if isinstance(terminal, str) and log.ended[earlier].any():
            raise InvalidDatasetError(
                f"Episode {name!r} continues after row {earlier[log.ended[earlier]][0]}, where "
                f"{terminal!r} ends it."
            )
        over = bool(log.ended[tail].any())
        if not log.state_only[group[-1]] and not over:
            unknown += 1
            if last_step == "drop":
                steps = steps[:-1]
            over = last_step == "keep"
        if len(steps):
            # What follows a terminal step is not looked at: its own state stands there.
            rows_of_states = group if len(group) > len(steps) else [*group, group[-1]]
            kept.append(steps)
            episodes.append(
                EpisodeArrays(
                    name=f"episode {name!r}",
                    observations=log.states[rows_of_states],
                    actions=log.chosen[steps],
                    rewards=log.rewards[steps],
                    terminated=over,
                    masks=None if log.masks is None else log.masks[rows_of_states],
                )
            )
    _report(log.rewards, log.state_only, kept, len(groups), unknown)
    return episodes


def _check_names(
    observations: Sequence[str],
    categories: Sequence[str],
    terminal: str | bool,
    terminal_values: Sequence[Any] | None,
) -> None:
    if isinstance(categories, str) or not set(categories) <= set(observations):
        raise ValueError(
            f"Expected categories= to be a list of columns of the state, got {categories!r}. "
            f"Columns of the state: {', '.join(observations)}."
        )
    if terminal_values is not None and (
        not isinstance(terminal, str) or isinstance(terminal_values, str)
    ):
        raise ValueError(
            "Expected terminal_values= to be a list of values of a column named in terminal=, got "
            f"{terminal_values!r} and terminal={terminal!r}."
        )


def _plain_values(values: Sequence[Any]) -> list[Any]:
    """Returns choices as JSON has them."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _check_subtract(subtract: Mapping[str, float], observations: Sequence[str]) -> None:
    for name, number in subtract.items():
        if name not in observations or not math.isfinite(number):
            raise ValueError(
                "Expected subtract= to map columns of the state to finite numbers, got "
                f"{name!r}: {number!r}. Columns of the state: {', '.join(observations)}."
            )


def _report(
    rewards: NDArray[np.float64],
    state_only: NDArray[np.bool_],
    kept: Sequence[NDArray[np.int64]],
    episodes: int,
    unknown: int,
) -> None:
    """Says what was read and left out, or raises InvalidDatasetError if no reward is left.

    Args:
        rewards: of all rows, `(rows,)`; 0 in rows of final states.
        state_only: which rows are final states, `(rows,)`.
        kept: rows of each kept episode's steps.
        episodes: in the table.
        unknown: number of episodes whose last next state is unknown.
    """
    entered: NDArray[np.bool_] = np.zeros(len(rewards), bool)
    for steps in kept:
        entered[steps] = True
    paying = rewards != 0.0
    if paying.any() and not paying[entered].any():
        raise InvalidDatasetError(
            f"All {paying.sum():,} rewards other than 0 stand in last steps that would be left "
            "out, because the state after them is unknown. Pass last_step='keep', name the column "
            "of ends in terminal=, or add a last row with each episode's final state."
        )
    left_out = ~entered & ~state_only
    print(
        f"Read {len(rewards):,} rows of {episodes:,} episodes, {state_only.sum():,} of them final "
        f"states without an action. Unknown state after the last step: {unknown:,} episodes. Left "
        f"out: {left_out.sum():,} rows, {(left_out & paying).sum():,} rewards other than 0, "
        f"{episodes - len(kept):,} episodes.",
        file=sys.stderr,
    )


def save_dataset(
    buffer: ReplayBufferBase,
    name: str,
    env: gymnasium.Env[Any, Any] | None = None,
    description: str = "",
) -> None:
    """Writes a dataset to Minari's folder, for `load_dataset`, `fit` and the shell.

    Args:
        buffer: a `DeviceReplayBuffer` or d3rlpy's, such as from `create_replay_buffer` (pass `env`,
            because d3rlpy's buffer does not know the number of choices).
        name: `<namespace>/<name>-v<number>`.
        env: its environment, made by `gymnasium.make`, if any. If it was registered with a class or
            function (not with text), the dataset keeps its id, and whoever loads it must register
            it first, in any process, by importing the module that does.
        description: for its card.

    Raises:
        DatasetNotFoundError: an invalid name.
        InvalidDatasetError: the name is taken, or the data are unusable.
        DatasetWriteError: the disk is full.

    Warns:
        UserWarning: the environment cannot be named: pass it to `load_dataset` as `env=`.
    """
    if not is_dataset_name(name) or name.startswith(NAMESPACE):
        raise DatasetNotFoundError(
            f"Expected a name <namespace>/<name>-v<number> outside {NAMESPACE}, got {name!r}."
        )
    data = as_device_buffer(buffer, None if env is None else nvec_from_space(env.action_space))
    observations, actions, rewards = (
        tensor.cpu().numpy() for tensor in (data.observations, data.actions, data.rewards)
    )
    masks = None if data.masks is None else data.masks.cpu().numpy()
    edges = enumerate(itertools.pairwise(data.episode_starts.tolist()))
    with staged_dataset(name) as staging:
        if staging is None:
            raise InvalidDatasetError(
                f"Dataset {name!r} exists. Delete it (minari delete {name}) or take "
                "the next version."
            )
        size = observations.shape[1]
        storage = write_episodes(
            staging,
            Box(-np.inf, np.inf, (size,), np.float32) if env is None else env.observation_space,
            MultiDiscrete(data.nvec) if env is None else env.action_space,
            None if env is None else storable_spec(env),
            (
                episode_buffer(
                    observations[start + i : end + i + 1],
                    actions[start:end],
                    rewards[start:end],
                    bool(data.terminals[end - 1]),
                    masks=None if masks is None else masks[start + i : end + i + 1],
                )
                for i, (start, end) in edges
            ),
        )
        metadata: dict[str, Any] = {"dataset_id": name, "description": description}
        if data.preparation is not None:
            metadata[KEY] = data.preparation.to_json()
        if data.layout is not None:
            metadata[LAYOUT_KEY] = data.layout.to_dict()
        storage.update_metadata(metadata)


def _check_choices(choices: Any) -> None:
    """Raises NvecMismatchError unless `choices` maps columns to lists of values."""
    if not isinstance(choices, Mapping):
        raise NvecMismatchError(
            "Expected choices= to map columns to their values in order, such as "
            f'{{"dose": [0, 50, 100]}}, got {choices!r}. If the columns hold the numbers 0, 1, 2, '
            "..., pass how many there are of each as nvec= instead."
        )
    for name, values in choices.items():
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise NvecMismatchError(
                f"Expected the choices of {name!r} to be a list of its values in order, got "
                f"{values!r}."
            )


def _sizes(
    actions: Sequence[str], choices: Mapping[str, Sequence[Any]], nvec: Sequence[int] | None
) -> list[int]:
    known = {name: len(values) for name, values in choices.items()}
    sizes = [known.get(name, 0) for name in actions] if nvec is None else list(nvec)
    together = dict(zip(actions, sizes, strict=False))
    if len(sizes) != len(actions) or 0 in sizes or not known.items() <= together.items():
        raise NvecMismatchError(
            f"Expected the choices of each of {list(actions)}: its values in order in choices= or, "
            "if they are numbered 0, 1, 2, ..., how many in nvec=. Got "
            f"{', '.join(f'{n} of {name!r}' for name, n in known.items()) or 'none'} in choices= "
            f"and nvec={nvec}."
        )
    return check_nvec(sizes)


def _read(table: str | Path | Columns, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Returns columns, of text if from a CSV file."""
    columns: Any = _open(Path(table)) if isinstance(table, str | Path) else table
    known = columns.keys() if hasattr(columns, "keys") else names
    for name in names:
        if name not in known:
            listed = ", ".join(map(str, known))
            raise InvalidDatasetError(f"There is no column {name!r}; columns: {listed}.")
    return {name: np.asarray(columns[name]) for name in names}


def _open(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix == ".parquet":
        try:
            from pyarrow import ArrowInvalid, parquet
        except ImportError as error:
            raise MissingDependencyError(
                "Reading Parquet files needs pyarrow: pip install 'spin-d3rlpy[parquet]'."
            ) from error
        try:
            table = parquet.read_table(path)
        except ArrowInvalid as error:
            raise InvalidDatasetError(f"{path} is not a Parquet file: {error}") from error
        return {name: table[name].to_numpy() for name in table.column_names}
    if path.suffix != ".csv":
        raise InvalidDatasetError(f"Expected a .csv or .parquet file, got {path.name!r}.")
    return read_csv(path)


def _numbers(
    columns: Mapping[str, NDArray[Any]], name: str, skip: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Returns a column's numbers; 0 in skipped cells."""
    column = columns[name]
    if skip is not None:
        column = np.where(skip, "0" if column.dtype.kind in "OU" else 0, column)
    try:
        return column.astype(np.float64)
    except (ValueError, TypeError):
        row = next(i for i, v in enumerate(column) if not isinstance(plain(v), float))
        raise InvalidDatasetError(
            f"Expected column {name!r} to hold numbers, row {row} has {column[row]!r}."
        ) from None


def _episode_rows(
    column: NDArray[Any], time: NDArray[np.float64] | None
) -> dict[Any, NDArray[np.int64]]:
    """Returns each episode's rows in order, episodes in the order of their first row."""
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(column.tolist()):
        groups.setdefault(name, []).append(row)
    for name, rows in groups.items():
        if time is not None:
            rows.sort(key=time.__getitem__)
            if not (np.diff(time[rows]) > 0).all():
                raise InvalidDatasetError(f"Two rows of episode {name!r} have the same time.")
        for row in np.array(rows[1:])[np.diff(rows) > 1][:1] if time is None else ():
            raise InvalidDatasetError(
                f"Episode {name!r} appears again in row {row}, after others. Pass time= to order "
                "rows, or sort the table."
            )
    return {name: np.array(rows) for name, rows in groups.items()}


def _terminal(
    columns: Mapping[str, NDArray[Any]],
    terminal: str | bool,
    ends: Sequence[Any] | None,
    rows: int,
) -> NDArray[np.bool_]:
    """Returns which rows' actions ended their episode; all rows for `True`."""
    if isinstance(terminal, bool):
        return np.full(rows, terminal)
    column = columns[terminal]
    if ends is not None:
        wanted = {plain(value) for value in ends}
        ends_here = np.array([plain(value) in wanted for value in column.tolist()], bool)
        if not ends_here.any():
            raise InvalidDatasetError(
                f"No row has one of terminal_values={list(ends)} in {terminal!r}, whose values are "
                f"{', '.join(map(str, sorted({str(v) for v in column.tolist()})[:SHOWN_VALUES]))}."
                " Correct them, or pass terminal=False if no episode ended."
            )
        return ends_here
    try:
        return read_flags(column, terminal)
    except InvalidDatasetError as error:
        raise InvalidDatasetError(
            f"{error} Expected terminal= to name a column that is 1 where the action ended the "
            "episode for good, else 0 or empty. Of a column of words, say which end it, such as "
            "terminal_values=['dead']."
        ) from error
