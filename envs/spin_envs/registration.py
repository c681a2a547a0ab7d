"""The table of environments. Registration imports nothing heavy."""

from __future__ import annotations

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
