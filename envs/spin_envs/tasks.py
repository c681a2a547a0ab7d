"""The environments' table and their registration, and the names of the benchmark's tasks.

`cheetah-run-b3` is cheetah-run with three bins per actuator. Importing this is light.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import gymnasium

# The control suite's tasks by domain; `tests/envs` checks them against dm_control's own list.
_TASKS_BY_DOMAIN = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": (
        "balance",
        "balance_sparse",
        "swingup",
        "swingup_sparse",
        "two_poles",
        "three_poles",
    ),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
SUITE_TASKS: tuple[tuple[str, str], ...] = tuple(
    (domain, task) for domain, tasks in _TASKS_BY_DOMAIN.items() for task in tasks
)

DEFAULT_BINS = 3
EPISODE_STEPS = 1000
DEFAULT_ACTUATORS = 10
MAZE_EPISODE_STEPS = 150
DEFAULT_SLOTS = 10  # couriers, places
COORDINATION_EPISODE_STEPS = 50

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


def register_all() -> None:
    """Registers every environment that Gymnasium does not know yet."""
    for domain, task in SUITE_TASKS:
        _register(
            f"spin/{domain}-{task}-v0",
            entry_point="spin_envs.suite:DiscretizedSuiteEnv",
            vector_entry_point="spin_envs.vector:SuiteVectorEnv",
            kwargs={"domain": domain, "task": task},
            max_episode_steps=EPISODE_STEPS,
        )
    _register(
        "spin/maze-v0",
        entry_point="spin_envs.maze:MazeEnv",
        vector_entry_point="spin_envs.vector:MazeVectorEnv",
        max_episode_steps=MAZE_EPISODE_STEPS,
    )
    for name, env_class in (("dispatch", "Dispatch"), ("slate", "Slate")):
        _register(
            f"spin/{name}-v0",
            entry_point=f"spin_envs.{name}:{env_class}Env",
            vector_entry_point=f"spin_envs.vector:{env_class}VectorEnv",
            max_episode_steps=COORDINATION_EPISODE_STEPS,
        )
    # Its time limit is that of the environment it is given.
    _register("spin/discretized-v0", entry_point="spin_envs.discretized:DiscretizedEnv")


def _register(env_id: str, **fields: Any) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, **fields)
