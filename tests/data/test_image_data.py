"""Datasets of images: kept once as uint8, apart from numbers, wherever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer
from gymnasium.spaces import Box, Dict

from spin_d3rlpy import collect, load_dataset, save_dataset
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.observation_spaces import with_flat_observations
from spin_d3rlpy.errors import InvalidDatasetError, InvalidObservationError
from tests.algos.pictures import NVEC, PictureEnv, pictures
from tests.subprocesses import run_python


def test_a_frame_takes_its_bytes_once() -> None:
    dataset = pictures()
    images, numbers = dataset.images, dataset.observations
    assert images is not None
    assert (images.dtype, images.shape) == (torch.uint8, (130, 6 * 8 * 3))  # 13 x (9 + 1) states
    assert numbers.shape == (130, 5)
    assert dataset.observation_size == 5 + 144
    stacked = dataset.with_history(4)
    assert stacked.images is images  # rows are made when they are drawn
    seen: Any = stacked.sample_transition_batch(7).observations
    assert seen.shape == (7, 4 * 149 + 3)
    mean, _ = dataset.moments()
    assert mean.shape == (5,)


def test_rows_of_batches_are_the_environments_observations() -> None:
    dataset, env = pictures(), PictureEnv()
    env.action_space.seed(0)
    layout = dataset.observation_layout
    assert layout is not None
    row = torch.zeros(149)
    for number in (0, 5):
        first, _ = env.reset(seed=number)
        row = dataset.observations_at(torch.tensor([10 * number]))[0]
        assert np.array_equal(row.numpy(), layout.row(first))
    chosen = dataset.select([5, 2])
    assert torch.equal(chosen.observations_at(torch.tensor([0]))[0], row)
    batch: Any = dataset.transitions(torch.tensor([8, 9]))
    both = dataset.observations_at(torch.tensor([8, 9, 10, 11]))
    assert torch.equal(batch.observations, both[[0, 2]])  # an episode's last step, another's first
    assert torch.equal(batch.next_observations, both[[1, 3]])
    observations: Any = dataset.episodes[1].observations
    assert np.array_equal(observations[0], both[2])


class _Played(PictureEnv):
    """Counts its steps; its images have other shapes than its space says."""

    steps = 0

    def _observe(self) -> Any:
        return {**super()._observe(), "camera": np.zeros((8, 6, 3), np.uint8)}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)


def test_an_image_of_another_shape_is_refused_before_anything_is_played() -> None:
    env = _Played()
    message = r'observation\["camera"\].*image of uint8 of shape \(6, 8, 3\).*got shape \(8, 6, 3\)'
    with pytest.raises(InvalidDatasetError, match=message):
        collect(env, lambda _: env.action_space.sample(), episodes=2, progress=False)
    assert env.steps == 0
    env.observation_space = Dict({"eyes": Box(0, 255, (2, 2, 3, 6, 8), np.uint8)})
    with pytest.raises(InvalidObservationError, match=r'observation\["eyes"\].*two or three axes'):
        collect(env, lambda _: env.action_space.sample(), episodes=2, progress=False)


def test_more_data_are_collected_from_rows() -> None:
    env = with_flat_observations(PictureEnv())
    env.action_space.seed(0)
    dataset = collect(env, lambda _: env.action_space.sample(), episodes=13, progress=False)
    assert dataset.observation_layout == pictures().observation_layout
    assert dataset.images is not None
    assert torch.equal(dataset.images, pictures().images)  # type: ignore[arg-type]
    assert torch.equal(dataset.observations, pictures().observations)


def _stock(observations: Any, terminated: bool = True) -> ReplayBuffer:
    n = len(observations[0]) if isinstance(observations, list) else len(observations)
    rng = np.random.default_rng(0)
    actions, rewards = rng.integers(NVEC, size=(n, 3)), np.ones((n, 1), np.float32)
    episode = Episode(observations, actions, rewards, terminated)
    return ReplayBuffer(InfiniteBuffer(), episodes=[episode])


def test_d3rlpys_buffers_of_images_and_tuples_are_read() -> None:
    rng = np.random.default_rng(1)
    frames = rng.integers(256, size=(9, 3, 6, 8)).astype(np.uint8)
    numbers = rng.normal(size=(9, 2)).astype(np.float32)
    alone = DeviceReplayBuffer.from_replay_buffer(_stock(frames), NVEC)
    mixed = DeviceReplayBuffer.from_replay_buffer(_stock([numbers, frames], False), NVEC)
    for dataset, n in ((alone, 10), (mixed, 9)):  # a terminal one has its last state twice
        assert dataset.images is not None
        assert dataset.images.shape == (n, 144)
        assert np.array_equal(dataset.images[:9].numpy(), frames.reshape(9, -1))
    assert np.array_equal(mixed.observations.numpy(), numbers)
    assert mixed.observation_layout is not None
    assert [part.path for part in mixed.observation_layout.parts] == [(0,), (1,)]
    floats = _stock([frames.astype(np.float32) / 255, frames])
    with pytest.raises(InvalidDatasetError, match=r"observation\[0\] to be an image of uint8"):
        DeviceReplayBuffer.from_replay_buffer(floats, NVEC)


@pytest.mark.parametrize(("kind", "image"), [("image", (6, 8, 3)), ("mixed", (36, 40))])
def test_datasets_of_images_are_saved_and_loaded(
    kind: str, image: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the pixel: of 32 x 32 and more, Minari would make JPEGs."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    entry: Any = PictureEnv
    gymnasium.register("test/pictures-v0", entry_point=entry)
    try:
        env = gymnasium.make("test/pictures-v0", kind=kind, image=image)
        before = pictures(kind, image)
        save_dataset(before, "test/pictures-v0", env)
        space = open_local("test/pictures-v0").observation_space
        assert isinstance(space, Box if kind == "image" else Dict)
        dataset, loaded_env = load_dataset("test/pictures-v0")
        mapped, _ = load_dataset("test/pictures-v0", memory_map=True)
        assert not check_dataset(open_local("test/pictures-v0")).problems
    finally:
        del gymnasium.registry["test/pictures-v0"]
    assert dataset.observation_layout == before.observation_layout
    rows = torch.arange(130)
    for other in (dataset, mapped):
        assert torch.equal(other.observations_at(rows), before.observations_at(rows))
        assert torch.equal(other.actions, before.actions)
    assert loaded_env.observation_space.shape == (before.observation_size,)
    observation, _ = loaded_env.reset(seed=0)
    assert np.array_equal(observation, before.observations_at(rows[:1])[0])


def test_environments_with_other_images_are_refused() -> None:
    kept = pictures().observation_layout
    with pytest.raises(
        InvalidObservationError, match=r'\["camera"\] to be an image of shape \(6, 8'
    ):
        with_flat_observations(PictureEnv(image=(8, 8, 3)), kept)
    with pytest.raises(InvalidObservationError, match=r'\["camera"\] of shape.*got Box'):
        with_flat_observations(gymnasium.make("CartPole-v1"), kept)


def test_numbers_change_and_images_stay() -> None:
    dataset = pictures()
    changed = dataset.with_observations(dataset.observations + 1.0)
    assert changed.images is dataset.images
    assert torch.equal(changed.observations, dataset.observations + 1.0)
    with pytest.raises(InvalidDatasetError, match="5 numbers next to the images"):
        dataset.with_observations(torch.zeros(130, 4))


LARGE = """
import numpy as np, gymnasium, torch
from gymnasium.spaces import Box, MultiDiscrete
from spin_d3rlpy import collect
from tests.measure.process_memory import resident_bytes

class Noise(gymnasium.Env):
    observation_space, action_space = Box(0, 255, (3, 64, 64), np.uint8), MultiDiscrete([2, 2])
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.look(), {}
    def look(self):
        return self.np_random.integers(256, size=(3, 64, 64), dtype=np.uint8)
    def step(self, action):
        self.step_number += 1
        return self.look(), 0.0, False, self.step_number == 999, {}

env = Noise()
collect(env, lambda _: np.zeros(2, int), episodes=1, progress=False).sample_transition_batch(256)
before = resident_bytes("VmRSS")
dataset = collect(env, lambda _: np.zeros(2, int), episodes=100, progress=False)
for _ in range(20):
    dataset.sample_transition_batch(256)
print(len(dataset.images), resident_bytes("VmRSS") - before, resident_bytes("VmHWM") - before)
"""


@pytest.mark.slow
def test_a_hundred_thousand_frames_fit_into_1300_megabytes() -> None:
    n, held, most = map(int, run_python(LARGE).split()[-3:])
    assert n == 100_000
    assert held < 1.3e9
    assert most < 1.4e9  # while they are collected
