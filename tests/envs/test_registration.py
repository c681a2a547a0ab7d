from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from dm_control import suite
from gymnasium.spaces import MultiDiscrete

import spin_envs
from spin_envs.registration import EPISODE_STEPS, SUITE_TASKS, register_all
from spin_envs.suite import DiscretizedSuiteEnv
from tests.subprocesses import run_python

SPIN_IDS = sorted(env_id for env_id in gymnasium.registry if env_id.startswith("spin/"))


def test_table_lists_every_task_of_the_suite_once() -> None:
    assert tuple(suite.ALL_TASKS) == SUITE_TASKS


def test_every_task_is_registered_with_a_string_entry_point_and_a_time_limit() -> None:
    assert sorted(f"spin/{domain}-{task}-v0" for domain, task in SUITE_TASKS) == SPIN_IDS
    for env_id in SPIN_IDS:
        spec = gymnasium.spec(env_id)
        assert spec.entry_point == "spin_envs.suite:DiscretizedSuiteEnv"
        assert spec.max_episode_steps == EPISODE_STEPS == 1000


def test_registering_twice_does_not_warn() -> None:
    register_all()


def test_make_passes_bins_and_imports_the_package_by_prefix() -> None:
    env = gymnasium.make("spin/cheetah-run-v0", bins=5)
    assert isinstance(env.unwrapped, DiscretizedSuiteEnv)
    assert isinstance(env.action_space, MultiDiscrete)
    assert env.action_space.nvec.tolist() == [5] * 6

    shape = run_python(
        "import gymnasium\n"
        "env = gymnasium.make('spin_envs:spin/cheetah-run-v0')\n"
        "print(env.observation_space.shape, env.action_space.nvec.tolist())"
    )
    assert shape == "(17,) [3, 3, 3, 3, 3, 3]"


@pytest.mark.parametrize("bins", [4, [2, 3, 4, 5, 6, 7]])
def test_spec_makes_the_same_environment_in_a_process_that_imported_nothing(
    bins: int | list[int],
) -> None:
    env = gymnasium.make("spin/cheetah-run-v0", bins=bins)
    assert env.spec is not None
    observation, _ = env.reset(seed=11)
    output = run_python(
        "import sys, gymnasium\n"
        "from gymnasium.envs.registration import EnvSpec\n"
        "env = gymnasium.make(EnvSpec.from_json(sys.argv[1]))\n"
        "print(env.action_space.nvec.tolist(), env.reset(seed=11)[0].tobytes().hex())",
        env.spec.to_json(),
    )
    assert isinstance(env.action_space, MultiDiscrete)
    assert output == f"{env.action_space.nvec.tolist()} {observation.tobytes().hex()}"


def test_public_names_exist() -> None:
    assert all(hasattr(spin_envs, name) for name in spin_envs.__all__)
    np.testing.assert_equal(sorted(spin_envs.__all__), spin_envs.__all__)
