"""Behavior cloning (BC) with any policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy.algos.config import PolicyConfig, TPolicy
from spin_d3rlpy.algos.impl import PolicyImpl, PolicyModules
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.conditions import ArrayLike
from spin_d3rlpy.asm.rules import AnyRule
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import BatchSource, imitation_batch
from spin_d3rlpy.policies.conditioned import greedy_with


@dataclasses.dataclass()
class BCConfig(PolicyConfig[TPolicy]):
    r"""Behavior cloning: imitation of the data's actions, without rewards.

    .. math::

        L_\pi = -\mathbb{E} \sum_i \log \pi_i(a_i | s)

    For the benchmark's settings (Beeson et al., 2024) see docs/explanation/differences.md.
    """


class BCImpl(PolicyImpl):
    """The update of behavior cloning."""

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        loss = -self.log_prob(imitation_batch(batch)).mean()
        return {"loss": self.minimize(loss, self._modules.actor_optim)}


@dataclasses.dataclass()
class _BCArguments(BCConfig[Any], PolicyArguments):
    """What `BC(...)` takes."""


class BC(PolicyAlgo[BCImpl, BCConfig[TPolicy]], name="spin_d3rlpy_bc"):
    """Behavior cloning with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = BCConfig
    impl_class = BCImpl

    @takes(_BCArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        policy = self.create_policy(observation_shape)
        modules = PolicyModules(policy=policy, actor_optim=self.create_actor_optim(policy))
        self._impl = self.impl_class(observation_shape, modules, self._config, self._device)

    def predict_with(
        self,
        x: Observation,
        given: ArrayLike | None = None,
        allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
    ) -> NDArray:
        """Returns greedy actions `(B, N)` that keep to conditions, also ones not in the data.

        They keep the config's `rules` as well. Slots are chosen one after the other, independent
        ones by confidence, each among what the choices before it allow. Arguments and errors are
        those of `IDQL.predict_with`, but any policy can do it. An autoregressive one chooses in
        view of what is `given` only in later slots.
        """
        observations, impl = self.check_observations(x), self.require_built()
        inputs, states = self.network_input(observations), self.states(observations)
        policy = impl.acting_policy
        chosen = greedy_with(policy, inputs, given, allowed, impl.rule, states)
        return chosen.cpu().numpy()

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """There is one batch a step: no critic draws another."""
        weights = dataclasses.replace(self._config.imitation_weights, critics=True)
        return buffer.for_imitation(weights)

    @property
    def batch_size(self) -> int:
        """Rows of a mini-batch."""
        rows: int = self._config.imitation_batch_size or self._config.batch_size
        return rows if self._impl is None else self.policy.rows_per_update(rows)
