"""A scaler in addition to d3rlpy's own, and fast fitting to a `DeviceReplayBuffer`."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

import numpy as np
import torch
from d3rlpy.preprocessing import (
    MinMaxObservationScaler,
    ObservationScaler,
    RewardScaler,
    StandardObservationScaler,
    make_observation_scaler_field,
    register_observation_scaler,
)
from d3rlpy.serializable_config import SerializableConfig
from numpy.typing import NDArray

from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.rounding import ruled_by_outliers
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError
from spin_d3rlpy.histories import as_changes, from_changes
from spin_envs import ActionLayout

_MOST_ROWS = 10_000  # of the sample in which outliers are looked for


@dataclasses.dataclass()
class ClippedStandardObservationScaler(StandardObservationScaler):
    """Standardization with the result clipped to `[-clip, clip]`.

    Clipping keeps nearly constant features from dominating where they do vary. Of a history
    (`spin_d3rlpy.histories`), the newest observation is standardized, and in place of each earlier
    one the change that came after it.

    Args:
        clip: largest magnitude of a scaled feature, in standard deviations.
        history: observations of a row; known when it is fitted.
        observation_size: numbers of each of them; likewise.
    """

    clip: float = 10.0
    history: int = 1
    observation_size: int = 0

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        if self.history > 1:
            x = as_changes(x, self.history, self.observation_size)
        return super().transform(x).clamp(-self.clip, self.clip)

    def reverse_transform(self, x: torch.Tensor) -> torch.Tensor:
        x = super().reverse_transform(x)
        return from_changes(x, self.history, self.observation_size) if self.history > 1 else x

    def transform_numpy(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.history > 1:
            x = as_changes(torch.from_numpy(x), self.history, self.observation_size).numpy()
        scaled: NDArray[np.float32] = np.clip(super().transform_numpy(x), -self.clip, self.clip)
        return scaled

    def reverse_transform_numpy(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        x = super().reverse_transform_numpy(x)
        if self.history == 1:
            return x
        return from_changes(torch.from_numpy(x), self.history, self.observation_size).numpy()

    @staticmethod
    def get_type() -> str:
        return "spin_clipped_standard"


def standardized_states() -> Any:
    """Returns a config field: states standardized by the dataset's mean and std + 1e-3."""
    template: Any = make_observation_scaler_field()
    return dataclasses.field(
        default_factory=lambda: StandardObservationScaler(eps=1e-3), metadata=template.metadata
    )


def fit_scaler(
    scaler: ObservationScaler | RewardScaler | None,
    buffer: DeviceReplayBuffer,
    layout: ActionLayout | None = None,
) -> None:
    """Fits an unfitted scaler, in float64; d3rlpy itself would visit each state by itself.

    Columns that hold the same feature of different slots or choices, by `layout`, are standardized
    alike, so that they remain comparable and the scaling does not depend on how many there are.
    Images are not scaled: encoders divide them by 255.

    Warns (UserWarning) of features whose scale a few outliers rule.

    Raises:
        InvalidDatasetError: the scaler makes observations or rewards infinite.
        ValueError: data with images, and a scaler that would have to see these.
    """
    if scaler is None or scaler.built:
        return
    if isinstance(scaler, StandardObservationScaler):
        mean, std = moments_by_feature(*buffer.moments(), layout)
        _warn_of_outliers(buffer, std.cpu().numpy())
        earlier_mean, earlier_std = mean, std
        if buffer.history is not None and isinstance(scaler, ClippedStandardObservationScaler):
            scaler.history, scaler.observation_size = buffer.history.length, len(mean)
            earlier_mean, earlier_std = buffer.stored.moments_of_changes()
        mean = _of_states(buffer, mean, earlier_mean, 0.0)
        std = _of_states(buffer, std, earlier_std, 1.0)
        scaler.mean, scaler.std = mean.float().cpu().numpy(), std.float().cpu().numpy()
    elif isinstance(scaler, MinMaxObservationScaler):
        least, most = buffer.observations.aminmax(dim=0)
        # A feature that never varies has no span to divide by: it becomes -1.
        most = torch.where(most > least, most, least + least.abs().clamp(min=1.0))
        _warn_of_outliers(buffer, (most.double() - least).cpu().numpy())
        least = _of_states(buffer, least, least, 0.0)
        most = _of_states(buffer, most, most, 1.0)
        scaler.minimum, scaler.maximum = least.cpu().numpy(), most.cpu().numpy()
    elif buffer.observation_layout is not None:
        raise ValueError(
            f"Expected a StandardObservationScaler or MinMaxObservationScaler of the numbers next "
            f"to images, or none, got {type(scaler).__name__}."
        )
    else:
        scaler.fit_with_transition_picker(buffer.episodes, buffer.transition_picker)
    _require_finite(scaler, buffer)


def _of_states(
    buffer: DeviceReplayBuffer,
    of_newest: torch.Tensor,
    of_earlier: torch.Tensor,
    of_others: float,
) -> torch.Tensor:
    """Returns numbers of features for all places of a state, which may be a history.

    The arguments are those of `History.spread`.
    """
    if buffer.history is None:
        return of_newest
    return buffer.history.spread(of_newest, of_earlier, of_others)


def _require_finite(scaler: ObservationScaler | RewardScaler, buffer: DeviceReplayBuffer) -> None:
    """Raises InvalidDatasetError if a fitted scaler divides by zero on its own data."""
    is_reward = isinstance(scaler, RewardScaler)
    name, values = "rewards", buffer.rewards[:, None]
    if not is_reward:
        name, values = "observations", _numbers_of_states(buffer)
    # A copy: d3rlpy's scalers stay on the device that they first saw.
    scaled = dataclasses.replace(scaler).transform(values)
    if not bool(scaled.isfinite().all()):
        raise InvalidDatasetError(
            f"{type(scaler).__name__} makes {name} infinite or NaN: it divides by how much they "
            "vary, and they do not. Use another scaler, or none."
        )


