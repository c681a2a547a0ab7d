"""What algorithms are made of: a config with `nvec`, networks, and an update without host syncs."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoImplBase
from d3rlpy.base import DeviceArg, LearnableConfig
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import Modules, TorchMiniBatch, train_api
from d3rlpy.types import Shape

from spin_d3rlpy._compat import advance_schedule, step_without_schedule
from spin_d3rlpy.data.weights import TrajectoryWeights
from spin_d3rlpy.graphs import CompileGraph
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies import Policy
from spin_d3rlpy.precision import Precision, backward, check_precision
from spin_d3rlpy.schedules import Schedule, ScheduleName


@dataclasses.dataclass()
class MultiDiscreteConfig(LearnableConfig):
    """Fields that every algorithm's config has.

    Args:
        nvec: number of choices of each sub-action. Filled from the dataset or environment when
            the model is built, and saved with it.
        n_steps: gradient steps of `fit` when it is not told.
        trajectory_weights: how often each trajectory is drawn for imitation: by the policy, and by
            the stages that it learns first; None draws uniformly.
        lr_schedule: of all learning rates, over the steps of `fit`: `"constant"`, or `"linear"` or
            `"cosine"` decay to 0.
        lr_warmup: share of the steps in which learning rates rise from 0 first.
        precision: number format of updates, see `spin_d3rlpy.precision.autocast`. Acting is
            always in float32.
        compile_graph: on a GPU, the whole update (in `fit` drawing the batch, too, and SPIN's
            pre-training) is recorded as a CUDA graph in its fourth step and replayed from then on.
            Results are the same; see `spin_d3rlpy.graphs` for when it is recorded again.
            `"auto"`: where it can be, and the log says why where it cannot; True: an update that
            cannot be recorded is an error; False: never. It has no effect on a CPU, with
            `enable_ddp`, or where observations or cached features are in host memory.
    """

    nvec: list[int] | None = None
    n_steps: int = 1_000_000
    trajectory_weights: TrajectoryWeights = dataclasses.field(default_factory=TrajectoryWeights)
    lr_schedule: ScheduleName = "constant"
    lr_warmup: float = 0.0
    precision: Precision = "float32"
    compile_graph: CompileGraph = "auto"  # type: ignore[assignment]

    type_name: ClassVar[str]
    algo_class: ClassVar[type[Any]]  # the `MultiDiscreteAlgo` registered with it

    def __post_init__(self) -> None:
        check_precision(self.precision)
        Schedule(self.lr_schedule, self.lr_warmup)
        self.trajectory_weights = self.trajectory_weights or TrajectoryWeights()

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> Any:
        """Returns the algorithm, a `MultiDiscreteAlgo`, on `device`."""
        return self.algo_class(self, device, enable_ddp)

    @classmethod
    def get_type(cls) -> str:
        """Name under which d3rlpy saves it."""
        return cls.type_name


def encoder_field(default_factory: Callable[[], EncoderFactory]) -> Any:
    """Returns a config field for an encoder factory with another default than d3rlpy's."""
    template: Any = make_encoder_field()
    return dataclasses.field(default_factory=default_factory, metadata=template.metadata)


@dataclasses.dataclass(frozen=True)
class MultiDiscreteModules(Modules):
    """Networks and optimizers; what SPIN froze stays frozen."""

    def unfreeze(self) -> None:
        super().unfreeze()
        for network in self.get_torch_modules().values():
            if isinstance(network, Policy):
                network.freeze(0)


class MultiDiscreteImpl(QLearningAlgoImplBase):
    """Base class of the updates, which return tensors so that no step waits for the device."""

    _config: MultiDiscreteConfig

    def __init__(
        self,
        observation_shape: Shape,
        modules: MultiDiscreteModules,
        config: MultiDiscreteConfig,
        device: str,
    ) -> None:
        assert config.nvec is not None
        layout = SlotLayout(config.nvec).to(device)
        super().__init__(observation_shape, layout.max_choices, modules, device)
        self._layout, self._config = layout, config

    @property
    def n_tokens(self) -> int:
        """Rows of matrix products when it acts on one observation."""
        return 1

    def bootstrap(self, batch: TorchMiniBatch, next_values: torch.Tensor) -> torch.Tensor:
        """Returns `r + gamma^n (1 - terminal) next_values` for next values `(..., B)`."""
        discount = self._config.gamma ** batch.intervals.squeeze(-1)
        not_over = 1.0 - batch.terminals.squeeze(-1)
        return batch.rewards.squeeze(-1) + discount * not_over * next_values

    def minimize(self, loss: torch.Tensor, optim: OptimizerWrapper | None) -> torch.Tensor:
        """Does one step of `optim` down the gradient of `loss`, and returns that detached."""
        assert optim is not None
        # d3rlpy's wrapper would fill gradients with zeros, and backward would add to these.
        optim.optim.zero_grad(set_to_none=True)
        backward(loss)
        step_without_schedule(optim)
        return loss.detach()

    @abstractmethod
    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """Does one gradient step and returns scalar metrics, still on the device.

        With `compile_graph` this is recorded, then replayed: `grad_step` is a number of the
        recording, and nothing may depend on values that only the device knows.
        """

    @train_api
    def update_without_sync(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        """`compute_update` in training mode."""
        return self.compute_update(batch, grad_step)

    @property
    def optimizers(self) -> list[OptimizerWrapper]:
        """All optimizers."""
        return [v for v in vars(self.modules).values() if isinstance(v, OptimizerWrapper)]

    def after_update(self, grad_step: int) -> None:
        """Does what follows every step, recorded or not: d3rlpy's learning-rate schedulers move."""
        for optim in self.optimizers:
            advance_schedule(optim)

    def inner_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, float]:
        """Does one gradient step and returns metrics as numbers."""
        metrics = self.compute_update(batch, grad_step)
        self.after_update(grad_step)
        return {k: v.item() for k, v in metrics.items()}
