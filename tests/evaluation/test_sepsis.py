"""ICU-Sepsis: estimates of values that are known exactly. The slow extra has its tables."""

from __future__ import annotations

import numpy as np
import pytest

from spin_d3rlpy.evaluation.importance import importance_sampling
from tests.measure import sepsis
from tests.measure.log_coverage import tilt

pytestmark = pytest.mark.skipif(
    not sepsis.is_installed(), reason="needs icu-sepsis: pip install 'spin-d3rlpy[slow]'"
)


@pytest.fixture(scope="module")
def model() -> sepsis.Sepsis:
    return sepsis.load()


def test_values_are_the_published_ones(model: sepsis.Sepsis) -> None:
    q = model.optimal_q()
    assert model.value(model.clinicians) == pytest.approx(0.782, abs=5e-4)
    assert model.value(np.eye(25)[q.argmax(1)]) == pytest.approx(0.875, abs=5e-4)


def test_intervals_contain_the_exact_value_as_often_as_they_say(model: sepsis.Sepsis) -> None:
    policy = sepsis.TablePolicy(model, tilt(model.clinicians, model.optimal_q()))
    truth, covered = model.value(policy.table), 0
    for seed in range(20):
        log, logged = model.play(model.clinicians, 500, seed)
        found = importance_sampling(log, policy, logged, n_bootstrap=300)
        covered += found.low <= truth <= found.high
    assert 16 <= covered <= 20


def test_the_optimum_is_too_far_from_what_clinicians_do(model: sepsis.Sepsis) -> None:
    policy = sepsis.TablePolicy(model, np.eye(25)[model.optimal_q().argmax(1)])
    log, logged = model.play(model.clinicians, 500, 0)
    found = importance_sampling(log, policy, logged)
    assert not found.is_answered
    assert "The log cannot answer" in str(found)
