"""Common parts of behavior policies' training: snapshots, learning curve and checkpoint."""

from __future__ import annotations

import csv
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from examples.behavior_policies.moments import RunningMoments
from examples.behavior_policies.recipes import Recipe
from examples.behavior_policies.selection import EVALUATION_SEED, evaluate_policy
from spin_d3rlpy.files.atomic import atomic_write
from spin_d3rlpy.nvec import nvec_from_space
from spin_envs.behavior import BehaviorPolicy
from spin_envs.vector import InProcessVectorEnv, make_batch

EVALUATION_EPISODES = 20


class BehaviorTrainer(ABC):
    """Trains one recipe in `folder`, with a snapshot of the policy at every evaluation.

    Writes `checkpoint.pt` (resumed from if it exists), `curve.csv` (env_steps, mean greedy return,
    standard deviation, seconds) and `snapshots/<env_steps>.npz`.

    Args:
        n_envs: environments stepped together.
        **env_kwargs: environment arguments in addition to the task's, or overriding them.
    """

    def __init__(self, recipe: Recipe, folder: Path, n_envs: int, **env_kwargs: Any) -> None:
        self.recipe = recipe
        self.folder = folder
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        task = recipe.benchmark_task
        limit = {"max_episode_steps": recipe.episode_steps} if recipe.episode_steps else {}
        envs = make_batch(task.env_id, n_envs, **{**task.env_kwargs, **limit, **env_kwargs})
        assert isinstance(envs, InProcessVectorEnv), "Expected an InProcessVectorEnv."
        self._envs = envs
        self._nvec = nvec_from_space(envs.single_action_space)
        shape = envs.single_observation_space.shape
        assert shape is not None
        self._observation_shape = shape
        self._moments = RunningMoments(shape[0])
        self.env_steps = 0
        self.seconds = 0.0

    def train(self, progress: bool = True) -> None:
        """Trains until the recipe's number of environment steps."""
        self._started = time.monotonic() - self.seconds
        total = self.recipe.env_steps
        with tqdm(
            total=total, initial=self.env_steps, unit="step", disable=not progress
        ) as self._bar:
            self._train()

    @abstractmethod
    def _train(self) -> None:
        """Trains, calling `_advance` after steps."""

    @abstractmethod
    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the current policy as arrays for `spin_envs.behavior.BehaviorPolicy`."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Returns the state of a resumable training except moments and step counts."""

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None:
        """Inverse of `_state`."""

    def _advance(self, n_steps: int) -> None:
        """Counts environment steps; evaluates and saves when due."""
        before = self.env_steps
        self.env_steps += n_steps
        self._bar.update(n_steps)
        interval = self.recipe.evaluation_interval
        if before // interval != self.env_steps // interval:
            self.seconds = time.monotonic() - self._started
            self._bar.set_postfix_str(f"return {self._evaluate():.0f}")
            self._save()

    def _evaluate(self) -> float:
        arrays = self.policy_arrays()
        returns = evaluate_policy(
            BehaviorPolicy(arrays, {}), self.recipe, EVALUATION_EPISODES, EVALUATION_SEED
        )
        snapshot = self.folder / "snapshots" / f"{self.env_steps}.npz"
        np.savez_compressed(snapshot, allow_pickle=False, **arrays)
        measured = [returns.mean(), returns.std(), self.seconds]
        with (self.folder / "curve.csv").open("a", newline="") as f:
            writer = csv.writer(f)
            if f.tell() == 0:
                writer.writerow(["env_steps", "mean_return", "std_return", "seconds"])
            writer.writerow([self.env_steps, *(f"{v:.6g}" for v in measured)])
        return float(returns.mean())

    def _save(self) -> None:
        state = {
            **self._state(),
            "moments": self._moments.state(),
            "env_steps": self.env_steps,
            "seconds": self.seconds,
        }
        with atomic_write(self.folder / "checkpoint.pt") as partial:
            torch.save(state, partial)

    def _resume(self) -> bool:
        """Loads the folder's checkpoint, if any; returns whether there was one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self._moments.load(state["moments"])
        self.env_steps, self.seconds = state["env_steps"], state["seconds"]
        self._load_state(state)
        return True
