"""Which columns of an observation are of which slots, told from the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, from_table
from spin_d3rlpy.algos.fit import Training
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.policies import own_columns as module
from spin_d3rlpy.policies.own_columns import (
    MOST_PAIRS,
    Grouping,
    Length,
    _Probe,
    find_own_columns,
    groupings,
    with_objects,
)
from spin_envs import ActionLayout
from tests.algos.problems import new_algorithm

N, K = 4, 3


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these logs tell shows early."""
    lengths = {"OF_PROMISING": (30, 128, 30), "OF_THE_BEST": (150, 256, 50)}
    for name, length in (lengths | {"OF_ALL_COLUMNS": (300, 256, 50)}).items():
        monkeypatch.setattr(module, name, Length(*length))


def a_log(
    columns: list[list[int]], size: int, nvec: list[int], episodes: int = 30
) -> DeviceReplayBuffer:
    """Returns a log in which each slot chooses by the signs of its own two columns, mostly."""
    rng, n = np.random.default_rng(0), 50 * episodes
    seen = rng.normal(size=(n, size)).astype(np.float32)
    own = seen[:, np.array(columns)]  # (n, N, 2)
    chosen = (own > 0.0).sum(2)
    chosen = np.where(rng.random(chosen.shape) < 0.3, rng.integers(0, K, chosen.shape), chosen)
    return log_of(seen, chosen, nvec, episodes)


