"""Numbers that float32 cannot tell apart, and outliers that rule a scale: never in silence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
import torch
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardObservationScaler
from gymnasium.spaces import Box, MultiDiscrete
from typer.testing import CliRunner

from spin_d3rlpy import (
    FactoredBC,
    create_replay_buffer,
    from_table,
    load_policy,
    save_dataset,
    save_policy,
)
from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.scalers import fit_scaler
from spin_d3rlpy.data.tables.from_table import read_states

READING: dict[str, Any] = {
    "observations": ["seconds", "pulse"],
    "actions": ["a"],
    "reward": "r",
    "episode": "e",
    "nvec": [2],
    "terminal": True,
}
START = 1_700_000_000


def table(n: int = 400) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = np.arange(n)
    return {
        "seconds": START + rows,
        "pulse": rng.normal(70.0, 10.0, n),
        "a": rows % 2,
        "r": np.ones(n),
        "e": rows // 10,
    }


@pytest.mark.parametrize("subtract", [None, {"seconds": START}])
def test_seconds_since_1970_keep_all_their_values(
    subtract: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = from_table(table(), subtract=subtract, **READING)  # no warning
    assert len(buffer.observations[:, 0].unique()) == 400
    assert buffer.observations[:3, 0].tolist() == [0, 1, 2]
    assert buffer.observations[:3, 1].tolist() == pytest.approx(table()["pulse"][:3].tolist())
    said = "Subtracted, because .* 1700000000 from 'seconds'"
    assert bool(re.search(said, capsys.readouterr().err)) == (subtract is None)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64, object, "text"])
def test_what_is_subtracted_is_kept_for_new_rows_and_in_files(dtype: Any, tmp_path: Path) -> None:
    log = table()
    cells = log["seconds"]
    log["seconds"] = [str(x) for x in cells] if dtype == "text" else cells.astype(dtype)
    buffer = from_table(log, **READING)
    assert buffer.preparation is not None
    assert buffer.preparation.columns[0].subtract == START
    save_dataset(buffer, "me/seconds-v0")
    again = DeviceReplayBuffer.from_minari(minari.load_dataset("me/seconds-v0"))
    assert torch.equal(again.observations, buffer.observations)
    policy = FactoredBC()
    policy.fit(again, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    new = {"seconds": [START + 7, START - 1], "pulse": [70.0, 80.0]}
    assert read_states(new, loaded.preparation)[:, 0].tolist() == [7.0, -1.0]
    assert loaded.predict_table(new) == policy.predict_table(new)


def test_nanoseconds_beyond_float64_keep_their_differences() -> None:
    log = table()
    log["seconds"] = 1_700_000_000_000_000_001 + np.arange(400)
    buffer = from_table(log, **READING)
    assert buffer.observations[1:10, 0].diff().tolist() == [1.0] * 8


def test_a_shift_that_keeps_some_values_is_made_and_the_rest_named() -> None:
    log = table()
    log["seconds"] = log["seconds"] + np.where(np.arange(400) < 200, 0, 2**27)
    with pytest.warns(UserWarning, match=r"'seconds' \(2\d\d of 400 are left\)\. Rescale.*split"):
        buffer = from_table(log, **READING)
    assert buffer.observations[:3, 0].tolist() == [0, 1, 2]


def test_advice_holds_after_a_subtraction_that_was_too_small() -> None:
    with pytest.warns(UserWarning, match=r"Pass subtract=\{'seconds': 1700000000\}"):
        from_table(table(), subtract={"seconds": 1000}, **READING)


def test_values_that_no_subtraction_keeps_are_to_be_split() -> None:
    columns = table()
    columns["seconds"] = columns["seconds"] * (np.arange(400) % 2)
    with pytest.warns(UserWarning, match=r"'seconds' \(5 of 201 are left\)\. Rescale.*split"):
        from_table(columns, **READING)


def test_fractions_that_round_to_their_neighbors_by_chance_are_no_loss() -> None:
    columns = table(200_000)
    columns["seconds"] = np.random.default_rng(1).normal(size=200_000)
    rounded = columns["seconds"].astype(np.float32)
    assert len(np.unique(rounded)) < len(np.unique(columns["seconds"]))
    from_table(columns, **READING)


@pytest.mark.parametrize("subtract", [{"r": 1.0}, {"seconds": float("nan")}])
def test_a_subtraction_must_name_a_column_of_the_state(subtract: Any) -> None:
    with pytest.raises(ValueError, match=r"Columns of the state: seconds, pulse"):
        from_table(table(), subtract=subtract, **READING)


def test_from_the_shell_a_subtraction_is_recorded(tmp_path: Path) -> None:
    lines = ["s,a,r,e", *(f"{START + i},{i % 2},1,{i // 5}" for i in range(20))]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    made = ["data", "from-table", str(tmp_path / "log.csv"), "me/log-v0", "--observation", "s"]
    made += ["--action", "a", "--reward", "r", "--episode", "e", "--choices", "a=0,1"]
    result = CliRunner().invoke(app, [*made, "--subtract", "s=soon"])
    assert result.exit_code != 0
    result = CliRunner().invoke(app, [*made, "--subtract", f"s={START}"])
    assert result.exit_code == 0, result.output
    dataset = minari.load_dataset("me/log-v0")
    assert f"s={START}" in dataset.storage.metadata["description"]
    assert dataset[0].observations[:2, 0].tolist() == [0, 1]


def test_datasets_of_64_bits_say_what_they_lose(
    make_minari: Callable[..., Any], foreign_episodes: Callable[..., Any]
) -> None:
    episodes = foreign_episodes([3, 5])
    for episode in episodes:
        episode.observations = episode.observations.astype(np.float64)
        episode.observations[:, 1] += START
    space = Box(-np.inf, np.inf, (2,), np.float64)
    dataset = make_minari(MultiDiscrete([3, 5]), episodes, observation_space=space)
    with pytest.warns(UserWarning, match=r"others/things-v0 lose .*: 1 \(1 of 8 are left\)"):
        DeviceReplayBuffer.from_minari(dataset)


def test_a_replay_buffer_of_64_bits_says_what_it_loses() -> None:
    import gymnasium
    from d3rlpy.dataset import Episode

    buffer = create_replay_buffer(gymnasium.make("spin/maze-v0", actuators=2))
    seconds = START + np.arange(20.0)
    zeros = np.zeros((20, 1), np.float32)
    states = np.stack([seconds, seconds % 7], axis=1)
    buffer.append_episode(Episode(states, np.zeros((20, 2), np.int64), zeros, True))
    with pytest.warns(UserWarning, match=r"replay buffer lose .*: 0 \(1 of 20 are left\)"):
        DeviceReplayBuffer.from_replay_buffer(buffer, [2, 2])


def test_an_outlier_that_rules_the_scale_is_named() -> None:
    columns = table()
    columns["seconds"] = np.zeros(400)
    columns["seconds"][17] = 1.0  # what is rare is no outlier
    assert len(from_table(columns, **READING).observations) == 440
    columns["pulse"][123] = 1e38
    with pytest.warns(UserWarning, match=r"'pulse' \(1e\+38 is farthest out\)") as caught:
        buffer = from_table(columns, **READING)
    assert len(caught) == 1
    for scaler in (StandardObservationScaler(), MinMaxObservationScaler()):
        with pytest.warns(UserWarning, match=r"rule the scale of features.*: 1 \("):
            fit_scaler(scaler, buffer)


def test_scalers_are_fitted_in_float64() -> None:
    columns = table(4_000)
    columns["pulse"] = 10_000.0 + np.arange(4_000) / 1024  # exact as float32, squares are not
    buffer = from_table(columns, subtract={"seconds": START}, **READING)
    scaler = StandardObservationScaler()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_scaler(scaler, buffer)
    states = buffer.observations.numpy().astype(np.float64)
    assert scaler.mean == pytest.approx(states.mean(0), rel=1e-7)
    assert scaler.std == pytest.approx(states.std(0), rel=1e-6)
    assert scaler.transform(buffer.observations).std(0, correction=0) == pytest.approx(
        torch.ones(2), abs=2e-3
    )
