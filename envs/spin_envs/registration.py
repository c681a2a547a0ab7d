"""The table of environments. Registering imports nothing heavy."""

from __future__ import annotations

from typing import Any

import gymnasium

# (domain, task) of the control suite; `tests/envs` checks it against dm_control's own list.
SUITE_TASKS: tuple[tuple[str, str], ...] = (
    ("acrobot", "swingup"),
    ("acrobot", "swingup_sparse"),
    ("ball_in_cup", "catch"),
    ("cartpole", "balance"),
    ("cartpole", "balance_sparse"),
    ("cartpole", "swingup"),
    ("cartpole", "swingup_sparse"),
    ("cartpole", "two_poles"),
    ("cartpole", "three_poles"),
    ("cheetah", "run"),
    ("dog", "stand"),
    ("dog", "walk"),
    ("dog", "trot"),
    ("dog", "run"),
    ("dog", "fetch"),
    ("finger", "spin"),
    ("finger", "turn_easy"),
    ("finger", "turn_hard"),
    ("fish", "upright"),
    ("fish", "swim"),
    ("hopper", "stand"),
    ("hopper", "hop"),
    ("humanoid", "stand"),
    ("humanoid", "walk"),
    ("humanoid", "run"),
    ("humanoid", "run_pure_state"),
    ("humanoid_CMU", "stand"),
    ("humanoid_CMU", "walk"),
    ("humanoid_CMU", "run"),
    ("lqr", "lqr_2_1"),
    ("lqr", "lqr_6_2"),
    ("manipulator", "bring_ball"),
    ("manipulator", "bring_peg"),
    ("manipulator", "insert_ball"),
    ("manipulator", "insert_peg"),
    ("pendulum", "swingup"),
    ("point_mass", "easy"),
    ("point_mass", "hard"),
    ("quadruped", "walk"),
    ("quadruped", "run"),
    ("quadruped", "escape"),
    ("quadruped", "fetch"),
    ("reacher", "easy"),
    ("reacher", "hard"),
    ("stacker", "stack_2"),
    ("stacker", "stack_4"),
    ("swimmer", "swimmer6"),
    ("swimmer", "swimmer15"),
    ("walker", "stand"),
    ("walker", "walk"),
    ("walker", "run"),
)

DEFAULT_BINS = 3
EPISODE_STEPS = 1000
DEFAULT_ACTUATORS = 10
MAZE_EPISODE_STEPS = 150


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
    # Its time limit is that of the environment it is given.
    _register("spin/discretized-v0", entry_point="spin_envs.discretized:DiscretizedEnv")


def _register(env_id: str, **fields: Any) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(env_id, **fields)
