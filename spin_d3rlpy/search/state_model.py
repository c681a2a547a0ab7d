"""A model of what follows an action, in which policies can act without an environment.

Critics tell what one action gains if the data's policy chooses all later ones. A search acts this
way in every step, and can reach states that the data's policy never reaches: machines that nobody
maintains, because in the data somebody always does it next. A model of the states shows this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.models.torch.encoders import compute_output_size
from torch import nn

from spin_d3rlpy.critics.joint import JointQFunction, encoder_of_actions
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.fast.precision import backward
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.loop import Loop, Metrics, Run
from spin_d3rlpy.training.schedules import Schedule
from spin_envs import ActionLayout

FITTED_ROWS = 65_536  # transitions whose moments and bounds the model takes
BATCH_SIZE, LEARNING_RATE = 256, 2e-3
BUDGET_SHARE = 0.15  # of the seconds that the first stages leave
STEPS = 32  # that policies act for
LEAST_STARTS, MOST_STARTS = 6, 16  # states that they start in
MOST_MOVES = 51_200  # of a search in all of them, as `search.trust` counts them


def starts_in_model(n_moves: float) -> int:
    """Returns in how many states policies start.

    Args:
        n_moves: that a search values in a state.
    """
    by_moves = int(MOST_MOVES / (STEPS * max(1.0, n_moves)))
    return max(LEAST_STARTS, min(MOST_STARTS, by_moves))


def ends_by_chance(buffer: DeviceReplayBuffer) -> bool:
    """Whether the task ends episodes, and not all of them after the same number of steps.

    Tables often name the last step of a time limit as an end. Single decisions end at once.
    """
    lengths = buffer.episode_starts.diff()
    ended = buffer.terminals[buffer.episode_starts[1:] - 1].bool()
    longest = lengths.max()
    return bool(longest == 1 or (ended & (lengths < longest)).any())


class StateModel(nn.Module):
    """Predicts by how much a state changes, and the reward.

    Predictions are means: what happens by chance comes in parts, a little of it in every step. So
    it is of no use where the task ends episodes by chance, all at once or not at all.

    Args:
        observation_size: of the networks' input (D).
        encoder_factory: d3rlpy factory of the hidden layers after the first one.
        nvec: number of choices of each slot.
        layout: what slots and choices are, as in `JointCritic`.
    """

    learned: torch.Tensor  # (1,): whether it is
    lowest: torch.Tensor  # (D,): states stay within what the data hold
    highest: torch.Tensor

    def __init__(
        self,
        observation_size: int,
        encoder_factory: EncoderFactory,
        nvec: Sequence[int],
        layout: ActionLayout | None = None,
    ) -> None:
        super().__init__()
        width = compute_output_size([(1,)], encoder_factory.create((1,)))
        actions = encoder_of_actions(observation_size, SlotLayout(nvec), width, layout)
        # Its outputs are changes and the reward, in place of values.
        self.network = JointQFunction(encoder_factory, actions, width, observation_size + 1)
        self.register_buffer("learned", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("lowest", torch.zeros(observation_size))
        self.register_buffer("highest", torch.zeros(observation_size))

    @property
    def is_learned(self) -> bool:
        """Whether the model was trained."""
        return bool(self.learned)

    def fit_scale(
        self, buffer: DeviceReplayBuffer, transform: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Takes bounds of states, and mean and standard deviation of changes and rewards.

        Args:
            buffer: with transitions, of which some are looked at.
            transform: from observations to the networks' input.
        """
        n = buffer.transition_count
        index = torch.linspace(0, n - 1, min(n, FITTED_ROWS), device=buffer.device).long()
        rows = buffer.observation_index[index]
        x = transform(buffer.observations_at(rows))
        change = transform(buffer.observations_at(rows + 1)) - x
        self.lowest.copy_(x.amin(0))
        self.highest.copy_(x.amax(0))
        self.network.scale.fit(torch.cat([change.T, buffer.rewards[None, index]]))

    def loss(
        self, x: torch.Tensor, actions: torch.Tensor, next_x: torch.Tensor, rewards: torch.Tensor
    ) -> torch.Tensor:
        """Squared errors of changes, their mean, and of rewards; means over a batch.

        Args:
            x: the networks' input, `(B, D)`.
            actions: `(B, N)`.
            next_x: the same of the next states.
            rewards: `(B,)`.
        """
        outcomes = torch.cat([(next_x - x).T, rewards[None]])
        errors = self._predict(x, actions) - self.network.scale.standardize(outcomes)
        return errors[:-1].square().mean() + errors[-1].square().mean()

    def _predict(self, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns standardized changes and rewards, `(D + 1, B)`."""
        return self.network.standardized(self.network.open(x).total(actions.long()))

    @torch.no_grad()
    def returns(
        self, act: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, gamma: float
    ) -> torch.Tensor:
        """Returns what a policy returns from states, `(B,)`.

        Args:
            act: from the networks' input `(B, D)` to actions `(B, N)`.
            x: the networks' input in the states, `(B, D)`.
            gamma: discount.
        """
        total = x.new_zeros(len(x))
        for step in range(STEPS):
            outcomes = self.network.scale.restore(self._predict(x, act(x)))
            total = total + gamma**step * outcomes[-1]
            x = (x + outcomes[:-1].T).clamp(self.lowest, self.highest)
        return total


def learn(
    model: StateModel,
    buffer: DeviceReplayBuffer,
    n_updates: int,
    run: Run,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Trains a model in place, or resumes that from the run's checkpoints.

    Args:
        model: on the buffer's device.
        buffer: transitions to learn from.
        n_updates: gradient steps; with a budget of seconds as many as `BUDGET_SHARE` of it allows.
        run: progress bar, checkpoints, logs.
        transform: observation scaler.
    """
    if run.enable_ddp:
        share_training(model)
    scale = transform or (lambda observations: observations)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)

    def update() -> Metrics:
        index = buffer.sample_index(BATCH_SIZE, weighted=False)
        rows = buffer.observation_index[index]
        x, next_x = (scale(buffer.observations_at(r)) for r in (rows, rows + 1))
        loss = model.loss(x, buffer.actions[index], next_x, buffer.rewards[index])
        optimizer.zero_grad(set_to_none=True)
        backward(loss)
        optimizer.step()
        return {"loss": loss.detach()}

    loop = Loop(
        run,
        "state_model",
        n_updates,
        n_updates,
        {"model": model, "optimizer": optimizer},
        buffer.device,
        label="Learning what follows",
        optimizers=[optimizer],
        schedule=Schedule("linear", 0.05),
        share=BUDGET_SHARE,
    )
    if loop.step == 0:
        model.fit_scale(buffer, scale)
    with run.log("state_model", "state_model", n_updates) as log:
        for _ in loop.epochs(update):
            log.add(loop.add_row(loop.take_row()))
    model.learned.fill_(True)
