"""Which columns of an observation are of which slots, told from the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spin_d3rlpy import SPINIDQL, from_table
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.own_columns import Grouping, find_own_columns, groupings
from spin_envs import ActionLayout
from tests.algos.problems import new_algorithm

N, K = 4, 3


def a_log(
    columns: list[list[int]], size: int, nvec: list[int], episodes: int = 30
) -> DeviceReplayBuffer:
    """Returns a log in which each slot chooses by the signs of its own two columns, mostly."""
    rng, n = np.random.default_rng(0), 50 * episodes
    seen = rng.normal(size=(n, size)).astype(np.float32)
    own = seen[:, np.array(columns)]  # (n, N, 2)
    chosen = (own > 0.0).sum(2)
    chosen = np.where(rng.random(chosen.shape) < 0.3, rng.integers(0, K, chosen.shape), chosen)
    table = {f"x{i}": seen[:, i] for i in range(size)}
    table |= {f"a{i}": chosen[:, i] for i in range(len(nvec))}
    table |= {"episode": np.repeat(np.arange(episodes), 50), "reward": chosen.sum(1)}
    return from_table(
        table,
        observations=[f"x{i}" for i in range(size)],
        actions=[f"a{i}" for i in range(len(nvec))],
        nvec=nvec,
        episode="episode",
        reward="reward",
    )


BLOCKS = [[0, 1], [2, 3], [4, 5], [6, 7]]
STRIPES = [[1, 5], [2, 6], [3, 7], [4, 8]]  # after a column of none


def test_groupings_are_blocks_and_stripes_before_or_after_the_rest() -> None:
    assert list(groupings(5, 2)) == [
        Grouping([[0, 1], [2, 3]], [4]),
        Grouping([[0, 2], [1, 3]], [4]),
        Grouping([[1, 2], [3, 4]], [0]),
        Grouping([[1, 3], [2, 4]], [0]),
    ]
    assert list(groupings(6, 2)) == [
        Grouping([[0, 1, 2], [3, 4, 5]], []),
        Grouping([[0, 2, 4], [1, 3, 5]], []),
    ]
    assert list(groupings(2, 2)) == [Grouping([[0], [1]], [])]
    assert list(groupings(1, 2)) == []  # fewer columns than things


def test_things_may_have_several_slots_each() -> None:
    layout = Grouping([[0, 1], [2, 3]], []).layout(4)
    assert layout.slot_columns == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert layout.slot_features == ((0.0,), (1.0,), (0.0,), (1.0,))
    assert layout.has_features
    assert Grouping([[0], [1]], []).layout(2).slot_features == ()


@pytest.mark.parametrize(("columns", "size"), [(BLOCKS, 8), (STRIPES, 9)])
def test_own_columns_are_found(columns: list[list[int]], size: int) -> None:
    log = a_log(columns, size, [K] * N)
    torch.manual_seed(0)
    drawn = log.sample_index(4)
    torch.manual_seed(0)
    found = find_own_columns(log)
    assert found is not None
    assert [list(own) for own in found.slot_columns] == columns
    assert torch.equal(log.sample_index(4), drawn)  # random numbers outside do not depend on it


def test_nothing_is_found_where_slots_look_at_others() -> None:
    crossed = [[0, 3], [2, 5], [4, 7], [6, 1]]
    assert find_own_columns(a_log(crossed, 8, [K] * N)) is None


@pytest.mark.parametrize(
    ("nvec", "episodes"), [([K] * (N - 1) + [K + 1], 30), ([K] * N, 1), ([K] * N, 4)]
)
def test_nothing_is_looked_for_in_unlike_slots_or_few_rows(nvec: list[int], episodes: int) -> None:
    assert find_own_columns(a_log(BLOCKS, 8, nvec, episodes)) is None


def test_the_default_uses_them_unless_it_is_told_otherwise() -> None:
    log = a_log(BLOCKS, 8, [K] * N)
    found = new_algorithm(SPINIDQL, find_own_columns=True)
    found.build_with_dataset(log)
    assert found.config.layout is not None
    assert found.config.layout.slot_columns[1] == (2, 3)
    for told in (
        {"layout": ActionLayout(), "find_own_columns": True},
        {"history": 2, "find_own_columns": True},
        {"find_own_columns": False},
    ):
        algo = new_algorithm(SPINIDQL, **told)
        algo.build_with_dataset(log)
        assert algo.config.layout is None or not algo.config.layout.has_features
    assert SPINIDQL(recipe="tuned").config.find_own_columns
