from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from spin_d3rlpy import (
    FactoredBC,
    create_replay_buffer,
    from_table,
    load_dataset,
    save_dataset,
)
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError, NvecMismatchError
from spin_envs import MissingDependencyError

HEADER = ["patient", "day", "pulse", "age", "drug", "dose", "reward", "died"]
# Patient a leaves the study after day 2, b dies on day 1, c was seen after the last treatment.
ROWS: list[list[Any]] = [
    ["a", 0, 60, 30.5, "none", 0, 1.0, 0],
    ["a", 1, 61, 30.5, "x", 50, 2.0, 0],
    ["a", 2, 62, 30.5, "y", 100, 3.0, 0],
    ["b", 0, 70, 40.0, "y", 0, 4.0, 0],
    ["b", 1, 71, 40.0, "x", 100, -9.0, 1],
    ["c", 0, 80, 50.0, "x", 50, 5.0, 0],
    ["c", 1, 81, 50.0, "", "", "", ""],
]
READING: dict[str, Any] = {
    "observations": ["pulse", "age"],
    "actions": ["drug", "dose"],
    "reward": "reward",
    "episode": "patient",
    "choices": {"drug": ["none", "x", "y"], "dose": [0, 50, 100, 200]},
}


def write(path: Path, rows: list[list[Any]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def check(buffer: DeviceReplayBuffer) -> None:
    assert buffer.nvec == [3, 4]
    assert buffer.episode_starts.tolist() == [0, 3, 5, 6]
    # a's last next state is unknown: as b's last state, it is repeated; c's is in the table.
    assert buffer.observations[:, 0].tolist() == [60, 61, 62, 62, 70, 71, 71, 80, 81]
    assert buffer.actions.tolist() == [[0, 0], [1, 1], [2, 2], [2, 0], [1, 2], [1, 1]]
    assert buffer.rewards.tolist() == [1, 2, 3, 4, -9, 5]
    assert buffer.terminals.tolist() == [0, 0, 1, 0, 1, 0]


def check_dropped(buffer: DeviceReplayBuffer) -> None:
    assert buffer.nvec == [3, 4]
    assert buffer.episode_starts.tolist() == [0, 2, 4, 5]
    # a's last next state is unknown; b's last state is repeated; c's is in the table.
    assert buffer.observations[:, 0].tolist() == [60, 61, 62, 70, 71, 71, 80, 81]
    assert buffer.actions.tolist() == [[0, 0], [1, 1], [2, 0], [1, 2], [1, 1]]
    assert buffer.rewards.tolist() == [1, 2, 4, -9, 5]
    assert buffer.terminals.tolist() == [0, 0, 0, 1, 0]


def test_csv_files_are_read(tmp_path: Path) -> None:
    check(from_table(write(tmp_path / "log.csv", ROWS), terminal="died", **READING))


def test_last_steps_before_an_unknown_state_can_be_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "log.csv", ROWS)
    check_dropped(from_table(path, terminal="died", last_step="drop", **READING))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "Read 7 rows of 3 episodes, 1 of them final states without an action. Unknown state after "
        "the last step: 1 episodes. Left out: 1 rows, 1 rewards other than 0, 0 episodes.\n"
    )
    from_table(path, terminal="died", **READING)
    assert "Left out: 0 rows, 0 rewards other than 0, 0 ep" in capsys.readouterr().err
    with pytest.raises(ValueError, match="last_step 'keep' or 'drop', got 'cut'"):
        from_table(path, last_step="cut", **READING)  # type: ignore[arg-type]


