"""Frames of pandas, polars and pyarrow load equal to themselves, or are refused by name."""

from __future__ import annotations

import datetime
import math
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_d3rlpy import FactoredBC, from_table, load_policy, save_dataset, save_policy
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.logs import read_states
from spin_d3rlpy.data.preparation import TablePreparation
from spin_d3rlpy.data.texts import EMPTY
from spin_d3rlpy.errors import SpinError

READING: dict[str, Any] = {"actions": ["a"], "reward": "r", "episode": "e", "nvec": [2]}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Cells, and the types in which pyarrow can hold them.
KINDS: list[tuple[Any, list[Any]]] = [
    (st.booleans(), [pyarrow.bool_()]),
    (st.integers(0, 100), [pyarrow.int8(), pyarrow.uint16(), pyarrow.int64(), pyarrow.float16()]),
    (st.integers(-(2**63), 2**63 - 1), [pyarrow.int64()]),
    (st.integers(0, 2**64 - 1), [pyarrow.uint64()]),
    (st.floats(width=32), [pyarrow.float32(), pyarrow.float64()]),
    (st.floats(), [pyarrow.float64()]),
    (st.text(max_size=3), [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]),
    (st.sampled_from(["x", "y", "z"]), [pyarrow.dictionary(pyarrow.int8(), pyarrow.string())]),
    (st.sampled_from(["1", "2.5", "-3", "1e3"]), [pyarrow.string()]),
    (st.dates(datetime.date(1800, 1, 1)), [pyarrow.date32(), pyarrow.date64()]),
    (
        st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1)),
        [pyarrow.timestamp(u, z) for u in ("us", "ns") for z in (None, "UTC", "Asia/Tokyo")],
    ),
    (st.decimals(-100, 100, places=2), [pyarrow.decimal128(10, 2)]),
    (st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9)), [pyarrow.duration("us")]),
    (st.times(), [pyarrow.time64("us")]),
    (st.binary(max_size=3), [pyarrow.binary()]),
    (st.lists(st.integers(0, 9), max_size=2), [pyarrow.list_(pyarrow.int64())]),
    (st.fixed_dictionaries({"x": st.integers(0, 9)}), [pyarrow.struct([("x", pyarrow.int64())])]),
    (st.none(), [pyarrow.null()]),
]


@st.composite
def columns(draw: Any) -> Any:
    """A column of six cells, some of them null."""
    cells, kinds = draw(st.sampled_from(KINDS))
    kind = draw(st.sampled_from(kinds))
    cells = st.one_of(cells, st.none()) if draw(st.booleans()) else cells
    return pyarrow.array(draw(st.lists(cells, min_size=6, max_size=6)), kind)


def as_library(column: Any, library: str) -> Any:
    """The frame, made by a library, or None if it cannot be."""
    table = pyarrow.table(
        {"e": [1, 1, 2, 2, 3, 3], "a": [0, 1] * 3, "r": [1.0, 2.0] * 3, "s": column}
    )
    if library == "pyarrow":
        return table
    module = pytest.importorskip(library.partition("-")[0])
    try:
        if library == "pandas-arrow":
            return table.to_pandas(types_mapper=module.ArrowDtype)
        if library == "pandas-numpy":
            return table.to_pandas().convert_dtypes(dtype_backend="numpy_nullable")
        return module.from_arrow(table) if library == "polars" else table.to_pandas()
    except Exception:
        return None