def _numbers_of_states(buffer: DeviceReplayBuffer) -> torch.Tensor:
    """Returns a sample of states `(n, obs)`, without the pixels of images."""
    if buffer.observation_layout is None:
        return buffer.states[:_MOST_ROWS]
    history, numbers = buffer.history, buffer.observations[:_MOST_ROWS]
    if history is None:
        return numbers
    zeros = numbers.new_zeros(len(numbers), history.row_size(0))
    return torch.cat([numbers.repeat(1, history.length), zeros], dim=1)


def moments_by_feature(
    mean: torch.Tensor, std: torch.Tensor, layout: ActionLayout | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the moments `(obs,)` with those of all columns of a feature together, by `layout`."""
    if layout is None:
        return mean, std
    return _pooled(mean, std, torch.from_numpy(layout.alike(len(mean))).to(mean.device))


def _pooled(
    mean: torch.Tensor, std: torch.Tensor, group: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the moments of all columns of a group together, for each column `(obs,)`."""
    sizes = torch.zeros_like(mean).index_add_(0, group, torch.ones_like(mean))

    def mean_of_group(values: torch.Tensor) -> torch.Tensor:
        return (torch.zeros_like(values).index_add_(0, group, values) / sizes)[group]

    pooled = mean_of_group(mean)
    variance = mean_of_group(std.square() + mean.square()) - pooled.square()
    return pooled, variance.clamp(min=0.0).sqrt()


def resize_scaler(
    scaler: ObservationScaler | None, before: ActionLayout, after: ActionLayout, size: int
) -> ObservationScaler | None:
    """Returns a fitted scaler for observations with another number of slots and choices.

    Args:
        scaler: one that was fitted with `before`, so that columns of a feature are scaled alike.
        before: where features were.
        after: where they are now.
        size: length of the observations now.

    Raises:
        ValueError: another scaler than a standardizing one, features differ, or one has columns
            now that had none before.
    """
    if scaler is None:
        return None
    if not isinstance(scaler, StandardObservationScaler) or scaler.mean is None:
        raise ValueError(
            "Expected a fitted standardizing scaler, whose columns are scaled by feature, got "
            f"{scaler}."
        )
    old, new = before.by_feature(len(scaler.mean)), after.by_feature(size)
    if len(old) != len(new):
        raise ValueError(
            f"Expected as many features of slots, choices and context as before, {len(old)}, got "
            f"{len(new)}."
        )
    mean, std = np.zeros((2, size), np.float32)
    for i, (from_columns, to_columns) in enumerate(zip(old, new, strict=True)):
        if not to_columns:  # a feature that no choice has
            continue
        if not from_columns:
            raise ValueError(
                f"Expected columns of the layout's feature {i} (of slots, choices, pairs, context, "
                f"from 0) in the observations of training, too: now it has {len(to_columns)}, then "
                "it had none, so that its scale is not known."
            )
        mean[to_columns] = scaler.mean[from_columns[0]]
        std[to_columns] = scaler.std[from_columns[0]]  # type: ignore[index]
    return dataclasses.replace(scaler, mean=mean, std=std)


def _warn_of_outliers(buffer: DeviceReplayBuffer, scale: NDArray[np.float64]) -> None:
    if not buffer.observations.shape[1]:  # images alone
        return
    step = -(-len(buffer.observations) // _MOST_ROWS)
    ruled = ruled_by_outliers(buffer.observations[::step].cpu().numpy(), scale)
    if ruled:
        listed = ", ".join(f"{i} ({scale[i]:g})" for i in ruled)
        warnings.warn(
            f"A few outliers rule the scale of features (numbers from 0; scale): {listed}. Scaled, "
            "all other values are nearly equal. Repair or clip those values in the dataset.",
            UserWarning,
            stacklevel=3,
        )


register_observation_scaler(ClippedStandardObservationScaler)


def scaler_to_dict(scaler: ObservationScaler | None) -> dict[str, Any] | None:
    """Returns a scaler's type and parameters as JSON values (None for no scaler)."""
    if scaler is None:
        return None
    encoded: dict[str, Any] = json.loads(_ScalerHolder(scaler).serialize())["observation_scaler"]
    return encoded


def scaler_from_dict(encoded: dict[str, Any], observation_size: int) -> ObservationScaler:
    """Inverse of `scaler_to_dict`; InvalidCheckpointError if it is none for such observations."""
    try:
        text = json.dumps({"observation_scaler": encoded})
        scaler, unused = (_ScalerHolder.deserialize(text).observation_scaler for _ in range(2))
        assert scaler is not None
        assert unused is not None
        example = torch.zeros(2, observation_size)
        scaled = scaler.transform(example)
        if scaled.shape != example.shape or not scaled.isfinite().all():
            raise ValueError("it does not fit them")
    except Exception as error:  # an untrusted file can cause any error
        raise InvalidCheckpointError(
            f"{encoded!r} is not an observation scaler for {observation_size} features: {error!r}."
        ) from error
    return unused  # d3rlpy's scalers stay on the device that they first saw


@dataclasses.dataclass()
class _ScalerHolder(SerializableConfig):
    """Holds a scaler, which d3rlpy encodes only as a field of a config."""

    observation_scaler: ObservationScaler | None = make_observation_scaler_field()
