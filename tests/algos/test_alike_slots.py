"""Slots that nothing tells apart: where a log shows that they stay together, they draw choices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.search import alike_slots as module
from spin_d3rlpy.search.alike_slots import AlikeSlots, slots_can_be_alike
from spin_envs import ActionLayout
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
N, SIZE, LENGTH = 3, 6, 30
LAYOUT = ActionLayout(shared_choices=True, slot_columns=((0,), (1,), (2,)))


def test_which_layouts_have_slots_that_can_be_alike() -> None:
    assert slots_can_be_alike(LAYOUT)
    assert not slots_can_be_alike(ActionLayout(slot_columns=((0,), (1,))))  # nothing is shared
    one_thing = ((0, 1), (0, 1))
    assert not slots_can_be_alike(ActionLayout(shared_choices=True, slot_columns=one_thing))
    apart = ActionLayout(
        shared_choices=True, slot_columns=((0,), (1,)), slot_features=((0.0,), (1.0,))
    )
    assert not slots_can_be_alike(apart)
    of_choices = ActionLayout(
        shared_choices=True, slot_columns=((0,), (1,)), choice_features=((0.0,), (1.0,))
    )
    assert not slots_can_be_alike(of_choices)


def test_all_slots_of_things_that_look_the_same_are_alike() -> None:
    columns = ((0, 1), (2, 3), (0, 1), (2, 3), (4, 5), (4, 5))
    numbers = tuple((float(i),) for i in (0, 0, 1, 1, 0, 1))
    layout = ActionLayout(shared_choices=True, slot_columns=columns, slot_features=numbers)
    assert slots_can_be_alike(layout)
    alike = AlikeSlots(layout)
    x = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 3.0], [1.0, 2.0, 2.0, 1.0, 3.0, 3.0]])
    assert alike(x).tolist() == [[True, True, True, True, False, False], [False] * 6]


def walkers(cost: float = 1.0, drift: int = 0, n: int = 60) -> DeviceReplayBuffer:
    """Three walk up and down a ladder: mostly up from the lower half, down from the upper one.

    Args:
        cost: of each pair in one place.
        drift: by how much chance moves each.
        n: episodes.
    """
    rng, parts = np.random.default_rng(0), []
    for i in range(n):
        x = np.zeros((LENGTH + 1, N), np.float32)
        x[0] = rng.integers(SIZE, size=N)
        actions, rewards = np.zeros((LENGTH, N), np.int64), np.zeros(LENGTH, np.float32)
        for t in range(LENGTH):
            chosen = (x[t] < SIZE / 2).astype(int)
            free = rng.random(N) < 0.3
            actions[t] = np.where(free, rng.integers(2, size=N), chosen)
            moved = x[t] + 2 * actions[t] - 1 + rng.integers(-drift, drift + 1, size=N)
            x[t + 1] = np.clip(moved, 0, SIZE - 1)
            together = (x[t][:, None] == x[t]).sum() - N
            rewards[t] = 1.0 - cost * together / 2
        parts.append(EpisodeArrays(f"e{i}", x, actions, rewards, terminated=False))
    buffer = DeviceReplayBuffer(stack_episodes(iter(parts), [LENGTH] * n, [2] * N))
    buffer.layout = LAYOUT
    return buffer


@pytest.mark.parametrize(
    ("changes", "sticks"),
    [
        ({}, True),
        ({"cost": 0.0}, False),
        ({"cost": -1.0}, False),  # they may stay together
        ({"drift": 1}, False),  # chance moves them apart
    ],
)
def test_they_stick_together_if_it_lasts_and_costs(changes: Any, sticks: bool) -> None:
    assert AlikeSlots(LAYOUT).sticks_together(walkers(**changes)) is sticks


def test_few_that_meet_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    data = walkers(n=200)
    rows = torch.arange(200 * (LENGTH + 1))
    seen, rewards = data.observations_at(rows).clone(), data.rewards.clone()
    seen[LENGTH + 1 :] += torch.tensor([0.0, 100.0, 200.0])  # ladders of their own, but at first
    rewards[LENGTH:] = 1.0
    mostly_apart = data.with_observations(seen).with_rewards(rewards)
    assert not AlikeSlots(LAYOUT).sticks_together(mostly_apart)
    monkeypatch.setattr(module, "LEAST_SHARE", 0.001)
    assert AlikeSlots(LAYOUT).sticks_together(mostly_apart)


def test_parts_of_a_log_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED_AT_ONCE", 100)
    assert AlikeSlots(LAYOUT).sticks_together(walkers())
    assert not AlikeSlots(LAYOUT).sticks_together(walkers(drift=1))


def test_alike_ones_draw_their_choices_where_imitation_acts(tmp_path: Path) -> None:
    d3rlpy.seed(0)
    algo: Any = SPINIDQL(recipe="smoke", held_out_share=0.2)
    algo.fit(walkers(), n_steps=100, n_steps_per_epoch=100, **QUIET)
    algo.config.search = "auto"
    trust = algo.trust
    assert trust is not None
    assert trust.sticks_together
    refused = tuple(-1.0 for _ in trust.searches)
    algo.impl.trust_critics(dataclasses.replace(trust, confirmed=refused, likeliest_gain=1.0))
    trust = algo.trust
    assert trust.acts_by == "imitation"
    assert "draw their choices" in str(trust)
    together = np.repeat([[1.0, 1.0, 4.0]], 400, axis=0).astype(np.float32)
    chosen = algo.predict(together)
    assert len({tuple(row) for row in chosen[:, :2]}) == 4
    assert len(set(chosen[:, 2])) == 1  # alone it does what is most likely
    apart = algo.predict(together + np.array([0.0, 1.0, 0.0], np.float32))
    assert len({tuple(row) for row in apart}) == 1
    algo.save_policy(path := str(tmp_path / "policy.pt"))
    # A file has no random numbers: its choices are a function of the state.
    places = np.linspace(1.5, 4.5, 300, dtype=np.float32)
    in_file = exported_actions(
        path, observations=np.stack([np.ones(300, np.float32), np.ones(300, np.float32), places], 1)
    )
    assert len({tuple(row) for row in in_file[:, :2]}) == 4
    alone = np.array([[0.0, 1.0, 4.0], [5.0, 3.0, 2.0]], np.float32)
    assert np.array_equal(exported_actions(path, observations=alone), algo.predict(alone))
    algo.config.search = "never"
    assert len({tuple(row) for row in algo.predict(together)}) == 1
