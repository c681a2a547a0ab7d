"""Tables as they are: dates, words, missing values, and policies that name their choices."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from d3rlpy.preprocessing import StandardObservationScaler
from typer.testing import CliRunner

from spin_d3rlpy import (
    SPINIQL,
    FactoredBC,
    FactoredIQL,
    PretrainingConfig,
    TransformerConfig,
    from_table,
    load_policy,
    save_dataset,
    save_policy,
)
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.tables.from_table import read_states
from spin_d3rlpy.data.tables.preparation import Missing, TablePreparation
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.runs.decide import decide_table
from tests.algos.problems import new_algorithm

CSV = """patient,seen,ward,smoker,pulse,drug,dose,reward,status
a,2024-03-01,north,yes,60,none,0,1,alive
a,2024-03-02T12:00:00,south,no,,x,50,2,alive
a,2024-03-03,north,no,64,y,100,3,dead
b,2024-02-28T00:00:00+00:00,east,yes,,x,50,4,moved
b,2024-02-29,east,yes,70,none,0,5,alive
"""
READING: dict[str, Any] = {
    "observations": ["seen", "ward", "smoker", "pulse"],
    "actions": ["drug", "dose"],
    "choices": {"drug": ["none", "x", "y"], "dose": [0, 50, 100, 200]},
    "reward": "reward",
    "episode": "patient",
    "time": "seen",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "log.csv"
    file.write_text(CSV)
    return file


def test_dates_words_booleans_and_missing_values_become_features(path: Path) -> None:
    log = from_table(path, **READING, missing="mean", terminal="status", terminal_values=["dead"])
    assert log.preparation is not None
    assert log.preparation.features == [
        "seen",
        *("ward=east", "ward=north", "ward=south"),
        "smoker",
        *("pulse", "pulse is missing"),
    ]
    mean = pytest.approx((60 + 64 + 70) / 3)
    assert log.observations[:3].tolist() == [
        [2.0, 0.0, 1.0, 0.0, 1.0, 60.0, 0.0],
        [3.5, 0.0, 0.0, 1.0, 0.0, mean, 1.0],
        [4.0, 0.0, 1.0, 0.0, 0.0, 64.0, 0.0],
    ]
    assert log.observations[4].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, mean, 1.0]
    assert log.terminals.tolist() == [0, 0, 1, 0, 1]  # the last because its next state is unknown
    dropped = from_table(
        path,
        **READING,
        missing="mean",
        last_step="drop",
        terminal="status",
        terminal_values=["dead"],
    )
    assert dropped.terminals.tolist() == [0, 0, 1, 0]


def test_missing_values_are_carried_forward_within_an_episode(path: Path) -> None:
    log = from_table(path, **READING, missing="forward")
    pulse, flag = log.observations[:, 5].tolist(), log.observations[:, 6].tolist()
    assert pulse[:3] == [60.0, 60.0, 64.0]
    assert pulse[4] == pytest.approx((60 + 64 + 70) / 3)  # b had none before
    assert flag[:3] == [0.0, 1.0, 0.0]


def test_data_frames_with_dates_and_booleans_are_read() -> None:
    noon = datetime.datetime(2024, 3, 1, 12)
    days = np.array(["2024-03-01", "2024-03-02", "NaT"], "datetime64[ns]")
    seen = np.array([datetime.date(2024, 3, 1), noon, None], object)
    table = {"p": [0, 0, 0], "day": days, "seen": seen, "well": np.array([True, False, True])}
    table |= {"code": [7, 8, 7], "a": [0, 1, 0], "r": [1.0, 2.0, 3.0]}
    log = from_table(
        table,
        observations=["day", "seen", "well", "code"],
        actions=["a"],
        nvec=[2],
        reward="r",
        episode="p",
        missing="forward",
        categories=["code"],
    )
    assert log.observations[:3].tolist() == [
        [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0],
        [1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 1.0],
        [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.0],
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (",,x,", ",,x,", "Row 1 has no 'pulse'. Pass missing='mean' or 'forward'"),
        ("2024-02-29", "29.2.24", "'seen' to hold dates such as .*row 4 has '29.2.24'"),
        (",no,,", ",maybe,,", "'smoker' to hold true or false.*row 1 has 'maybe'"),
        (",70,", ",fast,", "'pulse' to hold numbers, row 4 has 'fast'.*categories="),
    ],
)
def test_cells_that_do_not_fit_are_named(path: Path, old: str, new: str, expected: str) -> None:
    path.write_text(CSV.replace(old, new))
    missing: Missing = "refuse" if old == new else "mean"
    with pytest.raises(InvalidDatasetError, match=f"log.csv cannot be used.*{expected}"):
        from_table(path, **READING, missing=missing)


def test_arguments_that_do_not_fit_the_table_are_named(path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"terminal_values=.'died'.*alive, dead, moved"):
        from_table(path, **READING, missing="mean", terminal="status", terminal_values=["died"])
    with pytest.raises(ValueError, match="Expected terminal_values= to be a list"):
        from_table(path, **READING, terminal_values=["dead"])
    with pytest.raises(ValueError, match="Expected categories= to be a list of columns"):
        from_table(path, **READING, categories=["drug"])
    with pytest.raises(ValueError, match="Expected missing 'refuse' or 'mean' or 'forward'"):
        from_table(path, **READING, missing="median")  # type: ignore[arg-type]
    words = {"p": range(101), "s": [f"w{i}" for i in range(101)], "a": [0] * 101, "r": [1.0] * 101}
    with pytest.raises(InvalidDatasetError, match="'s' has 101 different words, more than 100"):
        from_table(words, observations=["s"], actions=["a"], nvec=[2], reward="r", episode="p")


def trained(path: Path, missing: Missing = "mean") -> Any:
    log = from_table(path, **READING, missing=missing)
    scaler = StandardObservationScaler()
    algo = FactoredBC(batch_size=32, actor_learning_rate=0.01, observation_scaler=scaler)
    algo.fit(log, n_steps=60, n_steps_per_epoch=60, show_progress=False)
    return algo


def test_a_policy_names_its_choices_also_from_a_file(path: Path, tmp_path: Path) -> None:
    algo = trained(path)
    new: dict[str, list[Any]] = {
        "seen": ["2024-03-01", "2024-02-28"],
        "ward": ["north", "east"],
        "smoker": ["yes", "yes"],
        "pulse": [60, None],
    }
    named = algo.predict_table(new)
    assert named == [{"drug": "none", "dose": 0}, {"drug": "x", "dose": 50}]
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.preparation == algo.preparation
    assert loaded.predict_table(new) == named
    assert len(loaded.predict_table(path)) == 5
    new["ward"][1] = "west"
    with pytest.raises(InvalidDatasetError, match="hold one of: east, north, south; row 1 has 'we"):
        loaded.predict_table(new)
    new["ward"][1], new["smoker"][0] = "east", ""
    with pytest.raises(InvalidDatasetError, match="Row 0 has no 'smoker', which no row of the log"):
        loaded.predict_table(new)
    del new["pulse"]
    with pytest.raises(InvalidDatasetError, match="no column 'pulse'"):
        loaded.predict_table(new)


def test_a_policy_of_other_data_has_no_table(path: Path) -> None:
    algo = FactoredBC(nvec=[2, 3])
    algo.create_impl((2,), 0)
    with pytest.raises(RuntimeError, match="was not read by from_table"):
        algo.predict_table(path)


def test_the_preparation_is_kept_with_a_dataset_and_its_parts(path: Path) -> None:
    log = from_table(path, **READING, missing="forward")
    save_dataset(log, "clinic/words-v0")
    loaded = DeviceReplayBuffer.from_minari(minari.load_dataset("clinic/words-v0"))
    assert loaded.preparation == log.preparation
    for part in loaded.split(0.5):
        assert part.preparation == log.preparation


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 2', '"version": 3'),
        ('"category"', '"code"'),
        ("[0, 50, 100, 200]", "7"),
        ("{", ""),
    ],
)
def test_damaged_preparations_are_refused(path: Path, old: str, new: str, tmp_path: Path) -> None:
    algo = trained(path)
    text = algo.preparation.to_json()
    assert TablePreparation.from_json(text) == algo.preparation
    assert old in text
    damaged = text.replace(old, new)
    with pytest.raises(InvalidDatasetError, match=r"is damaged.*Read the table again"):
        TablePreparation.from_json(damaged)
    algo.preparation = type("Damaged", (), {"to_json": lambda self: damaged})()
    save_policy(algo, tmp_path / "policy.safetensors")
    with pytest.raises(InvalidCheckpointError, match="is damaged"):
        load_policy(tmp_path / "policy.safetensors")


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_shell_reads_a_table_as_it_is(path: Path) -> None:
    columns = [f"--observation={name}" for name in READING["observations"]]
    columns += [f"--action={name}" for name in READING["actions"]]
    for name, values in READING["choices"].items():
        columns.append(f"--choices={name}={','.join(map(str, values))}")
    columns += ["--reward=reward", "--episode=patient", "--time=seen", "--terminal=status"]
    prepared = ["--terminal-value=dead", "--terminal-value=gone", "--missing=forward"]
    arguments = ["data", "from-table", path, "clinic/shell-v0", *columns, *prepared]
    made = json.loads(call(*arguments, "--category=pulse", "--json"))
    log = from_table(
        path,
        **READING,
        terminal="status",
        terminal_values=["dead", "gone"],
        missing="forward",
        categories=["pulse"],
    )
    assert log.preparation is not None
    assert made["features"] == log.preparation.features
    assert "pulse=60" in made["features"]
    stored = DeviceReplayBuffer.from_minari(minari.load_dataset("clinic/shell-v0"))
    assert np.array_equal(stored.observations, log.observations)
    assert stored.terminals.tolist() == log.terminals.tolist()


NEW = """ward,seen,smoker,pulse
north,2024-03-01,yes,60
east,2024-02-28,yes,
"""


def test_the_shell_names_a_policys_choices_with_support_and_value(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.csv").write_text(NEW)
    log = from_table(path, **READING, missing="mean")
    algo = new_algorithm(
        SPINIQL,
        transformer=TransformerConfig(width=8, n_blocks=1, n_heads=2),
        pretraining=PretrainingConfig(max_updates=2),
    )
    algo.fit(log, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    file = tmp_path / "policy.safetensors"
    save_policy(algo, file)
    rows = json.loads(call("predict", file, tmp_path / "new.csv", "--json"))
    choices = algo.predict_table(tmp_path / "new.csv")
    assert [{name: row[name] for name in ("drug", "dose")} for row in rows] == choices
    states = read_states(tmp_path / "new.csv", log.preparation)  # type: ignore[arg-type]
    chosen = algo.predict(states)
    support = np.exp(algo.support(states, chosen).min(1))
    assert [row["support"] for row in rows] == pytest.approx(support.tolist(), rel=1e-5)
    values = algo.predict_value(states, chosen).tolist()
    assert [row["value"] for row in rows] == pytest.approx(values, rel=1e-5)
    printed = call("predict", file, tmp_path / "new.csv").splitlines()
    assert printed[0] == "drug,dose,support,value"
    call("predict", file, tmp_path / "new.csv", "--out", tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text().splitlines() == printed


def test_predictions_of_imitation_have_no_value_and_bad_tables_write_nothing(
    path: Path, tmp_path: Path
) -> None:
    file, new = tmp_path / "policy.safetensors", tmp_path / "new.csv"
    save_policy(trained(path), file)
    new.write_text(NEW)
    assert call("predict", file, new).splitlines()[0] == "drug,dose"
    new.write_text(NEW.replace("east", "west"))
    arguments = ["predict", str(file), str(new), "--out", str(tmp_path / "c.csv")]
    failed = CliRunner().invoke(app, arguments)
    assert isinstance(failed.exception, InvalidDatasetError)
    assert re.search(r"new\.csv cannot be used.*'ward'.*row 1 has 'west'", str(failed.exception))
    assert not (tmp_path / "c.csv").exists()
    other = FactoredBC(nvec=[2, 3])
    other.create_impl((2,), 0)
    with pytest.raises(ValueError, match="was not read by from_table"):
        decide_table(other, new)


RULES = """import torch

