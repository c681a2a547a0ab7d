"""Off-policy evaluation: fitted Q evaluation (FQE) of policies with MultiDiscrete actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from d3rlpy.base import DeviceArg
from d3rlpy.dataset import cast_flat_shape
from d3rlpy.logging import LOG
from d3rlpy.models.encoders import EncoderFactory, make_encoder_field
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, make_optimizer_field
from d3rlpy.torch_utility import TorchMiniBatch, hard_sync
from d3rlpy.types import NDArray, Observation, Shape, TorchObservation
from torch import nn

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.algos.impl import MultiDiscreteImpl, MultiDiscreteModules, mask_rule
from spin_d3rlpy.asm.rules import OPEN, Rule
from spin_d3rlpy.critics.base import squared_error
from spin_d3rlpy.critics.joint import JointCritic
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer
from spin_d3rlpy.data.buffer.batches import (
    BatchSource,
    MiniBatch,
    masks_of,
    next_masks_of,
    next_states_of,
    states_of,
)
from spin_d3rlpy.errors import NotConvergedError, NvecMismatchError
from spin_d3rlpy.evaluation.log_check import LogCheck
from spin_d3rlpy.evaluation.metrics import ActionMode
from spin_d3rlpy.images import of_numbers
from spin_d3rlpy.nvec import as_choices
from spin_d3rlpy.training.averages import polyak_update
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.schedules import ScheduleName

ROWS_TRIED = 64  # to see whether a function does the same twice
ROWS_OF_ERRORS = 4096  # by which it is seen whether values have settled


@dataclasses.dataclass()
class MultiDiscreteFQEConfig(MultiDiscreteConfig):
    r"""Fitted Q evaluation.

    .. math::

        L = \sum_e \mathbb{E} \big[ (Q_e(s, a) - r - \gamma (1 - d) \bar Q_e(s', \pi(s')))^2 \big]

    Q is a network of the state and the one-hot slots: unlike a factored critic it can
    represent any interaction between them, and evaluation needs no maximum over actions. Its
    outputs are standardized returns, and it starts from the log's own: in the first
    `monte_carlo_share` of the steps targets are returns to the episodes' ends.

    References:
        * Le et al., Batch Policy Learning under Constraints, 2019, algorithm 3.

    Args:
        learning_rate: of the Q functions, before `lr_schedule`.
        optim_factory: d3rlpy's factory of the optimizer.
        encoder_factory: d3rlpy's factory of the Q functions' encoders.
        n_critics: Q functions; each has its own target, values are their mean.
        tau: Polyak coefficient of the target ensemble, applied every step.
        monte_carlo_share: see above.
    """

    learning_rate: float = 1e-3
    optim_factory: OptimizerFactory = make_optimizer_field()
    encoder_factory: EncoderFactory = make_encoder_field()
    n_critics: int = 1
    tau: float = 0.2
    monte_carlo_share: float = 0.2
    lr_schedule: ScheduleName = "linear"

    def create(self, device: DeviceArg = False, enable_ddp: bool = False) -> NoReturn:
        """Raises NotImplementedError: FQE also needs the evaluated algorithm."""
        raise NotImplementedError("Use MultiDiscreteFQE(algo, config): it evaluates an algorithm.")

    @classmethod
    def get_type(cls) -> str:
        return "spin_fqe"


class Acting(Protocol):
    """What acts: an algorithm's networks, or a function."""

    def predict_best_action(self, x: TorchObservation) -> torch.Tensor:
        """Actions `(B, N)` for scaled observations `(B, obs)`."""

    def sample_action(self, x: TorchObservation) -> torch.Tensor:
        """Sampled actions."""


