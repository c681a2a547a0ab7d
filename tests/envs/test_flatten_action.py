"""Environments of nested actions with one MultiDiscrete action."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete, MultiDiscrete

from spin_envs import FlatActions, FlattenAction, InvalidActionError
from spin_envs.copies import copies_of
from tests.envs.pad import ID, Pad


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register(ID, entry_point="tests.envs.pad:Pad")
    yield
    gymnasium.registry.pop(ID)


def test_the_environment_is_acted_in_as_its_space_says() -> None:
    env = FlattenAction(Pad(), bins=3)
    assert env.action_space == MultiDiscrete([3, 2, 2, 3, 3])
    assert env.actions.names == ["buttons/0/0", "buttons/1/0", "buttons/1/1", "stick/0", "stick/1"]
    env.reset(seed=0)
    env.step(np.array([2, 0, 1, 0, 1]))
    acted = env.unwrapped.acted  # type: ignore[attr-defined]
    assert env.unwrapped.action_space.contains(acted)
    assert acted["buttons"][0].tolist() == [6]
    assert acted["buttons"][1].tolist() == [0, 1]
    np.testing.assert_allclose(acted["stick"], [-2 / 3, 0.0], rtol=1e-6)


def test_masks_become_those_of_slots() -> None:
    env = FlattenAction(Pad(masks=True), bins=2)
    masks = [env.reset(seed=0)[1]["action_mask"], env.step(np.zeros(5, int))[4]["action_mask"]]
    for mask in masks:
        assert mask.tolist()[:2] == [[True, True, False], [True, False, False]]
        assert mask[3:].tolist() == [[True, True, False]] * 2


@pytest.mark.parametrize("action", [[0, 0, 0, 0], [0, 0, 0, 0, 3], [0.0] * 5, {"buttons": 0}])
def test_other_actions_are_refused(action: Any) -> None:
    env = FlattenAction(Pad(), bins=3)
    env.reset(seed=0)
    with pytest.raises(InvalidActionError, match="xpected"):
        env.step(action)


def test_it_is_kept_in_a_specification_with_bins_of_the_log() -> None:
    log = [Pad.sample(seed) for seed in range(9)]
    env = FlattenAction(gymnasium.make(ID), bins=4, log=log)
    assert env.spec is not None
    again = gymnasium.make(EnvSpec.from_json(json.dumps(json.loads(env.spec.to_json()))))
    assert isinstance(again, FlattenAction)
    assert again.actions == env.actions
    copies = copies_of(env, 2)
    copies.reset(seed=0)
    copies.step(np.ones((2, 5), np.int64))
    assert copies.single_action_space == env.action_space
    copies.close()


def test_objects_of_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"actions of Discrete\(3\), .*, got Dict"):
        FlattenAction(Pad(), actions=FlatActions(Discrete(3)))
    with pytest.raises(ValueError, match="actions= alone"):
        FlattenAction(Pad(), bins=3, actions=FlatActions(Pad().action_space, 3))
    with pytest.raises(ValueError, match=r'bins of action\["stick"\]\[0\] \(slot \'stick/0\'\)'):
        FlattenAction(Pad())
