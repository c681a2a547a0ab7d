"""The device-resident buffer: alignment, sampling and d3rlpy's interface."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.dataset import (
    Episode,
    InfiniteBuffer,
    MultiStepTransitionPicker,
    ReplayBuffer,
)
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete
from minari import MinariDataset

from spin_d3rlpy import FactoredBC
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.minari.check import check_dataset

NVEC = [3, 5]
Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("space", "nvec"),
    [
        (Discrete(5, start=2), [5]),
        (Discrete(5, start=-1), [5]),
        (MultiDiscrete(NVEC, start=[4, -2]), NVEC),
    ],
    ids=str,
)
def test_actions_of_spaces_that_start_elsewhere_count_from_0(
    space: Any, nvec: list[int], make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(nvec, flat=isinstance(space, Discrete))
    wanted = np.concatenate([e.actions.reshape(-1, len(nvec)) for e in episodes])
    for episode in episodes:
        episode.actions = episode.actions + space.start
    dataset = make_minari(space, episodes)
    buffer = DeviceReplayBuffer.from_minari(dataset)
    assert buffer.nvec == nvec
    assert buffer.actions.tolist() == wanted.tolist()
    found = check_dataset(dataset, replay_episodes=0).problems
    assert not [problem for problem in found if "Slot" in problem]
    algo = FactoredBC()
    algo.build_with_dataset(dataset)
    assert algo.config.nvec == nvec


@pytest.fixture
def buffer(make_minari: Make, foreign_episodes: Make) -> DeviceReplayBuffer:
    """Episodes of 5, 3 (terminated) and 7 steps; see `foreign_episodes` for their contents."""
    return DeviceReplayBuffer.from_minari(make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC)))


def _stock_buffer(episodes: list[Any], **kwargs: Any) -> ReplayBuffer:
    stock = [
        Episode(e.observations[:-1], e.actions, e.rewards[:, None], e.terminated) for e in episodes
    ]
    return ReplayBuffer(InfiniteBuffer(), episodes=stock, **kwargs)


def test_every_transition_of_every_episode_is_drawn_aligned(
    buffer: DeviceReplayBuffer, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    torch.manual_seed(0)
    batch = buffer.sample_transition_batch(2000)
    seen = set()
    for row in range(2000):
        episode, step = (int(x) for x in batch.observations[row])
        seen.add((episode, step))
        source = episodes[episode]
        last = step == len(source.rewards) - 1
        assert batch.next_observations[row].tolist() == [episode, step + 1]
        assert batch.actions[row].tolist() == source.actions[step].tolist()
        following = source.actions[step if last else step + 1]
        assert batch.next_actions[row].tolist() == following.tolist()
        assert batch.rewards[row].tolist() == [100.0 * episode + step]
        assert batch.terminals[row].tolist() == [float(last and episode == 1)]
    assert seen == {(i, t) for i, length in enumerate([5, 3, 7]) for t in range(length)}


def test_a_built_dataset_is_read_as_it_was_written(built: MinariDataset) -> None:
    buffer = DeviceReplayBuffer.from_minari(built)
    assert (buffer.size(), buffer.transition_count) == (5, 5000)
    for i, episode in enumerate(built):
        rows = slice(1001 * i, 1001 * (i + 1))
        steps = slice(1000 * i, 1000 * (i + 1))
        assert np.array_equal(buffer.observations[rows], episode.observations)
        assert np.array_equal(buffer.actions[steps], episode.actions)
        assert np.array_equal(buffer.rewards[steps], episode.rewards)
        assert buffer.observation_index[steps].tolist() == list(range(rows.start, rows.stop - 1))
    assert buffer.nvec == [3] * 6


def test_draws_are_uniform(buffer: DeviceReplayBuffer) -> None:
    torch.manual_seed(0)
    rewards = buffer.sample_transition_batch(30_000).rewards
    _, counts = np.unique(rewards.numpy(), return_counts=True)
    assert len(counts) == 15
    assert counts == pytest.approx(2000, rel=0.12)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 20_000_004])
def test_spread_transitions_are_all_there(
    buffer: DeviceReplayBuffer, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(DeviceReplayBuffer, "transition_count", property(lambda _: n))
    index = buffer.spread_index(8)
    assert len(index) == min(n, 8)
    assert index[0] == 0
    assert index[-1] == n - 1  # the last one; float32 would name one that is not there
    if n > 1:
        steps = index.diff()
        assert steps.min() >= 1
        assert steps.max() - steps.min() <= 1


def test_batches_have_the_shapes_and_types_that_algorithms_expect(
    buffer: DeviceReplayBuffer,
) -> None:
    batch = buffer.sample_transition_batch(4)
    for name in ("rewards", "terminals", "intervals", "returns_to_go"):
        assert getattr(batch, name).shape == (4, 1)
        assert getattr(batch, name).dtype == torch.float32
    for name in ("actions", "next_actions"):
        assert getattr(batch, name).shape == (4, 2)
        assert getattr(batch, name).dtype == torch.int64
    assert batch.intervals.tolist() == [[1.0]] * 4
    assert batch.device == "cpu"
    observations, actions = buffer.sample_observations_and_actions(4)
    assert (observations.shape, actions.shape) == ((4, 2), (4, 2))
    assert (observations.dtype, actions.dtype) == (torch.float32, torch.int64)


def test_observations_and_actions_alone_are_aligned(
    buffer: DeviceReplayBuffer, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    for observation, action in zip(*buffer.sample_observations_and_actions(200), strict=True):
        episode, step = (int(x) for x in observation)
        assert action.tolist() == episodes[episode].actions[step].tolist()


def test_torchs_seed_decides_the_draws(buffer: DeviceReplayBuffer) -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(buffer.sample_transition_batch(50).rewards)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_moving_to_the_device_it_is_on_changes_nothing(buffer: DeviceReplayBuffer) -> None:
    assert buffer.to("cpu") is buffer
    assert buffer.to(torch.device("cpu")) is buffer


def test_moving_to_another_device_moves_every_tensor(buffer: DeviceReplayBuffer) -> None:
    moved = buffer.to("meta")
    tensors = [v for v in vars(moved.stored).values() if isinstance(v, torch.Tensor)]
    assert len(tensors) == 8
    assert {t.device.type for t in tensors} == {"meta"}
    assert (moved.nvec, moved.size(), buffer.device.type) == (NVEC, 3, "cpu")


@pytest.mark.parametrize(
    ("choices", "dtype"), [(2, torch.int8), (127, torch.int8), (128, torch.int16)]
)
def test_actions_are_stored_in_small_integers(
    choices: int, dtype: torch.dtype, make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes([choices])
    episodes[0].actions[0] = choices - 1
    buffer = DeviceReplayBuffer.from_minari(make_minari(MultiDiscrete([choices]), episodes))
    assert buffer.actions.dtype == dtype
    assert buffer.actions.max() == choices - 1


@pytest.mark.parametrize(
    ("space", "nvec", "flat"),
    [
        (MultiBinary(4), [2, 2, 2, 2], False),
        (Discrete(6), [6], True),
        (MultiDiscrete([2, 7]), [2, 7], False),
    ],
)
def test_datasets_of_others_are_read(
    space: Any, nvec: list[int], flat: bool, make_minari: Make, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(nvec, flat)
    buffer = DeviceReplayBuffer.from_minari(make_minari(space, episodes))
    assert buffer.nvec == nvec
    expected = np.concatenate([e.actions.reshape(-1, len(nvec)) for e in episodes])
    assert np.array_equal(buffer.actions, expected)


def test_only_the_first_episodes_are_read_on_request(
    make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    buffer = DeviceReplayBuffer.from_minari(dataset, max_episodes=2)
    assert (buffer.size(), buffer.transition_count) == (2, 8)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        DeviceReplayBuffer.from_minari(dataset, max_episodes=0)


def test_a_filtered_dataset_gives_its_episodes_only(
    make_minari: Make, foreign_episodes: Make
) -> None:
    dataset = make_minari(MultiDiscrete(NVEC), foreign_episodes(NVEC))
    buffer = DeviceReplayBuffer.from_minari(dataset.filter_episodes(lambda e: len(e) > 3))
    assert set(buffer.observations[:, 0].tolist()) == {0, 2}


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_d3rlpy_buffer_is_converted_without_truncated_last_steps(
    dtype: Any, foreign_episodes: Make
) -> None:
    episodes = foreign_episodes(NVEC)
    for e in episodes:
        e.actions = e.actions.astype(dtype)
    stock = _stock_buffer(episodes, action_space=d3rlpy.ActionSpace.DISCRETE, action_size=5)
    buffer = DeviceReplayBuffer.from_replay_buffer(stock, NVEC)
    assert buffer.transition_count == stock.transition_count == 4 + 3 + 6
    assert buffer.rewards.tolist() == [0, 1, 2, 3, 100, 101, 102, 200, 201, 202, 203, 204, 205]
    assert buffer.terminals.nonzero().flatten().tolist() == [6]
    batch = buffer.sample_transition_batch(300)
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    step = batch.next_observations[:, 1] - batch.observations[:, 1]
    assert torch.equal(step, 1 - batch.terminals[:, 0])
    kept = np.concatenate([e.actions[: len(e.actions) - (not e.terminated)] for e in episodes])
    assert np.array_equal(buffer.actions, kept)


def test_episodes_are_d3rlpys(buffer: DeviceReplayBuffer, foreign_episodes: Make) -> None:
    assert len(buffer.episodes) == 3
    for seen, source in zip(buffer.episodes, foreign_episodes(NVEC), strict=True):
        assert np.array_equal(seen.observations, source.observations[:-1])
        assert np.array_equal(seen.actions, source.actions)
        assert np.array_equal(seen.rewards[:, 0], source.rewards)
        assert seen.terminated == source.terminated
    assert buffer.episodes[-1].size() == 7
    assert [e.size() for e in buffer.episodes[1:]] == [3, 7]


class _ZeroAlgo:
    """Values everything at 0, so that the TD error is the mean squared reward."""

    gamma = 0.9
    reward_scaler = None

    def predict_value(self, observations: Any, actions: Any) -> Any:
        assert actions.shape == (len(observations), 2)
        return np.zeros(len(observations))

    def predict(self, observations: Any) -> Any:
        return np.zeros((len(observations), 2))


def test_d3rlpys_td_error_evaluator_runs_on_the_episodes(buffer: DeviceReplayBuffer) -> None:
    error = d3rlpy.metrics.TDErrorEvaluator()(_ZeroAlgo(), buffer)  # type: ignore[arg-type]
    used = [0, 1, 2, 3, 100, 101, 102, 200, 201, 202, 203, 204, 205]
    assert error == pytest.approx(np.mean(np.square(used)))


def test_d3rlpys_own_buffer_takes_the_episodes(buffer: DeviceReplayBuffer) -> None:
    stock = ReplayBuffer(InfiniteBuffer(), episodes=buffer.episodes)
    assert stock.sample_transition_batch(64).actions.shape == (64, 2)


def test_the_rest_of_d3rlpys_interface(buffer: DeviceReplayBuffer) -> None:
    info = buffer.dataset_info
    assert info.action_space == d3rlpy.ActionSpace.DISCRETE
    assert info.action_size == 5
    assert info.observation_signature.shape == [(2,)]
    assert info.action_signature.dtype == [np.int8]


def test_dumped_episodes_are_read_by_d3rlpy(buffer: DeviceReplayBuffer) -> None:
    file = io.BytesIO()
    buffer.dump(file)
    loaded = ReplayBuffer.load(file, InfiniteBuffer())
    again = DeviceReplayBuffer.from_replay_buffer(loaded, NVEC)
    assert again.transition_count == 13


def test_the_buffer_neither_grows_nor_draws_single_transitions(buffer: DeviceReplayBuffer) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: buffer.append(np.zeros(2), np.zeros(2), 0.0),
        lambda: buffer.append_episode(buffer.episodes[0]),
        lambda: buffer.clip_episode(True),
        lambda: buffer.sample_transition(),
        lambda: buffer.sample_trajectory_batch(4, 3),
        lambda: buffer.buffer,
    ]
    for call in calls:
        with pytest.raises(NotImplementedError, match=r"dataset\.episodes"):
            call()


def test_d3rlpys_constructors_say_what_to_use_instead() -> None:
    with pytest.raises(NotImplementedError, match="from_replay_buffer"):
        DeviceReplayBuffer.load(io.BytesIO(), InfiniteBuffer())
    with pytest.raises(NotImplementedError, match="from_replay_buffer"):
        DeviceReplayBuffer.from_episode_generator(None, InfiniteBuffer())


def test_a_picker_that_would_be_ignored_is_refused(foreign_episodes: Make) -> None:
    stock = _stock_buffer(
        foreign_episodes(NVEC), transition_picker=MultiStepTransitionPicker(3, 0.99)
    )
    with pytest.raises(ValueError, match="MultiStepTransitionPicker"):
        DeviceReplayBuffer.from_replay_buffer(stock, NVEC)


def test_selected_episodes_are_those_episodes(make_minari: Make, foreign_episodes: Make) -> None:
    episodes = foreign_episodes([3, 4])
    full = DeviceReplayBuffer.from_minari(make_minari(MultiDiscrete([3, 4]), episodes))
    chosen = full.select([2, 1])
    assert chosen.size() == 2
    assert chosen.nvec == [3, 4]
    expected = [episodes[2], episodes[1]]
    assert np.array_equal(
        chosen.observations.numpy(), np.concatenate([e.observations for e in expected])
    )
    assert np.array_equal(chosen.actions.numpy(), np.concatenate([e.actions for e in expected]))
    assert np.array_equal(chosen.rewards.numpy(), np.concatenate([e.rewards for e in expected]))
    assert chosen.terminals.tolist() == [0.0] * 7 + [0.0, 0.0, 1.0]
    batch: Any = chosen.sample_transition_batch(200)
    assert set(batch.observations[:, 0].tolist()) == {1.0, 2.0}
    assert torch.equal(batch.next_observations[:, 1], batch.observations[:, 1] + 1)
    for bad in ([], [3], [-1]):
        with pytest.raises(ValueError, match="from 0 to 2"):
            full.select(bad)


def test_splits_share_no_episode_and_depend_on_the_seed(built: MinariDataset) -> None:
    full = DeviceReplayBuffer.from_minari(built)
    train, held_out = full.split(0.4, seed=1)
    assert (train.size(), held_out.size()) == (3, 2)

    def firsts(buffer: DeviceReplayBuffer) -> list[list[float]]:
        return [e.observations[0].tolist() for e in buffer.episodes]

    assert sorted(firsts(train) + firsts(held_out)) == sorted(firsts(full))
    assert firsts(full.split(0.4, seed=1)[1]) == firsts(held_out)
    assert any(firsts(full.split(0.4, seed=s)[1]) != firsts(held_out) for s in range(2, 6))
    assert full.split(0.01)[1].size() == 1
    assert full.split(0.99)[0].size() == 1
    with pytest.raises(ValueError, match=r"got 1\.0 and 5"):
        full.split(1.0)
