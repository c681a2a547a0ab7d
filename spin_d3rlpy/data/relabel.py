"""Datasets with other actions, which a policy chooses, or with other rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from d3rlpy.dataset import ReplayBufferBase
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.loader import DatasetLike, as_device_buffer
from spin_d3rlpy.nvec import as_choices
from spin_d3rlpy.training.progress import progress_bar

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
    seen, actions = buffer.seen_by(teacher), []
    with progress_bar("Choosing actions", "state", progress, total=buffer.transition_count) as bar:
        for rows in buffer.observation_index.split(_STATES_AT_ONCE):
            states = seen.observations_at(rows).cpu().numpy()
            masks = buffer.masks_at(rows)
            choose = getattr(teacher, "predict_masked", None)
            if masks is None or choose is None:
                chosen = teacher.predict(states)
            else:
                chosen = choose(states, masks.cpu().numpy())
            shape = len(rows), len(buffer.nvec)
            chosen = as_choices(chosen, shape, "the teacher", buffer.nvec)
            actions.append(torch.from_numpy(chosen))
            bar.update(len(rows))
    relabeled = buffer.with_actions(torch.cat(actions))
    relabeled.rules = getattr(getattr(teacher, "config", None), "rules", None)
    return relabeled


def with_rewards(
    dataset: DatasetLike | ReplayBufferBase, reward: Callable[[NDArray[np.float32]], NDArray[Any]]
) -> DeviceReplayBuffer:
    """Returns a dataset with the rewards of another task in the same environment.

        backward = with_rewards(dataset, spin_envs.rewards.REWARDS["backward"])
        env = gymnasium.make("spin/cheetah-run-v0", bins=3, reward="backward")

    Args:
        dataset: anything that `fit` accepts.
        reward: of observations `(n, obs)` after a step, `(n,)`.

    Raises:
        ValueError: it returns another shape.
    """
    buffer = as_device_buffer(dataset)
    rewards = []
    for rows in buffer.observation_index.split(_ROWS_AT_ONCE):
        paid = np.asarray(reward(buffer.observations_at(rows + 1).cpu().numpy()), np.float32)
        if paid.shape != (len(rows),):
            raise ValueError(f"Expected rewards of shape {(len(rows),)}, got {paid.shape}.")
        rewards.append(torch.from_numpy(paid))
    return buffer.with_rewards(torch.cat(rewards))
