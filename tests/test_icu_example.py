"""The example on ICU-Sepsis: exact values with and without masks, and a log that keeps them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from spin_d3rlpy import FactoredBC, LockstepEvaluator, collect
from tests.subprocesses import ROOT

pytest.importorskip("icu_sepsis", reason="needs icu-sepsis: pip install 'spin-d3rlpy[slow]'")


@pytest.fixture(scope="module")
def icu() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gym and pandas, which the package imports
        patch.syspath_prepend(ROOT / "examples" / "sepsis")
        # It stays imported, because it registers its environment, which is done once a process.
        yield importlib.import_module("icu")


@pytest.fixture(scope="module")
def model(icu: Any) -> Any:
    return icu.tables()


def test_the_optimum_needs_no_inadmissible_pair(icu: Any, model: Any) -> None:
    """They act like the mean of the admissible ones, so that none is better than the best."""
    q = model.optimal_q()
    free, bounded = icu.greedy(q), icu.greedy(q, model.pairs)
    pairs = np.eye(25)
    assert model.value(model.clinicians) == pytest.approx(0.782, abs=5e-4)
    assert model.value(pairs[free]) == pytest.approx(0.875, abs=5e-4)
    assert model.value(pairs[bounded]) == pytest.approx(0.875, abs=5e-4)
    assert model.inadmissible_share(free) == pytest.approx(0.170, abs=5e-4)  # 121 ties
    assert model.inadmissible_share(bounded) == 0.0


def test_masks_decide_where_inadmissible_pairs_are_deadly(icu: Any, model: Any) -> None:
    q, deadly = model.optimal_q(), model.with_deadly_pairs()
    pairs = np.eye(25)
    assert deadly.value(pairs[icu.greedy(q)]) == pytest.approx(0.416, abs=5e-4)
    assert deadly.value(pairs[icu.greedy(q, model.pairs)]) == pytest.approx(0.875, abs=5e-4)


def test_masks_of_levels_allow_every_admissible_pair_and_in_some_states_others(
    icu: Any, model: Any
) -> None:
    masks = icu.slot_masks(model.pairs[:713])
    product = (masks[:, 0, :, None] & masks[:, 1, None, :]).reshape(-1, 25)
    assert (product >= model.pairs[:713]).all()
    assert (product == model.pairs[:713]).all(axis=1).mean() == pytest.approx(0.863, abs=5e-4)


def test_a_log_keeps_its_masks_and_so_does_what_learns_from_it(icu: Any, model: Any) -> None:
    env = gymnasium.make("example/icu-sepsis-v0")
    rng = np.random.default_rng(0)

    def choose(_observation: Any, mask: Any) -> Any:
        return np.array([rng.choice(np.flatnonzero(levels)) for levels in mask])

    log = collect(env, choose, episodes=3, progress=False, with_masks=True)
    masks = log.masks_at(log.observation_index)
    assert masks is not None
    assert masks.shape == (len(log.rewards), 2, 5)
    algo = FactoredBC()
    algo.fit(log, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    chosen = algo.predict_masked(model.features, icu.slot_masks(model.pairs))
    allowed = np.take_along_axis(icu.slot_masks(model.pairs), chosen[:, :, None], axis=2)
    assert allowed.all()
    assert set(LockstepEvaluator(env, 2).returns(algo)) <= {0.0, 1.0}