def log_of(
    seen: np.ndarray, chosen: np.ndarray, nvec: list[int], episodes: int
) -> DeviceReplayBuffer:
    """Returns observations and choices as episodes of equal length."""
    of_state = {f"x{i}": column for i, column in enumerate(seen.T)}
    of_actions = {f"a{i}": column for i, column in enumerate(chosen.T)}
    number = np.repeat(np.arange(episodes), len(seen) // episodes)
    return from_table(
        of_state | of_actions | {"episode": number, "reward": chosen.sum(1)},
        observations=[*of_state],
        actions=[*of_actions],
        nvec=nvec,
        episode="episode",
        reward="reward",
    )


BLOCKS = [[0, 1], [2, 3], [4, 5], [6, 7]]
STRIPES = [[1, 5], [2, 6], [3, 7], [4, 8]]  # after a column of none


def test_groupings_are_blocks_and_stripes_before_or_after_the_rest() -> None:
    assert list(groupings(5, 2)) == [
        Grouping([[0], [1]], [2, 3, 4], []),
        Grouping([[3], [4]], [0, 1, 2], []),
        Grouping([[0, 2], [1, 3]], [4], []),
        Grouping([[0, 1], [2, 3]], [4], []),
        Grouping([[1, 3], [2, 4]], [0], []),
        Grouping([[1, 2], [3, 4]], [0], []),
    ]
    assert [it.things[1] for it in groupings(8, 2) if not it.rest] == [
        [1, 3, 5, 7],
        [2, 3, 6, 7],  # two of each thing in turn
        [4, 5, 6, 7],
    ]
    assert Grouping([[0, 3, 6, 9, 12], [1, 4, 7, 10, 13], [2, 5, 8, 11, 14]], [], []) in list(
        groupings(15, 3)  # more than four of each, if none remain
    )
    assert list(groupings(2, 2)) == [Grouping([[0], [1]], [], [])]
    assert list(groupings(1, 2)) == []  # fewer columns than things


def test_the_rest_may_be_objects_but_for_some_columns_at_the_end() -> None:
    found = list(with_objects(Grouping([[0], [1]], [2, 3, 4, 5, 6], [])))
    assert [grouping.objects for grouping in found] == [
        [[2], [3], [4], [5], [6]],
        [[2, 4], [3, 5]],
        [[2, 3], [4, 5]],
    ]
    assert not list(with_objects(Grouping([[0], [1]], [2], [])))
    # Not where there would be more pairs than a short training can look at.
    many = Grouping([[0], [1]], list(range(2, 2 + MOST_PAIRS)), [])
    assert {len(grouping.objects) for grouping in with_objects(many)} == {200, 133, 100}


def test_things_may_have_several_slots_each() -> None:
    layout = Grouping([[0, 1], [2, 3]], [4, 5], [[4], [5]]).layout(4)
    assert layout.slot_columns == ((0, 1), (0, 1), (2, 3), (2, 3))
    assert layout.slot_features == ((0.0,), (1.0,), (0.0,), (1.0,))
    assert layout.object_columns == ((4,), (5,))
    assert layout.has_features
    assert Grouping([[0], [1]], [], []).layout(2).slot_features == ()


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


def test_what_slots_look_at_is_found() -> None:
    """Three agents each go towards the nearest of four objects, mostly."""
    rng, n = np.random.default_rng(0), 6_000
    seen = rng.uniform(size=(n, 15)).astype(np.float32)  # the last one tells nothing
    agents, objects = seen[:, :6].reshape(n, 3, 2), seen[:, 6:14].reshape(n, 4, 2)
    ways = objects[:, None] - agents[:, :, None]
    nearest = np.abs(ways).sum(-1).argmin(2)
    way = np.take_along_axis(ways, nearest[..., None, None], 2)[:, :, 0]  # (n, 3, 2)
    chosen = 2 * np.abs(way).argmax(2) + (
        np.take_along_axis(way, np.abs(way).argmax(2)[..., None], 2)[..., 0] > 0.0
    )
    chosen = np.where(rng.random(chosen.shape) < 0.2, rng.integers(0, 4, chosen.shape), chosen)
    found = find_own_columns(log_of(seen, chosen, [4] * 3, episodes=60))
    assert found is not None
    assert found.slot_columns == ((0, 1), (2, 3), (4, 5))
    assert found.object_columns == ((6, 7), (8, 9), (10, 11), (12, 13))


def test_nothing_is_found_where_each_slot_looks_at_all_columns_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor are objects asked for, which take most of the time: columns surely tell less."""
    monkeypatch.setattr(module, "with_objects", lambda _: pytest.fail("asked for objects"))
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(3_000, 8)).astype(np.float32)
    chosen = (seen @ rng.normal(size=(8, N)) > 0.0).astype(np.int64)
    assert find_own_columns(log_of(seen, chosen, [2] * N, episodes=60)) is None


@pytest.mark.parametrize(
    ("nvec", "episodes"), [([K] * (N - 1) + [K + 1], 30), ([K] * N, 1), ([K] * N, 4)]
)
def test_nothing_is_looked_for_in_unlike_slots_or_few_rows(nvec: list[int], episodes: int) -> None:
    assert find_own_columns(a_log(BLOCKS, 8, nvec, episodes)) is None


def test_nothing_is_asked_that_would_take_a_third_of_a_runs_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, most = a_log(BLOCKS, 8, [K] * N), []

    def ask(_: DeviceReplayBuffer, most_seconds: float) -> None:
        most.append(most_seconds)

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(Training, "epochs", lambda _: iter(()))
    for given in ({"seconds": 60.0}, {"n_steps": 1}):
        algo = new_algorithm(SPINIDQL, find_own_columns=True)
        algo.fit(log, **given, logger_adapter=NoopAdapterFactory(), show_progress=False)
        assert algo.config.layout is None
    assert most == [20.0, math.inf]


def test_nominal_seconds_tell_how_long_it_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """These do not depend on the machine, so that a resumed run decides alike."""
    log = a_log(BLOCKS, 8, [K] * N)
    probe, found = _Probe(*log.split(0.1)), list(groupings(8, N))
    seconds = probe.seconds(found)
    assert seconds == probe.seconds(found) > probe.seconds(found[:1]) > 0.0
    monkeypatch.setattr(_Probe, "best_of", lambda *_: pytest.fail("asked"))
    assert module.ask(log, 0.99 * seconds) is None
    with pytest.raises(pytest.fail.Exception, match="asked"):
        module.ask(log, 1.01 * seconds)


@pytest.mark.parametrize("n", [3, 40])
def test_most_groupings_are_dropped_early(n: int) -> None:
    log = a_log(BLOCKS, 8, [K] * N)
    probe, trained = _Probe(*log.split(0.1)), []
    found = [Grouping([[i], [i + 1]], [], []) for i in range(n)]
    losses = {i: float((i - 1) ** 2) for i in range(n)}  # the second is best

    def losses_of_own(grouping: Grouping, length: Length) -> torch.Tensor:
        trained.append(length)
        return torch.tensor([losses[grouping.things[0][0]]])

    probe.losses_of_own = losses_of_own  # type: ignore[method-assign]
    assert probe.best_of(found, 1) == [found[1]]
    by_length = {length: trained.count(length) for length in set(trained)}
    promising = min(n, module.N_PROMISING)
    assert by_length == ({module.OF_ALL: n} if n > promising else {}) | {
        module.OF_PROMISING: promising
    }


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
