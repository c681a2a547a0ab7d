from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
    flatten,
)
from gymnasium.wrappers import FrameStackObservation

from spin_d3rlpy import FactoredIQL, LockstepEvaluator, collect, load_dataset, save_dataset
from spin_d3rlpy.data.minari.sources import flatten_observations
from spin_d3rlpy.errors import InvalidDatasetError, InvalidObservationError
from tests.algos.conformance import QUIET
from tests.algos.problems import new_algorithm, tiny_fields

SPACE = Dict(
    {
        "z": Box(-1, 1, (2, 3)),
        "a": Tuple((Discrete(4, start=2), MultiBinary(3), MultiDiscrete([2, 5]))),
        "m": Dict({"y": Box(0, 255, (2,), np.uint8), "b": Discrete(2)}),
    },
    seed=0,
)


def columns(samples: list[Any]) -> Any:
    """Samples as Minari reads an episode: one array for each part."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: columns([s[key] for s in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(columns([s[i] for s in samples]) for i in range(len(first)))
    return np.stack(samples)


def test_nested_observations_flatten_as_gymnasium_does() -> None:
    samples: list[Any] = [SPACE.sample() for _ in range(9)]
    found = flatten_observations(SPACE, columns(samples), "the dataset")
    assert found.shape == (9, 6 + 4 + 3 + 7 + 2 + 2)
    expected: list[Any] = [flatten(SPACE, sample) for sample in samples]
    assert np.array_equal(found, np.stack(expected))


def test_vectors_stay_as_they_are() -> None:
    rows = np.ones((3, 2), np.float32)
    assert flatten_observations(Box(-1, 1, (2,)), rows, "the dataset") is rows


SPACES = [SPACE, Box(-1, 1, (3, 5), seed=0), Discrete(3, seed=0), MultiDiscrete([2, 3], seed=0)]


@pytest.mark.parametrize("space", SPACES, ids=lambda s: type(s).__name__)
def test_top_level_spaces_flatten_alike(space: Any) -> None:
    samples = [space.sample() for _ in range(4)]
    found = flatten_observations(space, columns(samples), "dataset x")
    expected: list[Any] = [flatten(space, sample) for sample in samples]
    assert np.array_equal(found, np.stack(expected))


class Sampled(gymnasium.Env[Any, Any]):
    """Observes samples of a space."""

    def __init__(self, observation_space: Any = SPACE, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = observation_space, MultiDiscrete([2, 3])
        self.n_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.n_steps, self.seen = 0, [self.observation_space.sample()]
        return self.seen[-1], {}

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        self.seen.append(self.observation_space.sample())
        return self.seen[-1], float(action[0]), self.n_steps == 9, False, {}


def stacked(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    return FrameStackObservation(Sampled(Box(-1, 1, (5,))), 3)


gymnasium.register("tests/sampled-v0", entry_point=f"{__name__}:Sampled")
gymnasium.register("tests/stacked-v0", entry_point=f"{__name__}:stacked")


@pytest.mark.parametrize("space", SPACES, ids=lambda s: type(s).__name__)
def test_data_of_any_observations_are_collected_and_policies_evaluated(space: Any) -> None:
    env = Sampled(space)
    dataset = collect(env, lambda _: np.array([1, 2]), episodes=2, progress=False)
    expected: list[Any] = [flatten(space, observation) for observation in env.seen]
    assert np.allclose(dataset.observations[10:].numpy(), np.stack(expected))
    algo = new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL))
    algo.fit(dataset, n_steps=1, evaluators={"env": LockstepEvaluator(env, n_trials=2)}, **QUIET)
    algo.fit_online(env, n_steps=3, n_steps_per_epoch=3, **QUIET)
    assert algo.act(np.asarray(expected[0], np.float32)).shape == (2,)


def test_nested_observations_are_saved_as_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("tests/sampled-v0")
    dataset = collect(env, lambda _: np.array([1, 2]), episodes=20, progress=False)
    save_dataset(dataset, "user/sampled-v0", env)
    loaded, made = load_dataset("user/sampled-v0")
    assert torch.equal(loaded.observations, dataset.observations)
    observation, _ = made.reset(seed=3)
    assert torch.equal(torch.as_tensor(observation), dataset.observations[3 * 10].double())


def test_stacked_frames_of_a_minari_dataset_are_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gymnasium.make("tests/stacked-v0")
    episodes, first = [], []
    for seed in range(20):
        first.append(env.reset(seed=seed)[0])
        seen, over = [first[-1]], False
        while not over:
            observation, _, over, *_ = env.step(np.array([1, 2]))
            seen.append(observation)
        episode = minari.data_collector.EpisodeBuffer(
            observations=np.stack(seen),
            actions=np.full((9, 2), [1, 2]),
            rewards=np.ones(9),
            terminations=np.arange(9) == 8,
            truncations=np.zeros(9, bool),
            infos={},
        )
        episodes.append(episode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the description lacks
        minari.create_dataset_from_buffers("user/stacked-v0", episodes, env=env)
    loaded, made = load_dataset("user/stacked-v0")
    assert torch.equal(loaded.observations[::10], torch.tensor(np.stack(first)).flatten(1))
    assert np.array_equal(made.reset(seed=3)[0], first[3].flatten())


@pytest.mark.parametrize("part", [Text(3), Sequence(Box(0, 1))])
def test_what_cannot_be_a_vector_is_refused_before_anything_is_played(part: Any) -> None:
    env = Sampled(Dict({"note": Tuple([Box(0, 1), part])}))
    with pytest.raises(InvalidObservationError, match=r'observation\["note"\]\[1\]'):
        collect(env, lambda _: np.array([1, 2]), progress=False)
    assert env.n_steps == 0
    with pytest.raises(InvalidObservationError, match=r'observation\["note"\]\[1\]'):
        FactoredIQL().build_with_env(env)


def test_observations_of_another_space_are_refused_before_anything_is_played() -> None:
    env = Sampled()
    without_parts = {"z": np.zeros((2, 3))}
    env.reset = lambda **_: (without_parts, {})  # type: ignore[method-assign]
    with pytest.raises(InvalidDatasetError, match="step 0 of episode 0 has"):
        collect(env, lambda _: np.array([1, 2]), progress=False)
    assert env.n_steps == 0


@pytest.mark.parametrize("part", [Text(3), Sequence(Box(0, 1))])
def test_parts_without_a_fixed_size_are_refused(part: Any) -> None:
    with pytest.raises(InvalidDatasetError, match="dataset x have a part that cannot be flattened"):
        flatten_observations(Dict({"p": part}), {"p": np.zeros(1)}, "dataset x")
