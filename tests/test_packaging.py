from __future__ import annotations

import configparser
import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spin_d3rlpy._version import __version__
from tests.cli.commands import parse, spin_arguments
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
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[:2] == ["[Unreleased]", *headings[1:2]]
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d{{2}}-\d{{2}}", headings[1])
    groups = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Results"}
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= groups
    assert len(text.splitlines()) <= 150
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_citation_is_of_this_version() -> None:
    """Required keys of the Citation File Format 1.2.0, and those that a release changes."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert (
        f"## [{__version__}] - {citation['date-released']}" in (ROOT / "CHANGELOG.md").read_text()
    )
    for reference in [citation["preferred-citation"], *citation["references"]]:
        assert {"type", "title", "authors"} <= reference.keys()


def test_metadata_name_license_readme_and_links(wheel: zipfile.ZipFile) -> None:
    info = f"spin_d3rlpy-{__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert all(" https://" in url for url in metadata.get_all("Project-URL", []))
    assert metadata.get_all("Project-URL")


def test_sdist_has_what_its_tests_and_documents_need(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
    ]
    result = subprocess.run([*command, str(ROOT)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "docs/words.txt",
        "packaging/Dockerfile",
    ):
        assert needed in names
    assert {"spin_d3rlpy/__init__.py", "envs/spin_envs/__init__.py", "tests/conftest.py"} <= names


def test_workflows_are_consistent() -> None:
    """`actionlint` checks them in the workflow itself; here the parts that depend on each other."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        for job in workflow["jobs"].values():
            assert job.get("needs") in {None, *workflow["jobs"]}
            assert all(len({"uses", "run"} & step.keys()) == 1 for step in job["steps"])
    publish = workflow_of("release")["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert workflow_of("release")[True]["push"]["tags"] == ["v*.*.*"]  # YAML 1.1 reads `on` as true


def test_commands_in_workflows_can_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"^ +(spin-d3rlpy .*)$", path.read_text(), re.M):
            parse(spin_arguments(line) or [], monkeypatch)


def workflow_of(name: str) -> dict[Any, Any]:
    workflow: dict[Any, Any] = yaml.safe_load(
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    )
    return workflow


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
