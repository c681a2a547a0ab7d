"""Every example runs with a small budget."""

from __future__ import annotations

import csv
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import d3rlpy
import pytest
import torch

from tests.subprocesses import ROOT, import_path

pytestmark = pytest.mark.usefixtures(
    "short_episodes", "brief_tests_of_critics", "short_probes_of_states"
)
SIZE = ["--size", "3000"]
SMALL = "spin/dispatch-n5/medium-expert-v0"
STEPS = [*SIZE, "--pretraining-updates", "2", "--steps", "2"]
SHORT = [*STEPS, "--episodes", "1"]
PROBE = [*SIZE, "--updates", "2", "--probe-updates", "2"]
# Arguments that make an example short, and what it leaves behind.
RUNS: dict[str, list[tuple[list[str], list[str]]]] = {
    "act_large.py": [
        (
            [
                *["--trained", "2", "--acting", "3", "--seconds", "2", "--size", "1000"],
                *["--episodes", "1", "--out", "table"],
            ],
            ["table/act_large.csv"],
        )
    ],
    "critic_initialization.py": [
        (
            ["--size", "3000", "--steps", "2", "--epoch", "2", "--episodes", "1", "--seeds", "1"],
            ["critic_initialization.csv"],
        )
    ],
    "first_policy.py": [
        (
            # Where nothing is learned yet every choice is likely, and a search of 20 slots is long.
            ["--dataset", SMALL, *SIZE, "--episodes", "1", "--seconds", "1"],
            ["policy.safetensors", "asm.safetensors"],
        )
    ],
    "hidden_velocity.py": [
        (
            [*["--size", "3000", "--seconds", "0.2", "--episodes", "1", "--out", "hidden"]],
            ["hidden/hidden_velocity.csv"],
        )
    ],
    "fine_tune_online.py": [([*SHORT, "--online-steps", "3"], ["policy.d3"])],
    "swap_in.py": [
        (["--data-steps", "300", "--steps", "4", *before], ["policy.d3"])
        for before in ([], ["--before"])
    ],
    "distill_and_export.py": [([*SHORT, "--repeats", "2"], ["spin.onnx", "distill.onnx"])],
    "incoherent_actions.py": [([*SIZE, "--updates", "2", "--rows", "256"], [])],
    "joint_actions.py": [
        (
            [
                "--dataset",
                "spin/slate-n4/expert-v0",
                "--size",
                "1000",
                "--updates",
                "2",
                "--rows",
                "9",
            ],
            ["asm.safetensors"],
        )
    ],
    "mask_ratio_and_warm_start.py": [(SHORT, [])],
    "pretraining_objectives.py": [(PROBE, [])],
    "probe_and_attention.py": [(PROBE, ["attention_untrained.png", "attention_pretrained.png"])],
    "reprem.py": [(SHORT, [])],
    "several_processes.py": [([*STEPS, "--checkpoints"], ["policy.safetensors", "checkpoints"])],
    "offers/write_contacts.py": [(["contacts.csv", "--contacts", "20"], ["contacts.csv"])],
    "offers/compare.py": [
        (["--contacts", "300", "--seconds", "0.2", "--points", "2"], ["offers.csv"])
    ],
    "power_grid/train_on_decisions.py": [
        ([*["--steps", "700", "--candidates", "1", "--seconds", "1", "--test-steps", "2"]], [])
    ],
    "many_files/prepare_with_ray.py": [
        (["--patients", "50", "--files", "3", "--steps", "2"], ["prepare_with_ray.csv"])
    ],
    "track_with_mlflow.py": [(STEPS, ["mlflow.db"])],
    "tune_with_optuna.py": [
        ([*SIZE, "--trials", "2", "--steps", "2", "--by", by], []) for by in ("likelihood", "fqe")
    ],
    "doom/buttons_and_stick.py": [
        (
            [
                *["--episodes", "9", "--seconds", "0.2", "--seeds", "0", "--test-episodes", "1"],
                *["--out", "hybrid.csv"],
            ],
            ["hybrid.csv"],
        )
    ],
    "doom/train_on_images.py": [
        (
            [
                *["--episodes", "30", "--seconds", "1", "--seeds", "0", "--test-episodes", "1"],
                *["--out", "doom.csv"],
            ],
            ["doom.csv"],
        )
    ],
    "sepsis/train_on_icu.py": [(["--patients", "30", "--seconds", "1"], [])],
    "treatment/write_log.py": [(["--patients", "20"], ["log.csv", "new.csv"])],
    "treatment/compare_on_ward.py": [
        (
            [
                *["--patients", "40", "--seconds", "0.3", "--out", "ward.csv"],
                *["--algorithms", "imitation", "FactoredIQL"],
            ],
            ["ward.csv"],
        )
    ],
    "treatment/from_log_to_policy.py": [
        (["--patients", "20", "--pretraining-updates", "2", "--steps", "2"], ["log.csv"])
    ],
}
# Imported by an example, or (`treat_with.py`) run in tests/test_ward.py after a training.
MODULES = {
    "offers/market.py",
    "offers/curves.py",
    "treatment/simulator.py",
    "power_grid/grid.py",
    "sepsis/icu.py",
    "doom/doom.py",
    "doom/stick.py",
    "many_files/visits.py",
} | {f"treatment/{name}.py" for name in ("ward", "doctors", "outcomes", "rules", "treat_with")}
# What they show is tested elsewhere, too: the tutorial, exports, processes, histories ...
SLOW = {
    *("distill_and_export.py", "several_processes.py", "mask_ratio_and_warm_start.py"),
    *("pretraining_objectives.py", "reprem.py", "critic_initialization.py"),
    *("probe_and_attention.py", "act_large.py", "fine_tune_online.py"),
    *("doom/buttons_and_stick.py", "doom/train_on_images.py", "offers/compare.py"),
    *("power_grid/train_on_decisions.py", "many_files/prepare_with_ray.py", "hidden_velocity.py"),
    "first_policy.py",
}
# Not in the extra `test`: skipped where they are not installed.
NEEDS = {
    "doom/buttons_and_stick.py": "vizdoom",
    "doom/train_on_images.py": "vizdoom",
    "many_files/prepare_with_ray.py": "ray.data",
    "power_grid/train_on_decisions.py": "grid2op",
    "sepsis/train_on_icu.py": "icu_sepsis",
    "track_with_mlflow.py": "mlflow",
    "tune_with_optuna.py": "optuna",
}
# The others run in this process, which has imported everything already.
IN_PROCESSES = {
    "several_processes.py": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
}