class ActingFunction:
    """A function of unscaled observations `(B, obs)` that returns actions `(B, N)`.

    Args:
        function: the policy.
        config: has the scaler of the observations that come.
        takes_masks: whether its second argument is the masks of the states.
        observation_size: length of the observations, which knows their images.
    """

    def __init__(
        self,
        function: Callable[..., NDArray],
        config: MultiDiscreteFQEConfig,
        takes_masks: bool,
        observation_size: int,
    ) -> None:
        self._function, self._config, self._takes_masks = function, config, takes_masks
        self._observation_size = observation_size

    def predict_best_action(
        self, x: TorchObservation, masks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Actions `(B, N)` for scaled observations `(B, obs)`, by masks `(B, N, K)` or None.

        Raises:
            InvalidActionSpaceError: the function returns no actions of this shape and space.
        """
        assert isinstance(x, torch.Tensor)
        scaler = self._config.observation_scaler
        if scaler is not None:
            x = of_numbers(self._observation_size, scaler.reverse_transform)(x)
        observations = x.cpu().numpy()
        if self._takes_masks:
            allowed = None if masks is None else masks.cpu().numpy()
            actions = self._function(observations, allowed)
        else:
            actions = self._function(observations)
        nvec = self._config.nvec or ()
        shape = len(observations), len(nvec)
        checked = as_choices(actions, shape, "the evaluated function", nvec)
        return torch.as_tensor(checked, device=x.device)

    def sample_action(self, x: TorchObservation) -> torch.Tensor:
        return self.predict_best_action(x)


@dataclasses.dataclass(frozen=True)
class FQEModules(MultiDiscreteModules):
    """Networks and optimizer; the log's are those of the policy that logged."""

    q_funcs: JointCritic
    targ_q_funcs: JointCritic
    log_q_funcs: JointCritic
    targ_log_q_funcs: JointCritic
    optim: OptimizerWrapper


class FQEImpl(MultiDiscreteImpl):
    """The update of FQE."""

    _modules: FQEModules

    def __init__(
        self,
        observation_shape: Shape,
        modules: FQEModules,
        config: MultiDiscreteFQEConfig,
        device: str,
        evaluated: Acting,
        mode: ActionMode,
        with_log: bool,
    ) -> None:
        super().__init__(observation_shape, modules, config, device)
        self._tau = config.tau
        self._evaluated = evaluated
        self._mode, self._with_log = mode, with_log
        # Of a policy that is a function of the state, by the row of its observation; -1: not known.
        self._known: torch.Tensor | None = None
        hard_sync(modules.targ_q_funcs, modules.q_funcs)
        hard_sync(modules.targ_log_q_funcs, modules.log_q_funcs)

    def compute_update(self, batch: TorchMiniBatch, grad_step: int) -> dict[str, torch.Tensor]:
        modules = self._modules
        with torch.no_grad():
            next_actions = self._next_actions(batch)
        loss = self._loss(modules.q_funcs, modules.targ_q_funcs, batch, next_actions)
        total, metrics = loss, {"loss": loss.detach()}
        if self._with_log:
            log, target = modules.log_q_funcs, modules.targ_log_q_funcs
            log_loss = self._loss(log, target, batch, batch.next_actions)
            total, metrics["log_loss"] = loss + log_loss, log_loss.detach()
        self.minimize(total, modules.optim)
        polyak_update(modules.targ_q_funcs, modules.q_funcs, self._tau)
        if self._with_log:
            polyak_update(modules.targ_log_q_funcs, modules.log_q_funcs, self._tau)
        return metrics

    def _loss(
        self,
        critic: JointCritic,
        target: JointCritic,
        batch: TorchMiniBatch,
        next_actions: torch.Tensor,
    ) -> torch.Tensor:
        """Squared error of standardized values."""
        x: Any = batch.observations
        with torch.no_grad():
            next_values = target.q_values(self._slot_layout, batch.next_observations, next_actions)
            y = critic.members[0].scale.standardize(self.bootstrap(batch, next_values))  # (E, B)
        return squared_error(critic.standardized(self._slot_layout, x, batch.actions)[:, 0], y)

    def remember_actions(self, n_rows: int, are_fixed: bool) -> None:
        """Keeps next actions of a dataset of so many observations, if they are always the same."""
        self._known = None
        if are_fixed:
            shape = n_rows, self._slot_layout.n_slots
            self._known = torch.full(shape, OPEN, dtype=torch.int32, device=self.device)

    def _next_actions(self, batch: TorchMiniBatch) -> torch.Tensor:
        if self._known is None or not isinstance(batch, MiniBatch):
            return self._act(batch)
        rows = batch.next_rows
        new = self._known[rows, 0] == OPEN
        if bool(new.any()):
            self._known[rows[new]] = self._act(batch, new).to(self._known.dtype)
        return self._known[rows].long()

    def _act(self, batch: TorchMiniBatch, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """The policy's actions in the next states of a batch, or of some of its rows."""
        x: Any = batch.next_observations
        masks, states = next_masks_of(batch), next_states_of(batch)
        if chosen is not None:
            x, states = x[chosen], states[chosen]
            masks = None if masks is None else masks[chosen]
        return self.act_in(x, masks, states)

    def act_in(
        self, x: torch.Tensor, masks: torch.Tensor | None, states: torch.Tensor
    ) -> torch.Tensor:
        """The policy's actions `(B, N)`.

        Args:
            x: scaled observations `(B, obs)`.
            masks: of the states; None without.
            states: the same observations as rules see them, unscaled.
        """
        if isinstance(self._evaluated, ActingFunction):
            return self._evaluated.predict_best_action(x, masks)
        assert isinstance(self._evaluated, MultiDiscreteImpl)
        return self._evaluated.act(x, mask_rule(masks), self._mode == "sample", states)

    def is_fixed(self, batch: TorchMiniBatch) -> bool:
        """Whether the policy does the same twice in a batch's next states."""
        if not isinstance(self._evaluated, ActingFunction):
            return self._mode == "greedy"
        return torch.equal(self._act(batch), self._act(batch))

    def temporal_difference_errors(self, batch: TorchMiniBatch) -> torch.Tensor:
        """Returns `r + gamma Q(s', pi(s')) - Q(s, a)`, `(B,)`."""
        critic = self._modules.q_funcs
        next_actions = self._next_actions(batch)
        next_values = critic.q_values(
            self._slot_layout, batch.next_observations, next_actions
        ).mean(0)
        q = critic.q_values(self._slot_layout, batch.observations, batch.actions).mean(0)
        return self.bootstrap(batch, next_values) - q

    def inner_predict_best_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._evaluated.predict_best_action(x)

    def inner_sample_action(self, x: Any, extra: Rule | None = None) -> torch.Tensor:
        return self._evaluated.sample_action(x)

    def inner_predict_value(self, x: Any, action: torch.Tensor) -> torch.Tensor:
        return self._modules.q_funcs.q_values(self._slot_layout, x, action).mean(0)

    @property
    def q_function(self) -> nn.ModuleList:
        return self._modules.q_funcs

    @property
    def q_function_optim(self) -> torch.optim.Optimizer:
        return self._modules.optim.optim


class MultiDiscreteFQE(MultiDiscreteAlgo[FQEImpl, MultiDiscreteFQEConfig]):
    """Estimates the value of a trained policy from offline data.

    d3rlpy's `DiscreteFQE` takes single choices only. After `fit`, `predict_value` is the estimate;
    d3rlpy's `InitialStateValueEstimationEvaluator` and `SoftOPCEvaluator` summarize it.

    The policy that logged is evaluated in the same way, and its episodes' returns are known. Where
    the estimate misses them (`log_check`), that of the policy is no better, and `predict_value`
    refuses it after `fit`.

    Args:
        algo: a built algorithm of this package, or a function of observations `(B, obs)` that
            returns actions `(B, N)`, such as a rule; it may draw them at random.
        config: defaults if None; without `observation_scaler`, which is the algorithm's (a
            function's observations are as in the dataset, whatever scaler Q has).
        device: as in d3rlpy; must be the algorithm's.
        mode: evaluate the greedy or the sampled policy.
        takes_masks: whether a function's second argument is the masks `(B, N, K)` of the states,
            None if there are none. By default it must keep to a dataset's masks by itself. An
            algorithm always keeps to them.
        check: evaluate the logging policy as well, and refuse values where its return is missed;
            False does neither, in half of the time.

    Attributes:
        log_check: the comparison after the last `fit`; None before, and without `check`.

    Raises:
        NvecMismatchError: the config has another action space, or an observation scaler.
        RuntimeError: the algorithm is not built.
    """

    config_class = MultiDiscreteFQEConfig
    impl_class: type[FQEImpl] = FQEImpl
    log_check: LogCheck | None = None

    def __init__(
        self,
        algo: MultiDiscreteAlgo[Any, Any] | Callable[..., NDArray],
        config: MultiDiscreteFQEConfig | None = None,
        device: DeviceArg = False,
        mode: ActionMode = "greedy",
        takes_masks: bool = False,
        check: bool = True,
    ) -> None:
        config = dataclasses.replace(config or MultiDiscreteFQEConfig())
        if isinstance(algo, MultiDiscreteAlgo):
            _adopt_spaces(config, algo)
        super().__init__(config, device)
        self._algo = algo
        self._mode: ActionMode = mode
        self._takes_masks = takes_masks
        self._check = check

    def inner_create_impl(self, observation_shape: Shape, action_size: int) -> None:
        config = self._config
        shape, factory = cast_flat_shape(observation_shape), config.encoder_factory
        critics = [
            JointCritic(shape, factory, self._nvec, config.n_critics).to(self._device)
            for _ in range(4)
        ]
        trained = nn.ModuleList([critics[0], critics[2]]).named_modules()
        optim = self.create_optim(config.optim_factory, trained, config.learning_rate)
        modules = FQEModules(
            q_funcs=critics[0],
            targ_q_funcs=critics[1],
            log_q_funcs=critics[2],
            targ_log_q_funcs=critics[3],
            optim=optim,
        )
        evaluated: Acting | None = (
            self._algo.impl
            if isinstance(self._algo, MultiDiscreteAlgo)
            else ActingFunction(self._algo, config, self._takes_masks, shape[0])
        )
        assert evaluated is not None
        self._impl = self.impl_class(
            observation_shape, modules, config, self._device, evaluated, self._mode, self._check
        )

    def _as_buffer(self, dataset: Any) -> DeviceReplayBuffer:
        buffer = as_device_buffer(dataset, self._config.nvec, self._config.observation_layout)
        return super()._as_buffer(buffer.seen_by(self._algo))

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Measures returns, which Q is learned in units of."""
        super().train_first_stages(buffer, run)
        if self._grad_step > 0:
            return
        parts = self._evaluation._modules
        online = [parts.q_funcs, parts.log_q_funcs]
        targets = [parts.targ_q_funcs, parts.targ_log_q_funcs]
        for critic in online + targets:
            critic.fit_scale(buffer, self._rewards(buffer)[None], [self._config.gamma])

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        self.log_check = None
        index = torch.arange(min(buffer.transition_count, ROWS_TRIED), device=buffer.device)
        batch = self.scale(buffer.transitions(index))
        # Trying a function must not disturb the run's random numbers.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            is_fixed = not self.compiled and self._evaluation.is_fixed(batch)
        self._evaluation.remember_actions(len(buffer.observations), is_fixed)
        self._log = buffer
        return super().batch_source(buffer)

    def end_run(self) -> None:
        """Compares the value of the logging policy with its returns."""
        super().end_run()
        self._evaluation.modules.set_eval()  # training leaves networks dropping out
        if not self._check:
            return
        self.log_check = self._compare_with_log(self._log)
        if not self.log_check.holds:
            LOG.warning("The evaluation is not to be believed", log=str(self.log_check))

    @torch.no_grad()
    def _compare_with_log(self, buffer: DeviceReplayBuffer) -> LogCheck:
        starts = buffer.episode_starts[:-1]
        first = self.scale(buffer.transitions(starts))
        critic = self._evaluation._modules.log_q_funcs
        x: Any = first.observations
        estimated = critic.q_values(self._evaluation._slot_layout, x, first.actions).mean()
        returns = buffer.completed_returns(self._rewards(buffer), [self._config.gamma])[0, starts]
        observed, deviation = float(returns.mean()), float(returns.std(correction=0))
        tolerance = 2.0 * deviation / len(starts) ** 0.5 + 0.1 * max(abs(observed), deviation)
        return LogCheck(float(estimated), observed, self._unsettled(buffer), tolerance)

    def _unsettled(self, buffer: DeviceReplayBuffer) -> float:
        gamma = self._config.gamma
        if gamma >= 1.0:  # values have no fixed horizon to settle within
            return 0.0
        batch = buffer.transitions(buffer.spread_index(ROWS_OF_ERRORS))
        errors = self._evaluation.temporal_difference_errors(self.scale(batch))
        return float(errors.mean()) / (1.0 - gamma)

    def _rewards(self, buffer: DeviceReplayBuffer) -> torch.Tensor:
        scaler = self._config.reward_scaler
        return buffer.rewards if scaler is None else scaler.transform(buffer.rewards)

    @torch.no_grad()
    def first_values(self, dataset: DeviceReplayBuffer) -> tuple[float, float]:
        """Returns mean values in the first states of a dataset's episodes.

        Returns:
            That of the policy, and that of who logged (by the logged actions; needs `check`).
        """
        impl, starts = self._evaluation, dataset.episode_starts[:-1]
        first = self.scale(dataset.transitions(starts))
        x: Any = first.observations
        actions = impl.act_in(x, masks_of(first), states_of(first))
        slot_layout, modules = impl._slot_layout, impl._modules
        of_policy = modules.q_funcs.q_values(slot_layout, x, actions).mean()
        of_log = modules.log_q_funcs.q_values(slot_layout, x, first.actions).mean()
        return float(of_policy), float(of_log)

    @property
    def _evaluation(self) -> FQEImpl:
        return self.require_built()

    def predict_value(self, x: Observation, action: NDArray) -> NDArray:
        """Returns the estimated value of actions `(B, N)` in observations `(B, obs)`, `(B,)`.

        Raises:
            InvalidObservationError: as of `predict`.
            InvalidActionSpaceError: actions that are not in the action space.
            NotConvergedError: the evaluation missed what the log itself returned, see `log_check`.
        """
        if self.log_check is not None and not self.log_check.holds:
            raise NotConvergedError(
                f"Fitted Q evaluation is not to be believed here: {self.log_check}. Train it for "
                "more steps (n_steps=), or with a smaller gamma; if it stays so, the observations "
                "do not tell the values. MultiDiscreteFQE(..., check=False) returns them anyway."
            )
        return super().predict_value(x, action)

    @property
    def compiled(self) -> bool:
        """Whether updates are recorded; never those that call a function or choose by rules."""
        return isinstance(self._algo, MultiDiscreteAlgo) and super().compiled

    @property
    def _updates_by_rules(self) -> bool:
        return isinstance(self._algo, MultiDiscreteAlgo) and bool(self._algo.config.rules)

    def save_policy(self, fname: str, masks: bool = False) -> None:
        """Writes the evaluated policy; a TypeError if it is a function."""
        if not isinstance(self._algo, MultiDiscreteAlgo):
            raise TypeError(
                "Expected an algorithm to save, but the evaluated policy is a function."
            )
        self._algo.save_policy(fname, masks)

    def predict(self, x: Observation) -> NDArray:
        if not isinstance(self._algo, MultiDiscreteAlgo):
            return self._call(x)
        return self._algo.predict(x)

    def predict_masked(self, x: Observation, masks: NDArray, sample: bool = False) -> NDArray:
        """Returns the evaluated policy's actions; a TypeError if it is a function without masks."""
        if isinstance(self._algo, MultiDiscreteAlgo):
            return self._algo.predict_masked(x, masks, sample)
        if not self._takes_masks:
            raise TypeError(
                "Expected an algorithm, or a function that takes masks (takes_masks=True)."
            )
        return self._call(x, masks)

    def sample_action(self, x: Observation) -> NDArray:
        if not isinstance(self._algo, MultiDiscreteAlgo):
            return self._call(x)
        return self._algo.sample_action(x)

    def _call(self, x: Observation, masks: NDArray | None = None) -> NDArray:
        """Returns the actions of a function."""
        function: Any = self._algo
        observations = np.asarray(x)
        actions: NDArray = (
            function(observations, masks) if self._takes_masks else function(observations)
        )
        return actions


def _adopt_spaces(config: MultiDiscreteFQEConfig, algo: MultiDiscreteAlgo[Any, Any]) -> None:
    """Gives the config the algorithm's spaces, observation scaler and encoders of images."""
    if algo.impl is None:
        raise RuntimeError("Train or build the algorithm before evaluating it.")
    own = algo.config
    if config.nvec not in (None, own.nvec) or config.observation_scaler is not None:
        raise NvecMismatchError(
            "Expected a config without nvec and observation_scaler, which are the algorithm's, "
            f"got nvec={config.nvec} and {config.observation_scaler}."
        )
    config.nvec, config.observation_scaler = own.nvec, own.observation_scaler
    config.history, config.history_actions = own.history, own.history_actions
    config.observation_layout = own.observation_layout
    config.image_encoder_factory = own.image_encoder_factory
