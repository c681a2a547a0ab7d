"""IDQL as users call it: what is trained in which order, and what trust is measured by."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self, cast

import torch
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.logging import LOG
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.types import NDArray, Observation, Shape

from spin_d3rlpy.algos.actor_critic import create_critic, create_critic_optim
from spin_d3rlpy.algos.base import no_timer
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.algos.fit import Timer
from spin_d3rlpy.algos.idql.config import IDQLConfig
from spin_d3rlpy.algos.idql.impl import IDQLImpl, IDQLModules
from spin_d3rlpy.algos.imitation_alone import ImitationAlone
from spin_d3rlpy.algos.policy import PolicyAlgo, PolicyArguments
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.conditions import ArrayLike
from spin_d3rlpy.asm.rules import AnyRule, sees_state
from spin_d3rlpy.critics.base import ActionCritic, ValueFunction
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.batches import BatchSource
from spin_d3rlpy.data.buffer.named_rewards import Weights, check_weights
from spin_d3rlpy.data.buffer.sampler import persistence_of
from spin_d3rlpy.data.coverage import NEARLY_DETERMINISTIC
from spin_d3rlpy.errors import InvalidDatasetError, listed, shown
from spin_d3rlpy.images import RowSize
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.policies.further_pretraining import FurtherPretraining
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.policies.own_columns import find_own_columns
from spin_d3rlpy.policies.stages import StageContext
from spin_d3rlpy.search.afterstates import Afterstates
from spin_d3rlpy.search.agreement import FIRST_STATES, SECOND_STATES, states_to_look_at
from spin_d3rlpy.search.alike_choices import warn_of_alike_choices
from spin_d3rlpy.search.standstill import Standstill, standstill
from spin_d3rlpy.search.state_model import StateModel, ends_by_chance, learn
from spin_d3rlpy.search.state_model_checks import (
    LEAST_TOLD_BESIDE_ENDS,
    LEAST_TOLD_REWARD,
    can_foresee,
    can_tell_rewards,
    returns_of_logged_actions,
    share_of_rewards,
)
from spin_d3rlpy.search.trust import Trust, untested
from spin_d3rlpy.search.trust_bounds import ALL_UNTOLD, LEAST_STATES, LEAST_TOLD_RETURNS
from spin_d3rlpy.search.trust_switch import TrustSwitch
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.overfitting import CHECKED_ROWS, OverfittingCheck
from spin_d3rlpy.training.passes import MostPasses
from spin_d3rlpy.training.schedules import Schedule

BINS_RATE = 2.0  # times the critics' learning rate: cross-entropy learns slowly
# Of hidden layers, of every other critic of afterstates. With it a network knows what rare returns
# have in common, and without it each of them by heart; the least value counts.
AFTERSTATES_DROPOUT = 0.5
# Over the data, of critics of afterstates. What ends an episode is rare: after more passes they
# know each such place by heart, and take places nearby that they have not seen for safe. CoNE with
# 50 % of pits returned -18 after 60 passes and -129, a pit, after 550 (notebook, "More steps").
MOST_PASSES = 60
MODEL_TEST = 3.0  # times a test in 64 states, about, which policies take in a model of states


@dataclasses.dataclass()
class _IDQLArguments(IDQLConfig[Any], PolicyArguments):
    """What `IDQL(...)` takes."""


class IDQL(PolicyAlgo[IDQLImpl, IDQLConfig[TPolicy]], name="spin_d3rlpy_idql"):
    """IDQL with any policy; `spin_d3rlpy.algos.named` has a name for each."""

    config_class = IDQLConfig
    impl_class = IDQLImpl
    _overfitting: OverfittingCheck | None = None
    _standstill = Standstill(0.0, False)  # what it is like in the log
    _sticks_together = False  # whether things that are alike stay so there
    _persistence = 0.0  # of the log's returns
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
        if held_out is not None:
            other._look_at(held_out)
        if self.asm is not None:
            other.keep_asm(self.asm)
        other.test_critics()
        return other

    def _build_with_buffer(
        self, buffer: DeviceReplayBuffer, run_seconds: float | None = None
    ) -> None:
        """Also looks for columns of slots' own; scalers depend on them."""
        config = self._config
        is_asked = config.find_own_columns and config.layout is None and self._impl is None
        has_numbers = config.observation_layout is None and config.history == 1
        if is_asked and has_numbers and self.asm is None:
            config.layout = find_own_columns(buffer, run_seconds)
        super()._build_with_buffer(buffer, run_seconds)

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
        self._standstill, self._persistence = Standstill(0.0, False), 0.0
        self._sticks_together = False
        if share == 0.0:
            return buffer
        if buffer.size() < 2:
            self.require_built().trust_critics(untested(self._config.searches))
            return buffer
        self._look_at(buffer)  # nothing is learned from it, so of all episodes
        buffer, self._held_out = buffer.split(share)
        return buffer

    def _look_at(self, buffer: DeviceReplayBuffer) -> None:
        """Measures where the log stays as it is, and how far its returns persist."""
        self._standstill = standstill(buffer)
        alike = self.require_built().alike_slots
        self._sticks_together = alike is not None and alike.sticks_together(buffer)
        measured = persistence_of(buffer.stored)
        self._persistence = 0.0 if math.isnan(measured) else measured

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
            # Of choosing among samples nothing tells whether few states are enough.
            is_clear = trust.is_clear and not self._standstill.is_trap
            if n_states > FIRST_STATES and not is_clear:
                trust = impl.measure_trust(*self._held_out_states(looked_at))
            choices = math.exp(sum(map(math.log, self._nvec)) / len(self._nvec))
            trust = dataclasses.replace(
                trust,
                is_sequential=held_out.is_sequential,
                choices=choices,
                room=self._room(held_out),
                stays=self._standstill.share,
                is_trap=self._standstill.is_trap,
                sticks_together=self._sticks_together,
                persistence=self._persistence,
            )
            model, told = impl.state_model, self._told_by_model(held_out)
            if model is not None and told >= self._least_told(model):
                starts, n_steps = model.starts(held_out, index, n_moves)
                of_log = model.starts_of_log(held_out, index)
                trust = self._with_model(trust, held_out, told, *of_log)
                trust = impl.compare_in_model(trust, self._held_out_states(starts)[0], n_steps)
        impl.trust_critics(trust)
        LOG.info("Critics on held-out episodes", trust=str(trust))

    def _room(self, held_out: DeviceReplayBuffer) -> float:
        """Returns what the best episode returned more than the mean in each step of a mean one."""
        scaler, rewards = self._config.reward_scaler, held_out.rewards
        rewards = rewards if scaler is None else scaler.transform(rewards)
        returns = held_out.with_rewards(rewards).returns()
        n_steps = held_out.transition_count / held_out.size()
        return float(returns.max() - returns.mean()) / n_steps

    def _told_by_model(self, held_out: DeviceReplayBuffer) -> float:
        """Returns the share of held-out rewards that the model of states tells; 0 without one.

        Where critics value afterstates it is they who tell the rewards, and data decided on that.
        """
        model = self.require_built().state_model
        if model is None or not model.is_learned:
            return 0.0
        if self._config.values_afterstates:
            return 1.0
        told = share_of_rewards(model, held_out, self._transform)
        LOG.info("The model of states", share_of_held_out_rewards=round(told, 3))
        return told

    def _least_told(self, model: StateModel) -> float:
        """Returns the share of rewards that a model of states has to tell to be believed."""
        return LEAST_TOLD_BESIDE_ENDS if model.is_apart else LEAST_TOLD_REWARD

    def _with_model(
        self,
        trust: Trust,
        held_out: DeviceReplayBuffer,
        told: float,
        starts: torch.Tensor,
        n_steps: torch.Tensor,
    ) -> Trust:
        """Adds how far the model of states can be trusted.

        Args:
            trust: in critics.
            held_out: transitions.
            told: share of their rewards that it tells.
            starts: of logged actions, as `StateModel.starts_of_log` has them.
            n_steps: the same.
        """
        model, gamma = self.require_built().state_model, self._config.gamma
        assert model is not None
        if self._config.values_afterstates:
            return dataclasses.replace(trust, untold=0.0, foresees=True)
        returns = returns_of_logged_actions(
            model, held_out, starts, n_steps, gamma, self._transform
        )
        untold = ALL_UNTOLD if returns.are_optimistic else 1.0 - told
        foresees = returns.share_told >= LEAST_TOLD_RETURNS and not model.has_ends
        LOG.info(
            "Logged actions in the model of states",
            share_of_held_out_returns=round(returns.share_told, 3),
        )
        return dataclasses.replace(
            trust, untold=untold, foresees=foresees, tells_ends=model.has_ends
        )

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
        rows = held_out.spread_index(CHECKED_ROWS)
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
        n_seen = 0
        with self._same_random_numbers():
            index, n_states, _ = self._steps_to_look_at(held_out)
            for most in (FIRST_STATES, SECOND_STATES):
                trust = impl.measure_trust(*self._held_out_states(index[:n_states][:most]))
                trust = dataclasses.replace(
                    trust, is_trap=self._standstill.is_trap, persistence=self._persistence
                )
                n_seen += trust.states
                if n_states <= most or trust.is_out_of_reach or not trust.looks_out_of_reach:
                    break
        alone.may_give_up = not trust.needs_critics
        if trust.is_out_of_reach:
            alone.has_begun = True
            why = trust if trust.is_mixed else dataclasses.replace(trust, is_trap=False)
            LOG.info("The rest of the time goes to imitation", reason=str(why))
        has_model = self._told_by_model(held_out) >= LEAST_TOLD_REWARD
        in_model = MODEL_TEST * min(n_states, FIRST_STATES) if has_model else 0.0
        return (n_states + in_model) / n_seen  # times as long as this test

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

    def stage_context(self, buffer: DeviceReplayBuffer, run: Run) -> StageContext:
        """Without codes of values where critics value afterstates.

        Their search asks what the log supports at all, and a model that knows each place apart
        says so of few choices: with codes CoNE's rows of 5, 25 and 50 % returned -16.2, -15.9 and
        -17.6, and one cell of 10 % was a pit (-13.9, -15.4 and -16.7 without, and none).
        """
        context = super().stage_context(buffer, run)
        has_codes = not self._config.values_afterstates
        return dataclasses.replace(context, has_value_codes=has_codes)

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
        Those of single decisions need not know what follows: with 47 and 44 % confirmed after a
        quarter (jobs, prices) they pay in the end.
        """
        config, run, policy = self._config, self._run, self.policy
        if run is None or run.budget.seconds is None or self._held_out is None:
            return None
        if config.search != "auto" or config.n_rewards > 1 or not buffer.is_sequential:
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
        """Trains the model of what follows an action, if policies can be compared in it.

        Where critics value what it foresees, it learns which places are fatal ends, too.
        """
        impl = self.require_built()
        model = impl.state_model
        if model is None or model.is_learned or not self._is_free_in(buffer):
            return
        is_apart = not self._config.values_afterstates
        can_tell = can_tell_rewards(buffer) and not self._standstill.is_trap
        if self._config.values_afterstates or can_tell:
            n_updates = self._config.state_model_updates
            held_out = self._held_out
            learn(model, buffer, n_updates, run, self._transform, held_out, is_apart)
        if self._config.values_afterstates:
            with run.budget.counting():
                rewards = self._rewards_to_learn(buffer)[0]
                model.fit_fatal_ends(buffer, rewards, self._transform or (lambda x: x))

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
            critic_optim=create_critic_optim(self, q_funcs, BINS_RATE if config.n_bins else 1.0),
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
            config.n_bins,
            None if model is None else functools.partial(Afterstates, model),
            0.0 if model is None else AFTERSTATES_DROPOUT,
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
