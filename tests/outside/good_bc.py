"""An objective: imitation of actions whose reward is at least the batch's mean."""

import dataclasses

import torch

from spin_d3rlpy import SPINEncoderFactory
from spin_d3rlpy.algos.config import PolicyConfig, encoder_field, takes_policy_fields
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyImpl, PolicyModules


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

    config_class: type[GoodBCConfig] = GoodBCConfig

    def inner_create_impl(self, observation_shape, action_size):
        """Builds network and optimizer."""
        policy = self.create_policy(observation_shape)
        modules = PolicyModules(policy=policy, actor_optim=self.create_actor_optim(policy))
        self._impl = GoodBCImpl(observation_shape, modules, self._config, self._device)


@takes_policy_fields
@dataclasses.dataclass()
class SPINGoodBCConfig(GoodBCConfig):
    """The objective's config with SPIN's policy."""

    actor_encoder_factory: SPINEncoderFactory = encoder_field(SPINEncoderFactory)


class SPINGoodBC(GoodBC, name="outside_spin_good_bc"):
    """A policy for the objective."""

    config_class = SPINGoodBCConfig