@pytest.mark.parametrize("terminal", [False, "died"])
def test_delayed_rewards_are_kept(terminal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, 500)
    last = np.cumsum(lengths) - 1
    rows = int(lengths.sum())
    died, reward = np.zeros(rows), np.zeros(rows)
    died[last] = rng.random(500) < 0.15
    reward[last] = np.where(died[last], -1.0, 1.0)
    table = {
        "e": np.repeat(np.arange(500), lengths),
        "s": rng.normal(size=rows),
        "a": rng.integers(0, 3, rows),
        "r": reward,
        "died": died,
    }
    reading: dict[str, Any] = {"observations": ["s"], "actions": ["a"], "reward": "r"}
    reading |= {"episode": "e", "nvec": [3], "terminal": terminal}
    buffer = from_table(table, **reading)
    assert (buffer.size(), buffer.transition_count) == (500, rows)
    assert buffer.returns().tolist() == reward[last].tolist()
    assert buffer.terminals.nonzero()[:, 0].tolist() == last.tolist()
    assert "Left out: 0 rows" in capsys.readouterr().err
    if terminal:
        with_deaths = from_table(table, last_step="drop", **reading)
        assert (with_deaths.returns() <= 0).all()
        assert f"{int((died[last] == 0).sum())} rewards other than 0" in capsys.readouterr().err
    else:
        with pytest.raises(InvalidDatasetError, match=r"All 500 rewards other .*last_step='keep'"):
            from_table(table, last_step="drop", **reading)


def test_episodes_of_one_row_are_kept() -> None:
    table = {"e": [0, 1, 2], "s": [1.0, 2.0, 3.0], "a": [0, 2, 1], "r": [1.0, 0.0, 2.0]}
    reading: dict[str, Any] = {"observations": ["s"], "actions": ["a"], "reward": "r"}
    buffer = from_table(table, episode="e", nvec=[3], **reading)
    assert buffer.rewards.tolist() == [1, 0, 2]
    assert buffer.terminals.tolist() == [1, 1, 1]


def test_rows_are_ordered_by_time(tmp_path: Path) -> None:
    shuffled = [ROWS[i] for i in (2, 4, 0, 6, 1, 3, 5)]
    path = write(tmp_path / "log.csv", shuffled)
    check(from_table(path, terminal="died", time="day", **READING))
    with pytest.raises(InvalidDatasetError, match=r"'a' appears again in row 2.*Pass time="):
        from_table(path, terminal="died", **READING)


@pytest.mark.parametrize("row", [5, 6])
def test_an_end_may_be_noted_at_the_last_step_or_in_the_state_after_it(
    row: int, tmp_path: Path
) -> None:
    rows = [list(r) for r in ROWS]
    rows[row][HEADER.index("died")] = 1
    buffer = from_table(write(tmp_path / "log.csv", rows), terminal="died", **READING)
    assert buffer.terminals.tolist() == [0, 0, 1, 0, 1, 1]
    assert buffer.observations[-2:, 0].tolist() == [80, 81]


def test_parquet_files_are_read(tmp_path: Path) -> None:
    columns: dict[str, Any] = dict(zip(HEADER, map(list, zip(*ROWS, strict=True)), strict=True))
    for name in ("drug", "dose", "reward", "died"):
        columns[name] = [None if value == "" else value for value in columns[name]]
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    check(from_table(tmp_path / "log.parquet", terminal="died", **READING))
    with pytest.raises(InvalidDatasetError, match="no column 'smoker'; columns: patient, day"):
        from_table(tmp_path / "log.parquet", **{**READING, "observations": ["smoker"]})
    (tmp_path / "log.parquet").write_text("no")
    with pytest.raises(InvalidDatasetError, match="not a Parquet file"):
        from_table(tmp_path / "log.parquet", **READING)


def test_columns_in_memory_are_read() -> None:
    rows = ROWS[:5]
    columns = {n: np.array([row[i] for row in rows]) for i, n in enumerate(HEADER)}
    buffer = from_table(columns, terminal="died", **READING)
    assert buffer.rewards.tolist() == [1, 2, 3, 4, -9]


