"""Cone's datasets: size, limit of episodes, ends and behavior as published."""

from __future__ import annotations

from pathlib import Path

import minari
import numpy as np
import pytest

from spin_d3rlpy import load_dataset
from spin_d3rlpy.data.minari.check import check_dataset
from spin_envs.cone import ConeRules


@pytest.mark.slow
def test_a_dataset_has_the_published_size_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer, env = load_dataset("spin/cone-d8-p100-s1/mixed-v0", jobs=1, progress=False)
    assert buffer.transition_count == 10_000
    assert buffer.nvec == [2] * 16
    assert env.spec is not None
    assert env.spec.max_episode_steps == 100
    assert env.spec.kwargs == {"dimensions": 8, "pits": 1.0, "placement": 1}
    rewards = buffer.rewards.numpy().ravel()
    # The published rules end 224 episodes in a pit and about 25 at the goal.
    assert 170 < (rewards == np.float32(-40 * 8**0.5)).sum() < 280
    assert 8 < (rewards == 10).sum() < 50
    assert 3900 < len(np.unique(buffer.actions.numpy(), axis=0)) < 4200
    dataset = minari.load_dataset("spin/cone-d8-p100-s1/mixed-v0")
    assert dataset.storage.metadata["ref_max_score"] == pytest.approx(-16.32, abs=0.006)
    report = check_dataset(dataset)
    assert not report.problems
    assert not report.notes
    rules = ConeRules(8, 1.0, 1)
    for episode in dataset.iterate_episodes():
        x = episode.observations.astype(np.int64)
        assert (rules.move(x[:-1], episode.actions) == x[1:]).all()
        assert rules.outcomes(x[1:])[0] == pytest.approx(episode.rewards)
        # Neither both bits nor a push against an edge.
        assert (np.diff(x, axis=0) == episode.actions[:, 0::2] - episode.actions[:, 1::2]).all()
        assert not (episode.actions[:, 0::2] & episode.actions[:, 1::2]).any()


def test_episodes_are_longer_than_the_environments_and_alike_in_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, checksums = "spin/cone-d4-p0/mixed-1k-v0", []
    for jobs in (1, 2):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / str(jobs)))
        buffer, _ = load_dataset(name, jobs=jobs, progress=False)
        assert buffer.transition_count == 1000
        dataset = minari.load_dataset(name)
        checksums.append(dataset.storage.metadata["checksum"])
    assert checksums[0] == checksums[1]
    report = check_dataset(dataset, replay_episodes=None)
    assert not report.problems
    assert 100 < max(report.lengths) <= 1000
    # Without the record, the replayed environment would have ended earlier.
    dataset.storage.update_metadata({"episode_limit": 100})
    assert check_dataset(minari.load_dataset(name), replay_episodes=None).problems


def test_the_last_episode_is_cut_at_the_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "spin/cone-d2-p0/mixed-1k-v0"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffer, _ = load_dataset(name, jobs=1, progress=False)
    assert buffer.transition_count == 1000
    dataset = minari.load_dataset(name)
    ends = [bool(e.terminations[-1]) for e in dataset.iterate_episodes()]
    assert all(ends[:-1])
    assert not ends[-1]
    dataset.storage.update_metadata({"last_episode_cut": False})
    (problem,) = check_dataset(minari.load_dataset(name), replay_episodes=None).problems
    assert "or more" in problem
