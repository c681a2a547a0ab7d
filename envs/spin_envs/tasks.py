"""Names of the benchmark's tasks: `cheetah-run-b3` is cheetah-run with three bins per actuator."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from spin_envs.registration import EPISODE_STEPS, MAZE_EPISODE_STEPS

TASK_NAME_PATTERN = r"(?:[A-Za-z0-9_]+-[A-Za-z0-9_]+-b|maze-a)[1-9]\d*"
_NAME = re.compile(r"(?P<task>maze|[A-Za-z0-9_]+-[A-Za-z0-9_]+)-(?P<letter>[ab])(?P<number>\d+)")
_MAZE = "maze"


@dataclasses.dataclass(frozen=True, order=True)
class BenchmarkTask:
    """A task and the parameter of its action space."""

    task: str  # the suite's `<domain>-<task>`, or `"maze"`
    number: int  # choices of each actuator (`bins`), or the maze's `actuators`

    @property
    def name(self) -> str:
        """E.g. `cheetah-run-b3` or `maze-a10`, the prefix of policies' and datasets' names."""
        return f"{self.task}-{'a' if self.task == _MAZE else 'b'}{self.number}"

    @property
    def env_id(self) -> str:
        """Gymnasium id of the environment."""
        return f"spin/{self.task}-v0"

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment: `{"bins": 3}` or `{"actuators": 10}`."""
        return {"actuators" if self.task == _MAZE else "bins": self.number}

    @property
    def max_episode_steps(self) -> int:
        """Length of the longest episodes; only the maze has shorter ones."""
        return MAZE_EPISODE_STEPS if self.task == _MAZE else EPISODE_STEPS

    @property
    def ends_early(self) -> bool:
        """Whether episodes can end before `max_episode_steps`."""
        return self.task == _MAZE

    @property
    def can_terminate(self) -> bool:
        """Whether the task itself can end an episode; most have a time limit only."""
        return self.ends_early or self.task.startswith("lqr-")

    @classmethod
    def parse(cls, name: str) -> BenchmarkTask:
        """Inverse of `name`.

        Raises:
            ValueError: the text is no such name.
        """
        match = _NAME.fullmatch(name)
        task = cls(match["task"], int(match["number"])) if match else None
        if task is None or task.name != name:
            raise ValueError(
                f"Expected <domain>-<task>-b<bins> or maze-a<actuators>, got {name!r}."
            )
        return task
