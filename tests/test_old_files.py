"""Files written before stages belonged to encoder factories, and the numbers of that version.

`tests/files_before_stages` was written by version 0.1.0's code of 2026-11-21 (commit 9d6b3d7):
every algorithm was trained for six steps from a seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler

import spin_d3rlpy
from spin_d3rlpy import SPINIQL, load_asm, load_policy
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.files.yaml_settings import merge, read_settings
from spin_d3rlpy.runs.settings import create_algorithm, train_settings
from tests.algos.problems import NVEC, OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields
from tests.algos.runs import fit, make

FOLDER = Path(__file__).parent / "files_before_stages"
RECORD: dict[str, Any] = json.loads((FOLDER / "record.json").read_text())
# As the published code has it, AutoregressiveAWAC's value target takes the mean of minima now, and
# DecQNBCQ's threshold is 0.5.
CHANGED = {"AutoregressiveAWAC", "DecQNBCQ"}


@pytest.fixture
def observations() -> Any:
    return np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


@pytest.mark.parametrize("name", RECORD)
def test_policies_act_and_value_as_before(name: str, observations: Any) -> None:
    algo = load_policy(FOLDER / f"{name}.safetensors")
    assert type(algo).__name__ == name
    actions = np.array(RECORD[name]["actions"])
    assert np.array_equal(algo.predict(observations), actions)
    if "values" in RECORD[name]:
        values = algo.predict_value(observations, actions)
        np.testing.assert_allclose(values, RECORD[name]["values"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.d3")), ids=lambda p: p.stem)
def test_pickles_of_d3rlpy_load(path: Path, observations: Any) -> None:
    algo: Any = d3rlpy.load_learnable(str(path))
    assert np.array_equal(algo.predict(observations), RECORD[path.stem]["actions"])
    if path.stem == "SPINIQL":
        assert algo.config.policy.pretraining.max_updates == 5


def test_asms_load(observations: Any) -> None:
    algo = SPINIQL(asm=load_asm(FOLDER / "asm.safetensors"))
    algo.create_impl((OBSERVATION_SIZE,), 0)
    actions = np.array(RECORD["SPINIQL"]["actions"])
    found = algo.support(observations, actions)
    np.testing.assert_allclose(found, RECORD["SPINIQL"]["support"], rtol=1e-4, atol=1e-5)


def test_checkpoints_are_refused_with_a_reason(tmp_path: Path) -> None:
    for path in (FOLDER / "checkpoints").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(InvalidCheckpointError, match=r"format version 1, this spin-d3rlpy reads 3"):
        fit(make(SPINIQL), tmp_path)


def test_settings_of_a_training_load() -> None:
    settings = read_settings(FOLDER / "config.yaml")
    complete = train_settings(settings, "config.yaml")
    # Fields that are newer than the file have their defaults.
    assert merge(complete.fields, settings["fields"]) == complete.fields
    assert complete.fields["pretraining"]["max_updates"] == 1000
    algo = create_algorithm(complete.algorithm, complete.fields)
    assert algo.config.policy.pretraining.max_updates == 1000


@pytest.mark.parametrize("name", RECORD)
def test_a_seed_gives_the_same_losses(name: str) -> None:
    if name in CHANGED:
        pytest.skip("its formula was corrected")
    algo_class: Any = getattr(spin_d3rlpy, name)
    d3rlpy.seed(1)
    algo = new_algorithm(
        algo_class,
        batch_size=19,
        observation_scaler=StandardObservationScaler(),
        **tiny_fields(algo_class),
    )
    results = algo.fit(
        random_buffer(),
        n_steps=6,
        n_steps_per_epoch=3,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
    )
    assert algo.config.nvec == NVEC
    for (_, found), expected in zip(results, RECORD[name]["losses"], strict=True):
        for metric, value in expected.items():
            assert found[metric] == pytest.approx(value, rel=1e-3), metric
