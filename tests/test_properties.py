"""Generated input: everything is either accepted and right, or refused by an error we document.

A few dozen cases run with the other tests, the same ones every time; many new ones with
`pytest tests/test_properties.py -n 0 --hypothesis-profile thorough`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.storage import get_dataset_path

from spin_d3rlpy import FactoredIQL, load_policy, save_policy
from spin_d3rlpy.asm import ActionStructureModel, load_asm, save_asm
from spin_d3rlpy.data import DeviceReplayBuffer, as_device_buffer, load_dataset
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.loader import open_local
from spin_d3rlpy.data.minari.environments import check_spec, texts_with_colons
from spin_d3rlpy.data.minari.importer import _read_transitions
from spin_d3rlpy.data.minari.remote import pull_dataset
from spin_d3rlpy.data.minari.specs import is_dataset_name
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    InvalidCheckpointError,
    InvalidDatasetError,
    InvalidObservationError,
    NvecMismatchError,
    SpinError,
)
from spin_d3rlpy.training.checkpoints import VERSION, Checkpoints, read_checkpoint, write_checkpoint
from spin_envs.errors import InvalidActionError
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    new_algorithm,
    random_buffer,
    tiny_fields,
)
from tests.saved_files import read_saved, write_saved

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


@given(case=episodes())
def test_good_episodes_are_laid_out_as_they_are(case: Any) -> None:
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


NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e300])


@given(case=episodes(), where=st.data(), value=NOT_FINITE, wrong=st.integers(-(2**40), 2**40))
def test_one_bad_entry_is_refused_by_episode_and_step(
    case: Any, where: Any, value: float, wrong: int
) -> None:
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


@given(observations=ANY_ARRAY, actions=ANY_ARRAY, rewards=ANY_ARRAY, length=st.integers(0, 4))
def test_arrays_of_any_kind_make_a_good_buffer_or_an_error(
    observations: Any, actions: Any, rewards: Any, length: int
) -> None:
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


# -- actions and observations ----------------------------------------------------------------

MAZE_ACTION = hnp.arrays(np.int64, 3, elements=st.integers(-1, 2))


@pytest.fixture(scope="module")
def maze() -> Any:
    env = gymnasium.make("spin/maze-v0", actuators=3).unwrapped
    env.reset(seed=0)
    return env


@given(action=st.one_of(ANY_ARRAY, MAZE_ACTION, st.integers(), st.text(), st.none()))
def test_environments_take_an_action_of_their_space_or_refuse_it(maze: Any, action: Any) -> None:
    value = np.asarray(action)
    good = value.shape == (3,) and value.dtype.kind in "iu" and bool(np.isin(value, (0, 1)).all())
    if good:
        observation, reward, *_ = maze.step(action)
        assert maze.observation_space.contains(observation)
        assert math.isfinite(float(reward))
        return
    with pytest.raises(InvalidActionError):
        maze.step(action)


@pytest.fixture(scope="module")
def algo() -> FactoredIQL:
    made: FactoredIQL = new_algorithm(FactoredIQL, **tiny_fields(FactoredIQL))
    made.build_with_dataset(random_buffer())
    return made


STATES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 3), st.just(OBSERVATION_SIZE)),
    elements=st.floats(width=32) | st.floats(-10, 10, width=32),
)


@given(observations=st.one_of(ANY_ARRAY, STATES))
def test_policies_take_observations_or_refuse_them(algo: FactoredIQL, observations: Any) -> None:
    try:
        actions = algo.predict(observations)
    except InvalidObservationError:
        return
    assert np.isfinite(observations).all()
    assert actions.shape == (len(observations), len(NVEC))
    assert ((actions >= 0) & (actions < NVEC)).all()


# -- files -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Damage:
    """Some bytes changed, or the end cut off; places are shares of the length."""

    changes: list[tuple[float, int]]
    end: float | None

    def __call__(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for at, value in self.changes:
            changed[int(at * len(content))] = value
        return bytes(changed[: None if self.end is None else int(self.end * len(content))])


PLACE = st.floats(0, 1, exclude_max=True)
DAMAGE = st.builds(
    Damage,
    st.lists(st.tuples(PLACE, st.integers(0, 255)), min_size=1, max_size=9),
    st.one_of(st.none(), PLACE),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@dataclasses.dataclass(frozen=True)
class File:
    """A good file, and how long the part is where damage can do something."""

    path: Path
    content: bytes
    header: int

    def damage(self, change: Callable[[bytes], bytes]) -> None:
        self.path.write_bytes(change(self.content[: self.header]) + self.content[self.header :])


def _saved(path: Path) -> File:
    """A file of safetensors, whose weights are most of it."""
    content = path.read_bytes()
    return File(path, content, 8 + int.from_bytes(content[:8], "little"))


@pytest.fixture(scope="module")
def policy_file(algo: FactoredIQL, folder: Path) -> File:
    save_policy(algo, folder / "policy")
    return _saved(folder / "policy")


@pytest.fixture(scope="module")
def asm_file(folder: Path) -> File:
    save_asm(ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY), folder / "asm")
    return _saved(folder / "asm")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> File:
    path = folder / "training_0000000001.ckpt"
    with Checkpoints(folder, 1, {"run": 1}, dict) as checkpoints:
        checkpoints.start(resume=True)
        checkpoints.save("training", 1, {"weights": torch.arange(9.0)})
    content = path.read_bytes()
    return File(path, content, len(content))


@pytest.fixture(scope="module")
def dataset_folder(folder: Path) -> Path:
    """A small dataset, as `$MINARI_DATASETS_PATH` has it."""
    name = "tests/things-v0"
    data = folder / "datasets" / name / "data"
    data.parent.mkdir(parents=True)
    space = Box(-np.inf, np.inf, (2,), np.float32)
    storage = MinariStorage.new(data, space, MultiDiscrete([3, 5]))
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
    return data


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
@given(change=DAMAGE)
def test_damaged_datasets_are_refused_or_usable(
    dataset_folder: Path, name: str, change: Damage
) -> None:
    """A changed number cannot be told from a right one; everything else can."""
    file = dataset_folder / name
    content = file.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(dataset_folder.parents[2]))
        file.write_bytes(change(content))
        try:
            buffer = as_device_buffer("tests/things-v0")
        except (InvalidDatasetError, DatasetNotFoundError):
            return
        finally:
            file.write_bytes(content)
    assert torch.isfinite(buffer.observations).all()
    assert torch.isfinite(buffer.rewards).all()
    assert (buffer.actions >= 0).all()
    assert (buffer.actions < torch.tensor(buffer.nvec)).all()


@given(protocol=st.sampled_from([0, 2, 4, 5]), change=DAMAGE)
def test_damaged_pickles_are_refused_or_read(folder: Path, protocol: int, change: Damage) -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=2), rng.integers(2, size=3), 0.5, rng.normal(size=2), 0)] * 3
    path = folder / "buffer"
    path.write_bytes(change(pickle.dumps(rows, protocol=protocol)))
    try:
        transitions = _read_transitions(path, 2, 3)
    except InvalidDatasetError:
        return
    assert transitions["observation"].shape == transitions["next_observation"].shape
    assert transitions["action"].shape == (len(transitions["reward"]), 3)


def _check_policy(path: Path) -> None:
    """A policy that is not refused acts."""
    try:
        loaded = load_policy(path)
    except InvalidCheckpointError:
        return
    actions = loaded.predict(np.zeros((2, OBSERVATION_SIZE), np.float32))
    assert actions.shape == (2, len(NVEC))
    assert ((actions >= 0) & (actions < NVEC)).all()


def _check_asm(path: Path) -> None:
    """An ASM that is not refused answers."""
    try:
        loaded = load_asm(path)
    except InvalidCheckpointError:
        return
    logits = loaded(torch.zeros(2, OBSERVATION_SIZE), torch.zeros(2, len(NVEC), dtype=torch.long))
    assert torch.isfinite(logits).all()


@given(change=DAMAGE)
def test_damaged_policies_are_refused_or_usable(policy_file: File, change: Damage) -> None:
    policy_file.damage(change)
    _check_policy(policy_file.path)


@given(change=DAMAGE)
def test_damaged_asms_are_refused_or_usable(asm_file: File, change: Damage) -> None:
    asm_file.damage(change)
    _check_asm(asm_file.path)


@given(change=DAMAGE)
def test_damaged_checkpoints_are_refused(checkpoint: File, change: Damage) -> None:
    checkpoint.damage(change)
    if change(checkpoint.content) == checkpoint.content:
        read_checkpoint(checkpoint.path)
        return
    with pytest.raises(InvalidCheckpointError):
        read_checkpoint(checkpoint.path)


@given(change=DAMAGE)
def test_checkpoints_with_a_right_checksum_and_anything_behind_it_are_refused(
    folder: Path, change: Damage
) -> None:
    path = folder / "training_0000000002.ckpt"
    write_checkpoint(path, {"step": 1, "state": {"weights": torch.arange(9.0)}})
    changed = change(path.read_bytes().partition(b"\n")[2])
    checksum = hashlib.sha256(changed).hexdigest()
    path.write_bytes(f"spin-d3rlpy checkpoint {VERSION} {checksum}\n".encode() + changed)
    with pytest.raises(InvalidCheckpointError):
        read_checkpoint(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def _put(file: File, where: Any, value: Any) -> None:
    """Puts a value anywhere into the header of the file."""
    file.path.write_bytes(file.content)
    header, weights = read_saved(file.path)
    inner: Any = header
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = where.draw(st.sampled_from(keys))
        deeper = isinstance(inner[key], dict | list) and inner[key]
        if not deeper or where.draw(st.booleans()):
            inner[key] = value
            break
        inner = inner[key]
    write_saved(file.path, header, weights)


@given(where=st.data(), value=JSON)
def test_asms_with_other_values_are_refused_or_usable(
    asm_file: File, where: Any, value: Any
) -> None:
    _put(asm_file, where, value)
    _check_asm(asm_file.path)


@given(where=st.data(), value=JSON)
def test_configurations_with_other_values_are_refused_or_usable(
    policy_file: File, where: Any, value: Any
) -> None:
    _put(policy_file, where, value)
    _check_policy(policy_file.path)


# -- names -----------------------------------------------------------------------------------

NAMES = st.one_of(
    st.text(max_size=30),
    st.text("abz/.-_~v019 \\:\0\n", max_size=20),
    st.text("a/.-", max_size=9).map(lambda text: f"spin/{text}-v0"),
    st.text("a/.-", max_size=9).map(lambda text: f"{text}/medium-v0"),
)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder of datasets, and a remote that must not be asked."""

    def refuse(name: str) -> None:
        raise ValueError("No network in this test.")

    root = tmp_path_factory.mktemp("names") / "datasets"
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        patch.setenv("MINARI_REMOTE", "hf://unknown")
        patch.setattr("minari.list_remote_datasets", lambda **_: {})
        patch.setattr("minari.download_dataset", refuse)
        yield root.resolve()


