"""Observations as users hand them to `predict` and its like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import FactoredIQL
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidObservationError
from tests.algos.problems import OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields

STATES = np.random.default_rng(0).integers(-9, 9, (12, OBSERVATION_SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def algo() -> Any:
    algo = new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL))
    algo.fit(random_buffer(), n_steps=2, logger_adapter=NoopAdapterFactory(), show_progress=False)
    return algo


@pytest.mark.parametrize(
    "same",
    [
        STATES.astype(">f4"),
        STATES.astype(">i2"),
        STATES.astype(np.float16),
        STATES.astype(np.float64),
        STATES[::-1].copy()[::-1],
        np.asfortranarray(STATES),
        np.repeat(STATES, 2, axis=1)[:, ::2],
        STATES.tolist(),
        tuple(map(tuple, STATES)),
    ],
)
def test_numbers_of_any_layout_mean_the_same(algo: Any, same: Any) -> None:
    expected = algo.predict(STATES)
    assert np.array_equal(algo.predict(same), expected)
    assert np.array_equal(algo.predict_masked(same, np.ones((3, 5), bool)), expected)
    np.testing.assert_array_equal(
        algo.predict_value(same, expected), algo.predict_value(STATES, expected)
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (STATES.astype(str), "of numbers"),
        (STATES.astype(object), "of numbers"),
        (STATES.astype(complex), "of numbers"),
        (STATES.astype("datetime64[s]"), "of numbers"),
        ([[1.0] * OBSERVATION_SIZE, [1.0]], "different lengths"),
        (np.full((2, OBSERVATION_SIZE), 1e39), "Row 0.*float32"),
        (np.full((2, OBSERVATION_SIZE), -(10**300), dtype=float), "Row 0.*float32"),
        (np.full((2, OBSERVATION_SIZE), np.nan), "Row 0"),
        (STATES[0], "shape"),
        (STATES[:, :-1], "shape"),
        (STATES[None], "shape"),
        (3.0, "shape"),
    ],
)
def test_what_is_no_observation_is_refused(algo: Any, wrong: Any, message: str) -> None:
    masks = np.ones((3, 5), bool)
    for act in (algo.predict, algo.sample_action, lambda x: algo.predict_masked(x, masks)):
        with pytest.raises(InvalidObservationError, match=message):
            act(wrong)


@pytest.mark.parametrize(
    "wrong", [[["a", "b", "c"]], [[0, 0]], [[0.5, 0, 0]], [[np.nan, 0, 0]], [[0], [0, 1]], None]
)
def test_values_of_what_is_no_action_are_refused(algo: Any, wrong: Any) -> None:
    with pytest.raises(InvalidActionSpaceError):
        algo.predict_value(STATES[:1], np.array(wrong, object) if wrong is None else wrong)
