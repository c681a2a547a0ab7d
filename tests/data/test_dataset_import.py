"""Importing published pickles: what comes out of good ones, and that bad ones run nothing."""

from __future__ import annotations

import builtins
import collections
import contextlib
import os
import pickle
import re
import struct
import sys
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from minari import MinariDataset
from typer.testing import CliRunner

from spin_d3rlpy.cli import app
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.minari.importer import episode_edges, import_published
from spin_d3rlpy.data.minari.restricted_pickle import load_restricted, without_placeholder
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError

MAZE = "spin/maze-a3/medium-published-v0"
Transition = tuple[Any, Any, Any, Any, Any]


@pytest.fixture(scope="module")
def maze() -> list[list[Transition]]:
    """Five episodes of random actions in the maze, some of which end early."""
    env = gymnasium.make("spin/maze-v0", actuators=3)
    rng = np.random.default_rng(0)
    episodes = []
    for seed in (0, 1, 2, 3, 21):
        state, _ = env.reset(seed=seed)
        transitions, over = [], False
        while not over:
            action = rng.integers(2, size=3)
            following, reward, terminated, truncated, _ = env.step(action)
            transitions.append((state, action, reward, following, int(terminated)))
            state, over = following, terminated or truncated
        episodes.append(transitions)
    episodes[1] = episodes[1][:40]  # recovered without done or the time limit
    episodes[2] = [*episodes[2][:39], (*episodes[2][39][:4], 1)]
    return episodes


def _flat(episodes: list[list[Transition]]) -> list[Transition]:
    return [t for episode in episodes for t in episode]


def _assert_same(dataset: MinariDataset, episodes: list[list[Transition]]) -> None:
    assert dataset.total_episodes == len(episodes)
    for found, wanted in zip(dataset, episodes, strict=True):
        states, actions, rewards, following, done = map(np.array, zip(*wanted, strict=True))
        assert np.array_equal(found.observations[:-1], states)
        assert np.array_equal(found.observations[1:], following)
        assert np.array_equal(found.actions, actions)
        assert np.array_equal(found.rewards, rewards.astype(np.float32))
        terminated = bool(done[-1])
        assert (bool(found.terminations[-1]), bool(found.truncations[-1])) == (
            terminated,
            not terminated,
        )
        assert not found.terminations[:-1].any()
        assert not found.truncations[:-1].any()


