"""Acting by the best of several samples of any policy (IDQL), with the critics of IQL."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, Self, cast

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.logging import LOG
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch, eval_api
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.algos.actor_critic import (
    ActorCriticConfig,
    ActorCriticImpl,
    ActorCriticModules,
    create_critic,
    create_critic_optim,
)
from spin_d3rlpy.algos.base import no_timer
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.algos.fit import Timer
from spin_d3rlpy.algos.imitation_alone import ImitationAlone
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.conditions import ArrayLike, as_conditions
from spin_d3rlpy.asm.decoding import Conditionals
from spin_d3rlpy.asm.rules import OPEN, AnyRule, Rule, conditions_of, sees_state
from spin_d3rlpy.critics.base import (
    ActionCritic,
    ValueFunction,
    best_of,
    expectile_loss,
)
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import BatchSource, imitation_batch, named_rewards_of
from spin_d3rlpy.data.buffer.named_rewards import Weights, check_weights
from spin_d3rlpy.data.coverage import NEARLY_DETERMINISTIC
from spin_d3rlpy.errors import InvalidDatasetError, listed, require_fields, shown
from spin_d3rlpy.images import RowSize, encode_images
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.base import candidate_noise
from spin_d3rlpy.policies.further_pretraining import FurtherPretraining
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.search.afterstates import Afterstates
from spin_d3rlpy.search.alike_choices import warn_of_alike_choices
from spin_d3rlpy.search.deadline import Deadline
from spin_d3rlpy.search.moves import Conditions, improve
from spin_d3rlpy.search.starts import best_different, count_starts
from spin_d3rlpy.search.state_model import (
    LEAST_TOLD_REWARD,
    PARTS,
    StateModel,
    can_foresee,
    ends_by_chance,
    learn,
    share_of_rewards,
)
from spin_d3rlpy.search.trust import (
    FIRST_STATES,
    LEAST_STATES,
    Search,
    SearchMode,
    Trust,
    TrustSwitch,
    count_alternatives,
    count_moves,
    mean_and_error,
    measure_trust,
    states_to_look_at,
    untested,
)
from spin_d3rlpy.training.averages import polyak_update
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.overfitting import CHECKED_ROWS, OverfittingCheck
from spin_d3rlpy.training.passes import MostPasses
from spin_d3rlpy.training.schedules import Schedule

# Candidates that `predict` compares at once, of all states; more leave the processor's cache.
CANDIDATES_AT_ONCE = 2048
RETURN_BINS = 21  # of critics of afterstates; 51 tell CoNE's pits less surely from few data
AFTERSTATES_RATE = 2.0  # times the critics' learning rate: dropout and cross-entropy learn slowly
# Over the data, of critics of afterstates. What ends an episode is rare: after more passes they
# know each such place by heart, and take places nearby that they have not seen for safe. CoNE with
# 50 % of pits returned -18 after 60 passes and -129, a pit, after 550 (notebook, "More steps").
MOST_PASSES = 60
VALUE_SAMPLES = 4  # of the policy, whose values' mean is the state's
MODEL_TEST = 3.0  # times a brief test, about, which policies take in a model of states
SAMPLES = 64  # noises, of which imitation by samples takes one in each state


@dataclasses.dataclass()
class IDQLConfig(ActorCriticConfig[TPolicy]):
    r"""Critics and values as in IQL; the policy imitates, acting takes the best of its samples.

    .. math::

        a = \operatorname{argmax}_{a' \in \{a_1, .., a_n\}} \min_e Q_e(s, a'), \quad
            a_k \sim \pi(\cdot | s)

    Values decide among actions that the policy takes for likely in the data. A policy that is an
    Action Structure Model (`SPINIDQL`) draws them from the joint distribution and is not trained
    any further; others learn by behavior cloning, without advantage weights.

    With `search_sweeps` the best candidate is only the start of a search (`search.moves`): slots
    change their choices, or two exchange theirs, among what the policy supports, by the value of
    the whole action: give it a `joint_critic`. Where slots are few, several candidates are starts
    (`search.starts`), and the best end acts. Candidates of a search may be drafts, which take fewer
    passes of a network than samples: where it scores pairs of slots and choices two in all, where
    slots are many four (`Policy.draft_several`). With `held_out_share` each critic's search is
    judged by the other critics, on episodes that nothing was trained on (`search.trust`); where
    they do not confirm what it gains, or where that is little against what returns differ by,
    actions are the policy's own: the most likely one, or samples where the critics find these
    surely better.

    How far ahead to look when actions are compared is a question of the data: what follows an
    action long after it can be noise, or all that counts. With `short_gammas` the critics learn
    values by several discounts at once. How rare a choice may be is one, too: critics have seen
    little of rare ones, but these may be the better ones. Trust compares the searches by `gamma`
    and `short_gammas`, by `action_flexibility` and `stricter_flexibilities`, and acts by that one
    whose gain, in returns by `gamma`, the other critics confirm best.

    `predict` draws its candidates with noise that never changes, so that it is a function of the
    observation. The first one, which is the only one where critics are not trusted, is the most
    likely choice of every slot; where samples imitate, its noise is a function of the observation.
    `sample_action` draws new ones.

    References:
        * Hansen-Estruch et al., IDQL: Implicit Q-learning as an Actor-Critic Method with Diffusion
          Policies, 2023, algorithm 2.
        * Fedus et al., Hyperbolic Discounting and Learning over Multiple Horizons, 2019: values
          by several discounts from one network.

    Args:
        value_encoder_factory: d3rlpy's factory of the encoder of V.
        expectile: tau of V's expectile regression.
        joint_critic: Q functions of the state and the whole action, which can value how choices go
            together, instead of utilities that are combined over slots.
        n_action_samples: candidates per state (n); drafts of pairs are half as many.
        candidate_temperature: of the policy's distribution when candidates are drawn; 0 takes the
            most likely choice of every slot, as a policy without critics would.
        value_temperature: if above 0, `sample_action` draws among its candidates from the softmax
            of their values divided by this.
        search_sweeps: of a search: rounds in which all slots can change, then rounds in which pairs
            of slots can exchange their choices; 0 takes the best candidate.
        action_flexibility: least probability of a choice in the search, relative to the likeliest
            one's in view of all other slots, in (0, 1].
        held_out_share: share of the episodes by which trust in the critics is measured; 0 trusts
            them. Before the first measurement the policy acts alone.
        short_gammas: discounts in [0, 1) that the search may act by instead of `gamma`. Only with a
            `joint_critic` and `held_out_share`, which choose among them; unused without.
        stricter_flexibilities: values above `action_flexibility` and at most 1 that the search may
            keep to instead. Only with `held_out_share`; unused without.
        overfitting_dropout: dropout rate of the joint critics once their errors on held-out
            episodes have surely risen (`training.overfitting`), in [0, 1). Training then continues
            from the weights with the least errors. 0 changes nothing. Only with
            `held_out_share` and `expectile=0.5`, where values are mean returns; unused without.
        state_model_updates: gradient steps of a model of what follows an action, in which searches
            are tried before they act (`search.state_model`); with a budget of seconds, which says
            how many, any number above 0. 0 tries none. Only with a `joint_critic` and
            `held_out_share`, one reward and no history, images, masks or rules that see the state,
            where episodes end by a time limit alone or critics value afterstates; unused otherwise.
        afterstates: whether joint critics value where an action leads, by the model of what follows
            it, in place of states and actions (`search.afterstates`). They then learn distributions
            of returns, every other one with dropout, in 60 passes over the data at most. `"auto"`
            is decided by the data when the networks are built: True where the task ends episodes
            and states and actions tell the next state, and this the reward. Only where there can be
            such a model and with `expectile=0.5`; unused otherwise.
        search: `"auto"` acts as trust decides, `"always"` by the best search, confirmed or not,
            `"never"` by imitation. It may be changed after training: `algo.config.search`.
        reward_weights: of the rewards of a dataset with several, by name. Critics of whole actions
            then learn the values by each reward apart, so that `with_weights` acts by other weights
            without training. Filled with the dataset's when the model is built, if a `joint_critic`
            learns the values of who logged (`expectile=0.5`, no `monte_carlo_share`, no
            `reward_scaler`): only these add up. Otherwise the weighted sum is learned by.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    expectile: float = 0.8
    joint_critic: bool = False
    n_action_samples: int = 32
    candidate_temperature: float = 1.0
    value_temperature: float = 0.0
    search_sweeps: int = 0
    action_flexibility: float = 0.02
    held_out_share: float = 0.0
    short_gammas: list[float] = dataclasses.field(default_factory=list)
    stricter_flexibilities: list[float] = dataclasses.field(default_factory=list)
    overfitting_dropout: float = 0.0
    state_model_updates: int = 0
    afterstates: bool | Literal["auto"] = False
    search: SearchMode = "auto"
    reward_weights: dict[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(
            self,
            stricter_flexibilities=(
                all(self.action_flexibility < s for s in self.stricter_flexibilities),
                f"all above action_flexibility={self.action_flexibility:g}",
            ),
            action_flexibility=(self.action_flexibility > 0.0, "in (0, 1]"),
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
            reward_weights=(
                self.reward_weights is None or (self.n_rewards > 1 and self.values_add_up),
                "None, or of two or more rewards, together with joint_critic=True, expectile=0.5, "
                "monte_carlo_share=0 and no reward_scaler: other values do not add up",
            ),
        )

    @property
    def gammas(self) -> tuple[float, ...]:
        """All discounts that values are learned by; `gamma` is the first one."""
        if not self.joint_critic or self.held_out_share == 0.0:  # nothing chooses among them
            return (self.gamma,)
        return self.gamma, *self.short_gammas

    @property
    def values_add_up(self) -> bool:
        """Whether values by several rewards can be learned apart and added up."""
        is_mean = self.expectile == 0.5 and self.monte_carlo_share == 0.0
        return self.joint_critic and is_mean and self.reward_scaler is None

    @property
    def n_rewards(self) -> int:
        """Rewards whose values are learned apart (R)."""
        return 1 if self.reward_weights is None else len(self.reward_weights)

    @property
    def models_states(self) -> bool:
        """Whether policies can be compared in a model of what follows an action.

        Of several rewards and of histories it would be another model.
        """
        is_tested = self.joint_critic and self.held_out_share > 0.0
        has_one_reward = self.reward_weights is None and self.history == 1
        return is_tested and has_one_reward and self.state_model_updates > 0

    @property
    def values_afterstates(self) -> bool:
        """Whether critics value where an action leads."""
        learns_means = self.expectile == 0.5 and self.monte_carlo_share == 0.0
        return self.models_states and learns_means and self.afterstates is True

    @property
    def searches(self) -> list[Search]:
        """Ways to search that trust compares; the first one acts where nothing is compared."""
        flexibilities = [self.action_flexibility]
        if self.search_sweeps > 0 and self.held_out_share > 0.0:
            flexibilities += self.stricter_flexibilities
        return [Search(*way) for way in itertools.product(self.gammas, flexibilities)]


@dataclasses.dataclass(frozen=True)
class IDQLModules(ActorCriticModules):
    """Networks and optimizers of IDQL."""

    q_funcs: ActionCritic  # type: ignore[assignment]
    targ_q_funcs: ActionCritic  # type: ignore[assignment]
    value_func: ValueFunction
    value_optim: OptimizerWrapper
    trust: TrustSwitch
    state_model: StateModel | None


class IDQLImpl(ActorCriticImpl):
    """The update of IDQL."""

    _modules: IDQLModules
    _config: IDQLConfig[Any]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        n = self._config.n_action_samples
        self._candidate_noise = candidate_noise(self._slot_layout, n, self.device)
        self._candidate_noise[0] = 0.0  # the most likely choices
        self._sample_noise = candidate_noise(self._slot_layout, SAMPLES, self.device)
        self._fixed_search: Search | None = self._config.searches[0]
        self._fixed_samples = False
        self.trains_critics = True  # False where the policy alone is to learn
        self._n_rewards = self._config.n_rewards
        gammas = torch.tensor(self._config.gammas, device=self.device)[:, None]
        self._gammas = gammas.repeat_interleave(self._n_rewards, dim=0)  # (G * R, 1), of outputs
        if self._config.reward_weights is not None:
            for critic in self.critics:
                cast(JointCritic, critic).weigh([*self._config.reward_weights.values()])

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """One step of V, then Q, then the target critic, then the policy."""
        metrics = self._update_critics(batch) if self.trains_critics else {}
        optim = self._modules.actor_optim
        if optim is not None:  # a structure model is trained already
            actor_loss = -self.log_prob(imitation_batch(batch)).mean()
            metrics["actor_loss"] = self.minimize(actor_loss, optim)
        return metrics

    def _update_critics(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        modules, config, x = self._modules, self._config, cast(torch.Tensor, batch.observations)
        critic = modules.q_funcs
        predictions = critic.predictions(self._slot_layout, x, batch.actions)
        values: torch.Tensor = modules.value_func(x)
        targets = self._targets_of_values(batch, predictions.detach())  # ([G * R,] B)
        advantage = targets - values.reshape(targets.shape)
        value_loss = expectile_loss(advantage, config.expectile)
        value_loss = self.minimize(value_loss, modules.value_optim)

        with torch.no_grad():
            next_values: torch.Tensor = modules.value_func(batch.next_observations)
        critic_loss = critic.loss(predictions, self._targets_of_critics(batch, next_values))
        critic_loss = self.minimize(critic_loss, modules.critic_optim)
        polyak_update(modules.targ_q_funcs, critic, config.tau)
        return {"critic_loss": critic_loss, "value_loss": value_loss}

    @torch.no_grad()
    def _targets_of_values(self, batch: TorchMiniBatch, predictions: torch.Tensor) -> torch.Tensor:
        """What V is regressed to, standardized, `([G * R,] B)`.

        With critics of whole actions it is the mean of the online critics, not the smallest value
        of the target networks, as in IQL: values of the data's own actions are not too high, and
        the delay of target networks costs most of a short training.
        """
        modules, x = self._modules, batch.observations
        if self._config.joint_critic:
            return modules.q_funcs.means(predictions).mean(0)
        return self.q_values(modules.targ_q_funcs, x, batch.actions).amin(0)

    def _targets_of_critics(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """Bootstrapped returns by all discounts and rewards, standardized, `(G * R, B)`."""
        scale = self._modules.q_funcs.scale
        next_returns = scale.restore(next_values.reshape(len(self._gammas), -1))
        rewards = None
        if self._n_rewards > 1:  # of each discount's outputs
            rewards = named_rewards_of(batch).T.repeat(len(self._config.gammas), 1)
        return scale.standardize(self.bootstrap(batch, next_returns, self._gammas, rewards))

    def follow(self, schedule: Schedule, progress: float) -> None:
        """Sets the critics' and values' learning rates to those at a point of the schedule."""
        optimizers = self._modules.critic_optim, self._modules.value_optim
        for optim in [] if schedule.is_constant else optimizers:
            for group in optim.optim.param_groups:
                group["lr"] = group["initial_lr"] * schedule.factor(progress)

    @eval_api
    @torch.no_grad()
    def errors_of_values(
        self, x: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor
    ) -> torch.Tensor:
        """Returns squared errors of standardized values, means over critics and rewards, `(B,)`.

        Values are the target networks', which are averages: those of single steps go up and down
        while they learn fast, which is no overfitting.

        Args:
            x: scaled observations `(B, obs)`.
            actions: `(B, N)`.
            returns: to go, by the shortest discount and each reward, `(R, B)`.
        """
        critic, n = self._modules.targ_q_funcs, self._n_rewards
        gammas = self._config.gammas
        first = gammas.index(min(gammas)) * n
        outputs = slice(first, first + n)
        scale = cast(JointCritic, critic).scale
        y = (returns - scale.mean[outputs, None]) / scale.std[outputs, None]
        values = critic.standardized(self._slot_layout, x, actions)[:, outputs]  # (E, R, B)
        return (values - y).square().mean((0, 1))

    @property
    def dropout_rate(self) -> float:
        """Share of the joint critics' hidden layers that steps leave out."""
        critic = self._modules.q_funcs
        return critic.members[0].dropout.p if isinstance(critic, JointCritic) else 0.0

    @dropout_rate.setter
    def dropout_rate(self, rate: float) -> None:
        cast(JointCritic, self._modules.q_funcs).drop_out(rate)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        return self.values_by_gamma(x, action).mean(0)

    def values_by_gamma(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values by `gamma`, whichever discount the search acts by, `(E, [A,] B)`."""
        return self._modules.q_funcs.values_by(0, self._slot_layout, x, actions)

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        rule = self.rule_and(extra)
        # A rule may be a mask of these rows, a file has any number of rows, and a GPU works on all.
        if rule is not None or is_exporting() or x.device.type != "cpu":
            return self._choose(x, True, 0.0, rule)
        at_once = max(1, CANDIDATES_AT_ONCE // self._config.n_action_samples)
        parts = [self._choose(part, True, 0.0) for part in x.split(at_once)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._choose(x, False, self._config.value_temperature, self.rule_and(extra))

    @eval_api
    @torch.inference_mode()
    def choose_with(
        self,
        x: torch.Tensor,
        given: ArrayLike | None = None,
        allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
        milliseconds: float | None = None,
        states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The best action that keeps what is given and breaks no rule, `(B, N)`.

        Rules see `states` `(B, obs)`, the networks' input if None.

        Raises:
            ValueError: the policy is not a structure model.
        """
        deadline, policy = Deadline(milliseconds), self.acting_policy
        if not isinstance(policy, JointPolicy):
            raise ValueError(
                "Expected a policy that is a structure model, as SPINIDQL's: a "
                f"{type(policy).__name__} cannot choose in view of any other choices."
            )
        seen, slots = x if states is None else states, self._slot_layout
        choices, mask, both = as_conditions(x, slots, given, allowed, self.rule, seen)
        fixed = None if given is None else choices
        rule, masked = conditions_of(None, both, seen), conditions_of(mask, both, seen)
        noise, temperature = self._fixed_noise(x, 1)
        # The surest one, which comes back in any case.
        surest = temperature * noise[0].expand(len(x), -1)
        actions = policy.decode(x, surest, masked, fixed)[None]
        search = self.acting_search
        if search is None:
            return actions[0]
        more = self._config.n_action_samples - 1
        deadline.guess = deadline.spent
        if deadline.is_set:  # they may take half of the time that is left
            more = min(more, int(max(0.0, 0.5 * deadline.left) / deadline.spent))
        if more > 0:
            noise, temperature = self._fixed_noise(x, more + 1)
            repeated = None if fixed is None else fixed.repeat(more, 1)
            if self._config.search_sweeps > 0:
                others = policy.draft_several(x, more, noise[1:], temperature, masked, repeated)
            else:
                noises = temperature * noise[1:, None].expand(-1, len(x), -1).flatten(0, 1)
                others = policy.decode(x.repeat(more, 1), noises, masked, repeated)
                others = others.unflatten(0, (more, -1))
            actions = torch.cat([actions, others])
        starts = self._starts(actions, self._values_of_candidates(x, actions))
        conditions = Conditions(search.action_flexibility, mask, rule, fixed)
        return self._search(x, starts, slice(None), conditions, deadline)

    @property
    def acting_search(self) -> Search | None:
        """The critics' search that acts; None if the policy acts alone."""
        if is_exporting():  # a file cannot depend on a network's numbers here
            return self._fixed_search
        return self._modules.trust.decide(self._config.search)

    @property
    def trust(self) -> TrustSwitch:
        """What was measured of the critics."""
        return self._modules.trust

    @property
    def state_model(self) -> StateModel | None:
        """What policies are compared in once it is learned; None where none can be."""
        return self._modules.state_model

    @property
    def critics(self) -> tuple[ActionCritic, ActionCritic]:
        """Online and target ensemble."""
        return self._modules.q_funcs, self._modules.targ_q_funcs

    def copy_q_function_from(self, impl: QLearningAlgoImplBase) -> None:
        """Also copies the model of states by which critics of afterstates value."""
        super().copy_q_function_from(impl)
        if self._config.values_afterstates:
            model, other = self.state_model, cast(IDQLImpl, impl).state_model
            assert model is not None
            assert other is not None  # critics of the same kind need one
            model.load_state_dict(other.state_dict())
        search = self.acting_search or self._config.searches[0]
        self._compare_by(search.gamma)  # what acts here, not there

    def fix_search(self) -> None:
        """Fixes how files act that are exported next."""
        self._fixed_search, self._fixed_samples = self.acting_search, self._imitates_by_samples

    def _choose(
        self,
        x: torch.Tensor,
        has_fixed_noise: bool,
        temperature: float,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        search = self.acting_search
        n = 1 if search is None else self._config.n_action_samples
        is_draft = n > 1 and self._config.search_sweeps > 0 and temperature == 0.0
        actions = self._draw_candidates(x, n, has_fixed_noise, rule, is_draft)
        values = self._values_of_candidates(x, actions)
        if temperature > 0.0:
            values = values.amin(0, keepdim=True) / temperature
            return best_of(actions, values + gumbel_noise(values))
        if search is None:
            return actions[0]
        starts = self._starts(actions, values)
        conditions = Conditions(search.action_flexibility, rule=rule)
        return self._search(x, starts, slice(None), conditions)

    def _draw_candidates(
        self,
        x: torch.Tensor,
        n: int,
        has_fixed_noise: bool,
        rule: Rule | None,
        is_draft: bool = False,
    ) -> torch.Tensor:
        """Returns `(n, B, N)`; drafts if a search improves the best one."""
        policy = self.acting_policy
        draw = policy.draft_several if is_draft else policy.sample_several
        if has_fixed_noise:
            noise, temperature = self._fixed_noise(x, n)
            return draw(x, n, noise, temperature, rule)
        return draw(x, n, None, self._config.candidate_temperature, rule)

    @property
    def _imitates_by_samples(self) -> bool:
        if is_exporting():
            return self._fixed_samples
        is_alone = self.acting_search is None and self._config.search == "auto"
        return is_alone and self._modules.trust.imitates_by_samples

    def _fixed_noise(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, float]:
        """Returns noise that never changes, of n candidates, and their temperature.

        The noise is `(n, S)`. A single candidate by the same one would be the same deviation from
        the data's usual actions in all states. So it has none, or where samples imitate noise by
        its state, `(1, B, S)`.
        """
        temperature = self._config.candidate_temperature
        if n == 1 and self._imitates_by_samples:
            return self._noise_by_state(x)[None], temperature
        return self._candidate_noise[:n], temperature if n > 1 else 0.0

    def _noise_by_state(self, x: torch.Tensor) -> torch.Tensor:
        """Returns noise `(B, S)` that is a function of the state, and unrelated in others."""
        numbers = x.flatten(1).double()
        # Multiples of the golden ratio, less whole numbers: no two columns count alike.
        multiples = torch.arange(1, numbers.shape[1] + 1, device=x.device).double() * 0.6180339887
        position = (numbers * (1.0 + multiples - multiples.floor())).sum(1) * 1000.0
        place = ((position - position.floor()) * SAMPLES).long().clamp(max=SAMPLES - 1)
        return self._sample_noise.index_select(0, place)

    def _values_of_candidates(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values `(E, A, B)` of actions `(A, B, N)`, by the discount that the search acts by."""
        if len(actions) == 1:  # nothing is compared
            return torch.zeros(1, *actions.shape[:2], device=actions.device)
        # In a file, -1 is no choice.
        return self.q_values(self._modules.q_funcs, x, actions.clamp(min=0))

    def _starts(self, candidates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns where a search starts, `(S, B, N)`; without one the best candidate."""
        has_search = self._config.search_sweeps > 0
        n = count_starts(self._slot_layout.nvec) if has_search else 1
        return best_different(candidates, values, n)

    def _search(
        self,
        x: torch.Tensor,
        starts: torch.Tensor,
        critics: slice,
        conditions: Conditions,
        deadline: Deadline | None = None,
    ) -> torch.Tensor:
        """Returns the best action `(B, N)` that a search finds from any of the starts."""
        sweeps = self._config.search_sweeps
        if sweeps == 0:
            return starts[0]
        deadline, found = deadline or Deadline(), list[torch.Tensor]()
        members = cast(JointCritic, self._modules.q_funcs).members[critics]
        policy = self.acting_policy
        encoded = encode_images(policy, x)

        def conditionals_of(rows: torch.Tensor) -> Conditionals:
            return policy.conditionals_of_any(encoded[rows])

        # Where time is limited, the best one is improved first.
        for some in starts.split(1 if deadline.is_set else len(starts)):
            if found and not deadline.allows():
                break
            start = some.clamp(min=0)  # in a file, -1 is no choice
            better = improve(members, conditionals_of, x, start, conditions, sweeps, deadline)
            found.append(torch.where(some == OPEN, OPEN, better))
        actions = torch.cat(found)
        if len(actions) == 1:
            return actions[0]
        return best_of(actions, self._values_of_candidates(x, actions)[critics])

    @eval_api
    @torch.no_grad()
    def measure_trust(self, x: torch.Tensor, states: torch.Tensor) -> Trust:
        """Returns how far the critics confirm each other's searches in states `(B, obs)`.

        Args:
            x: the networks' input.
            states: the same as rules see them, unscaled.
        """
        critic, rule = self._modules.q_funcs, self.rule_in(states)
        n, drawn_at = self._config.n_action_samples, self._config.candidate_temperature
        noise, policy = self._candidate_noise[:n], self.acting_policy  # it starts where it acts
        has_search = self._config.search_sweeps > 0
        draw = policy.draft_several if has_search else policy.sample_several
        drawn = draw(x, n, noise, drawn_at, rule)
        own = self._draw_candidates(x, VALUE_SAMPLES, False, rule)

        starts = {}  # of each critic, by discount
        for gamma in self._config.gammas:
            self._compare_by(gamma)
            values = self.q_values(critic, x, drawn)
            starts[gamma] = [self._starts(drawn, by_one[None]) for by_one in values]

        def search(member: int, way: Search) -> torch.Tensor:
            self._compare_by(way.gamma)
            itself = slice(member, member + 1)
            conditions = Conditions(way.action_flexibility, rule=rule)
            return self._search(x, starts[way.gamma][member], itself, conditions)

        return measure_trust(
            self._config.searches,
            len(critic),
            search,
            lambda actions: self.values_by_gamma(x, actions),
            own,
            self._likeliest(x, rule),
            self._count_alternatives(x, own[0]),
            critic.spread,
        )

    @eval_api
    @torch.no_grad()
    def compare_in_model(self, trust: Trust, x: torch.Tensor, n_steps: torch.Tensor) -> Trust:
        """Returns trust with what policies return in the model of states.

        Of searches that would act the best one by each discount is tried, and if it gains nothing
        the next one. A milder one by the same discount takes its place unless the bolder one
        returns more there by a standard error: steps that the data support less lead further from
        what they know.

        Args:
            trust: as the critics say.
            x: the networks' input in the states to start from, `(B, obs)`.
            n_steps: that policies act for in each, `(B,)`.
        """
        model, gamma, rule = self.state_model, self._config.gamma, self.rule_and(None)
        assert model is not None
        size = math.ceil(len(x) / PARTS)
        starts = [*zip(x.split(size), n_steps.split(size), strict=True)]

        def returns(act: Callable[[torch.Tensor], torch.Tensor], part: int) -> torch.Tensor:
            return model.returns(act, *starts[part], gamma, self._rewards_of_places)

        @functools.cache
        def of_imitation(part: int) -> torch.Tensor:
            return returns(lambda x: self._likeliest(x, rule), part)

        def gains(act: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            """From more states as long as it is not sure that a gain is one."""
            found = torch.empty(0, device=x.device)
            for part in range(len(starts)):
                found = torch.cat([found, returns(act, part) - of_imitation(part)])
                mean, error = mean_and_error(found.double())
                if mean <= 0.0 or mean > 2.0 * error:
                    break
            return found

        def act_by(way: Search, x: torch.Tensor) -> torch.Tensor:
            if self._config.search_sweeps == 0:  # the best candidate acts
                drawn = self._draw_candidates(x, self._config.n_action_samples, True, rule)
                return self._starts(drawn, self._values_of_candidates(x, drawn))[0]
            # From imitation's action alone: other candidates take most of the time.
            conditions = Conditions(way.action_flexibility, rule=rule)
            return self._search(x, self._likeliest(x, rule)[None], slice(None), conditions)

        @functools.cache
        def gains_of(number: int) -> torch.Tensor:
            way = trust.searches[number]
            self._compare_by(way.gamma)
            return gains(functools.partial(act_by, way))

        trust = trust.with_samples(gains(lambda x: self._draw_candidates(x, 1, False, rule)[0]))
        while (number := trust.to_try()) is not None:
            milder = trust.milder_than(number)
            if milder is not None:
                of_bolder, of_milder = gains_of(number), gains_of(milder)
                n = min(len(of_bolder), len(of_milder))  # in the same states
                more, error = mean_and_error((of_bolder[:n] - of_milder[:n]).double())
                if more <= error:
                    number = milder
            trust = trust.with_search(number, gains_of(number))
        return trust

    @property
    def _rewards_of_places(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """Returns what critics of places expect of the next one, None where there are none."""
        if not self._config.values_afterstates or 0.0 not in self._config.gammas:
            return None
        by, slots = self._config.gammas.index(0.0), self._slot_layout
        return lambda x, actions: self._modules.q_funcs.values_by(by, slots, x, actions).amin(0)

    @eval_api
    @torch.no_grad()
    def temporal_difference_errors(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `r + gamma V(s') - Q(s, a)` of scaled transitions, `(B,)`."""
        x: Any = batch.observations
        values: torch.Tensor = self._modules.value_func(batch.next_observations)
        values = self._modules.q_funcs.scale.restore(values.reshape(len(self._gammas), -1))
        weights = self._config.reward_weights or {"": 1.0}
        by_reward = values[: self._n_rewards]  # by the first discount
        values = (torch.tensor([*weights.values()], device=self.device)[:, None] * by_reward).sum(0)
        q = self.values_by_gamma(x, batch.actions).mean(0)
        return self.bootstrap(batch, values, self._config.gamma) - q

    @eval_api
    @torch.no_grad()
    def count_moves(self, x: torch.Tensor, states: torch.Tensor) -> float:
        """Returns how many moves a search values from a start; arguments as in `measure_trust`."""
        if self._config.search_sweeps == 0:
            return 0.0
        actions = self._likeliest(x, self.rule_in(states))
        conditionals = self.acting_policy.conditionals_of_any(x)
        return count_moves(conditionals, actions, self._config.action_flexibility)

    def _likeliest(self, x: torch.Tensor, rule: Rule | None) -> torch.Tensor:
        """Returns the policy's most likely actions, `(B, N)`."""
        return self.acting_policy.sample_several(x, 1, self._candidate_noise[:1], 0.0, rule)[0]

    def _count_alternatives(self, x: torch.Tensor, actions: torch.Tensor) -> float:
        if self._config.search_sweeps == 0:  # not every policy can tell
            return 0.0
        return count_alternatives(self.acting_policy.conditionals_of_any(x), actions)

    def trust_critics(self, trust: Trust) -> None:
        """Acts as measured from now on."""
        self._modules.trust.trust = trust
        self._compare_by(trust.best.gamma)

    def _compare_by(self, gamma: float) -> None:
        self._modules.q_funcs.act_by(self._config.gammas.index(gamma))


@dataclasses.dataclass()
class _IDQLArguments(IDQLConfig[Any], PolicyArguments):
    """What `IDQL(...)` takes."""


class IDQL(PolicyAlgo[IDQLImpl, IDQLConfig[TPolicy]], name="spin_d3rlpy_idql"):
    """IDQL with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = IDQLConfig
    impl_class = IDQLImpl
    _overfitting: OverfittingCheck | None = None
    # Of a run, while it lasts.
    _run: Run | None = None
    _imitation: ImitationAlone | None = None
    _passes: MostPasses | None = None  # of critics of afterstates

    @takes(_IDQLArguments)
    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)

    @property
    def _acts_by(self) -> frozenset[str]:  # type: ignore[override]
        names = super()._acts_by | {"q_funcs", "targ_q_funcs", "trust"}
        return names | {"state_model"} if self._config.values_afterstates else names

    @property
    def trust(self) -> Trust | None:
        """How far the critics are trusted, and by which figures; None if they were not tested."""
        return self.require_built().trust.trust

    def with_weights(self, weights: Weights, dataset: Any = None) -> Self:
        """Returns an algorithm that acts by other weights of the rewards, without training.

            algo.fit(dataset)  # from_table(..., rewards={"revenue": ..., "complaints": ...})
            careful = algo.with_weights({"revenue": 1, "complaints": -15})

        Its critics search by the weighted sum of the values, and where trust is measured
        (`held_out_share`), it is for these weights. It acts; its optimizers are new.

        Args:
            weights: by name of the rewards that this one was trained with; others count 0.
            dataset: whose episodes trust is measured on; by default those that `fit` held out.
                A loaded algorithm has none of its own. Take episodes that it was not trained on.

        Raises:
            ValueError: unknown names or weights, the values by each reward were not learned apart,
                or there are no episodes to measure trust on.
            RuntimeError: the networks are not built.
        """
        impl, config = self.require_built(), copy.deepcopy(self._config)
        if config.reward_weights is None:
            raise ValueError(
                "Expected an algorithm that learned values by several rewards apart: fit it to a "
                "dataset of from_table(..., rewards={...}), with joint_critic=True, expectile=0.5, "
                "monte_carlo_share=0 and no reward_scaler, as SPINIDQL(recipe='tuned') has it."
            )
        config.reward_weights = check_weights(weights, list(config.reward_weights))
        held_out = self._held_out if dataset is None else self._as_buffer(dataset)
        if held_out is None and config.held_out_share > 0.0:
            raise ValueError(
                "Whether to search by these weights is measured on logged episodes, and this "
                "algorithm holds out none: pass dataset= with episodes that it was not trained on."
            )
        other = type(self)(config, self._device, self._enable_ddp)
        other.create_impl(impl.observation_shape, 0)
        trained = impl.modules.get_torch_modules()
        for name, network in cast(Any, other._impl).modules.get_torch_modules().items():
            network.load_state_dict(trained[name].state_dict())
        for critic in other.require_built().critics:
            cast(JointCritic, critic).weigh([*config.reward_weights.values()])
        other.preparation = self.preparation
        other._held_out = held_out
        if self.asm is not None:
            other.keep_asm(self.asm)
        other.test_critics()
        return other

    def _as_buffer(self, dataset: Any) -> DeviceReplayBuffer:
        """Also weighs several rewards as this algorithm does."""
        buffer, config = super()._as_buffer(dataset), self._config
        named = buffer.named_rewards
        if self._impl is None and config.reward_weights is None and config.values_add_up:
            has_several = named is not None and len(named.names) > 1
            config.reward_weights = named.weights if named is not None and has_several else None
        if config.reward_weights is None:
            return buffer
        names = list(config.reward_weights)
        if named is None or list(named.names) != names:
            got = "one reward" if named is None else listed(map(shown, named.names))
            raise InvalidDatasetError(
                f"Expected a dataset with the rewards {listed(map(shown, names))}, in this order, "
                f"whose values {type(self).__name__} learns apart; got {got}."
            )
        is_same = named.weights == config.reward_weights
        return buffer if is_same else buffer.with_weights(config.reward_weights)

    def save_policy(self, fname: str, masks: bool = False) -> None:
        self.require_built().fix_search()
        super().save_policy(fname, masks)

    def predict_with(
        self,
        x: Observation,
        given: ArrayLike | None = None,
        allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
        milliseconds: float | None = None,
    ) -> NDArray:
        """Returns greedy actions `(B, N)` that keep to conditions, also ones not in the data.

        They keep the config's `rules` as well.

        Args:
            x: observations `(B, obs)`.
            given: `(B, N)` choices that are made already, -1 where open.
            allowed: a bool mask, a rule or several, see `spin_d3rlpy.asm.sampling.sample`.
            milliseconds: after which the best action so far is returned. The most likely one takes
                as long as it takes; other candidates, and steps of the search, begin only if they
                should end in time.

        Both `given` and a mask may be tensors, NumPy arrays or nested lists.

        Raises:
            InvalidObservationError: observations of the wrong shape, or not finite.
            InvalidActionSpaceError: `given` holds neither choices of this action space nor -1.
            NoAllowedChoiceError: no choice is left for a slot.
            ValueError: `allowed` is neither a bool mask of this action space nor a rule, the
                policy is not a structure model, or `milliseconds` is not above 0.
        """
        observations, impl = self.check_observations(x), self.require_built()
        if milliseconds is not None and not milliseconds > 0.0:
            raise ValueError(f"Expected milliseconds above 0, got {milliseconds!r}.")
        inputs, states = self.network_input(observations), self.states(observations)
        return impl.choose_with(inputs, given, allowed, milliseconds, states).cpu().numpy()

    def hold_out(self, buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
        """Keeps some episodes by which trust is measured, and returns the others."""
        share = self._config.held_out_share
        self._held_out = None
        if share == 0.0:
            return buffer
        if buffer.size() < 2:
            self.require_built().trust_critics(untested(self._config.searches))
            return buffer
        buffer, self._held_out = buffer.split(share)
        return buffer

    def test_critics(self) -> None:
        """Measures trust, without an effect on training but that of `spend_the_rest`.

        It looks at few states first, and at more only if they leave it open what is confirmed. How
        many follows from the moves that the policy leaves, not from the machine's time.
        """
        impl, held_out = self.require_built(), self._held_out
        if held_out is None:
            return
        with self._same_random_numbers():
            index, n_states, n_moves = self._steps_to_look_at(held_out)
            looked_at = index[:n_states]
            trust = impl.measure_trust(*self._held_out_states(looked_at[:FIRST_STATES]))
            if n_states > FIRST_STATES and not trust.is_clear:
                trust = impl.measure_trust(*self._held_out_states(looked_at))
            is_sequential = held_out.transition_count > held_out.size()  # episodes
            trust = dataclasses.replace(trust, is_sequential=is_sequential)
            if (model := self._believed_model(held_out)) is not None:
                starts, n_steps = model.starts(held_out, index, n_moves)
                trust = impl.compare_in_model(trust, self._held_out_states(starts)[0], n_steps)
        impl.trust_critics(trust)
        LOG.info("Critics on held-out episodes", trust=str(trust))

    def _believed_model(self, held_out: DeviceReplayBuffer) -> StateModel | None:
        """Returns the model of states, if there is one that tells held-out rewards.

        Where critics value afterstates it is they who tell the rewards, and data decided on that.
        """
        model = self.require_built().state_model
        if model is None or not model.is_learned:
            return None
        if self._config.values_afterstates:
            return model
        told = share_of_rewards(model, held_out, self._transform)
        if told >= LEAST_TOLD_REWARD:
            return model
        LOG.info("The model of states is not believed", share_of_held_out_rewards=round(told, 3))
        return None

    @contextmanager
    def _same_random_numbers(self) -> Iterator[None]:
        """Context with the same random numbers each time; training's own are restored after it."""
        device = torch.empty(0, device=self._device).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield

    def _steps_to_look_at(self, held_out: DeviceReplayBuffer) -> tuple[torch.Tensor, int, float]:
        """Returns numbers of all held-out steps in random order, and at how many tests look.

        Also how many moves a search values in the state of one of them.
        """
        index = torch.randperm(held_out.transition_count).to(held_out.device)
        n_moves = self.require_built().count_moves(*self._held_out_states(index[:LEAST_STATES]))
        n_states = min(len(index), states_to_look_at(len(self._nvec), n_moves))
        return index, n_states, n_moves

    def _held_out_states(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns states of held-out steps as networks and as rules see them, `(B, obs)` each."""
        assert self._held_out is not None
        rows = self._held_out.observation_index[index]
        observations = self._held_out.observations_at(rows)
        inputs = observations if self._transform is None else self._transform(observations)
        return inputs, self.states(observations)

    def checkpointed_parts(self) -> Mapping[str, Any]:
        """Also what critics' errors on held-out episodes were, and what remains to be trained."""
        config, parts = self._config, super().checkpointed_parts()
        self._overfitting = None
        can_measure = config.joint_critic and config.expectile == 0.5 and self._held_out is not None
        has_dropout = config.values_afterstates  # from the first step
        if self._imitation is not None:
            parts = {**parts, "imitation": self._imitation}
        if self._passes is not None:
            parts = {**parts, "passes": self._passes}
        if config.overfitting_dropout == 0.0 or not can_measure or has_dropout:
            return parts
        _, averages = self.require_built().critics
        self._overfitting = OverfittingCheck("The critic", averages, self._held_out_errors())
        return {**parts, "overfitting": self._overfitting}

    def _held_out_errors(self) -> Callable[[], torch.Tensor]:
        """Returns what measures the errors of values in held-out states."""
        held_out, impl = self._held_out, self.require_built()
        assert held_out is not None
        n = min(held_out.transition_count, CHECKED_ROWS)
        rows = torch.linspace(0, held_out.transition_count - 1, n, device=held_out.device).long()
        shortest, rewards = [min(self._config.gammas)], self._rewards_to_learn(held_out)
        returns = torch.cat([held_out.completed_returns(one, shortest) for one in rewards])
        x, _ = self._held_out_states(rows)
        actions, returns = held_out.actions[rows].long(), returns[:, rows]
        return lambda: impl.errors_of_values(x, actions, returns)

    def sample_and_update(
        self, source: BatchSource, measure: Timer = no_timer
    ) -> dict[str, torch.Tensor]:
        """Also checks whether the critics overfit; trains the policy alone once they are given up.

        Or once they have made all their passes. Structure models return `asm_loss` and
        `asm_accuracy` then.
        """
        if self._passes is not None and self._has_ended(self._passes):
            return self._finish_step({})
        if self._imitation is not None and self._imitation.has_begun:
            return self._imitate(self._imitation, source, measure)
        check, rate = self._overfitting, self._config.overfitting_dropout
        if check is None:
            return super().sample_and_update(source, measure)
        self.require_built().dropout_rate = rate if check.is_to_drop_out else 0.0
        metrics = super().sample_and_update(source, measure)
        if check.after_step(self.grad_step, self._progress):
            online, averages = self.require_built().critics
            online.load_state_dict(averages.state_dict())
        return metrics

    def _has_ended(self, passes: MostPasses) -> bool:
        """Ends the training of critics after these passes; returns whether nothing else is trained.

        Until then their learning rates follow the schedule as if the run ended there.
        """
        impl, alone = self.require_built(), self._imitation
        progress = passes.progress(self.grad_step, self._progress)
        if progress < 1.0:
            impl.follow(passes.schedule, progress)
            return False
        if alone is not None and alone.is_possible:
            alone.has_begun = True
            return False
        impl.trains_critics = False
        return not self.policy.trainable_modules()

    def _imitate(
        self, alone: ImitationAlone, source: BatchSource, measure: Timer
    ) -> dict[str, torch.Tensor]:
        impl = self.require_built()
        is_first, impl.trains_critics = impl.trains_critics, False
        # Such steps cost something else, which a clock of work is to count once more.
        with self._budget_of_run.preparing() if is_first else nullcontext():
            if alone.pretraining is None:
                return super().sample_and_update(source, measure)
            with measure("algorithm_update"):
                return self._finish_step(dict(alone.pretraining.update(self._progress)))

    def before_evaluation(self) -> None:
        """Also acts by what further pre-training has learned by now."""
        super().before_evaluation()
        self._take_over_model()

    def _take_over_model(self) -> None:
        alone = self._imitation
        if alone is None or alone.pretraining is None or not alone.has_begun:
            return
        alone.pretraining.hand_over()
        model = self.policy
        if self._asm is not None and isinstance(model, JointPolicy):
            self._asm.load_state_dict(model.asm.state_dict())

    def spend_the_rest(self) -> float:
        """Gives up critics that are far from confirming a search: the policy gets their time."""
        alone, held_out, impl = self._imitation, self._held_out, self.require_built()
        if alone is None or held_out is None or not alone.may_give_up or alone.has_begun:
            return super().spend_the_rest()
        with self._same_random_numbers():
            index, n_states, _ = self._steps_to_look_at(held_out)
            trust = impl.measure_trust(*self._held_out_states(index[:n_states][:FIRST_STATES]))
        alone.may_give_up = trust.acts_by != "search"
        if trust.is_out_of_reach:
            alone.has_begun = True
            LOG.info("The rest of the time goes to imitation", reason=str(trust))
        has_model = self._believed_model(held_out) is not None
        return n_states / trust.states + (MODEL_TEST if has_model else 0.0)

    def frozen_state(self) -> object:
        """Also how much the critics drop out, and whether they are trained."""
        impl = self.require_built()
        return super().frozen_state(), impl.dropout_rate, impl.trains_critics

    def end_run(self) -> None:
        super().end_run()
        self._take_over_model()  # a finished run that is resumed has no further evaluation
        trust = self.trust
        is_alone = trust is not None and trust.acts_by != "search"
        if trust is not None and is_alone and 0.0 < trust.alternatives < NEARLY_DETERMINISTIC:
            LOG.warning(
                "The data hold one choice for a slot nearly everywhere, so nothing can be known to "
                "be better. Collect data with exploration.",
                alternatives=round(trust.alternatives, 2),
            )
        layout, held_out = self._config.layout, self._held_out
        if layout is not None and held_out is not None:
            errors_of = self.require_built().temporal_difference_errors
            warn_of_alike_choices(layout, self._nvec, held_out, self.scale, errors_of)

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """Nothing imitates with a policy that is not trained: no batch for it is drawn."""
        self._imitation = self._create_imitation(buffer)
        if self._config.values_afterstates:
            schedule = Schedule(self._config.lr_schedule, self._config.lr_warmup)
            n_rows, step = buffer.transition_count, self.grad_step
            self._passes = MostPasses(MOST_PASSES, n_rows, self.batch_size, step, schedule)
        is_used = self.policy.trainable_modules() or self._config.imitation_weights.critics
        return super().batch_source(buffer) if is_used else buffer

    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource:
        self._progress = progress
        return super().batch_source_at(source, progress)

    def begin_run(self, run: Run) -> None:
        super().begin_run(run)
        self._run, self._has_own_model = run, not self.policy.is_pretrained

    def forget_recording(self) -> None:
        super().forget_recording()
        self._imitation = self._run = self._passes = None
        self.require_built().trains_critics = True

    def _create_imitation(self, buffer: DeviceReplayBuffer) -> ImitationAlone | None:
        """Returns what can be trained alone in the rest of a run for a time; None without trust.

        Critics of several rewards are for other weights, too: these need not confirm the same.
        """
        config, run, policy = self._config, self._run, self.policy
        if run is None or run.budget.seconds is None or self._held_out is None:
            return None
        if config.search != "auto" or config.n_rewards > 1:
            return None
        if not isinstance(policy, JointPolicy):
            return ImitationAlone(None, is_possible=True)
        further = FurtherPretraining(policy, lambda: self.stage_context(buffer, run))
        return ImitationAlone(further, is_possible=self._has_own_model)

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Also measures returns, which the critics learn in standardized form."""
        super().train_first_stages(buffer, run)
        if self._grad_step > 0:
            return
        rewards = self._rewards_to_learn(buffer)
        for critic in self.require_built().critics:
            critic.fit_scale(buffer, rewards, self._config.gammas)
        self._learn_states(buffer, run)

    def _learn_states(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Trains the model of what follows an action, if policies can be compared in it."""
        impl = self.require_built()
        model = impl.state_model
        if model is None or model.is_learned or not self._is_free_in(buffer):
            return
        if self._config.values_afterstates or not ends_by_chance(buffer):
            n_updates = self._config.state_model_updates
            learn(model, buffer, n_updates, run, self._transform, self._held_out)

    def _rewards_to_learn(self, buffer: DeviceReplayBuffer) -> torch.Tensor:
        """Returns the rewards whose values critics learn apart, scaled, `(R, n)`."""
        scaler, named = self._config.reward_scaler, buffer.named_rewards
        if self._config.reward_weights is not None and named is not None:
            return named.values.T
        rewards = buffer.rewards if scaler is None else scaler.transform(buffer.rewards)
        return rewards[None]

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config, size = self._config, cast_flat_shape(observation_shape)
        policy = self.create_policy(observation_shape)
        actor_optim = self.create_actor_optim(policy)
        model = self._create_state_model(size[0])
        known = model if config.values_afterstates else None
        q_funcs = self._create_critic(observation_shape, known)
        values = ValueFunction(
            size, config.value_encoder_factory, len(config.gammas) * config.n_rewards
        )
        value_func = values.to(self._device)
        trust = TrustSwitch(config.searches, is_tested=config.held_out_share > 0.0)
        modules = IDQLModules(
            policy=policy,
            actor_optim=actor_optim,
            q_funcs=q_funcs,
            targ_q_funcs=self._create_critic(observation_shape, known),
            critic_optim=create_critic_optim(self, q_funcs, AFTERSTATES_RATE if known else 1.0),
            value_func=value_func,
            value_optim=create_critic_optim(self, value_func),
            trust=trust.to(self._device),
            state_model=model,
        )
        self._impl = self.impl_class(observation_shape, modules, config, self._device)

    def _create_critic(self, shape: Shape, model: StateModel | None) -> ActionCritic:
        config, factory = self._config, self._config.critic_encoder_factory
        if not config.joint_critic:
            return create_critic(config, factory, shape, self._device)
        n_discounts, size = len(config.gammas), cast_flat_shape(shape)
        critic = JointCritic(
            size,
            factory,
            self._nvec,
            config.n_critics,
            config.layout,
            n_discounts,
            config.n_rewards,
            RETURN_BINS if model is not None else 0,
            None if model is None else functools.partial(Afterstates, model),
        )
        return critic.to(self._device)

    def adopt_data(self, buffer: DeviceReplayBuffer) -> None:
        """Also decides whether critics value where an action leads."""
        super().adopt_data(buffer)
        config, size = self._config, buffer.observation_size
        if config.afterstates is False:
            return
        is_free = self._models_states_of(size) and self._is_free_in(buffer)
        if config.afterstates == "auto" and is_free and ends_by_chance(buffer):
            create = cast(Callable[[], StateModel], lambda: self._create_state_model(size))
            config.afterstates = can_foresee(create, buffer, self._transform)
        else:
            config.afterstates = config.afterstates is True and is_free

    def _is_free_in(self, buffer: DeviceReplayBuffer) -> bool:
        """Whether policies can act in states that are not in the data.

        Masks belong to the data's own states, and rules may read what only these hold exactly.
        """
        rule = self._config.rule
        return buffer.masks is None and not (rule is not None and sees_state(rule))

    def _models_states_of(self, observation_size: int) -> bool:
        return self._config.models_states and not isinstance(observation_size, RowSize)

    def _create_state_model(self, observation_size: int) -> StateModel | None:
        """Returns a new model of what follows an action; None where nothing is tried in it."""
        config = self._config
        if not self._models_states_of(observation_size):
            return None
        factory = config.critic_encoder_factory
        model = StateModel(observation_size, factory, self._nvec, config.layout)
        return model.to(self._device)

    def create_actor_optim(self, policy: Policy) -> OptimizerWrapper | None:
        """A structure model is not trained further: there may be no optimizer."""
        return super().create_actor_optim(policy) if policy.trainable_modules() else None
