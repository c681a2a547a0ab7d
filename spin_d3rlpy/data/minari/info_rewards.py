"""Several rewards of each step from the infos of a Minari dataset, or by functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from minari import MinariDataset
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.data.buffer.named_rewards import NamedRewards, RewardFunction, Weights
from spin_d3rlpy.errors import InvalidDatasetError, shown

REWARDS_KEY = "spin_rewards"  # of a dataset's metadata: names and weights
INFO_PREFIX = "reward: "  # of the infos in which `save_dataset` keeps rewards

# A key of the infos, or a function of an episode's observations `(T + 1, obs)`, actions `(T, N)`
# and rewards `(T,)`.
RewardSource: TypeAlias = str | Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], "NDArray[Any]"]


def infos_of(named: NamedRewards, start: int, end: int) -> dict[str, NDArray[Any]]:
    """Returns the infos `(T + 1,)` of steps start to end; those of a reset come first."""
    values = named.values[start:end].cpu().numpy()
    return {
        f"{INFO_PREFIX}{name}": np.concatenate([np.zeros(1, np.float32), values[:, i]])
        for i, name in enumerate(named.names)
    }


@dataclasses.dataclass(frozen=True)
class RewardReader:
    """Reads several rewards of a dataset's episodes.

    Attributes:
        sources: by name, where they come from.
        weights: of these rewards, or a function, see `NamedRewards.made_by`; None leaves
            the reward that is trained by as the dataset has it.
    """

    sources: dict[str, RewardSource]
    weights: Weights | RewardFunction | None

    @classmethod
    def of(
        cls,
        dataset: MinariDataset,
        rewards: Mapping[str, RewardSource] | None,
        weights: Weights | RewardFunction | None,
    ) -> RewardReader | None:
        """Returns what reads the given rewards, or those that `save_dataset` kept; None: none.

        Raises:
            ValueError: `rewards` without `weights`, or no mapping from names to keys or functions.
            InvalidDatasetError: the record of kept rewards is damaged.
        """
        if rewards is None:
            return cls._of_record(dataset, weights)
        sources = dict(rewards) if isinstance(rewards, Mapping) else {}
        if not sources or not all(
            isinstance(name, str) and (isinstance(of, str) or callable(of))
            for name, of in sources.items()
        ):
            raise ValueError(
                "Expected rewards= to map names to keys of infos or to functions, such as "
                f'{{"energy": "energy"}}, got {shown(rewards)}.'
            )
        if weights is None:
            raise ValueError(
                "Expected rewards= together with weights=, which make the reward that is trained "
                f"by, such as weights={{{next(iter(sources))!r}: 1.0}}."
            )
        return cls(sources, weights)

    @classmethod
    def _of_record(
        cls, dataset: MinariDataset, weights: Weights | RewardFunction | None
    ) -> RewardReader | None:
        record = dataset.storage.metadata.get(REWARDS_KEY)
        if record is None:
            if weights is not None:
                raise ValueError(
                    f"Dataset {dataset.id} has one reward: weights= needs rewards= by name."
                )
            return None
        names = record.get("names") if isinstance(record, Mapping) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidDatasetError(
                f"The rewards of dataset {dataset.id} cannot be read: expected their names in its "
                f"metadata, got {shown(record)}."
            )
        sources: dict[str, RewardSource] = {name: f"{INFO_PREFIX}{name}" for name in names}
        return cls(sources, record.get("weights") if weights is None else weights)

    @property
    def keys(self) -> list[str]:
        """Infos that are read."""
        return [source for source in self.sources.values() if isinstance(source, str)]

    def add(self, stacked: StackedEpisodes, values: NDArray[np.float32]) -> StackedEpisodes:
        """Returns episodes with these rewards `(n, R)`, and the reward that is made of them."""
        named = NamedRewards.unweighed(values, tuple(self.sources))
        stacked = dataclasses.replace(stacked, named_rewards=named)
        return stacked if self.weights is None else stacked.weighed(self.weights)

    def read(
        self,
        infos: Mapping[str, Any],
        observations: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        name: str,
    ) -> NDArray[np.float32]:
        """Returns an episode's rewards `(T, R)`.

        Args:
            infos: by key, `(T + 1,)` or `(T,)`.
            observations: `(T + 1, obs)`.
            actions: `(T, N)`.
            rewards: `(T,)`.
            name: of the episode, for messages.

        Raises:
            InvalidDatasetError: an info is missing, or a reward is not T finite numbers.
        """
        columns = []
        for reward, source in self.sources.items():
            if isinstance(source, str):
                if source not in infos:
                    known = ", ".join(map(shown, infos)) or "none"
                    raise InvalidDatasetError(
                        f"Expected an info {shown(source)} in {name} for the reward "
                        f"{shown(reward)}. It has: {known}."
                    )
                values = np.asarray(infos[source])
                if len(values) == len(rewards) + 1:  # the first one is of the reset
                    values = values[1:]
            else:
                values = np.asarray(source(observations, actions, rewards))
            if values.shape != rewards.shape or values.dtype.kind not in "fiub":
                raise InvalidDatasetError(
                    f"Expected the reward {shown(reward)} of {name} to be {len(rewards)} numbers, "
                    f"got shape {values.shape} and dtype {values.dtype}."
                )
            columns.append(values.astype(np.float32))
        stacked: NDArray[np.float32] = np.stack(columns, axis=1)
        if not np.isfinite(stacked).all():
            step, column = np.argwhere(~np.isfinite(stacked))[0]
            raise InvalidDatasetError(
                f"The reward {shown(list(self.sources)[column])} at step {step} of {name} is not "
                "finite as float32. Remove or repair the episode."
            )
        return stacked
