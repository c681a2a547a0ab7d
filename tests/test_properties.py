"""Generated input: everything is either accepted and right, or refused by an error we document.

A few cases run with the other tests and a few thousand with `-m slow`; the cases are the same ones
every time.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from spin_d3rlpy import FactoredIQL, load_policy, save_policy
from spin_d3rlpy.asm import ActionStructureModel, load_asm, save_asm
from spin_d3rlpy.checkpoints import Checkpoints, read_checkpoint, write_checkpoint
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer, load_dataset
from spin_d3rlpy.data.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.importer import _read_transitions
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.remote import pull_dataset
from spin_d3rlpy.data.specs import is_dataset_name
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    InvalidCheckpointError,
    InvalidDatasetError,
    InvalidObservationError,
    NvecMismatchError,
    SpinError,
)
from spin_envs.errors import InvalidActionError
from tests.algos.problems import NVEC, OBSERVATION_SIZE, TINY, random_buffer, tiny_fields
from tests.saved_files import read_saved, write_saved


def few_and_many(few: int, many: int) -> pytest.MarkDecorator:
    """Runs a test with a few generated cases, and with many if slow tests are asked for."""
    return pytest.mark.parametrize(
        "n", [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
    )


def check_cases(check: Callable[..., None], n: int, **strategies: st.SearchStrategy[Any]) -> None:
    """Calls `check` with `n` generated cases, and with the smallest one that fails if one does."""
    limits = settings(
        max_examples=n,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(**strategies)(check))()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)


# -- arrays of datasets ----------------------------------------------------------------------


@st.composite
def episodes(draw: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """A choice of nvec and good episodes for it."""
    nvec = draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    size = draw(st.integers(1, 3))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 4))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        action_type = draw(st.sampled_from([np.int64, np.uint8, np.int16, np.int32]))
        made.append(
            {
                "observations": rng.normal(size=(length + 1, size)),
                "actions": rng.integers(nvec, size=(length, len(nvec))).astype(action_type),
                "rewards": rng.normal(size=length),
                "terminated": draw(st.booleans()),
            }
        )
    return nvec, made


@few_and_many(40, 300)
def test_good_episodes_are_laid_out_as_they_are(n: int) -> None:
    def check(case: Any) -> None:
        nvec, made = case
        arrays = [EpisodeArrays(f"episode {i}", **e) for i, e in enumerate(made)]
        lengths = [len(e["rewards"]) for e in made]
        buffer = DeviceReplayBuffer(stack_episodes(arrays, lengths, nvec))
        row = 0
        for e, length in zip(made, lengths, strict=True):
            at = buffer.observation_index[row : row + length].long()
            expected = e["observations"].astype(np.float32)
            assert np.array_equal(buffer.observations[at].numpy(), expected[:-1])
            assert np.array_equal(buffer.observations[at + 1].numpy(), expected[1:])
            assert np.array_equal(buffer.actions[row : row + length].numpy(), e["actions"])
            assert np.array_equal(
                buffer.rewards[row : row + length].numpy(), e["rewards"].astype(np.float32)
            )
            terminals = buffer.terminals[row : row + length].tolist()
            assert terminals == [0.0] * (length - 1) + [float(e["terminated"])]
            row += length
        assert row == buffer.transition_count

    check_cases(check, n, case=episodes())


NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e300])


@few_and_many(40, 300)
def test_one_bad_entry_is_refused_by_episode_and_step(n: int) -> None:
    def check(case: Any, where: Any, value: float, wrong: int) -> None:
        nvec, made = case
        arrays = [EpisodeArrays(f"episode {i}", **e) for i, e in enumerate(made)]
        lengths = [len(e["rewards"]) for e in made]
        key = where.draw(st.sampled_from(["observations", "rewards", "actions"]))
        index = where.draw(st.integers(0, len(made) - 1))
        array = made[index][key]
        step = where.draw(st.integers(0, len(array) - 1))
        if key == "actions":
            slot = where.draw(st.integers(0, len(nvec) - 1))
            array = made[index][key] = array.astype(np.int64)
            arrays[index] = EpisodeArrays(f"episode {index}", **made[index])
            array[step, slot] = wrong if wrong < 0 else nvec[slot] + wrong
        elif array.ndim == 2:
            array[step, where.draw(st.integers(0, array.shape[1] - 1))] = value
        else:
            array[step] = value
        with pytest.raises(InvalidDatasetError, match=f"step {step} of episode {index} is"):
            stack_episodes(arrays, lengths, nvec)

    check_cases(
        check,
        n,
        case=episodes(),
        where=st.data(),
        value=NOT_FINITE,
        wrong=st.integers(-(2**40), 2**40),
    )


ANY_ARRAY = hnp.arrays(
    dtype=st.one_of(
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(),
        hnp.complex_number_dtypes(),
        hnp.boolean_dtypes(),
        hnp.byte_string_dtypes(),
        hnp.datetime64_dtypes(),
    ),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@few_and_many(60, 400)
def test_arrays_of_any_kind_make_a_good_buffer_or_an_error(n: int) -> None:
    def check(observations: Any, actions: Any, rewards: Any, length: int) -> None:
        arrays = EpisodeArrays("episode 0", observations, actions, rewards, False)
        try:
            stacked = stack_episodes([arrays], [length], [3, 2])
        except (InvalidDatasetError, NvecMismatchError):
            return
        assert stacked.observations.shape[0] == length + 1
        assert np.isfinite(stacked.observations).all()
        assert np.isfinite(stacked.rewards).all()
        assert stacked.actions.shape == (length, 2)
        assert ((stacked.actions >= 0) & (stacked.actions < [3, 2])).all()

    check_cases(
        check,
        n,
        observations=ANY_ARRAY,
        actions=ANY_ARRAY,
        rewards=ANY_ARRAY,
        length=st.integers(0, 4),
    )


# -- actions and observations ----------------------------------------------------------------


@few_and_many(60, 400)
def test_environments_take_an_action_of_their_space_or_refuse_it(n: int) -> None:
    env = gymnasium.make("spin/maze-v0", actuators=3).unwrapped
    env.reset(seed=0)
    near = hnp.arrays(np.int64, 3, elements=st.integers(-1, 2))

    def check(action: Any) -> None:
        value = np.asarray(action)
        good = (
            value.shape == (3,) and value.dtype.kind in "iu" and bool(np.isin(value, (0, 1)).all())
        )
        if good:
            observation, reward, *_ = env.step(action)
            assert env.observation_space.contains(observation)
            assert math.isfinite(float(reward))
            return
        with pytest.raises(InvalidActionError):
            env.step(action)

    check_cases(check, n, action=st.one_of(ANY_ARRAY, near, st.integers(), st.text(), st.none()))


@pytest.fixture(scope="module")
def algo() -> FactoredIQL:
    made = FactoredIQL(**tiny_fields(FactoredIQL))
    made.build_with_dataset(random_buffer())
    return made


@few_and_many(60, 400)
def test_policies_take_observations_or_refuse_them(n: int, algo: FactoredIQL) -> None:
    entries = st.floats(width=32) | st.floats(-10, 10, width=32)
    near = hnp.arrays(
        np.float32, st.tuples(st.integers(0, 3), st.just(OBSERVATION_SIZE)), elements=entries
    )

    def check(observations: Any) -> None:
        try:
            actions = algo.predict(observations)
        except InvalidObservationError:
            return
        assert np.isfinite(observations).all()
        assert actions.shape == (len(observations), len(NVEC))
        assert ((actions >= 0) & (actions < NVEC)).all()

    check_cases(check, n, observations=st.one_of(ANY_ARRAY, near))


# -- files -----------------------------------------------------------------------------------


@st.composite
def damage(draw: Any, size: int) -> Callable[[bytes], bytes]:
    """A way to damage a file of `size` bytes: some bytes changed, or its end cut off."""
    changes = draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), min_size=1, max_size=9)
    )
    end = draw(st.one_of(st.none(), st.integers(0, size)))

    def apply(content: bytes) -> bytes:
        changed = bytearray(content)
        for at, value in changes:
            changed[at] = value
        return bytes(changed[:end])

    return apply


def _write_dataset() -> Path:
    name = "tests/things-v0"
    folder = get_dataset_path(name) / "data"
    folder.parent.mkdir(parents=True)
    space = Box(-np.inf, np.inf, (2,), np.float32)
    storage = MinariStorage.new(folder, space, MultiDiscrete([3, 5]))
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    rng = np.random.default_rng(0)
    for length in (5, 3):
        ends = np.zeros((2, length), bool)
        ends[1, -1] = True
        observations = rng.normal(size=(length + 1, 2)).astype(np.float32)
        actions = rng.integers([3, 5], size=(length, 2)).astype(np.int8)
        rewards = rng.normal(size=length).astype(np.float32)
        storage.update_episodes(
            [EpisodeBuffer(None, None, None, observations, actions, rewards, *ends, {})]
        )
    return Path(folder)


@few_and_many(30, 300)
@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_damaged_datasets_are_refused_or_usable(name: str, n: int) -> None:
    """A changed number cannot be told from a right one; everything else can."""
    file = _write_dataset() / name
    content = file.read_bytes()

    def check(change: Callable[[bytes], bytes]) -> None:
        file.write_bytes(change(content))
        try:
            buffer = as_device_buffer("tests/things-v0")
        except (InvalidDatasetError, DatasetNotFoundError):
            return
        assert torch.isfinite(buffer.observations).all()
        assert torch.isfinite(buffer.rewards).all()
        assert (buffer.actions >= 0).all()
        assert (buffer.actions < torch.tensor(buffer.nvec)).all()

    check_cases(check, n, change=damage(len(content)))


@few_and_many(40, 300)
def test_damaged_pickles_are_refused_or_read(n: int, tmp_path: Path) -> None:
    import pickle

    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=2), rng.integers(2, size=3), 0.5, rng.normal(size=2), 0)] * 3
    contents = [pickle.dumps(rows, protocol=p) for p in (0, 2, 4, 5)]
    path = tmp_path / "buffer"

    def check(which: int, change: Callable[[bytes], bytes]) -> None:
        path.write_bytes(change(contents[which]))
        try:
            transitions = _read_transitions(path, 2, 3)
        except InvalidDatasetError:
            return
        assert transitions.observations.shape == transitions.following.shape
        assert transitions.actions.shape == (len(transitions.rewards), 3)

    smallest = min(map(len, contents))
    check_cases(check, n, which=st.integers(0, 3), change=damage(smallest))


@few_and_many(40, 300)
def test_damaged_policies_are_refused_or_usable(n: int, algo: FactoredIQL, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    save_policy(algo, path)
    content = path.read_bytes()
    # Weights are most of the file; its header is where damage can do something.
    header = 8 + int.from_bytes(content[:8], "little")

    def check(change: Callable[[bytes], bytes]) -> None:
        path.write_bytes(change(content[:header]) + content[header:])
        try:
            loaded = load_policy(path)
        except InvalidCheckpointError:
            return
        assert loaded.impl is not None
        actions = loaded.predict(np.zeros((2, OBSERVATION_SIZE), np.float32))
        assert ((actions >= 0) & (actions < NVEC)).all()

    check_cases(check, n, change=damage(header))


@pytest.fixture
def asm() -> ActionStructureModel:
    return ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY)


def _check_asm(path: Path) -> None:
    """An ASM that is not refused answers."""
    try:
        loaded = load_asm(path)
    except InvalidCheckpointError:
        return
    logits = loaded(torch.zeros(2, OBSERVATION_SIZE), torch.zeros(2, len(NVEC), dtype=torch.long))
    assert torch.isfinite(logits).all()


@few_and_many(40, 300)
def test_damaged_asms_are_refused_or_usable(
    n: int, asm: ActionStructureModel, tmp_path: Path
) -> None:
    path = tmp_path / "asm"
    save_asm(asm, path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")

    def check(change: Callable[[bytes], bytes]) -> None:
        path.write_bytes(change(content[:header]) + content[header:])
        _check_asm(path)

    check_cases(check, n, change=damage(header))


@few_and_many(30, 300)
def test_damaged_checkpoints_are_refused(n: int, tmp_path: Path) -> None:
    path = tmp_path / "training_0000000001.ckpt"
    with Checkpoints(tmp_path, 1, {"run": 1}, dict) as checkpoints:
        checkpoints.start(resume=True)
        checkpoints.save("training", 1, {"weights": torch.arange(9.0)})
    content = path.read_bytes()

    def check(change: Callable[[bytes], bytes]) -> None:
        changed = change(content)
        path.write_bytes(changed)
        if changed == content:
            read_checkpoint(path)
            return
        with pytest.raises(InvalidCheckpointError):
            read_checkpoint(path)

    check_cases(check, n, change=damage(len(content)))


@few_and_many(30, 300)
def test_checkpoints_with_a_right_checksum_and_anything_behind_it_are_refused(
    n: int, tmp_path: Path
) -> None:
    path = tmp_path / "training_0000000001.ckpt"
    write_checkpoint(path, {"step": 1, "state": {"weights": torch.arange(9.0)}})
    payload = path.read_bytes().partition(b"\n")[2]

    def check(change: Callable[[bytes], bytes]) -> None:
        changed = change(payload)
        checksum = hashlib.sha256(changed).hexdigest()
        path.write_bytes(f"spin-d3rlpy checkpoint 1 {checksum}\n".encode() + changed)
        with pytest.raises(InvalidCheckpointError):
            read_checkpoint(path)

    check_cases(check, n, change=damage(len(payload)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def _with_other_value(path: Path) -> Callable[[Any, Any], None]:
    """Returns what puts a value anywhere into the header of the file."""
    original, weights = read_saved(path)

    def change(where: Any, value: Any) -> None:
        header = copy.deepcopy(original)
        inner: Any = header
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            key = where.draw(st.sampled_from(keys))
            deeper = isinstance(inner[key], dict | list) and inner[key]
            if not deeper or where.draw(st.booleans()):
                inner[key] = value
                break
            inner = inner[key]
        write_saved(path, header, weights)

    return change


@few_and_many(40, 300)
def test_asms_with_other_values_are_refused_or_usable(
    n: int, asm: ActionStructureModel, tmp_path: Path
) -> None:
    path = tmp_path / "asm"
    save_asm(asm, path)
    change = _with_other_value(path)

    def check(where: Any, value: Any) -> None:
        change(where, value)
        _check_asm(path)

    check_cases(check, n, where=st.data(), value=JSON)


@few_and_many(40, 300)
def test_configurations_with_other_values_are_refused_or_usable(
    n: int, algo: FactoredIQL, tmp_path: Path
) -> None:
    path = tmp_path / "policy"
    save_policy(algo, path)
    change = _with_other_value(path)

    def check(where: Any, value: Any) -> None:
        change(where, value)
        try:
            loaded = load_policy(path)
        except InvalidCheckpointError:
            return
        actions = loaded.predict(np.zeros((2, OBSERVATION_SIZE), np.float32))
        assert actions.shape == (2, len(NVEC))

    check_cases(check, n, where=st.data(), value=JSON)


# -- names -----------------------------------------------------------------------------------

NAMES = st.one_of(
    st.text(max_size=30),
    st.text("abz/.-_~v019 \\:\0\n", max_size=20),
    st.text("a/.-", max_size=9).map(lambda text: f"spin/{text}-v0"),
    st.text("a/.-", max_size=9).map(lambda text: f"{text}/medium-v0"),
)


@few_and_many(100, 500)
def test_no_name_leads_out_of_the_datasets_folder(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(get_dataset_path("")).resolve()
    monkeypatch.setenv("MINARI_REMOTE", "hf://nobody")
    monkeypatch.setattr("minari.list_remote_datasets", lambda **_: {})

    def refuse(name: str) -> None:
        raise ValueError("No network in this test.")

    monkeypatch.setattr("minari.download_dataset", refuse)

    def check(name: str) -> None:
        if is_dataset_name(name):
            assert root in Path(get_dataset_path(name)).resolve().parents
        for use in (load_dataset, open_local, pull_dataset):
            with pytest.raises(SpinError):
                use(name)
        assert {p.name for p in tmp_path.iterdir()} == {"datasets"}

    check_cases(check, n, name=NAMES)
