"""Environments and datasets whose actions are of any space: read, kept, and acted in."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from spin_d3rlpy import (
    FactoredBC,
    FactoredIQL,
    LockstepEvaluator,
    MultiDiscreteFQE,
    collect,
    create_replay_buffer,
    load_dataset,
    load_policy,
    save_dataset,
    save_policy,
)
from spin_d3rlpy._compat import quiet_tracing
from spin_d3rlpy.algos.saving import copy_to
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidCheckpointError,
    InvalidDatasetError,
)
from spin_d3rlpy.runs.play import play_episodes
from spin_d3rlpy.runs.policy import OpenedPolicy
from spin_envs import Bins, FlatActions, FlattenAction
from tests.envs.pad import ID, Pad
from tests.saved_files import read_saved, write_saved

NAMES = ["buttons/0/0", "buttons/1/0", "buttons/1/1", "stick/0", "stick/1"]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    gymnasium.register(ID, entry_point="tests.envs.pad:Pad")
    yield
    gymnasium.registry.pop(ID)


def expert(env: gymnasium.Env[Any, Any]) -> Callable[[Any], Any]:
    """What the environment pays most, with noise."""
    rng, pad = np.random.default_rng(0), env.unwrapped

    def choose(_: Any) -> Any:
        return pad.wanted() if rng.random() < 0.7 else env.action_space.sample()  # type: ignore[attr-defined]

    env.action_space.seed(0)
    return choose


def log(episodes: int = 20, bins: Any = None, **kwargs: Any) -> DeviceReplayBuffer:
    env = gymnasium.make(ID, **kwargs)
    bins = bins or (None if kwargs.get("sticks") is False else {"stick": Bins(4, "quantiles")})
    return collect(env, expert(env), episodes, progress=False, bins=bins)


def test_what_is_played_is_the_log_of_the_bins() -> None:
    buffer = log()
    actions = buffer.flat_actions
    assert actions is not None
    assert actions.names == NAMES
    assert buffer.nvec == actions.nvec.tolist() == [3, 2, 2, 4, 3]
    # Most of the second axis is 0, which has a bin of its own.
    assert actions.value(4, 1) == 0.0
    shares = np.bincount(buffer.actions[:, 3].numpy(), minlength=4) / buffer.transition_count
    np.testing.assert_allclose(shares, 0.25, atol=0.02)
    exact = log(sticks=False)
    assert exact.nvec == [3, 2, 2]
    assert exact.flat_actions == FlatActions(Pad.space(sticks=False))


def test_a_wrapped_environment_has_the_same_choices() -> None:
    buffer = log()
    env = FlattenAction(gymnasium.make(ID), actions=buffer.flat_actions)
    choose = expert(gymnasium.make(ID))
    inner = env.env.unwrapped
    choose = lambda _: env.actions.flatten(inner.wanted())  # type: ignore[attr-defined] # noqa: E731
    again = collect(env, choose, 3, progress=False)
    assert again.nvec == buffer.nvec
    assert again.flat_actions == buffer.flat_actions


@pytest.mark.parametrize(
    ("kwargs", "bins", "error", "message"),
    [
        ({}, None, InvalidActionSpaceError, r'action\["stick"\]\[0\].*Pass bins= to collect'),
        ({}, 1, ValueError, r'bins of action\["stick"\]\[0\] are wrong.*got 1'),
        ({}, {"stock": 3}, ValueError, "got 'stock'"),
        ({"sticks": False}, 3, ValueError, "no bins"),
    ],
)
def test_it_is_refused_before_anything_is_played(
    kwargs: Any, bins: Any, error: Any, message: str
) -> None:
    def choose(_: Any) -> Any:
        raise AssertionError("played")

    with pytest.raises(error, match=message):
        collect(gymnasium.make(ID, **kwargs), choose, 1, progress=False, bins=bins)


def test_more_data_are_read_by_the_same_bins() -> None:
    first, other = log(bins=3), log(5, bins=3)
    again = log(5, bins=first.flat_actions)
    assert again.flat_actions == first.flat_actions != other.flat_actions
    algo = FactoredBC()
    algo.build_with_dataset(first)
    algo.fit(again, n_steps=1, n_steps_per_epoch=1, show_progress=False)
    with pytest.warns(UserWarning, match=r"stand for other actions .*bins=algo\.flat_actions"):
        algo.fit(other, n_steps=1, n_steps_per_epoch=1, show_progress=False)
    assert algo.flat_actions == first.flat_actions
    plain = gymnasium.make(ID, sticks=False)
    with pytest.raises(ValueError, match="as the given bins have, got Dict"):
        collect(plain, expert(plain), 1, progress=False, bins=first.flat_actions)


def test_masks_of_parts_are_kept_as_those_of_slots() -> None:
    env = gymnasium.make(ID, masks=True)
    seen = []

    def choose(_: Any, mask: Any) -> Any:
        seen.append(mask)
        return {
            "buttons": (np.array([5]), np.array([0, 1], np.int8)),
            "stick": np.zeros(2, np.float32),
        }

    buffer = collect(env, choose, 2, progress=False, with_masks=True, bins=3)
    assert seen[0]["buttons"][1].tolist() == [0, 2]
    masks = buffer.masks_at(buffer.observation_index)
    assert masks is not None
    assert masks[0].tolist()[:2] == [[True, True, False], [True, False, False]]
    assert masks[5, 3].all()
    with pytest.raises(InvalidDatasetError, match=r"Slot 0 at step 0 .* mask"):
        collect(
            env, lambda _: Pad.sample(0) | {"buttons": ([6], [0, 1])}, 1, progress=False, bins=3
        )


def test_it_is_kept_with_a_dataset_and_in_the_policys_file(tmp_path: Path) -> None:
    buffer, env = log(), gymnasium.make(ID)
    save_dataset(buffer, "user/pad-v0", env=env)
    loaded, made = load_dataset("user/pad-v0")
    assert loaded.flat_actions == buffer.flat_actions
    assert isinstance(made, FlattenAction)
    assert made.actions == buffer.flat_actions
    assert (loaded.actions == buffer.actions).all()
    _, given = load_dataset("user/pad-v0", env=env)
    assert given.action_space == made.action_space

    algo = FactoredBC()
    algo.fit(loaded, n_steps=150, n_steps_per_epoch=150, show_progress=False)
    save_policy(algo, tmp_path / "policy.safetensors")
    policy = load_policy(tmp_path / "policy.safetensors")
    assert policy.flat_actions == buffer.flat_actions
    observation, _ = env.reset(seed=0)
    action = policy.act(observation)
    assert env.action_space.contains(action)
    (choices,) = policy.predict(observation[None])
    assert policy.flat_actions.flatten(action).tolist() == choices.tolist()
    assert policy.act(observation[None]).tolist() == [choices.tolist()]
    assert copy_to(policy, "cpu:0").flat_actions == buffer.flat_actions
    # In the environment itself and in its wrapper it returns the same.
    returns = [LockstepEvaluator(e, 4)(policy) for e in (env, made)]
    assert returns[0] == returns[1] > 3.0
    opened = OpenedPolicy(policy, policy.config.nvec, ID)
    assert play_episodes(opened, episodes=4)["return"] == returns[0]
    fqe = MultiDiscreteFQE(policy, check=False)
    fqe.fit(loaded, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    assert np.isfinite(fqe.predict_value(observation[None], choices[None])).all()


def test_an_evaluator_converts_for_each_policy() -> None:
    env, evaluator = gymnasium.make(ID), LockstepEvaluator(gymnasium.make(ID), 2)
    few, many = FactoredBC(), FactoredBC()
    few.build_with_dataset(log(bins=2))
    many.build_with_dataset(log(bins=9))
    for algo in (few, many, few):
        assert evaluator(algo) == LockstepEvaluator(env, 2)(algo)
    evaluator.close()
    with pytest.raises(InvalidActionSpaceError, match=r'action\["stick"\]\[0\]'):
        LockstepEvaluator(env, 2)(FactoredBC(nvec=[2]))


def test_online_training_takes_the_environment_or_its_wrapper() -> None:
    data = log(bins=3)
    env = gymnasium.make(ID)
    for one in (env, FlattenAction(env, actions=data.flat_actions)):
        algo = FactoredIQL(batch_size=8)
        algo.build_with_dataset(data)
        algo.fit_online(
            one, n_steps=20, n_steps_per_epoch=10, update_start_step=8, eval_env=one,
            show_progress=False,
        )  # fmt: skip
        buffer = algo.collect(one, n_steps=8, show_progress=False)
        assert buffer.episodes[0].actions.shape == (8, 5)
    exact = FactoredIQL()
    plain = gymnasium.make(ID, sticks=False)
    exact.build_with_env(plain)
    assert exact.config.nvec == [3, 2, 2]
    assert plain.action_space.contains(exact.act(plain.reset(seed=0)[0]))
    assert create_replay_buffer(plain).size() == 0
    with pytest.raises(InvalidActionSpaceError, match=r"FlattenAction, which takes bins="):
        create_replay_buffer(env)


def test_a_dataset_names_a_wrapped_environment() -> None:
    env = FlattenAction(gymnasium.make(ID), bins=3)
    buffer = collect(env, lambda _: env.action_space.sample(), 2, progress=False)
    save_dataset(buffer, "user/wrapped-v0", env=env)
    loaded, made = load_dataset("user/wrapped-v0")
    assert loaded.flat_actions == env.actions
    assert made.action_space == env.action_space


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Discrete(3, start=5), 7),
        (MultiDiscrete([2, 3], start=[1, 4]), [1, 6]),
        (MultiBinary(2), [0, 1]),
    ],
)
def test_spaces_of_slots_are_acted_in_as_they_are(space: Any, expected: Any) -> None:
    class Simple(gymnasium.Env[Any, Any]):
        observation_space = Box(0.0, 1.0, (1,))
        action_space = space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            assert space.contains(action)
            return self.reset()[0], float(np.array_equal(action, expected)), True, False, {}

    gymnasium.register("test/simple-v0", entry_point=Simple)  # type: ignore[arg-type]
    env = gymnasium.make("test/simple-v0")
    taken = expected if isinstance(expected, int) else np.array(expected, space.dtype)
    buffer = collect(env, lambda _: taken, 3, progress=False)
    save_dataset(buffer, "user/simple-v0", env=env)
    loaded, made = load_dataset("user/simple-v0")
    algo = FactoredBC()
    algo.fit(loaded, n_steps=50, n_steps_per_epoch=50, show_progress=False)
    assert np.array_equal(algo.act(np.zeros(1)), expected)
    assert LockstepEvaluator(made, 2)(algo) == 1.0
    gymnasium.registry.pop("test/simple-v0")


Make = Callable[..., Any]
SPACE = Tuple([Dict({"jump": Discrete(2), "aim": Box(-1.0, 1.0, (2,))}), MultiBinary([2, 1])])


def minari_episodes(foreign_episodes: Make) -> list[Any]:
    episodes = foreign_episodes([2, 2])
    rng = np.random.default_rng(0)
    for e in episodes:
        n = len(e.rewards)
        parts = {
            "jump": rng.integers(2, size=n),
            "aim": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        }
        e.actions = (parts, rng.integers(2, size=(n, 2, 1)).astype(np.int8))
    return episodes  # type: ignore[no-any-return]


def test_minaris_nested_actions_are_read(make_minari: Make, foreign_episodes: Make) -> None:
    episodes = minari_episodes(foreign_episodes)
    dataset = make_minari(SPACE, episodes)
    buffer = DeviceReplayBuffer.from_minari(
        dataset, bins={"0/aim/0": 2, "0/aim": Bins(3, "quantiles")}
    )
    flat = buffer.flat_actions
    assert flat is not None
    assert flat.names == ["0/aim/0", "0/aim/1", "0/jump", "1/0/0", "1/1/0"]
    assert buffer.nvec == [2, 3, 2, 2, 2]
    first = buffer.actions[: len(episodes[0].rewards)].numpy()
    parts, buttons = episodes[0].actions
    assert (first[:, 2] == parts["jump"]).all()
    assert (first[:, 3:] == buttons[..., 0]).all()
    assert (first[:, 0] == (parts["aim"][:, 0] >= 0)).all()
    both = np.concatenate([e.actions[0]["aim"][:, 0] for e in episodes])
    assert flat.value(0, 1) == pytest.approx(both[both >= 0].mean())
    algo = FactoredBC()
    algo.build_with_dataset(buffer)
    assert SPACE.contains(algo.act(np.zeros(buffer.observations.shape[1])))


def test_minaris_masks_of_parts_are_those_of_slots(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = minari_episodes(foreign_episodes)
    for e in episodes:
        e.actions[0]["jump"][:] = 1
        n = len(e.rewards) + 1
        jump, free = np.tile([0, 1], (n, 1)), np.full((n, 2, 1), 2)
        e.infos = {"action_mask": ({"jump": jump}, free)}
    buffer = DeviceReplayBuffer.from_minari(make_minari(SPACE, episodes), bins=2)
    masks = buffer.masks_at(buffer.observation_index)
    assert masks is not None
    assert masks[3].tolist() == [[True, True]] * 2 + [[False, True]] + [[True, True]] * 2
    episodes[1].infos["action_mask"][0]["jump"] = np.ones((4, 3))
    with pytest.raises(
        InvalidDatasetError, match=r'action_mask of episode 1 .* action\[0\]\["jump"\]'
    ):
        DeviceReplayBuffer.from_minari(make_minari(SPACE, episodes, name="others/b-v0"), bins=2)


@pytest.mark.parametrize(
    ("space", "bins", "message"),
    [
        (SPACE, None, r"bins= for continuous actions.*Tuple"),
        (SPACE, {"0/aim": 1}, r'action\[0\]\["aim"\]\[0\] are wrong.*got 1'),
        (SPACE, {"0/jump": 3}, r"slots in a Box"),
        (Tuple([SPACE[0], MultiBinary([2, 2])]), 3, r"action\[1\] to be numbers of shape \(2, 2\)"),
    ],
)
def test_minaris_actions_that_do_not_fit_are_refused(
    make_minari: Make, foreign_episodes: Make, space: Any, bins: Any, message: str
) -> None:
    dataset = make_minari(space, minari_episodes(foreign_episodes))
    with pytest.raises(ValueError, match=message):
        DeviceReplayBuffer.from_minari(dataset, bins=bins)


def test_a_damaged_space_in_a_file_is_refused(tmp_path: Path) -> None:
    algo = FactoredBC()
    algo.build_with_dataset(log(2, bins=3))
    path = tmp_path / "policy.safetensors"
    save_policy(algo, path)
    header, weights = read_saved(path)
    changes: list[dict[str, Any]] = [
        {"space": {"Discrete": [3, 0]}},
        {"values": 3},
        {"space": None},
    ]
    for change in changes:
        changed = copy.deepcopy(header)
        changed["algorithm"]["config"]["params"]["flat_actions"] |= change
        write_saved(path, changed, weights)
        with pytest.raises(InvalidCheckpointError, match="kept space of actions"):
            load_policy(path)
    kept = header["algorithm"]["config"]["params"].pop("flat_actions")
    assert json.dumps(kept, allow_nan=False)
    write_saved(path, {**header, "flat_actions": kept}, weights)  # as older files have it
    assert load_policy(path).flat_actions == algo.flat_actions


def test_it_is_kept_in_d3rlpys_files_and_exported_ones(tmp_path: Path) -> None:
    algo = FactoredBC()
    algo.build_with_dataset(log(2, bins=3))
    algo.save(str(tmp_path / "policy.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "policy.d3"))
    assert loaded.flat_actions == algo.flat_actions
    assert gymnasium.make(ID).action_space.contains(loaded.act(np.zeros(3, np.float32)))
    algo.save_policy(str(tmp_path / "policy.pt"))
    files = {"flat_actions.json": ""}
    with quiet_tracing():
        torch.jit.load(tmp_path / "policy.pt", _extra_files=files)
    assert FlatActions.from_dict(json.loads(files["flat_actions.json"])) == algo.flat_actions


@pytest.mark.slow
def test_it_is_kept_in_onnx_files(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    algo = FactoredBC()
    algo.build_with_dataset(log(2, bins=3))
    algo.save_policy(str(tmp_path / "policy.onnx"))
    kept = runtime.InferenceSession(tmp_path / "policy.onnx").get_modelmeta().custom_metadata_map
    assert FlatActions.from_dict(json.loads(kept["flat_actions"])) == algo.flat_actions


def test_a_nested_dataset_is_checked_where_it_needs_no_bins(
    make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = minari_episodes(foreign_episodes)
    with pytest.raises(InvalidActionSpaceError, match=r"cannot be checked.*bins="):
        check_dataset(make_minari(SPACE, episodes))
    exact = Tuple([Dict({"jump": Discrete(2)}), MultiBinary([2, 1])])
    for e in episodes:
        e.actions = ({"jump": e.actions[0]["jump"]}, e.actions[1])
    episodes[2].actions[0]["jump"][4] = 7
    report = check_dataset(make_minari(exact, episodes, name="others/exact-v0"))
    (problem,) = report.problems
    assert 'episode 2 are wrong. Expected action[0]["jump"] to be a whole number' in problem
    assert report.lengths == [5, 3, 7]