def no_y_at_50(partial):
    allowed = torch.ones(*partial.shape, 4, dtype=torch.bool)
    allowed[:, 0] = torch.tensor([False, False, True, True])  # drug y, and nothing after it
    allowed[partial[:, 0] == 2, 1, 1] = False
    allowed[:, 1, 2:] = False
    allowed[:, 1, 0] = partial[:, 0] == 2
    return allowed

def of_three(partial):
    return torch.ones(*partial.shape, 3, dtype=torch.bool)
"""


@pytest.mark.parametrize("algo_class", [FactoredIQL, FactoredBC])
def test_the_shell_keeps_a_rule(path: Path, tmp_path: Path, algo_class: Any) -> None:
    file, new, rules = (tmp_path / n for n in ("policy.safetensors", "new.csv", "rules.py"))
    new.write_text(NEW)
    rules.write_text(RULES)
    algo = algo_class()
    algo.fit(from_table(path, **READING, missing="mean"), n_steps=2, show_progress=False)
    save_policy(algo, file)
    rows = json.loads(call("predict", file, new, "--rule", f"{rules}:no_y_at_50", "--json"))
    assert {(row["drug"], row["dose"]) for row in rows} == {("y", 0)}
    free = json.loads(call("predict", file, new, "--json"))
    assert {(row["drug"], row["dose"]) for row in free} != {("y", 0)}
    out = tmp_path / "c.csv"
    for name, error in (("of_three", NvecMismatchError), ("absent", ValueError)):
        arguments = ["predict", str(file), str(new), "--out", str(out)]
        failed = CliRunner().invoke(app, [*arguments, "--rule", f"{rules}:{name}"])
        assert isinstance(failed.exception, error)
    assert not out.exists()
