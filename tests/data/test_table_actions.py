"""Action columns of numbers: doses in bins, and logs of environments of any action space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from spin_d3rlpy import FactoredBC, from_table, load_policy, save_dataset, save_policy
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import as_device_buffer
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError
from spin_envs import Bins, FlatActions
from tests.envs.pad import Pad

ROWS = 12
DOSES = [0.0, 0.0, 10.0, 20.0, 50.0, 70.0] * 2


def table(**columns: Any) -> dict[str, Any]:
    base = {
        "episode": np.arange(ROWS) // 4,
        "pulse": np.arange(ROWS) * 1.0,
        "drug": ["x", "y"] * (ROWS // 2),
        "dose": DOSES,
        "reward": np.ones(ROWS),
    }
    return {**base, **columns}


def read(content: dict[str, Any], **options: Any) -> Any:
    given: dict[str, Any] = {
        "observations": ["pulse"],
        "actions": ["drug", "dose"],
        "choices": {"drug": ["x", "y"]},
        "reward": "reward",
        "episode": "episode",
    }
    return from_table(content, **{**given, **options})


def test_doses_become_bins_that_are_named_by_what_they_act(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = read(table(), bins={"dose": Bins(edges=(0, 5, 30, 100))})
    assert data.nvec == [2, 3]
    assert data.actions[:6].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    assert data.preparation.choices == [["x", "y"], [0.0, 15.0, 60.0]]
    assert data.flat_actions is None  # no environment takes them
    save_dataset(data, "user/doses-v0")
    algo = FactoredBC()
    algo.build_with_dataset(as_device_buffer("user/doses-v0"))
    (row,) = algo.predict_table({"pulse": [3.0]})
    assert row["dose"] in (0.0, 15.0, 60.0)


SPACE = Pad.space()
COLUMNS = ["gear", "left", "right", "x", "y"]


def pad_table() -> tuple[dict[str, Any], list[Any]]:
    SPACE.seed(0)
    actions = [SPACE.sample() for _ in range(ROWS)]
    numbers = np.array([[*a["buttons"][0], *a["buttons"][1], *a["stick"]] for a in actions])
    columns = {name: numbers[:, i] for i, name in enumerate(COLUMNS)}
    return table(**columns), actions


@pytest.mark.parametrize("mapped", [False, True])
def test_a_log_of_an_environment_is_converted_by_its_space(mapped: bool, tmp_path: Path) -> None:
    content, actions = pad_table()
    if mapped:
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        parquet.write_table(arrow.table(content), tmp_path / "log.parquet")
    options: dict[str, Any] = {
        "actions": COLUMNS,
        "choices": None,
        "action_space": SPACE,
        "bins": {"stick": 3},
        "memory_map": tmp_path / "mapped" if mapped else None,
    }
    source: Any = tmp_path / "log.parquet" if mapped else content
    data = read(source, **options)
    flat = FlatActions(SPACE, {"stick": 3}, actions)
    assert data.flat_actions == flat
    assert data.actions.tolist() == flat.flatten_all(actions).tolist()
    assert data.preparation.choices[0] == [4, 5, 6]
    if mapped:
        assert read(source, **options).flat_actions == flat
        with pytest.raises(InvalidDatasetError, match="what differs: numbers"):
            read(source, **{**options, "bins": {"stick": 4}})
    algo = FactoredBC()
    algo.build_with_dataset(data)
    save_policy(algo, tmp_path / "policy.safetensors")
    policy = load_policy(tmp_path / "policy.safetensors")
    assert SPACE.contains(policy.act(np.zeros(1)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bins": {"dose": 1}}, ValueError, r'action\["dose"\] are wrong.*got 1'),
        ({"bins": 5}, ValueError, "bins= to map action columns"),
        ({"bins": {"pulse": 5}}, ValueError, r"Action columns: \['drug', 'dose'\]"),
        ({"bins": {"drug": 5}, "choices": {"dose": [0]}}, InvalidDatasetError, "row 0 has 'x'"),
        (
            {"bins": {"dose": 3}, "masks": {"dose": ["pulse"]}},
            NvecMismatchError,
            r"\(2 of 'drug'\)",
        ),
        ({"action_space": SPACE, "bins": 3}, NvecMismatchError, "5 numbers, buttons/0/0, .*'drug'"),
        ({"action_space": SPACE}, ValueError, r'bins of action\["stick"\]\[0\]'),
    ],
)
def test_columns_that_do_not_fit_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        read(table(), **options)


def test_numbers_outside_of_the_space_are_refused() -> None:
    content, _ = pad_table()
    content["gear"] = content["gear"] + 3
    options: dict[str, Any] = {"actions": COLUMNS, "choices": None, "action_space": SPACE}
    with pytest.raises(InvalidDatasetError, match=r'action\["buttons"\]\[0\]\[0\] to be .* 4 to 6'):
        read(content, bins=3, **options)
    with pytest.raises(InvalidDatasetError, match="Row 5 has 'dose' = inf, which is no finite"):
        read(table(dose=[*DOSES[:5], np.inf, *DOSES[6:]]), bins={"dose": 3})


def test_final_states_have_no_action() -> None:
    rows = table(
        dose=[*DOSES[:-1], np.nan], drug=[*(["x"] * 11), None], reward=[*([1.0] * 11), None]
    )
    data = read(rows, bins={"dose": 2})
    assert data.transition_count == 11
    assert data.preparation.choices[1] == pytest.approx([7.5, 170.0 / 3.0])


@pytest.mark.parametrize(
    ("bins", "acted"),
    [("2", [22.5, 80.0]), ("0,5,60,90", [0.0, 30.0, 80.0]), ("quantiles:2", [16.7, 59.95])],
)
def test_the_shell_makes_bins(
    bins: str, acted: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rows = ["e,s,dose,r", "a,1,0,1", "a,2,20,1", "a,3,30,1", "b,1,80,1", "b,2,39.9,1"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    options = ["--observation", "s", "--action", "dose", "--reward", "r", "--episode", "e"]
    made = ["data", "from-table", str(tmp_path / "log.csv"), "me/d-v0", *options]
    result = CliRunner().invoke(app, [*made, "--bins", f"dose={bins}"])
    assert result.exit_code == 0, result.output
    preparation = as_device_buffer("me/d-v0").preparation
    assert preparation is not None
    np.testing.assert_allclose(preparation.choices[0], acted, atol=0.1)
    result = CliRunner().invoke(app, [*made, "--bins", "dose=x"])
    assert 'bins of action["dose"] are wrong' in str(result.exception)
    result = CliRunner().invoke(app, made)
    assert "in choices= or" in str(result.exception)
