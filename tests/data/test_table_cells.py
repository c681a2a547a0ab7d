"""What a column is, is decided by all of its cells; what is ambiguous is named."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from spin_d3rlpy import from_table
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.tables.columns import as_column
from spin_d3rlpy.data.tables.from_table import read_states
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError

READING: dict[str, Any] = {"observations": ["s"], "actions": ["a"], "reward": "r", "episode": "e"}
N = 4


def table(cells: Any, **changes: Any) -> dict[str, Any]:
    return {"e": [1] * N, "s": cells, "a": [0, 1, 0, 1], "r": [1.0, 2.0, 3.0, 4.0], **changes}


def read(
    cells: Any, /, changes: dict[str, Any] | None = None, **reading: Any
) -> DeviceReplayBuffer:
    return from_table(table(cells, **(changes or {})), **({"nvec": [2]} | READING | reading))


def states(cells: Any, **reading: Any) -> list[list[float]]:
    rows: list[list[float]] = read(cells, **reading).observations[:N].tolist()
    return rows


@pytest.mark.parametrize("mark", ["NA", "N/A", "null", "NULL", "nan", " ", "-", "?", ".", "<NA>"])
@pytest.mark.parametrize("others", [["1", "2", "6"], ["true", "no", "yes"], ["2024-01-01"] * 3])
def test_one_cell_that_says_nothing_makes_no_words(mark: str, others: list[str]) -> None:
    log = read([others[0], mark, *others[1:]], missing="mean")
    assert log.preparation is not None
    assert log.preparation.features == ["s", "s is missing"]
    assert log.observations[:N, 1].tolist() == [0.0, 1.0, 0.0, 0.0]
    with pytest.raises(InvalidDatasetError, match="Row 1 has no 's'"):
        read([others[0], mark, *others[1:]])


def test_marks_among_words_are_words_but_for_those_that_pandas_knows() -> None:
    log = read(["-", "+", "?", "NA"], missing="mean")
    assert log.preparation is not None
    assert log.preparation.features == ["s=+", "s=-", "s=?", "s is missing"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (
            ["31.05.2024", "01.06.2024"],
            r"Row 0 .*'31.05.2024', which looks like a date.*'%d.%m.%Y'",
        ),
        (["13/04/2024", "14/04/2024"], r"dates=\{'s': '%d/%m/%Y'\}"),
        (["04/13/2024", "04/14/2024"], r"dates=\{'s': '%m/%d/%Y'\}"),
        (["04/05/2024", "05/06/2024"], r"'%d/%m/%Y'\} or dates=\{'s': '%m/%d/%Y'\}"),
        (["31 May 2024", "1 Jun 2024"], "'%d %b %Y'"),
        (["2024/05/31", "2024/06/01"], "'%Y/%m/%d'"),
        (["31.05.2024 08:30", "01.06.2024 12:00"], "'%d.%m.%Y %H:%M'"),
        (["08:30", "09:15"], "looks like a date or time.*'%H:%M'"),
        (["37,1", "36,9"], r"'37,1', which looks like a number .* Pass decimal=\{'s': ','\}"),
        (["1,234", "5"], "looks like a number that is written otherwise"),
        (["12%", "7%"], "'12%', which looks like a number"),
        (["12 %", "7"], "'12 %', which looks like a number"),
        (["<5", "7"], "'<5', which looks like a number.* limits such as <5"),
        (["$3", "4"], "looks like a number"),
        (["1_000", "2"], "looks like a number"),
        (["\u0663", "2"], "looks like a number"),
        (["\u22123", "2"], "looks like a number"),
        (["007", "7"], "'007', with a zero in front"),
        (["7", "high"], "to hold numbers, row 1 has 'high'"),
        (["a", "b", "c", "7"], "Row 3 has 's' = '7', but most rows have words"),
        (["yes", "maybe"], "to hold true or false.* row 1 has 'maybe'"),
        (["2024-05-31", "7", "2024-06-01", "2024-06-02"], "to hold dates.* row 1 has '7'"),
        ([1.0, "high", None, 2.0], "to hold numbers, row 1 has 'high'"),
        ([10**400, 1], "a whole number of about 400 digits, which is not finite"),
        (["9" * 400, "1"], "Row 0 has 's' = .*which is not finite"),
        ([1e39, 1.0], "Row 0 has 's' = 1e\\+39, which is not finite as float32"),
        ([1j, 1], "type complex"),
        ([b"a", b"b"], "type bytes"),
        ([[1], [2]], "type list"),
        ([{"a": 1}, {"a": 2}], "type dict"),
        ([datetime.time(8), datetime.time(9)], "type time"),
        (np.array([1, 2, 3, 4], "m8[s]"), "durations"),
        (np.array([b"a", b"b", b"c", b"d"]), "bytes"),
        (np.ones((N, 2)), r"cells of shape \(2,\)"),
        (3, "to be a list of cells, one for each row, got 3"),
        ("abc", "to be a list of cells"),
        ({1, 2}, "to be a list of cells"),
        ([1, 2, 3], "of the same length: 'e' has 4 rows, 's' has 3"),
    ],
)
def test_what_is_no_column_of_one_kind_is_named(cells: Any, expected: str) -> None:
    if isinstance(cells, list) and len(cells) == 2:
        cells = [*cells, *[cells[0]] * (N - len(cells))]
    with pytest.raises(InvalidDatasetError, match=expected):
        read(cells, missing="mean")


@pytest.mark.parametrize(
    ("cells", "reading", "expected"),
    [
        (["1,5", "2", "-0,5", "4"], {"decimal": ","}, [1.5, 2.0, -0.5, 4.0]),
        (["1.234,5", "-1.234", "1 000", "2"], {"decimal": ","}, [1234.5, -1234.0, 1000.0, 2.0]),
        (
            ["1,234.5", "-1,234", "0100", "7"],
            {"decimal": {"s": "."}},
            [1234.5, -1234.0, 100.0, 7.0],
        ),
        (
            ["31.05.2024", "01.06.2024", "2024-06-02", "3.6.2024"],
            {"dates": "%d.%m.%Y"},
            [0, 1, 2, 3],
        ),
        (["12:00", "06:00", "18:00", "12:00"], {"dates": {"s": "%H:%M"}}, [0.5, 0.25, 0.75, 0.5]),
        ([1, "2", 3.0, Decimal("4.5")], {}, [1.0, 2.0, 3.0, 4.5]),
        ([True, 0, 1.0, False], {}, [1.0, 0.0, 1.0, 0.0]),
        (np.array([1, 2, 3, 4], ">f8"), {}, [1, 2, 3, 4]),
        (np.arange(8)[::-2], {}, [7, 5, 3, 1]),
        (np.array([0, 2**63, 2**64 - 1, 2**62], np.uint64), {}, [0, 2.0**63, 2.0**64, 2.0**62]),
    ],
)
def test_columns_of_one_kind_are_read(cells: Any, reading: Any, expected: list[float]) -> None:
    assert states(cells, **reading) == [[x] for x in expected]


def test_how_text_is_written_is_kept_for_new_rows() -> None:
    log = read(["1,5", "2", "3", "4"], decimal=",")
    assert log.preparation is not None
    kept = type(log.preparation).from_json(log.preparation.to_json())
    assert read_states({"s": ["0,25"]}, kept).tolist() == [[0.25]]
    assert read_states({"s": [0.25]}, kept).tolist() == [[0.25]]
    with pytest.raises(InvalidDatasetError, match=r"'1\.5'"):
        read_states({"s": ["1.5"]}, kept)


@pytest.mark.parametrize("argument", ["decimal", "dates"])
def test_arguments_on_writing_must_fit_a_column(argument: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {argument}= to name columns .*'x'"):
        read([1, 2, 3, 4], **{argument: {"x": ","}})
    with pytest.raises(ValueError, match=f"Expected {argument}="):
        read([1, 2, 3, 4], None, **{argument: 7})
    with pytest.raises(ValueError, match=r"Expected decimal= ',' or '\.', got ';'"):
        read([1, 2, 3, 4], decimal=";")


@pytest.mark.parametrize(
    ("cells", "new", "features"),
    [
        ([1, 1.0, 2, 1], ["1", "1.0", 2.0], ["s=1", "s=2"]),
        (["1", "1.0", "2.0", "1"], [1, 1.0, "2"], ["s=1", "s=2"]),
        (np.array([1.0, np.nan, 2.0, 1.0]), [1, "2"], ["s=1", "s=2", "s is missing"]),
        (["250.1", "250.10", "3", "4"], ["250.10"], ["s=250.1", "s=250.10", "s=3", "s=4"]),
        (["007", "7", "7", "7"], ["007", "7", 7], ["s=007", "s=7"]),
    ],
)
def test_categories_are_the_same_however_whole_numbers_are_written(
    cells: Any, new: list[Any], features: list[str]
) -> None:
    log = read(cells, categories=["s"], missing="mean")
    assert log.preparation is not None
    assert log.preparation.features == features
    found = read_states({"s": new}, log.preparation)
    words = [str(int(x)) if isinstance(x, float) else str(x) for x in new]
    for row, word in zip(found, words, strict=True):
        wanted = f"s={word}" if f"s={word}" in features else f"s={word.removesuffix('.0')}"
        assert features[int(row.argmax())] == wanted


@pytest.mark.parametrize(
    ("cells", "choices", "expected"),
    [
        (["007", "7", "7", "007"], ["007", "7"], [0, 1, 1, 0]),
        (["250.1", "250.10", "250.1", "250.1"], ["250.1", "250.10"], [0, 1, 0, 0]),
        (["0", "50.0", "50", "0.0"], [0, 50], [0, 1, 1, 0]),
        ([0, 50.0, 50, 0], ["0", "50"], [0, 1, 1, 0]),
        ([2**53, 2**53 + 1] * 2, [2**53, 2**53 + 1], [0, 1, 0, 1]),
        ([str(2**53), str(2**53 + 1)] * 2, [2**53, 2**53 + 1], [0, 1, 0, 1]),
        (np.array([0.1, 0.5, 0.1, 0.5], np.float32), [0.1, 0.5], [0, 1, 0, 1]),
        ([True, False, True, False], ["false", "true"], [1, 0, 1, 0]),
        (np.array([1, 0, 1, 0], np.uint8), [0, 1], [1, 0, 1, 0]),
        (["NA", "-", "-", "NA"], ["-", "NA"], [1, 0, 0, 1]),
        (["x ", " y", "x", "y"], ["x", "y"], [0, 1, 0, 1]),
    ],
)
def test_choices_are_compared_as_what_they_are(
    cells: Any, choices: list[Any], expected: list[int]
) -> None:
    log = read([1, 2, 3, 4], changes={"a": cells}, nvec=None, choices={"a": choices})
    assert log.actions[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("cells", "choices"),
    [
        (["007", "7", "7", "7"], [7, 8]),
        (["1", "2.5", "1", "1"], [1, 2]),
        ([1, 2, 1, 1], ["1", "02"]),
    ],
)
def test_what_only_looks_like_a_choice_is_none(cells: Any, choices: list[Any]) -> None:
    with pytest.raises(InvalidDatasetError, match="not one of its choices"):
        read([1, 2, 3, 4], changes={"a": cells}, nvec=None, choices={"a": choices})


@pytest.mark.parametrize(
    "choices",
    [
        [0, 1, 1],
        ["x", "x"],
        [1, 1.0],
        [1, "1"],
        [0, False],
        {0: "x", 1: "y"},
        {0, 1},
        [datetime.date(2024, 5, 31), datetime.date(2024, 6, 1)],
        np.array(["2024-05-31", "2024-06-01"], "M8[D]"),
        [None, 1],
        ["", "x"],
        [float("nan"), 1],
        [10**400, 1],
        [(1,), (2,)],
        ["x" * 10_000_000, "y"],
    ],
)
def test_choices_that_are_no_different_values_are_refused(choices: Any) -> None:
    with pytest.raises(NvecMismatchError, match="choices of 'a' to be") as caught:
        read([1, 2, 3, 4], nvec=None, choices={"a": choices})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("empty", [None, "", " ", "NA", float("nan"), "?"])
@pytest.mark.parametrize("time", [None, "s"])
def test_rows_without_an_episode_are_refused(empty: Any, time: str | None) -> None:
    with pytest.raises(InvalidDatasetError, match=r"Row 2 has no 'e'.*episode is not known"):
        read([1, 2, 3, 4], changes={"e": ["a", "a", empty, "b"]}, time=time)


@pytest.mark.parametrize(
    ("ids", "episodes"),
    [
        (["007", "7", "7", "8"], 3),
        ([2**53, 2**53 + 1, 2**53 + 1, 2**53 + 2], 3),
        ([10**400, 10**400, 1, 1], 2),
        ([1, 1.0, 2, 2.0], 2),
        (["a", "a ", "b", "b"], 2),
    ],
)
def test_ids_of_episodes_are_compared_as_what_they_are(ids: list[Any], episodes: int) -> None:
    assert read([1, 2, 3, 4], changes={"e": ids}).size() == episodes


def test_two_columns_may_identify_an_episode() -> None:
    changes = {"e": [1, 1, 1, 2], "hospital": ["x", "y", "x", "y"], "t": [0, 0, 1, 5]}
    log = read([1, 2, 3, 4], changes=changes, episode=["hospital", "e"], time="t")
    assert log.episode_starts.tolist() == [0, 2, 3, 4]
    assert log.observations[:, 0].tolist() == [1, 3, 3, 2, 2, 4, 4]
    with pytest.raises(InvalidDatasetError, match=r"Episode \('x', 1\) appears again in row 2"):
        read([1, 2, 3, 4], changes=changes, episode=["hospital", "e"])
    with pytest.raises(InvalidDatasetError, match="Row 1 has no 'hospital'"):
        read(
            [1, 2, 3, 4],
            changes=changes | {"hospital": ["x", "", "x", "y"]},
            episode=["e", "hospital"],
        )


def test_missing_values_are_carried_forward_within_episodes_of_two_columns() -> None:
    changes = {"e": [1, 1, 1, 1], "h": ["x", "x", "y", "y"]}
    log = read([1.0, None, None, 3.0], changes=changes, episode=["h", "e"], missing="forward")
    assert log.preparation is not None
    kept = type(log.preparation).from_json(log.preparation.to_json())
    assert kept == log.preparation
    new = {"e": [1, 1, 1], "h": ["x", "y", "x"], "s": [7.0, None, None]}
    assert read_states(new, kept).tolist() == [[7.0, 0.0], [2.0, 1.0], [7.0, 1.0]]


@pytest.mark.parametrize(
    ("names", "what"), [(["s", "r"], "the reward"), (["a"], "an action"), (["s", "end"], "the end")]
)
def test_what_the_state_may_not_know_is_refused(names: list[str], what: str) -> None:
    changes = {"end": [0, 0, 0, 1]}
    with pytest.raises(InvalidDatasetError, match=f"'{names[-1]}' is {what}, which the state"):
        read([1, 2, 3, 4], changes=changes, observations=names, terminal="end")


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({"observations": "s"}, "observations= to be a list"),
        ({"observations": []}, "observations= to name one or more"),
        ({"actions": "a"}, "actions= to be a list"),
        ({"actions": ["a", "a"], "nvec": [2, 2]}, "'a' twice"),
        ({"episode": []}, "episode= to name"),
        ({"reward": ("r", 1)}, "names of columns as text or whole numbers"),
        ({"reward": "a"}, "is both reward and action"),
    ],
)
def test_names_of_columns_are_checked(reading: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidDatasetError, match=expected):
        read([1, 2, 3, 4], **reading)


@pytest.mark.parametrize("tables", [None, 7, [1, 2], "abc", b"abc", np.ones((2, 2)), [{"s": 1}]])
def test_what_is_no_table_is_named(tables: Any) -> None:
    with pytest.raises((InvalidDatasetError, FileNotFoundError)):
        from_table(tables, nvec=[2], **READING)
    preparation = read([1, 2, 3, 4]).preparation
    assert preparation is not None
    with pytest.raises((InvalidDatasetError, FileNotFoundError)):
        read_states(tables, preparation)


def test_long_cells_are_cut_in_messages() -> None:
    word = "x" * 10_000_000
    wrongs: list[Callable[[], object]] = [
        lambda: read([word, "b", "c", "d"]),
        lambda: read([word, 1, 2, 3]),
        lambda: read([1, 2, 3, 4], changes={"a": [word, 0, 0, 0]}),
        lambda: read([1, 2, 3, 4], changes={"r": [word, 0, 0, 0]}),
        lambda: read([1, 2, 3, 4], changes={"e": [word, "b", word, "b"]}),
        lambda: read([1, 2, 3, 4], changes={"t": [word, 0, 0, 0]}, terminal="t"),
        lambda: read([1, 2, 3, 4], changes={word: 1}, observations=["z"]),
        lambda: read([1, 2, 3, 4], observations=[word]),
        lambda: read([1, 2, 3, 4], categories=[word]),
        lambda: from_table({word: word}, nvec=[2], **READING),
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"xxx") as caught:
            wrong()
        assert len(str(caught.value)) < 2000


def test_times_are_ordered_exactly() -> None:
    times = [2**53 + 3, 2**53 + 1, 2**53 + 2, 2**53]
    for cells in (times, [str(t) for t in times], [float(2**60), *times[1:]]):
        log = read([3, 1, 2, 0], changes={"t": cells}, time="t")
        assert log.observations[:N, 0].tolist() == [0, 1, 2, 3]
    dates = ["04.01.2024", "02.01.2024", "03.01.2024", "01.02.2023"]
    log = read([3, 1, 2, 0], changes={"t": dates}, time="t", dates={"t": "%d.%m.%Y"})
    assert log.observations[:N, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidDatasetError, match="Row 1 has no 't', by which to order"):
        read([3, 1, 2, 0], changes={"t": [1, "NA", 2, 3]}, time="t")


def test_masked_arrays_lack_what_is_masked() -> None:
    column = as_column(np.ma.array([1, 2, 3], mask=[False, True, False]), "x")
    assert column.empty.tolist() == [False, True, False]