@given(name=NAMES)
def test_no_name_leads_out_of_the_datasets_folder(datasets: Path, name: str) -> None:
    if is_dataset_name(name):
        assert datasets in Path(get_dataset_path(name)).resolve().parents
    for use in (load_dataset, open_local, pull_dataset):
        with pytest.raises(SpinError):
            use(name)
    assert {p.name for p in datasets.parent.iterdir()} == {"datasets"}


# -- arguments of environments ---------------------------------------------------------------

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("abZ/-_.v0", max_size=8))


def nested_with(leaves: st.SearchStrategy[Any], depth: int = 4) -> st.SearchStrategy[Any]:
    """Lists and mappings, as JSON has them, with one of `leaves` somewhere."""
    names, others = st.text("abenv_id", max_size=6), st.lists(LEAVES, max_size=2)
    if depth == 0:
        return leaves
    inner = st.one_of(leaves, nested_with(leaves, depth - 1))
    return st.one_of(
        st.builds(lambda before, found, after: [*before, found, *after], others, inner, others),
        st.builds(
            lambda others, name, found: {**others, name: found},
            *(st.dictionaries(names, LEAVES, max_size=2), names, inner),
        ),
    )


def argument_spec(arguments: Any) -> EnvSpec:
    """What metadata with these arguments are read as."""
    spec = json.loads(gymnasium.spec("spin/discretized-v0").to_json())
    return EnvSpec.from_json(json.dumps({**spec, "kwargs": {"env_kwargs": arguments}}))


@given(arguments=nested_with(st.from_regex(r"[a-z.]{1,9}:[A-Za-z]{1,9}-v[0-9]", fullmatch=True)))
def test_a_module_is_found_wherever_arguments_name_it(arguments: Any) -> None:
    with pytest.raises(InvalidDatasetError, match=r"names '.*:.*' in the arguments"):
        check_spec(argument_spec(arguments), "others/things-v0")


@given(arguments=nested_with(LEAVES))
def test_arguments_without_a_module_are_accepted(arguments: Any) -> None:
    check_spec(argument_spec(arguments), "others/things-v0")


def test_deep_arguments_are_looked_at_to_the_end() -> None:
    arguments: Any = "payload:x-v0"
    for _ in range(100_000):
        arguments = [arguments]
    assert list(texts_with_colons(arguments)) == ["payload:x-v0"]
    while isinstance(arguments, list):  # Python would recurse to free it
        arguments = arguments.pop()