def _dump(path: Path, content: Any, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_a_list_of_transitions_comes_back_as_episodes(
    maze: list[list[Transition]], tmp_path: Path, protocol: int
) -> None:
    path = _dump(tmp_path / "buffer", _flat(maze), protocol)
    assert import_published(path, MAZE) == MAZE
    dataset = minari.load_dataset(MAZE)
    _assert_same(dataset, maze)
    assert check_dataset(dataset).problems == []
    assert dataset.storage.metadata["ref_max_score"] == 99.22
    buffer, env = load_dataset(MAZE)
    assert buffer.transition_count == len(_flat(maze))
    assert env.spec is not None
    assert env.spec.kwargs == {"actuators": 3}


def test_the_published_suite_layout_names_the_dataset(tmp_path: Path) -> None:
    env = gymnasium.make("spin/finger-spin-v0", bins=3)
    transitions = []
    for seed in range(2):
        state, _ = env.reset(seed=seed)
        for t in range(1000):
            action = np.array([t % 3, seed])
            following, reward, *_ = env.step(action)
            transitions.append((state, action, np.float64(reward), following, 0.0))
            state = following
    _dump(tmp_path / "3_bins" / "finger-spin-medium-expert", transitions)
    (tmp_path / "3_bins" / "notes.txt").write_text("not a dataset")
    result = CliRunner().invoke(app, ["data", "import", str(tmp_path)])
    assert result.exit_code == 0, result.output
    name = "spin/finger-spin-b3/medium-expert-published-v0"
    assert result.output.startswith(f"{name} from ")
    dataset = minari.load_dataset(name)
    assert (dataset.total_episodes, dataset.total_steps) == (2, 2000)
    _assert_same(dataset, [transitions[:1000], transitions[1000:]])


def _buffer_class() -> Any:
    """A class as the maze's files have it, in a module that the reader must not import."""
    module = types.ModuleType("published_maze_code")
    made = type("ReplayBuffer", (), {"__module__": module.__name__, "__qualname__": "ReplayBuffer"})
    module.ReplayBuffer = made  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickled_replay_buffer_is_read_without_its_class(
    maze: list[list[Transition]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: int,
) -> None:
    module = _buffer_class()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        buffer = module.ReplayBuffer()
        buffer.buffer = collections.deque(_flat(maze), maxlen=100_000)
        buffer.batch_size = 64
        path = _dump(tmp_path / "maze", buffer, protocol)
    import_published(path, MAZE)
    _assert_same(minari.load_dataset(MAZE), maze)


_Row = collections.namedtuple(  # type: ignore[name-match]
    "Transition", "state action reward next_state done"
)
_Row.__module__ = "published_maze_code"


@pytest.mark.parametrize("protocol", range(6))
def test_transitions_of_a_named_tuple_class_are_read_without_it(
    maze: list[list[Transition]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: int,
) -> None:
    module = types.ModuleType("published_maze_code")
    module.Transition = _Row  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        path = _dump(tmp_path / "maze", [_Row(*t) for t in _flat(maze)], protocol)
    import_published(path, MAZE)
    _assert_same(minari.load_dataset(MAZE), maze)


def test_a_list_in_place_of_a_deque_is_not_copied(
    maze: list[list[Transition]], tmp_path: Path
) -> None:
    """As Python before 3.5 wrote them."""
    path = tmp_path / "maze"
    listed = pickle.dumps(_flat(maze), protocol=2)[2:-1]
    path.write_bytes(b"\x80\x02ccollections\ndeque\n" + listed + b"\x85R.")
    import_published(path, MAZE)
    _assert_same(minari.load_dataset(MAZE), maze)


def test_episodes_that_join_seamlessly_are_cut_at_the_time_limit() -> None:
    still = np.zeros((7, 2), np.float32)
    done = np.zeros(7, bool)
    assert episode_edges(still, still, done, 3) == [0, 3, 6, 7]
    done[3] = True
    assert episode_edges(still, still, done, 3) == [0, 3, 4, 7]


class _Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


_EMPTY_ARRAY = np.zeros(1).__reduce__()[0], np.ndarray, (10**12,), b"b"


def _malicious(marker: Path) -> dict[str, bytes]:
    array = np.zeros(3, np.float32)
    good = pickle.dumps(array, protocol=4)
    # No frames, so that its parts can be exchanged.
    plain_file = pickle.dumps(np.arange(3, dtype=np.int8), protocol=2)
    assert b"K\x03\x85" in plain_file
    touch = f"open({str(marker)!r}, 'w')"
    nested = [(array, array, 0.0, array, {"x": (_Calls(os.system, f"touch {marker}"),)})]
    ndarray = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    return {
        "os.system": pickle.dumps(_Calls(os.system, f"touch {marker}")),
        "builtins.eval": pickle.dumps(_Calls(builtins.eval, touch)),
        "nested reduce": pickle.dumps(nested),
        "reduce of a reduce": pickle.dumps(_Calls(_returned, touch)),
        "getattr": b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'dumps'\ntR.",
        "numpy attribute": b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
        "numpy function": b"cnumpy\nload\n(S'x'\ntR.",
        "a buffer class of the library": b"ctempfile\nBuffer\n.",
        "extension": b"\x80\x02\x82\x01.",
        "object array": pickle.dumps(np.array([{}], dtype=object)),
        "structured array": pickle.dumps(np.zeros(2, [("a", "f4")])),
        "huge array": plain_file.replace(b"K\x03\x85", b"\x8a\x06\xff\xff\xff\xff\xff\x00\x85"),
        "huge array call": ndarray + b"(L9999999999999L\ntS'b'\ntR.",
        "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
        "huge bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
        "bytearray of a gigabyte": b"\x80\x05\x96" + struct.pack("<Q", 2**30) + b"abc.",
        "text encoded again and again": b"c_codecs\nencode\n(V"
        + b"x" * 5000
        + b"\nVlatin1\ntq\x010c_codecs\nencode\nq\x020("
        + b"h\x02h\x01R" * 1000
        + b"t.",
        "arguments again and again": b"(" + b"N" * 5000 + b"tq\x010cmaze\nBuffer\nq\x020("
        b"" + b"h\x02h\x01R" * 1000 + b"t.",
        "list copied again and again": b"(" + b"N" * 5000 + b"lq\x010ccollections\ndeque\nq\x020("
        b"" + b"h\x02h\x01\x85R" * 1000 + b"t.",
        "keys that take forever to hash": b"K\x01" + b"2\x86" * 200 + b"q\x010}h\x01K\x01s.",
        "keys too deep to hash": b"K\x01" + b"\x85" * 200_000 + b"q\x010}(h\x01K\x01u.",
        "keys of a dictionary from the stack": b"(K\x01" + b"2\x86" * 200 + b"K\x01d.",
        "set": pickle.dumps({1, 2}, protocol=4),
        "frozen set": pickle.dumps(frozenset((1, 2)), protocol=4),
        "attributes of a function": b"cnumpy._core.multiarray\nscalar\n}U\x04nameK\x01sb.",
        "slots of a class": b"cnumpy\nndarray\n(N}U\x05arrayK\x01stb.",
        "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"abc.",
        "huge memo": b"\x80\x04]r\xff\xff\xff\xff.",
        "truncated": good[:-20],
        "empty": b"",
        "no pickle": b"\x89HDF\r\n\x1a\n",
        "text": b"hello\nworld\n",
        "persistent": b"Pid\n.",
    }


def _returned(text: str) -> Any:
    return eval(text)


@pytest.mark.parametrize("kind", sorted(_malicious(Path("marker"))))
def test_bad_files_are_refused_and_run_nothing(
    kind: str, tmp_path: Path, datasets_folder: Path
) -> None:
    marker = tmp_path / "executed"
    path = tmp_path / "bad"
    path.write_bytes(_malicious(marker)[kind])
    with pytest.raises(InvalidDatasetError, match=re.escape(f"Cannot import {path}. ")):
        import_published(path, MAZE)
    assert not marker.exists()
    assert [p for p in datasets_folder.rglob("*") if p.name != "spin" and p.name != "maze-a3"] == []


@pytest.mark.parametrize("kind", sorted(_malicious(Path("marker"))))
def test_bad_files_take_memory_in_proportion_to_their_size(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(_malicious(tmp_path / "executed")[kind])
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidDatasetError):
            load_restricted(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20 + 100 * path.stat().st_size


def test_a_file_cannot_write_into_functions_and_classes(tmp_path: Path) -> None:
    for kind in ("attributes of a function", "slots of a class"):
        path = tmp_path / "bad"
        path.write_bytes(_malicious(tmp_path)[kind])
        with pytest.raises(InvalidDatasetError, match="attributes of something"):
            load_restricted(path)


def test_the_malicious_files_would_run(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    pickle.loads(_malicious(marker)["os.system"])
    assert marker.exists()


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "u2", "i8", "?"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_and_scalars_of_every_number_type_are_read(
    tmp_path: Path, dtype: str, protocol: int
) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
    path = _dump(tmp_path / "arrays", [array, array[:, 1:], array[0, 1], 3, 2.5, True], protocol)
    loaded = [without_placeholder(x) for x in load_restricted(path)]
    assert np.array_equal(loaded[0], array)
    assert loaded[0].dtype == array.dtype
    assert np.array_equal(loaded[1], array[:, 1:])
    assert loaded[2:] == [array[0, 1], 3, 2.5, True]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: [(_Calls(*_EMPTY_ARRAY), *t[0][1:])], "array without content"),
        (lambda t: [], "Expected a list of"),
        (lambda t: {"a": 1}, "Expected a list of"),
        (lambda t: [t[0][:4]], "transitions of 5 entries"),
        (lambda t: [7], "transitions of 5 entries"),
        (lambda t: [(np.zeros(3), *t[0][1:3], np.zeros(3), 0)], "observation of .* 0 .*3"),
        (lambda t: [(*t[0][:3], np.zeros(1), 0)], "next_observation of transition 0"),
        (lambda t: [(t[0][0], np.array([0, 1, 2]), *t[0][2:])], "Slot 2 at step 0"),
        (lambda t: [(t[0][0], np.array([0, 1]), *t[0][2:])], r"action .* 3 numbers.*\(2,\)"),
        (
            lambda t: [(t[0][0], t[0][1], float("nan"), *t[0][3:])],
            "reward at step 0 .*transition 0, is not finite",
        ),
        (lambda t: [(t[0][0], "up", *t[0][2:])], "found str"),
        (lambda t: [t[0], (t[1][0][:1], *t[1][1:])], "transition 1 to be 2 numbers"),
        (lambda t: [(t[0][0], [0, [1], 1], *t[0][2:])], "found list"),
        (lambda t: [(t[0][0], [0, 1, 0.5], *t[0][2:])], "Slot|slot 2 at step 0"),
        (lambda t: [(*t[0][:2], 10**400, *t[0][3:])], "reward of transition 0.*found int"),
        (lambda t: [(*t[0][:4], 2)], "done 0 or 1, that of transition 0 is 2"),
        (lambda t: [t[0], (*t[1][:4], float("nan"))], "that of transition 1 is nan"),
        (lambda t: t[:1] * 50_000, "16 times the file's size"),
        (lambda t: {"s": t[0][0], "a": 1, "r": 2, "s_": 3, "d": 4}, "Expected a list of"),
    ],
)
def test_transitions_that_do_not_fit_are_refused_and_leave_nothing(
    maze: list[list[Transition]],
    tmp_path: Path,
    datasets_folder: Path,
    change: Callable[[list[Transition]], Any],
    problem: str,
) -> None:
    path = _dump(tmp_path / "bad", change(_flat(maze)))
    with pytest.raises(ValueError, match=problem):
        import_published(path, MAZE)
    assert list((datasets_folder / "spin" / "maze-a3").iterdir()) == []


def test_a_file_that_does_not_say_what_it_is_needs_a_name(tmp_path: Path) -> None:
    path = _dump(tmp_path / "maze.pkl", [])
    with pytest.raises(DatasetNotFoundError, match="--name"):
        import_published(path)
    with pytest.raises(DatasetNotFoundError, match="published-v0"):
        import_published(path, "spin/maze-a3/medium-v0")
    result = CliRunner().invoke(app, ["data", "import", str(tmp_path)])
    assert "There is no file" in str(result.exception)


def test_another_file_under_the_name_of_a_dataset_is_refused(
    maze: list[list[Transition]], tmp_path: Path
) -> None:
    path = _dump(tmp_path / "buffer", _flat(maze))
    import_published(path, MAZE)
    assert import_published(path, MAZE) == MAZE
    path.write_bytes(b"garbage")
    with pytest.raises(InvalidDatasetError, match=r"exists, made from another file.*minari delete"):
        import_published(path, MAZE)


def test_a_time_limit_in_a_slice_is_no_termination_where_tasks_never_terminate(
    tmp_path: Path,
) -> None:
    env = gymnasium.make("spin/finger-spin-v0", bins=3)
    state, _ = env.reset(seed=0)
    transitions = []
    for t in range(1000):
        action = np.array([t % 3, 1])
        following, reward, _, truncated, _ = env.step(action)
        transitions.append((state, action, float(reward), following, truncated))
        state = following
    name = "spin/finger-spin-b3/medium-published-v0"
    import_published(_dump(tmp_path / "slice", transitions[900:]), name)
    [episode] = minari.load_dataset(name)
    assert (episode.terminations.any(), bool(episode.truncations[-1])) == (False, True)


@pytest.mark.parametrize(("entry", "name"), [(0, "observation"), (2, "reward")])
def test_a_number_that_is_not_finite_is_named(
    maze: list[list[Transition]], tmp_path: Path, entry: int, name: str
) -> None:
    content = [list(transition) for transition in _flat(maze)]
    content[77][entry] = content[77][entry] * np.nan
    with pytest.raises(InvalidDatasetError, match=f"The {name} at step .* is not finite") as raised:
        import_published(_dump(tmp_path / "buffer", content), MAZE)
    found = re.search(r"step (\d+) of .* begins at transition (\d+)", str(raised.value))
    assert found is not None
    assert int(found[1]) + int(found[2]) == 77


@pytest.mark.parametrize("filling", ["full", "partly filled", "wrapped around"])
def test_a_maze_buffer_with_arrays_by_column_is_read_in_order_of_time(
    maze: list[list[Transition]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filling: str
) -> None:
    module = types.ModuleType("MainUtils")
    module.ReplayBuffer = type("ReplayBuffer", (), {"__module__": "MainUtils"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "MainUtils", module)
    rows, buffer = len(_flat(maze)), module.ReplayBuffer()
    room, shift = (50, 0) if filling == "partly filled" else (0, 7 * (filling != "full"))
    names = ("states", "actions", "rewards", "next_states", "dones")
    for name, entries in zip(names, zip(*_flat(maze), strict=True), strict=True):
        column = np.array(entries, np.float64).reshape(rows, -1)
        padded = np.concatenate([column, np.zeros((room, column.shape[1]))])
        setattr(buffer, name, np.roll(padded, shift, axis=0))
    buffer.max_size, buffer.size = rows + room, np.int64(rows)
    buffer.ptr = rows if room else shift
    path = _dump(tmp_path / "maze", buffer)
    monkeypatch.delitem(sys.modules, "MainUtils")
    import_published(path, MAZE)
    _assert_same(minari.load_dataset(MAZE), maze)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 10**6}, "size from 1 to 4"),
        ({"ptr": -1}, "ptr from 0 to 4"),
        ({"dones": None}, "its entries are states"),
        ({"rewards": np.zeros(3)}, "same number of transitions"),
        ({"size": None, "states": np.zeros((4, 2))}, "last rows are zeros"),
    ],
)
def test_a_buffer_by_column_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    buffer: dict[str, Any] = {name: np.zeros((4, 2)) for name in ("states", "next_states")}
    buffer |= {"actions": np.zeros((4, 3)), "rewards": np.zeros(4), "dones": np.zeros(4)}
    with pytest.raises(InvalidDatasetError, match=message):
        import_published(_dump(tmp_path / "buffer", buffer | {"size": 4} | change), MAZE)


def test_an_object_without_transitions_is_described_by_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("MainUtils")
    module.ReplayBuffer = type("ReplayBuffer", (), {"__module__": "MainUtils"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "MainUtils", module)
    buffer = module.ReplayBuffer()
    buffer.capacity = 10
    with pytest.raises(InvalidDatasetError, match="found an object with the entries capacity"):
        import_published(_dump(tmp_path / "maze", buffer), MAZE)
