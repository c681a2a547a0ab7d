"""A search leaves states to imitation that the data do not have."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from spin_d3rlpy import load_policy, save_policy
from spin_d3rlpy.algos.idql.config import IDQLConfig
from tests.algos.test_state_model import N, machines, modeled, run_with_a_model
from tests.exported_files import load_exported

pytestmark = pytest.mark.usefixtures("few_states_in_tests_of_critics")
# The log maintains what is worn.
STATES = np.random.default_rng(0).uniform(0.0, 2.0, (40, N)).astype(np.float32)
WORN = np.concatenate([STATES[:20], STATES[20:] + 50.0])


def searching() -> Any:
    """Returns an algorithm that acts by a search, and differs from imitation."""
    algo = copy.deepcopy(run_with_a_model())
    algo.config.search = "always"
    return algo


def imitated(algo: Any, states: np.ndarray) -> np.ndarray:
    """Returns what it does without a search."""
    with mock.patch.object(algo.config, "search", "never"):
        actions: np.ndarray = algo.predict(states)
    return actions


def everywhere(algo: Any, states: np.ndarray) -> np.ndarray:
    """Returns what its search does wherever it is."""
    with mock.patch.object(algo.impl.state_model, "are_unknown", lambda x: x[:, 0] < -1e9):
        actions: np.ndarray = algo.predict(states)
    return actions


@pytest.mark.parametrize("n_columns", [2, 100])
def test_a_hundredth_of_the_logged_states_is_unknown(n_columns: int) -> None:
    """However many numbers they have: one of a hundred is often beyond what 99 % have."""
    buffer, rng = machines(100), np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(len(buffer.observations), n_columns)), dtype=torch.float32)
    model = modeled(buffer.with_observations(x), 1)
    assert model.are_unknown(x).float().mean() <= 0.0125
    assert model.are_unknown(x + 9.0).all()
    assert 0.0 < model.rare_share(x).mean() < 0.01


def test_imitation_acts_where_the_data_have_not_been() -> None:
    algo = searching()
    search, likeliest = everywhere(algo, WORN), imitated(algo, WORN)
    assert (search != likeliest).any(1)[20:].sum() > 5
    expected = np.concatenate([search[:20], likeliest[20:]])
    assert np.array_equal(algo.predict(WORN), expected)
    assert np.array_equal(algo.predict(WORN[:20]), search[:20])
    free = algo.predict_with(WORN)
    assert np.array_equal(free[20:], likeliest[20:])
    assert (free != imitated(algo, WORN))[:20].any()


def test_a_given_choice_is_kept_there() -> None:
    algo = searching()
    given = np.full_like(WORN, -1, dtype=np.int64)
    given[:, 0] = 1 - imitated(algo, WORN)[:, 0]
    assert (algo.predict_with(WORN, given=given)[:, 0] == given[:, 0]).all()


def test_critics_of_afterstates_search_everywhere() -> None:
    """They know places that the log has not seen."""
    algo = searching()
    expected = everywhere(algo, WORN)
    assert not np.array_equal(algo.predict(WORN), expected)
    # Of networks of another kind, only this is asked for.
    with mock.patch.object(IDQLConfig, "values_afterstates", True):
        assert np.array_equal(algo.predict(WORN), expected)


@pytest.mark.parametrize("extension", ["safetensors", "pt", "onnx"])
def test_a_file_does_the_same(extension: str, tmp_path: Path) -> None:
    algo, path = searching(), tmp_path / f"policy.{extension}"
    if extension == "safetensors":
        save_policy(algo, path)
        found = load_policy(path).predict(WORN)
    else:
        algo.save_policy(str(path))
        found = load_exported(path)(observations=WORN)
    assert np.array_equal(found, algo.predict(WORN))
    assert not np.array_equal(found, everywhere(algo, WORN))


def test_a_search_is_tried_as_it_acts() -> None:
    """In the model of states it leaves unknown ones to imitation, too, so that both are level."""
    algo = searching()
    x = torch.as_tensor(WORN[20:])  # all unknown
    trust = dataclasses.replace(algo.trust, modeled=(), modeled_errors=(), beyond=())
    found = algo.impl.compare_in_model(trust, x, torch.ones(len(x), dtype=torch.long))
    tried = [trial for trial in found.trials if trial.is_tried]
    assert tried
    assert all(trial.modeled == 0.0 for trial in tried)
    with mock.patch.object(algo.impl.state_model, "are_unknown", lambda x: x[:, 0] < -1e9):
        other = algo.impl.compare_in_model(trust, x, torch.ones(len(x), dtype=torch.long))
    assert any(trial.modeled != 0.0 for trial in other.trials if trial.is_tried)
