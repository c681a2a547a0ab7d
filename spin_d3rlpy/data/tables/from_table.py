"""Logged decisions in a table as a dataset, and saving datasets in Minari's format."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

import gymnasium
import numpy as np
from d3rlpy.dataset import ReplayBufferBase
from gymnasium.spaces import Box, MultiDiscrete, Space
from numpy.typing import NDArray

from spin_d3rlpy.data.action_spaces import KEY as ACTIONS_KEY
from spin_d3rlpy.data.action_spaces import flat_actions_of, with_flat_actions
from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes, action_dtype, no_transitions
from spin_d3rlpy.data.buffer.masks import Bits, open_where_empty
from spin_d3rlpy.data.buffer.named_rewards import (
    NamedRewards,
    RewardFunction,
    Weights,
    check_weights,
)
from spin_d3rlpy.data.buffer.source_rows import SourceRows
from spin_d3rlpy.data.layouts import KEY as LAYOUT_KEY
from spin_d3rlpy.data.layouts import layout_of_table
from spin_d3rlpy.data.loader import as_device_buffer
from spin_d3rlpy.data.minari.environments import storable_spec
from spin_d3rlpy.data.minari.info_rewards import REWARDS_KEY, infos_of
from spin_d3rlpy.data.minari.specs import NAMESPACE, is_dataset_name
from spin_d3rlpy.data.minari.staging import episode_buffer, staged_dataset, write_episodes
from spin_d3rlpy.data.observation_spaces import is_vector
from spin_d3rlpy.data.rounding import ColumnRounding
from spin_d3rlpy.data.tables.action_columns import NumberColumns, read_actions
from spin_d3rlpy.data.tables.arguments import (
    TableArguments,
    choice_lists,
    name_of,
    names_of,
    sizes_of,
    values_of,
)
from spin_d3rlpy.data.tables.cells import Locale, is_empty, read_flags, read_numbers
from spin_d3rlpy.data.tables.choice_values import Values
from spin_d3rlpy.data.tables.columns import Bools, Column, Name
from spin_d3rlpy.data.tables.csv_parquet import open_as_parquet
from spin_d3rlpy.data.tables.log_rows import (
    EpisodeIds,
    LastStep,
    Steps,
    cut,
    final_states,
    report,
    rows_of_episodes,
)
from spin_d3rlpy.data.tables.mapped_log import MappedLog, digest_of
from spin_d3rlpy.data.tables.mask_columns import mask_columns, masks_of_rows, require_allowed
from spin_d3rlpy.data.tables.preparation import (
    KEY,
    EpisodeRows,
    Missing,
    TablePreparation,
    learn_column,
)
from spin_d3rlpy.data.tables.reading import Columns as Columns
from spin_d3rlpy.data.tables.reading import Table, open_table
from spin_d3rlpy.data.tables.row_arrays import MappedArrays, RowArrays
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    InvalidDatasetError,
    InvalidRowError,
    listed,
    require_one_of,
    shown,
)
from spin_d3rlpy.files.atomic import atomic_folder
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs import FlatActions
from spin_envs.flat_actions import BinsOf

# The episodes, how columns became features, and how choices become an environment's actions.
ReadLog: TypeAlias = tuple[StackedEpisodes, TablePreparation, FlatActions | None]


def from_table(
    table: str | Path | Columns,
    *,
    observations: Sequence[Name],
    actions: Sequence[Name],
    episode: Name | Sequence[Name],
    reward: Name | None = None,
    rewards: Mapping[str, Name] | None = None,
    weights: Weights | RewardFunction | None = None,
    time: Name | None = None,
    terminal: Name | bool = False,
    choices: Mapping[Any, Sequence[Any]] | None = None,
    nvec: Sequence[int] | None = None,
    last_step: LastStep = "keep",
    subtract: Mapping[Any, float] | None = None,
    terminal_values: Sequence[Any] | None = None,
    missing: Missing = "refuse",
    categories: Sequence[Name] = (),
    layout: Mapping[str, Any] | None = None,
    masks: Mapping[Any, Sequence[Name]] | NDArray[np.bool_] | None = None,
    decimal: str | Mapping[Any, str] | None = None,
    dates: str | Mapping[Any, str] | None = None,
    keep: Sequence[Name] = (),
    memory_map: str | Path | None = None,
    bins: BinsOf | FlatActions | Mapping[Any, Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
) -> DeviceReplayBuffer:
    """Reads logged decisions: one row has a state, the action taken and its reward.

    An episode's last row may have empty actions and reward: it is the final state. Without it, and
    unless the episode is terminal, the state after the last step is unknown: see `last_step`. One
    line on standard error counts what was read and what did not enter.

    Args:
        table: a `.csv` or `.parquet` file (the latter needs pyarrow: `pip install
            "spin-d3rlpy[parquet]"`), a folder of such files, or columns by name, such as a data
            frame of pandas, polars or pyarrow. A folder's files are one log, in the order of their
            names, and an episode may continue in the next file; those whose names begin with "." or
            "_" are not read. A CSV file's cells are parted by commas or, if its header has none,
            by semicolons or tabs. Names of columns are text or whole numbers.
        observations: columns of the state, known before the decision. Numbers stay numbers; dates
            (ISO 8601, such as 2024-05-31 or 2024-05-31T08:30+02:00, or a data frame's) become days
            since the earliest; true and false, yes and no become 1 and 0; words become one feature
            each. All cells together decide what a column is; a column of several kinds is refused.
            Text such as NA, null and n/a is an empty cell, as for pandas; "?", "-" and "." are in
            columns of numbers, dates, or yes and no.
        actions: columns of the slots, one each (N of them).
        reward: column of the reward that follows the action.
        rewards: instead of it, columns of several rewards by name, such as `{"revenue": "eur",
            "complaints": "n_complaints"}`. The dataset keeps all of them, see `with_weights`.
        weights: of these rewards in the one that is trained by, such as `{"revenue": 1,
            "complaints": -15}`; or a function from a dictionary of arrays `(n,)`, the rewards of
            all steps by name, to the trained reward `(n,)`.
        episode: column that identifies an episode's rows, or a list of columns that do so
            together, such as `["hospital", "stay"]`.
        time: column of numbers or dates that orders an episode's rows. Without it they must be
            consecutive and in order.
        terminal: column that is 1 (true, yes) in the row whose action ended the episode for good
            (death does, the end of observation does not); or one answer for all episodes.
        choices: the values of an action column in the order of their numbers, e.g. `{"dose": [0,
            50, 100]}`. Other columns hold the numbers 0, 1, 2, ... Numbers equal numbers, also
            where a file writes 50.0; text equals the same text, so that "007" is not 7.
        nvec: number of choices of each slot, needed for columns without `choices`, because a
            choice that was never made does not appear in the data.
        last_step: what to do with a last step after which the state is unknown. `"keep"` keeps it
            and its reward and bootstraps nothing from the unknown state, as after a terminal step
            (it is marked terminal); `"drop"` leaves out step and reward, which suits logs that
            were cut off at any time and whose rewards do not come at the end.
        subtract: numbers to subtract from columns of the state before they are rounded to float32,
            which keeps 24 bits of each: as seconds since 1970, times closer than 128 seconds become
            equal. From columns that are not named, the smallest value is subtracted where float32
            would make different values equal. The preparation keeps it: `predict_table` does the
            same, and states that you pass to `predict` need it done.
        terminal_values: values of the column `terminal` that end an episode, such as `["dead"]`;
            all others, also empty ones, do not.
        missing: empty cells of the state are an error (`"refuse"`), or the column's mean, or the
            last value of the same episode and before the first the mean (`"forward"`). A feature is
            added that is 1 where the cell was empty.
        categories: columns of the state whose values are names though they may look like numbers.
        layout: what slots and choices are, as fields of `ActionLayout` whose `slot_columns`,
            `choice_columns`, `pair_columns` and `object_columns` hold names of columns of the state
            (None where a choice or a pair lacks a feature). `{"shared_choices": True}` alone says
            that all slots choose among the same things. Choices with features also have an
            embedding each, as a name is the same thing in every row; where it is not (`order_1` is
            another order each time), say `"choice_identity": False`.
        masks: which choices may be made in each row's state: for an action column the columns, one
            for each of its choices in their order, that are 1 (true, yes) where it may be made,
            e.g. `{"dose": ["dose_0_ok", "dose_50_ok", "dose_100_ok"]}`; or a bool array
            `(rows, N, K)`. Actions without such columns are free, and so is an empty cell of a
            final state.
        decimal: the mark before decimals in text, `","` or `"."`, of all columns or by column.
            Then numbers may have marks between thousands and zeros in front; without it they are
            refused as numbers of another locale.
        dates: how text writes dates and times of day, as `datetime.strptime` has it, such as
            `"%d.%m.%Y"`, of all columns or by column, besides ISO 8601.
        keep: columns of numbers that belong to rows and are no part of the state, such as known
            probabilities of the logged actions, see `importance_sampling`. They follow the rows
            through sorting, `select` and `split`: `dataset.source.column("propensity").values`.
        memory_map: a folder for the dataset's arrays, which are mapped into memory, so that a log
            may be larger than memory: one column at a time is in memory. It needs pyarrow, and
            while the log is read twice the room of the states on the folder's disk. It is written
            at once or not at all, and used again for the same files (known by names, sizes and
            times) and arguments; any other folder that is not empty is refused.
        bins: of action columns whose numbers are continuous, such as `{"dose": 5}`: a number of
            equal bins between the least and largest logged value, `Bins`, or the bins' edges. A
            choice is then the mean of the logged values in its bin. Such columns have no choices,
            and no number in `nvec`. With `action_space`, by the names of its slots, see
            `spin_envs.FlatActions`.
        action_space: of the environment that the log is of: `actions` then names a column for each
            of its numbers, in the order of `FlatActions(action_space, bins).names`, and has neither
            `choices` nor `nvec`. The dataset's `flat_actions` and trained policies keep it.

    Returns:
        The dataset in main memory, or mapped into it, for `fit`. Its attribute `preparation` says
        how columns became features; `save_dataset` and trained policies keep it, for
        `predict_table`.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidDatasetError: a column is missing, there twice, of a type that cannot be read, or a
            cell invalid (the text names row and column), the state would hold reward, action or
            end, a row's own mask forbids its action, all rewards other than 0 would be left out,
            memory has no room, or `memory_map` holds something else. In a folder of files, the text
            names the file, and the row is that of the file.
        FileWriteError: `memory_map` cannot be written, for instance for want of room.
        ValueError: neither `reward` nor `rewards`, or both; `weights` of no rewards, not finite or
            all 0; an unknown `last_step` or `missing`, `subtract` or `categories` names no column
            of the state, `decimal` or `dates` none that is read, `terminal_values` without a column
            in `terminal`, a `layout` that does not fit the table, bad `bins`, an `action_space`
            that cannot be converted, or `memory_map` is no path.
        NvecMismatchError: `nvec`, `actions`, `choices` and `masks` disagree.
        MissingDependencyError: a Parquet file without pyarrow.

    Warns:
        UserWarning: a column of the state loses distinct values in float32 whatever is subtracted
            (more than a tenth of them, if they are not whole numbers), or a few outliers rule its
            scale.
    """
    if last_step not in get_args(LastStep):
        raise ValueError(f"Expected last_step 'keep' or 'drop', got {last_step!r}.")
    require_one_of("missing", missing, Missing)
    arguments = TableArguments.checked(
        observations=observations,
        actions=actions,
        reward=reward,
        rewards=rewards,
        episode=episode,
        time=time,
        terminal=terminal,
        categories=categories,
        subtract=subtract,
        decimal=decimal,
        dates=dates,
        keep=keep,
    )
    if (weights is None) != (rewards is None):
        raise ValueError(
            "Expected rewards= together with weights=, which make the reward that is trained by, "
            f"such as weights={{{next(iter(arguments.rewards))!r}: 1.0}}."
        )
    if weights is not None and not callable(weights):
        check_weights(weights, list(arguments.rewards))
    listed_choices = choice_lists(choices)
    numbers = NumberColumns.of(arguments.actions, bins, action_space)
    listed_ones = [n for n in arguments.actions if numbers is None or n not in numbers.names]
    sizes = []
    if listed_ones or listed_choices or nvec is not None:
        sizes = sizes_of(listed_ones, listed_choices, nvec)
    ends = values_of("terminal_values=", terminal_values, arguments.terminal)
    if isinstance(masks, Mapping):
        masks = {name_of(name): names_of("masks=", columns) for name, columns in masks.items()}
    wanted = [*arguments.columns, *mask_columns(masks, listed_ones, sizes)]
    values = {
        name: listed_choices.get(name, list(range(size)))
        for name, size in zip(listed_ones, sizes, strict=True)
    }
    rounding = ColumnRounding()
    names = None if weights is None else tuple(arguments.rewards)
    read = partial(
        _read_log, names, arguments, values, numbers, missing, ends, last_step, masks, rounding
    )
    if memory_map is None:
        with open_table(table, wanted) as columns:
            stacked, preparation, actions_kept = read(columns, RowArrays())
    else:
        said = {
            "choices": [values.get(name) for name in arguments.actions],
            "numbers": None if numbers is None else numbers.said(),
            "names of rewards": names,
            "missing": missing,
            "terminal_values": ends,
            "last_step": last_step,
            "masks": masks if masks is None or isinstance(masks, Mapping) else digest_of(masks),
            **dataclasses.asdict(arguments),
        }
        log = MappedLog(memory_map, table, said)
        stacked, preparation, actions_kept = _mapped(
            log, table, wanted, arguments.plain_numbers(wanted), read
        )
    if weights is not None:
        stacked = stacked.weighed(weights)
    rounding.warn()
    buffer = DeviceReplayBuffer(stacked, None if memory_map is None else Path(memory_map))
    buffer.preparation, buffer.flat_actions = preparation, actions_kept
    if layout is not None:
        n_features = stacked.observations.shape[1]
        buffer.layout = layout_of_table(layout, preparation.features_of, n_features, stacked.nvec)
    return buffer


def _mapped(
    log: MappedLog,
    table: str | Path | Columns,
    wanted: Sequence[Name],
    numbers: Sequence[Name],
    read: Callable[[Table, RowArrays], ReadLog],
) -> ReadLog:
    """Returns a log of mapped arrays, which is read unless its folder is there."""
    if log.exists:
        stacked, preparation, actions = log.open()
        log.say_reused(stacked)
        return stacked, preparation, actions
    with atomic_folder(log.folder) as staging:
        work = staging / "work"
        work.mkdir()
        opened = partial(open_as_parquet, numbers=numbers, folder=work)
        with open_table(table, wanted, opened) as columns:
            log.write(staging, *read(columns, MappedArrays(work)))
        shutil.rmtree(work)
    return log.open()


def _read_log(
    names: tuple[str, ...] | None,
    arguments: TableArguments,
    known: Mapping[Name, list[Any]],
    numbers: NumberColumns | None,
    missing: Missing,
    ends: list[Any] | None,
    last_step: LastStep,
    masks: Mapping[Name, Sequence[Name]] | NDArray[np.bool_] | None,
    rounding: ColumnRounding,
    table: Table,
    arrays: RowArrays,
) -> ReadLog:
    """Reads the episodes, a column at a time, and what became of the columns.

    `known` are the choices of action columns but those of `numbers`. `names` are those of several
    rewards, None if there is one.
    """
    episodes, ids = rows_of_episodes(
        table, arguments.episode, arguments.time, arguments.locale(arguments.time)
    )
    episodes = EpisodeRows(arrays.kept(episodes.order), episodes.starts)
    state_only = _final_states(table, arguments, known, episodes)
    columns, values, actions = read_actions(table, arguments, known, numbers, state_only)
    sizes = [len(of_slot) for of_slot in values]
    chosen = np.stack(columns, axis=1, dtype=action_dtype(sizes), casting="unsafe")
    rewards = _rewards_of(table, arguments, state_only)
    ended = _terminal(table, arguments.terminal, ends, len(state_only))
    steps = cut(episodes, ids, state_only, ended, arguments.terminal, last_step)
    steps = dataclasses.replace(
        steps, rows=arrays.kept(steps.rows), states=arrays.kept(steps.states)
    )
    n_episodes = ids.count
    del ids  # as there may be very many rows
    bits = None
    if masks is not None:
        bits = masks_of_rows(masks, table, arguments.actions, sizes, state_only)
        require_allowed(bits, chosen, ~state_only, arguments.actions, values)
    preparation = TablePreparation(
        columns=[
            learn_column(
                table[name],
                arguments.subtract.get(name),
                missing,
                name in arguments.categories,
                arguments.locale(name),
                rounding,
            )
            for name in arrays.watched("Looking at columns", arguments.observations)
        ],
        actions=arguments.actions,
        choices=values,
        missing=missing,
        episode=arguments.episode[0] if len(arguments.episode) == 1 else arguments.episode,
    )
    report((rewards != 0.0).any(1), state_only, steps, n_episodes, rounding.shifts)
    if not len(steps.rows):
        raise no_transitions()
    ends_of_episodes = np.cumsum(steps.lengths) - 1
    terminals = np.zeros(len(steps.rows), np.float32)
    terminals[ends_of_episodes] = steps.over
    stacked = StackedEpisodes(
        observations=preparation.states(table, episodes, steps.states, arrays),
        actions=chosen[steps.rows],
        rewards=rewards[steps.rows, 0],
        terminals=terminals,
        lengths=steps.lengths.tolist(),
        nvec=sizes,
        masks=None if bits is None else _masks_of_states(bits, steps, sizes),
        named_rewards=None if names is None else NamedRewards.unweighed(rewards[steps.rows], names),
        source=SourceRows(
            np.asarray(steps.rows, np.int64),
            len(state_only),
            {
                name: arrays.kept(read_numbers(table[name], arguments.locale(name), is_state=False))
                for name in arguments.keep
            },
        ),
    )
    return stacked, preparation, actions


def _final_states(
    table: Table,
    arguments: TableArguments,
    known: Mapping[Name, list[Any]],
    episodes: EpisodeRows,
) -> Bools:
    """Returns which rows are final states, `(rows,)`."""
    empty = {
        name: is_empty(table[name], Values(known.get(name, [])).texts) for name in arguments.actions
    }
    empty |= {column: is_empty(table[column]) for column in arguments.rewards.values()}
    return final_states(table, empty, episodes)


def _rewards_of(table: Table, arguments: TableArguments, state_only: Bools) -> NDArray[np.float32]:
    """Returns all rewards `(rows, R)`."""
    rewards = np.empty((len(state_only), len(arguments.rewards)), np.float32)
    for i, column in enumerate(arguments.rewards.values()):
        rewards[:, i] = _read_rewards(table[column], arguments.locale(column), state_only)
    return rewards


def _read_rewards(column: Column, locale: Locale, state_only: Bools) -> NDArray[np.float32]:
    """Returns a column's rewards `(rows,)`, 0 in rows of final states."""
    numbers = read_numbers(column, locale, is_state=False)
    with np.errstate(over="ignore"):
        rewards = np.where(state_only, 0.0, numbers).astype(np.float32)
    wrong = ~np.isfinite(rewards)
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidRowError(
            f"Row {row} has {shown(column.name)} = {shown(column.cell(row))}, which is not finite "
            "as float32. Correct it, or leave the episode out.",
            row,
        )
    return rewards


def _masks_of_states(bits: Bits, steps: Steps, sizes: Sequence[int]) -> Bits:
    """Returns the masks of observations; after an episode's last action all may be open."""
    masks = bits[steps.states]
    last = np.cumsum(steps.lengths + 1) - 1
    masks[last] = open_where_empty(masks[last], sizes)
    return masks


def _terminal(table: Table, terminal: Name | bool, ends: Sequence[Any] | None, rows: int) -> Bools:
    """Returns which rows' actions ended their episode; all rows for `True`."""
    if isinstance(terminal, bool):
        return np.full(rows, terminal)
    column = table[terminal]
    if ends is not None:
        return _is_one_of(column, ends)
    try:
        return read_flags(column)
    except InvalidRowError as error:
        raise InvalidRowError(
            f"{error} Expected terminal= to name a column that is 1 where the action ended the "
            "episode for good, else 0 or empty. Of a column of words, say which end it, such as "
            "terminal_values=['dead'].",
            error.row,
        ) from error


def _is_one_of(column: Column, ends: Sequence[Any]) -> Bools:
    wanted = Values(ends)
    codes, cells = column.distinct()
    here = np.array([*(wanted.position(cell) is not None for cell in cells), False], bool)[codes]
    if not here.any():
        others = listed(sorted({str(cell) for cell in cells}))
        raise InvalidDatasetError(
            f"No row has one of terminal_values={shown(list(ends))} in {shown(column.name)}, whose "
            f"values are {others}. Correct them, or pass terminal=False if no episode ended."
        )
    return here


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
    forward = preparation.missing == "forward"
    by = preparation.episode_columns if forward else []
    with open_table(table, [*names, *by]) as columns:
        episodes = None
        if forward:
            ids = EpisodeIds([columns[name] for name in by])
            episodes = ids.grouped(ids.in_order())
        return preparation.states(columns, episodes)


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
    kept = getattr(buffer, "flat_actions", None)
    flat = None if env is None else with_flat_actions(env, kept)
    data = as_device_buffer(buffer, None if flat is None else nvec_from_space(flat.action_space))
    kept = kept if flat is None or kept is not None else flat_actions_of(flat)
    actions, rewards = (tensor.cpu().numpy() for tensor in (data.actions, data.rewards))
    observations, space = _stored_observations(data, env)
    masks = None if data.masks is None else data.masks.cpu().numpy()
    named = data.named_rewards
    edges = enumerate(itertools.pairwise(data.episode_starts.tolist()))
    with staged_dataset(name) as staging:
        if staging is None:
            raise InvalidDatasetError(
                f"Dataset {name!r} exists. Delete it (minari delete {name}) or take "
                "the next version."
            )
        storage = write_episodes(
            staging,
            space,
            MultiDiscrete(data.nvec),
            None if env is None else storable_spec(env),
            (
                episode_buffer(
                    observations(slice(start + i, end + i + 1)),
                    actions[start:end],
                    rewards[start:end],
                    bool(data.terminals[end - 1]),
                    masks=None if masks is None else masks[start + i : end + i + 1],
                    infos=None if named is None else infos_of(named, start, end),
                )
                for i, (start, end) in edges
            ),
        )
        metadata: dict[str, Any] = {"dataset_id": name, "description": description}
        if data.preparation is not None:
            metadata[KEY] = data.preparation.to_json()
        if data.layout is not None:
            metadata[LAYOUT_KEY] = data.layout.to_dict()
        if kept is not None:
            metadata[ACTIONS_KEY] = kept.to_dict()
        if named is not None:
            metadata[REWARDS_KEY] = named.to_json()
        storage.update_metadata(metadata)


def _stored_observations(
    data: DeviceReplayBuffer, env: gymnasium.Env[Any, Any] | None
) -> tuple[Callable[[slice], Any], Space[Any]]:
    """Returns what gives observations' rows as a file holds them, and their space."""
    numbers, layout, images = data.observations.cpu().numpy(), data.observation_layout, data.images
    if layout is None or images is None:
        # Of what is flattened to vectors, the vectors are stored.
        space: Space[Any] = Box(-np.inf, np.inf, numbers.shape[1:], np.float32)
        if env is not None and is_vector(env.observation_space):
            space = env.observation_space
        return lambda rows: numbers[rows], space
    pixels = images.cpu().numpy()
    return lambda rows: layout.joined(numbers[rows], pixels[rows]), layout.space
