from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spin_d3rlpy._version import __version__
from tests.subprocesses import ROOT

POLICIES = "spin_envs/policies"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation nothing is downloaded: hatchling comes with the test extra.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    result = subprocess.run([*command, str(ROOT)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_the_two_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    top_level = {name.partition("/")[0] for name in wheel.namelist()}
    info = f"spin_d3rlpy-{__version__}.dist-info"
    assert top_level == {"spin_d3rlpy", "spin_envs", info}


def test_wheel_has_every_module_of_the_source(wheel: zipfile.ZipFile) -> None:
    source = {
        path.relative_to(root).as_posix()
        for root, package in ((ROOT, "spin_d3rlpy"), (ROOT / "envs", "spin_envs"))
        for path in (root / package).rglob("*.py")
    }
    assert source == {name for name in wheel.namelist() if name.endswith(".py")}


def test_both_packages_are_typed(wheel: zipfile.ZipFile) -> None:
    assert {"spin_d3rlpy/py.typed", "spin_envs/py.typed"} <= set(wheel.namelist())


def test_behavior_policies_are_included(wheel: zipfile.ZipFile) -> None:
    folder = ROOT / "envs" / POLICIES
    suffixes = (".npz", ".json", ".csv")
    files = {f"{POLICIES}/{p.name}" for p in folder.glob("*") if p.suffix in suffixes}
    assert files == {name for name in wheel.namelist() if name.startswith(POLICIES)}


def test_command_line_program_is_an_entry_point(wheel: zipfile.ZipFile) -> None:
    entry_points = configparser.ConfigParser()
    info = f"spin_d3rlpy-{__version__}.dist-info"
    entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(entry_points["console_scripts"]) == {"spin-d3rlpy": "spin_d3rlpy.cli:main"}


def test_license_is_included(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_version_and_changelog_agree() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [h.split()[0] for h in headings if not h.startswith("Unreleased")]
    if headings[0].startswith("Unreleased"):
        # The version is that of the next release.
        assert __version__ not in released
    else:
        assert released[0] == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


# Every step in Gymnasium's own vector environment and in ours, wrappers, attributes, specs.
ENVIRONMENTS_ALONE = """
import importlib.util
import warnings

warnings.simplefilter("error")
import gymnasium
import numpy as np
import spin_envs

assert importlib.util.find_spec("torch") is None
assert importlib.util.find_spec("d3rlpy") is None
for env_id in ("spin/cheetah-run-v0", "spin/maze-v0"):
    env = gymnasium.make(env_id)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
    assert gymnasium.make(spec).action_space == env.action_space
    modes = ("vector_entry_point", "sync")
    batches = [gymnasium.make_vec(env_id, 3, mode, max_episode_steps=4) for mode in modes]
    wrappers = [gymnasium.wrappers.FlattenObservation]
    batches.append(spin_envs.make_batch(env_id, 3, wrappers, max_episode_steps=4))
    found = [batch.reset(seed=3)[0] for batch in batches]
    for _ in range(9):
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[0], found[2])
        actions = batches[0].action_space.sample()
        found = [batch.step(actions)[0] for batch in batches]
    assert batches[0].get_attr("render_mode") == (None, None, None)
print(gymnasium.__version__)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_environments_alone_work_with_the_newest_gymnasium(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """As docs/how-to/environments.md says; downloads the packages."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*arguments: str) -> str:
        result = subprocess.run(
            [python, *arguments], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("-m", "pip", "install", "--no-deps", str(wheel.filename))
    run("-m", "pip", "install", "gymnasium", "dm_control", "mujoco>=3.17,<4")
    version = run("-c", ENVIRONMENTS_ALONE).split(".")
    assert (int(version[0]), int(version[1])) > (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_installed_wheel_works_without_the_repository(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """From the wheel alone: build a dataset, train, evaluate, export."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    install = ["-m", "pip", "install", "--no-deps", "--quiet", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(wheel.filename)], check=True)
    variables = {
        **os.environ,
        "PYTHONPATH": str(site),
        "MINARI_DATASETS_PATH": str(tmp_path / "datasets"),
    }

    def run(*arguments: str) -> str:
        result = subprocess.run(
            [sys.executable, *arguments], cwd=work, env=variables, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    for package in ("spin_d3rlpy", "spin_envs"):
        found = run("-c", f"import {package}; print({package}.__file__)")
        assert Path(found.strip()).is_relative_to(site)
    program = str(site / "bin" / "spin-d3rlpy")
    dataset = "spin/maze-a5/medium-expert-v0"
    assert dataset in run(program, "data", "list")
    small = ["--size", "2000", "--recipe", "smoke", "--episodes", "2", "--no-progress"]
    assert "Saved" in run(program, "train", dataset, *small, "--out", "run")
    assert "return" in run(program, "evaluate", "run", "--episodes", "2")
    assert "bytes" in run(program, "export", "run", "--out", "policy.pt")
    assert __version__ in run(program, "info")