def test_every_example_runs_here() -> None:
    examples = ROOT / "examples"
    found = {path.relative_to(examples).as_posix() for path in examples.rglob("*.py")}
    # How the shipped policies were trained, and the paper's experiments, have tests of their own.
    packages = ("behavior_policies/", "paper/")
    found = {name for name in found if not name.startswith(packages)}
    assert found - MODULES == RUNS.keys()


def test_rows_of_results_have_the_columns_of_their_header() -> None:
    """Files of several runs that are joined as they are can have others further down."""
    wrong = []
    for path in (ROOT / "examples").rglob("*.csv"):
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        if header in rows or any(len(row) != len(header) for row in rows):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


def test_examples_are_short() -> None:
    for name in RUNS:
        lines = (ROOT / "examples" / name).read_text().splitlines()
        assert len(lines) <= 75, name


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, so that examples share a dataset."""
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(autouse=True)
def _surroundings(datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(datasets))
    monkeypatch.setenv("PYTHONPATH", import_path())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "arguments", "files"),
    [
        pytest.param(name, *run, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, runs in RUNS.items()
        for run in runs
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_example_runs(
    name: str,
    arguments: list[str],
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "examples" / name
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, of its packages
    if name.startswith("power_grid/"):
        warnings.filterwarnings("ignore", "You are using a development environment")  # Grid2Op's
        warnings.filterwarnings("ignore", "Trajectories cannot be weighted")  # of one episode
    if name in IN_PROCESSES:
        command = [sys.executable, *IN_PROCESSES[name], str(path), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert result.returncode == 0, result.stderr
        output = result.stdout
    else:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.syspath_prepend(str(path.parent))
        runpy.run_path(str(path), run_name="__main__")
        output = capsys.readouterr().out
    last = output.splitlines()[-20:]
    assert any(re.fullmatch(r"[- ]*--[- ]*", line) for line in last), "It ends with a table."
    for file in files:
        assert (tmp_path / file).exists()


def test_processes_take_gpus_by_their_rank_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the second machine of two with two GPUs, rank 3 has GPU 1; the rank names none there."""
    made: dict[str, Any] = {}

    class Made(Exception):  # noqa: N818  nothing is wrong
        pass

    def algorithm(**fields: Any) -> None:
        made.update(fields)
        raise Made

    script = runpy.run_path(str(ROOT / "examples" / "several_processes.py"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: made.update(current=gpu))
    monkeypatch.setattr(d3rlpy.distributed, "init_process_group", lambda backend: 3)
    monkeypatch.setattr(d3rlpy, "seed", lambda seed: made.update(seed=seed))
    main = script["main"]
    monkeypatch.setitem(main.__globals__, "load_dataset", lambda *_, **__: (None, None))
    monkeypatch.setitem(main.__globals__, "SPINIQL", algorithm)
    with pytest.raises(Made):
        main(1000, 1, 1, tmp_path, False)
    assert (made["device"], made["current"], made["seed"]) == ("cuda:1", 1, 3)
