r"""Online training of PPO in environments stepped together.

.. math::

    L_\pi = -\mathbb{E} \sum_i \min\big(\rho_i A,\ \operatorname{clip}(\rho_i, 1 - c, 1 + c)\, A
    \big), \qquad \rho_i = \frac{\pi_i(a_i|s)}{\pi_i^{old}(a_i|s)}

The ratio is clipped slot by slot: that of the joint action, a product of N, leaves the range when
hardly any slot has moved. How far the joint policy moves is up to its KL divergence: an update ends
when that is too large, and the learning rate follows it.

References:
    * Schulman et al., Proximal Policy Optimization Algorithms, 2017.
    * Tang and Agrawal, Discretizing Continuous Action Space for On-Policy Optimization, 2020.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import smooth_l1_loss

from examples.behavior_policies.export import policy_arrays
from examples.behavior_policies.moments import RunningMoments
from examples.behavior_policies.recipes import PPORecipe
from examples.behavior_policies.trainer import BehaviorTrainer
from spin_d3rlpy.critics.base import ValueFunction
from spin_d3rlpy.fast.precision import autocast, backward
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import FactoredPolicy
from spin_d3rlpy.training.threads import one_thread

N_ENVS = 32
ROLLOUT_STEPS = 256
EPOCHS = 5
BATCH_SIZE = 1024
GAMMA = 0.99
LAMBDA = 0.97
CLIP = 0.2
MAX_GRADIENT_NORM = 0.5
LEARNING_RATE = 3e-4
LEARNING_RATES = (1e-5, 1e-3)
KL_TARGET = 0.05
FALL_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Rollout:
    """T steps of E environments.

    Args:
        observations: scaled, `(T, E, obs)`.
        actions: `(T, E, N)`.
        log_probs: of each slot's choice when it was made, `(T, E, N)`.
        values: of the observations, `(T, E)`.
        next_values: of the observations after the steps, 0 after terminal ones, `(T, E)`.
        rewards: `(T, E)`.
        over: whether an episode was over after the step, `(T, E)`.
        played: false where an environment only began its next episode, `(T, E)`.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    rewards: torch.Tensor
    over: torch.Tensor
    played: torch.Tensor

    @classmethod
    def empty(cls, n_steps: int, n_envs: int, n_features: int, n_slots: int) -> Rollout:
        """Returns an empty rollout."""
        shape = (n_steps, n_envs)
        return cls(
            observations=torch.zeros(*shape, n_features),
            actions=torch.zeros(*shape, n_slots, dtype=torch.int64),
            log_probs=torch.zeros(*shape, n_slots),
            values=torch.zeros(shape),
            next_values=torch.zeros(shape),
            rewards=torch.zeros(shape),
            over=torch.zeros(shape, dtype=torch.bool),
            played=torch.zeros(shape, dtype=torch.bool),
        )

    def advantages(self, reward_scale: float) -> torch.Tensor:
        """Returns generalized advantages `(T, E)`; values are of rewards times `reward_scale`.

        References:
            * Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage
              Estimation, 2016, equation 16.
        """
        errors = self.rewards * reward_scale + GAMMA * self.next_values - self.values
        advantages = torch.zeros_like(errors)
        following = torch.zeros_like(errors[0])
        for t in reversed(range(len(errors))):
            following = errors[t] + GAMMA * LAMBDA * following * ~self.over[t]
            advantages[t] = following
        return advantages


class _Falls:
    """Detects environments whose last `FALL_STEPS` rewards were all below a bound."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._n_low = np.zeros(N_ENVS, dtype=np.int64)

    def notice(self, rewards: NDArray[np.float64], over: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns fallen environments `(N_ENVS,)`; those `over` start an episode next."""
        self._n_low = np.where(rewards < self._bound, self._n_low + 1, 0)
        fallen = self._n_low >= FALL_STEPS
        self._n_low[fallen | over] = 0
        return fallen & ~over


