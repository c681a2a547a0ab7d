"""Acting by the best of several samples of any policy (IDQL), with the critics of IQL."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import NDArray, Observation

from spin_d3rlpy.algos.critics import best_of
from spin_d3rlpy.algos.iql import IQL, IQLConfig, IQLImpl
from spin_d3rlpy.asm.conditions import ArrayLike
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.base import candidate_noise, gumbel_noise
from spin_d3rlpy.policies.joint import JointPolicy


@dataclasses.dataclass()
class IDQLConfig(IQLConfig):
    r"""IQL's critics; the policy imitates, and acting takes the best of its samples.

    .. math::

        a = \operatorname{argmax}_{a' \in \{a_1, .., a_n\}} \min_e Q_e(s, a'), \quad
            a_k \sim \pi(\cdot | s)

    Values decide among actions that the policy takes for likely in the data. A policy that is an
    Action Structure Model (`SPINIDQL`) draws them from the joint distribution and is not trained
    any further; others learn by behavior cloning, without advantage weights.

    `predict` draws its candidates with noise that never changes, so that it is a function of the
    observation. `sample_action` draws new ones.

    References:
        * Hansen-Estruch et al., IDQL: Implicit Q-learning as an Actor-Critic Method with Diffusion
          Policies, 2023, algorithm 2.

    Args:
        n_action_samples: candidates per state (n).
        candidate_temperature: of the policy's distribution when candidates are drawn; 0 takes the
            most likely choice of every slot, as a policy without critics would.
        value_temperature: if above 0, `sample_action` draws among its candidates from the softmax
            of their values divided by this.
    """

    n_action_samples: int = 32
    candidate_temperature: float = 1.0
    value_temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(
            self,
            n_action_samples=(self.n_action_samples >= 1, "of at least 1"),
            candidate_temperature=(self.candidate_temperature >= 0.0, "of at least 0"),
            value_temperature=(self.value_temperature >= 0.0, "of at least 0"),
        )


class IDQLImpl(IQLImpl):
    """The update of IDQL."""

    _config: IDQLConfig

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        n = self._config.n_action_samples
        self._candidate_noise = candidate_noise(self._layout, n, self.device)

    def imitation_weight(
        self, batch: TorchMiniBatch, imitated: TorchMiniBatch, advantage: torch.Tensor
    ) -> torch.Tensor:
        """Ones: the policy imitates all actions alike."""
        return torch.ones_like(imitated.rewards[:, 0])

    def inner_predict_best_action(self, x: Any) -> torch.Tensor:
        return self._choose(x, self._candidate_noise, 0.0)

    def inner_sample_action(self, x: Any) -> torch.Tensor:
        return self._choose(x, None, self._config.value_temperature)

    @torch.no_grad()
    def choose_with(self, x: torch.Tensor, **conditions: Any) -> torch.Tensor:
        """The best of candidates that keep what is given and break no rule, `(B, N)`."""
        policy = self.acting_policy
        if not isinstance(policy, JointPolicy):
            raise ValueError(
                "Expected a policy that is a structure model, as SPINIDQL's: a "
                f"{type(policy).__name__} cannot choose in view of any other choices."
            )
        actions = policy.asm.sample(
            x,
            self._config.n_action_samples,
            temperature=self._config.candidate_temperature,
            order=range(self._layout.n_slots),
            noise=self._candidate_noise[:, None].expand(-1, len(x), -1),
            **conditions,
        )
        return best_of(actions, self.q_values(self._modules.q_funcs, x, actions))

    def _choose(self, x: Any, noise: torch.Tensor | None, temperature: float) -> torch.Tensor:
        actions = self.acting_policy.sample_several(
            x, self._config.n_action_samples, noise, self._config.candidate_temperature
        )
        values = self.q_values(self._modules.q_funcs, x, actions)  # (E, A, B)
        if temperature > 0.0:
            values = values.amin(0, keepdim=True) / temperature
            values = values + gumbel_noise(values)
        return best_of(actions, values)


class IDQL(IQL):
    """IDQL; the named algorithms in `spin_d3rlpy.algos.named` choose its policy."""

    config_class: type[IDQLConfig] = IDQLConfig
    impl_class = IDQLImpl

    def predict_with(
        self,
        x: Observation,
        given: ArrayLike | None = None,
        allowed: ArrayLike | Rule | None = None,
    ) -> NDArray:
        """Returns greedy actions `(B, N)` that keep to conditions, also ones not in the data.

        Args:
            x: observations `(B, obs)`.
            given: `(B, N)` choices that are made already, -1 where open.
            allowed: a bool mask or a rule, see `spin_d3rlpy.asm.sampling.sample`.

        Both `given` and a mask may be tensors, NumPy arrays or nested lists.

        Raises:
            InvalidObservationError: observations of the wrong shape, or not finite.
            InvalidActionSpaceError: `given` holds neither choices of this action space nor -1.
            NoAllowedChoiceError: no choice is left for a slot.
            ValueError: `allowed` is neither a bool mask of this action space nor a rule, or the
                policy is not a structure model.
        """
        inputs = self._scaled(self._check_observations(x))
        impl = cast(IDQLImpl, self._impl)
        return impl.choose_with(inputs, given=given, allowed=allowed).cpu().numpy()

    def _source(self, buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
        """Nothing imitates with a policy that is not trained: no batch for it is drawn."""
        is_used = self.policy.trainable_modules() or self._config.imitation_weights.critics
        return super()._source(buffer) if is_used else buffer

    def create_actor_optim(self, policy: Policy) -> OptimizerWrapper | None:
        return super().create_actor_optim(policy) if policy.trainable_modules() else None
