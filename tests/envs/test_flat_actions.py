"""Actions of any space as slots, and back."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from spin_envs import Bins, FlatActions, InvalidActionError
from spin_envs.discretized import BoxGrid

PAD = Dict(
    {
        "arm": Tuple([Discrete(3, start=-1), MultiBinary([2, 2])]),
        "gear": MultiDiscrete(np.array([[2], [5]]), start=np.array([[1], [7]])),
        "stick": Box(-1.0, 1.0, (2,)),
    }
)


@st.composite
def spaces(draw: Any, depth: int = 2) -> Space[Any]:
    """A space of any nesting."""
    kind = draw(st.integers(0, 3 if depth == 0 else 5))
    size = st.integers(1, 3)
    shape = draw(st.lists(size, min_size=1, max_size=2))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    if kind == 0:
        return Discrete(draw(st.integers(1, 5)), start=draw(st.integers(-3, 3)))
    if kind == 1:
        return MultiBinary(shape)
    if kind == 2:
        starts = rng.integers(-3, 4, size=shape)
        return MultiDiscrete(rng.integers(1, 6, size=shape), start=starts)
    if kind == 3:
        dtype = draw(st.sampled_from([np.float32, np.float64, np.int16, np.uint8]))
        low = rng.integers(0, 4, size=shape[1:]).astype(dtype)
        return Box(low, (low + rng.integers(0, 9, size=shape[1:])).astype(dtype), dtype=dtype)
    inside = [draw(spaces(depth - 1)) for _ in range(draw(size))]
    return Tuple(inside) if kind == 4 else Dict({f"k{i}": s for i, s in enumerate(inside)})


def has_box(space: Space[Any]) -> bool:
    if isinstance(space, Dict | Tuple):
        inside = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return any(has_box(part) for part in inside)
    return isinstance(space, Box)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype)


@settings(max_examples=200)
@given(
    space=spaces(),
    by=st.sampled_from(["equal", "quantiles", "grid"]),
    count=st.integers(2, 9),
    logged=st.booleans(),
)
def test_any_space_there_and_back(space: Any, by: Any, count: int, logged: bool) -> None:
    space.seed(0)
    log = [space.sample() for _ in range(20)]
    binned = has_box(space)
    flat = FlatActions(
        space,
        Bins(count, by) if binned else None,
        log if logged or by == "quantiles" else None,
    )
    assert flat.is_exact or binned
    assert len(flat.names) == len(set(flat.names)) == len(flat.nvec)
    choices = flat.flatten_all(log)
    assert all(flat.flat_space.contains(row) for row in choices)
    for action, row in zip(log, choices, strict=True):
        acted = flat.unflatten(row)
        assert space.contains(acted)
        assert flat.flatten(acted).tolist() == row.tolist()
        if flat.is_exact:
            assert same(acted, action)
    drawn = flat.flat_space.sample()
    assert flat.flatten(flat.unflatten(drawn)).tolist() == drawn.tolist()
    kept = FlatActions.from_dict(json.loads(json.dumps(flat.to_dict(), allow_nan=False)))
    assert kept == flat
    assert kept.space == space
    assert same(kept.unflatten(drawn), flat.unflatten(drawn))


def test_slots_are_named_by_keys_and_positions() -> None:
    flat = FlatActions(PAD, bins=3)
    assert flat.names == [
        *("arm/0", "arm/1/0/0", "arm/1/0/1", "arm/1/1/0", "arm/1/1/1"),
        *("gear/0/0", "gear/1/0", "stick/0", "stick/1"),
    ]
    assert flat.nvec.tolist() == [3, 2, 2, 2, 2, 2, 5, 3, 3]
    assert FlatActions(Discrete(3)).names == ["action"]
    action = flat.unflatten([2, 0, 1, 1, 0, 1, 4, 0, 2])
    assert action["arm"][0] == 1
    assert action["arm"][1].tolist() == [[0, 1], [1, 0]]
    assert action["gear"].tolist() == [[2], [11]]
    np.testing.assert_allclose(action["stick"], [-2 / 3, 2 / 3], rtol=1e-6)
    assert [flat.value(0, 2), flat.value(6, 4), flat.value(8, 1)] == [1, 11, 0.0]


STICK = Box(-1.0, 1.0, (2,), np.float64)
LOG = np.array([[-0.9, 0.0], [-0.7, 0.0], [0.1, 0.0], [0.2, 0.5], [0.9, 1.0], [0.8, -1.0]])


@pytest.mark.parametrize(
    ("bins", "log", "acted"),
    [
        (2, None, [[-0.5, 0.5], [-0.5, 0.5]]),
        ([2, 4], None, [[-0.5, 0.5], [-0.75, -0.25, 0.25, 0.75]]),
        (Bins(3, "grid"), None, [[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]),
        ({"0": 2, "1": [-1.0, -0.5, 1.0]}, None, [[-0.5, 0.5], [-0.75, 0.25]]),
        # Means of what is in a bin; its center where nothing is.
        ({"0": 2, "1": 4}, LOG, [[-0.8, 0.5], [-1.0, -0.25, 0.0, 0.75]]),
        # As many in each bin; a value of which there are many has a bin of its own.
        (Bins(3, "quantiles"), LOG, [[-0.8, 0.15, 0.85], [-1.0, 0.0, 0.75]]),
    ],
)
def test_what_bins_act(bins: Any, log: Any, acted: list[list[float]]) -> None:
    flat = FlatActions(STICK, bins, log)
    got = [[flat.value(slot, k) for k in range(n)] for slot, n in enumerate(flat.nvec)]
    assert [len(row) for row in got] == [len(row) for row in acted]
    for row, expected in zip(got, acted, strict=True):
        np.testing.assert_allclose(row, expected)


def acted(log: list[float], count: int) -> list[float]:
    flat = FlatActions(
        Box(-1.0, 1.0, (1,), np.float64), Bins(count, "quantiles"), np.array(log)[:, None]
    )
    return [flat.value(0, k) for k in range(flat.nvec[0])]


def test_values_that_are_logged_often_have_bins_of_their_own() -> None:
    around = [-0.4, -0.3, -0.2, 0.2, 0.3, 0.4]
    assert acted([*([0.0] * 10), *around], 4) == pytest.approx([-0.3, 0.0, 0.3])
    assert acted([*([0.0] * 10), 0.1, 0.2, 0.3], 3) == pytest.approx([0.0, 0.2])
    assert acted([*([1.0] * 10), 0.1, 0.2, 0.3], 3) == pytest.approx([0.2, 1.0])
    # The next value begins a quantile of its own.
    assert acted([*([0.0] * 6), *([0.4] * 3), 0.5, 0.6, 0.7], 4) == pytest.approx([0.0, 0.4, 0.6])
    # Sums of 0.1 are rounded; what it acts is not.
    assert 0.1 in acted([*([0.1] * 10), -0.2, 0.3, 0.4, 0.5], 3)


def test_a_longer_name_says_more() -> None:
    space = Dict({"a": Box(-1.0, 1.0, (2,)), "b": Box(-1.0, 1.0, ())})
    assert FlatActions(space, {"a/1": 7, "a": 3, "b": 2}).nvec.tolist() == [3, 7, 2]


def test_slots_are_found_by_name_and_choices_by_value() -> None:
    space = Dict({"gear": Discrete(3, start=-1), "wheel": Box(-1.0, 1.0, (2,))})
    flat = FlatActions(space, 5)
    assert flat.where({"wheel/1": 0.9, "gear": 1}) == {2: 4, 0: 2}
    with pytest.raises(ValueError, match=r"names of slots, \['gear', 'wheel/0', 'wheel/1'\]"):
        flat.where({"wheel": 0.9})
    with pytest.raises(ValueError, match=r"slot 'gear'\. .*from -1 to 1, got 2"):
        flat.where({"gear": 2})


def test_values_outside_belong_to_the_ends_and_edges_to_the_upper_bin() -> None:
    flat = FlatActions(Box(-np.inf, np.inf, (1,)), {"0": [-1.0, 0.0, 2.0]})
    assert [flat.flatten([x]).tolist() for x in (-9.0, -0.1, 0.0, 9.0)] == [[0], [0], [1], [1]]


@pytest.mark.parametrize(
    "kind", [np.float16, np.float32, np.float64], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("has_largest", [False, True])
def test_without_bounds_the_log_says_where_bins_are(kind: Any, has_largest: bool) -> None:
    bound = np.finfo(kind).max if has_largest else np.inf  # the former as of ViZDoom's sticks
    space = Box(-bound, bound, (1,), kind)
    with pytest.raises(ValueError, match="finite bounds, got -inf to inf"):
        FlatActions(space, 2)
    with pytest.raises(ValueError, match="of finite bounds"):
        BoxGrid(space, 2)
    flat = FlatActions(space, 2, log=[np.array([x]) for x in (0.0, 1.0, 10.0)])
    assert [flat.value(0, 0), flat.value(0, 1)] == [0.5, 10.0]


def test_whole_numbers_have_a_bin_each_at_most() -> None:
    flat = FlatActions(Box(2, 5, (1,), np.int16), 9)
    assert [flat.unflatten([k]).tolist() for k in range(flat.nvec[0])] == [[2], [3], [4], [5]]
    flat = FlatActions(Box(0, 3, (1,), np.int16), 3)
    assert [flat.flatten([x])[0] for x in range(4)] == [0, 1, 1, 2]  # those in the middle together
    flat = FlatActions(Box(3, 5, (1,), np.int16), 2)
    assert [flat.unflatten([k]).tolist() for k in range(2)] == [[3], [4]]


UNBOUNDED = Dict({"arm": Tuple([Discrete(2), Box(-np.inf, 1.0, (2,))])})


@pytest.mark.parametrize(
    ("space", "bins", "message"),
    [
        (Dict({"arm": Tuple([Discrete(2), Text(3)])}), None, r'action\["arm"\]\[1\] to be a D'),
        (
            UNBOUNDED,
            3,
            r'bins of action\["arm"\]\[1\]\[0\] are wrong.*finite bounds, got -inf to 1',
        ),
        (UNBOUNDED, None, r'bins of action\["arm"\]\[1\]\[0\] \(slot \'arm/1/0\'\)'),
        (STICK, 1, r"action\[0\] are wrong.*from 2 to 1001, got 1"),
        (STICK, 0, "got 0"),
        (STICK, 2.5, r"got 2\.5"),
        (STICK, "33", "got '33'"),
        (STICK, [3, 1], r"bins of action\[1\].*got 1"),
        (STICK, [3, 3, 3], r"one number of bins or 2 of them.*\['0', '1'\]\), got 3"),
        (STICK, {"2": 3}, "slots in a Box, .*got '2'"),
        (STICK, {"0": 3}, r"bins of action\[1\]"),
        (STICK, {"0": 3, "1": [0.0, 0.0, 1.0]}, r"bins of action\[1\].*ascending"),
        (STICK, {"0": 3, "1": [0.0, 1.0]}, "3 or more ascending"),
        (STICK, {"0": 3, "1": [5.0, 6.0, 7.0]}, r"bins of action\[1\] that hold values"),
        (STICK, Bins(3, "quantiles"), "logged actions, log="),
        (MultiBinary(2), 3, "Expected no bins"),
        (Tuple([]), None, "1 to 100,000 numbers, got none"),
        (Tuple([Discrete(2), MultiBinary(10**12)]), None, "1 to 100,000 numbers, got more"),
        (Discrete(3, start=2**60), None, r"action to have numbers up to 2\*\*53"),
        (Dict({"a": Tuple([Discrete(2)]), "a/0": Discrete(2)}), None, "name 'a/0'"),
        (Box(0.0, 1e-6, (1,), np.float16), 500, "Take fewer bins"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_its_place(
    space: Any, bins: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FlatActions(space, bins)


@pytest.mark.parametrize("fields", [{"by": "size"}, {"count": 3, "edges": (0, 1, 2)}])
def test_contradictory_bins_are_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected (by=|edges= alone)"):
        Bins(**fields)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"arm": (0, [[0, 0], [0, 0]])}, r'an action with action\["gear"\]'),
        ({"arm": (0,)}, r'an action with action\["arm"\]\[1\]'),
        (3, r'an action with action\["arm"\]'),
        ({"arm": (2, [[0, 0], [0, 0]])}, r'action\["arm"\]\[0\] .* from -1 to 1, got 2'),
        ({"arm": (0.5, [[0, 0], [0, 0]])}, r"got 0\.5"),
        ({"arm": (0, [[0, 0], [0]])}, r'action\["arm"\]\[1\] to be numbers of shape \(2, 2\)'),
        ({"arm": (0, [0, 0])}, r"got \(2,\)"),
        ({"stick": [0.0, np.nan]}, r'action\["stick"\]\[1\] to be finite'),
    ],
)
def test_actions_of_other_spaces_are_refused(action: Any, message: str) -> None:
    flat = FlatActions(PAD, bins=3)
    good = {"arm": (0, np.zeros((2, 2))), "gear": [[1], [7]], "stick": [0.0, 0.0]}
    whole = {**good, **action} if isinstance(action, dict) and "gear" not in message else action
    with pytest.raises(InvalidActionError, match=message):
        flat.flatten(whole)


def test_masks_as_gymnasium_samples_by_them() -> None:
    flat = FlatActions(PAD, bins=3)
    free = np.ones((9, 5), bool) & (np.arange(5) < flat.nvec[:, None])
    assert flat.mask({}).tolist() == free.tolist()
    given = {
        "arm": (np.array([1, 0, 0], np.int8), np.array([[0, 1], [2, 2]], np.int8)),
        "gear": (([1, 0],), ([0, 0, 1, 1, 0],)),
        "stick": None,
    }
    wanted = free.copy()
    wanted[0, 1:3] = wanted[1, 1] = wanted[2, 0] = wanted[5, 1] = False
    wanted[6] = [False, False, True, True, False]
    assert flat.mask(given).tolist() == wanted.tolist()
    assert flat.mask(wanted).tolist() == wanted.tolist()
    assert flat.mask([row[:n] for row, n in zip(wanted, flat.nvec, strict=True)])[6, 0] == 0
    assert flat.mask(wanted[free]).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"leg": [1]}, r"mask of action as a dict with the keys \['arm'"),
        ({"arm": [[1, 1, 1]]}, r'mask of action\["arm"\] as 2 masks'),
        ({"arm": ([1, 1], None)}, r'action\["arm"\]\[0\] as 3 numbers 0 or 1'),
        ({"arm": ([1, 1, 2], None)}, r'action\["arm"\]\[0\] as 3 numbers 0 or 1'),
        ({"gear": [1, 1]}, r'action\["gear"\] as a row .* sizes \[2, 5\]'),
        (7, "mask of action as a dict"),
    ],
)
def test_other_masks_are_refused(mask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlatActions(PAD, bins=3).mask(mask)


@pytest.mark.parametrize(
    "change",
    [
        {"space": {"Text": [3]}},
        {"space": {"Discrete": ["3", 0]}},
        {"space": {"MultiBinary": [[10**9], False]}},
        {"space": {"Box": [[1], [0.0], [1.0], "O"]}},
        {"space": [[["Tuple"]]]},
        {"edges": [[0.0], [1.0, 0.0]]},
        {"values": [[0.0, 1.0], [0.0]]},
        {"values": [[0.0, 1.0], [None, 1.0]]},
        {"edges": 3},
    ],
)
def test_damaged_descriptions_are_refused(change: dict[str, Any]) -> None:
    content = FlatActions(STICK, 2).to_dict()
    with pytest.raises(ValueError, match=r"\w"):
        FlatActions.from_dict({**content, **change})
    deep: Any = {"Discrete": [2, 0]}
    for _ in range(50):
        deep = {"Tuple": [deep]}
    with pytest.raises(ValueError, match="Expected a space"):
        FlatActions.from_dict({**content, "space": deep})
    with pytest.raises(ValueError, match="damaged"):
        FlatActions.from_dict({})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def changed(content: Any, value: Any, path: list[int]) -> Any:
    """Returns JSON values with one of them replaced."""
    if not path or not isinstance(content, dict | list) or not content:
        return value
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[path[0] % len(keys)]
    copy: Any = content.copy()
    copy[key] = changed(content[key], value, path[1:])
    return copy


@settings(max_examples=200)
@given(value=ANY, path=st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_a_description_that_is_changed_is_refused_or_used(value: Any, path: list[int]) -> None:
    content = changed(FlatActions(PAD, bins=3).to_dict(), value, path)
    try:
        flat = FlatActions.from_dict(content)
    except ValueError:
        return
    assert flat.flatten(flat.unflatten(flat.flat_space.sample())).shape == flat.nvec.shape


def test_gymnasium_is_the_space_of_an_environment() -> None:
    assert isinstance(FlatActions(PAD, 3).flat_space, gymnasium.spaces.MultiDiscrete)