class PPOTrainer(BehaviorTrainer):
    """Trains PPO with a factored policy, episodes ending in falls; see `BehaviorTrainer`."""

    recipe: PPORecipe

    def __init__(self, recipe: PPORecipe, folder: Path) -> None:
        learned = {} if recipe.learned_bins is None else {"bins": recipe.learned_bins}
        super().__init__(recipe, folder, N_ENVS, **learned)
        torch.manual_seed(recipe.seed)
        shape = self._observation_shape
        encoder = recipe.encoder_factory()
        self.policy = FactoredPolicy(shape, encoder.create(shape), self._nvec)
        nn.init.orthogonal_(self.policy.heads.weight, 0.01)  # begins with all choices alike
        self.value = ValueFunction(shape, encoder)
        parameters = [*self.policy.parameters(), *self.value.parameters()]
        self.optim = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
        self._returns = RunningMoments(1)
        self._resume()
        self._generator = torch.Generator().manual_seed(recipe.seed + self.env_steps)

    def _train(self) -> None:
        seed = self.recipe.seed * N_ENVS + self.env_steps
        self._observations, _ = self._envs.reset(seed=seed)
        self._over = np.zeros(N_ENVS, dtype=np.bool_)
        self._falls = _Falls(self.recipe.fall_reward)
        self._discounted = np.zeros(N_ENVS)
        if self._moments.count == 0:
            self._moments.update(self._observations)
        while self.env_steps < self.recipe.env_steps:
            with one_thread():  # products are small, and the cores are the simulator's
                rollout = self._collect()
            self._learn(rollout)
            self._advance(int(rollout.played.sum()))

    @torch.no_grad()
    def _collect(self) -> Rollout:
        """Plays `ROLLOUT_STEPS` in all environments with a fixed scaler."""
        scaler = self._moments.scaler()
        out = Rollout.empty(ROLLOUT_STEPS, N_ENVS, self._observation_shape[0], len(self._nvec))
        scaled = scaler.transform(torch.from_numpy(self._observations))
        values = self.value(scaled)
        for t in range(ROLLOUT_STEPS):
            played = ~self._over
            if played.any():
                self._moments.update(self._observations[played])
            log_probs = self._log_probs(scaled)
            noisy = log_probs + gumbel_noise(log_probs, self._generator)
            actions = noisy.argmax(-1)
            following, rewards, terminated, truncated, _ = self._envs.step(actions.numpy())
            fallen = self._falls.notice(rewards, self._over | terminated | truncated)
            self._envs.end_episodes(fallen)
            terminated |= fallen
            out.observations[t], out.values[t], out.actions[t] = scaled, values, actions
            out.log_probs[t] = _chosen_log_probs(log_probs, actions)
            out.rewards[t] = torch.from_numpy(rewards)
            out.played[t] = torch.from_numpy(played)
            self._over = terminated | truncated
            out.over[t] = torch.from_numpy(self._over)
            self._observe_returns(rewards)
            self._observations = following
            scaled = scaler.transform(torch.from_numpy(following))
            values = self.value(scaled)
            out.next_values[t] = values * torch.from_numpy(~terminated)
        return out

    def _observe_returns(self, rewards: NDArray[np.float64]) -> None:
        self._discounted = GAMMA * self._discounted + rewards
        self._returns.update(self._discounted[:, None].astype(np.float32))
        self._discounted[self._over] = 0.0

    def _learn(self, rollout: Rollout) -> None:
        scale = 1.0 / (float(self._returns.std[0]) + 1e-8)
        advantages = rollout.advantages(scale)
        played = rollout.played.flatten().nonzero().squeeze(-1)

        def rows(x: torch.Tensor) -> torch.Tensor:
            return x.flatten(0, 1)[played]

        observations, actions = rows(rollout.observations), rows(rollout.actions)
        old, targets = rows(rollout.log_probs), rows(advantages + rollout.values)
        advantage = rows(advantages)
        advantage = ((advantage - advantage.mean()) / (advantage.std() + 1e-8))[:, None]
        for _ in range(EPOCHS):
            divergences = []
            order = torch.randperm(len(played), generator=self._generator)
            for chosen in order.split(BATCH_SIZE):
                self.optim.zero_grad(set_to_none=True)
                with autocast("cpu", "auto"):
                    log_probs = self._log_probs(observations[chosen])
                    log_ratio = _chosen_log_probs(log_probs, actions[chosen]) - old[chosen]
                    loss = smooth_l1_loss(self.value(observations[chosen]), targets[chosen]) / 2
                    backward(loss + clipped_loss(log_ratio, advantage[chosen]))
                for network in (self.policy, self.value):
                    nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)
                self.optim.step()
                divergence = (log_ratio.detach().exp() - 1 - log_ratio.detach()).sum(-1).mean()
                divergences.append(float(divergence))
            if np.mean(divergences) > 2 * KL_TARGET:
                break
        self._adapt_learning_rate(float(np.mean(divergences)))

    def _adapt_learning_rate(self, divergence: float) -> None:
        lowest, highest = LEARNING_RATES
        for group in self.optim.param_groups:
            if divergence > 1.5 * KL_TARGET:
                group["lr"] = max(group["lr"] / 1.5, lowest)
            elif divergence < KL_TARGET / 1.5:
                group["lr"] = min(group["lr"] * 1.2, highest)

    def _log_probs(self, scaled: torch.Tensor) -> torch.Tensor:
        """Returns every choice's log-probability `(B, N, K)`."""
        return self.policy.slot_layout.split(self.policy(scaled)).log_softmax(-1)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        member = (self.policy.encoder, self.policy.heads)
        arrays = policy_arrays([member], self._nvec, self._moments.scaler())
        if self.recipe.learned_bins is None:
            return arrays
        nvec = np.full_like(arrays["nvec"], self.recipe.number)
        return {**arrays, "nvec": nvec, "head_nvec": arrays["nvec"]}

    def _state(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "value": self.value.state_dict(),
            "optim": self.optim.state_dict(),
            "returns": self._returns.state(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.value.load_state_dict(state["value"])
        self.optim.load_state_dict(state["optim"])
        self._returns.load(state["returns"])


def _chosen_log_probs(log_probs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Picks choices `(B, N)` of log-probabilities `(B, N, K)`."""
    return log_probs.gather(-1, actions[..., None]).squeeze(-1)


def clipped_loss(log_ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Returns PPO's loss with a ratio for each slot, added over slots.

    Args:
        log_ratio: logarithms of the slots' new over old probabilities, `(B, N)`.
        advantage: of the joint actions, `(B, 1)`.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * advantage, clipped * advantage).sum(-1).mean()
