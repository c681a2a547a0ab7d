"""Several rewards of each step: from tables, infos and functions, kept and weighed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from spin_d3rlpy.cli import app
from spin_d3rlpy.data import DeviceReplayBuffer, from_table, load_dataset, save_dataset
from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.files.results import write_csv

TABLE = {
    "contact": [2, 2, 1, 1, 1],
    "day": [2, 1, 1, 2, 3],
    "age": [30.0, 31.0, 40.0, 41.0, 42.0],
    "offer": [0, 1, 2, 0, None],
    "channel": [1, 0, 1, 0, None],
    "eur": [4.0, 3.0, 2.0, 1.0, None],
    "complaints": [0, 1, 1, 0, None],
}
COLUMNS: dict[str, Any] = {
    "observations": ["age"],
    "actions": ["offer", "channel"],
    "nvec": [3, 2],
    "episode": "contact",
    "time": "day",
}
REWARDS = {"revenue": "eur", "complaints": "complaints"}


def read(**changes: Any) -> DeviceReplayBuffer:
    weights = {"revenue": 1, "complaints": -15}
    arguments = {**COLUMNS, "rewards": REWARDS, "weights": weights, **changes}
    return from_table(TABLE, **arguments)


def test_rewards_follow_their_rows_and_weights_make_the_trained_one() -> None:
    data = read()
    named = data.named_rewards
    assert named is not None
    assert named.names == ("revenue", "complaints")
    # Contact 2 by day, then contact 1, whose last row is its final state.
    assert named.values.tolist() == [[3, 1], [4, 0], [2, 1], [1, 0]]
    assert data.rewards.tolist() == [-12, 4, -13, 1]
    batch = data.transitions(torch.tensor([2, 1]))
    assert batch.named_rewards is not None
    assert batch.named_rewards.tolist() == [[2, 1], [4, 0]]


def test_they_follow_select_split_and_devices() -> None:
    data = read()
    chosen = data.select([1])
    assert chosen.named_rewards is not None
    assert chosen.named_rewards.values.tolist() == [[2, 1], [1, 0]]
    assert chosen.rewards.tolist() == [-13, 1]
    moved = data.to("meta")
    assert moved.named_rewards is not None
    assert moved.named_rewards.values.device.type == "meta"


def test_other_weights_make_another_trained_reward() -> None:
    data = read().with_weights({"complaints": 2.0})
    assert data.rewards.tolist() == [2, 0, 2, 0]
    assert data.named_rewards is not None
    assert data.named_rewards.weights == {"revenue": 0.0, "complaints": 2.0}
    assert data.with_weights({"revenue": 1.0}).rewards.tolist() == [3, 4, 2, 1]


def test_a_function_makes_the_trained_reward() -> None:
    data = read(weights=lambda by_name: np.minimum(by_name["revenue"], 3.0))
    assert data.rewards.tolist() == [3, 3, 2, 1]
    assert data.named_rewards is not None
    assert data.named_rewards.weights is None
    assert data.with_weights({"revenue": 1.0}).rewards.tolist() == [3, 4, 2, 1]


@pytest.mark.parametrize("by_function", [False, True])
def test_a_saved_dataset_has_them(
    by_function: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    weights: Any = {"revenue": 1, "complaints": -15}
    if by_function:
        weights = lambda by_name: by_name["revenue"] ** 2  # noqa: E731
    data = read(weights=weights)
    save_dataset(data, "shop/log-v0")
    kept = DeviceReplayBuffer.from_minari(_open("shop/log-v0"))
    for one, other in ((kept, data), (kept.select([0]), data.select([0]))):
        assert one.named_rewards is not None
        assert other.named_rewards is not None
        assert one.named_rewards.names == other.named_rewards.names
        assert one.named_rewards.weights == other.named_rewards.weights
        assert torch.equal(one.named_rewards.values, other.named_rewards.values)
        assert torch.equal(one.rewards, other.rewards)


def test_infos_and_functions_are_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_dataset(read(), "shop/log-v0")
    dataset = _open("shop/log-v0")
    data = DeviceReplayBuffer.from_minari(
        dataset,
        rewards={
            "complaints": "reward: complaints",
            "age": lambda observations, actions, rewards: observations[:-1, 0],
            "first": lambda observations, actions, rewards: actions[:, 0] + 0.0 * rewards,
        },
        weights={"age": 1.0, "complaints": -10.0},
    )
    assert data.named_rewards is not None
    assert data.named_rewards.values.T.tolist() == [[1, 0, 1, 0], [31, 30, 40, 41], [1, 0, 2, 0]]
    assert data.rewards.tolist() == [21, 30, 30, 41]


def _open(name: str) -> Any:
    from spin_d3rlpy.data.loader import open_local

    return open_local(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None, "weights": None}, r"Expected reward= with a column, or rewards="),
        ({"reward": "eur"}, r"Expected reward= with a column, or rewards="),
        ({"weights": None}, r"Expected rewards= together with weights="),
        ({"rewards": None, "reward": "eur"}, r"Expected rewards= together with weights="),
        ({"rewards": {}}, r"Expected rewards= to map names to columns"),
        ({"rewards": {" ": "eur"}}, r"Expected rewards= to map names to columns"),
        ({"rewards": ["eur"]}, r"Expected rewards= to map names to columns"),
        ({"weights": {"revenu": 1}}, r"weights of 'revenue', 'complaints'.*got one of 'revenu'"),
        ({"weights": {"revenue": float("nan")}}, r"finite numbers; got nan of 'revenue'"),
        ({"weights": {"revenue": True}}, r"finite numbers; got True of 'revenue'"),
        ({"weights": {"revenue": 0}}, r"at least one of them other than 0"),
        ({"weights": [1, 2]}, r"Expected weights of 'revenue', 'complaints'.*got \[1, 2\]"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": {"a": "eur", "b": "eur"}}, r"rewards= to name one or more different columns"),
        ({"rewards": {"a": "eur", "b": "none"}}, r"'none'"),
        ({"rewards": {"a": "eur", "b": "offer"}}, r"'offer' is both reward and action"),
        ({"rewards": {"a": "eur", "b": "age"}}, r"'age' is the reward"),
        ({"weights": lambda by_name: [1.0]}, r"weights= to return 4 numbers"),
        ({"weights": lambda by_name: by_name["revenue"] / 0}, r"returned inf for step"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_rewards_that_cannot_be_read_are_refused(changes: dict[str, Any], message: str) -> None:
    weights = {"weights": {"a": 1.0}} if "rewards" in changes else {}
    with pytest.raises(InvalidDatasetError, match=message):
        read(**weights, **changes)


def test_an_empty_cell_names_row_and_column() -> None:
    table = {**TABLE, "complaints": [0, None, 1, 0, None]}
    with pytest.raises(InvalidDatasetError, match="Row 1 has no 'complaints'"):
        from_table(table, **COLUMNS, rewards=REWARDS, weights={"revenue": 1})


def test_a_missing_info_and_a_wrong_function_name_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_dataset(read(), "shop/log-v0")
    for source, message in (
        ("energy", r"Expected an info 'energy' in episode 0 for the reward 'a'"),
        (lambda *_: np.zeros(7), r"reward 'a' of episode 0 to be 2 numbers, got shape \(7,\)"),
        (lambda _o, _a, r: r * np.nan, r"The reward 'a' at step 0 of episode 0 is not finite"),
    ):
        with pytest.raises(InvalidDatasetError, match=message):
            load_dataset("shop/log-v0", rewards={"a": source}, weights={"a": 1.0})
    with pytest.raises(ValueError, match="Expected rewards= together with weights="):
        load_dataset("shop/log-v0", rewards={"a": "reward: revenue"})


def test_a_mapped_log_is_weighed_anew_without_being_read_again(tmp_path: Path) -> None:
    rows = [dict(zip(TABLE, cells, strict=True)) for cells in zip(*TABLE.values(), strict=True)]
    write_csv(
        tmp_path / "log.csv", [{k: "" if x is None else x for k, x in r.items()} for r in rows]
    )
    for weights in ({"revenue": 1}, {"complaints": -2.0}):
        arguments: dict[str, Any] = {**COLUMNS, "rewards": REWARDS, "weights": weights}
        mapped = from_table(tmp_path / "log.csv", memory_map=tmp_path / "map", **arguments)
        plain = from_table(TABLE, **arguments)
        assert mapped.rewards.tolist() == plain.rewards.tolist()
        assert mapped.named_rewards is not None
        assert plain.named_rewards is not None
        assert mapped.named_rewards.values.tolist() == plain.named_rewards.values.tolist()
        assert mapped.named_rewards.weights == plain.named_rewards.weights


def test_a_dataset_with_one_reward_has_no_weights() -> None:
    data = from_table(TABLE, **COLUMNS, reward="eur")
    assert data.named_rewards is None
    with pytest.raises(InvalidDatasetError, match="this one has one"):
        data.with_weights({"revenue": 1.0})


def test_the_shell_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    rows = [dict(zip(TABLE, cells, strict=True)) for cells in zip(*TABLE.values(), strict=True)]
    write_csv(
        tmp_path / "log.csv", [{k: "" if x is None else x for k, x in r.items()} for r in rows]
    )
    command = ["data", "from-table", str(tmp_path / "log.csv"), "shop/log-v0"]
    command += ["--observation", "age", "--action", "offer", "--action", "channel"]
    command += ["--choices", "offer=0,1,2", "--choices", "channel=0,1", "--episode", "contact"]
    command += ["--time", "day", "--reward", "revenue=eur", "--reward", "complaints=complaints"]
    without = CliRunner().invoke(app, command).exception
    assert "Expected --weight <name>=<number> of the rewards revenue, complaints" in str(without)
    done = CliRunner().invoke(
        app, [*command, "--weight", "revenue=1", "--weight", "complaints=-15"]
    )
    assert done.exit_code == 0, done.output
    assert DeviceReplayBuffer.from_minari(_open("shop/log-v0")).rewards.tolist() == [-12, 4, -13, 1]
    twice = CliRunner().invoke(app, [*command, "--reward", "revenue=day"]).exception
    assert "several different ones" in str(twice)
