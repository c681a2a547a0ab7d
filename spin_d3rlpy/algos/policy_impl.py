"""Config, networks and acting of algorithms that train a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import Shape

from spin_d3rlpy.algos.impl import MultiDiscreteConfig, MultiDiscreteImpl, MultiDiscreteModules
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.feature_cache import policy_input
from spin_d3rlpy.schedules import WeightAverage


@dataclasses.dataclass()
class PolicyConfig(MultiDiscreteConfig):
    """Fields of objectives that train a policy.

    Args:
        actor_learning_rate: of the policy.
        actor_optim_factory: optimizer of the policy.
        actor_encoder_factory: chooses the policy, its sizes and first stages: `SPINEncoderFactory`,
            `SAINTEncoderFactory`, `AutoregressiveEncoderFactory`, another `PolicyFactory`, or any
            d3rlpy encoder factory for a factored policy.
        batch_size: rows of the critics' mini-batch and, without `imitation_batch_size`, the
            policy's.
        nvec: number of choices of each sub-action.
        n_steps: default gradient steps of `fit`.
        imitation_batch_size: rows of a separate mini-batch for the policy; None uses the critics'.
        ema_decay: if above 0, an exponential moving average of the policy's weights with this decay
            acts, is saved and exported.
    """

    actor_learning_rate: float = 3e-4
    actor_optim_factory: OptimizerFactory = make_optimizer_field()
    actor_encoder_factory: EncoderFactory = make_encoder_field()
    imitation_batch_size: int | None = None
    ema_decay: float = 0.0

    def __getattr__(self, name: str) -> Any:
        """Reads the policy's fields, e.g. `config.pretraining`."""
        factory = vars(self).get("actor_encoder_factory")
        if name.startswith("_") or factory is None or name not in vars(factory):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(factory, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets the policy's fields, too."""
        factory = vars(self).get("actor_encoder_factory")
        own = {field.name for field in dataclasses.fields(self)}
        if name not in own and factory is not None and name in vars(factory):
            setattr(factory, name, value)
        else:
            super().__setattr__(name, value)

    @classmethod
    def deserialize_from_dict(cls, dict_config: dict[str, Any]) -> Any:
        """Reads a saved config; in older files policy fields are part of the objective's."""
        own = {field.name for field in dataclasses.fields(cls)}
        others = {k: v for k, v in dict_config.items() if k not in own}
        params = {k: v for k, v in dict_config.items() if k in own}
        factory = params.get("actor_encoder_factory")
        if others and isinstance(factory, Mapping):
            inner = {**factory.get("params", {}), **others}
            params["actor_encoder_factory"] = {**factory, "params": inner}
        return super().deserialize_from_dict(params)


@dataclasses.dataclass(frozen=True)
class PolicyModules(MultiDiscreteModules):
    """A policy, its optimizer (None if nothing is trained), optionally an average of weights."""

    policy: Policy
    actor_optim: OptimizerWrapper | None
    average_policy: Policy | None = dataclasses.field(default=None, kw_only=True)


class PolicyImpl(MultiDiscreteImpl):
    """Acting by a policy."""

    _modules: PolicyModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: PolicyModules,
        config: PolicyConfig,
        device: str,
    ) -> None:
        self._average: WeightAverage | None = None
        if config.ema_decay and modules.actor_optim is not None:
            self._average = WeightAverage(modules.policy, config.ema_decay)
            average: Any = self._average.average
            modules = dataclasses.replace(modules, average_policy=average)
        super().__init__(observation_shape, modules, config, device)

    @property
    def acting_policy(self) -> Policy:
        """The acting policy: the trained one or the average of its weights."""
        return self._modules.average_policy or self._modules.policy

    def sync_average(self) -> None:
        """Sets the average to the policy's weights."""
        if self._average is not None:
            self._average.sync()

    def after_update(self, grad_step: int) -> None:
        super().after_update(grad_step)
        if self._average is not None:
            self._average.update(grad_step)

    @property
    def n_tokens(self) -> int:
        return self._modules.policy.n_tokens

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        return self.acting_policy.greedy(x)

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self.acting_policy.sample(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        """Raises NotImplementedError: there is no critic."""
        raise NotImplementedError("Behavior cloning learns no values.")

    def log_prob(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Log-probability `(B,)` of the batch's actions under the trained policy."""
        return self._modules.policy.log_prob(policy_input(batch), batch.actions)

    @property
    def policy(self) -> Policy:  # type: ignore[override]
        """The trained policy network."""
        return self._modules.policy

    @property
    def policy_optim(self) -> torch.optim.Optimizer:
        """The policy's optimizer.

        Raises:
            ValueError: nothing of the policy is trained.
        """
        if self._modules.actor_optim is None:
            raise ValueError(f"Nothing of a {type(self.policy).__name__} is trained.")
        return self._modules.actor_optim.optim
