"""Small offline problems for tests; sizes are unequal primes so that no transposition passes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer
from d3rlpy.dataset.components import Episode
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import OptimizerFactory

import spin_d3rlpy
from spin_d3rlpy import (
    SPINIDQL,
    BraVE,
    DecQN,
    DecQNBCQ,
    DecQNCQL,
    DecQNIQL,
    DecQNOneStep,
    FactoredIDQL,
    RePreMIQL,
    SPINDistillIQL,
)
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.nvec import nvec_from_space
from spin_d3rlpy.policies import (
    SAINT,
    SPIN,
    Autoregressive,
    AutoregressiveConfig,
    RePreM,
    SPINDistill,
    SPINJoint,
)
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig
from spin_d3rlpy.runs.settings import split_fields

NVEC = [3, 5, 2]
OBSERVATION_SIZE = 7
TINY = TransformerConfig(width=16, n_blocks=2, n_heads=2, head_hidden=11)
TINY_LSTM = AutoregressiveConfig(state_width=11, action_width=5, lstm_width=13)

NAMED = [
    getattr(spin_d3rlpy, policy + objective)
    for objective in ("IQL", "AWAC", "BCQ", "BC")
    for policy in ("SPIN", "SAINT", "Factored", "Autoregressive")
]
DECQN_FAMILY = [DecQN, DecQNCQL, DecQNBCQ, DecQNIQL, DecQNOneStep]
# Their policies' stages do not depend on the objective: one each goes through all tests.
OTHER_TWO_STAGE = [SPINDistillIQL, RePreMIQL]
BEST_OF_SAMPLES = [SPINIDQL, FactoredIDQL]
ALGORITHMS = [*NAMED, *OTHER_TWO_STAGE, *BEST_OF_SAMPLES, *DECQN_FAMILY, BraVE]
# Every objective and every policy; their other pairs are among the slow tests.
_ONCE = {
    *("SPINIQL", "SPINBC", "SAINTAWAC", "FactoredIQL", "AutoregressiveBCQ"),
    *(a.__name__ for a in (*OTHER_TWO_STAGE, SPINIDQL, *DECQN_FAMILY, BraVE)),
}
each_algorithm = pytest.mark.parametrize(
    "algo_class",
    [pytest.param(a, marks=() if a.__name__ in _ONCE else pytest.mark.slow) for a in ALGORITHMS],
    ids=lambda algo_class: algo_class.__name__,
)


def random_replay_buffer(
    n_episodes: int = 13, length: int = 17, nvec: list[int] | None = None, seed: int = 0
) -> ReplayBuffer:
    """A stock d3rlpy buffer of random MultiDiscrete data."""
    nvec = nvec or NVEC
    rng = np.random.default_rng(seed)
    episodes = [
        Episode(
            observations=rng.normal(size=(length, OBSERVATION_SIZE)).astype(np.float32),
            # The first rows show every slot's last choice.
            actions=np.concatenate(
                [[[m - 1 for m in nvec]], rng.integers(nvec, size=(length - 1, len(nvec)))]
            ),
            rewards=rng.normal(size=(length, 1)).astype(np.float32),
            terminated=bool(i % 2),
        )
        for i in range(n_episodes)
    ]
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes)


def random_buffer(nvec: list[int] | None = None, seed: int = 0) -> DeviceReplayBuffer:
    """The same as a device buffer."""
    nvec = nvec or NVEC
    return DeviceReplayBuffer.from_replay_buffer(random_replay_buffer(nvec=nvec, seed=seed), nvec)


def mostly_wrong_replay_buffer(n_episodes: int = 1500, seed: int = 0) -> ReplayBuffer:
    """Two-step episodes of mixed data whose most common first action is the worst one.

    The first state's signs say which choice is right in each of three binary slots, and nothing
    is paid yet. The second state shows how many were right, and that number is paid whatever is
    done there. Three episodes in ten have all slots right, the others all wrong: the best actions
    are in the data, imitation takes the wrong ones, and only bootstrapping tells them apart.
    """
    rng = np.random.default_rng(seed)
    signs = rng.normal(size=(n_episodes, 3)).astype(np.float32)
    right = (signs > 0).astype(np.int64)
    good = rng.random((n_episodes, 1)) < 0.3
    actions = np.where(good, right, 1 - right)
    counts = (actions == right).sum(1).astype(np.float32)
    episodes = []
    for sign, action, count in zip(signs, actions, counts, strict=True):
        observations = np.array([[*sign, 0.0], [0.0, 0.0, 0.0, 1.0 + count]], np.float32)
        later = rng.integers(2, size=3)
        rewards = np.array([[0.0], [count]], np.float32)
        episodes.append(Episode(observations, np.stack([action, later]), rewards, terminated=True))
    return ReplayBuffer(InfiniteBuffer(), episodes=episodes)


def new_algorithm(
    algo_class: Any, device: Any = "cpu:0", recipe: str = "published", **fields: Any
) -> Any:
    """Creates an algorithm from fields of its objective and of its policy."""
    others = {name: fields.pop(name) for name in ("asm", "enable_ddp") if name in fields}
    fields = split_fields(algo_class, fields, recipe)
    return algo_class(device=device, recipe=recipe, **others, **fields)


def has_field(algo_class: Any, name: str) -> bool:
    """Whether an algorithm has a field of this name, of its config or of its policy."""
    config = algo_class().config
    return name in vars(config) or name in vars(getattr(config, "policy", config))


def learning_rates(algo_class: Any, rate: float) -> dict[str, Any]:
    """Config fields that set all of an algorithm's learning rates."""
    names = ("learning_rate", "actor_learning_rate", "critic_learning_rate")
    return {name: rate for name in names if has_field(algo_class, name)}


