"""What a dataset's actions show."""

from __future__ import annotations

import numpy as np
import pytest

from spin_d3rlpy.data import coverage
from spin_d3rlpy.data.coverage import Coverage, CoverageCounter


def counted(choose: object, n: int = 60, length: int = 21) -> Coverage:
    """Coverage of episodes whose two slots of 4 choices are chosen by a function of states."""
    rng = np.random.default_rng(0)
    counter = CoverageCounter([4, 4], n * length)
    for _ in range(n):
        states = rng.random((length + 1, 2)).astype(np.float32)
        counter.add(states, choose(states[:-1], rng))  # type: ignore[operator]
    return counter.result()


def test_decisions_that_follow_from_the_state_leave_one_choice() -> None:
    found = counted(lambda x, _: (x > 0.5).astype(np.int64))
    assert found.choices_per_state == pytest.approx(1.0, abs=0.05)
    assert (found.combinations, found.steps) == (4, 60 * 21)
    assert found.never_made == [[2, 3], [2, 3]]
    assert "choices never made: slot 0: 2, 3; slot 1: 2, 3" in found.lines()


def test_choices_that_are_drawn_evenly_count_all() -> None:
    found = counted(lambda x, rng: rng.integers(4, size=(len(x), 2)))
    assert found.choices_per_state == pytest.approx(4.0, rel=0.15)
    assert not found.is_nearly_deterministic
    assert found.never_made == [[], []]
    assert not any("never" in line for line in found.lines())


def test_deterministic_decisions_are_named() -> None:
    found = counted(lambda x, _: np.zeros((len(x), 2), np.int64))
    assert found.choices_per_state == 1.0
    assert "Collect data with exploration" in found.lines()[-1]


def test_of_long_datasets_evenly_spaced_steps_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "MOST_STEPS", 100)
    counter = CoverageCounter([2], 50 * 7)
    for episode in range(50):
        steps = np.arange(7) + 7 * episode
        counter.add(steps[:, None], np.full((7, 1), episode % 2))
    assert np.concatenate(counter._states)[:, 0].tolist() == [*range(0, 350, 4)]
    assert counter.result().never_made == [[]]  # all choices are counted


def test_one_episode_has_no_other_to_compare_with() -> None:
    found = counted(lambda x, _: (x > 0.5).astype(np.int64), n=1)
    assert found.choices_per_state is None
    assert not found.is_nearly_deterministic
