"""Acting by the best of several samples of any policy (IDQL), with the critics of IQL."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, cast

import torch
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.algos.critics import best_of
from spin_d3rlpy.algos.iql import IQL, IQLConfig, IQLImpl, IQLModules
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.algos.search import ascend
from spin_d3rlpy.algos.trust import HORIZONS, ActsBy, Trust, TrustSwitch, measure_trust
from spin_d3rlpy.asm.conditions import ArrayLike, as_actions, as_mask_or_rule
from spin_d3rlpy.asm.rules import Rule
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import BatchSource
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.base import candidate_noise
from spin_d3rlpy.policies.joint import JointPolicy

VALUE_SAMPLES = 4  # of the policy, whose values' mean is the state's


@dataclasses.dataclass()
class IDQLConfig(IQLConfig):
    r"""IQL's critics; the policy imitates, and acting takes the best of its samples.

    .. math::

        a = \operatorname{argmax}_{a' \in \{a_1, .., a_n\}} \min_e Q_e(s, a'), \quad
            a_k \sim \pi(\cdot | s)

    Values decide among actions that the policy takes for likely in the data. A policy that is an
    Action Structure Model (`SPINIDQL`) draws them from the joint distribution and is not trained
    any further; others learn by behavior cloning, without advantage weights.

    With `search_sweeps` the best candidate is only the start of a search (`algos.search`), slot by
    slot among the choices that the policy supports, by the value of the whole action: give it a
    `joint_critic`. With `held_out_share` the critics are tested on episodes that nothing was
    trained on (`algos.trust`); where their advantages do not hold there, actions are the policy's
    own, the first candidate.

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
        search_sweeps: how often a search visits every slot; 0 takes the best candidate.
        support: least probability of a choice in the search, relative to the likeliest one's in
            view of all other slots, in (0, 1].
        held_out_share: share of the episodes by which trust in the critics is measured; 0 trusts
            them.
    """

    n_action_samples: int = 32
    candidate_temperature: float = 1.0
    value_temperature: float = 0.0
    search_sweeps: int = 0
    support: float = 0.02
    held_out_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(
            self,
            n_action_samples=(self.n_action_samples >= 1, "of at least 1"),
            candidate_temperature=(self.candidate_temperature >= 0.0, "of at least 0"),
            value_temperature=(self.value_temperature >= 0.0, "of at least 0"),
            search_sweeps=(self.search_sweeps >= 0, "of at least 0"),
            support=(0.0 < self.support <= 1.0, "above 0 and at most 1"),
            held_out_share=(0.0 <= self.held_out_share < 1.0, "in [0, 1)"),
        )
        require_fields(
            self,
            joint_critic=(
                self.joint_critic or self.search_sweeps == 0,
                "True with search_sweeps: the search compares whole actions",
            ),
        )


@dataclasses.dataclass(frozen=True)
class IDQLModules(IQLModules):
    """Networks and optimizers of IDQL."""

    trust: TrustSwitch


class IDQLImpl(IQLImpl):
    """The update of IDQL."""

    _modules: IDQLModules
    _config: IDQLConfig

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        n = self._config.n_action_samples
        self._candidate_noise = candidate_noise(self._layout, n, self.device)
        self._decided: ActsBy = "search"

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
    def choose_with(
        self,
        x: torch.Tensor,
        given: ArrayLike | None = None,
        allowed: ArrayLike | Rule | None = None,
        milliseconds: float | None = None,
    ) -> torch.Tensor:
        """The best action that keeps what is given and breaks no rule, `(B, N)`.

        Raises:
            ValueError: the policy is not a structure model.
        """
        began = time.monotonic()
        policy = self.acting_policy
        if not isinstance(policy, JointPolicy):
            raise ValueError(
                "Expected a policy that is a structure model, as SPINIDQL's: a "
                f"{type(policy).__name__} cannot choose in view of any other choices."
            )
        n = self._n_candidates
        actions = policy.asm.sample(
            x,
            n,
            temperature=self._config.candidate_temperature,
            order=range(self._layout.n_slots),
            noise=self._candidate_noise[:n, None].expand(-1, len(x), -1),
            given=given,
            allowed=allowed,
        )
        best = self._best_candidate(x, actions)
        shape = (len(x), self._layout.n_slots, self._layout.max_choices)
        mask, rule = as_mask_or_rule(allowed, shape, x.device)
        fixed = None if given is None else as_actions(given, shape[:2], x.device)
        end = math.inf if milliseconds is None else began + milliseconds / 1000.0
        return self._improve(x, best, mask, rule, fixed, end)

    @property
    def acts_by(self) -> ActsBy:
        """Whether the critics' search acts, or the policy alone."""
        if not is_exporting():  # a file cannot depend on a network's numbers here
            self._decided = self._modules.trust.acts_by
        return self._decided

    @property
    def _n_candidates(self) -> int:
        return self._config.n_action_samples if self.acts_by == "search" else 1

    def _choose(
        self, x: torch.Tensor, noise: torch.Tensor | None, temperature: float
    ) -> torch.Tensor:
        n = self._n_candidates
        few = None if noise is None else noise[:n]
        drawn_at = self._config.candidate_temperature
        actions = self.acting_policy.sample_several(x, n, few, drawn_at)
        best = self._best_candidate(x, actions, temperature)
        return best if temperature > 0.0 else self._improve(x, best)

    def _best_candidate(
        self, x: torch.Tensor, actions: torch.Tensor, temperature: float = 0.0
    ) -> torch.Tensor:
        if len(actions) == 1:
            return actions[0]
        values = self.q_values(self._modules.q_funcs, x, actions)  # (E, A, B)
        if temperature > 0.0:
            values = values.amin(0, keepdim=True) / temperature
            values = values + gumbel_noise(values)
        return best_of(actions, values)

    def _improve(
        self,
        x: torch.Tensor,
        actions: torch.Tensor,
        allowed: torch.Tensor | None = None,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
        deadline: float = math.inf,
    ) -> torch.Tensor:
        sweeps = self._config.search_sweeps
        critic: Any = self._modules.q_funcs
        if sweeps == 0 or self.acts_by != "search":
            return actions
        conditionals = self.acting_policy.conditionals(x, actions)
        support = self._config.support
        conditions = allowed, rule, given, deadline
        return ascend(critic, conditionals, x, actions, support, sweeps, *conditions)

    def mean_value(self, x: torch.Tensor) -> torch.Tensor:
        """The mean value of the policy's actions, by the mean of the critics, `(B,)`."""
        actions = self.acting_policy.sample_several(x, VALUE_SAMPLES)
        return self.q_values(self._modules.q_funcs, x, actions).mean((0, 1))