def optimizers(algo_class: Any, factory: OptimizerFactory) -> dict[str, Any]:
    """Config fields that set all of an algorithm's optimizers."""
    names = ("optim_factory", "actor_optim_factory", "critic_optim_factory")
    return {name: factory for name in names if has_field(algo_class, name)}


def small_networks(algo_class: Any, width: int) -> dict[str, Any]:
    """Config fields that give critics and factored policies one small hidden layer."""
    small = VectorEncoderFactory(hidden_units=[width])
    names = ["encoder_factory", "critic_encoder_factory", "value_encoder_factory"]
    return {name: small for name in names if has_field(algo_class, name)}


def tiny_fields(algo_class: type) -> dict[str, Any]:
    """Config fields that make an algorithm small."""
    small = small_networks(algo_class, 23)
    return {**small, **tiny_policy_fields(algo_class)}


def tiny_policy_fields(algo_class: type) -> dict[str, Any]:
    """Config fields that make an algorithm's policy small."""
    name = algo_class.__name__
    if name.startswith("SPINDistill"):
        return {
            "policy": SPINDistill(TINY, hidden_units=[13]),
            "pretraining": PretrainingConfig(batch_size=32, max_updates=5),
            "distillation": DistillationConfig(n_updates=5, batch_size=32, validation_interval=3),
        }
    if name.startswith("RePreM"):
        sizes = RePreMConfig(width=16, n_blocks=1, n_heads=2, window=4, head_hidden=11)
        return {
            "policy": RePreM(sizes),
            "pretraining": RePreMPretrainingConfig(batch_size=8, max_updates=5, log_interval=3),
        }
    if name == "SPINIDQL":
        config = PretrainingConfig(masking="any_order", batch_size=32, max_updates=5)
        return {
            "policy": SPINJoint(transformer=TINY),
            "pretraining": config,
            "n_action_samples": 3,
        }
    if name.startswith("SPIN"):
        return {
            "policy": SPIN(transformer=TINY),
            "pretraining": PretrainingConfig(batch_size=32, max_updates=5),
        }
    if name.startswith("SAINT"):
        return {"policy": SAINT(transformer=TINY)}
    if name.startswith("Autoregressive"):
        return {"policy": Autoregressive(TINY_LSTM)}
    return {}


def flat_parameters(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters by name."""
    return {k: v.detach().clone() for k, v in module.named_parameters()}


class SignEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays for each slot whose choice is the largest if the state's feature is positive, else 0.

    Episodes are truncated after nine steps.

    Args:
        action_space: MultiDiscrete, MultiBinary or Discrete.
    """

    def __init__(self, action_space: gymnasium.Space[Any] | None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,))
        self.action_space = action_space or gymnasium.spaces.MultiDiscrete(NVEC)
        self.actions: list[Any] = []

    def _observe(self) -> np.ndarray:
        self._state = self.np_random.normal(size=OBSERVATION_SIZE).astype(np.float32)
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.actions.append(action)
        nvec = nvec_from_space(self.action_space)
        right = np.where(self._state[: len(nvec)] > 0, np.array(nvec) - 1, 0)
        reward = float((np.atleast_1d(action) == right).mean())
        self._step += 1
        return self._observe(), reward, False, self._step == 9, {}
