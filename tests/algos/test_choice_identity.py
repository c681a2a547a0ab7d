"""Choices that are the same things in every state are more than their features."""

from __future__ import annotations

import warnings
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import FactoredIDQL, load_policy, save_policy
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer
from spin_d3rlpy.data.layouts import layout_of_table
from spin_d3rlpy.search.alike_choices import TOO_ALIKE, share_by_choice
from spin_envs import ActionLayout

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
N, K = 2, 6
RNG = np.random.default_rng(0)
WORTH = RNG.normal(size=K)  # of each item, whatever its features
CATEGORIES = tuple((float(k % 2),) for k in range(K))


def pages(n_rows: int = 3000) -> DeviceReplayBuffer:
    """Pages that are paid for their items' worth."""
    states = RNG.normal(size=(n_rows, 2)).astype(np.float32)
    actions = np.stack([RNG.permutation(K)[:N] for _ in range(n_rows)])
    rewards = WORTH[actions].sum(1, keepdims=True).astype(np.float32)
    ends = (np.arange(n_rows) % 10 == 9).astype(np.float32)
    dataset = d3rlpy.dataset.MDPDataset(
        states, actions, rewards, ends, action_space=d3rlpy.ActionSpace.DISCRETE
    )
    return as_device_buffer(dataset, [K] * N)


def trained(buffer: DeviceReplayBuffer, identity: bool) -> tuple[Any, list[str]]:
    """The algorithm and what it warned of."""
    torch.manual_seed(0)
    layout = ActionLayout(
        shared_choices=True,
        choice_features=CATEGORIES,
        choice_columns=((1,),) * K,
        choice_identity=identity,
    )
    short: dict[str, Any] = {"gamma": 0.0, "short_gammas": [], "n_steps": 500, "batch_size": 64}
    algo = FactoredIDQL(
        recipe="tuned", layout=layout, imitation_batch_size=8, search_sweeps=0, **short
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        algo.fit(buffer, **QUIET)
    return algo, [str(one.message) for one in caught]


@pytest.mark.slow
def test_items_that_differ_in_more_than_their_features_are_told_apart(tmp_path: Any) -> None:
    buffer = pages()
    alike, warned = trained(buffer, identity=False)
    known, silent = trained(buffer, identity=True)
    states, actions = buffer.observations[:500].numpy(), buffer.actions[:500].numpy()
    worth = WORTH[actions].sum(1)
    for algo, least, most in ((alike, -0.2, 0.4), (known, 0.8, 1.0)):
        assert least < np.corrcoef(algo.predict_value(states, actions), worth)[0, 1] < most
    assert sum("choice_identity=True" in text for text in warned) == 1
    assert not silent
    save_policy(known, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.config.layout.choice_identity
    np.testing.assert_array_equal(loaded.predict(states), known.predict(states))


def test_errors_by_choice_are_found_and_luck_is_not() -> None:
    actions = torch.from_numpy(RNG.integers(K, size=(4000, N)))
    luck = torch.from_numpy(RNG.normal(size=4000))
    by_choice = torch.from_numpy(WORTH)[actions].sum(1)
    features = torch.tensor(CATEGORIES)[actions].sum(1)
    by_feature = features[:, 0].double()
    assert share_by_choice(luck, actions, features, K) < TOO_ALIKE
    assert share_by_choice(by_choice + 0.3 * luck, actions, features, K) > 0.3
    assert share_by_choice(by_feature, actions, features, K) < TOO_ALIKE  # hardly trained critics
    assert share_by_choice(torch.zeros(4000), actions, features, K) < TOO_ALIKE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"choice_columns": [["a"], ["b"]]}, True),
        ({"choice_features": [[1.0], [2.0]]}, True),
        ({"choice_columns": [["a"], ["b"]], "choice_identity": False}, False),
        ({}, False),  # nothing by which choices could be alike
    ],
)
def test_choices_of_a_table_are_the_same_in_every_row(
    fields: dict[str, Any], expected: bool
) -> None:
    content = {"shared_choices": True, **fields}
    layout = layout_of_table(content, {"a": [0], "b": [1]}, 2, [2, 2])
    assert layout.choice_identity is expected


def test_identity_is_of_choices_that_all_slots_share() -> None:
    with pytest.raises(ValueError, match="shared_choices=True with choice_identity"):
        ActionLayout(choice_identity=True)