def test_numbered_choices_need_nvec() -> None:
    table = {"e": [0, 0, 0], "s": [1.0, 2.0, 3.0], "a": [0, 2, 1], "r": [0, 0, 0]}
    reading: dict[str, Any] = {"observations": ["s"], "actions": ["a"], "reward": "r"}
    buffer = from_table(table, episode="e", nvec=[5], **reading)
    assert (buffer.nvec, buffer.actions.tolist()) == ([5], [[0], [2], [1]])
    with pytest.raises(NvecMismatchError, match=r"choices of each of \['a'\]"):
        from_table(table, episode="e", **reading)
    with pytest.raises(InvalidDatasetError, match=r"Row 1 has 'a' = 2.*: 0, 1\."):
        from_table(table, episode="e", nvec=[2], **reading)
    with pytest.raises(NvecMismatchError, match=r"nvec=\[2, 3\]"):
        from_table(table, episode="e", nvec=[2, 3], **reading)
    with pytest.raises(NvecMismatchError, match=r"Got 1 of 'a' in choices= and nvec=\[3\]"):
        from_table(table, episode="e", nvec=[3], choices={"a": [0]}, **reading)
    with pytest.raises(NvecMismatchError, match="Got 1 of 'b' in choices="):
        from_table(table, episode="e", choices={"b": [0]}, **reading)
    ends = from_table(table, episode="e", nvec=[3], terminal=True, **reading)
    assert ends.terminals.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"),
    [
        (1, "pulse", "high", "Expected column 'pulse' to hold numbers, row 1 has 'high'"),
        (
            1,
            "pulse",
            "nan",
            r"Row 1 has no 'pulse' \(its cell is 'nan'\)\. Pass missing='mean' or 'forward'",
        ),
        (1, "pulse", "inf", "Row 1 has 'pulse' = inf, which is not finite"),
        (1, "dose", "75", "Row 1 has 'dose' = '75', which is not one of its choices: 0"),
        (1, "dose", "", "Row 1 has no 'dose'. Only an episode's last row"),
        (4, "dose", "", "Row 4 has no 'dose'"),
        (1, "died", "perhaps", "Row 1 has 'died' = 'perhaps', which is not one of its choices: 0"),
        (1, "died", 1, "'a' continues after row 1, where 'died' ends"),
        (1, "day", 0, "Two rows of episode 'a' have the same time"),
    ],
)
def test_bad_cells_are_named(
    row: int, column: str, value: Any, expected: str, tmp_path: Path
) -> None:
    rows = [list(r) for r in ROWS]
    rows[row][HEADER.index(column)] = value
    with pytest.raises(InvalidDatasetError, match=expected):
        from_table(write(tmp_path / "a.csv", rows), terminal="died", time="day", **READING)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        from_table(tmp_path / "nowhere.csv", **READING)
    (tmp_path / "log.txt").touch()
    with pytest.raises(InvalidDatasetError, match=r"\.csv or \.parquet"):
        from_table(tmp_path / "log.txt", **READING)
    with pytest.raises(InvalidDatasetError, match="no rows"):
        from_table(write(tmp_path / "log.csv", []), **READING)
    with pytest.raises(InvalidDatasetError, match=r"Row 0 of .* has 2 cells, the header has 8"):
        from_table(write(tmp_path / "log.csv", [["a", 1]]), **READING)
    with pytest.raises(InvalidDatasetError, match="no transitions"):
        from_table(write(tmp_path / "log.csv", ROWS[-1:]), **READING)
    with pytest.raises(InvalidDatasetError, match="no column 'smoker'; columns: patient"):
        from_table({"patient": [1]}, **{**READING, "observations": ["smoker"]})


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "log.parquet").touch()
    with pytest.raises(MissingDependencyError, match=r"spin-d3rlpy\[parquet\]"):
        from_table(tmp_path / "log.parquet", **READING)


def test_a_saved_dataset_is_minaris(tmp_path: Path) -> None:
    buffer = from_table(write(tmp_path / "log.csv", ROWS), terminal="died", **READING)
    save_dataset(buffer, "clinic/log-v0", description="three patients")
    found = minari.load_dataset("clinic/log-v0")
    check(DeviceReplayBuffer.from_minari(found))
    assert found.storage.metadata["returns"]["mean"] == pytest.approx(2.0)
    with pytest.raises(InvalidDatasetError, match="does not name its environment"):
        load_dataset("clinic/log-v0")
    with pytest.raises(InvalidDatasetError, match="exists"):
        save_dataset(buffer, "clinic/log-v0")
    for name in ("../log-v0", "spin/log-v0", "log"):
        with pytest.raises(DatasetNotFoundError, match="Expected a name"):
            save_dataset(buffer, name)


def test_a_replay_buffer_that_was_collected_can_be_saved() -> None:
    env = gymnasium.make("spin/maze-v0", actuators=2)
    explorer = FactoredBC(nvec=[2, 2], device="cpu:0")
    explorer.build_with_env(env)
    buffer = create_replay_buffer(env, limit=1000)
    explorer.collect(env, buffer, n_steps=400, show_progress=False)
    save_dataset(buffer, "me/maze-v0", env=env)
    dataset, again = load_dataset("me/maze-v0")
    assert dataset.nvec == [2, 2]
    assert dataset.size() == buffer.size()
    assert again.spec.kwargs == {"actuators": 2}  # type: ignore[union-attr]


