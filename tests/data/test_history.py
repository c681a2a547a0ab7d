"""Rows of the last observations: what is in them, made when asked for, without copies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardObservationScaler
from gymnasium.spaces import Box, MultiDiscrete

from spin_d3rlpy.asm.scaling import scaled as model_scaling
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler, fit_scaler, scaler_to_dict
from spin_d3rlpy.errors import InvalidDatasetError, InvalidObservationError
from spin_d3rlpy.histories import History, Recent
from tests.data.conftest import ForeignEpisode

Make = Callable[..., Any]
NVEC = [3, 5, 2]
SIZE = 4
LENGTHS = (6, 2, 9)


@pytest.fixture
def dataset(make_minari: Make) -> Any:
    rng = np.random.default_rng(0)
    episodes = [
        ForeignEpisode(
            observations=rng.normal(7.0, 3.0, size=(length + 1, SIZE)).astype(np.float32),
            actions=rng.integers(NVEC, size=(length, 3)).astype(np.int8),
            rewards=rng.normal(size=length).astype(np.float32),
        )
        for length in LENGTHS
    ]
    return make_minari(MultiDiscrete(NVEC), episodes, Box(-99, 99, (SIZE,), np.float32))


@pytest.fixture
def plain(dataset: Any) -> DeviceReplayBuffer:
    return DeviceReplayBuffer.from_minari(dataset)


def expected_rows(buffer: DeviceReplayBuffer, n: int, with_actions: bool) -> np.ndarray[Any, Any]:
    """All rows, written down episode by episode."""
    rows = []
    starts = buffer.episode_starts.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        seen = buffer.observations[start + number : end + number + 1].numpy()
        made = buffer.actions[start:end].numpy()
        for t in range(end - start + 1):
            steps = range(t - n + 1, t + 1)
            row = [*np.concatenate([seen[max(s, 0)] for s in steps])]
            for s in steps[:-1] if with_actions else ():
                for slot, m in enumerate(NVEC):
                    row += [float(s >= 0 and made[s, slot] == k) for k in range(m)]
            rows.append([*row, *(float(s < 0) for s in steps[:-1])])
    return np.array(rows, np.float32)


@pytest.mark.parametrize("with_actions", [False, True])
@pytest.mark.parametrize("n", [2, 3, 9])
def test_rows_hold_the_last_observations(
    n: int, with_actions: bool, plain: DeviceReplayBuffer
) -> None:
    buffer = plain.with_history(n, with_actions)
    expected = expected_rows(plain, n, with_actions)
    assert buffer.observation_size == expected.shape[1]
    every = torch.arange(len(plain.observations))
    assert np.array_equal(buffer.observations_at(every), expected)
    assert np.array_equal(buffer.states[3:7], expected[3:7])
    assert buffer.observations is plain.observations  # nothing is copied
    assert buffer.history is not None
    assert torch.equal(buffer.history.newest(torch.from_numpy(expected)), plain.observations)

    order = torch.tensor([5, 0, 16, 8, 5])
    before = plain.observation_index[order].numpy()
    for horizon in (None, 0.9):
        batch: Any = buffer.with_horizon(horizon).transitions(order)
        assert np.array_equal(batch.observations, expected[before])
        assert np.array_equal(batch.next_observations, expected[batch.next_rows.numpy()])
    assert (batch.next_rows != batch.rows + 1).any()


def test_parts_and_copies_keep_the_history(plain: DeviceReplayBuffer) -> None:
    buffer = plain.with_history(3, actions=True)
    chosen = buffer.select([2, 0])
    rows = expected_rows(plain.select([2, 0]), 3, True)
    assert np.array_equal(chosen.states[:], rows)
    assert buffer.with_history(3, actions=True) is buffer
    for other in (buffer.with_rewards(plain.rewards), buffer.with_actions(plain.actions)):
        assert other.history == buffer.history
    wide = buffer.with_observations(plain.observations.repeat(1, 2))
    assert wide.observation_size == buffer.observation_size + 3 * SIZE
    assert buffer.to("cpu").history == buffer.history


def test_episodes_in_d3rlpys_form_have_rows(plain: DeviceReplayBuffer) -> None:
    buffer = plain.with_history(2)
    episodes, rows = buffer.episodes, expected_rows(plain, 2, False)
    assert len(episodes) == 3
    assert np.array_equal(episodes[1].observations, rows[7:9])
    assert np.array_equal(episodes[-1].actions, plain.episodes[2].actions)
    assert [len(episode) for episode in episodes] == list(LENGTHS)
    assert len(episodes[1:]) == 2
    with pytest.raises(IndexError, match="3 episodes"):
        episodes[3]


def test_mapped_data_have_the_same_rows(
    dataset: Any, plain: DeviceReplayBuffer, tmp_path: Path
) -> None:
    mapped = DeviceReplayBuffer.from_minari(dataset, map_in=tmp_path).with_history(3)
    assert np.array_equal(mapped.states[:], expected_rows(plain, 3, False))
    index = torch.tensor([0, 7, 16])
    batch: Any = mapped.transitions(index)
    other: Any = plain.with_history(3).transitions(index)
    assert torch.equal(batch.next_observations, other.next_observations)


def test_rows_read_ahead_are_all_of_a_history(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.Tensor] = []
    where = "spin_d3rlpy.data.buffer.storage.read_ahead"
    monkeypatch.setattr(where, lambda _, rows: asked.append(rows))
    mapped = DeviceReplayBuffer.from_minari(dataset, map_in=tmp_path).with_history(3)
    mapped.observations_at(torch.tensor([8, 5]))
    assert asked[-1].flatten().tolist() == [7, 7, 8, 3, 4, 5]  # row 7 begins an episode


@pytest.mark.parametrize("scaler_class", [StandardObservationScaler, MinMaxObservationScaler])
def test_scalers_scale_each_observation_alike(scaler_class: Any, plain: DeviceReplayBuffer) -> None:
    one, several = scaler_class(), scaler_class()
    fit_scaler(one, plain)
    buffer = plain.with_history(3, actions=True)
    fit_scaler(several, buffer)
    rows = buffer.states[:]
    scaled = several.transform(rows)
    for i in range(3):
        part = slice(i * SIZE, (i + 1) * SIZE)
        assert torch.allclose(scaled[:, part], one.transform(rows[:, part].contiguous()))
    if scaler_class is StandardObservationScaler:  # flags and actions stay 0 and 1
        assert torch.allclose(scaled[:, 3 * SIZE :], rows[:, 3 * SIZE :], atol=2e-3)


def test_the_recipes_scaler_shows_how_observations_changed(plain: DeviceReplayBuffer) -> None:
    one, several = (ClippedStandardObservationScaler(clip=1.7) for _ in range(2))
    fit_scaler(one, plain)
    buffer = plain.with_history(3, actions=True)
    fit_scaler(several, buffer)
    rows = buffer.states[:]
    seen = [rows[:, i * SIZE : (i + 1) * SIZE] for i in range(3)]
    ends = plain.episode_starts[1:] + torch.arange(len(LENGTHS))
    inner = np.setdiff1d(np.arange(len(plain.observations) - 1), ends.numpy())
    changes = plain.observations[1:][inner] - plain.observations[:-1][inner]
    assert len(changes) == sum(LENGTHS)
    mean, std = changes.mean(0), changes.std(0, correction=0) + several.eps
    expected = [((after - before) - mean) / std for before, after in itertools.pairwise(seen)]
    expected = [change.clamp(-1.7, 1.7) for change in expected]
    scaled = several.transform(rows)
    assert torch.allclose(scaled[:, : 3 * SIZE], torch.cat([*expected, one.transform(seen[2])], 1))
    assert torch.allclose(scaled[:, 3 * SIZE :], rows[:, 3 * SIZE :], atol=2e-3)
    assert (scaled == 1.7).any()
    assert np.allclose(several.transform_numpy(rows.numpy()), scaled.numpy())
    assert torch.equal(model_scaling(rows, scaler_to_dict(several)), scaled)
    several.clip = 99.0
    scaled = several.transform(rows)
    assert torch.allclose(several.reverse_transform(scaled), rows, atol=1e-4)
    assert np.allclose(several.reverse_transform_numpy(scaled.numpy()), rows.numpy(), atol=1e-4)


@pytest.mark.parametrize("with_actions", [False, True])
def test_playing_makes_the_same_rows(with_actions: bool, plain: DeviceReplayBuffer) -> None:
    """Episodes side by side, of which some end earlier."""
    history = History(3, with_actions, tuple(NVEC))
    recent, rows = Recent(history), expected_rows(plain, 3, with_actions)
    for t in range(max(LENGTHS)):
        running = [i for i, length in enumerate(LENGTHS) if t < length]
        first = [sum(LENGTHS[:i]) for i in running]
        places = np.array([start + i + t for start, i in zip(first, running, strict=True)])
        found = recent.rows(plain.observations[places].numpy(), running)
        assert np.array_equal(found, rows[places])
        made = plain.actions[[start + t for start in first]].numpy()
        recent.acted(plain.observations[places].numpy(), made, running)
    begun = recent.rows(plain.observations[:1].numpy(), [3])
    assert np.array_equal(begun, rows[:1])


def test_a_history_that_cannot_be_is_refused(plain: DeviceReplayBuffer) -> None:
    with pytest.raises(InvalidDatasetError, match="longest episode's 9 steps, got 10"):
        plain.with_history(10)
    with pytest.raises(InvalidDatasetError, match="has a history already, of 2"):
        plain.with_history(2).with_history(3)
    for arguments in ((0,), (1, True)):
        with pytest.raises(ValueError, match="Expected a history of at least 1"):
            plain.with_history(*arguments)
    with pytest.raises(InvalidObservationError, match=r"rows of 3 observations and 2 more"):
        History(3, False, tuple(NVEC)).observation_size(13)
