"""Decoupled Q-networks (DecQN): Q-learning whose joint value is the mean of per-slot utilities."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from d3rlpy.base import DeviceArg, register_learnable
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import Shape
from torch.nn.functional import smooth_l1_loss

from spin_d3rlpy._compat import fuse_adam
from spin_d3rlpy.algos.base import (
    MultiDiscreteAlgo,
    MultiDiscreteConfig,
    MultiDiscreteImpl,
    MultiDiscreteModules,
)
from spin_d3rlpy.algos.encoder_fields import encoder_field
from spin_d3rlpy.critics import Decomposition, FactoredCritic, combine_slots, polyak_update
from spin_d3rlpy.nvec import SlotLayout


def _default_encoder() -> EncoderFactory:
    return VectorEncoderFactory(hidden_units=[512, 512])


@dataclasses.dataclass()
class DecQNConfig(MultiDiscreteConfig):
    r"""DecQN: factored double Q-learning.

    .. math::

        Q(s, a) = \frac{1}{N} \sum_i U_i(s, a_i), \qquad
        y = \sum_{k<n} \gamma^k r_k + \gamma^n (1 - d)\,
            \bar Q(s', \arg\max_{a'} \tilde Q(s', a'))

    where :math:`\tilde Q` is the mean of the online ensemble and :math:`\bar Q` that of the
    target ensemble. The maximum over the joint space is N independent maxima.

    References:
        * Seyde et al., Solving Continuous Control via Q-learning, 2023, equation 3.
        * Beeson, Ireland and Montana, 2024 (arXiv 2411.11088), section 4.

    Args:
        learning_rate: learning rate of the Q functions.
        optim_factory: optimizer of the Q functions.
        encoder_factory: hidden layers of each Q function.
        batch_size: rows of a mini-batch.
        gamma: discount factor.
        tau: Polyak coefficient of the target ensemble, applied every step.
        n_critics: members of the ensemble.
        decomposition: `"mean"` or `"sum"` over slots.
        nvec: number of choices of each sub-action.
    """

    learning_rate: float = 3e-4
    optim_factory: OptimizerFactory = make_optimizer_field()
    encoder_factory: EncoderFactory = encoder_field(_default_encoder)
    tau: float = 0.005
    n_critics: int = 2
    decomposition: Decomposition = "mean"

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> DecQN:
        """Returns the algorithm on `device`."""
        return DecQN(self, device, enable_ddp)

    @staticmethod
    def get_type() -> str:
        """Name under which d3rlpy saves it."""
        return "spin_decqn"


@dataclasses.dataclass(frozen=True)
class DecQNModules(MultiDiscreteModules):
    """Networks and optimizer of DecQN."""

    q_funcs: FactoredCritic
    targ_q_funcs: FactoredCritic
    optim: OptimizerWrapper


class DecQNImpl(MultiDiscreteImpl):
    """The update of DecQN."""

    _modules: DecQNModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: DecQNModules,
        layout: SlotLayout,
        gamma: float,
        tau: float,
        device: str,
    ) -> None:
        super().__init__(observation_shape, layout.max_choices, modules, device)
        self._layout = layout
        self._gamma = gamma
        self._tau = tau
        hard_sync(modules.targ_q_funcs, modules.q_funcs)

    def compute_target(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `y` of shape `(B,)`."""
        with torch.no_grad():
            online = self._modules.q_funcs.utilities(batch.next_observations).mean(0)
            target = self._modules.targ_q_funcs.utilities(batch.next_observations).mean(0)
            next_values = combine_slots(
                self._layout.gather(target, self._layout.argmax(online)),
                self._modules.q_funcs.decomposition,
            )
            discount = self._gamma ** batch.intervals.squeeze(-1)
            mask = 1.0 - batch.terminals.squeeze(-1)
            return batch.rewards.squeeze(-1) + discount * mask * next_values

    def compute_loss(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Huber loss, averaged over rows and added over the ensemble."""
        y = self.compute_target(batch)
        critic = self._modules.q_funcs
        values = critic.values(self._layout, critic.utilities(batch.observations), batch.actions)
        return smooth_l1_loss(values, y.expand_as(values)) * len(values)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One gradient step and one Polyak step."""
        self._modules.optim.zero_grad()
        loss = self.compute_loss(batch)
        loss.backward()
        self._modules.optim.step()
        polyak_update(self._modules.targ_q_funcs, self._modules.q_funcs, self._tau)
        return {"loss": loss.detach()}

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        """Per-slot argmax of the ensemble's mean utility, `(B, N)`."""
        return self._layout.argmax(self._modules.q_funcs.utilities(x).mean(0))

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        """The greedy action: exploration is the caller's."""
        return self.inner_predict_best_action(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        """Mean over the ensemble of `Q(s, a)`, `(B,)`."""
        critic = self._modules.q_funcs
        return critic.values(self._layout, critic.utilities(x), action).mean(0)

    @property
    def q_function(self) -> FactoredCritic:
        """The online ensemble."""
        return self._modules.q_funcs

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        """Its optimizer."""
        return self._modules.optim.optim


class DecQN(MultiDiscreteAlgo[DecQNImpl, DecQNConfig]):
    """DecQN, for online training and (as a baseline that ignores the support) offline."""

    config_class = DecQNConfig

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        """Builds networks and optimizer."""
        nvec = self._config.nvec
        assert nvec is not None
        critics = [
            FactoredCritic(
                cast_flat_shape(observation_shape),
                self._config.encoder_factory,
                nvec,
                self._config.n_critics,
                self._config.decomposition,
            ).to(self._device)
            for _ in range(2)
        ]
        optim = fuse_adam(
            self._config.optim_factory.create(
                critics[0].named_modules(), lr=self._config.learning_rate, compiled=self.compiled
            )
        )
        self._impl = DecQNImpl(
            observation_shape=observation_shape,
            modules=DecQNModules(critics[0], critics[1], optim),
            layout=SlotLayout(nvec).to(self._device),
            gamma=self._config.gamma,
            tau=self._config.tau,
            device=self._device,
        )


register_learnable(DecQNConfig)
