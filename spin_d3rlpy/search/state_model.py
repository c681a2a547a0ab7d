"""A model of what follows an action, in which policies can act without an environment.

Critics tell what one action gains if the data's policy chooses all later ones. A search acts this
way in every step, and can reach states that the data's policy never reaches: machines that nobody
maintains, because in the data somebody always does it next. A model of the states shows this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import skip_init

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.critics.fatal_ends import (
    MOST_NUMBERS,
    MOST_ROWS,
    FatalEnds,
    are_fatal,
    bound_of_fatal_ends,
)
from spin_d3rlpy.critics.joint import ActionSums, JointQFunction, encoder_of_actions
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast.precision import backward
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.search.places import KnownPlaces, Places
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.loop import Loop, Metrics, Run
from spin_d3rlpy.training.overfitting import CHECKED_ROWS, OverfittingCheck
from spin_d3rlpy.training.schedules import Schedule
from spin_envs import ActionLayout

FITTED_ROWS = 65_536  # transitions whose moments and bounds the model takes
BATCH_SIZE, LEARNING_RATE = 256, 4e-3
BUDGET_SHARE = 0.15  # of the seconds that the first stages leave
# Once it overfits. Trader's told 0 % of held-out rewards, which are mostly noise; so it tells 18 %.
DROPOUT = 0.3
MOST_SURVIVED = 0.1  # of fatal ends, that led to places which other steps survived
# By which a sum of log-odds tells what places are that the log has not been at. Where distances are
# exact, known places lead into pits in five of eight cells of CoNE that have 4 to 7 fatal ends (in
# three if none is known), and in none of 112 that have more (`tests/measure/fatal_ends.py`).
LEAST_FATAL = 10
# That policies act for. A humanoid that searches for the next rewards returns more than imitation
# for 32 steps from its first states, and less for 64: it does not get up.
STEPS = 64
RARE_SHARE = 0.005  # of a column's numbers at either end, beyond which little is known
# Of a column's standard deviation, by which the model may be beyond them for want of precision.
PRECISION = 0.1
LEAST_STARTS, MOST_STARTS = 6, 16  # states that they start in,
PARTS = 4  # times as many where it is not sure that a gain is one
MOST_MOVES = 102_400  # of a search in all of the first ones, as `search.trust` counts them


def ends_by_chance(buffer: DeviceReplayBuffer) -> bool:
    """Whether the task ends episodes, and not all of them after the same number of steps.

    Tables often name the last step of a time limit as an end. Single decisions end at once.
    """
    lengths = buffer.episode_starts.diff()
    ended = buffer.terminals[buffer.episode_starts[1:] - 1].bool()
    longest = lengths.max()
    return bool(longest == 1 or (ended & (lengths < longest)).any())


def episode_of(buffer: DeviceReplayBuffer, index: torch.Tensor) -> torch.Tensor:
    """Returns numbers of the episodes that steps belong to, `(B,)`."""
    return torch.searchsorted(buffer.episode_starts, index, right=True) - 1


def _steps_left(buffer: DeviceReplayBuffer, index: torch.Tensor) -> torch.Tensor:
    """Returns how many steps policies act for from these ones, `(B,)`: no longer than episodes."""
    ends = buffer.episode_starts[episode_of(buffer, index) + 1]
    return (ends - index).clamp(max=STEPS)


def _earliest(
    buffer: DeviceReplayBuffer, index: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns up to n steps where episodes start, else where most are left, and how many are."""
    left = _steps_left(buffer, index)
    is_first = torch.isin(index, buffer.episode_starts)
    order = (left + STEPS * is_first).argsort(descending=True, stable=True)[:n]
    return index[order], left[order]


class Transitions(NamedTuple):
    """Transitions as a model of states learns from them.

    Attributes:
        x: the networks' input in the states, `(B, D)`.
        actions: `(B, N)`.
        next_x: their input in the next states.
        rewards: `(B,)`.
        terminals: 1 where nothing comes after, `(B,)`.
    """

    x: torch.Tensor
    actions: torch.Tensor
    next_x: torch.Tensor
    rewards: torch.Tensor
    terminals: torch.Tensor


class Played(NamedTuple):
    """What a policy does in a model of states, by the state that it starts in.

    Attributes:
        returns: `(B,)`.
        beyond: share of the numbers of its states that are beyond what 99 % of the data have,
            `(B,)`.
    """

    returns: torch.Tensor
    beyond: torch.Tensor


