from __future__ import annotations

import numpy as np

from examples.behavior_policies.moments import RunningMoments


def test_running_moments_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(2, 3, size=(40, 5)).astype(np.float32)
    moments = RunningMoments(5)
    for part in np.split(rows, [3, 4, 20]):
        moments.update(part)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-5)
    scaler = moments.scaler()
    assert scaler.mean is not None
    assert scaler.std is not None
    np.testing.assert_allclose(scaler.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(scaler.std, rows.std(0), rtol=1e-5)


def test_moments_go_on_from_a_state() -> None:
    rows = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    first, whole, second = RunningMoments(2), RunningMoments(2), RunningMoments(2)
    first.update(rows[:10])
    second.load(first.state())
    for moments in (first, second):
        moments.update(rows[10:])
    whole.update(rows)
    np.testing.assert_allclose(second.mean, whole.mean)
    np.testing.assert_allclose(second.std, first.std)
