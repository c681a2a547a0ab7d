"""The update of IDQL, and how it acts: by candidates, searches and trust in them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch, eval_api

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.algos.actor_critic import ActorCriticImpl, ActorCriticModules
from spin_d3rlpy.algos.idql.config import IDQLConfig
from spin_d3rlpy.asm.conditions import ArrayLike, as_conditions
from spin_d3rlpy.asm.decoding import Conditionals
from spin_d3rlpy.asm.rules import OPEN, AnyRule, Rule, conditions_of
from spin_d3rlpy.critics.base import ActionCritic, ValueFunction, best_of, expectile_loss
from spin_d3rlpy.critics.fatal_ends import are_fatal
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data.buffer.batches import imitation_batch, named_rewards_of
from spin_d3rlpy.images import encode_images
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies.base import candidate_noise
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.search.agreement import count_alternatives, count_moves, measure_trust
from spin_d3rlpy.search.alike_slots import AlikeSlots, slots_can_be_alike
from spin_d3rlpy.search.deadline import Deadline
from spin_d3rlpy.search.moves import Conditions, improve
from spin_d3rlpy.search.starts import best_different, count_starts
from spin_d3rlpy.search.state_model import PARTS, Played, StateModel
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_bounds import SURE_IN_MODEL
from spin_d3rlpy.search.trust_figures import Search, mean_and_error
from spin_d3rlpy.search.trust_switch import TrustSwitch
from spin_d3rlpy.training.averages import polyak_update
from spin_d3rlpy.training.schedules import Schedule
from spin_envs import ActionLayout

# Candidates that `predict` compares at once, of all states; more leave the processor's cache.
CANDIDATES_AT_ONCE = 2048
# Of the policy, whose values' mean is the state's. Where policies can stand still the best of as
# many acts (of 8 it returns 4 in place of 2 on aisles, the same on rails, 2.0 and not 2.6 on arm).
VALUE_SAMPLES = 4
SAMPLES = 64  # noises, of which imitation by samples takes one in each state


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
        self._fixed_samples, self._fixed_draws, self._fixed_leaves = 0, False, False
        layout = self._config.layout or ActionLayout()
        can_be_alike = slots_can_be_alike(layout)
        self.alike_slots = AlikeSlots(layout).to(self.device) if can_be_alike else None
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
        targets = self._targets_of_critics(batch, next_values)
        critic_loss = critic.loss(predictions, targets, self._fatal_in(batch))
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

    def _fatal_in(self, batch: TorchMiniBatch) -> torch.Tensor | None:
        """Returns which steps are fatal ends `(B,)`, for critics that tell these apart."""
        if not self._config.values_afterstates:
            return None
        assert self.state_model is not None
        bound = self.state_model.fatal_ends.bound
        return are_fatal(batch.rewards.squeeze(-1), batch.terminals.squeeze(-1), bound)

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
        search = self.acting_search
        samples = 0 if search is not None else self._imitating_samples
        noise, temperature = self._fixed_noise(x, 1, samples)
        # The surest one, which comes back in any case.
        surest = temperature * noise[0].expand(len(x), -1)
        actions = policy.decode(x, surest, masked, fixed)[None]
        if search is None and samples <= 1:
            return actions[0]
        more = (samples if search is None else self._config.n_action_samples) - 1
        deadline.guess = deadline.spent
        if deadline.is_set:  # they may take half of the time that is left
            more = min(more, int(max(0.0, 0.5 * deadline.left) / deadline.spent))
        if more > 0:
            noise, temperature = self._fixed_noise(x, more + 1, samples)
            repeated = None if fixed is None else fixed.repeat(more, 1)
            if search is not None and self._config.search_sweeps > 0:
                others = policy.draft_several(x, more, noise[1:], temperature, masked, repeated)
            else:
                by_row = noise[1:] if noise.dim() == 3 else noise[1:, None].expand(-1, len(x), -1)
                noises = temperature * by_row.flatten(0, 1)
                others = policy.decode(x.repeat(more, 1), noises, masked, repeated)
                others = others.unflatten(0, (more, -1))
            actions = torch.cat([actions, others])
        if search is None:
            return self._best_sample(x, actions)
        starts = self._starts(actions, self._values_of_candidates(x, actions))
        conditions = Conditions(search.action_flexibility, mask, rule, fixed)
        found = self._search(x, starts, slice(None), conditions, deadline)
        return self._where_known(x, found, lambda: actions[0])

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
        self._fixed_search, self._fixed_samples = self.acting_search, self._imitating_samples
        self._fixed_draws = self._draws_where_alike
        self._fixed_leaves = self._leaves_unknown_states

    def _choose(
        self,
        x: torch.Tensor,
        has_fixed_noise: bool,
        temperature: float,
        rule: Rule | None = None,
    ) -> torch.Tensor:
        search = self.acting_search
        samples = 0 if search is not None else self._imitating_samples
        n = max(1, samples) if search is None else self._config.n_action_samples
        searches = search is not None and self._config.search_sweeps > 0
        is_draft = searches and n > 1 and temperature == 0.0
        actions = self._draw_candidates(x, n, has_fixed_noise, rule, is_draft, samples)
        if temperature > 0.0:
            values = self._values_of_candidates(x, actions).amin(0, keepdim=True) / temperature
            return best_of(actions, values + gumbel_noise(values))
        if search is None:
            return self._best_sample(x, actions)
        starts = self._starts(actions, self._values_of_candidates(x, actions))
        conditions = Conditions(search.action_flexibility, rule=rule)
        found = self._search(x, starts, slice(None), conditions)
        return self._where_known(x, found, lambda: self._likeliest(x, rule))

    def _where_known(
        self, x: torch.Tensor, actions: torch.Tensor, likeliest: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Returns actions `(B, N)` of a search, but the most likely ones in unknown states."""
        model = self.state_model
        if model is None or not self._leaves_unknown_states:
            return actions
        are_unknown = model.are_unknown(x)
        if not is_exporting() and not are_unknown.any():
            return actions
        return torch.where(are_unknown[:, None], likeliest(), actions)

    @property
    def _leaves_unknown_states(self) -> bool:
        """Whether a search leaves states to imitation that the data do not have.

        Not critics of afterstates: they know what unseen places have in common with others.
        """
        if is_exporting():
            return self._fixed_leaves
        model = self.state_model
        return model is not None and model.is_learned and not self._config.values_afterstates

    def _draw_candidates(
        self,
        x: torch.Tensor,
        n: int,
        has_fixed_noise: bool,
        rule: Rule | None,
        is_draft: bool = False,
        samples: int = 0,
    ) -> torch.Tensor:
        """Returns `(n, B, N)`; drafts if a search improves the best one.

        For `samples` see `_imitating_samples`.
        """
        policy = self.acting_policy
        draw = policy.draft_several if is_draft else policy.sample_several
        if has_fixed_noise:
            noise, temperature = self._fixed_noise(x, n, samples)
            return draw(x, n, noise, temperature, rule)
        return draw(x, n, None, self._config.candidate_temperature, rule)

    @property
    def _imitating_samples(self) -> int:
        """How many samples are drawn to imitate, of which the best acts.

        0 where the most likely action imitates, or a search acts.
        """
        if is_exporting():
            return self._fixed_samples
        trust = self.trust.trust
        if self._config.search != "auto" or trust is None or trust.acts_by != "samples":
            return 0
        return VALUE_SAMPLES if trust.chooses_samples else 1

    @property
    def _draws_where_alike(self) -> bool:
        """Whether slots that nothing tells apart draw their choices: where imitation acts."""
        if is_exporting():
            return self._fixed_draws
        trust = self.trust.trust
        if self._config.search != "auto" or trust is None or trust.acts_by != "imitation":
            return False
        return trust.sticks_together

    def _fixed_noise(self, x: torch.Tensor, n: int, samples: int) -> tuple[torch.Tensor, float]:
        """Returns noise that never changes, of n candidates, and their temperature.

        The noise is `(n, S)`. A single candidate by the same one would be the same deviation from
        the data's usual actions in all states. So it has none, or where samples imitate noise of
        each state, `(n, B, S)`; or of the slots there that nothing tells apart.
        """
        temperature = self._config.candidate_temperature
        if samples > 0:
            places = self._random_places(x, n) if self._can_stay else self._places_by_state(x, n)
            noise = self._sample_noise.index_select(0, places.flatten())
            return noise.unflatten(0, (n, -1)), temperature
        if self.alike_slots is not None and self._draws_where_alike:
            draws = self.alike_slots(x).repeat_interleave(self._slot_layout.max_choices, dim=1)
            noise, temperature = self._fixed_noise(x, n, 1)
            return noise * draws, temperature
        return self._candidate_noise[:n], temperature if n > 1 else 0.0

    @property
    def _can_stay(self) -> bool:
        """Whether the same action may be taken again and again, by a state or by things alike.

        A file has no random numbers, so that its samples are a function of the state there, too.
        """
        trust = None if is_exporting() else self._modules.trust.trust
        return trust is not None and (trust.stays > 0.0 or trust.sticks_together)

    def _random_places(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """Returns which samples are taken in each state `(n, B)`, new ones in each call."""
        return torch.randint(SAMPLES, (n, len(x)), device=x.device)

    def _places_by_state(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """Returns the same as a function of the state, and unrelated in others."""
        numbers = x.flatten(1).double()
        # Multiples of the golden ratio, less whole numbers: no two columns count alike.
        multiples = torch.arange(1, numbers.shape[1] + 1, device=x.device).double() * 0.6180339887
        position = (numbers * (1.0 + multiples - multiples.floor())).sum(1) * 1000.0
        first = ((position - position.floor()) * SAMPLES).long().clamp(max=SAMPLES - 1)
        apart = torch.arange(n, device=x.device)[:, None] * (SAMPLES // n)
        return (first + apart) % SAMPLES

    def _values_of_candidates(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values `(E, A, B)` of actions `(A, B, N)`, by the discount that the search acts by."""
        if len(actions) == 1:  # nothing is compared
            return torch.zeros(1, *actions.shape[:2], device=actions.device)
        # In a file, -1 is no choice.
        return self.q_values(self._modules.q_funcs, x, actions.clamp(min=0))

    def _best_sample(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the best of actions `(A, B, N)` by `gamma`, as `measure_trust` chooses."""
        if len(actions) == 1:
            return actions[0]
        return best_of(actions, self.values_by_gamma(x, actions.clamp(min=0)))

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
        the next one, in the order of `Trust.compared`; of two searches one returns more by a
        standard error.

        Args:
            trust: as the critics say.
            x: the networks' input in the states to start from, `(B, obs)`.
            n_steps: that policies act for in each, `(B,)`.
        """
        model, gamma, rule = self.state_model, self._config.gamma, self.rule_and(None)
        assert model is not None
        size = math.ceil(len(x) / PARTS)
        starts = [*zip(x.split(size), n_steps.split(size), strict=True)]

        def play(act: Callable[[torch.Tensor], torch.Tensor], part: int) -> Played:
            return model.play(act, *starts[part], gamma, self._rewards_of_places)

        @functools.cache
        def of_imitation(part: int) -> Played:
            return play(lambda x: self._likeliest(x, rule), part)

        def gains(act: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, float]:
            """From more states as long as it is not sure that a gain is one."""
            found, beyond = torch.empty(0, device=x.device), torch.empty(0, device=x.device)
            for part in range(len(starts)):
                played = play(act, part)
                found = torch.cat([found, played.returns - of_imitation(part).returns])
                beyond = torch.cat([beyond, played.beyond])
                mean, error = mean_and_error(found.double())
                if mean <= 0.0 or mean > SURE_IN_MODEL * error:
                    break
            return found, float(beyond.mean())

        def act_by(way: Search, x: torch.Tensor) -> torch.Tensor:
            likeliest = self._likeliest(x, rule)
            if self._config.search_sweeps == 0:  # the best candidate acts
                drawn = self._draw_candidates(x, self._config.n_action_samples, True, rule)
                found = self._starts(drawn, self._values_of_candidates(x, drawn))[0]
            else:  # from imitation's action alone: other candidates take most of the time
                conditions = Conditions(way.action_flexibility, rule=rule)
                found = self._search(x, likeliest[None], slice(None), conditions)
            return self._where_known(x, found, lambda: likeliest)

        @functools.cache
        def gains_of(number: int) -> tuple[torch.Tensor, float]:
            way = trust.searches[number]
            self._compare_by(way.gamma)
            return gains(functools.partial(act_by, way))

        def returns_more(bolder: int, milder: int) -> bool:
            of_bolder, of_milder = gains_of(bolder)[0], gains_of(milder)[0]
            n = min(len(of_bolder), len(of_milder))  # in the same states
            more, error = mean_and_error((of_bolder[:n] - of_milder[:n]).double())
            return more > error

        of_samples, _ = gains(lambda x: self._draw_candidates(x, 1, False, rule)[0])
        trust = trust.with_imitation(of_samples, float(of_imitation(0).beyond.mean()))
        return trust.compared(
            lambda it, number: it.with_search(number, *gains_of(number)), returns_more
        )

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
