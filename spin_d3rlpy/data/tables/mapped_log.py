"""A log as arrays in a folder, which are mapped into memory: larger than memory, read once.

The folder has a file for each array of `StackedEpisodes` and `log.json`, which says of which files
and by which arguments it was made; it is used again for these only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from spin_d3rlpy.data.action_spaces import read_flat_actions
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.data.buffer.named_rewards import NamedRewards
from spin_d3rlpy.data.buffer.source_rows import SourceRows
from spin_d3rlpy.data.tables.parts import files_of
from spin_d3rlpy.data.tables.preparation import TablePreparation
from spin_d3rlpy.data.tables.row_arrays import MappedArrays
from spin_d3rlpy.errors import InvalidDatasetError, listed, shown
from spin_d3rlpy.files.atomic import write_errors
from spin_envs import FlatActions

_VERSION = 1
_ABOUT = "log.json"
_BYTES_AT_ONCE = 2**26


class MappedLog:
    """The folder of a log.

    Args:
        folder: that holds it, or will.
        table: the file or folder that it is read from.
        arguments: by which it is read, as JSON holds them.

    Raises:
        FileNotFoundError: there is no such file or folder `table`.
        InvalidDatasetError: `table` is no file, or `folder` has something else in it.
        ValueError: `folder` is no path.
    """

    def __init__(self, folder: object, table: object, arguments: Mapping[str, Any]) -> None:
        if not isinstance(folder, str | Path):
            raise ValueError(f"Expected memory_map= to name a folder, got {shown(folder)}.")
        if not isinstance(table, str | Path):
            raise InvalidDatasetError(
                "Expected memory_map= with a .csv or .parquet file or a folder of them, got "
                f"{shown(table)} of type {type(table).__name__}, which is in memory already. Leave "
                "memory_map= out, or write the table to Parquet files."
            )
        self.folder = Path(folder)
        self._made_of = {
            "files": [_identity(file) for file in files_of(Path(table))],
            "arguments": json.loads(json.dumps(arguments, default=str)),
        }
        self.exists = self.folder.exists() and not self._is_empty()
        if self.exists:
            self._require_same()

    def _is_empty(self) -> bool:
        return self.folder.is_dir() and not any(self.folder.iterdir())

    def _require_same(self) -> None:
        try:
            about = json.loads((self.folder / _ABOUT).read_text())
            version, made_of = about["version"], about["made_of"]
            known = {**made_of["arguments"], "the files": made_of["files"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidDatasetError(
                f"Expected memory_map= to name a new folder, or one that from_table wrote; "
                f"{self.folder} holds something else. Pass another one."
            ) from error
        wanted = {**self._made_of["arguments"], "the files": self._made_of["files"]}
        differing = [key for key in wanted if known.get(key) != wanted[key]]
        if version != _VERSION:
            differing = ["the version of this package"]
        if differing:
            raise InvalidDatasetError(
                f"{self.folder} holds a log that was read otherwise; what differs: "
                f"{listed(differing)}. Delete the folder, or pass another one."
            )

    def write(
        self,
        staging: Path,
        log: StackedEpisodes,
        preparation: TablePreparation,
        actions: FlatActions | None,
    ) -> None:
        """Writes a log to the temporary folder that takes this one's place.

        Raises:
            FileWriteError: there is no room.
        """
        source = log.source or SourceRows.of_whole(len(log.rewards))
        arrays: dict[str, NDArray[Any] | None] = {
            "actions": log.actions,
            "rewards": log.rewards,
            "terminals": log.terminals,
            "lengths": np.asarray(log.lengths, np.int64),
            "masks": log.masks,
            "rows": source.rows,
            "named_rewards": None
            if log.named_rewards is None
            else log.named_rewards.values.numpy(),
            **{f"kept_{i}": values for i, values in enumerate(source.kept.values())},
        }
        names = ["observations", *(name for name, array in arrays.items() if array is not None)]
        about = {
            "version": _VERSION,
            "made_of": self._made_of,
            "arrays": names,
            "nvec": log.nvec,
            "rows": source.count,
            "kept": list(source.kept),
            "named_rewards": [] if log.named_rewards is None else list(log.named_rewards.names),
            "preparation": preparation.to_json(),
            "flat_actions": None if actions is None else actions.to_dict(),
        }
        with write_errors(self.folder):
            _write_rows(staging / "observations.npy", log.observations, staging)
            for name, array in arrays.items():
                if array is not None:
                    np.save(staging / f"{name}.npy", array)
            (staging / _ABOUT).write_text(json.dumps(about))
            for file in (_ABOUT, *(f"{name}.npy" for name in names)):
                _flush(staging / file)

    def open(self) -> tuple[StackedEpisodes, TablePreparation, FlatActions | None]:
        """Returns the log's arrays, mapped, how columns became features and choices actions.

        Raises:
            InvalidDatasetError: a file is damaged.
        """
        try:
            about = json.loads((self.folder / _ABOUT).read_text())
            arrays = {name: self._array(name) for name in about["arrays"]}
            preparation = TablePreparation.from_json(about["preparation"])
            actions = read_flat_actions(about.get("flat_actions"), about["nvec"])
            n, lengths = len(arrays["rewards"]), arrays["lengths"].tolist()
            states = (n + len(lengths), len(preparation.features))
            if arrays["observations"].shape != states or sum(lengths) != n:
                raise ValueError("arrays of other lengths")
            named = None
            if about["named_rewards"]:
                names = tuple(map(str, about["named_rewards"]))
                named = NamedRewards.unweighed(arrays["named_rewards"], names)
            kept = {name: arrays[f"kept_{i}"] for i, name in enumerate(about["kept"])}
            log = StackedEpisodes(
                observations=arrays["observations"],
                actions=arrays["actions"],
                rewards=arrays["rewards"],
                terminals=arrays["terminals"],
                lengths=lengths,
                nvec=about["nvec"],
                masks=arrays.get("masks"),
                source=SourceRows(arrays["rows"], about["rows"], kept),
                named_rewards=named,
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise InvalidDatasetError(
                f"The log in {self.folder} is damaged ({shown(error)}). Delete the folder, so that "
                "it is read again."
            ) from error
        return log, preparation, actions

    def _array(self, name: str) -> NDArray[Any]:
        # Copied where written to, so that nobody changes the file.
        array: NDArray[Any] = np.load(
            self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False
        )
        return array

    def say_reused(self, log: StackedEpisodes) -> None:
        """Says on standard error that the folder was there."""
        print(
            f"{self.folder} holds this log already: {len(log.rewards):,} steps of "
            f"{len(log.lengths):,} episodes.",
            file=sys.stderr,
        )


def _identity(file: Path) -> list[str | int]:
    """Returns by what a file is known: reading all of a large one again would take too long."""
    status = file.stat()
    return [file.name, status.st_size, status.st_mtime_ns]


def digest_of(array: object) -> str:
    """Returns text that tells an argument's array from others."""
    content = np.ascontiguousarray(array)
    return f"{content.dtype} {content.shape} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _write_rows(path: Path, columns: NDArray[np.float32], staging: Path) -> None:
    """Writes an array row by row that lies in its file column by column."""
    n, features = columns.shape
    rows = open_memmap(path, mode="w+", dtype=np.float32, shape=(n, features))
    with path.open("rb+") as file:  # a full disk is an error here, and ends the process in a map
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    step = max(1, _BYTES_AT_ONCE // (4 * features))
    for start in MappedArrays(staging).watched("Writing states", range(0, n, step), "blocks"):
        rows[start : start + step] = columns[start : start + step]
    rows.flush()


def _flush(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
