"""An objective: imitation of actions whose reward is at least the batch's mean."""

import dataclasses

import torch

from spin_d3rlpy import SPIN
from spin_d3rlpy.algos.config import PolicyConfig, TPolicy
from spin_d3rlpy.algos.impl import PolicyImpl, PolicyModules
from spin_d3rlpy.algos.policy import PolicyAlgo


@dataclasses.dataclass()
class GoodBCConfig(PolicyConfig[TPolicy]):
    """Behavior cloning of rewarded actions; its equation, fields and source belong here."""


class GoodBCImpl(PolicyImpl):
    """The update."""

    def compute_update(self, batch, grad_step):
        """One step of the policy."""
        good = (batch.rewards >= batch.rewards.mean()).squeeze(-1)
        loss = -torch.where(good, self.log_prob(batch), 0.0).mean()
        return {"loss": self.minimize(loss, self._modules.actor_optim)}


class GoodBC(PolicyAlgo[GoodBCImpl, GoodBCConfig[TPolicy]], name="outside_good_bc"):
    """The objective, for any policy: `GoodBC(policy=SAINT())`. Files have its name."""

    config_class = GoodBCConfig

    def inner_create_impl(self, observation_shape, action_size):
        """Builds networks and optimizers."""
        policy = self.create_policy(observation_shape)
        modules = PolicyModules(policy=policy, actor_optim=self.create_actor_optim(policy))
        self._impl = GoodBCImpl(observation_shape, modules, self._config, self._device)


class SPINGoodBC(GoodBC[SPIN], policy=SPIN):
    """A name for the objective with one kind of policy."""
