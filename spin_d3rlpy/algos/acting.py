"""d3rlpy's verbs for MultiDiscrete actions: building networks, acting, exporting."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.base import DeviceArg
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import ReplayBufferBase
from d3rlpy.logging import LOG
from d3rlpy.types import GymEnv, NDArray, Observation, Shape

from spin_d3rlpy._compat import export_onnx, export_torchscript
from spin_d3rlpy.algos.config import ACTING_SCALERS, SCALERS, MultiDiscreteConfig
from spin_d3rlpy.algos.files import copy_to
from spin_d3rlpy.algos.impl import MultiDiscreteImpl
from spin_d3rlpy.algos.recipes import recipe_fields
from spin_d3rlpy.asm.conditions import as_mask
from spin_d3rlpy.asm.rule_files import check_rules
from spin_d3rlpy.asm.rules import RowMask, Rule
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.data.logs import Columns, read_states
from spin_d3rlpy.data.preparation import TablePreparation
from spin_d3rlpy.data.scalers import fit_scaler
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidDatasetError,
    InvalidObservationError,
    NvecMismatchError,
)
from spin_d3rlpy.fast.precision import fast_products
from spin_d3rlpy.files.atomic import atomic_write, write_bytes, write_errors
from spin_d3rlpy.nvec import (
    SlotLayout,
    as_choices,
    check_nvec,
    nvec_from_space,
    require_same_nvec,
)
from spin_d3rlpy.training.distributed import share_training
from spin_envs import ActionLayout

TImpl = TypeVar("TImpl", bound=MultiDiscreteImpl)
TConfig = TypeVar("TConfig", bound=MultiDiscreteConfig)


class ActingAlgo(QLearningAlgoBase[TImpl, TConfig]):
    """An algorithm whose actions are integer arrays `(B, N)`: building networks and acting.

    Args:
        config: defaults if None.
        device: as in d3rlpy (`"cuda:0"`, `True`, ...).
        enable_ddp: several processes train one model, see `spin_d3rlpy.training.distributed`.
        recipe: `"published"` (the classes' defaults) or `"tuned"`, see `spin_d3rlpy.algos.recipes`.
        **fields: config fields, e.g. `SPINIQL(batch_size=512)`; they override the recipe's.

    Raises:
        ValueError: an unknown recipe, or a recipe in addition to a config.
    """

    config_class: type[TConfig]
    # How the table that it learned from became states, if it was one.
    preparation: TablePreparation | None = None

    def __init__(
        self,
        config: TConfig | None = None,
        device: DeviceArg = False,
        enable_ddp: bool = False,
        recipe: str = "published",
        **fields: Any,
    ) -> None:
        if config is None:
            config = self.config_class(**recipe_fields(recipe, self.config_class, fields))
        elif recipe != "published":
            raise ValueError(
                f"A recipe determines a config: pass either config= or recipe={recipe!r}."
            )
        elif fields:
            config = dataclasses.replace(config, **fields)
        super().__init__(config, device, enable_ddp)

    def get_action_type(self) -> ActionSpace:
        """MultiDiscrete actions count as discrete to d3rlpy."""
        return ActionSpace.DISCRETE

    @property
    def _nvec(self) -> list[int]:
        assert self._config.nvec is not None
        return self._config.nvec

    def create_impl(self, observation_shape: Shape, action_size: int) -> None:
        """Builds the networks; `action_size` is ignored in favor of the config's `nvec`.

        Raises:
            InvalidActionSpaceError: `nvec` is unknown.
            InvalidDatasetError: observations are not flat vectors.
            NvecMismatchError: a rule is for another action space.
            UntrustedRuleError: a rule is a function that a file names.
            RuntimeError: `enable_ddp` without a process group.
        """
        if self._config.nvec is None:
            raise InvalidActionSpaceError(
                "The number of choices of each sub-action is not known. Pass nvec=[...] in the "
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
                "Flatten them first."
            )
        size = int(observation_shape[0])
        if self._config.layout is not None:
            self._config.layout.check(size, self._config.nvec)
        check_rules(self._config.rules or [], self._config.nvec)
        super().create_impl((size,), max(self._config.nvec))
        if self._enable_ddp:
            assert self._impl is not None
            for network in self._impl.modules.get_torch_modules().values():
                share_training(network)

    def build_with_dataset(self, dataset: ReplayBufferBase) -> None:
        """Builds the networks for any dataset that `fit` accepts."""
        self._build_with_buffer(self._as_buffer(dataset))

    def build_with_env(self, env: GymEnv) -> None:
        """Builds the networks for an environment with a MultiDiscrete action space.

        Scalers that need data (of most `DecQN` variants, by default) stay unfitted: acting and
        updating then raise a `RuntimeError` with advice.
        """
        space: Any = env.action_space
        self._adopt_nvec(nvec_from_space(space), "the environment")
        self._adopt_layout(layout_of(env))
        shape = env.observation_space.shape
        self.create_impl(() if shape is None else shape, 0)

    def _as_buffer(self, dataset: Any) -> DeviceReplayBuffer:
        buffer = as_device_buffer(dataset, self._config.nvec)
        self._adopt_nvec(buffer.nvec, "the dataset")
        self._adopt_layout(buffer.layout)
        if self._config.rules is None and self._impl is None and buffer.rules is not None:
            self._config.rules = list(buffer.rules)
        if self._impl is None or self.preparation is None:
            self.preparation = buffer.preparation
        return buffer.to(self._device)

    def _adopt_nvec(self, nvec: list[int], source: str) -> None:
        if self._config.nvec is None:
            self._config.nvec = list(nvec)
        require_same_nvec(self._config.nvec, nvec, type(self).__name__, source)

    def _adopt_layout(self, layout: ActionLayout | None) -> None:
        if self._config.layout is None and self._impl is None:
            self._config.layout = layout

    def _build_with_buffer(self, buffer: DeviceReplayBuffer) -> None:
        fit_scaler(self._config.observation_scaler, buffer, self._config.layout)
        fit_scaler(self._config.reward_scaler, buffer)
        shape = (buffer.observations.shape[1],)
        if self._impl is None:
            self.create_impl(shape, 0)
        elif tuple(self._impl.observation_shape) != shape:
            raise NvecMismatchError(
                f"{type(self).__name__} was built for observations of shape "
                f"{self._impl.observation_shape}, the dataset has {shape}."
            )

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

        Raises:
            InvalidObservationError: wrong shape, or not finite.
        """
        observations = self._check_observations(x)
        with self._acting_on(len(observations)):
            return super().predict(observations)

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
            InvalidDatasetError: a column is missing or a cell invalid; the text names row and
                column.
            FileNotFoundError: there is no such file.
        """
        self.require_built(ACTING_SCALERS)
        if self.preparation is None:
            raise RuntimeError(
                f"This {type(self).__name__} does not know how a table's columns become states: "
                "its log was not read by from_table. Train it on one that was, or use predict."
            )
        states = read_states(table, self.preparation)
        return self.preparation.named(self.predict(states)) if len(states) else []

    def sample_action(self, x: Observation) -> NDArray:
        """Returns sampled actions `(B, N)`; observations and errors as of `predict`."""
        observations = self._check_observations(x)
        with self._acting_on(len(observations)):
            return super().sample_action(observations)

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
        observations = self._check_observations(x)
        layout = SlotLayout(self._nvec)
        mask = as_mask(masks, len(observations), layout, torch.device(self._device))
        return self._act(observations, RowMask(mask), sample)

    def act(self, x: Observation, extra: Rule | None = None, sample: bool = False) -> NDArray:
        """Returns actions `(B, N)` that keep a rule in addition to the config's `rules`.

        Args:
            x: observations `(B, obs)`.
            extra: see `spin_d3rlpy.asm.rules`.
            sample: draw them; by default they are greedy.

        Raises:
            InvalidObservationError: as of `predict`.
            NoAllowedChoiceError: no choice is left for a slot.
        """
        return self._act(self._check_observations(x), extra, sample)

    @torch.no_grad()
    def _act(self, observations: NDArray, extra: Rule | None, sample: bool) -> NDArray:
        with self._acting_on(len(observations)):
            actions = self.require_built().act(self.network_input(observations), extra, sample)
        return actions.cpu().numpy()

    def predict_value(self, x: Observation, action: NDArray) -> NDArray:
        """Returns `Q(s, a)` of shape `(B,)` for observations `(B, obs)`, actions `(B, N)`.

        Raises:
            InvalidObservationError: as of `predict`.
            InvalidActionSpaceError: actions that are not in the action space.
        """
        observations = self._check_observations(x)
        actions = self._check_actions(action, len(observations))
        with fast_products(self._device, len(observations)):
            return super().predict_value(observations, actions)

    def _acting_on(self, n_observations: int) -> AbstractContextManager[None]:
        assert self._impl is not None
        return fast_products(self._device, n_observations * self._impl.n_tokens)

    def _check_actions(self, action: NDArray, n_rows: int) -> NDArray:
        return as_choices(action, (n_rows, len(self._nvec)), "you", self._nvec)

    def _check_observations(self, x: Observation) -> NDArray:
        impl = self.require_built(ACTING_SCALERS)
        size = impl.observation_shape[0]
        try:
            array = np.asarray(x)
        except ValueError as error:
            raise InvalidObservationError(
                f"Expected observations of shape (B, {size}), got rows of different lengths."
            ) from error
        if array.dtype.kind not in "biuf":
            raise InvalidObservationError(
                f"Expected observations of numbers, got an array of {array.dtype}."
            )
        if array.ndim != 2 or array.shape[1] != size:
            raise InvalidObservationError(
                f"Expected observations of shape (B, {size}), got shape {array.shape}."
            )
        with np.errstate(over="ignore"):  # said below
            array = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(array).all():
            row = int((~np.isfinite(array)).any(1).argmax())
            raise InvalidObservationError(
                f"Row {row} of the observations is not finite, or beyond what float32 holds "
                "(3.4e38)."
            )
        return array

    def network_input(self, observations: NDArray) -> torch.Tensor:
        """The networks' input `(B, obs)`, on their device."""
        inputs = torch.as_tensor(observations, dtype=torch.float32, device=self._device)
        return inputs if self._transform is None else self._transform(inputs)

    @property
    def _transform(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        scaler = self._config.observation_scaler
        return None if scaler is None else scaler.transform

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
        """Exports the greedy policy as TorchScript (`.pt`) or ONNX (`.onnx`).

        The file maps observations `(B, obs)` to actions `(B, N)`, scaling included, and runs
        without d3rlpy and this package. It keeps the config's `rules`; where they leave a slot
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
        if torch.device(self._device).type != "cpu":  # files would hold the device's name
            copy_to(self, "cpu:0").save_policy(fname, masks)
        elif fname.endswith(".onnx"):
            self._export_onnx(fname, masks)
        elif fname.endswith(".pt"):
            if functions := self._functions_of_rules:
                raise ValueError(
                    f"TorchScript would repeat what the rule {functions[0]} did for one example. "
                    "Write a file ending in .onnx, which follows tensor operations, or in "
                    ".safetensors (spin_d3rlpy.save_policy)."
                )
            write_bytes(fname, export_torchscript(self, masks))
        else:
            raise ValueError(f"Expected a file name ending in .pt or .onnx, got {fname!r}.")

    def _export_onnx(self, fname: str, masks: bool) -> None:
        LOG.info("Writing ONNX, in seconds; in minutes if the policy searches slot by slot")
        try:
            content = export_onnx(self, masks)
        except torch.onnx.errors.OnnxExporterError as error:
            if functions := self._functions_of_rules:
                raise ValueError(
                    f"A rule among {functions} cannot be exported to ONNX: it does more than "
                    "tensor operations, such as asking for a number. Rewrite it, or keep the "
                    "policy as .safetensors (spin_d3rlpy.save_policy)."
                ) from error
            raise
        write_bytes(fname, content)

    @property
    def _functions_of_rules(self) -> list[str]:
        rule = self._config.rule
        return [] if rule is None else rule.functions
