"""Meaning of a dataset's name: which policies play how many episodes, from which seeds."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Literal

import gymnasium
import numpy as np
from minari.dataset.minari_dataset import DATASET_ID_RE

from spin_d3rlpy.errors import DatasetNotFoundError
from spin_envs.behavior import has_behavior_policy, policy_name, policy_task, shipped_policies
from spin_envs.scripted import scripted_levels
from spin_envs.tasks import TASK_NAME_PATTERN, BenchmarkTask

PolicyKind = Literal["random", "medium", "expert", "mixed"]

NAMESPACE = "spin/"
# Level -> (number of transitions, each policy's share of them, in their order). "random" is this
# project's, for tasks that no behavior policy has learned; the others are as published. "mixed" is
# cone's only, where a tenth of this is the usual size (see below).
LEVELS: dict[str, tuple[int, dict[PolicyKind, float]]] = {
    "random": (1_000_000, {"random": 1.0}),
    "medium": (1_000_000, {"medium": 1.0}),
    "expert": (1_000_000, {"expert": 1.0}),
    "medium-expert": (2_000_000, {"medium": 0.5, "expert": 0.5}),
    "random-medium-expert": (200_000, {"random": 0.45, "medium": 0.45, "expert": 0.1}),
    "mixed": (100_000, {"mixed": 1.0}),
}
# Every level takes a policy's episodes from here on, so levels share them. Far from the small
# seeds that evaluations use.
FIRST_SEEDS: dict[PolicyKind, int] = {
    "random": 1_000_000,
    "medium": 2_000_000,
    "expert": 3_000_000,
    "mixed": 4_000_000,
}
_SEEDS_A_PLACEMENT = 10_000_000  # a placement's seed is that of its data, too
_NAME = re.compile(
    rf"spin/(?P<task>{TASK_NAME_PATTERN})"
    r"/(?P<level>[a-z]+(?:-[a-z]+)*)(?:-(?P<thousands>[1-9]\d*)k)?-v0"
)
_SIZE_UNIT = 1000  # transitions in a name's "k"; an episode of the suite has as many
# Where episodes are short: an expert's in the maze has 12 steps, and a file of episodes takes 15 kB
# and milliseconds for each. 1M transitions would be 80,000 episodes, 1.2 GB for 60 MB of data.
_SHORT_SIZE_DIVISOR = 10


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """Consecutive whole episodes of one policy, until there are enough transitions."""

    kind: PolicyKind
    n_transitions: int  # the last episode may bring more, unless it is cut
    first_seed: int  # of the first episode; the next one's is one more
    n_episodes: int | None  # None where it depends on how long they turn out
    is_cut: bool = False  # the last episode, so that there are exactly this many transitions

    @property
    def seeds(self) -> range:
        """Seeds of the episodes, or of the largest possible number of them."""
        n = self.n_transitions if self.n_episodes is None else self.n_episodes
        return range(self.first_seed, self.first_seed + n)


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """A dataset that can be built.

    Episodes are whole: if their lengths differ, each part exceeds its share of `size` transitions
    by less than one episode.
    """

    task: BenchmarkTask
    level: str  # one of `LEVELS`
    size: int

    @property
    def name(self) -> str:
        """Minari id; includes an unusual size, e.g. `medium-20k-v0`."""
        usual = self.size == usual_size(self.task, self.level)
        suffix = "" if usual else f"-{self.size // _SIZE_UNIT}k"
        return f"{NAMESPACE}{self.task.name}/{self.level}{suffix}-v0"

    @property
    def parts(self) -> list[DatasetPart]:
        """Episodes by policy, in order; shares are rounded by largest remainder.

        Every policy has at least one episode, if there is room.
        """
        shares = LEVELS[self.level][1]
        # Where episodes are short, shares need not be whole thousands.
        is_short = not self.task.needs_simulator
        unit = 1 if is_short else _SIZE_UNIT
        counts = _apportion(self.size // unit, list(shares.values()))
        shift = _SEEDS_A_PLACEMENT * self.task.placement
        is_cut = self.level == "mixed"
        return [
            DatasetPart(kind, n * unit, FIRST_SEEDS[kind] + shift, None if is_short else n, is_cut)
            for kind, n in zip(shares, counts, strict=True)
            if n
        ]

    def policy_names(self) -> dict[PolicyKind, str]:
        kinds = LEVELS[self.level][1]
        return {k: policy_name(self.task, k) for k in kinds if k != "random"}


def usual_size(task: BenchmarkTask, level: str) -> int:
    """Returns the number of transitions of a dataset whose name gives none."""
    return LEVELS[level][0] // (1 if task.needs_simulator else _SHORT_SIZE_DIVISOR)


def is_dataset_name(text: str) -> bool:
    """Whether this is a valid Minari name with a version (so no path outside its folder)."""
    match = DATASET_ID_RE.fullmatch(text)
    return match is not None and match["version"] is not None


def parse_name(name: str, size: int | None = None) -> DatasetSpec:
    """Reads a dataset's name.

    Forms: `spin/<domain>-<task>-b<bins>/<level>-v0`, `.../<level>-<n>k-v0`, and with
    `maze-a<actuators>`, `dispatch-n<couriers>`, `slate-n<places>`, `cone-d<dimensions>-p<per cent
    of pits>` or `cone-d<dimensions>-n<pits>` (each with `-s<placement>` unless 0) as the task.

    Raises:
        DatasetNotFoundError: an invalid name, or no such level, task or policy; near matches are
            listed.
        ValueError: a size that is not a positive multiple of 1,000, exceeds the level's or
            contradicts the name's.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise _not_found(
            name,
            "Expected spin/<domain>-<task>-b<bins>/<level>-v0 (others: spin/maze-a<actuators>/..., "
            "spin/dispatch-n<couriers>/..., spin/slate-n<places>/..., "
            "spin/cone-d<dimensions>-p<per cent of pits>/mixed-v0).",
        )
    level = match["level"]
    if level not in LEVELS:
        raise _not_found(name, f"There is no level {level!r}; levels are {', '.join(LEVELS)}.")
    try:
        task = BenchmarkTask.parse(match["task"])
    except ValueError as error:
        raise _not_found(name, str(error)) from error
    if task.env_id not in gymnasium.registry:
        raise _not_found(name, f"There is no environment {task.env_id!r}.")
    named_size = int(match["thousands"]) * _SIZE_UNIT if match["thousands"] else None
    if size is not None and named_size not in (None, size):
        raise ValueError(f"size={size} contradicts the size in the name {name!r}.")
    if size is None:
        size = named_size or usual_size(task, level)
    largest = LEVELS[level][0]
    whole = isinstance(size, int | np.integer)
    if not whole or size < _SIZE_UNIT or size % _SIZE_UNIT or size > largest:
        raise ValueError(
            f"Expected size to be a multiple of {_SIZE_UNIT} up to {largest}, the size of level "
            f"{level!r}; got {size!r}."
        )
    spec = DatasetSpec(task, level, int(size))
    missing = [p for p in spec.policy_names().values() if not has_behavior_policy(p)]
    if missing:
        reason = f"This installation has no behavior policy {', '.join(missing)}."
        if levels := scripted_levels(task):
            reason += f" {task.task.title()} has {', '.join(['random', *sorted(levels)])}."
        raise _not_found(name, reason)
    return spec


def buildable_datasets() -> list[str]:
    """Names of the datasets that shipped policies can build, at usual sizes."""
    shipped = set(shipped_policies())
    specs = [
        DatasetSpec(task, level, usual_size(task, level))
        for task in sorted({policy_task(policy) for policy in shipped})
        for level in LEVELS
    ]
    return [s.name for s in specs if shipped.issuperset(s.policy_names().values())]


def _apportion(total: int, shares: list[float]) -> list[int]:
    """Splits `total` by `shares` into whole numbers by largest remainder, none zero if possible."""
    # Rounded because 0.45 * 20 must not count as a little under 9.
    exact = [round(total * share, 6) for share in shares]
    least = int(total >= len(shares))
    counts = [max(int(x), least) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _not_found(name: str, reason: str) -> DatasetNotFoundError:
    known = buildable_datasets()
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.6) or known
    listed = f"Near matches: {', '.join(near)}." if near else "No behavior policies are shipped."
    return DatasetNotFoundError(f"No dataset {name!r}. {reason} {listed}")
