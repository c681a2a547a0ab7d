"""Policies to and from the Hugging Face hub, against folders that play the hub."""

from __future__ import annotations

import inspect
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import errors
from typer.testing import CliRunner

from spin_d3rlpy import (
    FactoredBC,
    FactoredIQL,
    load_from_hub,
    push_to_hub,
    save_for_hub,
    save_policy,
)
from spin_d3rlpy.asm.rule_files import trusted_rules
from spin_d3rlpy.cli import app
from spin_d3rlpy.errors import InvalidCheckpointError, RemoteError, UntrustedRuleError
from spin_d3rlpy.runs.hub import CARD
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.settings import train_settings
from spin_d3rlpy.runs.training import POLICY, run_training
from spin_envs import MissingDependencyError

NVEC = [2, 5, 3]
REPOSITORY = "clinic/doses"
STATES = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def built(algo: Any) -> Any:
    algo.create_impl((4,), 3)
    return algo


@pytest.fixture
def algo() -> Any:
    torch.manual_seed(1)
    return built(FactoredIQL(nvec=NVEC, observation_scaler=None))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records what the client is asked for; a repository is a folder of `root`."""
    real = huggingface_hub
    recorded: dict[str, Any] = {"root": tmp_path / "hub", "downloads": []}
    signature = inspect.signature(real.hf_hub_download)

    class Api:
        def __init__(self, token: str) -> None:
            assert token == "hf_writes"

        def create_repo(self, repo_id: str, **options: Any) -> None:
            inspect.signature(real.HfApi.create_repo).bind(self, repo_id, **options)
            recorded["created"] = (repo_id, options)

        def upload_folder(self, **options: Any) -> None:
            inspect.signature(recorded["real_upload"]).bind(self, **options)
            recorded["uploaded"] = options
            target = recorded["root"] / options["repo_id"]
            shutil.copytree(options["folder_path"], target, dirs_exist_ok=True)

    def download(repo_id: str, filename: str, revision: str | None, dry_run: bool = False) -> Any:
        signature.bind(repo_id, filename, revision=revision, dry_run=dry_run)
        response: Any = SimpleNamespace(headers={}, request=None)
        if not (recorded["root"] / repo_id).exists():
            raise errors.RepositoryNotFoundError("404", response=response)
        if revision == "absent":
            raise errors.RevisionNotFoundError("404", response=response)
        file = recorded["root"] / repo_id / filename
        if not file.exists():
            raise errors.RemoteEntryNotFoundError("404", response=response)
        if dry_run:
            return SimpleNamespace(file_size=file.stat().st_size)
        recorded["downloads"].append((repo_id, filename, revision))
        return str(file)

    recorded["real_upload"] = real.HfApi.upload_folder
    monkeypatch.setattr(real, "HfApi", Api)
    monkeypatch.setattr(real, "hf_hub_download", download)
    monkeypatch.setattr(real, "get_token", lambda: "hf_writes")
    return recorded


def test_a_folder_holds_a_policy_that_acts_the_same(algo: Any, tmp_path: Path) -> None:
    folder = save_for_hub(algo, tmp_path / "new" / "policy", REPOSITORY)
    assert {path.name for path in folder.iterdir()} == {POLICY, CARD}
    loaded = load_from_hub(folder)
    assert np.array_equal(loaded.predict(STATES), algo.predict(STATES))


def test_the_card_says_what_the_policy_is(algo: Any, tmp_path: Path) -> None:
    card = (save_for_hub(algo, tmp_path, REPOSITORY, "mit") / CARD).read_text()
    _, front, text = card.split("---\n", 2)
    content = yaml.safe_load(front)
    assert content["library_name"] == "spin-d3rlpy"
    assert content["license"] == "mit"
    assert {"offline-rl", "multidiscrete-actions", "FactoredIQL"} <= set(content["tags"])
    assert f'load_from_hub("{REPOSITORY}")' in text
    assert "4 numbers to 3 slots with [2, 5, 3] choices" in text
    assert "expectile: 0.8" in text
    assert "Results" not in text  # nothing was measured
    assert "model-index" not in content


def test_the_card_of_a_run_has_its_dataset_settings_and_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    values = {
        "dataset": "spin/maze-a5/medium-expert-v0",
        "algorithm": "FactoredBC",
        "recipe": "smoke",
        "size": 1000,
        "n_steps": 2,
        "episodes": 1,
        "seed": 3,
    }
    result = run_training(tmp_path / "run", train_settings(values, "test"), show_progress=False)
    folder = save_for_hub(tmp_path / "run", tmp_path / "hub", REPOSITORY)
    card = (folder / CARD).read_text()
    assert "dataset `spin/maze-a5/medium-expert-v0`" in card
    assert "seed: 3\n" in card
    assert f"Mean return: {result['return']:.2f} (1 episodes of `spin/maze-v0`, greedy" in card
    assert str(tmp_path) not in card  # folders of the machine are not published
    # The hub's own reader takes the results.
    data: Any = huggingface_hub.ModelCard(card).data
    (measured,) = data.eval_results
    assert measured.metric_value == pytest.approx(result["return"])
    assert measured.dataset_name == "spin/maze-a5/medium-expert-v0"
    env = gymnasium.make("spin/maze-v0", actuators=5)
    state, _ = env.reset(seed=0)
    assert load_from_hub(folder).predict(state[None]).shape == (1, 5)


def test_a_datasets_folder_is_not_in_the_card(algo: Any) -> None:
    from spin_d3rlpy.runs.card import policy_card

    for path in ("/home/ann/secret/log-v0", "./secret/log-v0", r"C:\secret\log-v0"):
        card = policy_card(algo, REPOSITORY, settings={"dataset": path})
        assert "dataset `log-v0`" in card
        assert "secret" not in card


def test_a_push_creates_the_repository_and_uploads_policy_and_card_in_one_commit(
    algo: Any, hub: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "policy.safetensors"
    save_policy(algo, file)
    location = push_to_hub(file, REPOSITORY, private=True, revision="trial")
    assert location == "hf://clinic/doses"
    assert hub["created"] == (REPOSITORY, {"private": True, "exist_ok": True})
    assert hub["uploaded"]["revision"] == "trial"
    assert {p.name for p in (hub["root"] / REPOSITORY).iterdir()} == {POLICY, CARD}
    assert not Path(hub["uploaded"]["folder_path"]).exists()  # temporary
    loaded = load_from_hub(REPOSITORY, revision="trial")
    assert np.array_equal(loaded.predict(STATES), algo.predict(STATES))
    assert hub["downloads"] == [(REPOSITORY, POLICY, "trial")]


@pytest.mark.usefixtures("hub")
def test_the_command_line_pushes_and_opens_what_is_on_the_hub(algo: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    save_policy(algo, file)
    asked = CliRunner().invoke(app, ["push", str(file), REPOSITORY, "--license", "mit"])
    assert asked.exit_code == 0, asked.output
    assert "Pushed to hf://clinic/doses" in asked.output
    opened = open_policy("hf://clinic/doses@main")
    assert opened.nvec == NVEC
    assert np.array_equal(opened.algorithm.predict(STATES), algo.predict(STATES))


@pytest.mark.usefixtures("hub")
def test_what_is_missing_is_named(tmp_path: Path, hub: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError, match="No repository or folder 'clinic/nothing'"):
        load_from_hub("clinic/nothing")
    (hub["root"] / REPOSITORY).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"'clinic/doses' has no policy\.safetensors"):
        load_from_hub(REPOSITORY)
    with pytest.raises(FileNotFoundError, match="no revision 'absent'"):
        load_from_hub(REPOSITORY, revision="absent")
    with pytest.raises(FileNotFoundError, match=r"folder .* has no policy\.safetensors"):
        load_from_hub(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"No policy .*never\.safetensors"):
        save_for_hub(tmp_path / "never.safetensors", tmp_path / "out", REPOSITORY)
    with pytest.raises(ValueError, match="local folder"):
        load_from_hub(tmp_path, revision="main")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["doses", "a/b/c", "../x/y", "", "clinic/", "/doses"])
def test_other_names_are_refused_before_anything_is_written(
    name: str, algo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="<user or organization>/<name>, got"):
        save_for_hub(algo, tmp_path / "out", name)
    with pytest.raises(ValueError, match="<user or organization>/<name>, got"):
        push_to_hub(algo, name)
    assert not (tmp_path / "out").exists()


def test_an_algorithm_that_is_not_built_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="build_with_dataset"):
        save_for_hub(FactoredBC(nvec=NVEC), tmp_path / "out", REPOSITORY)
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_error_names_it(
    algo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (lambda: push_to_hub(algo, REPOSITORY), lambda: load_from_hub(REPOSITORY)):
        with pytest.raises(MissingDependencyError, match=r"spin-d3rlpy\[hf\]"):
            use()
    assert load_from_hub(save_for_hub(algo, tmp_path, REPOSITORY)).config.nvec == NVEC


def test_without_token_or_network_the_error_says_so(
    algo: Any, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(RemoteError, match=r"'clinic/doses' could not be used: no connection"):
        load_from_hub(REPOSITORY)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(RemoteError, match="HF_TOKEN"):
        push_to_hub(algo, REPOSITORY)
    assert "uploaded" not in hub


def test_too_large_a_file_is_not_downloaded(algo: Any, hub: dict[str, Any]) -> None:
    push_to_hub(algo, REPOSITORY)
    with pytest.raises(InvalidCheckpointError, match="more than max_bytes=100"):
        load_from_hub(REPOSITORY, max_bytes=100)
    assert hub["downloads"] == []


def test_functions_as_rules_are_imported_only_with_trust(
    tmp_path: Path, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import torch\n\ndef rule(partial):\n"
        "    return torch.ones(*partial.shape, 5, dtype=torch.bool)\n"
    )
    for name in ("rules_here", "rules_away"):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with trusted_rules():
        algo = built(FactoredBC(nvec=NVEC, rules=["rules_here:rule"]))
    save_policy(algo, file := tmp_path / "policy.safetensors")
    # Another process's, whose module this one has not imported.
    file.write_bytes(file.read_bytes().replace(b"rules_here:rule", b"rules_away:rule"))
    with pytest.raises(UntrustedRuleError, match="rules_away"):
        push_to_hub(file, REPOSITORY)
    assert "uploaded" not in hub
    (hub["root"] / REPOSITORY).mkdir(parents=True)
    shutil.copy(file, hub["root"] / REPOSITORY / POLICY)
    with pytest.raises(UntrustedRuleError, match="rules_away"):
        load_from_hub(REPOSITORY)
    assert "rules_away" not in sys.modules
    assert load_from_hub(REPOSITORY, trust=True).config.rules
    assert "rules_away" in sys.modules
    assert push_to_hub(file, REPOSITORY, trust=True) == "hf://clinic/doses"


@pytest.mark.parametrize(
    "name",
    [
        "../..",
        "a/..",
        "./a",
        "a/.",
        "..",
        "a/b/c",
        "-a/b",
        "a/b.",
        "a/b--c",
        "a/" + "b" * 97,
        "a/b c",
    ],
)
def test_what_is_no_repository_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a repository as <user or organization>/<name>"):
        open_policy(f"hf://{name}")
    with pytest.raises(ValueError, match="Expected a repository as <user or organization>/<name>"):
        save_for_hub(tmp_path, tmp_path / "out", name)
    assert not (tmp_path / "out").exists()
