"""Base class of the algorithms: d3rlpy's verbs for MultiDiscrete actions."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.algos.qlearning.explorers import Explorer
from d3rlpy.algos.utility import build_scalers_with_env
from d3rlpy.base import DeviceArg, register_learnable
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import ReplayBufferBase, cast_flat_shape
from d3rlpy.logging import LOG, FileAdapterFactory
from d3rlpy.optimizers import OptimizerFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper
from d3rlpy.torch_utility import TorchMiniBatch
from d3rlpy.types import GymEnv, NDArray, Observation, Shape
from gymnasium.spaces import Box
from torch import nn

from spin_d3rlpy._compat import DiscreteView, fuse_adam, keep_whole_episodes
from spin_d3rlpy.algos.config import ACTING_SCALERS, SCALERS, MultiDiscreteConfig
from spin_d3rlpy.algos.exports import export_policy
from spin_d3rlpy.algos.fit import Timer, Training, create_budget
from spin_d3rlpy.algos.impl import MultiDiscreteImpl
from spin_d3rlpy.algos.inputs import check_observations
from spin_d3rlpy.algos.options import FitOptions, OnlineOptions
from spin_d3rlpy.algos.recipes import recipe_fields
from spin_d3rlpy.algos.recorded import Recordability, RecordedUpdate, is_recordable
from spin_d3rlpy.algos.signatures import takes
from spin_d3rlpy.asm.conditions import ArrayLike, as_mask, as_mask_or_rule
from spin_d3rlpy.asm.rule_files import check_rules
from spin_d3rlpy.asm.rules import AnyRule, RowMask
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer
from spin_d3rlpy.data.action_spaces import flat_actions_of, with_flat_actions
from spin_d3rlpy.data.buffer.batches import BatchInStates, BatchSource, imitation_batch
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.data.observation_spaces import (
    holds_rows,
    is_single,
    observation_layout_of_env,
    row_of,
    rows_of,
    shown_images,
    with_flat_observations,
)
from spin_d3rlpy.data.online import create_replay_buffer
from spin_d3rlpy.data.scalers import fit_scaler
from spin_d3rlpy.data.tables.from_table import Columns, read_states
from spin_d3rlpy.data.tables.preparation import TablePreparation
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidDatasetError,
    InvalidObservationError,
    NvecMismatchError,
)
from spin_d3rlpy.fast import keep_freed_memory
from spin_d3rlpy.fast.precision import autocast, fast_products
from spin_d3rlpy.files.atomic import atomic_write, write_bytes, write_errors
from spin_d3rlpy.histories import History, Recent
from spin_d3rlpy.images import RowSize, of_numbers
from spin_d3rlpy.nvec import (
    SlotLayout,
    as_choices,
    check_nvec,
    nvec_from_space,
    require_same_nvec,
)
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.distributed import share_training
from spin_d3rlpy.training.graphs import can_record
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.progress import warn_of_interrupt
from spin_envs import ActionLayout, FlatActions, ObservationLayout

TImpl = TypeVar("TImpl", bound=MultiDiscreteImpl)
TConfig = TypeVar("TConfig", bound=MultiDiscreteConfig)


def no_timer(_name: str) -> AbstractContextManager[None]:
    """A timer that measures nothing."""
    return nullcontext()


@dataclasses.dataclass()
class Arguments:
    """What every algorithm's constructor takes in addition to its config's fields.

    Args:
        config: the config as a whole; then no fields and no recipe.
        device: as in d3rlpy (`"cuda:0"`, `True`, ...).
        enable_ddp: several processes train one model, see `spin_d3rlpy.training.distributed`.
        recipe: `"published"` (the classes' defaults) or `"tuned"`, see `spin_d3rlpy.algos.recipes`.
    """

    config: Any = None
    device: DeviceArg = False
    enable_ddp: bool = False
    recipe: str = "published"


class MultiDiscreteAlgo(QLearningAlgoBase[TImpl, TConfig]):
    """Base class of algorithms whose actions are integer arrays `(B, N)`.

    Args:
        config: defaults if None.
        device: see `Arguments`.
        enable_ddp: likewise.
        recipe: likewise.
        **fields: config fields, e.g. `SPINIQL(batch_size=512)`; they override the recipe's.

    Attributes:
        preparation: how the table that it learned from became states, if it was one.
        caches_features: see `spin_d3rlpy.algos.fit.Trainable`.

    Raises:
        ValueError: an unknown recipe, or a recipe in addition to a config.
        TypeError: an unknown field.
    """

    config_class: type[Any]  # of the configs, which are generic in their policy
    preparation: TablePreparation | None = None
    caches_features: bool | None = None
    counts_operations: bool = False
    _acts_in_updates = False  # whether an update chooses actions
    _recorded: RecordedUpdate | None = None
    _recent: Recent | None = None  # what `act` has seen of its episode
    _logged_reason: str | None = None  # why updates are not recorded, as the log says

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        """Registers an algorithm with its config, for saved files."""
        super().__init_subclass__(**kwargs)
        if name is not None:
            config_class: Any = cls.config_class
            config_class.type_name, config_class.algo_class = name, cls
            register_learnable(config_class)

    def __init__(
        self,
        config: TConfig | None = None,
        device: DeviceArg = False,
        enable_ddp: bool = False,
        recipe: str = "published",
        **fields: Any,
    ) -> None:
        if config is None:
            config = self.config_class(**self._fields_of_recipe(recipe, fields))
        elif recipe != "published":
            raise ValueError(
                f"A recipe determines a config: pass either config= or recipe={recipe!r}."
            )
        elif fields:
            config = dataclasses.replace(config, **fields)
        super().__init__(config, device, enable_ddp)

    @classmethod
    def _fields_of_recipe(cls, recipe: str, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the config's fields by a recipe; those that are given win."""
        return recipe_fields(recipe, cls.config_class) | given

    def get_action_type(self) -> ActionSpace:
        """MultiDiscrete actions count as discrete to d3rlpy."""
        return ActionSpace.DISCRETE

    @property
    def flat_actions(self) -> FlatActions | None:
        """How its choices become what the environment takes; None where both are the same."""
        return self._config.flat_actions

    @flat_actions.setter
    def flat_actions(self, actions: FlatActions | None) -> None:
        self._config.flat_actions = actions

    @property
    def _nvec(self) -> list[int]:
        assert self._config.nvec is not None
        return self._config.nvec

    def create_impl(self, observation_shape: Shape, action_size: int) -> None:
        """Builds the networks; `action_size` is ignored in favor of the config's `nvec`.

        Raises:
            InvalidActionSpaceError: `nvec` is unknown.
            InvalidDatasetError: observations are not flat vectors.
            InvalidObservationError: they are no rows of the config's `history` or images.
            ValueError: a history or images together with features of slots or choices, or an image
                that `image_encoder_factory` makes no encoder of.
            NvecMismatchError: a rule is for another action space.
            UntrustedRuleError: a rule is a function that a file names.
            RuntimeError: `enable_ddp` without a process group.
        """
        if self._config.nvec is None:
            raise InvalidActionSpaceError(
                "The number of choices of each slot is not known. Pass nvec=[...] in the "
                "config, or build from a dataset or environment with a MultiDiscrete space."
            )
        self._config.nvec = check_nvec(self._config.nvec)
        scaler: Any = self._config.observation_scaler
        if scaler is not None and scaler.built:
            # d3rlpy's scalers stay on the device that they first saw: each algorithm has its own.
            self._config.observation_scaler = dataclasses.replace(scaler)
        if len(observation_shape) != 1 or not isinstance(observation_shape[0], int | np.integer):
            raise InvalidDatasetError(
                f"Expected flat observations of shape (obs,), got shape {observation_shape}. "
                "Flatten numbers first, and keep images as uint8."
            )
        size = newest = self._row_size(int(observation_shape[0]))
        if self._history is not None:
            newest = self._history.observation_size(size)
        if self._config.layout is not None:
            self._config.layout.check(newest, self._config.nvec)
            if self._history is not None and self._config.layout.has_features:
                raise ValueError(
                    "A history does not go together with features of slots or choices, whose "
                    "columns are those of one observation. Expected history=1, or "
                    "layout=ActionLayout(), which uses no features."
                )
        check_rules(self._config.rules or [], self._config.nvec, newest)
        super().create_impl((size,), max(self._config.nvec))
        if self._enable_ddp:
            assert self._impl is not None
            for network in self._impl.modules.get_torch_modules().values():
                share_training(network)

    def _row_size(self, size: int) -> int:
        """Returns the length of rows, which knows their images if there are some."""
        config, history = self._config, self._history
        images = config.observation_layout
        if images is None:
            return size
        if config.layout is not None and config.layout.has_features:
            raise ValueError(
                "Images do not go together with features of slots or choices, which are columns of "
                "an observation. Expected layout=ActionLayout(), which uses no features."
            )
        n = 1 if history is None else history.length
        row = RowSize.of(images, config.image_encoder_factory, n, size - n * images.size)
        expected = images.size if history is None else history.row_size(images.size)
        if size != expected:
            raise InvalidObservationError(
                f"Expected rows of {expected} numbers, of which images are a part, got {size}."
            )
        return row

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Builds the networks for any dataset that `fit` accepts."""
        self._build_with_buffer(self._as_buffer(dataset))

    def build_with_env(self, env: GymEnv) -> None:
        """Builds the networks for an environment, whose actions may need no bins.

        For bins, wrap it in `spin_envs.FlattenAction`. Scalers that need data (of most `DecQN`
        variants, by default) stay unfitted: acting and updating then raise a `RuntimeError` with
        advice.
        """
        env = self._flat(env)
        self._adopt_nvec(nvec_from_space(env.action_space), "the environment")
        self._adopt_layout(layout_of(env))
        self._adopt_actions(flat_actions_of(env))
        self._adopt_images(observation_layout_of_env(env), "the environment")
        shape = env.observation_space.shape or ()
        if self._history is not None and len(shape) == 1:
            shape = (self._history.row_size(shape[0]),)
        self.create_impl(shape, 0)

    def _as_buffer(self, dataset: Any) -> DeviceReplayBuffer:
        config = self._config
        buffer = as_device_buffer(
            dataset, config.nvec, config.observation_layout, self.flat_actions
        )
        self._adopt_nvec(buffer.nvec, "the dataset")
        self._adopt_layout(buffer.layout)
        if self._config.rules is None and self._impl is None and buffer.rules is not None:
            self._config.rules = list(buffer.rules)
        if self._impl is None or self.preparation is None:
            self.preparation = buffer.preparation
        self._adopt_actions(buffer.flat_actions)
        self._adopt_images(buffer.observation_layout, "the dataset")
        config = self._config
        if self._impl is None and config.history == 1 and buffer.history is not None:
            config.history = buffer.history.length
            config.history_actions = buffer.history.with_actions
        return buffer.to(self._device).with_history(config.history, config.history_actions)

    @property
    def _history(self) -> History | None:
        return History.of(self._config)

    def _adopt_nvec(self, nvec: list[int], source: str) -> None:
        if self._config.nvec is None:
            self._config.nvec = list(nvec)
        require_same_nvec(self._config.nvec, nvec, type(self).__name__, source)

    def _adopt_layout(self, layout: ActionLayout | None) -> None:
        if self._config.layout is None and self._impl is None:
            self._config.layout = layout

    def _adopt_images(self, layout: ObservationLayout | None, source: str) -> None:
        known = self._config.observation_layout
        if known is None and self._impl is None:
            self._config.observation_layout = layout
        elif layout != known:
            raise InvalidObservationError(
                f"{type(self).__name__} sees {shown_images(known)}, {source} has "
                f"{shown_images(layout)}. Expected observations with the same parts in the same "
                "order."
            )

    def _adopt_actions(self, actions: FlatActions | None) -> None:
        known = self.flat_actions
        if self._impl is None or known is None:
            self.flat_actions = actions
        elif actions is not None and actions != known:
            warnings.warn(
                f"The choices of these data stand for other actions than those that this "
                f"{type(self).__name__} has learned. Read them with bins=algo.flat_actions.",
                UserWarning,
                stacklevel=2,
            )

    def _flat(self, env: GymEnv) -> gymnasium.Env[Any, Any]:
        """The environment with slots of choices as actions, and images in rows."""
        flat = with_flat_actions(cast(Any, env), self.flat_actions)
        return with_flat_observations(flat, self._config.observation_layout)

    def _build_with_buffer(
        self, buffer: DeviceReplayBuffer, run_seconds: float | None = None
    ) -> None:
        """Builds the networks for a run of some seconds, if it has a budget."""
        fit_scaler(self._config.observation_scaler, buffer, self._config.layout)
        fit_scaler(self._config.reward_scaler, buffer)
        shape = (buffer.observation_size,)
        if self._impl is None:
            self.adopt_data(buffer)
            self.create_impl(shape, 0)
        elif tuple(self._impl.observation_shape) != shape:
            raise NvecMismatchError(
                f"{type(self).__name__} was built for observations of shape "
                f"{self._impl.observation_shape}, the dataset has {shape}."
            )

    def adopt_data(self, buffer: DeviceReplayBuffer) -> None:
        """Fills fields of the config that data decide, before the networks are built."""

    def require_built(self, scalers: Sequence[str] = ()) -> TImpl:
        """Returns the built networks.

        Args:
            scalers: fields of the config whose scalers must be fitted.

        Raises:
            RuntimeError: the networks are not built, or a scaler is not fitted.
        """
        if self._impl is None:
            raise RuntimeError("Call fit, build_with_dataset or build_with_env first.")
        for name in scalers:
            scaler = getattr(self._config, name)
            if scaler is not None and not scaler.built:
                raise RuntimeError(
                    f"{type(self).__name__} has a {type(scaler).__name__} as {name}, which is not "
                    "fitted: an environment has no data to fit it to. Call fit or "
                    f"build_with_dataset first, or pass {name}=None or a fitted one."
                )
        return self._impl

    def predict(self, x: Observation) -> NDArray:
        """Returns greedy actions `(B, N)` for observations `(B, obs)`.

        Observations with images may also be as the environment has them: images `(B, C, H, W)`, or
        a dict or tuple of arrays of B rows. With a `history` they are rows of the last ones,
        `dataset.with_history(n).observations_at`; `act(observation)` keeps them by itself.

        Raises:
            InvalidObservationError: wrong shape, or not finite.
        """
        return self._act(self.check_observations(x), None, sample=False)

    def predict_table(self, table: str | Path | Columns) -> list[dict[str, Any]]:
        """Returns greedy choices for a table's rows, by the table's names.

        Columns of the state are prepared as those of the log were, which `from_table` read: dates,
        words and missing values, too. Other columns may be absent; with `missing="forward"`, rows
        with the same value in the log's episode column belong together, in their order.

        Args:
            table: as of `from_table`.

        Returns:
            One mapping per row, from action columns to choices, e.g. `{"drug": "x", "dose": 50}`.

        Raises:
            RuntimeError: the algorithm is not built, or its log was not read by `from_table`.
            ValueError: it sees a history.
            InvalidDatasetError: a column is missing or a cell invalid; the text names row and
                column.
            FileNotFoundError: there is no such file.
        """
        self.require_built(ACTING_SCALERS)
        if self._history is not None:
            raise ValueError(
                f"Rows of a table are single observations, and this {type(self).__name__} sees "
                f"the last {self._history.length}: pass dataset.with_history({self._history.length}"
                ").observations_at(rows) to predict, or observations one by one to act."
            )
        if self.preparation is None:
            raise RuntimeError(
                f"This {type(self).__name__} does not know how a table's columns become states: "
                "its log was not read by from_table. Train it on one that was, or use predict."
            )
        states = read_states(table, self.preparation)
        return self.preparation.named(self.predict(states)) if len(states) else []

    def sample_action(self, x: Observation) -> NDArray:
        """Returns sampled actions `(B, N)`; observations and errors as of `predict`."""
        return self._act(self.check_observations(x), None, sample=True)

    def predict_masked(self, x: Observation, masks: NDArray, sample: bool = False) -> NDArray:
        """Returns actions `(B, N)` whose choices a mask of each state allows.

        They keep the config's `rules` as well.

        Args:
            x: observations `(B, obs)`.
            masks: `(B, N, K)` or `(N, K)` bool, True where a choice may be made, such as
                `info["action_mask"]`; or flat, `(B, S)` or `(S,)`, slot after slot's choices.
            sample: draw them, as `sample_action` does; by default they are greedy.

        Raises:
            InvalidObservationError: as of `predict`.
            NoAllowedChoiceError: no choice is left for a slot.
            ValueError: masks of another shape or type.
        """
        observations = self.check_observations(x)
        slot_layout = SlotLayout(self._nvec)
        mask = as_mask(masks, len(observations), slot_layout, torch.device(self._device))
        return self._act(observations, RowMask(mask), sample)

    def act(
        self,
        x: Observation,
        extra: ArrayLike | AnyRule | Sequence[AnyRule] | None = None,
        sample: bool = False,
    ) -> Any:
        """Returns an action in one environment, or actions, that keep conditions of the call.

            algo.reset()  # before each episode
            action = algo.act(observation)

        Of one observation `(obs,)`, or with images one of the environment's, it is the action that
        the environment takes, in whatever space the data's environment has, and a `history` is kept
        by itself, from `reset` on. Of rows, as of `predict`, they are `(B, N)` choices. The
        config's `rules` hold, too.

        Args:
            x: one observation `(obs,)`, or observations `(B, obs)`.
            extra: a rule or several, see `spin_d3rlpy.asm.rules`, or a mask, see `predict_masked`.
            sample: draw them; by default they are greedy.

        Raises:
            InvalidObservationError: as of `predict`.
            NoAllowedChoiceError: no choice is left for a slot.
            NvecMismatchError: a rule is of another action space.
            ValueError: a rule takes neither `(partial)` nor `(partial, state)`, or a mask is of
                another type or shape.
        """
        images = self._config.observation_layout
        is_one = np.ndim(cast(Any, x)) == 1 if images is None else is_single(images, x)
        if not is_one:
            return self._act_with(self.check_observations(x), extra, sample)
        self._recent = self._recent or Recent(self._history)
        (size,) = cast_flat_shape(self.require_built(ACTING_SCALERS).observation_shape)
        if self._history is not None:
            size = self._history.observation_size(size)
        single = np.asarray(x)[None] if images is None else row_of(images, x)
        newest = check_observations(single, size)
        actions = self._act_with(self._recent.rows(newest, [0]), extra, sample)
        self._recent.acted(newest, actions, [0])
        choices: NDArray = actions[0]
        return choices if self.flat_actions is None else self.flat_actions.unflatten(choices)

    def _act_with(self, observations: NDArray, conditions: Any, sample: bool) -> NDArray:
        """Returns actions by rules or a mask as `act` takes them."""
        slot_layout, device = SlotLayout(self._nvec), torch.device(self._device)
        mask, rule = as_mask_or_rule(conditions, len(observations), slot_layout, device)
        return self._act(observations, rule if mask is None else RowMask(mask), sample)

    def reset(self) -> None:
        """Begins a new episode for `act(observation)`: what was seen before is forgotten."""
        self._recent = None

    @torch.inference_mode()  # an eighth less a decision of many small operations than `no_grad`
    def _act(self, observations: NDArray, extra: AnyRule | None, sample: bool) -> NDArray:
        with self._acting_on(len(observations)):
            unscaled = torch.as_tensor(observations, dtype=torch.float32, device=self._device)
            inputs, states = self.network_input(unscaled), self.states(unscaled)
            actions = self.require_built().act(inputs, extra, sample, states)
        return actions.cpu().numpy()

    def predict_value(self, x: Observation, action: NDArray) -> NDArray:
        """Returns `Q(s, a)` of shape `(B,)` for observations `(B, obs)`, actions `(B, N)`.

        Raises:
            InvalidObservationError: as of `predict`.
            InvalidActionSpaceError: actions that are not in the action space.
        """
        observations = self.check_observations(x)
        actions = self._check_actions(action, len(observations))
        chosen = torch.as_tensor(actions, dtype=torch.int64, device=self._device)
        with fast_products(self._device, len(observations)), torch.no_grad():
            inputs = self.network_input(observations)
            values: NDArray = self.require_built().predict_value(inputs, chosen).cpu().numpy()
        return values

    def _acting_on(self, n_observations: int) -> AbstractContextManager[None]:
        assert self._impl is not None
        return fast_products(self._device, n_observations * self._impl.n_tokens)

    def _check_actions(self, action: NDArray, n_rows: int) -> NDArray:
        return as_choices(action, (n_rows, len(self._nvec)), "you", self._nvec)

    def check_observations(self, x: Observation) -> NDArray:
        """Returns observations as float32 `(B, obs)`.

        Raises:
            RuntimeError: the algorithm is not built, or its observation scaler is not fitted.
            InvalidObservationError: wrong shape, not numbers, or not finite.
        """
        (size,) = cast_flat_shape(self.require_built(ACTING_SCALERS).observation_shape)
        images = self._config.observation_layout
        if images is not None and self._history is None and not holds_rows(images, x):
            x = rows_of(images, x)
        try:
            return check_observations(x, size)
        except InvalidObservationError as error:
            if self._history is None:
                raise
            raise InvalidObservationError(
                f"{error} A row is a history of {self._history.length} observations, see "
                "spin_d3rlpy.histories: dataset.with_history(..).observations_at(rows) "
                "has such rows, and act(observation) keeps them by itself."
            ) from error

    def network_input(self, observations: NDArray | torch.Tensor) -> torch.Tensor:
        """The networks' input `(B, obs)`, on their device."""
        inputs = self._on_device(observations)
        return inputs if self._transform is None else self._transform(inputs)

    def states(self, observations: NDArray | torch.Tensor) -> torch.Tensor:
        """Observations `(B, obs)` as rules see them, unscaled, on the networks' device.

        Of a history it is the newest one.
        """
        seen = self._on_device(observations)
        return seen if self._history is None else self._history.newest(seen)

    def _on_device(self, observations: NDArray | torch.Tensor) -> torch.Tensor:
        """Observations on the networks' device, where tensors are already."""
        if isinstance(observations, torch.Tensor):
            return observations
        return torch.as_tensor(observations, dtype=torch.float32, device=self._device)

    @property
    def _transform(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        scaler, impl = self._config.observation_scaler, self._impl
        if scaler is None or impl is None:
            return None if scaler is None else scaler.transform
        return of_numbers(cast_flat_shape(impl.observation_shape)[0], scaler.transform)

    def save(self, fname: str) -> None:
        """Writes networks, optimizers and configuration as d3rlpy's `.d3` file.

        A new process must `import spin_d3rlpy` before `d3rlpy.load_learnable` reads it.

        Raises:
            RuntimeError: the algorithm is not built, or a scaler is not fitted.
            FileWriteError: the file cannot be written; an earlier one remains.
        """
        self.require_built(SCALERS)
        with write_errors(fname), atomic_write(fname) as partial:
            super().save(str(partial))

    def save_model(self, fname: str) -> None:
        """Writes networks and optimizers for d3rlpy's `load_model`.

        Raises:
            RuntimeError: the algorithm is not built.
            FileWriteError: the file cannot be written; an earlier one remains.
        """
        content = io.BytesIO()  # torch may end the process when it writes to a full disk
        self.require_built().save_model(content)
        write_bytes(fname, content.getbuffer())

    def save_policy(self, fname: str, masks: bool = False) -> None:
        """Exports the greedy policy as TorchScript (`.pt`) or ONNX (`.onnx`), as d3rlpy does.

        Such a file cannot be loaded as an algorithm again: for that, `spin_d3rlpy.save_policy`.

        The file maps observations `(B, obs)` to actions `(B, N)`, scaling included, and runs
        without d3rlpy and this package. Images are an input `(B, C, H, W)` uint8 of the space's
        shape; next to numbers or other images, the first argument is a tuple of the numbers
        `(B, v)` and of each image (in ONNX inputs of their own, with the parts' names). With a
        `history` it takes rows. It keeps the config's `rules`; where they leave a slot
        without a choice, its action is -1 there instead of an error.

        Args:
            fname: the file.
            masks: whether the file has a second input, masks `(B, N, K)` bool, True where a choice
                may be made. Its actions are then those of `predict_masked`, and -1 in a slot whose
                mask allows nothing.

        Raises:
            RuntimeError: the algorithm is not built, or its observation scaler is not fitted.
            ValueError: another extension; a rule is a function that such a file cannot hold; or
                `masks` of a policy of another package whose `decode` takes no rule.
            ImportError: ONNX without the package `onnx` (`pip install "spin-d3rlpy[onnx]"`).
            FileWriteError: the file cannot be written; an earlier one remains.
        """
        impl = self.require_built(ACTING_SCALERS)
        if masks:
            impl.require_rules()
        export_policy(self, fname, masks)

    @property
    def compiled(self) -> bool:
        """Whether updates are recorded as CUDA graphs, see `MultiDiscreteConfig.compile_graph`."""
        return self._recordability.reason_against() is None

    @property
    def _recordability(self) -> Recordability:
        return Recordability(
            wanted=self._config.compile_graph,
            device=self._device,
            enable_ddp=self._enable_ddp,
            by_rules=self._updates_by_rules,
            counts_operations=self.counts_operations,
            update_is_overridden=self._overrides_update,
        )

    @property
    def _updates_by_rules(self) -> bool:
        return self._acts_in_updates and bool(self._config.rules)

    @property
    def _overrides_update(self) -> bool:
        return getattr(self.update, "__func__", None) is not MultiDiscreteAlgo.update

    @property
    def enable_ddp(self) -> bool:
        """Whether several processes train one model."""
        return self._enable_ddp

    def update(self, batch: Any) -> dict[str, float]:
        """Does one gradient step on a d3rlpy mini-batch or on an unscaled `TorchMiniBatch`.

        `fit` calls an override of this method, with a `TorchMiniBatch` on the training device.
        """
        if not isinstance(batch, TorchMiniBatch):
            batch = TorchMiniBatch.from_batch(
                batch, self._config.gamma, self.need_returns_to_go, self._device
            )
        return {k: v.item() for k, v in self._update_without_sync(batch).items()}

    def _update_without_sync(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        """`update` with metrics left on the device, valid until the next call."""
        if self.compiled and is_recordable(batch):
            return self._finish_step(self._recorded_update().on_batch(batch))
        return self._finish_step(self.gradient_step(batch))

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
        reason = self._recordability.reason_against(source)
        if reason is not None and self._config.compile_graph and can_record(self._device):
            self._log_why_not_recorded(reason)
        with measure("sample_batch"):  # a recording draws its batches itself
            batch = source.sample_transition_batch(self.batch_size) if reason else None
        with measure("algorithm_update"):
            if batch is None:
                return self._finish_step(self._recorded_update().on_source(source, self.batch_size))
            if self._overrides_update:
                metrics = self.update(batch)
                return {k: torch.tensor(v, dtype=torch.float64) for k, v in metrics.items()}
            return self._finish_step(self.gradient_step(batch))

    def _log_why_not_recorded(self, reason: str) -> None:
        if reason != self._logged_reason:
            self._logged_reason = reason
            LOG.info("Updates are not recorded as a CUDA graph, but run one by one", reason=reason)

    def gradient_step(self, batch: TorchMiniBatch) -> dict[str, torch.Tensor]:
        """Does the work of one gradient step on the device, which a recording replays."""
        impl = self.require_built(SCALERS)
        keep_freed_memory()
        with autocast(self._device, self._config.precision):
            return impl.update_without_sync(self.scale(batch), self._grad_step)

    def _finish_step(self, metrics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Work after every gradient step, recorded or not."""
        assert self._impl is not None
        self._impl.after_update(self._grad_step)
        self._grad_step += 1
        return metrics

    def _recorded_update(self) -> RecordedUpdate:
        self.require_built()
        self._recorded = self._recorded or RecordedUpdate(self)
        return self._recorded

    def forget_recording(self) -> None:
        """Frees what is kept of a run: a recorded update, with the dataset that it reads."""
        self._recorded = None

    def scale(self, batch: TorchMiniBatch) -> TorchMiniBatch:
        """Returns a batch with observations and rewards as networks see them."""
        changes: dict[str, Any] = {}
        if self._transform is not None or self._history is not None:  # rules see something else
            for name, kept in (("observations", "states"), ("next_observations", "next_states")):
                unscaled = getattr(batch, name)
                changes[kept] = self.states(unscaled)
                if self._transform is not None:
                    changes[name] = self._transform(unscaled)
            if not isinstance(batch, BatchInStates):
                batch = BatchInStates(**vars(batch))
        if reward_scaler := self._config.reward_scaler:
            changes["rewards"] = reward_scaler.transform(batch.rewards)
        if changes and imitation_batch(batch) is not batch:
            changes["imitation"] = self.scale(imitation_batch(batch))
        return dataclasses.replace(batch, **changes) if changes else batch

    @takes(FitOptions)
    def fit(self, *arguments: Any, **options: Any) -> list[tuple[int, dict[str, float]]]:
        """Trains on a dataset and returns `(epoch, metrics)` pairs; see `fitter`."""
        return list(self._epochs(FitOptions(*arguments, **options)))

    @takes(FitOptions)
    def fitter(  # type: ignore[override]
        self,
        dataset: Any,
        n_steps: int | None = None,
        n_steps_per_epoch: int = 10_000,
        **options: Any,
    ) -> Generator[tuple[int, dict[str, float]], None, None]:
        """Trains epoch by epoch, like d3rlpy's `fitter`, with these differences.

        - Exactly `n_steps` steps are made; d3rlpy drops a shorter last epoch.
        - The dataset is moved to the training device once and batches are drawn there.
        - Losses are fetched only when logged. `update` is called only if overridden, with a
          `TorchMiniBatch` on the training device instead of a `TransitionMiniBatch`.
        - Timings do not wait for the device: on a GPU `time_step`, `time_sample_batch` and
          `time_algorithm_update` are launch times. With `compile_graph`, `time_algorithm_update`
          includes drawing the batch. `time_epoch` is the whole epoch's,
          `time_evaluation` an evaluator's (the mean of several).
        - Two runs never share a log folder.

        The arguments are the fields of `spin_d3rlpy.algos.options.FitOptions`, by name after the
        third: d3rlpy's `fit` and `fitter` have them in different orders.

        Yields:
            `(epoch, metrics)`; metrics include `step` and `seconds` (of all steps so far), with
            `clock="ops"` also the real `cpu_seconds`.

        Raises:
            ValueError: arguments do not fit each other, or learning rates have two schedules.
            InvalidCheckpointError: checkpoints are damaged, of another run, or exist although
                `resume` is False.
            CheckpointWriteError: a checkpoint cannot be written; earlier ones remain.
            FolderInUseError: another run is using `checkpoint_dir` or the log folder.
            DivergenceError: losses or weights are NaN or infinite; checked at logging and
                checkpoints. The last good checkpoint remains.
            InvalidDatasetError: the dataset is unusable.
            NvecMismatchError: the dataset has another action space than the algorithm.
        """
        yield from self._epochs(FitOptions(dataset, n_steps, n_steps_per_epoch, **options))

    def _epochs(self, options: FitOptions) -> Generator[tuple[int, dict[str, float]], None, None]:
        budget = create_budget(self, options)
        with budget.counting():
            buffer = self._as_buffer(options.dataset)
            self._build_with_buffer(buffer, budget.seconds)
            training = self.hold_out(buffer)
        # Evaluators get what they would get from d3rlpy.
        given = options.dataset
        is_seen = isinstance(given, ReplayBufferBase) and self._history is None
        for_evaluators = given if is_seen else buffer
        yield from Training(self, training, for_evaluators, options, budget).epochs()

    def create_optim(
        self, factory: OptimizerFactory, modules: Iterable[tuple[str, nn.Module]], rate: float
    ) -> OptimizerWrapper:
        """Returns an optimizer of these networks with a learning rate."""
        return fuse_adam(factory.create(modules, lr=rate, compiled=self.compiled))

    @takes(OnlineOptions)
    def fit_online(self, *arguments: Any, **options: Any) -> None:
        """Trains in an environment by d3rlpy's loop; its actions become slots as in the data.

        The arguments are the fields of `spin_d3rlpy.algos.options.OnlineOptions`.

        Raises:
            RuntimeError: a scaler must first be fitted to data.
            InvalidActionSpaceError: the action space is of another kind, or the explorer's actions
                are not in it.
        """
        given = OnlineOptions(*arguments, **options)
        self._build_for_acting(given.env)
        env = self._flat(given.env)
        seen: Any = dataclasses.replace(
            given,
            env=DiscreteView(env),
            buffer=_growing(given.buffer, env),
            eval_env=None if given.eval_env is None else DiscreteView(self._flat(given.eval_env)),
            logger_adapter=given.logger_adapter or FileAdapterFactory(),
        )
        super().fit_online(**vars(seen))

    def collect(
        self,
        env: GymEnv,
        buffer: ReplayBufferBase | None = None,
        explorer: Explorer | None = None,
        deterministic: bool = False,
        n_steps: int = 1_000_000,
        show_progress: bool = True,
    ) -> ReplayBufferBase:
        """Collects data in an environment by d3rlpy's loop; its actions become slots.

        `spin_d3rlpy.collect` does so with any function, keeps masks, and makes a dataset of it.

        Ctrl-C ends it early: what is collected so far is returned, with a warning. The last step of
        an episode that a time limit ended has no next observation in d3rlpy's buffer, and is not
        learned from; `spin_d3rlpy.collect` keeps it.

        Args:
            env: where it acts.
            buffer: see `fit_online`.
            explorer: see `fit_online`.
            deterministic: take greedy actions.
            n_steps: in the environment.
            show_progress: draw a progress bar.

        Raises:
            KeyboardInterrupt: Ctrl-C before the first transition.
            RuntimeError: see `fit_online`.
            InvalidActionSpaceError: see `fit_online`.
        """
        self._build_for_acting(env)
        env = self._flat(env)
        buffer = _growing(buffer, env)
        before = buffer.transition_count
        view: Any = DiscreteView(cast(Any, env))
        try:
            super().collect(view, buffer, explorer, deterministic, n_steps, show_progress)
        except KeyboardInterrupt:
            buffer.clip_episode(False)
            if buffer.transition_count == before:
                raise
            warn_of_interrupt(f"{buffer.transition_count - before:,} transitions")
        return buffer

    def _build_for_acting(self, env: GymEnv) -> None:
        if self._config.history > 1:
            raise ValueError(
                "A history is learned from datasets: d3rlpy's loop in an environment keeps none. "
                "Expected history=1, with an environment that stacks observations itself "
                "(gymnasium.wrappers.FrameStackObservation and FlattenObservation)."
            )
        env = self._flat(env)
        if self._impl is None:
            self.build_with_env(env)
        space = env.observation_space
        if isinstance(space, Box) and space.is_bounded():
            with suppress(NotImplementedError):  # of scalers that need data
                build_scalers_with_env(self, env)
        self.require_built(SCALERS)

    def hold_out(self, buffer: DeviceReplayBuffer) -> DeviceReplayBuffer:
        """Returns the episodes to train on; an override may keep the others to measure by."""
        return buffer

    def resume_from(self, checkpoints: Checkpoints) -> None:
        """Loads state in addition to networks (SPIN's ASM) from a resumed run's folder."""

    def begin_run(self, run: Run) -> None:
        """Prepares for a run, also a resumed one, before its first stages."""

    def train_first_stages(self, buffer: DeviceReplayBuffer, run: Run) -> None:
        """Called before the first step, for a policy's first stages; a resumed run skips it."""

    def batch_source(self, buffer: DeviceReplayBuffer) -> BatchSource:
        """Returns where the run's batches are drawn from."""
        return buffer.for_imitation(self._config.imitation_weights, self._imitation_rows)

    @property
    def _imitation_rows(self) -> int | None:
        """Rows of a separate mini-batch for the policy; None if it takes the critics'."""
        rows: int | None = getattr(self._config, "imitation_batch_size", None)
        return rows

    def batch_source_at(self, source: BatchSource, progress: float) -> BatchSource:
        """Returns the source of the next batch, given the last step's.

        Called before every step.

        Args:
            source: the last step's; `batch_source`'s before the first step.
            progress: completed share of the run, from 0 to 1.
        """
        share = getattr(self._config, "monte_carlo_share", 0.0)
        return source.with_horizon(self._config.gamma if progress < share else None)

    def checkpointed_parts(self) -> Mapping[str, Any]:
        """Returns what checkpoints keep of a run in addition to networks and optimizers.

        Called once, after `batch_source`. Each has `state_dict` and `load_state_dict`.
        """
        return {}

    def frozen_state(self) -> object:
        """Returns a value whose change causes a new recording of the update."""
        return None

    def before_evaluation(self) -> None:
        """Called before an epoch is evaluated."""

    def test_critics(self) -> None:
        """Tests what decides how to act; called before evaluations where the time affords it."""

    def spend_the_rest(self) -> float:
        """Decides what the rest of a run for a time trains; called some times on the way.

        Returns:
            How many times as long `test_critics` will take, about.
        """
        return 1.0

    def end_run(self) -> None:
        """Called after the last evaluation of a run that was not interrupted."""


def _growing(buffer: ReplayBufferBase | None, env: GymEnv) -> ReplayBufferBase:
    """Returns a buffer that episodes of any length can be added to."""
    if buffer is None:
        return create_replay_buffer(cast(Any, env))
    keep_whole_episodes(buffer)
    return buffer
