"""Online training of DecQN in environments stepped together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from examples.behavior_policies.export import policy_arrays
from examples.behavior_policies.recipes import DecQNRecipe
from examples.behavior_policies.replay import NStepReplay
from examples.behavior_policies.trainer import BehaviorTrainer
from spin_d3rlpy.algos.decqn import DecQN
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler

# Probability, per environment, that a slot is replaced by a random one; scaled down when
# there are many slots, so that the joint action does not become noise.
EXPLORATION_LADDER = np.array([0.0, 0.05, 0.1, 0.1, 0.2, 0.2, 0.4, 0.4])
N_ENVS = len(EXPLORATION_LADDER)
REPLAY_CAPACITY = 1_000_000
RETURN_STEPS = 3
WARMUP_STEPS = 5_000
# Cheap compared with updates: a resumed run needs a broad replay before it continues to learn.
RESUME_FILL_STEPS = 80_000
SCALER_INTERVAL = 1_000


class _Explorers:
    """The last environments of a recipe with explorers: random actions held for random times.

    References:
        * Dabney et al., Temporally-Extended epsilon-Greedy Exploration, 2021.
    """

    def __init__(self, recipe: DecQNRecipe, nvec: NDArray[np.int64]) -> None:
        self._nvec = nvec
        self._end = 1.0 / recipe.persistence
        self._rng = np.random.default_rng((recipe.seed, 1))  # not the stream of the others
        self._actions = self._rng.integers(nvec, size=(recipe.n_explorers, len(nvec)))

    def act(self, actions: NDArray[np.int64]) -> None:
        """Replaces the explorers' rows of all actions `(N_ENVS, N)`."""
        n = len(self._actions)
        redrawn = self._rng.random(n) < self._end
        fresh = self._rng.integers(self._nvec, size=(n, len(self._nvec)))
        self._actions = np.where(redrawn[:, None], fresh, self._actions)
        actions[N_ENVS - n :] = self._actions


class DecQNTrainer(BehaviorTrainer):
    """Trains DecQN with a ladder of exploration; see `BehaviorTrainer`.

    The replay is not part of the checkpoint: a resumed run first refills it with its current
    policy.
    """

    recipe: DecQNRecipe

    def __init__(self, recipe: DecQNRecipe, folder: Path) -> None:
        super().__init__(recipe, folder, N_ENVS)
        torch.manual_seed(recipe.seed)
        self._rng = np.random.default_rng(recipe.seed)
        config = recipe.config()
        config.nvec = self._nvec
        config.observation_scaler = self._moments.scaler()
        self.algo = DecQN(config)
        self.algo.create_impl(self._observation_shape, len(self._nvec))
        self._replay = NStepReplay(
            min(REPLAY_CAPACITY, recipe.env_steps),
            self._observation_shape[0],
            len(self._nvec),
            N_ENVS,
            RETURN_STEPS,
            config.gamma,
            recipe.seed,
        )
        if self._resume():
            # Other episodes and exploration than the first part's.
            self._rng = np.random.default_rng([recipe.seed, self.env_steps])

    def _train(self) -> None:
        recipe = self.recipe
        epsilons = EXPLORATION_LADDER * min(1.0, 3.0 / len(self._nvec))
        nvec = np.array(self._nvec)
        observations, _ = self._envs.reset(seed=recipe.seed * N_ENVS)
        actions = np.zeros((N_ENVS, len(nvec)), dtype=np.int64)
        over = np.zeros(N_ENVS, dtype=np.bool_)
        explorers = _Explorers(recipe, nvec)
        fill_until = self.env_steps + (RESUME_FILL_STEPS if self.env_steps else WARMUP_STEPS)
        due = 0.0
        while self.env_steps < recipe.env_steps:
            # The others only start an episode in this step. It is not the environments' and draws
            # no random numbers: where all episodes are equally long, nothing depends on it.
            running = np.flatnonzero(~over)
            # Not while a resumed run refills its replay: the networks do not adapt meanwhile.
            adapts = self.algo.grad_step == 0 or self.env_steps >= fill_until
            if adapts and len(running):
                self._moments.update(observations[running])
            explore = self._rng.random((len(running), len(nvec))) < epsilons[running, None]
            if self.algo.grad_step == 0:
                explore[:] = True
            random_actions = self._rng.integers(nvec, size=(len(running), len(nvec)))
            greedy = self.algo.predict(observations)
            actions[running] = np.where(explore, random_actions, greedy[running])
            explorers.act(actions)
            following, rewards, terminated, truncated, _ = self._envs.step(actions)
            for i in running.tolist():
                self._replay.append(
                    i,
                    observations[i],
                    actions[i],
                    float(rewards[i]),
                    following[i],
                    bool(terminated[i]),
                    bool(truncated[i]),
                )
            observations, over = following, terminated | truncated
            after = self.env_steps + len(running)
            if self.env_steps // SCALER_INTERVAL != after // SCALER_INTERVAL:
                self.algo.config.observation_scaler = self._moments.scaler()
            if after >= fill_until:
                due += len(running) / recipe.steps_per_update
                while due >= 1.0:
                    self.algo.update(self._replay.sample(self.algo.batch_size))
                    due -= 1.0
            self._advance(len(running))

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        assert self.algo.impl is not None
        scaler = self.algo.config.observation_scaler
        assert isinstance(scaler, ClippedStandardObservationScaler)
        impl = self.algo.impl
        members = impl.target_q_function if self.recipe.averaged else impl.q_function
        return policy_arrays([(m.encoder, m.head) for m in members], self._nvec, scaler)

    def _state(self) -> dict[str, Any]:
        modules = {name: module.state_dict() for name, module in self._modules().items()}
        return {"modules": modules, "grad_step": self.algo.grad_step}

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        self.algo.config.observation_scaler = self._moments.scaler()
        self.algo.set_grad_step(state["grad_step"])

    def _modules(self) -> dict[str, Any]:
        assert self.algo.impl is not None
        return dict(self.algo.impl._checkpointer.modules)
