"""Numbers that must be whole are honored or refused, never cut, wherever users give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spin_d3rlpy import FactoredBC, MultiDiscreteFQE, MultiDiscreteFQEConfig, relabel
from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.evaluation.probabilities import GreedyPolicy
from spin_d3rlpy.nvec import as_choices, check_nvec, whole_numbers
from spin_envs import ActionLayout
from tests.algos.problems import NVEC, OBSERVATION_SIZE, random_buffer

STATES = np.zeros((4, OBSERVATION_SIZE), np.float32)
NOT_WHOLE: list[Any] = [0.5, 1.5, "1", True, None, float("nan"), float("inf"), 1 + 0j, [1]]


@given(st.lists(st.one_of(st.integers(-(10**30), 10**30), st.floats(), st.booleans(), st.text())))
def test_whole_numbers_are_equal_to_what_was_given(values: list[Any]) -> None:
    try:
        found = whole_numbers(values)
    except TypeError:
        assert any(
            isinstance(v, bool | str) or v != v or v in (np.inf, -np.inf) or v % 1 for v in values
        )
    else:
        assert found == values
        assert all(type(v) is int for v in found)


@pytest.mark.parametrize("wrong", NOT_WHOLE, ids=repr)
def test_numbers_that_are_not_whole_are_refused(wrong: Any) -> None:
    buffer = random_buffer()
    with pytest.raises(InvalidActionSpaceError, match="nvec"):
        check_nvec([2, wrong])
    with pytest.raises(ValueError, match="indices of episodes"):
        buffer.select([2, wrong])
    with pytest.raises(ValueError, match="numbers that are whole"):
        ActionLayout(slot_columns=[[0], [wrong]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="numbers"):
        ActionLayout(shared_choices=True, pair_columns=[[[0], [wrong]]])  # type: ignore[arg-type]


def test_whole_numbers_of_any_type_are_taken() -> None:
    for given_ in ([3, 5, 2], np.array([3, 5, 2], np.uint8), (3.0, 5.0, 2.0), torch.tensor(NVEC)):
        assert check_nvec(given_) == [3, 5, 2]  # type: ignore[arg-type]


def test_a_mask_of_episodes_selects_those_that_are_true() -> None:
    buffer = random_buffer()
    mask = np.zeros(buffer.size(), bool)
    mask[[1, 4]] = True
    for given_ in (mask, mask.tolist(), torch.from_numpy(mask)):
        chosen = buffer.select(given_)  # type: ignore[arg-type]
        assert torch.equal(chosen.observations, buffer.select([1, 4]).observations)
    with pytest.raises(ValueError, match=f"mask of all {buffer.size()} episodes"):
        buffer.select(mask[:3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got \\[\\]"):
        buffer.select(~mask & mask)  # type: ignore[arg-type]


WRONG_ACTIONS: list[Any] = [
    np.full((4, 3), 0.5),
    np.zeros(3, int),
    np.zeros((1, 3), int),
    np.zeros((4, 3)).astype(str),
    np.full((4, 3), np.nan),
    [[0, 0, 0]] * 3 + [[0, 0]],
]


@pytest.mark.parametrize("wrong", WRONG_ACTIONS, ids=range(len(WRONG_ACTIONS)))
def test_functions_that_return_no_actions_are_refused(wrong: Any) -> None:
    logged = np.zeros((4, 3), np.int64)
    for ask in (
        GreedyPolicy(lambda x: wrong).log_prob,
        GreedyPolicy(lambda x: wrong).slot_log_prob,
    ):
        with pytest.raises(InvalidActionSpaceError, match=r"shape \(4, "):
            ask(STATES, logged)
    fqe = MultiDiscreteFQE(lambda x: wrong, MultiDiscreteFQEConfig(batch_size=4))
    with pytest.raises(InvalidActionSpaceError, match="from the evaluated"):
        fqe.fit(random_buffer(), n_steps=1, show_progress=False)


def test_actions_beyond_the_space_are_refused() -> None:
    with pytest.raises(InvalidActionSpaceError, match=r"below \[3, 5, 2\]"):
        as_choices([[0, 5, 0]], (1, 3), "you", NVEC)
    with pytest.raises(InvalidActionSpaceError, match="below"):
        as_choices([[0, -1, 0]], (1, 3), "you", NVEC)

    class Teacher(FactoredBC):
        def predict(self, x: Any) -> Any:
            return np.full((len(x), 3), 4)

    with pytest.raises(InvalidActionSpaceError, match="from the teacher"):
        relabel(random_buffer(), Teacher())
