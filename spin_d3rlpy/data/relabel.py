"""Datasets with other actions, which a policy chooses, or with other rewards."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer import DeviceReplayBuffer
from spin_d3rlpy.data.loader import as_device_buffer
from spin_d3rlpy.training.progress import progress_bar
from spin_envs.rewards import REWARDS

_STATES_AT_ONCE = 1024
_ROWS_AT_ONCE = 2**16


class Teacher(Protocol):
    """Any algorithm."""

    def predict(self, x: NDArray[Any]) -> NDArray[Any]: ...


def relabel(
    dataset: Any, teacher: Teacher, n_transitions: int | None = None, progress: bool = False
) -> DeviceReplayBuffer:
    """Returns a dataset's states with the actions that a policy, e.g. a `SPINIDQL`, chooses there.

    A policy that acts quickly learns a slow one's choices from it: behavior cloning minimizes the
    cross-entropy to the chosen actions.

        student = FactoredBC(recipe="tuned").fit(relabel(dataset, teacher))

    Where the dataset has masks, an algorithm's choices keep to them. A student takes over the
    teacher's rules, because its own choices need not keep them.

    `n_transitions` takes whole episodes, drawn at random, of about so many transitions.
    """
    buffer = as_device_buffer(dataset)
    if n_transitions is not None and n_transitions < buffer.transition_count:
        keep = max(1, round(buffer.size() * n_transitions / buffer.transition_count))
        episodes = np.random.default_rng(0).permutation(buffer.size())[:keep]
        buffer = buffer.select(sorted(episodes.tolist()))
    actions = []
    with progress_bar("Choosing actions", "state", progress, total=buffer.transition_count) as bar:
        for rows in buffer.observation_index.split(_STATES_AT_ONCE):
            states = buffer.observations_at(rows).cpu().numpy()
            masks = buffer.masks_at(rows)
            choose = getattr(teacher, "predict_masked", None)
            if masks is None or choose is None:
                chosen = teacher.predict(states)
            else:
                chosen = choose(states, masks.cpu().numpy())
            actions.append(torch.from_numpy(chosen))
            bar.update(len(rows))
    relabeled = buffer.with_actions(torch.cat(actions))
    relabeled.rules = getattr(getattr(teacher, "config", None), "rules", None)
    return relabeled


def with_rewards(dataset: Any, reward: str) -> DeviceReplayBuffer:
    """Returns a dataset whose rewards are those of another task in the same environment.

        dataset, env = load_dataset("spin/cheetah-run-b3/random-medium-expert-v0")
        backward = with_rewards(dataset, "backward")
        env = gymnasium.make("spin/cheetah-run-v0", bins=3, reward="backward")

    Args:
        dataset: anything that `fit` accepts.
        reward: name in `spin_envs.rewards.REWARDS`, a function of the observation after a step.
    """
    buffer = as_device_buffer(dataset)
    of = REWARDS[reward]
    rewards = [
        torch.from_numpy(of(buffer.observations_at(rows + 1).cpu().numpy()))
        for rows in buffer.observation_index.split(_ROWS_AT_ONCE)
    ]
    return buffer.with_rewards(torch.cat(rewards))
