"""From the shell: pre-train, train, resume, evaluate, export and draw, in the maze."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from spin_d3rlpy import load_asm, load_policy
from spin_d3rlpy.cli import app
from spin_d3rlpy.files.yaml_settings import read_settings
from tests.exported_files import exported_actions

DATASET = "spin/maze-a5/random-medium-expert-v0"
SMALL = [
    *["--size", "2000", "--recipe", "smoke", "--steps-per-epoch", "20", "--episodes", "3"],
    "--no-progress",
]


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def run_json(*args: object) -> Any:
    return json.loads(run(*args, "--json"))


@pytest.fixture(scope="module", autouse=True)
def _datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        patch.delenv("MINARI_REMOTE", raising=False)
        run("data", "build", DATASET, "--size", "2000", "--jobs", "1")
        yield


@pytest.fixture(scope="module")
def asm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("asm")
    small = ["--size", "2000", "--recipe", "smoke", "--no-progress"]
    fields = ["--set", "pretraining.mask_prob_max=1.0", "--set", "transformer.width=8"]
    result = run_json("pretrain", DATASET, *small, *fields, "--updates", "3", "--out", out)
    assert (result["step"], result["samples"]) == (3, 3 * 256)
    return Path(result["asm"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, asm: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "spin"
    run("train", DATASET, *SMALL, "--asm", asm, "--out", out)
    return out


def test_pretraining_takes_sizes_and_fields(asm: Path) -> None:
    model = load_asm(asm)
    assert model.config.width == 8
    assert model.nvec == [2] * 5
    written = read_settings(asm.parent / "config.yaml")
    assert written["pretraining"]["mask_prob_max"] == 1.0
    assert written["pretraining"]["max_updates"] == 3


def test_training_leaves_policy_curve_and_complete_settings(trained: Path, asm: Path) -> None:
    with (trained / "curve.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [row["step"] for row in rows] == ["0", "20", "40"]
    result = json.loads((trained / "result.json").read_text())
    assert result["return"] == float(rows[-1]["return"])
    assert (result["env"], result["env_args"]["actuators"]) == ("spin/maze-v0", 5)
    assert (trained / "checkpoints" / "best.safetensors").exists()
    policy = load_policy(trained / "policy.safetensors")
    assert policy.predict(np.zeros((2, 2), np.float32)).shape == (2, 5)
    assert policy.impl is not None  # the ASM's trunk is in it
    weights = load_asm(asm).state_dict()["trunk.blocks.0.attention.out.weight"]
    assert any(
        value.shape == weights.shape and bool((value == weights).all())
        for value in policy.impl.policy.state_dict().values()
    )
    printed = run("train", "--config", trained / "config.yaml", "--print-config")
    assert printed == (trained / "config.yaml").read_text()


def test_a_finished_training_is_not_repeated(trained: Path) -> None:
    before = (trained / "policy.safetensors").stat().st_mtime_ns
    again = run_json("train", "--config", trained / "config.yaml", "--out", trained)
    assert again == json.loads((trained / "result.json").read_text())
    assert (trained / "policy.safetensors").stat().st_mtime_ns == before


def test_a_training_can_be_made_longer_but_not_another(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "longer"
    shutil.copytree(trained, out)
    settings = ["--config", out / "config.yaml", "--out", out, "--no-progress"]
    refused = CliRunner().invoke(app, [*map(str, ["train", *settings]), "--seed", "1"])
    assert isinstance(refused.exception, ValueError)
    assert "seed=0 (asked for: 1)" in str(refused.exception)
    assert run_json("train", *settings, "--steps", "50")["steps"] == 50
    rows = [(out / "curve.csv").read_text().splitlines() for out in (trained, out)]
    assert rows[1][:4] == rows[0]  # the first epochs were not trained again
    assert rows[1][4].startswith("50,")


def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", DATASET, "--algorithm", "FactoredIQL", *SMALL, "--set", "batch_size=16"]
    whole = run_json(*command, "--out", tmp_path / "whole")

    class InterruptedTestError(Exception):
        pass

    def stop(*_: object) -> None:
        raise InterruptedTestError

    part = tmp_path / "part"
    more = [*command, "--out", part, "--config", tmp_path / "interval.yaml"]
    (tmp_path / "interval.yaml").write_text("checkpoint_interval: 20\n")
    with monkeypatch.context() as patch:
        patch.setattr("spin_d3rlpy.runs.training.write_csv", stop)
        result = CliRunner().invoke(app, [str(word) for word in more])
        assert isinstance(result.exception, InterruptedTestError)
    assert not (part / "result.json").exists()
    assert run_json(*more)["return"] == whole["return"]
    weights = [load_policy(p / "policy.safetensors") for p in (tmp_path / "whole", part)]
    states = np.random.default_rng(0).random((50, 2), dtype=np.float32)
    values = [w.predict_value(states, w.predict(states)) for w in weights]
    assert np.array_equal(values[0], values[1])


@pytest.mark.parametrize("algorithm", ["SPINDistillIQL", "RePreMIQL", "SAINTBC", "DecQNCQL"])
def test_other_algorithms_take_a_recipe(algorithm: str, tmp_path: Path) -> None:
    command = ["train", DATASET, *SMALL, "--algorithm", algorithm, "--steps", "2"]
    assert run_json(*command, "--out", tmp_path)["algorithm"] == algorithm


def test_policies_are_evaluated_where_they_were_trained(trained: Path) -> None:
    result = run_json("evaluate", trained, "--episodes", "3")
    assert result["return"] == json.loads((trained / "result.json").read_text())["return"]
    assert len(result["returns"]) == 3
    given = ["--env", "spin/maze-v0", "--env-arg", "actuators=5", "--episodes", "3"]
    assert run_json("evaluate", trained / "policy.safetensors", *given) == result
    expert = run_json("evaluate", "maze-a5-expert", "--episodes", "3")
    assert expert["score"] > 99


def test_policies_are_evaluated_offline(trained: Path) -> None:
    result = run_json(
        *["evaluate", trained, "--dataset", "spin/maze-a5/random-medium-expert-2k-v0"],
        *["--steps", "200", "--gamma", "0.9", "--no-progress"],
    )
    assert result["fqe_steps"] == 200
    assert np.isfinite(result["estimated_value"])
    assert -0.5 < result["data_value"] < 100


@pytest.mark.parametrize("suffix", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_policies_are_exported(suffix: str, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / f"policy.{suffix}"
    result = run_json("export", trained, "--out", path)
    assert result["bytes"] == path.stat().st_size > 0
    assert (result["observation_size"], result["nvec"]) == (2, [2] * 5)
    if suffix == "onnx":
        states = np.random.default_rng(0).random((50, 2), dtype=np.float32)
        policy = load_policy(trained / "policy.safetensors")
        actions = exported_actions(path, observations=states)
        assert np.array_equal(actions, policy.predict(states))


@pytest.mark.slow
def test_policies_are_exported_with_masks(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    assert run_json("export", trained, "--out", path, "--masks")["masks"] is True
    states = np.random.default_rng(0).random((50, 2), dtype=np.float32)
    masks = np.random.default_rng(1).random((50, 5, 2)) < 0.5
    masks[..., 0] |= ~masks.any(2)
    actions = exported_actions(path, observations=states, masks=masks)
    policy = load_policy(trained / "policy.safetensors")
    assert np.array_equal(actions, policy.predict_masked(states, masks))
    assert "masks (B, 5, 2), actions (B, 5)" in run("export", trained, "--out", path, "--masks")


def test_several_seeds_are_runs_of_their_own_and_one_picture(tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    command = ["train", DATASET, "--algorithm", "FactoredBC", *SMALL, "--out", out]
    result = run_json(*command, "--seeds", "0, 3")
    returns = [json.loads((out / f"seed-{n}/result.json").read_text())["return"] for n in (0, 3)]
    assert [one["return"] for one in result["runs"]] == returns
    assert (result["lowest"], result["highest"]) == (min(returns), max(returns))
    assert result["mean"] == pytest.approx(np.mean(returns))
    assert [read_settings(out / f"seed-{n}/config.yaml")["seed"] for n in (0, 3)] == [0, 3]
    assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
    drawn = run_json("plot", "curves", out, "--x", "seconds", "--out", tmp_path / "x.svg")
    assert drawn["seeds"] == {DATASET: {"FactoredBC": 2}}
    assert "(2 seeds)" in run(*command, "--seeds", "0,3")  # both are finished
    for seeds in ("0,0", "0;1", "", "-1"):
        refused = CliRunner().invoke(app, [*map(str, command), "--seeds", seeds])
        assert "different whole numbers such as 0,1,2" in str(refused.exception)
    both = CliRunner().invoke(app, [*map(str, command), "--seeds", "0,1", "--seed", "1"])
    assert "--seed or --seeds" in str(both.exception)


def test_pictures_are_drawn(trained: Path, tmp_path: Path) -> None:
    data = "spin/maze-a5/random-medium-expert-2k-v0"
    out = ["--out", tmp_path / "picture.svg"]
    assert run_json("plot", "curves", trained, *out)["seeds"] == {DATASET: {"SPINIDQL": 1}}
    marginals = run_json("plot", "actions", data, "--policy", trained, *out)["shares"]
    assert np.allclose(np.sum(marginals["the data"], 1), 1.0)
    assert len(marginals) == 2
    assert "<svg" in (tmp_path / "picture.svg").read_text()
