from __future__ import annotations

import numpy as np
import pytest

from examples.behavior_policies.replay import NStepReplay

GAMMA = 0.9


def replay_of(steps: int, end: str, n_steps: int = 3, reuse_array: bool = False) -> NStepReplay:
    """One environment whose observation at time t is t, action [t % 2], reward 10 ** t."""
    replay = NStepReplay(100, 1, 1, 1, n_steps, GAMMA, seed=0)
    observation = np.zeros(1, np.float32)
    for t in range(steps):
        last = t == steps - 1
        current = observation if reuse_array else np.full(1, t, np.float32)
        current[0] = t
        replay.append(
            0,
            current,
            np.array([t % 2]),
            10.0**t,
            np.full(1, t + 1, np.float32),
            terminated=last and end == "terminated",
            truncated=last and end == "truncated",
        )
    return replay


def rows(replay: NStepReplay) -> dict[int, tuple[float, ...]]:
    batch = replay.sample(2000)
    table = np.concatenate(
        [
            batch.observations,
            batch.actions,
            batch.rewards,
            batch.next_observations,
            batch.terminals,
            batch.intervals,
        ],
        axis=1,
    )
    return {int(r[0]): tuple(r[1:].tolist()) for r in table}


@pytest.mark.parametrize("reuse_array", [False, True])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_n_step_returns_shorten_at_the_end_of_an_episode(end: str, reuse_array: bool) -> None:
    found = rows(replay_of(5, end, reuse_array=reuse_array))
    over = float(end == "terminated")
    expected = {
        0: (0, 1 + 9 + 81, 3, 0.0, 3),
        1: (1, 10 + 90 + 810, 4, 0.0, 3),
        2: (0, 100 + 900 + 8100, 5, over, 3),
        3: (1, 1000 + 9000, 5, over, 2),
        4: (0, 10000, 5, over, 1),
    }
    assert found.keys() == expected.keys()
    for t, row in expected.items():
        assert found[t] == pytest.approx(row), t


def test_unfinished_returns_wait() -> None:
    assert replay_of(5, "running").size == 3
    assert replay_of(2, "running").size == 0


def test_the_oldest_transitions_are_overwritten() -> None:
    replay = NStepReplay(4, 1, 1, 1, 1, GAMMA, seed=0)
    for t in range(7):
        x = np.full(1, t, np.float32)
        replay.append(0, x, np.array([0]), 0.0, x + 1, terminated=False, truncated=False)
    assert replay.size == 4
    assert set(np.asarray(replay.sample(500).observations)[:, 0].tolist()) == {3.0, 4.0, 5.0, 6.0}
