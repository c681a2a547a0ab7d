"""The environments' table and their registration, and the names of the benchmark's tasks.

`cheetah-run-b3` is cheetah-run with three bins per actuator. Importing this is light.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from spin_envs.action_grid import is_integer

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
CONE_EPISODE_STEPS = 100
CONE_LOG_EPISODE_STEPS = 1000  # while data are written, as published
CONE_INTERIOR = 3  # cells of each dimension that can be pits
CONE_DIMENSIONS = (2, 11)
DEFAULT_DIMENSIONS = 8
DEFAULT_PITS = 0.5
MAX_PLACEMENT = 2**31 - 1

# The letter before a task's number, the argument that it is, its default.
_BINS = ("b", "bins", DEFAULT_BINS)
_NUMBERS = {
    "maze": ("a", "actuators", DEFAULT_ACTUATORS),
    "dispatch": ("n", "couriers", DEFAULT_SLOTS),
    "slate": ("n", "places", DEFAULT_SLOTS),
    "cone": ("d", "dimensions", DEFAULT_DIMENSIONS),
}
COORDINATION_TASKS = ("dispatch", "slate")
# Of cone: pits in per cent of the interior cells or their number, and the placement if not 0.
_DETAILS_PATTERN = r"-(?:p(?:0|[1-9]\d?|100)|n[1-9]\d*)(?:-s[1-9]\d{0,9})?"
TASK_NAME_PATTERN = (
    r"(?:(?:[A-Za-z0-9_]+-[A-Za-z0-9_]+-b|maze-a|dispatch-n|slate-n)[1-9]\d*"
    rf"|cone-d[1-9]\d*{_DETAILS_PATTERN})"
)
_NAME = re.compile(
    r"(?P<task>cone|[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)?)-(?P<letter>[abdn])(?P<number>[1-9]\d*)"
    rf"(?P<details>(?:{_DETAILS_PATTERN})?)"
)


@dataclasses.dataclass(frozen=True, order=True)
class BenchmarkTask:
    """A task and the parameter of its action space."""

    task: str  # the suite's `<domain>-<task>`, or one of `_NUMBERS`
    number: int  # choices of each actuator (`bins`), or what else the task counts
    details: str = ""  # what cone's name has after its number, e.g. `-p50-s1`

    @property
    def counts(self) -> tuple[str, int]:
        """The environment's argument that `number` is, and its default."""
        return _NUMBERS.get(self.task, _BINS)[1:]

    @property
    def name(self) -> str:
        """E.g. `cheetah-run-b3` or `maze-a10`, the prefix of policies' and datasets' names."""
        return f"{self.task}-{_NUMBERS.get(self.task, _BINS)[0]}{self.number}{self.details}"

    @property
    def env_id(self) -> str:
        return f"spin/{self.task}-v0"

    @property
    def env_kwargs(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {self.counts[0]: self.number}
        if self.details:
            pits = self.details.split("-")[1]
            number = int(pits[1:])
            arguments["pits"] = number / 100 if pits[0] == "p" else number
            arguments["placement"] = self.placement
        return arguments

    @property
    def placement(self) -> int:
        """The seed that is part of the task's name; 0 without one."""
        return int(self.details.partition("-s")[2] or 0)

    @property
    def needs_coordination(self) -> bool:
        """Whether slots' choices can collide, and slots and choices have features."""
        return self.task in COORDINATION_TASKS

    @property
    def needs_simulator(self) -> bool:
        return self.task not in _NUMBERS

    @property
    def max_episode_steps(self) -> int:
        if self.needs_coordination:
            return COORDINATION_EPISODE_STEPS
        if self.task == "cone":
            return CONE_EPISODE_STEPS
        return EPISODE_STEPS if self.needs_simulator else MAZE_EPISODE_STEPS

    @property
    def log_episode_steps(self) -> int:
        """The time limit of episodes in datasets."""
        return CONE_LOG_EPISODE_STEPS if self.task == "cone" else self.max_episode_steps

    @property
    def can_terminate(self) -> bool:
        """Whether the task itself can end an episode; most have a time limit only."""
        return self.task in ("maze", "cone") or self.task.startswith("lqr-")

    @classmethod
    def parse(cls, name: str) -> BenchmarkTask:
        """Inverse of `name`; raises ValueError for other texts."""
        match = _NAME.fullmatch(name)
        task = cls(match["task"], int(match["number"]), match["details"]) if match else None
        if task is None or task.name != name or not task._exists():
            raise ValueError(
                "Expected <domain>-<task>-b<bins>, maze-a<actuators>, dispatch-n<couriers>, "
                "slate-n<places>, cone-d<dimensions>-p<per cent of pits> or "
                f"cone-d<dimensions>-n<pits> (with a placement: ...-s<seed>), got {name!r}."
            )
        return task

    def _exists(self) -> bool:
        if self.task != "cone":
            return not self.details and ("-" in self.task or self.task in _NUMBERS)
        least, most = CONE_DIMENSIONS
        if not (self.details and least <= self.number <= most):
            return False
        fits: bool = self.env_kwargs["pits"] <= CONE_INTERIOR**self.number
        return fits and self.placement <= MAX_PLACEMENT

    @classmethod
    def of_environment(cls, task: str, arguments: Mapping[str, Any]) -> BenchmarkTask | None:
        """Returns the task that `spin/<task>-v0` with these arguments is; None without a name."""
        counted, default = cls(task, 0).counts
        allowed = {counted, "pits", "placement"} if task == "cone" else {counted}
        numbers = np.unique(arguments.get(counted, default))
        if not (set(arguments) <= allowed and len(numbers) == 1):
            return None
        if task != "cone":
            return cls(task, int(numbers[0]))
        dimensions, placement = numbers[0], arguments.get("placement", 0)
        pits = _pits_name(dimensions, arguments.get("pits", DEFAULT_PITS))
        end = f"-s{placement}" if placement else ""
        try:
            return cls.parse(f"cone-d{dimensions}-{pits}{end}")
        except ValueError:
            return None


def _pits_name(dimensions: int, pits: object) -> str:
    """Returns the part of cone's name that tells its pits; for wrong values, one of no name."""
    if isinstance(pits, float | np.floating) and 0.0 <= pits <= 1.0:
        per_cent = round(float(pits) * 100)
        if per_cent / 100 == pits:
            return f"p{per_cent}"
        least, most = CONE_DIMENSIONS
        pits = round(float(pits) * CONE_INTERIOR**dimensions) if least <= dimensions <= most else ""
    return "p0" if is_integer(pits) and pits == 0 else f"n{pits}"


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
    for name, steps in (
        ("dispatch", COORDINATION_EPISODE_STEPS),
        ("slate", COORDINATION_EPISODE_STEPS),
        ("cone", CONE_EPISODE_STEPS),
    ):
        _register(
            f"spin/{name}-v0",
            entry_point=f"spin_envs.{name}:{name.title()}Env",
            vector_entry_point=f"spin_envs.vector:{name.title()}VectorEnv",
            max_episode_steps=steps,
        )
    # Its time limit is that of the environment it is given.
    _register("spin/discretized-v0", entry_point="spin_envs.discretized:DiscretizedEnv")


def _register(env_id: str, **fields: Any) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, **fields)
