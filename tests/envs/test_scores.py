from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from spin_envs import normalized_score, reference_scores
from spin_envs.scores import REFERENCE_SCORES


def test_random_scores_zero_and_expert_a_hundred() -> None:
    for (env_id, bins), (low, high) in REFERENCE_SCORES.items():
        assert env_id in gymnasium.registry
        assert normalized_score(env_id, bins, low) == 0.0
        assert normalized_score(env_id, bins, high) == pytest.approx(100.0)


def test_scores_are_linear_in_the_return_and_take_arrays() -> None:
    returns = np.array([5.39, 334.98, 664.57, 1323.75])
    np.testing.assert_allclose(
        normalized_score("spin/cheetah-run-v0", 3, returns), [0.0, 50.0, 100.0, 200.0]
    )


def test_scores_depend_on_the_number_of_bins() -> None:
    assert reference_scores("spin/dog-trot-v0", 10) == (6.48, 736.95)
    assert reference_scores("spin/dog-trot-v0", 3) == (7.32, 724.37)


def test_unpublished_scores_are_none_or_an_error_that_lists_the_known() -> None:
    assert reference_scores("spin/cheetah-run-v0", 5) is None
    with pytest.raises(KeyError, match=r"spin/cheetah-run-v0 with 5 bins.*finger-spin-v0 with 3"):
        normalized_score("spin/cheetah-run-v0", 5, 1.0)