def test_from_the_shell_a_log_becomes_a_policy(tmp_path: Path) -> None:
    def run(*arguments: object) -> Any:
        result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    columns = ["--observation", "pulse", "--observation", "age", "--action", "drug"]
    columns += ["--action", "dose", "--reward", "reward", "--episode", "patient"]
    choices = ["--choices", "drug=none,x,y", "--choices", "dose=0,50,100,200"]
    path = write(tmp_path / "log.csv", ROWS)
    made = run(
        *["data", "from-table", path, "clinic/log-v1", *columns, *choices, "--terminal", "died"]
    )
    assert made == {
        "dataset": "clinic/log-v1",
        "episodes": 3,
        "transitions": 6,
        "nvec": [3, 4],
        "features": ["pulse", "age"],
    }
    assert (
        run("data", "check", "clinic/log-v1", "--histogram", tmp_path / "r.png")["problems"] == []
    )
    small = ["--recipe", "smoke", "--steps", "2", "--no-progress", "--out", tmp_path / "run"]
    result = run("train", "clinic/log-v1", *small)
    assert 0.0 <= result["action_match"] <= 1.0
    assert "return" not in result
    page = tmp_path / "run" / "report.html"
    assert result["report"] == str(page)
    assert "drug" in page.read_text()


def test_the_shell_says_how_a_table_is_written(tmp_path: Path) -> None:
    lines = ["hospital;stay;seen;pulse;drug;reward"]
    lines += ["a;1;31.05.2024;60,5;x;1", "a;1;01.06.2024;61,5;y, z;2", "b;1;02.06.2024;62;x;3"]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    options = ["--observation", "seen", "--observation", "pulse", "--action", "drug"]
    options += ["--choices", 'drug=x,"y, z"', "--reward", "reward", "--episode", "hospital"]
    options += ["--episode", "stay", "--decimal", ",", "--dates", "seen=%d.%m.%Y"]
    made = ["data", "from-table", str(tmp_path / "log.csv"), "clinic/two-v0", *options, "--json"]
    result = CliRunner().invoke(app, made)
    assert result.exit_code == 0, result.output
    stored = DeviceReplayBuffer.from_minari(minari.load_dataset("clinic/two-v0"))
    assert stored.observations.tolist()[:2] == [[0.0, 60.5], [1.0, 61.5]]
    assert stored.episode_starts.tolist() == [0, 2, 3]
    assert stored.preparation is not None
    assert stored.preparation.episode == ["hospital", "stay"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("drug=x,y,y", "'y' twice"),
        ("drug=none,x,y --choices drug=none,x,y", "'drug' twice"),
        ("drug=", "choices of each"),
    ],
)
def test_the_shell_refuses_ambiguous_choices(option: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", ROWS)
    options = ["--observation", "pulse", "--action", "drug", "--reward", "reward"]
    options += ["--episode", "patient", "--choices", *option.split()]
    result = CliRunner().invoke(app, ["data", "from-table", str(path), "clinic/no-v0", *options])
    assert expected in str(result.exception)


def test_choices_from_the_shell_are_numbers_where_they_are_written_so(tmp_path: Path) -> None:
    cells = {"dose": ["50.0", "0.0", "50"], "code": ["250.10", "250.1", "007"]}
    rows = [["a", i, cells["dose"][i], cells["code"][i], 1] for i in range(3)]
    path = write(tmp_path / "log.csv", rows, ["e", "s", "dose", "code", "r"])
    options = ["--observation", "s", "--action", "dose", "--action", "code", "--reward", "r"]
    options += ["--episode", "e", "--choices", "dose=0,50", "--choices", "code=250.1,250.10,007"]
    result = CliRunner().invoke(app, ["data", "from-table", str(path), "clinic/n-v0", *options])
    assert result.exit_code == 0, result.exception
    stored = DeviceReplayBuffer.from_minari(minari.load_dataset("clinic/n-v0"))
    assert stored.actions.tolist() == [[1, 1], [0, 0], [1, 2]]
