"""Four first hours of new users, with the commands and code of the documents."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
from typer.testing import CliRunner

from spin_d3rlpy import SPIN, IQLConfig, PretrainingConfig, TransformerConfig
from spin_d3rlpy.cli import app
from tests.subprocesses import ROOT, run_python

pytestmark = pytest.mark.usefixtures("brief_tests_of_critics")


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)


def commands(page: str, heading: str) -> list[list[str]]:
    """The shell commands of the first block below a heading."""
    text = (ROOT / "docs" / page).read_text()
    block = text[text.index(heading) :].split("```sh\n")[1].split("```")[0]
    return [shlex.split(line) for line in block.splitlines()]


def run(arguments: list[str], code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (arguments, result.output, result.exception)
    return result.output


def test_from_a_csv_of_decisions_to_an_exported_policy_in_ten_commands() -> None:
    rng = np.random.default_rng(0)
    header = ["patient", "visit", "age", "pressure", "drug", "dose", "followup", "outcome", "died"]
    choices: list[list[Any]] = [["none", "a", "b"], [0, 10, 20], ["phone", "clinic"]]
    with open("visits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for patient in range(30):
            for visit in range(4):
                chosen = [rng.choice(values) for values in choices]
                state = [rng.integers(30, 80), round(rng.normal(140, 15), 1)]
                ended = int(visit == 3)
                writer.writerow([f"p{patient}", visit, *state, *chosen, rng.normal(), ended])
    install, *others = commands("how-to/own-data.md", "## From the shell, in ten commands")
    assert install[:2] == ["pip", "install"]
    assert len(others) == 9
    for program, *arguments in others:
        assert program == "spin-d3rlpy"
        if arguments[0] == "train":
            at = arguments.index("--minutes")
            arguments[at : at + 2] = ["--recipe", "smoke", "--no-progress"]
        elif arguments[0] == "evaluate":
            arguments[arguments.index("--steps") + 1] = "2"
        output = run(arguments)
        if arguments[0] == "evaluate":
            assert re.search(r"estimated value -?\d", output)
    assert Path("policy.onnx").exists()
    assert Path("curves.png").exists()
    # What stopped the first user: no environment, and no return in the curves.
    missing = CliRunner().invoke(app, ["evaluate", "runs/spin"])
    assert "evaluate --dataset" in str(missing.exception)
    missing = CliRunner().invoke(app, ["plot", "curves", "runs"])
    assert "action_match" in str(missing.exception)


def test_an_existing_d3rlpy_script_on_multidiscrete_data() -> None:
    rng = np.random.default_rng(0)
    n = 200
    dataset = d3rlpy.dataset.MDPDataset(
        observations=rng.normal(size=(n, 4)).astype(np.float32),
        actions=rng.integers([3, 3, 5], size=(n, 3)),
        rewards=rng.normal(size=n).astype(np.float32),
        terminals=np.arange(n) % 20 == 19,
    )
    algo = IQLConfig(
        batch_size=16,
        nvec=[3, 3, 5],
        policy=SPIN(
            TransformerConfig(width=8, n_blocks=1, n_heads=2),
            PretrainingConfig(max_updates=2, batch_size=16),
        ),
    ).create(device="cpu:0")
    [(_, metrics)] = algo.fit(
        dataset,
        n_steps=3,
        n_steps_per_epoch=3,
        evaluators={"td_error": d3rlpy.metrics.TDErrorEvaluator()},
    )
    assert np.isfinite(metrics["td_error"])
    algo.save("policy.d3")
    policy: Any = d3rlpy.load_learnable("policy.d3")
    actions = policy.predict(rng.normal(size=(5, 4)).astype(np.float32))
    assert actions.shape == (5, 3)
    assert (actions < [3, 3, 5]).all()


def test_only_the_environments() -> None:
    """Without torch, d3rlpy and Minari; `test_packaging` installs a newer Gymnasium."""
    output = run_python(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'd3rlpy', 'minari'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "import gymnasium, spin_envs\n"
        "env = gymnasium.make('spin/maze-v0', actuators=5)\n"
        "print(env.reset(seed=0)[0].shape, env.step(env.action_space.sample())[0].shape)\n"
        "envs = gymnasium.make_vec('spin/cheetah-run-v0', num_envs=2, bins=3)\n"
        "print(envs.reset(seed=0)[0].shape)\n"
    )
    assert output.split("\n")[:2] == ["(2,) (2,)", "(2, 17)"]
