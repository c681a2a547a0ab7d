from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_control import suite
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from spin_envs import DiscretizeAction, InvalidActionError
from spin_envs.discretized import DiscretizedEnv

NEEDS_SHIMMY = "needs Shimmy: pip install 'spin-d3rlpy[shimmy]'"
LOW = np.array([[-1.0, 0.0, 2.0], [-2.0, -3.0, 0.5]])
HIGH = np.array([[1.0, 3.0, 4.0], [2.0, 5.0, 1.5]])


class PlainEnv(gymnasium.Env[Any, Any]):
    """Returns the action it was given in the info."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(
        self, action: str = "float", observation: str = "dict", render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self.action_space = {
            "float": Box(LOW, HIGH, dtype=np.float64),
            "integer": Box(0, 4, (2,), np.int16),
            "unbounded": Box(np.array([-1.0, -np.inf]), 1.0, dtype=np.float64),
            "discrete": Discrete(3),
            "multi": MultiDiscrete([2, 3]),
        }[action]
        position = Box(-1, 1, (2, 2), np.float64)
        inner = Dict(OrderedDict(z=Box(0, 9, (), np.float64), kind=Discrete(3)))
        self.observation_space = {
            # The space's order is not that of the observations below.
            "dict": Dict({"position": position, "inner": inner}),
            "box": Box(np.array([[-np.inf, 0.0]]), np.array([[1.0, np.inf]]), dtype=np.float64),
            "list": Sequence(Discrete(3)),
        }[observation]

    def _observe(self, x: float) -> Any:
        if isinstance(self.observation_space, Box):
            return np.array([[x, 0.5]])
        position = np.array([[x, 0.2], [0.3, 0.4]])
        return {"position": position, "inner": {"z": np.float64(7.0), "kind": np.int64(1)}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x = float(self.np_random.uniform(0, 0.5))
        return self._observe(self._x), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._x += 0.1
        return self._observe(self._x), 1.5, self._x > 0.75, False, {"action": action}

    def render(self) -> Any:
        return np.full((4, 6, 3), 9, np.uint8)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("test/Plain-v0", lambda **kwargs: PlainEnv(**kwargs), max_episode_steps=4)
    yield
    del gymnasium.registry["test/Plain-v0"]


def make(env_id: str = "test/Plain-v0", **kwargs: Any) -> DiscretizedEnv:
    env = gymnasium.make("spin/discretized-v0", env_id=env_id, **kwargs).unwrapped
    assert isinstance(env, DiscretizedEnv)
    return env


def test_grid_spans_the_spaces_own_bounds_and_flattens_its_shape() -> None:
    env = make(bins=[2, 3, 5, 3, 2, 3])
    assert env.action_space == MultiDiscrete([2, 3, 5, 3, 2, 3])
    env.reset(seed=0)
    *_, info = env.step(np.array([1, 1, 1, 0, 1, 2]))
    np.testing.assert_array_equal(info["action"], [[1.0, 1.5, 2.5], [-2.0, 5.0, 1.5]])
    assert info["action"].dtype == np.float64


def test_actions_have_the_spaces_dtype_and_never_leave_it() -> None:
    env = make("Pendulum-v1", bins=7)
    inner = env._env.action_space
    assert isinstance(inner, Box)
    for k in range(7):
        action = env._box.to_continuous([k])
        assert action.dtype == np.float32
        assert inner.contains(action)
    env = make(env_kwargs={"action": "integer"}, bins=4)
    env.reset(seed=0)
    *_, info = env.step(np.array([1, 2]))
    assert info["action"].tolist() == [1, 3]  # of 0, 4/3, 8/3 and 4, rounded
    assert info["action"].dtype == np.int16


def test_dict_observations_are_flattened_in_their_own_order() -> None:
    env = make()
    assert list(env._env.observation_space) == ["inner", "position"]  # type: ignore[call-overload]
    observation, _ = env.reset(seed=0)
    x = env._env.unwrapped._x  # type: ignore[attr-defined]
    # position, inner.z, inner.kind one-hot
    expected = np.array([x, 0.2, 0.3, 0.4, 7.0, 0, 1, 0], np.float32)
    np.testing.assert_array_equal(observation, expected)
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(env.step(np.zeros(6, int))[0][1:], expected[1:])


def test_array_observations_keep_their_bounds() -> None:
    space = make("Pendulum-v1").observation_space
    assert space == Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    space = make(env_kwargs={"observation": "box"}).observation_space
    assert space.shape == (2,)
    np.testing.assert_array_equal([space.low, space.high], [[-np.inf, 0], [1, np.inf]])


def test_everything_else_is_the_tasks_own() -> None:
    env = make(render_mode="rgb_array")
    _, info = env.reset(seed=5, options={"a": 1})
    assert info == {"options": {"a": 1}}
    flags = []
    for _ in range(4):
        _, reward, terminated, truncated, _ = env.step(np.zeros(6, int))
        assert reward == 1.5
        flags.append((terminated, truncated))
    assert flags[-1][1], "its registered time limit"
    assert flags[:3] == [(False, False)] * 3 or flags[-1][0]
    assert env.metadata["render_fps"] == 7
    np.testing.assert_array_equal(env.render(), np.full((4, 6, 3), 9))


@pytest.mark.filterwarnings("ignore:.*A Box observation space m..imum value is -?infinity")
@pytest.mark.parametrize("env_id", ["test/Plain-v0", "Pendulum-v1"])
def test_passes_gymnasiums_checker_without_a_warning(env_id: str) -> None:
    check_env(make(env_id), skip_render_check=True)


def test_pendulum_steps_as_the_continuous_one_does() -> None:
    ours, theirs = make("Pendulum-v1", bins=5), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(ours.reset(seed=7)[0], theirs.reset(seed=7)[0])
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(5))
        observation, reward, terminated, truncated, _ = ours.step(np.array([k]))
        expected = theirs.step(np.array([-2.0 + k], np.float32))
        np.testing.assert_array_equal(observation, expected[0])
        assert (reward, terminated, truncated) == tuple(expected[1:4])
    assert truncated


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_from_where_it_was_taken(duplicate: Any) -> None:
    env = make("Pendulum-v1")
    env.reset(seed=0)
    other = duplicate(env)
    np.testing.assert_array_equal(other.step(np.array([0]))[0], env.step(np.array([0]))[0])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"action": "discrete"}, r"continuous actions .*, got Discrete\(3\)"),
        ({"action": "multi"}, "got MultiDiscrete"),
        ({"action": "unbounded"}, r"finite bounds, got Box\(.*inf"),
        ({"observation": "list"}, "arrays or .nested. dicts of arrays, got Sequence"),
    ],
)
def test_tasks_that_cannot_be_discretized_are_refused(kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(env_kwargs=kwargs)


@pytest.mark.parametrize("bins", [1, 2.5, [3, 3], True])
def test_bad_bins_are_refused(bins: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        make("Pendulum-v1", bins=bins)


def test_an_unknown_id_lists_near_matches() -> None:
    with pytest.raises(gymnasium.error.UnregisteredEnv, match=r"Did you mean: `Pendulum`"):
        make("Pendulun-v1")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(1), "Pass bin indices"),
        (np.array([np.nan]), "dtype float64"),
        (1, r"got shape \(\)"),
        (np.array([1, 1]), r"got shape \(2,\)"),
        ([-1], "Slot 0 is -1"),
        ([3], "Slot 0 is 3, expected 0 to 2"),
    ],
)
def test_bad_actions_are_refused(action: Any, message: str) -> None:
    inner = gymnasium.make("Pendulum-v1")
    for env in (make("Pendulum-v1"), DiscretizeAction(inner)):
        env.reset(seed=0)
        with pytest.raises(InvalidActionError, match=message):
            env.step(action)


def test_the_wrapper_changes_the_actions_of_an_environment_at_hand() -> None:
    inner = PlainEnv()
    env = DiscretizeAction(inner, bins=3)
    assert env.action_space == MultiDiscrete([3] * 6)
    assert env.observation_space == inner.observation_space
    env.reset(seed=0)
    *_, info = env.step(np.full(6, 2))
    np.testing.assert_array_equal(info["action"], HIGH)
    with pytest.raises(ValueError, match="got Discrete"):
        DiscretizeAction(PlainEnv("discrete"))


def test_the_wrapper_is_part_of_the_spec() -> None:
    env = DiscretizeAction(gymnasium.make("Pendulum-v1"), bins=[5])
    assert env.spec is not None
    again = gymnasium.make(type(env.spec).from_json(env.spec.to_json()))
    assert again.action_space == MultiDiscrete([5])


# Suite, locomotion and manipulation; many more would take long to compile.
SHIMMY_IDS = [
    "dm_control/humanoid-stand-v0",
    "dm_control/CmuHumanoidGoToTarget-v0",
    "dm_control/reach_site_features-v0",
]


@pytest.mark.parametrize("env_id", SHIMMY_IDS)
def test_shimmys_tasks_work(env_id: str) -> None:
    pytest.importorskip("shimmy", reason=NEEDS_SHIMMY)
    env = make(env_id, bins=3)
    n = env._env.action_space.shape
    assert env.action_space == MultiDiscrete([3] * int(np.prod(n or ())))
    start, _ = env.reset(seed=3)
    np.testing.assert_array_equal(env.reset(seed=3)[0], start)
    for _ in range(3):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert not terminated
        assert not truncated
    timestep: float = env._env.unwrapped.control_timestep()  # type: ignore[attr-defined]
    assert env.metadata["render_fps"] == round(1 / timestep)
    env.close()


@pytest.mark.usefixtures("renders")
def test_tasks_that_observe_pictures_work_where_something_can_draw() -> None:
    pytest.importorskip("shimmy", reason=NEEDS_SHIMMY)
    env = make("dm_control/RodentEscapeBowl-v0")
    observation, _ = env.reset(seed=3)
    assert observation.shape == env.observation_space.shape == (12449,)
    env.close()


def test_shimmys_values_come_in_dm_controls_order() -> None:
    pytest.importorskip("shimmy", reason=NEEDS_SHIMMY)
    expected = suite.load("humanoid", "stand", task_kwargs={"random": 5}).reset().observation
    flat: NDArray[Any] = np.concatenate([np.ravel(value) for value in expected.values()])
    observation, _ = make("dm_control/humanoid-stand-v0").reset(seed=5)
    np.testing.assert_array_equal(observation, flat.astype(np.float32))


def test_an_unknown_dm_control_id_lists_near_matches() -> None:
    pytest.importorskip("shimmy", reason=NEEDS_SHIMMY)
    with (
        warnings.catch_warnings(),
        pytest.raises(gymnasium.error.UnregisteredEnv, match="cheetah-run"),
    ):
        make("dm_control/cheetah-rum-v0")