class StateModel(nn.Module):
    """Predicts by how much a state changes, the reward, and whether the episode ends.

    Predictions are means: what happens by chance comes in parts, a little of it in every step.
    Where the task ends episodes, the rewards of their last steps are told apart: a crash costs a
    hundred times what other steps return, and nothing else would be learned.

    Args:
        observation_size: of the networks' input (D).
        encoder_factory: d3rlpy factory of the hidden layers after the first one.
        nvec: number of choices of each slot.
        layout: what slots and choices are, as in `JointCritic`. Where slots alone have features it
            is not used: the model has to tell which slot a choice moves, and a sum over slots that
            are alike does not.
    """

    learned: torch.Tensor  # (1,): whether it is
    ends: torch.Tensor  # (1,): whether the task ends episodes by what happens in them
    knows_last: torch.Tensor  # (1,): whether data hold the states that terminal steps lead to
    is_apart: torch.Tensor  # (1,): whether rewards of terminal steps are told apart
    last_scale: torch.Tensor  # (2,): their mean and standard deviation
    lowest: torch.Tensor  # (D,): states stay within what the data hold
    highest: torch.Tensor
    usual: torch.Tensor  # (2, D): range of 99 % of the data
    most_rare: torch.Tensor  # (1,): share of a state's numbers outside, less in 99 % of the data

    def __init__(
        self,
        observation_size: int,
        encoder_factory: EncoderFactory,
        nvec: Sequence[int],
        layout: ActionLayout | None = None,
    ) -> None:
        super().__init__()
        if layout is not None and layout.has_features and not layout.has_choice_features:
            layout = None
        width = compute_output_size([(1,)], encoder_factory.create((1,)))
        actions = encoder_of_actions(observation_size, SlotLayout(nvec), width, layout)
        # Its outputs are changes, the reward and the log-odds of an end, in place of values.
        self.network = JointQFunction(encoder_factory, actions, width, observation_size + 2)
        # What each choice adds by itself is learned at once, and exactly.
        self.by_itself = nn.Linear(width, observation_size + 2)
        # Of terminal steps; it starts at their mean, and draws no random numbers.
        self.last_reward = skip_init(nn.Linear, width, 1)
        nn.init.zeros_(self.last_reward.weight)
        nn.init.zeros_(self.last_reward.bias)
        self.places = Places(observation_size)
        self.fatal_ends = FatalEnds(self.places.size)
        self.survived = KnownPlaces()  # those from which the log went on
        # What was asked for last: all critics of an ensemble ask for the same.
        self.last_total: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self.last_places: tuple[torch.Tensor, torch.Tensor] | None = None
        self.register_buffer("learned", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("ends", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("knows_last", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("is_apart", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("last_scale", torch.tensor([0.0, 1.0]))
        self.register_buffer("lowest", torch.zeros(observation_size))
        self.register_buffer("highest", torch.zeros(observation_size))
        self.register_buffer("usual", torch.zeros(2, observation_size))
        self.register_buffer("most_rare", torch.ones(1))

    @property
    def is_learned(self) -> bool:
        """Whether the model was trained."""
        return bool(self.learned)

    @property
    def has_ends(self) -> bool:
        """Whether the task ends episodes by what happens in them."""
        return bool(self.ends)

    def fit_scale(
        self,
        buffer: DeviceReplayBuffer,
        transform: Callable[[torch.Tensor], torch.Tensor],
        tells_last_apart: bool = False,
    ) -> None:
        """Takes bounds of states, and mean and standard deviation of changes and rewards.

        Args:
            buffer: with transitions, of which some are looked at.
            transform: from observations to the networks' input.
            tells_last_apart: whether rewards of terminal steps are told apart, where the task ends
                episodes.
        """
        index = buffer.spread_index(FITTED_ROWS)
        rows = buffer.observation_index[index]
        x = transform(buffer.observations_at(rows))
        change = transform(buffer.observations_at(rows + 1)) - x
        is_last = buffer.terminals[index].bool()
        # Where data do not hold what follows a terminal step, its own state stands there.
        self.knows_last.fill_(
            is_last.any() and (change[is_last] != 0.0).any(1).float().mean() > 0.5
        )
        change = torch.where(is_last[:, None] & ~self.knows_last, 0.0, change)
        self.places.fit(x)
        self.lowest.copy_(x.amin(0))
        self.highest.copy_(x.amax(0))
        n_rare = int(RARE_SHARE * len(x))
        within = x.sort(0).values[[n_rare, -1 - n_rare]]
        # Of two values both are in the data, and what the model says is a chance between them.
        has_two = ((x == self.lowest) | (x == self.highest)).all(0)
        within = torch.where(has_two, torch.stack([self.lowest, self.highest]), within)
        precision = PRECISION * x.std(0, correction=0)
        self.usual.copy_(within + torch.stack([-precision, precision]))
        self.most_rare.copy_(self.rare_share(x).quantile(1.0 - 2.0 * RARE_SHARE))
        rewards = buffer.rewards[None, index]
        self.ends.fill_(ends_by_chance(buffer))
        if tells_last_apart and self.has_ends and not is_last.all():
            self.is_apart.fill_(True)
            of_last = buffer.rewards[buffer.terminals.bool()]
            self.last_scale.copy_(torch.stack([of_last.mean(), of_last.std(correction=0)]))
            rewards = torch.where(is_last, rewards[:, ~is_last].mean(), rewards)
        self.network.scale.fit(torch.cat([change.T, rewards, torch.zeros_like(rewards)]))

    def rare_share(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the share of the numbers of states that 99 % of the data do not have, `(B,)`."""
        return ((x < self.usual[0]) | (x > self.usual[1])).float().mean(1)

    def are_unknown(self, x: torch.Tensor) -> torch.Tensor:
        """Returns which states have more such numbers than 99 % of the logged ones, `(B,)`.

        None, before the model is learned.
        """
        return self.rare_share(x) > self.most_rare

    def loss(self, batch: Transitions) -> torch.Tensor:
        """Squared errors of changes, their mean, and of rewards; means over a batch.

        Of terminal steps the next state is asked for where the data have it: fatal steps lead where
        no others do. Where the task ends episodes, also the cross-entropy of ends.
        """
        return self.row_losses(batch).mean()

    def row_losses(self, batch: Transitions) -> torch.Tensor:
        """Returns the same of each transition, `(B,)`."""
        sums = self.network.open(batch.x).total(batch.actions.long())
        predicted = self._of_sums(sums)
        is_told = torch.where(self.knows_last, 1.0, 1.0 - batch.terminals)
        errors = predicted[:-1] - self.outcomes(batch)
        is_last = self.is_apart * batch.terminals
        mean, deviation = self.last_scale
        of_last = self.last_reward(sums)[:, 0] - (batch.rewards - mean) / deviation.clamp(min=1e-6)
        of_rewards = (1.0 - is_last) * errors[-1].square() + is_last * of_last.square()
        of_ends = binary_cross_entropy_with_logits(predicted[-1], batch.terminals, reduction="none")
        losses: torch.Tensor = (errors[:-1] * is_told).square().mean(0) + of_rewards
        return losses + self.ends * of_ends

    @torch.no_grad()
    def losses_of(self, batch: Transitions) -> torch.Tensor:
        """Returns losses of transitions without dropout, `(B,)`."""
        self.eval()
        losses = self.row_losses(batch)
        self.train()
        return losses

    def outcomes(self, batch: Transitions) -> torch.Tensor:
        """Returns standardized changes and rewards, `(D + 1, B)`."""
        unknown = torch.zeros_like(batch.rewards[None])
        outcomes = torch.cat([(batch.next_x - batch.x).T, batch.rewards[None], unknown])
        return self.network.scale.standardize(outcomes)[:-1]

    def errors(self, batch: Transitions) -> torch.Tensor:
        """Returns by how much these are predicted wrongly, `(D + 1, B)`."""
        return self._predict(batch.x, batch.actions)[:-1] - self.outcomes(batch)

    def _predict(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns standardized changes and rewards, and log-odds of an end, `(D + 2, B)`."""
        return self._of_sums(self.network.open(x).total(actions.long()))

    def _of_sums(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns the same of sums `(B, W)`."""
        by_itself: torch.Tensor = self.by_itself(sums).T
        return self.network.standardized(sums) + by_itself

    @torch.no_grad()
    def total(
        self, x: torch.Tensor, actions: torch.Tensor, sums: ActionSums | None = None
    ) -> torch.Tensor:
        """Returns sums of states and actions with the states' numbers, `([A,] B, W + D)`.

        Args:
            x: the networks' input in the states, `(B, D)`.
            actions: `([A,] B, N)`.
            sums: of the network, opened in the states; by default it opens them.
        """
        last = self.last_total
        if last is not None and last[0] is x and last[1] is actions:
            return last[2]
        total = (sums or self.network.open(x)).total(actions.long())
        total = torch.cat([total, x.expand(*total.shape[:-1], -1)], dim=-1)
        if self.remembers(x):
            self.last_total = x, actions, total
        return total

    @torch.no_grad()
    def places_after(self, sums: torch.Tensor) -> torch.Tensor:
        """Returns codes of the next states, as `places` has them, `(R, 9 D)`.

        Args:
            sums: of states and actions, then the networks' input in the states, `(..., W + D)`.
        """
        last = self.last_places
        if last is not None and last[0] is sums:
            return last[1]
        size = self.places.observation_size
        of_actions, x = sums.flatten(0, -2).split([sums.shape[-1] - size, size], dim=-1)
        changes = self.network.scale.restore(self._of_sums(of_actions))[:-2].T
        places: torch.Tensor = self.places((x + changes).clamp(self.lowest, self.highest))
        if self.remembers(sums):
            self.last_places = sums, places
        return places

    def fit_fatal_ends(
        self,
        buffer: DeviceReplayBuffer,
        rewards: torch.Tensor,
        transform: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Learns which places are fatal ends, and which are none: those from which the log went on.

        The model itself has to be learned before. Of few fatal ends a sum of log-odds knows little,
        and a search that may pass by known places comes where it has to know: then no place is
        remembered. Nor where fatal ends led to places that were survived at other times, as chance
        decides there.

        Args:
            buffer: with transitions, of which some are looked at.
            rewards: of all of them, `(n,)`, scaled as in training.
            transform: from observations to the networks' input.
        """
        ends, terminals = self.fatal_ends, buffer.terminals
        ends.bound.copy_(bound_of_fatal_ends(rewards, terminals))
        is_fatal = are_fatal(rewards, terminals, ends.bound)
        if not is_fatal.any():
            return
        most = min(MOST_ROWS, MOST_NUMBERS // self.places.size)
        others = buffer.spread_index(most)
        others = others[~is_fatal[others]]
        fatal = is_fatal.nonzero()[:most, 0]
        index = torch.cat([fatal, others])
        weights = torch.ones_like(rewards[index])
        weights[len(fatal) :] = (~is_fatal).sum() / len(others)
        rows = buffer.observation_index[index]
        if self.knows_last:
            places = self.places(transform(buffer.observations_at(rows + 1)))
        else:
            x = transform(buffer.observations_at(rows))
            places = self.places_after(self.total(x, buffer.actions[index]))
        ends.fit(places, is_fatal[index], weights)
        keys = self.places.keys(places)
        of_fatal, of_others = keys[: len(fatal)], keys[len(fatal) :]
        by_chance = float(torch.isin(of_fatal, of_others).float().mean())
        if len(fatal) >= LEAST_FATAL and by_chance <= MOST_SURVIVED:
            self.survived.remember(of_others[~torch.isin(of_others, of_fatal)])

    @staticmethod
    def remembers(x: torch.Tensor) -> bool:
        """Whether what was computed last may be kept; recorded updates reuse their tensors."""
        return x.device.type == "cpu" and not is_exporting()

    def starts(
        self, buffer: DeviceReplayBuffer, index: torch.Tensor, n_moves: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns numbers of steps in whose states policies start, `(B,)`, and for how many steps.

        Every other one starts where an episode does, or where there are fewer episodes, where the
        time limit is far, the others anywhere from which it is half as far or more: first states
        can all be alike, and what is paid later can be different. (Of a factory's goods a search
        gained 56 in 64 steps from the first one, and lost 50 from others.) They act no longer than
        that limit allows: nothing is known of what comes after it, and what pays at the end alone
        would pay in each step. Where the task ends episodes all start anywhere, as fatal states are
        not the first.

        Args:
            buffer: with the steps.
            index: of steps to choose from, in random order.
            n_moves: that a search values in a state.
        """
        by_moves = int(MOST_MOVES / (STEPS * max(1.0, n_moves)))
        n = PARTS * max(LEAST_STARTS, min(MOST_STARTS, by_moves))
        if self.has_ends:
            return index[:n], torch.full_like(index[:n], STEPS)
        first, of_first = _earliest(buffer, index, n // 2)
        left = _steps_left(buffer, index)
        far = index[2 * left >= left.max()][: n // 2]
        n_pairs = min(len(first), len(far))
        starts = torch.stack([first[:n_pairs], far[:n_pairs]], 1).flatten()
        n_steps = torch.stack([of_first[:n_pairs], _steps_left(buffer, far[:n_pairs])], 1).flatten()
        return starts, n_steps

    def starts_of_log(
        self, buffer: DeviceReplayBuffer, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the same for logged actions, whose returns are compared with each other.

        So all start where episodes do: of others, those return more that have longer to go, which
        any model tells.
        """
        n = PARTS * MOST_STARTS
        if self.has_ends:
            return index[:n], torch.full_like(index[:n], STEPS)
        return _earliest(buffer, index, n)

    @torch.no_grad()
    def play(
        self,
        act: Callable[[torch.Tensor], torch.Tensor],
        x: torch.Tensor,
        n_steps: torch.Tensor,
        gamma: float,
        rewards_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> Played:
        """Returns what a policy returns from states, and whether the data have where it leads.

        Args:
            act: from the networks' input `(B, D)` to actions `(B, N)`.
            x: the networks' input in the states, `(B, D)`.
            n_steps: that it acts for, `(B,)`.
            gamma: discount.
            rewards_of: from both to rewards `(B,)`, in place of the model's own.
        """
        total, goes_on = x.new_zeros(len(x)), x.new_ones(len(x))
        steps, beyond = x.new_zeros(len(x)), x.new_zeros(len(x))
        for step in range(int(n_steps.max())):
            actions = act(x)
            sums = self.network.open(x).total(actions.long())
            outcomes = self.network.scale.restore(self._of_sums(sums))
            rewards, ends = outcomes[-2], outcomes[-1].sigmoid() * self.ends
            mean, deviation = self.last_scale
            of_last = mean + deviation * self.last_reward(sums)[:, 0]
            rewards = torch.where(self.is_apart, torch.lerp(rewards, of_last, ends), rewards)
            if rewards_of is not None:
                rewards = rewards_of(x, actions)
            counts = goes_on * (step < n_steps)
            total = total + gamma**step * counts * rewards
            steps = steps + counts
            beyond = beyond + counts * self.rare_share(x)
            goes_on = goes_on * (1.0 - ends)
            x = (x + outcomes[:-2].T).clamp(self.lowest, self.highest)
        return Played(total, beyond / steps.clamp(min=1.0))


def transitions_of(
    buffer: DeviceReplayBuffer,
    index: torch.Tensor,
    scale: Callable[[torch.Tensor], torch.Tensor],
) -> Transitions:
    """Returns transitions of these numbers, `(B,)`."""
    rows = buffer.observation_index[index]
    x, next_x = (scale(buffer.observations_at(r)) for r in (rows, rows + 1))
    terminals = buffer.terminals[index].to(x.dtype)
    return Transitions(x, buffer.actions[index], next_x, buffer.rewards[index], terminals)


def checked_transitions(
    held_out: DeviceReplayBuffer, scale: Callable[[torch.Tensor], torch.Tensor]
) -> Transitions:
    """Returns transitions by which it is told what a model has learned."""
    return transitions_of(held_out, held_out.spread_index(CHECKED_ROWS), scale)


def gradient_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Changes weights by a loss."""
    optimizer.zero_grad(set_to_none=True)
    backward(loss)
    optimizer.step()


def learn(
    model: StateModel,
    buffer: DeviceReplayBuffer,
    n_updates: int,
    run: Run,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    held_out: DeviceReplayBuffer | None = None,
    tells_last_apart: bool = False,
) -> None:
    """Trains a model in place, or resumes that from the run's checkpoints.

    Once it overfits (`training.overfitting`) it drops out.

    Args:
        model: on the buffer's device.
        buffer: transitions to learn from.
        n_updates: gradient steps; with a budget of seconds as many as `BUDGET_SHARE` of it allows.
        run: progress bar, checkpoints, logs.
        transform: observation scaler.
        held_out: transitions by which it is noticed that the model overfits.
        tells_last_apart: as in `StateModel.fit_scale`.
    """
    if run.enable_ddp:
        share_training(model)
    scale = transform or (lambda observations: observations)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    check: OverfittingCheck | None = None
    if held_out is not None:
        batch = checked_transitions(held_out, scale)
        check = OverfittingCheck("The model of states", model, lambda: model.losses_of(batch))
        parts["overfitting"] = check

    def update() -> Metrics:
        model.network.dropout.p = DROPOUT if check is not None and check.is_to_drop_out else 0.0
        index = buffer.sample_index(BATCH_SIZE, weighted=False)
        loss = model.loss(transitions_of(buffer, index, scale))
        gradient_step(loss, optimizer)
        if check is not None:
            check.after_step(loop.step + 1, loop.progress)
        return {"loss": loss.detach()}

    loop = Loop(
        run,
        "state_model",
        n_updates,
        n_updates,
        parts,
        buffer.device,
        label="Learning what follows",
        optimizers=[optimizer],
        schedule=Schedule("linear", 0.05),
        share=BUDGET_SHARE,
    )
    if loop.step == 0:
        model.fit_scale(buffer, scale, tells_last_apart)
    model.train()
    with run.log("state_model", "state_model", n_updates) as log:
        for _ in loop.epochs(update):
            log.add(loop.add_row(loop.take_row()))
    model.network.dropout.p = 0.0
    model.learned.fill_(True)
