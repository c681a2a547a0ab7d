"""What a dataset's name means: which policies play how many episodes, from which seeds."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Literal

from spin_d3rlpy.errors import DatasetNotFoundError
from spin_envs.behavior import policy_name, shipped_policies
from spin_envs.registration import EPISODE_STEPS

PolicyKind = Literal["random", "medium", "expert"]

NAMESPACE = "spin/"
# Level -> (published number of transitions, share of episodes of each policy, in their order).
LEVELS: dict[str, tuple[int, dict[PolicyKind, float]]] = {
    "medium": (1_000_000, {"medium": 1.0}),
    "expert": (1_000_000, {"expert": 1.0}),
    "medium-expert": (2_000_000, {"medium": 0.5, "expert": 0.5}),
    "random-medium-expert": (200_000, {"random": 0.45, "medium": 0.45, "expert": 0.1}),
}
# Every level takes a policy's episodes from here on, so levels share them. Far from the small
# seeds that evaluations use.
FIRST_SEEDS: dict[PolicyKind, int] = {
    "random": 1_000_000,
    "medium": 2_000_000,
    "expert": 3_000_000,
}
_NAME = re.compile(
    r"spin/(?P<task>[A-Za-z0-9_]+-[A-Za-z0-9_]+)-b(?P<bins>[1-9]\d*)"
    r"/(?P<level>[a-z]+(?:-[a-z]+)*)(?:-(?P<thousands>[1-9]\d*)k)?-v0"
)
_SIZE_UNIT = 1000  # transitions in a name's "k"


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """Consecutive episodes of one policy.

    Args:
        kind: which policy plays.
        n_episodes: number of episodes.
        first_seed: seed of the first; the next episode's seed is one more.
    """

    kind: PolicyKind
    n_episodes: int
    first_seed: int

    @property
    def seeds(self) -> range:
        """Seeds of the episodes."""
        return range(self.first_seed, self.first_seed + self.n_episodes)


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """A dataset that can be built.

    Args:
        task: domain and task, e.g. `"cheetah-run"`.
        bins: number of values of each actuator.
        level: one of `LEVELS`.
        size: number of transitions, the published one or fewer.
    """

    task: str
    bins: int
    level: str
    size: int

    @property
    def name(self) -> str:
        """Minari id; a size other than the published one is part of it, e.g. `medium-20k-v0`."""
        suffix = "" if self.size == LEVELS[self.level][0] else f"-{self.size // _SIZE_UNIT}k"
        return f"{NAMESPACE}{self.task}-b{self.bins}/{self.level}{suffix}-v0"

    @property
    def env_id(self) -> str:
        """Gymnasium id of the environment."""
        return f"spin/{self.task}-v0"

    @property
    def parts(self) -> list[DatasetPart]:
        """Episodes by policy, in order; the shares are rounded by largest remainder."""
        shares = LEVELS[self.level][1]
        counts = _apportion(self.size // EPISODE_STEPS, list(shares.values()))
        return [
            DatasetPart(kind, n, FIRST_SEEDS[kind])
            for kind, n in zip(shares, counts, strict=True)
            if n
        ]

    def policy_names(self) -> dict[PolicyKind, str]:
        """Behavior policies that the level is made of; random actions need none."""
        kinds = LEVELS[self.level][1]
        return {k: policy_name(self.task, self.bins, k) for k in kinds if k != "random"}


def parse_name(name: str, size: int | None = None) -> DatasetSpec:
    """Reads a name `spin/<domain>-<task>-b<bins>/<level>-v0` (or `<level>-<n>k-v0`).

    Args:
        name: the dataset's name.
        size: number of transitions if not the published one, a multiple of 1,000.

    Raises:
        DatasetNotFoundError: another format, or no such level, task or policy; near matches
            among the datasets that can be built are listed.
        ValueError: a size that is not a positive multiple of 1,000, exceeds the published one or
            contradicts the name's.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise _not_found(name, "Expected spin/<domain>-<task>-b<bins>/<level>-v0.")
    level = match["level"]
    if level not in LEVELS:
        raise _not_found(name, f"There is no level {level!r}; levels are {', '.join(LEVELS)}.")
    named_size = int(match["thousands"]) * _SIZE_UNIT if match["thousands"] else None
    if size is not None and named_size is not None and size != named_size:
        raise ValueError(f"size={size} contradicts the size in the name {name!r}.")
    spec = DatasetSpec(
        task=match["task"],
        bins=int(match["bins"]),
        level=level,
        size=_check_size(named_size if size is None else size, level),
    )
    missing = set(spec.policy_names().values()) - set(shipped_policies())
    if missing:
        raise _not_found(
            name, f"This installation has no behavior policy {', '.join(sorted(missing))}."
        )
    return spec


def buildable_datasets() -> list[str]:
    """Names of the datasets that can be built from the policies shipped, at published sizes."""
    shipped = set(shipped_policies())
    found = {re.fullmatch(r"(.+)-b(\d+)-[a-z]+", policy) for policy in shipped}
    tasks = sorted({(m[1], int(m[2])) for m in found if m})
    specs = [
        DatasetSpec(task, bins, level, LEVELS[level][0]) for task, bins in tasks for level in LEVELS
    ]
    return [s.name for s in specs if shipped.issuperset(s.policy_names().values())]


def _check_size(size: int | None, level: str) -> int:
    published = LEVELS[level][0]
    if size is None:
        return published
    if size < EPISODE_STEPS or size % EPISODE_STEPS or size > published:
        raise ValueError(
            f"Expected size to be a multiple of {EPISODE_STEPS} (the length of an episode) up to "
            f"{published}, the size of level {level!r}; got {size}."
        )
    return size


def _apportion(total: int, shares: list[float]) -> list[int]:
    """Splits `total` by `shares` into whole numbers; the largest remainders get what is left."""
    # Rounded because 0.45 * 20 must not count as a little under 9.
    exact = [round(total * share, 6) for share in shares]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _not_found(name: str, reason: str) -> DatasetNotFoundError:
    known = buildable_datasets()
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.6) or known
    listed = f"Near matches: {', '.join(near)}." if near else "No behavior policies are shipped."
    return DatasetNotFoundError(f"No dataset {name!r}. {reason} {listed}")
