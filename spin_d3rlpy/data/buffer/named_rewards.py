"""Several rewards of each transition, such as revenue and complaints, and what one is made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError, listed, shown

Weights: TypeAlias = Mapping[str, float]
# From the rewards `(n,)` by name, the one that is trained by, `(n,)`.
RewardFunction: TypeAlias = Callable[[dict[str, NDArray[np.float32]]], Any]


def check_weights(weights: object, names: Sequence[str]) -> dict[str, float]:
    """Returns a weight for each name, in their order; names that are not weighed have 0.

    Raises:
        ValueError: no mapping, an unknown name, a weight that is no finite number, or all are 0.
    """
    expected = f"Expected weights of {listed(map(shown, names))}, such as {{{names[0]!r}: 1.0}}"
    if not isinstance(weights, Mapping):
        raise ValueError(f"{expected}, got {shown(weights)}.")
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(f"{expected}, got one of {shown(unknown[0])}.")
    checked = dict.fromkeys(names, 0.0)
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(float(weight)):
            raise ValueError(f"{expected}, finite numbers; got {shown(weight)} of {shown(name)}.")
        checked[name] = float(weight)
    if not any(checked.values()):
        raise ValueError(f"{expected}, at least one of them other than 0; got {shown(weights)}.")
    return checked


@dataclasses.dataclass(frozen=True, eq=False)
class NamedRewards:
    """Rewards of a dataset's transitions, one or more of each.

    Attributes:
        values: `(n, R)` float32.
        weights: of each of the R rewards in the one that is trained by; None if that is not their
            weighted sum.
        names: of the R rewards.
    """

    values: torch.Tensor
    names: tuple[str, ...]
    weights: dict[str, float] | None

    @classmethod
    def unweighed(cls, values: NDArray[np.float32], names: tuple[str, ...]) -> NamedRewards:
        """Returns finite rewards `(n, R)` before it is known what one is made of."""
        return cls(torch.from_numpy(values), names, None)

    def made_by(self, weights: object) -> tuple[NamedRewards, NDArray[np.float32]]:
        """Returns the rewards with their weights, and the one `(n,)` that is trained by.

        Args:
            weights: by name, or a `RewardFunction`.

        Raises:
            ValueError: `weights` are neither, see `check_weights`.
            InvalidDatasetError: the function returns no finite numbers `(n,)`.
        """
        if callable(weights):
            by_name = dict(zip(self.names, self.values.numpy().T, strict=True))
            return dataclasses.replace(self, weights=None), _by_function(weights, by_name)
        weighed = self.weighed(weights)
        return weighed, weighed.total().numpy()

    def total(self) -> torch.Tensor:
        """Returns the weighted sums, `(n,)` float32.

        Raises:
            ValueError: there are no weights.
        """
        if self.weights is None:
            raise ValueError("The trained reward is a function's. Pass weights= by name.")
        weights = torch.tensor([*self.weights.values()], dtype=torch.float64)
        total: torch.Tensor = (self.values.double() @ weights.to(self.values.device)).float()
        return total

    def weighed(self, weights: object) -> NamedRewards:
        """Returns the same rewards with other weights; raises ValueError as `check_weights`."""
        return dataclasses.replace(self, weights=check_weights(weights, self.names))

    def to(self, device: torch.device) -> NamedRewards:
        """Returns them on another device."""
        return dataclasses.replace(self, values=self.values.to(device))

    def select(self, steps: torch.Tensor) -> NamedRewards:
        """Returns those of some transitions."""
        return dataclasses.replace(self, values=self.values[steps].cpu())

    def to_json(self) -> dict[str, Any]:
        """Returns names and weights, for a dataset's metadata."""
        return {"names": list(self.names), "weights": self.weights}


def _by_function(
    function: RewardFunction, by_name: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    rewards = np.asarray(function(dict(by_name)))
    shape = next(iter(by_name.values())).shape
    if rewards.shape != shape or rewards.dtype.kind not in "fiub":
        raise InvalidDatasetError(
            f"Expected the function in weights= to return {shape[0]} numbers, one for each step, "
            f"got shape {rewards.shape} and dtype {rewards.dtype}."
        )
    rewards = rewards.astype(np.float32)
    if not np.isfinite(rewards).all():
        step = int(np.argmin(np.isfinite(rewards)))
        raise InvalidDatasetError(
            f"The function in weights= returned {rewards[step]} for step {step}, expected finite "
            "numbers."
        )
    return rewards
