"""The Transformer as an encoder inside d3rlpy's own algorithms, on ordinary tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.algos import BCConfig, DiscreteBCConfig, DiscreteCQLConfig
from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SAINTEncoderFactory, SPINEncoderFactory, save_asm
from spin_d3rlpy.asm import ActionStructureModel
from tests.algos.problems import OBSERVATION_SIZE, TINY

N_CHOICES = 4


def dataset(discrete: bool) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(9):
        actions = (
            rng.integers(N_CHOICES, size=(11, 1))
            if discrete
            else rng.uniform(-1, 1, size=(11, 2)).astype(np.float32)
        )
        observations = rng.normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)
        rewards = rng.normal(size=(11, 1)).astype(np.float32)
        episodes.append(Episode(observations, actions, rewards, terminated=True))
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes)


@pytest.mark.parametrize("factory_class", [SAINTEncoderFactory, SPINEncoderFactory])
@pytest.mark.parametrize("config_class", [DiscreteCQLConfig, DiscreteBCConfig, BCConfig])
def test_stock_algorithm_trains_saves_and_loads(
    config_class: Any, factory_class: Any, tmp_path: Path
) -> None:
    d3rlpy.seed(0)
    asm = ActionStructureModel(OBSERVATION_SIZE, [N_CHOICES], TINY)
    save_asm(asm, tmp_path / "asm.safetensors")
    fields: dict[str, Any] = {"transformer": TINY, "nvec": [N_CHOICES]}
    if factory_class is SPINEncoderFactory:
        fields["asm_path"] = str(tmp_path / "asm.safetensors")
    algo = config_class(batch_size=16, encoder_factory=factory_class(**fields)).create()
    data = dataset(discrete=config_class is not BCConfig)
    encoders = []
    for epoch, _ in algo.fitter(
        data,
        n_steps=6,
        n_steps_per_epoch=3,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    ):
        network = next(iter(algo.impl.modules.get_torch_modules().values()))
        encoders.append({k: v.clone() for k, v in network.state_dict().items() if "features" in k})
        assert epoch <= 2
    assert any("queries" in k for k in encoders[0])
    for key, value in encoders[0].items():
        frozen = factory_class is SPINEncoderFactory and ".trunk." in key
        trained = not frozen and not key.endswith("pretrained")
        assert torch.equal(value, encoders[1][key]) != trained, key
        if frozen:
            name = key.partition(".trunk.")[2]
            assert torch.equal(value, asm.trunk.state_dict()[name])
    algo.save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"))
    x = np.random.default_rng(1).normal(size=(13, OBSERVATION_SIZE)).astype(np.float32)
    assert np.array_equal(algo.predict(x), loaded.predict(x))