def expected_numbers(cells: list[Any]) -> list[float] | None:
    """What a column of numbers, dates or truth values holds, NaN where it is empty."""
    numbers = []
    for cell in cells:
        if cell is None or cell in ("", "NA") or cell != cell:
            numbers.append(math.nan)
        elif isinstance(cell, datetime.date):
            moment = cell if isinstance(cell, datetime.datetime) else None
            moment = moment or datetime.datetime.combine(cell, datetime.time())
            moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
            numbers.append((moment - EPOCH) / datetime.timedelta(1))
        elif isinstance(cell, bool | int | float | Decimal):
            numbers.append(float(cell))
        else:
            return None
    return numbers


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("library", ["pyarrow", "pandas", "pandas-arrow", "pandas-numpy", "polars"])
@settings(max_examples=40, deadline=None)
@given(column=columns())
def test_a_frame_loads_equal_to_itself_or_is_refused(library: str, column: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = as_library(column, library)
    if frame is None:
        return
    try:
        log = from_table(frame, observations=["s"], missing="mean", **READING)
    except SpinError:
        return
    prepared = log.preparation
    assert prepared is not None
    kept = TablePreparation.from_json(prepared.to_json())
    assert kept == prepared
    states = read_states(frame, kept)
    rows = [0, 1, 1, 2, 3, 3, 4, 5, 5]  # the last of each episode again
    assert np.array_equal(states[rows], log.observations.numpy())
    cells = column.to_pylist()
    learned = prepared.columns[0]
    numbers = expected_numbers(cells)
    if learned.kind == "category":
        for cell, row in zip(cells, states, strict=True):
            word = None if row[: len(learned.categories)].max() == 0 else int(row.argmax())
            assert word is None or learned.categories[word] == str(cell).strip()
            assert (word is None) == (cell is None or str(cell).strip() in EMPTY)
    elif numbers is not None:
        wanted = np.array(numbers)
        is_empty = np.isnan(wanted)
        if learned.fill is not None:
            assert states[:, 1].tolist() == is_empty.tolist()
        found = states[~is_empty, 0].astype(np.float64) + learned.subtract
        shifted = np.abs(wanted[~is_empty] - learned.subtract)
        assert np.allclose(found, wanted[~is_empty], rtol=1e-6, atol=1e-6 * shifted.max(initial=1))


def frames() -> list[Any]:
    """Frames with names that are whole numbers, and every kind of column."""
    words = np.array(["x", "y"] * 4, object)
    columns: dict[Any, Any] = {
        0: np.repeat([1, 2], 4),
        1: np.arange(8) + 1_700_000_000,
        2: words,
        3: np.arange("2024-01-01", "2024-01-09", dtype="M8[D]"),
        4: np.array([1.0, np.nan] * 4),
        5: np.arange(8) % 2,
        6: np.arange(8) % 3,
        7: np.arange(8.0),
    }
    made: list[Any] = [columns, {str(name): cells for name, cells in columns.items()}]
    made.append({np.int64(name): cells for name, cells in columns.items()})
    return made


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("layout", [None, {"shared_choices": True, "slot_columns": [[1], [3]]}])
def test_what_trains_can_be_saved_loaded_and_asked(
    number: int, layout: Any, tmp_path: Path
) -> None:
    frame = frames()[number]
    name = str if number == 1 else int
    if layout is not None:
        layout = layout | {"slot_columns": [[name(1)], [name(3)]]}
    log = from_table(
        frame,
        observations=[name(i) for i in (1, 2, 3, 4)],
        actions=[name(5), name(6)],
        choices={name(5): [0, 1, 2], name(6): [0, 1, 2]},
        reward=name(7),
        episode=[name(0)],
        missing="forward",
        categories=[name(2)],
        subtract={name(4): 0.5},
        layout=layout,
    )
    save_dataset(log, "me/numbers-v0")
    stored = DeviceReplayBuffer.from_minari(minari.load_dataset("me/numbers-v0"))
    assert stored.preparation == log.preparation
    policy = FactoredBC()
    policy.fit(stored, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    asked = loaded.predict_table(frame)
    assert asked == policy.predict_table(frame)
    assert set(asked[0]) == {name(5), name(6)}
    # A file has only text for names.
    lines = [",".join(map(str, range(5)))]
    lines += [",".join(str(frame[key][row]) for key in list(frame)[:5]) for row in range(8)]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    assert loaded.predict_table(tmp_path / "new.csv") == asked


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_other_frames_are_read_by_the_same_names(library: str) -> None:
    module = pytest.importorskip(library)
    frame = module.DataFrame(
        {"e": [1, 1, 2], "s": [1, None, 2**53 + 1], "a": [0, 1, 0], "r": [1.0, 2.0, 3.0]}
    )
    if library == "pandas":
        frame = frame.convert_dtypes()
        frame["e"] = module.Categorical(["x", "x", "y"])
        frame["t"] = module.array([None, True, module.NA], "boolean")
        twice = module.concat([frame, frame["s"]], axis=1)
        with pytest.raises(SpinError, match="2 columns 's'"):
            from_table(twice, observations=["s"], **READING)
    log = from_table(frame, observations=["s"], missing="mean", **READING)
    assert log.episode_starts.tolist() == [0, 2, 3]
    choices = {"s": module.Series([1, 2**53 + 1])}
    with pytest.raises(SpinError, match="Row 1 has no 's'"):
        from_table(
            frame, observations=["a"], actions=["s"], choices=choices, reward="r", episode="e"
        )


def test_columns_that_cannot_be_read_are_named() -> None:
    table: dict[str, Any] = {"e": [1, 1], "a": [0, 1], "r": [1.0, 2.0]}
    for cells in (pyarrow.array([1, 2]).cast(pyarrow.duration("s")), np.zeros(2, "V8")):
        with pytest.raises(SpinError, match="Expected column 's' to hold"):
            from_table({**table, "s": cells}, observations=["s"], **READING)
    both = pyarrow.table([[1, 1], [0, 1], [1.0, 2.0], [1, 2], [3, 4]], names=[*"ears", "s"])
    with pytest.raises(SpinError, match="There are 2 columns 's'"):
        from_table(both, observations=["s"], **READING)
    with pytest.raises(SpinError, match="There is no column 's'"):
        from_table(both.select([0, 1, 2]), observations=["s"], **READING)
