"""Runs on data of images that are smaller than d3rlpy's encoder takes: nothing is to be set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from spin_d3rlpy import load_asm, load_policy, save_dataset
from spin_d3rlpy.images import ImageEncoderFactory
from spin_d3rlpy.runs.settings import pretrain_settings, train_settings
from spin_d3rlpy.runs.training import run_pretraining, run_training
from tests.algos.pictures import pictures

ID, NAME = "test/pictures-v0", "user/pictures-v0"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    gymnasium.register(ID, entry_point="tests.algos.pictures:PictureEnv")
    yield
    gymnasium.registry.pop(ID)


def test_models_and_policies_of_small_images_are_trained(tmp_path: Path) -> None:
    save_dataset(pictures(), NAME, env=gymnasium.make(ID))
    short = {"dataset": NAME, "recipe": "smoke"}
    settings = pretrain_settings({**short, "pretraining": {"max_updates": 1}}, "test")
    asm = run_pretraining(tmp_path / "asm", settings, show_progress=False)["asm"]
    assert load_asm(asm).observation_size == 149
    fields = {**short, "asm": str(asm), "algorithm": "SPINBC", "n_steps": 1, "episodes": 1}
    run_training(tmp_path / "run", train_settings(fields, "test"), show_progress=False)
    policy = load_policy(tmp_path / "run" / "policy.safetensors")
    assert policy.config.image_encoder_factory == ImageEncoderFactory()
