"""Stage 1: self-supervised pre-training of the ASM on a dataset's states and actions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from spin_d3rlpy.asm.dropout import drop_out, keep_rates
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.objectives.ablations import (
    ContrastiveActionModeling,
    VariationalActionModeling,
)
from spin_d3rlpy.asm.objectives.base import PretrainingObjective, Validation
from spin_d3rlpy.asm.objectives.masked import AnyOrderActionModeling, MaskedActionModeling
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.fast import keep_freed_memory
from spin_d3rlpy.fast.precision import Precision, autocast
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.training.averages import WeightAverage
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.graphs import recorded
from spin_d3rlpy.training.loop import Loop, Metrics, Row, Run
from spin_d3rlpy.training.overfitting import CHECKED_ROWS, OverfittingCheck
from spin_d3rlpy.training.schedules import Schedule, ScheduleName

ObjectiveName = Literal["masked", "variational", "contrastive"]
Masking = Literal["bernoulli", "any_order"]
VALIDATION_ROWS = 4096
# Of held-out rows by which overfitting is noticed, at most: a few percent of the steps' time.
CHECKED_BATCHES = 4
FITTED_ROWS = 16_384  # whose values columns are said to have


@dataclasses.dataclass()
class PretrainingConfig:
    """How the ASM is pre-trained, by Adam; the defaults are those of SPIN's published code.

    Args:
        objective: `"masked"` (MAM, SPIN's own), `"variational"` (VAM) or `"contrastive"` (CAM).
        n_epochs: passes of `ceil(n / batch_size)` updates, rows drawn with replacement. 0 leaves
            the trunk untrained (the paper's ablation).
        batch_size: rows of an update.
        learning_rate: of Adam, before `lr_schedule`.
        clip_grad_norm: largest norm of all gradients together.
        masking: MAM: `"bernoulli"` (published) selects slots independently, with the next four
            fields, and averages the loss over the batch. `"any_order"` hides any number of a row's
            slots, each row counting the same (`spin_d3rlpy.asm.objectives.masked`).
        full_mask_share: with `"any_order"`, share of the rows that are fully masked in addition.
        mask_prob: MAM: probability that a slot is selected (the paper's p).
        mask_token_share: MAM: share of selected slots that become the mask token.
        random_share: MAM: share of selected slots that become a random choice; the rest stay.
        mask_prob_max: MAM: if given, each row's probability is uniform between `mask_prob` and
            this; at 1 the fully masked action, stage 2's input, is included.
        latent_size: VAM: length of the latent vector.
        kl_weight: VAM: beta.
        projection_size: CAM: length of the compared vectors.
        temperature: CAM: tau.
        lr_schedule: learning rate `"constant"`, or `"linear"` or `"cosine"` decay to 0.
        lr_warmup: share of the updates in which the learning rate first rises from 0.
        ema_decay: if above 0, the final model is an exponential moving average of the weights with
            this decay.
        unweighted_share: share of the training, from its start, in which an algorithm draws all
            trajectories alike, before its `trajectory_weights` count: few good ones are soon known
            by heart, and all of them teach what states mean.
        budget_share: share of the seconds in timed training.
        max_updates: stops earlier than `n_epochs` if given.
        checkpoint_interval: epochs between saved models.
        precision: number format of a step, see `spin_d3rlpy.fast.precision.autocast`; None is the
            algorithm's, float32 without one.
        validation_share: share of the episodes held out and measured after each epoch.
        patience: epochs without a better held-out score before training stops with the best epoch's
            model; None trains to the end and keeps the last one.
        overfitting_dropout: dropout rate once predictions of held-out episodes have surely become
            worse (`training.overfitting`), in [0, 1). Training then continues from the weights that
            predicted them best. 0 changes nothing. Only with `"any_order"`, and episodes to measure
            by: an algorithm's `held_out_share`, if trajectories are drawn alike, or
            `validation_share`; unused without.
    """

    objective: ObjectiveName = "masked"
    n_epochs: int = 100
    batch_size: int = 1024
    learning_rate: float = 4e-4
    clip_grad_norm: float = 1.0
    masking: Masking = "bernoulli"
    full_mask_share: float = 0.0
    mask_prob: float = 0.15
    mask_token_share: float = 0.8
    random_share: float = 0.1
    mask_prob_max: float | None = None
    latent_size: int = 64
    kl_weight: float = 0.1
    projection_size: int = 128
    temperature: float = 0.1
    lr_schedule: ScheduleName = "constant"
    lr_warmup: float = 0.0
    ema_decay: float = 0.0
    unweighted_share: float = 0.0
    budget_share: float = 0.5
    max_updates: int | None = None
    checkpoint_interval: int = 10
    precision: Precision | None = None
    validation_share: float = 0.0
    patience: int | None = None
    overfitting_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        p, largest = self.mask_prob, self.mask_prob_max
        require_fields(
            self,
            mask_prob_max=(largest is None or p <= largest, f"between mask_prob={p} and 1"),
            mask_token_share=(
                self.mask_token_share + self.random_share <= 1.0,
                f"of at most 1 with random_share={self.random_share}",
            ),
            patience=(
                self.patience is None or self.validation_share > 0.0,
                "only with a validation_share above 0",
            ),
            overfitting_dropout=(
                self.overfitting_dropout == 0.0 or self.is_any_order,
                '0 without objective="masked" and masking="any_order"',
            ),
        )

    @property
    def is_any_order(self) -> bool:
        """Whether any number of slots is hidden, each row counting the same."""
        return self.objective == "masked" and self.masking == "any_order"

    def create_objective(self, asm: ActionStructureModel) -> PretrainingObjective:
        """Returns the objective for `asm`, on its device."""
        objective: PretrainingObjective
        if self.is_any_order:
            objective = AnyOrderActionModeling(asm, self.full_mask_share)
        elif self.objective == "masked":
            shares = self.mask_token_share, self.random_share
            objective = MaskedActionModeling(asm, self.mask_prob, *shares, self.mask_prob_max)
        elif self.objective == "variational":
            objective = VariationalActionModeling(asm, self.latent_size, self.kl_weight)
        else:
            objective = ContrastiveActionModeling(asm, self.projection_size, self.temperature)
        return objective.to(asm.device)

    def n_updates(self, n_transitions: int, batch_size: int) -> int:
        """Gradient steps for a dataset of this size, by the batch size that the model takes."""
        updates = self.n_epochs * math.ceil(n_transitions / batch_size)
        return updates if self.max_updates is None else min(updates, self.max_updates)


class StateActionSource(Protocol):
    """Source of pre-training data, such as `spin_d3rlpy.data.DeviceReplayBuffer`."""

    @property
    def transition_count(self) -> int: ...  # number of rows

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns observations `(B, obs)` and integer actions `(B, N)` on the device."""


class Pretraining:
    """Gradient steps of an Action Structure Model's pre-training, by Adam.

    The model and the source are on one device; to be recorded as a CUDA graph, the source must draw
    without waiting for it.

    Args:
        asm: trained in place.
        source: of observations and actions.
        config: how.
        run: says whether several processes train and whether steps are recorded.
        transform: of observations (an observation scaler).
        unseen: rows by which it is noticed that the model overfits.
        first_source: in place of `source` for the first `unweighted_share` of the training.

    Attributes:
        optimizer: of the model and of what the objective adds to it.
        average: of the model's weights, for whoever makes the steps to update; None without
            `ema_decay`.
        parts: what checkpoints keep, without the average.
        batch_size: rows of a step.
    """

    def __init__(
        self,
        asm: ActionStructureModel,
        source: StateActionSource,
        config: PretrainingConfig,
        run: Run,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        unseen: StateActionSource | None = None,
        first_source: StateActionSource | None = None,
    ) -> None:
        self._asm, self._config, self._run = asm, config, run
        self._source = source if first_source is None else first_source
        self._later_source = source
        self._transform = transform
        self._precision: Precision = config.precision or "float32"
        self.batch_size = asm.rows_per_update(config.batch_size)
        self._fit_value_codes()
        self._objective = config.create_objective(asm)
        if run.enable_ddp:
            share_training(self._objective)
        self.average = WeightAverage(asm, config.ema_decay) if config.ema_decay else None
        rate, parameters = config.learning_rate, self._objective.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=rate, fused=True)
        self.parts: dict[str, Any] = {"objective": self._objective, "optimizer": self.optimizer}
        self._check: OverfittingCheck | None = None
        if config.overfitting_dropout and unseen is not None:
            errors = functools.partial(self._errors, unseen)
            self._check = OverfittingCheck("The structure model", asm, errors)
            self.parts["overfitting"] = self._check
        self._step: Callable[[], Metrics] | None = None
        self._restore_rates = keep_rates(asm)
        self._objective.train()

    def _fit_value_codes(self) -> None:
        """Tells the model which values columns have, if it is to know and nobody told it."""
        codes, device = self._asm.value_codes, self._asm.device
        if codes is None:
            return
        if not codes.fitted:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                x, _ = self._source.sample_observations_and_actions(FITTED_ROWS)
            codes.fit(self._scaled(x))
        codes.train_used()

    def update(self, number: int, progress: float) -> Metrics:
        """Makes a step, and checks whether the model overfits.

        Args:
            number: of the step, from 1.
            progress: completed share of the training.

        Returns:
            Scalars on the device, which the next call may overwrite.
        """
        is_later = progress >= self._config.unweighted_share
        if is_later and self._source is not self._later_source:
            self._source, self._step = self._later_source, None
        if self._step is None:  # a recording keeps the dropout and source that it was made with
            self._restore_rates()
            if self._check is not None and self._check.is_to_drop_out:
                drop_out(self._asm, self._config.overfitting_dropout)
            device, graph = self._asm.device, self._run.compile_graph
            self._step = recorded(self._add_gradients_and_step, [self.optimizer], device, graph)
        metrics = self._step()
        if self._check is not None and self._check.after_step(number, progress):
            self._step = None
            if self.average is not None:
                self.average.sync()
        return metrics

    def averaged(self) -> AbstractContextManager[None]:
        """Context in which the model has the averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.in_use()

    def validate(self, held_out: StateActionSource) -> Validation:
        """Measures on fixed rows and masks, without dropout."""
        with self._measuring():
            observations, actions = held_out.sample_observations_and_actions(VALIDATION_ROWS)
            return self._objective.validate(self._scaled(observations), actions)

    def _add_gradients_and_step(self) -> Metrics:
        observations, actions = self._source.sample_observations_and_actions(self.batch_size)
        self.optimizer.zero_grad()
        observations = self._scaled(observations)
        result = self._objective.add_gradients(observations, actions, self._precision)
        largest = self._config.clip_grad_norm
        torch.nn.utils.clip_grad_norm_(self._objective.parameters(), largest)
        self.optimizer.step()
        return {"loss": result.loss.detach(), "accuracy": result.accuracy}

    def _scaled(self, observations: torch.Tensor) -> torch.Tensor:
        return observations if self._transform is None else self._transform(observations)

    def _errors(self, unseen: StateActionSource) -> torch.Tensor:
        """Returns losses of fixed rows with fixed masks, without dropout, `(n_rows,)`."""
        assert isinstance(self._objective, AnyOrderActionModeling)
        n_rows = min(CHECKED_ROWS, CHECKED_BATCHES * self.batch_size)
        with self._measuring():
            observations, actions = unseen.sample_observations_and_actions(n_rows)
            return self._objective.row_losses(self._scaled(observations), actions)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Context of the same random numbers each time: training does not depend on it."""
        device = self._asm.device
        devices = [device] if device.type == "cuda" else []
        self._objective.eval()
        precision = self._precision
        with torch.random.fork_rng(devices), torch.no_grad(), autocast(device, precision):
            torch.manual_seed(0)
            yield
        self._objective.train()


def pretrain(
    asm: ActionStructureModel,
    source: StateActionSource,
    config: PretrainingConfig,
    run: Run | None = None,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    held_out: StateActionSource | None = None,
    unseen: StateActionSource | None = None,
    on_row: Callable[[Row, Path | None], None] | None = None,
    first_source: StateActionSource | None = None,
) -> list[Row]:
    """Trains `asm` in place by the config's objective and leaves it in evaluation mode.

    For the arguments see `Pretraining`. 4,096 fixed rows of `held_out` are predicted after each
    epoch. `on_row` is called with each epoch's row and the log's folder, e.g. to save the model.

    Returns:
        One row per epoch: `epoch`, `step`, `loss`, `accuracy`, `seconds`, `samples` (rows so far)
        and, with `held_out`, the objective's `validation_<name>`.

    Raises:
        ValueError: `config.patience` without `held_out`.
        DivergenceError: losses or weights are no longer finite.
    """
    run = run or Run()
    if config.patience is not None and held_out is None:
        raise ValueError("patience needs held_out data.")
    keep_freed_memory()
    training = Pretraining(asm, source, config, run, transform, unseen, first_source)
    batch_size, average = training.batch_size, training.average
    epoch_steps = math.ceil(source.transition_count / batch_size)
    loop = Loop(
        run,
        "pretraining",
        config.n_updates(source.transition_count, batch_size),
        epoch_steps,
        training.parts,
        asm.device,
        config.patience,
        keep_best=None if config.patience is None else asm,
        label="Pre-training",
        optimizers=[training.optimizer],
        schedule=Schedule(config.lr_schedule, config.lr_warmup),
        average=average,
        share=config.budget_share,
    )
    with run.log("pretraining", "asm", epoch_steps) as log:
        for _ in loop.epochs(lambda: training.update(loop.step + 1, loop.progress)):
            row, score = loop.take_row(), None
            row["samples"] = loop.step * batch_size
            with training.averaged():
                if held_out is not None:
                    score, metrics = training.validate(held_out)
                    row |= {f"validation_{name}": value for name, value in metrics.items()}
            # The last epoch's checkpoint is written here, with the network's own weights in place.
            row = loop.add_row(row, score)
            log.add(row)
            if on_row is not None:
                with training.averaged():
                    on_row(row, log.folder)
    if average is not None and config.patience is None:  # the best weights are averages already
        asm.load_state_dict(average.state_dict())
    asm.eval()
    return loop.rows
