"""Speed of the suite's vector environment against Gymnasium's `SyncVectorEnv`.

Run with `python -m tests.measure.vector_speed [--out FILE.csv]`. Both step the same number of
instances with the same random actions in one process, in turns; the ratio of each pair is
reported. Times are CPU seconds of this process: both ways use one thread, and what else the
machine does counts less.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import typer
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from spin_d3rlpy.files.results import format_table, write_csv
from spin_envs.base import StepResult
from spin_envs.suite import DiscretizedSuiteEnv
from spin_envs.vector import make_batch

NUM_ENVS = 8
PAIRS = 61
# Task: steps of one half of a pair; short, so that both halves meet the same machine.
TASKS = {"cheetah-run": 100, "humanoid-stand": 20, "dog-trot": 8}


class HostStepEnv(DiscretizedSuiteEnv):
    """The suite's environment on top of dm_control's own `Environment.step`, for comparison."""

    def _advance(self, action: NDArray[np.int64], out: NDArray[np.float32]) -> StepResult:
        timestep = self._env.step(self._grid.values(action))
        values = [np.ravel(value) for value in timestep.observation.values()]
        out[:] = np.concatenate(values)
        return float(timestep.reward), timestep.discount == 0.0, timestep.last(), {}


def seconds(envs: VectorEnv[Any, Any, Any], actions: NDArray[np.int64]) -> float:
    """Returns the CPU seconds that these steps take."""
    envs.reset(seed=0)
    started = time.process_time()
    for action in actions:
        envs.step(action)
    return time.process_time() - started


def measure(task: str, num_envs: int, pairs: int, steps: int) -> dict[str, Any]:
    """Returns steps per second of all ways and the ratios of the fast one to the others."""
    fast = make_batch(f"spin/{task}-v0", num_envs)
    sync = gymnasium.make_vec(f"spin/{task}-v0", num_envs, "sync")
    domain, name = task.split("-")
    limit = gymnasium.spec(f"spin/{task}-v0").max_episode_steps
    assert limit is not None

    def make_host_step() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = HostStepEnv(domain, name)
        env = gymnasium.wrappers.PassiveEnvChecker(env)  # as gymnasium.make wraps the others
        return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(env), limit)

    host = SyncVectorEnv([make_host_step] * num_envs)
    space = fast.single_action_space
    assert isinstance(space, gymnasium.spaces.MultiDiscrete)
    shape = (steps, num_envs, len(space.nvec))
    actions = np.random.default_rng(0).integers(0, space.nvec, shape)
    times = [[seconds(envs, actions) for envs in (fast, sync, host)] for _ in range(pairs)]
    for envs in (fast, sync, host):
        envs.close()

    total = steps * num_envs

    def ratios(column: int) -> list[float]:
        return sorted(row[column] / row[0] for row in times)

    def rate(column: int) -> int:
        return round(total / statistics.median(row[column] for row in times))

    to_sync, to_host = ratios(1), ratios(2)
    return {
        "task": task,
        "num_envs": num_envs,
        "pairs": pairs,
        "vector_steps_per_s": rate(0),
        "sync_steps_per_s": rate(1),
        "sync_dm_control_step_per_s": rate(2),
        "ratio_to_sync": f"{statistics.median(to_sync):.2f}",
        "quartile_1": f"{to_sync[len(to_sync) // 4]:.2f}",
        "quartile_3": f"{to_sync[-1 - len(to_sync) // 4]:.2f}",
        "ratio_to_sync_dm_control_step": f"{statistics.median(to_host):.2f}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **{p: importlib.metadata.version(p) for p in ("mujoco", "dm_control", "gymnasium")},
    }


def main(
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
) -> None:
    """Time stepping in a vector environment compared with Gymnasium's."""
    found = [measure(task, NUM_ENVS, PAIRS, steps) for task, steps in TASKS.items()]
    print(format_table(found))
    if out is not None:
        write_csv(out, found)


if __name__ == "__main__":
    typer.run(main)
