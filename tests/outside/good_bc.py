"""An objective: imitation of actions whose reward is at least the batch's mean."""

import dataclasses

import torch
from d3rlpy.dataset import cast_flat_shape

from spin_d3rlpy import SPINEncoderFactory
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyConfig, PolicyImpl, PolicyModules


@dataclasses.dataclass()
class GoodBCConfig(PolicyConfig):
    """Behavior cloning of rewarded actions; its equation, fields and source belong here."""


class GoodBCImpl(PolicyImpl):
    """The update."""

    def compute_update(self, batch, grad_step):
        """One step of the policy."""
        good = (batch.rewards >= batch.rewards.mean()).squeeze(-1)
        loss = -torch.where(good, self.log_prob(batch), 0.0).mean()
        self.minimize(loss, self._modules.actor_optim)
        return {"loss": loss.detach()}


class GoodBC(PolicyAlgo[GoodBCImpl, GoodBCConfig]):
    """The objective, for any policy."""

    config_class = GoodBCConfig

    def inner_create_impl(self, observation_shape, action_size):
        """Builds network and optimizer."""
        policy = self._create_policy(cast_flat_shape(observation_shape))
        modules = PolicyModules(policy=policy, actor_optim=self._create_actor_optim(policy))
        self._impl = GoodBCImpl(observation_shape, modules, self._config, self._device)


class SPINGoodBC(GoodBC, name="outside_spin_good_bc", policy=SPINEncoderFactory):
    """One line per policy; `SPINGoodBC.config_class` is its config."""
