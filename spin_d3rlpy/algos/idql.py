"""Acting by the best of several samples of any policy (IDQL), with the critics of IQL."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import Any, cast

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.logging import LOG
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.algos.alike_choices import warn_of_alike_choices
from spin_d3rlpy.algos.critics import ValueFunction, best_of, squared_error
from spin_d3rlpy.algos.iql import IQL, IQLConfig, IQLImpl, IQLModules
from spin_d3rlpy.algos.joint_critics import JointCritic
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.algos.search import ascend
from spin_d3rlpy.algos.trust import (
    Search,
    SearchMode,
    Trust,
    TrustSwitch,
    count_alternatives,
    measure_trust,
    states_to_look_at,
    untested,
)
from spin_d3rlpy.asm.conditions import ArrayLike, as_actions, as_mask_or_rule
from spin_d3rlpy.asm.rules import OPEN, Rule
from spin_d3rlpy.asm.sampling import sample
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import BatchSource
from spin_d3rlpy.data.coverage import NEARLY_DETERMINISTIC
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.base import candidate_noise
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.training.loop import Run

# Candidates that `predict` compares at once, of all states; more leave the processor's cache.
CANDIDATES_AT_ONCE = 2048
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
    `joint_critic`. With `held_out_share` each critic's search is judged by the other critics, on
    episodes that nothing was trained on (`algos.trust`); where they do not confirm what it gains,
    actions are the policy's own, the first candidate.

    How far ahead to look when actions are compared is a question of the data: what follows an
    action long after it can be noise, or all that counts. With `short_gammas` the critics learn
    values by several discounts at once. How rare a choice may be is one, too: critics have seen
    little of rare ones, but these may be the better ones. Trust compares the searches by `gamma`
    and `short_gammas`, by `support` and `stricter_supports`, and acts by that one whose gain, in
    returns by `gamma`, the other critics confirm best.

    `predict` draws its candidates with noise that never changes, so that it is a function of the
    observation. A single candidate, as where critics are not trusted, is the most likely choice of
    every slot. `sample_action` draws new ones.

    References:
        * Hansen-Estruch et al., IDQL: Implicit Q-learning as an Actor-Critic Method with Diffusion
          Policies, 2023, algorithm 2.
        * Fedus et al., Hyperbolic Discounting and Learning over Multiple Horizons, 2019: values
          by several discounts from one network.

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
            them. Before the first measurement the policy acts alone.
        short_gammas: discounts in [0, 1) that the search may act by instead of `gamma`. Only with a
            `joint_critic` and `held_out_share`, which choose among them; unused without.
        stricter_supports: values above `support` and at most 1 that the search may keep to instead.
            Only with `held_out_share`; unused without.
        search: `"auto"` acts as trust decides, `"always"` by the best search, confirmed or not,
            `"never"` by imitation. It may be changed after training: `algo.config.search`.
    """

    n_action_samples: int = 32
    candidate_temperature: float = 1.0
    value_temperature: float = 0.0
    search_sweeps: int = 0
    support: float = 0.02
    held_out_share: float = 0.0
    short_gammas: list[float] = dataclasses.field(default_factory=list)
    stricter_supports: list[float] = dataclasses.field(default_factory=list)
    search: SearchMode = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(
            self,
            stricter_supports=(
                all(self.support < s for s in self.stricter_supports),
                f"all above support={self.support:g}",
            ),
            joint_critic=(
                self.joint_critic or self.search_sweeps == 0,
                "True with search_sweeps: the search compares whole actions",
            ),
            n_critics=(
                self.n_critics >= 2 or self.held_out_share == 0.0,
                "of at least 2 with held_out_share: critics judge each other",
            ),
            monte_carlo_share=(
                self.monte_carlo_share == 0.0 or len(self.gammas) == 1,
                "0 with short_gammas: returns to the end are by one discount",
            ),
        )

    @property
    def gammas(self) -> tuple[float, ...]:
        if not self.joint_critic or self.held_out_share == 0.0:  # nothing chooses among them
            return (self.gamma,)
        return self.gamma, *self.short_gammas

    @property
    def searches(self) -> list[Search]:
        """Ways to search that trust compares; the first one acts where nothing is compared."""
        supports = [self.support]
        if self.search_sweeps > 0 and self.held_out_share > 0.0:
            supports += self.stricter_supports
        return [Search(*way) for way in itertools.product(self.gammas, supports)]


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
        self._decided: Search | None = self._config.searches[0]
        self._gammas = torch.tensor(self._config.gammas, device=self.device)[:, None]  # (G, 1)

    def _advantage(self, batch: TorchMiniBatch) -> torch.Tensor:
        """With critics of whole actions `mean_e Q_e(s, a) - V(s)`, standardized, `(G, B)`.

        Not of the smallest value nor of target networks, as in IQL: values of the data's own
        actions are not too high, and the delay of target networks costs most of a short training.
        """
        critic: Any = self._modules.q_funcs
        if not isinstance(critic, JointCritic):
            return super()._advantage(batch)
        x: Any = batch.observations
        with torch.no_grad():
            q = critic.standardized(x, batch.actions).mean(0)
        values = self._modules.value_func(batch.observations)
        advantage: torch.Tensor = q - values.reshape(q.shape)
        return advantage

    def compute_critic_loss(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """As IQL's; by all discounts, in units of standardized returns."""
        critic: Any = self._modules.q_funcs
        if not isinstance(critic, JointCritic):
            return super().compute_critic_loss(batch, next_values)
        scale = critic.members[0].scale
        next_returns = scale.restore(next_values.reshape(len(self._gammas), -1))
        targets = self.bootstrap(batch, next_returns, self._gammas)
        x: Any = batch.observations
        values = critic.standardized(x, batch.actions)  # (E, G, B)
        targets = scale.standardize(targets).repeat(len(values), 1)  # (E * G, B)
        return squared_error(values.flatten(0, 1), targets)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        return self.values_by_gamma(x, action).mean(0)

    def values_by_gamma(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values by `gamma`, whichever discount the search acts by, `(E, [A,] B)`."""
        critic: Any = self._modules.q_funcs
        if isinstance(critic, JointCritic):
            return critic.values_by(0, x, actions)
        return self.q_values(critic, x, actions)

    def imitation_weight(
        self, batch: TorchMiniBatch, imitated: TorchMiniBatch, advantage: torch.Tensor
    ) -> torch.Tensor:
        """Ones: the policy imitates all actions alike."""
        return torch.ones_like(imitated.rewards[:, 0])

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        rule = self.rule_and(extra)
        # A rule may be a mask of these rows, a file has any number of rows, and a GPU works on all.
        if rule is not None or is_exporting() or x.device.type != "cpu":
            return self._choose(x, self._candidate_noise, 0.0, rule)
        at_once = max(1, CANDIDATES_AT_ONCE // self._config.n_action_samples)
        parts = [self._choose(part, self._candidate_noise, 0.0) for part in x.split(at_once)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._choose(x, None, self._config.value_temperature, self.rule_and(extra))

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
        actions = sample(
            policy.asm,
            x,
            n,
            temperature=self._temperature_of_fixed(n),
            order=range(self._layout.n_slots),
            noise=self._candidate_noise[:n, None].expand(-1, len(x), -1),
            given=given,
            allowed=allowed,
            rule=self.rule,
        )
        best = best_of(actions, self._values_of_candidates(x, actions))
        mask, rule = as_mask_or_rule(allowed, len(x), self._layout, x.device)
        shape = (len(x), self._layout.n_slots)
        fixed = None if given is None else as_actions(given, shape, x.device)
        end = math.inf if milliseconds is None else began + milliseconds / 1000.0
        return self._improve(x, best, mask, self.rule_and(rule), fixed, end)

    @property
    def acting_search(self) -> Search | None:
        """The critics' search that acts; None if the policy acts alone."""
        if not is_exporting():  # a file cannot depend on a network's numbers here
            self._decided = self._modules.trust.decide(self._config.search)
        return self._decided

    @property
    def _n_candidates(self) -> int:
        return 1 if self.acting_search is None else self._config.n_action_samples

    def _choose(
        self,
        x: torch.Tensor,
        noise: torch.Tensor | None,
        temperature: float,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        actions = self._draw_candidates(x, self._n_candidates, noise, rule)
        values = self._values_of_candidates(x, actions)
        if temperature > 0.0:
            values = values.amin(0, keepdim=True) / temperature
            return best_of(actions, values + gumbel_noise(values))
        return self._improve(x, best_of(actions, values), rule=rule)

    def _draw_candidates(
        self, x: torch.Tensor, n: int, noise: torch.Tensor | None, rule: Rule | None
    ) -> torch.Tensor:
        if noise is None:
            drawn_at = self._config.candidate_temperature
            return self.acting_policy.sample_several(x, n, None, drawn_at, rule)
        drawn_at = self._temperature_of_fixed(n)
        return self.acting_policy.sample_several(x, n, noise[:n], drawn_at, rule)

    def _temperature_of_fixed(self, n: int) -> float:
        """Temperature of `n` candidates by fixed noise.

        A single one would be the same deviation from the data's usual actions in all states.
        """
        return self._config.candidate_temperature if n > 1 else 0.0

    def _values_of_candidates(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values `(E, A, B)` of actions `(A, B, N)`, by the discount that the search acts by."""
        if len(actions) == 1:  # nothing is compared
            return torch.zeros(1, *actions.shape[:2], device=actions.device)
        # In a file, -1 is no choice.
        return self.q_values(self._modules.q_funcs, x, actions.clamp(min=0))

    def _improve(
        self,
        x: torch.Tensor,
        actions: torch.Tensor,
        allowed: torch.Tensor | None = None,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
        deadline: float = math.inf,
    ) -> torch.Tensor:
        search = self.acting_search
        if search is None:
            return actions
        critics = slice(None)
        return self._search(x, actions, critics, search.support, allowed, rule, given, deadline)

    def _search(
        self,
        x: torch.Tensor,
        actions: torch.Tensor,
        critics: slice,
        support: float,
        allowed: torch.Tensor | None = None,
        rule: Rule | None = None,
        given: torch.Tensor | None = None,
        deadline: float = math.inf,
    ) -> torch.Tensor:
        sweeps = self._config.search_sweeps
        critic: Any = self._modules.q_funcs
        if sweeps == 0:
            return actions
        start = actions.clamp(min=0)  # in a file, -1 is no choice
        conditionals = self.acting_policy.conditionals(x, start)
        conditions = allowed, rule, given, deadline
        members = critic.members[critics]
        improved = ascend(members, conditionals, x, start, support, sweeps, *conditions)
        return torch.where(actions == OPEN, OPEN, improved)

    @torch.no_grad()
    def measure_trust(self, x: torch.Tensor) -> Trust:
        """Lets the critics judge each other's searches in states `(B, obs)`."""
        critic: Any = self._modules.q_funcs
        drawn = self._draw_candidates(x, self._config.n_action_samples, None, self.rule)
        own = self._draw_candidates(x, VALUE_SAMPLES, None, self.rule)

        starts = {}  # of each critic, by discount: the best candidate
        for gamma in self._config.gammas:
            self._compare_by(gamma)
            values = self.q_values(critic, x, drawn)
            starts[gamma] = [best_of(drawn, by_one[None]) for by_one in values]

        def search(member: int, way: Search) -> torch.Tensor:
            self._compare_by(way.gamma)
            itself = slice(member, member + 1)
            start = starts[way.gamma][member]
            return self._search(x, start, itself, way.support, rule=self.rule)

        return measure_trust(
            self._config.searches,
            len(critic),
            search,
            lambda actions: self.values_by_gamma(x, actions),
            own,
            self._count_alternatives(x, own[0]),
        )

    @torch.no_grad()
    def temporal_difference_errors(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `r + gamma V(s') - Q(s, a)` of scaled transitions, `(B,)`."""
        critic: Any = self._modules.q_funcs
        x: Any = batch.observations
        values: torch.Tensor = self._modules.value_func(batch.next_observations)
        if isinstance(critic, JointCritic):
            values = critic.members[0].scale.restore(values.reshape(len(self._gammas), -1))[0]
        q = self.values_by_gamma(x, batch.actions).mean(0)
        return self.bootstrap(batch, values, self._config.gamma) - q

    def _count_alternatives(self, x: torch.Tensor, actions: torch.Tensor) -> float:
        if self._config.search_sweeps == 0:  # not every policy can tell
            return 0.0
        conditionals = self.acting_policy.conditionals(x, actions)
        return count_alternatives(conditionals, actions, self._layout.n_slots)

    def trust_critics(self, trust: Trust) -> None:
        """Acts as measured from now on."""
        self._modules.trust.trust = trust
        self._compare_by(trust.best.gamma)

    def _compare_by(self, gamma: float) -> None:
        critic: Any = self._modules.q_funcs
        if isinstance(critic, JointCritic):
            critic.acts_by = self._config.gammas.index(gamma)


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

    @property
    def _idql(self) -> IDQLImpl:
        return cast(IDQLImpl, self._impl)

    @property
    def _idql_config(self) -> IDQLConfig:
        return cast(IDQLConfig, self._config)

    def save_policy(self, fname: str, masks: bool = False) -> None:
        if self._impl is not None:
            _ = cast(IDQLImpl, self._impl).acting_search  # read before, kept in the file
        super().save_policy(fname, masks)

    def predict_with(
        self,
        x: Observation,
        given: ArrayLike | None = None,
        allowed: ArrayLike | Rule | None = None,
        milliseconds: float | None = None,
    ) -> NDArray:
        """Returns greedy actions `(B, N)` that keep to conditions, also ones not in the data.

        They keep the config's `rules` as well.

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
            self._idql.trust_critics(untested(self._idql_config.searches))
            return buffer
        buffer, self._held_out = buffer.split(share)
        return buffer

    def before_evaluation(self) -> None:
        """Measures trust; training does not depend on whether it is measured."""
        if self._held_out is None:
            return
        device = torch.empty(0, device=self._device).device
        rows = self._held_out.observation_index
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            n = min(len(rows), states_to_look_at(len(self._nvec)))
            chosen = rows[torch.randperm(len(rows))[:n].to(rows.device)]
            observations = self._held_out.observations_at(chosen)
            x = observations if self._transform is None else self._transform(observations)
            trust = self._idql.measure_trust(x)
        self._idql.trust_critics(trust)
        LOG.info("Critics on held-out episodes", trust=str(trust))
        if 0.0 < trust.alternatives < NEARLY_DETERMINISTIC:
            LOG.warning(
                "The data hold one choice for a slot nearly everywhere, so nothing can be known to "
                "be better. Collect data with exploration.",
                alternatives=trust.alternatives,
            )

    def end_run(self) -> None:
        super().end_run()
        layout, held_out = self._config.layout, self._held_out
        if layout is not None and held_out is not None:
            errors_of = self._idql.temporal_difference_errors
            warn_of_alike_choices(layout, self._nvec, held_out, self._scale, errors_of)

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """Nothing imitates with a policy that is not trained: no batch for it is drawn."""
        is_used = self.policy.trainable_modules() or self._config.imitation_weights.critics
        return super().batch_source(buffer) if is_used else buffer

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Also measures returns, which the critics learn in standardized form."""
        super().train_first_stages(buffer, run)
        critics: list[Any] = [self._idql.q_function, self._idql.target_q_function]
        if self._grad_step > 0 or not isinstance(critics[0], JointCritic):
            return
        scaler = self._config.reward_scaler
        rewards = buffer.rewards if scaler is None else scaler.transform(buffer.rewards)
        for critic in critics:
            critic.fit_scale(buffer, rewards, self._idql_config.gammas)

    def create_modules(self, observation_shape: Shape) -> IDQLModules:
        parts = vars(super().create_modules(observation_shape))
        config = self._idql_config
        trust = TrustSwitch(config.searches, is_tested=config.held_out_share > 0.0)
        return IDQLModules(**parts, trust=trust.to(self._device))

    def create_value_function(
        self, observation_shape: Shape, factory: EncoderFactory
    ) -> ValueFunction:
        n_discounts = len(self._idql_config.gammas)
        values = ValueFunction(cast_flat_shape(observation_shape), factory, n_discounts)
        return values.to(self._device)

    def create_actor_optim(self, policy: Policy) -> OptimizerWrapper | None:
        return super().create_actor_optim(policy) if policy.trainable_modules() else None
