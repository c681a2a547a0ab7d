"""`support` of policies that were read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, SPINIQL, SPINDistillIQL, load_policy, save_policy
from spin_d3rlpy.asm import save_asm
from tests.algos.problems import NVEC, OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields

STATES = np.random.default_rng(3).normal(size=(6, OBSERVATION_SIZE)).astype(np.float32)
ACTIONS = np.tile([m - 1 for m in NVEC], (6, 1))


def trained(algo_class: Any) -> Any:
    algo = new_algorithm(algo_class, **tiny_fields(algo_class))
    algo.fit(random_buffer(), n_steps=2, logger_adapter=NoopAdapterFactory(), show_progress=False)
    return algo


@pytest.mark.parametrize("algo_class", [SPINIQL, SPINIDQL, SPINDistillIQL])
def test_a_policy_file_holds_the_whole_model(algo_class: Any, tmp_path: Path) -> None:
    algo = trained(algo_class)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    wanted = algo.support(STATES, ACTIONS)
    np.testing.assert_array_equal(loaded.support(STATES, ACTIONS), wanted)
    save_policy(loaded, tmp_path / "again.safetensors")
    again = load_policy(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(again.support(STATES, ACTIONS), wanted)


def test_a_file_without_the_model_takes_it_from_its_own_file(tmp_path: Path) -> None:
    algo = trained(SPINIQL)
    wanted = algo.support(STATES, ACTIONS)
    save_asm(algo.asm, tmp_path / "asm.safetensors")
    algo._asm = None
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    with pytest.raises(RuntimeError, match="set_asm"):
        loaded.support(STATES, ACTIONS)
    loaded.set_asm(tmp_path / "asm.safetensors")
    np.testing.assert_array_equal(loaded.support(STATES, ACTIONS), wanted)
