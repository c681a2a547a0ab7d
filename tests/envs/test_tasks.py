from __future__ import annotations

import gymnasium
import pytest

from spin_envs.tasks import BenchmarkTask


@pytest.mark.parametrize(
    ("task", "name", "nvec"),
    [
        (BenchmarkTask("cheetah-run", 3), "cheetah-run-b3", [3] * 6),
        (BenchmarkTask("maze", 7), "maze-a7", [2] * 7),
    ],
)
def test_a_name_is_read_back_and_makes_its_environment(
    task: BenchmarkTask, name: str, nvec: list[int]
) -> None:
    assert task.name == name
    assert BenchmarkTask.parse(name) == task
    env = gymnasium.make(task.env_id, **task.env_kwargs)
    assert isinstance(env.action_space, gymnasium.spaces.MultiDiscrete)
    assert env.action_space.nvec.tolist() == nvec
    assert env.spec is not None
    assert env.spec.max_episode_steps == task.max_episode_steps


@pytest.mark.parametrize("name", ["maze-b3", "cheetah-run-a3", "cheetah-run-b03", "cheetah-b3", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Expected .*maze-a.*got {name!r}"):
        BenchmarkTask.parse(name)