class IDQL(IQL):
    """IDQL; the named algorithms in `spin_d3rlpy.algos.named` choose its policy."""

    config_class: type[IDQLConfig] = IDQLConfig
    impl_class = IDQLImpl
    _acts_by = PolicyAlgo._acts_by | {"q_funcs", "targ_q_funcs", "trust"}
    _held_out: DeviceReplayBuffer | None = None

    @property
    def trust(self) -> Trust | None:
        """How far the critics are trusted, and by which figures; None if they were not tested."""
        return cast(IDQLImpl, self.require_built())._modules.trust.trust

    def save_policy(self, fname: str) -> None:
        if self._impl is not None:
            _ = cast(IDQLImpl, self._impl).acts_by  # read before, kept in the file
        super().save_policy(fname)

    def predict_with(
        self,
        x: Observation,
        given: ArrayLike | None = None,
        allowed: ArrayLike | Rule | None = None,
        milliseconds: float | None = None,
    ) -> NDArray:
        """Returns greedy actions `(B, N)` that keep to conditions, also ones not in the data.

        Args:
            x: observations `(B, obs)`.
            given: `(B, N)` choices that are made already, -1 where open.
            allowed: a bool mask or a rule, see `spin_d3rlpy.asm.sampling.sample`.
            milliseconds: time after which the search ends, with the best action so far; drawing
                candidates takes as long as it takes.

        Both `given` and a mask may be tensors, NumPy arrays or nested lists.

        Raises:
            InvalidObservationError: observations of the wrong shape, or not finite.
            InvalidActionSpaceError: `given` holds neither choices of this action space nor -1.
            NoAllowedChoiceError: no choice is left for a slot.
            ValueError: `allowed` is neither a bool mask of this action space nor a rule, the
                policy is not a structure model, or `milliseconds` is not above 0.
        """
        inputs = self.network_input(self._check_observations(x))
        if milliseconds is not None and not milliseconds > 0.0:
            raise ValueError(f"Expected milliseconds above 0, got {milliseconds!r}.")
        impl = cast(IDQLImpl, self._impl)
        return impl.choose_with(inputs, given, allowed, milliseconds).cpu().numpy()

    def hold_out(self, buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
        """Keeps some episodes by which trust is measured, and returns the others."""
        share = cast(IDQLConfig, self._config).held_out_share
        self._held_out = None
        if share == 0.0:
            return buffer
        if buffer.size() < 2:
            nothing = (0.0,) * len(HORIZONS)
            cast(IDQLImpl, self._impl)._modules.trust.trust = Trust(nothing, nothing, 0, 0)
            return buffer
        buffer, self._held_out = buffer.split(share)
        return buffer

    def before_evaluation(self) -> None:
        """Measures trust; training does not depend on whether it is measured."""
        if self._held_out is None:
            return
        impl = cast(IDQLImpl, self._impl)
        device = torch.empty(0, device=self._device).device

        def values(observations: torch.Tensor, actions: torch.Tensor | None) -> torch.Tensor:
            x = observations if self._transform is None else self._transform(observations)
            if actions is None:
                return impl.mean_value(x)
            return impl.q_values(impl._modules.q_funcs, x, actions).mean(0)

        scaler = self._config.reward_scaler
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            impl._modules.trust.trust = measure_trust(
                self._held_out, values, self._config.gamma, scaler.transform if scaler else None
            )

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """Nothing imitates with a policy that is not trained: no batch for it is drawn."""
        is_used = self.policy.trainable_modules() or self._config.imitation_weights.critics
        return super().batch_source(buffer) if is_used else buffer

    def create_modules(self, observation_shape: Shape) -> IDQLModules:
        parts = vars(super().create_modules(observation_shape))
        return IDQLModules(**parts, trust=TrustSwitch().to(self._device))

    def create_actor_optim(self, policy: Policy) -> OptimizerWrapper | None:
        return super().create_actor_optim(policy) if policy.trainable_modules() else None
