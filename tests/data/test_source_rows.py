"""What belongs to a table's rows follows them, or is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from spin_d3rlpy import from_table, importance_sampling
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.source_rows import RowValues
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError
from tests.algos.problems import random_buffer

N_ROWS = 40
RNG = np.random.default_rng(0)
ORDER = RNG.permutation(N_ROWS)  # episodes and times all mixed up
# The probability of each row's action is told by its state.
STATE = RNG.uniform(0.1, 0.9, N_ROWS)
TABLE: dict[str, Any] = {
    "stay": [f"s{i // 5}" for i in ORDER],
    "hour": [int(i % 5) for i in ORDER],
    "state": STATE,
    "dose": RNG.integers(2, size=N_ROWS),
    "reward": RNG.normal(size=N_ROWS),
    "propensity": STATE,
}
FIELDS: dict[str, Any] = {
    "observations": ["state"],
    "actions": ["dose"],
    "reward": "reward",
    "episode": "stay",
    "time": "hour",
    "nvec": [2],
}


class Always:
    """A policy that gives every action the probability 1."""

    def log_prob(self, observations: Any, actions: Any) -> Any:
        return np.zeros(len(actions))

    def sample(self, observations: Any) -> Any:
        return np.zeros((len(observations), 1), np.int64)


def states(buffer: DeviceReplayBuffer) -> Any:
    return buffer.observations[buffer.observation_index.long(), 0].double().numpy()


def parts(buffer: DeviceReplayBuffer) -> list[DeviceReplayBuffer]:
    training, held_out = buffer.split(0.3)
    return [buffer, training, held_out, buffer.select([5, 0]), training.select([1])]


@pytest.mark.parametrize("last_step", ["keep", "drop"])
def test_values_follow_rows_through_sorting_select_and_split(last_step: Any) -> None:
    for part in parts(from_table(TABLE, **FIELDS, last_step=last_step, keep=["propensity"])):
        for values in (part.rows_of(TABLE["propensity"]), part.source.column("propensity")):
            np.testing.assert_allclose(values.values, states(part), rtol=1e-6)


@pytest.mark.parametrize("given", [list, np.asarray, torch.tensor])
def test_known_probabilities_are_those_of_the_transitions(given: Any) -> None:
    buffer = from_table(TABLE, **FIELDS, keep=["propensity"])
    for part in parts(buffer):
        expected = importance_sampling(part, Always(), "propensity", weighting="per_decision")
        weights = 1.0 / states(part)
        starts = part.episode_starts.numpy()
        returns = [
            (np.cumprod(weights[a:b]) * part.rewards[a:b].numpy()).sum()
            for a, b in itertools.pairwise(starts)
        ]
        assert expected.value == pytest.approx(np.mean(returns), rel=1e-5)
        known = part.rows_of(given(TABLE["propensity"]))
        found = importance_sampling(part, Always(), known, weighting="per_decision")
        assert found.value == expected.value


def test_an_array_whose_order_cannot_be_known_is_refused() -> None:
    buffer = from_table(TABLE, **FIELDS)
    known = np.asarray(TABLE["propensity"])
    for wrong in (known, known.tolist(), torch.from_numpy(known)):
        with pytest.raises(InvalidDatasetError, match=r"whose probabilities.*rows_of"):
            importance_sampling(buffer, Always(), wrong)
    part = buffer.select([1, 2])
    with pytest.raises(InvalidDatasetError, match="other rows"):
        importance_sampling(part, Always(), buffer.rows_of(known))
    with pytest.raises(InvalidDatasetError, match="one value for each of the 40 rows"):
        part.rows_of(known[:10])
    with pytest.raises(InvalidDatasetError, match=r"keep=.*none.*propensity"):
        importance_sampling(buffer, Always(), "propensity")


def test_an_array_of_rows_in_their_order_is_taken() -> None:
    order = np.lexsort((TABLE["hour"], TABLE["stay"]))
    table = {name: np.asarray(column)[order] for name, column in TABLE.items()}
    buffer = from_table(table, **FIELDS)
    found = importance_sampling(buffer, Always(), table["propensity"])
    rows = RowValues(table["propensity"], np.arange(N_ROWS))
    assert found == importance_sampling(buffer, Always(), rows)
    with pytest.raises(InvalidDatasetError, match="above 0"):
        importance_sampling(buffer, Always(), table["propensity"] + 1.0)
    with pytest.raises(InvalidDatasetError, match="as numbers"):
        importance_sampling(buffer, Always(), np.array(["high"] * N_ROWS))


def test_actions_and_rewards_of_another_number_are_refused() -> None:
    buffer = random_buffer()
    with pytest.raises(InvalidActionSpaceError, match="with_actions"):
        buffer.with_actions(buffer.actions[:-1])
    with pytest.raises(InvalidDatasetError, match="finite rewards"):
        buffer.with_rewards(buffer.rewards[:-1])
    assert buffer.with_actions(buffer.actions).actions.dtype == buffer.actions.dtype
