from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from spin_envs import StandardizeObservation


def test_observations_are_scaled() -> None:
    env = gymnasium.make("spin/maze-v0", actuators=3)
    observation, _ = env.reset(seed=0)
    scaled, _ = StandardizeObservation(env, [0.5, -1.0], [2.0, 4.0]).reset(seed=0)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, (observation - [0.5, -1.0]) / [2.0, 4.0])


@pytest.mark.parametrize(("mean", "scale"), [([0.0], [1.0]), ([0, 0], [1, 0]), ([0, 0], [1.0])])
def test_bad_statistics_are_refused(mean: list[float], scale: list[float]) -> None:
    env = gymnasium.make("spin/maze-v0", actuators=3)
    with pytest.raises(ValueError, match="one mean and one scale that is not zero"):
        StandardizeObservation(env, mean, scale)
