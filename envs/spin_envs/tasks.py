"""Names of the benchmark's tasks: `cheetah-run-b3` is cheetah-run with three bins per actuator."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from spin_envs.registration import (
    COORDINATION_EPISODE_STEPS,
    DEFAULT_ACTUATORS,
    DEFAULT_BINS,
    DEFAULT_SLOTS,
    EPISODE_STEPS,
    MAZE_EPISODE_STEPS,
)

# The letter before a task's number, the argument that it is, its default.
_BINS = ("b", "bins", DEFAULT_BINS)
_NUMBERS = {
    "maze": ("a", "actuators", DEFAULT_ACTUATORS),
    "dispatch": ("n", "couriers", DEFAULT_SLOTS),
    "slate": ("n", "places", DEFAULT_SLOTS),
}
COORDINATION_TASKS = ("dispatch", "slate")
TASK_NAME_PATTERN = r"(?:[A-Za-z0-9_]+-[A-Za-z0-9_]+-b|maze-a|dispatch-n|slate-n)[1-9]\d*"
_NAME = re.compile(r"(?P<task>[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)?)-(?P<letter>[abn])(?P<number>\d+)")


@dataclasses.dataclass(frozen=True, order=True)
class BenchmarkTask:
    """A task and the parameter of its action space."""

    task: str  # the suite's `<domain>-<task>`, or one of `_NUMBERS`
    number: int  # choices of each actuator (`bins`), or what else the task counts

    @property
    def counts(self) -> tuple[str, int]:
        """The environment's argument that `number` is, and its default."""
        return _NUMBERS.get(self.task, _BINS)[1:]

    @property
    def name(self) -> str:
        """E.g. `cheetah-run-b3` or `maze-a10`, the prefix of policies' and datasets' names."""
        return f"{self.task}-{_NUMBERS.get(self.task, _BINS)[0]}{self.number}"

    @property
    def env_id(self) -> str:
        return f"spin/{self.task}-v0"

    @property
    def env_kwargs(self) -> dict[str, Any]:
        return {self.counts[0]: self.number}

    @property
    def is_scripted(self) -> bool:
        """Whether its behavior policies are rules (`spin_envs.scripted`), not networks."""
        return self.task in COORDINATION_TASKS

    @property
    def needs_simulator(self) -> bool:
        return self.task not in _NUMBERS

    @property
    def max_episode_steps(self) -> int:
        if self.is_scripted:
            return COORDINATION_EPISODE_STEPS
        return EPISODE_STEPS if self.needs_simulator else MAZE_EPISODE_STEPS

    @property
    def ends_early(self) -> bool:
        """Whether episodes can be shorter than 1,000 steps."""
        return not self.needs_simulator

    @property
    def can_terminate(self) -> bool:
        """Whether the task itself can end an episode; most have a time limit only."""
        return self.task == "maze" or self.task.startswith("lqr-")

    @classmethod
    def parse(cls, name: str) -> BenchmarkTask:
        """Inverse of `name`; raises ValueError for other texts."""
        match = _NAME.fullmatch(name)
        task = cls(match["task"], int(match["number"])) if match else None
        if task is None or task.name != name or not ("-" in task.task or task.task in _NUMBERS):
            raise ValueError(
                "Expected <domain>-<task>-b<bins>, maze-a<actuators>, dispatch-n<couriers> or "
                f"slate-n<places>, got {name!r}."
            )
        return task
