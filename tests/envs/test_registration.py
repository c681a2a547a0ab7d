"""What holds for every environment in the registry."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from dm_control import suite
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import MultiDiscrete
from gymnasium.utils.env_checker import check_env
from minari.data_collector import EpisodeBuffer
from numpy.typing import NDArray

import spin_envs
from spin_envs.suite import DiscretizedSuiteEnv
from spin_envs.tasks import EPISODE_STEPS, SUITE_TASKS, register_all
from tests.subprocesses import ROOT, run_python

SPIN_IDS = sorted(env_id for env_id in gymnasium.registry if env_id.startswith("spin/"))
SUITE_IDS = [f"spin/{domain}-{task}-v0" for domain, task in SUITE_TASKS]
REQUIRED: dict[str, dict[str, Any]] = {"spin/discretized-v0": {"env_id": "Pendulum-v1"}}

# One of each family, with arguments that are not the defaults.
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("spin/cheetah-run-v0", {"bins": 4}),
    ("spin/cheetah-run-v0", {"bins": [2, 3, 4, 5, 6, 7]}),
    ("spin/maze-v0", {"actuators": 7}),
    ("spin/dispatch-v0", {"couriers": 4}),
    ("spin/slate-v0", {"places": 4}),
    ("spin/cone-v0", {"dimensions": 3, "pits": 1.0, "placement": 4}),
    ("spin/discretized-v0", {"env_id": "Pendulum-v1", "bins": 5, "env_kwargs": {"g": 9.81}}),
]

BENCHMARK = {
    "finger-spin": 2,
    "fish-swim": 5,
    "cheetah-run": 6,
    "quadruped-walk": 12,
    "humanoid-stand": 21,
    "dog-trot": 38,
}


def make(name: str, /, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name, **{**REQUIRED.get(name, {}), **kwargs})


def play(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> NDArray[np.float32]:
    """Observations and rewards of a few random steps, one row per step."""
    rng = np.random.default_rng(0)
    assert isinstance(env.action_space, MultiDiscrete)
    rows = [np.append(env.reset(seed=seed)[0], 0)]
    for _ in range(steps):
        observation, reward, *_ = env.step(rng.integers(env.action_space.nvec))
        rows.append(np.append(observation, float(reward)))
    return np.stack(rows)


def digest(env_id: str) -> str:
    env = make(env_id)
    played = hashlib.sha256(play(env, seed=3, steps=5).tobytes()).hexdigest()
    env.close()
    return played


def needs_graphics(env_id: str) -> bool:
    return env_id == "spin/quadruped-escape-v0"  # it draws its terrain


def _name_if_it_can_run(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if needs_graphics(name):
        request.getfixturevalue("renders")
    return name


def _one_a_domain(ids: Sequence[str]) -> list[Any]:
    """Parameters of which all but the first of each domain are slow: tasks are made alike."""
    seen: set[str] = set()
    params = []
    for name in ids:
        domain = name.removeprefix("spin/").split("-")[0]
        params.append(pytest.param(name, marks=pytest.mark.slow if domain in seen else ()))
        seen.add(domain)
    return params


# For the module, so that what is told of an environment is told together and it is made once.
@pytest.fixture(params=_one_a_domain(SPIN_IDS), scope="module")
def env_id(request: pytest.FixtureRequest) -> str:
    return _name_if_it_can_run(request)


@pytest.fixture(scope="module")
def shared_env(env_id: str) -> Iterator[gymnasium.Env[Any, Any]]:
    """The environment, as it was made; tests reset it."""
    env = make(env_id)  # wrapped in the passive checker
    yield env
    env.close()


@pytest.fixture(params=_one_a_domain(SUITE_IDS))
def suite_id(request: pytest.FixtureRequest) -> str:
    return _name_if_it_can_run(request)


def test_table_lists_every_task_of_the_suite_once() -> None:
    assert tuple(suite.ALL_TASKS) == SUITE_TASKS


def test_everything_is_registered_with_string_entry_points_and_time_limits() -> None:
    others = ("cone", "dispatch", "discretized", "maze", "slate")
    assert sorted([*SUITE_IDS, *(f"spin/{name}-v0" for name in others)]) == SPIN_IDS
    for env_id in SPIN_IDS:
        spec = gymnasium.spec(env_id)
        assert isinstance(spec.entry_point, str)
        assert spec.entry_point.startswith("spin_envs.")
        if env_id in SUITE_IDS:
            assert spec.entry_point == "spin_envs.suite:DiscretizedSuiteEnv"
            assert spec.vector_entry_point == "spin_envs.vector:SuiteVectorEnv"
            assert spec.max_episode_steps == EPISODE_STEPS == 1000


def test_registering_twice_does_not_warn() -> None:
    register_all()


@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is -?infinity")
def test_passes_gymnasiums_checkers_without_a_warning(shared_env: gymnasium.Env[Any, Any]) -> None:
    check_env(shared_env.unwrapped, skip_render_check=True)
    play(shared_env, seed=0, steps=3)


def test_the_seed_decides_the_episode_in_every_instance(
    env_id: str, shared_env: gymnasium.Env[Any, Any]
) -> None:
    first, second = shared_env, make(env_id)
    once = play(first, seed=3, steps=5)
    if env_id != "spin/cone-v0":  # where nothing is random
        assert not np.array_equal(play(first, seed=4, steps=5), once)
    np.testing.assert_array_equal(play(first, seed=3, steps=5), once)
    np.testing.assert_array_equal(play(second, seed=3, steps=5), once)
    second.close()


@pytest.mark.slow
def test_the_seed_decides_the_episode_in_every_process() -> None:
    """One task a domain: what a domain draws at random, its tasks draw alike."""
    ids = [f"spin/{domain}-{task}-v0" for domain, task in dict(SUITE_TASKS[::-1]).items()]
    ids += [f"spin/{name}-v0" for name in ("cone", "discretized", "dispatch", "maze", "slate")]
    assert len(ids) == 24
    assert not any(map(needs_graphics, ids))
    output = run_python(
        "import sys, spin_envs\n"
        "from tests.envs.test_registration import digest\n"
        "print(*[digest(env_id) for env_id in sys.argv[1:]], sep='\\n')",
        *ids,
    )
    assert dict(zip(ids, output.splitlines(), strict=True)) == {i: digest(i) for i in ids}


def test_every_suite_task_steps_as_dm_control_does(suite_id: str) -> None:
    assert_steps_as_dm_control(suite_id, steps=8)


@pytest.mark.slow
def test_every_suite_task_steps_as_dm_control_does_for_a_whole_episode(suite_id: str) -> None:
    assert_steps_as_dm_control(suite_id, EPISODE_STEPS)


def assert_steps_as_dm_control(env_id: str, steps: int) -> None:
    domain, task = SUITE_TASKS[SUITE_IDS.index(env_id)]
    theirs = suite.load(domain, task, task_kwargs={"random": 12})
    n = theirs.action_spec().shape[0]
    bins = [2 + i % 4 for i in range(n)]
    ours = make(env_id, bins=bins).unwrapped
    assert isinstance(ours, DiscretizedSuiteEnv)
    rng = np.random.default_rng(12)

    def flat(timestep: Any) -> NDArray[np.float32]:
        values = [np.ravel(value) for value in timestep.observation.values()]
        return np.concatenate(values).astype(np.float32)

    np.testing.assert_array_equal(ours.reset(seed=12)[0], flat(theirs.reset()))
    for t in range(steps):
        action = rng.integers(bins)
        observation, reward, terminated, truncated, _ = ours.step(action)
        timestep = theirs.step([-1 + 2 * k / (b - 1) for k, b in zip(action, bins, strict=True)])
        np.testing.assert_array_equal(observation, flat(timestep))
        assert reward == timestep.reward
        if domain == "lqr":  # dm_control has no time limit for it
            assert terminated == timestep.last()
        else:
            assert not terminated
            assert truncated == timestep.last() == (t == EPISODE_STEPS - 1)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("task", BENCHMARK)
def test_the_benchmarks_tasks_have_shimmys_values(task: str) -> None:
    assert_shimmys_values(f"spin/{task}-v0")


@pytest.mark.slow
def test_every_suite_task_has_shimmys_values(suite_id: str) -> None:
    assert_shimmys_values(suite_id)


def assert_shimmys_values(env_id: str) -> None:
    pytest.importorskip("shimmy", reason="needs Shimmy: pip install 'spin-d3rlpy[shimmy]'")
    theirs_id = "dm_control/" + env_id.removeprefix("spin/")
    ours = make(env_id)
    bridged = gymnasium.make("spin/discretized-v0", env_id=theirs_id)  # imports Shimmy, too
    theirs = gymnasium.make(theirs_id, disable_env_checker=True)
    assert isinstance(ours.action_space, MultiDiscrete)
    n = len(ours.action_space.nvec)
    low, high = theirs.action_space.low, theirs.action_space.high  # type: ignore[attr-defined]
    rng = np.random.default_rng(1)
    # lqr draws its model from the seed when it is loaded, which Shimmy does without one.
    seeded_model = "lqr" in env_id

    results: Any = (ours.reset(seed=6), theirs.reset(seed=6), bridged.reset(seed=6))
    for _ in range(4):
        if not seeded_model:
            mine, other, bridge = (result[0] for result in results)
            values = np.concatenate([np.ravel(v) for v in other.values()])
            np.testing.assert_array_equal(mine, values.astype(np.float32))
            if np.all(low == -1) and np.all(high == 1):  # then its grid is ours
                np.testing.assert_array_equal(bridge, mine)
                assert bridged.action_space == ours.action_space
            if len(results[0]) == 5:
                assert results[0][1] == results[1][1]
        k = rng.integers(0, 3, n)
        results = (ours.step(k), theirs.step(k - 1.0), bridged.step(k))
    for env in (ours, theirs, bridged):
        env.close()


@pytest.mark.parametrize(
    ("task", "bins"), list(zip(BENCHMARK, [3, 10, 30, 50, 75, 100], strict=True))
)
def test_the_benchmarks_tasks_take_any_of_its_numbers_of_bins(task: str, bins: int) -> None:
    env = make(f"spin/{task}-v0", bins=bins)
    n = BENCHMARK[task]
    assert env.action_space == MultiDiscrete([bins] * n)
    env.reset(seed=0)
    choices = np.arange(n) * 7 % bins
    env.step(choices)
    unwrapped = env.unwrapped
    assert isinstance(unwrapped, DiscretizedSuiteEnv)
    set_to = unwrapped._env.physics.control()
    np.testing.assert_allclose(set_to, -1 + 2 * choices / (bins - 1), atol=1e-12)
    env.close()


def test_make_imports_the_package_by_prefix() -> None:
    shape = run_python(
        "import gymnasium\n"
        "env = gymnasium.make('spin_envs:spin/cheetah-run-v0')\n"
        "print(env.observation_space.shape, env.action_space.nvec.tolist())"
    )
    assert shape == "(17,) [3, 3, 3, 3, 3, 3]"


def test_every_spec_survives_json(env_id: str) -> None:
    spec = gymnasium.spec(env_id)
    spec = EnvSpec.from_json(spec.to_json())
    assert spec == gymnasium.spec(env_id)


@pytest.mark.parametrize("vector", [False, True])
def test_specs_of_environments_made_with_numpys_numbers_survive_json(vector: bool) -> None:
    bins = np.array([3, 5, 2, 3, 3, 3])
    for kwargs in ({"bins": bins[1]}, {"bins": bins}, {"bins": list(bins)}):
        env: Any = (
            gymnasium.make_vec("spin/cheetah-run-v0", 2, **kwargs)
            if vector
            else gymnasium.make("spin/cheetah-run-v0", **kwargs)
        )
        found = EnvSpec.from_json(env.spec.to_json()).kwargs["bins"]
        assert found == np.asarray(kwargs["bins"]).tolist()
        env.close()
    box = spin_envs.DiscretizeAction(gymnasium.make("Pendulum-v1"), bins=bins[0])
    assert box.spec is not None
    assert gymnasium.make(EnvSpec.from_json(box.spec.to_json())).action_space == box.action_space


@pytest.mark.parametrize(("family", "kwargs"), FAMILIES)
def test_a_spec_makes_the_same_environment_in_a_process_that_imported_nothing(
    family: str, kwargs: dict[str, Any]
) -> None:
    env = make(family, **kwargs)
    assert env.spec is not None
    assert EnvSpec.from_json(env.spec.to_json()) == env.spec
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


@pytest.mark.parametrize(("family", "kwargs"), FAMILIES)
def test_minari_recovers_the_environment_in_a_process_that_imported_nothing(
    family: str, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = make(family, **kwargs)
    observation, _ = env.reset(seed=11)
    assert isinstance(env.action_space, MultiDiscrete)
    action = np.zeros((1, len(env.action_space.nvec)), np.int64)
    following, reward, *_ = env.step(action[0])
    buffer = EpisodeBuffer(
        observations=np.stack([observation, following]),
        actions=action,
        rewards=np.array([reward]),
        terminations=np.array([False]),
        truncations=np.array([True]),
        infos={},
    )
    minari.create_dataset_from_buffers(
        "spin/recovered/test-v0",
        buffer=[buffer],
        env=env,
        eval_env=env,
        algorithm_name="none",
        author="a",
        author_email="a@b.org",
        code_permalink="https://b.org",
        description="d",
    )
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import minari\n"
            "env = minari.load_dataset('spin/recovered/test-v0').recover_environment()\n"
            "print(env.action_space.nvec.tolist(), env.reset(seed=11)[0].tobytes().hex())",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "envs")])},
    )
    assert result.returncode == 0, result.stderr
    expected = f"{env.action_space.nvec.tolist()} {observation.tobytes().hex()}"
    assert result.stdout.strip() == expected


def test_public_names_exist() -> None:
    assert all(hasattr(spin_envs, name) for name in spin_envs.__all__)
    np.testing.assert_equal(sorted(spin_envs.__all__), spin_envs.__all__)
