"""What `fit` calls of an algorithm: the hooks that an algorithm of another package can override."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.algos.acting import ActingAlgo, TConfig, TImpl
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.batches import BatchSource
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.graphs import can_record
from spin_d3rlpy.training.loop import Run

Timer = Callable[[str], AbstractContextManager[None]]


def no_timer(_name: str) -> AbstractContextManager[None]:
    """A timer that measures nothing."""
    return nullcontext()


class TrainableAlgo(ActingAlgo[TImpl, TConfig]):
    """An algorithm that `spin_d3rlpy.algos.fit.Training` can train, by the hooks below.

    An override calls `super()` first, unless its docstring says otherwise. In the order of a run:
    `hold_out`, `resume_from` (of a resumed run), `begin_run`, `train_first_stages`, `batch_source`,
    then in every step `batch_source_at` and `sample_and_update`, `before_evaluation`, `end_run`.

    Attributes:
        caches_features: whether features of the whole dataset are cached; None until a run has
            decided. Checkpoints keep it, so that a resumed run does what the interrupted one did.
    """

    caches_features: bool | None = None
    _acts_in_updates = False  # whether an update chooses actions

    @property
    def compiled(self) -> bool:
        """Whether updates are recorded as CUDA graphs, see `MultiDiscreteConfig.compile_graph`."""
        wanted = bool(self._config.compile_graph) and not self._enable_ddp
        return wanted and not self.updates_by_rules and can_record(self._device)

    @property
    def updates_by_rules(self) -> bool:
        """Whether updates choose actions by rules, which wait for the device."""
        return self._acts_in_updates and bool(self._config.rules)

    @property
    def enable_ddp(self) -> bool:
        """Whether several processes train one model."""
        return self._enable_ddp

    def hold_out(self, buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
        """Returns the episodes to train on; an override may keep the others to measure by."""
        return buffer

    def resume_from(self, checkpoints: Checkpoints) -> None:
        """Loads state in addition to networks (SPIN's ASM) from a resumed run's folder."""

    def begin_run(self, run: Run) -> None:
        """Prepares for a run, also a resumed one, before its first stages."""

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Works before the first step (a policy's first stages); a resumed run skips it."""

    @abstractmethod
    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """Returns where the run's batches are drawn from."""

    @abstractmethod
    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource:
        """Returns the source of the next batch, given the last step's.

        Called before every step.

        Args:
            source: the last step's; `batch_source`'s before the first step.
            progress: completed share of the run, from 0 to 1.
        """

    @abstractmethod
    def sample_and_update(
        self, source: BatchSource, measure: Timer = no_timer
    ) -> dict[str, torch.Tensor]:
        """Does one gradient step on a batch drawn from `source`.

        Args:
            source: as `batch_source_at` returned it.
            measure: times `"sample_batch"` and `"algorithm_update"`.

        Returns:
            Scalar losses, on the device if possible, valid until the next call.
        """

    @abstractmethod
    def gradient_step(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        """Does the work of one gradient step on the device, which a recording replays."""

    def frozen_state(self) -> object:
        """Returns a value whose change causes a new recording of the update."""
        return None

    def before_evaluation(self) -> None:
        """Works before an epoch's evaluation."""

    def end_run(self) -> None:
        """Works after the last evaluation of a run that was not interrupted."""

    @abstractmethod
    def forget_recording(self) -> None:
        """Frees a recorded update, with the dataset and features that it reads."""
