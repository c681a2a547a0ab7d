"""Building: what is in a dataset, and what is left when a build is interrupted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium.spaces import MultiDiscrete
from minari import MinariDataset

from spin_d3rlpy import __file__ as package_file
from spin_d3rlpy.data import build_dataset, load_dataset, parse_name
from spin_d3rlpy.data.minari import builder, playing, workers
from spin_d3rlpy.data.minari.playing import Chunk
from spin_envs.behavior import load_behavior_policy
from spin_envs.errors import MissingDependencyError
from spin_envs.rollout import EpisodeRecord
from tests.subprocesses import run_python

in_processes = pytest.mark.usefixtures("_processes")
MIX = "spin/cheetah-run-b3/random-medium-expert-v0"
MEDIUM = "spin/cheetah-run-b3/medium-v0"


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_a_dataset_has_its_episodes_in_order_with_their_seeds(built: MinariDataset) -> None:
    assert (built.total_episodes, built.total_steps) == (5, 5000)
    seeds = [m["seed"] for m in built.storage.get_episode_metadata(range(5))]
    assert seeds == [1_000_000, 1_000_001, 2_000_000, 2_000_001, 3_000_000]
    composition = built.storage.metadata["composition"]
    assert [(p["policy"], p["episodes"]) for p in composition] == [
        ("random", 2),
        ("medium", 2),
        ("expert", 1),
    ]


def test_arrays_have_compact_types(built: MinariDataset) -> None:
    for episode in built:
        assert episode.observations.shape == (1001, 17)
        assert episode.observations.dtype == np.float32
        assert episode.actions.shape == (1000, 6)
        assert episode.actions.dtype == np.int8
        assert episode.rewards.dtype == np.float32
        assert not episode.terminations.any()
        assert episode.truncations.nonzero()[0].tolist() == [999]
    assert built.action_space == MultiDiscrete([3] * 6)


def test_episodes_are_what_the_simulator_gives_for_their_seeds_and_actions(
    built: MinariDataset,
) -> None:
    env = gymnasium.make("spin/cheetah-run-v0", bins=3)
    seeds = [m["seed"] for m in built.storage.get_episode_metadata(range(5))]
    for seed, episode in zip(seeds, built, strict=True):
        observation, _ = env.reset(seed=seed)
        assert np.array_equal(observation, episode.observations[0])
        for t, action in enumerate(episode.actions):
            observation, reward, *_ = env.step(action)
            assert np.array_equal(observation, episode.observations[t + 1])
            assert np.float32(reward) == episode.rewards[t]


def _build_maze(size: int, jobs: int) -> MinariDataset:
    spec = parse_name("spin/maze-a3/random-medium-expert-v0", size)
    build_dataset(spec, jobs=jobs, progress=False)
    return minari.load_dataset(spec.name)


def test_maze_parts_are_whole_episodes_until_there_are_enough_transitions() -> None:
    maze = _build_maze(10_000, jobs=1)
    episodes = list(maze)
    seeds = [m["seed"] for m in maze.storage.get_episode_metadata(maze.episode_indices)]
    assert len({len(e.actions) for e in episodes}) > 1
    first = 0
    for part, wanted in zip(maze.storage.metadata["composition"], (4500, 4500, 1000), strict=True):
        last = first + part["episodes"]
        assert seeds[first:last] == list(
            range(part["first_seed"], part["first_seed"] + part["episodes"])
        )
        lengths = [len(e.actions) for e in episodes[first:last]]
        assert part["transitions"] == sum(lengths)
        assert sum(lengths[:-1]) < wanted <= sum(lengths)
        first = last
    assert first == len(episodes)
    for e in episodes:
        reached = e.rewards[-1] > 0
        assert bool(e.terminations[-1]) == reached
        assert bool(e.truncations[-1]) != reached
        assert reached or len(e.actions) == 150
        assert not e.terminations[:-1].any()
    assert any(e.terminations[-1] for e in episodes)


@in_processes
@pytest.mark.slow
def test_a_maze_dataset_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _build_maze(10_000, jobs=1).storage.metadata
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "parallel"))
    parallel = _build_maze(10_000, jobs=3).storage.metadata
    assert parallel["checksum"] == alone["checksum"]
    assert parallel["composition"] == alone["composition"]


def test_a_maze_dataset_loads_with_its_environment() -> None:
    buffer, env = load_dataset("spin/maze-a3/medium-v0", size=1000, jobs=1, progress=False)
    assert buffer.nvec == [2, 2, 2]
    assert 1000 <= buffer.transition_count < 1150
    assert env.action_space == MultiDiscrete([2, 2, 2])
    assert (env.spec.id, env.spec.kwargs) == ("spin/maze-v0", {"actuators": 3})  # type: ignore[union-attr]


def test_actions_are_those_of_the_policies(built: MinariDataset) -> None:
    episodes = list(built)
    for kind, index in {"medium": 3, "expert": 4}.items():
        policy = load_behavior_policy(f"cheetah-run-b3-{kind}")
        episode = episodes[index]
        assert np.array_equal(policy(episode.observations[:-1]), episode.actions)
    random = np.concatenate([e.actions for e in episodes[:2]])
    assert not np.array_equal(episodes[0].actions, episodes[1].actions)
    for choices in random.T:
        assert np.bincount(choices, minlength=3) == pytest.approx(2000 / 3, rel=0.15)


def test_an_episode_does_not_depend_on_those_played_beside_it() -> None:
    policy = load_behavior_policy("cheetah-run-b3-medium")
    together = playing.play(Chunk("spin/cheetah-run-v0", {"bins": 3}, policy, range(5, 8)))
    alone = playing.play(Chunk("spin/cheetah-run-v0", {"bins": 3}, policy, range(5, 6)))
    assert np.array_equal(together[0].observations, alone[0].observations)


@in_processes
def test_the_result_does_not_depend_on_the_number_of_processes(built: MinariDataset) -> None:
    checksum = built.storage.metadata["checksum"]
    reference = [e.observations for e in built]
    with pytest.MonkeyPatch.context() as patch:
        folder = Path(os.environ["MINARI_DATASETS_PATH"]).parent / "parallel"
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        build_dataset(parse_name(MIX, 5000), jobs=2, progress=False)
        parallel = minari.load_dataset(built.id)
    assert all(map(np.array_equal, reference, [e.observations for e in parallel]))
    assert parallel.storage.metadata["checksum"] == checksum


def test_the_checksum_tells_datasets_apart(built: MinariDataset, built_3k: dict[str, Any]) -> None:
    assert built_3k["checksum"] != built.storage.metadata["checksum"]


def test_scores_statistics_and_provenance_are_stored(built: MinariDataset) -> None:
    metadata = built.storage.metadata
    assert (metadata["ref_min_score"], metadata["ref_max_score"]) == (5.39, 664.57)
    assert minari.get_normalized_score(built, np.array([664.57])) == pytest.approx([1.0])
    assert metadata["algorithm_name"] == (
        "random weights 1 (greedy), random weights 2 (greedy), uniformly random"
    )
    returns = [e.rewards.sum() for e in built]
    assert metadata["returns"]["mean"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert metadata["composition"][1]["returns"]["max"] == pytest.approx(max(returns[2:4]))
    provenance = metadata["provenance"]
    assert provenance["policies"]["expert"] == {
        "name": "cheetah-run-b3-expert",
        "sha256": load_behavior_policy("cheetah-run-b3-expert").digest(),
        "algorithm": "random weights 2",
        "mean_return": 300.0,
        "target_return": 664.57,
    }
    versions = {"spin-d3rlpy", "mujoco", "dm_control", "numpy", "gymnasium", "minari"}
    assert set(provenance["versions"]) == versions


def test_a_policy_that_acts_by_its_mean_is_not_called_greedy() -> None:
    assert builder._algorithm({"algorithm": "PPO", "learned_bins": 3}) == "PPO (mean)"


def test_the_environment_is_recovered_without_importing_this_package(
    built: MinariDataset,
) -> None:
    script = (
        "import sys, minari\n"
        f"env = minari.load_dataset({built.id!r}).recover_environment()\n"
        "assert env.action_space.nvec.tolist() == [3] * 6\n"
        "assert env.spec.max_episode_steps == 1000\n"
        "assert 'spin_d3rlpy' not in sys.modules\n"
    )
    # Where the tests run from a checkout, the package is not installed in the new process.
    root = Path(package_file).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "envs")])}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=env)


@pytest.mark.slow
def test_a_script_without_a_main_guard_can_build(tmp_path: Path, policy_folder: Path) -> None:
    root = Path(package_file).parents[1]
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "import spin_envs.behavior as behavior\n"
        f"behavior._policy_folder = lambda: Path({str(policy_folder)!r})\n"
        "from spin_d3rlpy.data import load_dataset\n"
        f"buffer, env = load_dataset({MEDIUM!r}, size=1000, jobs=1, progress=False)\n"
        "print(buffer.transition_count)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "envs")])}
    done = subprocess.run(
        [sys.executable, str(script)], check=True, env=env, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == "1000\n"


def _chunk_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".*.chunks-*/*.npz"))


def _count_chunks(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """Returns the seeds of the chunks that are played from here on."""
    played: list[range] = []
    original = workers.play_chunks

    def play(chunks: Iterator[Chunk], jobs: int) -> Iterator[list[EpisodeRecord]]:
        for episodes in original(chunks, jobs):
            played.append(range(episodes[0].seed, episodes[0].seed + len(episodes)))
            yield episodes

    monkeypatch.setattr(builder, "play_chunks", play)
    return played


def _stop_after_two_chunks(
    monkeypatch: pytest.MonkeyPatch, jobs: int = 1, error: BaseException | None = None
) -> None:
    """Builds the mixed dataset until two of its three chunks are played."""
    original = workers.play_chunks
    error = error or KeyboardInterrupt()

    def interrupted(chunks: Iterator[Chunk], jobs: int) -> Iterator[list[EpisodeRecord]]:
        episodes = original(chunks, jobs)
        yield next(episodes)
        yield next(episodes)
        episodes.close()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(builder, "play_chunks", interrupted)
        with pytest.raises(type(error)):
            build_dataset(parse_name(MIX, 3000), jobs=jobs, progress=False)


@in_processes
@pytest.mark.parametrize(
    ("error", "jobs"),
    [(RuntimeError("broken"), 2), pytest.param(KeyboardInterrupt(), 1, marks=pytest.mark.slow)],
)
def test_an_interrupted_build_leaves_no_dataset_and_the_next_goes_on(
    error: BaseException,
    jobs: int,
    datasets_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    built_3k: dict[str, Any],
) -> None:
    _stop_after_two_chunks(monkeypatch, jobs, error)
    kept = _chunk_files(datasets_folder)
    assert [p.name for p in kept] == ["1000000-1.npz", "2000000-1.npz"]
    assert sorted(_files(datasets_folder)) == kept
    assert minari.list_local_datasets() == {}

    played = _count_chunks(monkeypatch)
    spec = parse_name(MIX, 3000)
    build_dataset(spec, jobs=jobs, progress=False)
    assert played == [range(3_000_000, 3_000_001)]
    dataset = minari.load_dataset(spec.name)
    assert dataset.storage.metadata["checksum"] == built_3k["checksum"]
    assert dataset.storage.metadata["composition"] == built_3k["composition"]
    assert _chunk_files(datasets_folder) == []


def _start_build(policy_folder: Path, size: int) -> subprocess.Popen[bytes]:
    root = Path(package_file).parents[1]
    script = (
        "from pathlib import Path\n"
        "import spin_envs.behavior as behavior\n"
        f"behavior._policy_folder = lambda: Path({str(policy_folder)!r})\n"
        "from spin_d3rlpy.data import build_dataset, parse_name\n"
        f"build_dataset(parse_name({MIX!r}, {size}), jobs=2, progress=False)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "envs")])}
    return subprocess.Popen([sys.executable, "-c", script], env=env)


@pytest.mark.slow
@in_processes
def test_a_killed_build_goes_on_where_it_was(
    built_3k: dict[str, Any],
    datasets_folder: Path,
    policy_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = _start_build(policy_folder, 3000)
    deadline = time.monotonic() + 120
    while not _chunk_files(datasets_folder):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    n_kept = len(_chunk_files(datasets_folder))
    if n_kept == 3:
        pytest.skip("it was done with playing before it was killed")
    played = _count_chunks(monkeypatch)
    build_dataset(parse_name(MIX, 3000), jobs=2, progress=False)
    assert len(played) == 3 - n_kept
    rebuilt = minari.load_dataset(parse_name(MIX, 3000).name).storage.metadata
    assert rebuilt["checksum"] == built_3k["checksum"]
    folder = datasets_folder / "spin" / "cheetah-run-b3"
    assert sorted(p.name for p in folder.iterdir()) == [
        "random-medium-expert-3k-v0",
    ]


@pytest.mark.parametrize(
    "damage",
    [*(pytest.param(d, marks=pytest.mark.slow) for d in ("truncated", "empty")), "flipped"],
)
def test_a_damaged_chunk_and_those_after_it_are_played_again(
    damage: str, datasets_folder: Path, built_3k: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_after_two_chunks(monkeypatch)
    first = _chunk_files(datasets_folder)[0]
    content = bytearray(first.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    first.write_bytes(content[: {"truncated": 9000, "empty": 0}.get(damage)])
    played = _count_chunks(monkeypatch)
    build_dataset(parse_name(MIX, 3000), jobs=1, progress=False)
    assert len(played) == 3
    rebuilt = minari.load_dataset(parse_name(MIX, 3000).name).storage.metadata
    assert rebuilt["checksum"] == built_3k["checksum"]


def test_chunks_of_other_versions_are_not_used(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stop_after_two_chunks(monkeypatch)
    assert len(_chunk_files(datasets_folder)) == 2
    monkeypatch.setattr(builder, "__version__", "99.0")
    played = _count_chunks(monkeypatch)
    build_dataset(parse_name(MIX, 3000), jobs=1, progress=False)
    assert len(played) == 3
    assert _chunk_files(datasets_folder) == []
    leftover = list(datasets_folder.rglob(".*.chunks-*"))
    assert leftover == []


@in_processes
def test_an_error_in_a_worker_process_reaches_the_caller() -> None:
    policy = load_behavior_policy("finger-spin-b3-expert")  # of another observation size
    chunks = [Chunk("spin/cheetah-run-v0", {"bins": 3}, policy, range(i, i + 1)) for i in range(2)]
    with pytest.raises(ValueError, match="shape") as error:
        list(workers.play_chunks(chunks, 2))
    assert "worker process" in error.value.__notes__[0]


@in_processes
def test_a_worker_process_that_dies_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import os, sys\nsys.stdin.buffer.read(1)\nos._exit(7)\n")
    monkeypatch.setattr(workers, "_SCRIPT", script)
    chunks = [Chunk("spin/cheetah-run-v0", {"bins": 3}, None, range(i, i + 1)) for i in range(2)]
    with pytest.raises(RuntimeError, match=r"exit code 7.*jobs=1"):
        list(workers.play_chunks(chunks, 2))


def test_what_a_killed_build_left_is_removed_by_the_next(datasets_folder: Path) -> None:
    folder = datasets_folder / "spin" / "cheetah-run-b3"
    leftover = folder / ".medium-1k-v0.staging-killed" / "data"
    leftover.mkdir(parents=True)
    (leftover / "main_data.hdf5").write_bytes(b"half")
    other = folder / ".medium-2k-v0.staging-other-name"
    other.mkdir()
    build_dataset(parse_name(MEDIUM, 1000), jobs=1, progress=False)
    assert sorted(p.name for p in folder.iterdir()) == [
        other.name,
        "medium-1k-v0",
    ]


def test_two_builds_of_one_name_build_it_once(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    original = builder._write_dataset

    def write(*args: Any) -> None:
        writes.append(args)
        original(*args)

    monkeypatch.setattr(builder, "_write_dataset", write)
    spec = parse_name(MEDIUM, 1000)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: build_dataset(spec, jobs=1, progress=False), range(2)))
    assert len(writes) == 1
    assert minari.load_dataset(spec.name).total_steps == 1000


def test_without_locks_the_loser_takes_the_winners_dataset(
    built_folder: Path, datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_name(MEDIUM, 1000)

    def won_by_another(*args: Any) -> None:
        args[1].data.mkdir()
        monkeypatch.setattr(builder, "_write_dataset", original)
        build_dataset(spec, jobs=1, progress=False)

    original = builder._write_dataset
    monkeypatch.setattr(builder, "_write_dataset", won_by_another)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    build_dataset(spec, jobs=1, progress=False)
    assert minari.load_dataset(spec.name).total_steps == 1000
    folder = datasets_folder / "spin" / "cheetah-run-b3"
    assert sorted(p.name for p in folder.iterdir()) == [
        "medium-1k-v0",
    ]


def test_a_missing_simulator_is_reported_as_the_environments_do(
    datasets_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        load_dataset(MEDIUM, size=1000, progress=False)
    assert _files(datasets_folder) == []


def test_jobs_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        build_dataset(parse_name(MEDIUM, 1000), jobs=0)


def test_progress_is_shown_unless_turned_off(capfd: pytest.CaptureFixture[str]) -> None:
    build_dataset(parse_name(MEDIUM, 1000), jobs=1)
    shown = capfd.readouterr().err
    assert "Building spin/cheetah-run-b3/medium-1k-v0" in shown
    assert re.search(r"1000/1000 \[\d\d:\d\d<\d\d:\d\d, .*step", shown)  # spent<left
    build_dataset(parse_name(MEDIUM, 2000), jobs=1, progress=False)
    assert capfd.readouterr().err == ""


def test_environments_are_kept_between_chunks_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = gymnasium.make_vec

    def make_vec(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["num_envs"])
        return original(*args, **kwargs)

    monkeypatch.setattr(gymnasium, "make_vec", make_vec)
    playing._environments.cache_clear()
    for first in (0, 2):
        playing.play(Chunk("spin/cheetah-run-v0", {"bins": 3}, None, range(first, first + 2)))
    assert made == [2]
    playing.play(Chunk("spin/cheetah-run-v0", {"bins": 3}, None, range(3)))
    assert made == [2, 3]


def test_a_dataset_too_small_for_its_level_is_built_with_a_warning() -> None:
    spec = parse_name(MIX, 1000)
    with pytest.warns(UserWarning, match=r"no data of medium, expert\. Take size=3000"):
        build_dataset(spec, jobs=1, progress=False)
    assert minari.load_dataset(spec.name).total_episodes == 1


@pytest.mark.slow
def test_the_maze_needs_no_simulator(datasets_folder: Path, policy_folder: Path) -> None:
    """In a process where dm_control and MuJoCo are not installed."""
    output = run_python(
        "import importlib.metadata, sys\n"
        "hidden = ('mujoco', 'dm_control')\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in hidden:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "installed = importlib.metadata.version\n"
        "def version(name):\n"
        "    if name in hidden:\n"
        "        raise importlib.metadata.PackageNotFoundError(name)\n"
        "    return installed(name)\n"
        "importlib.metadata.version = version\n"
        "from pathlib import Path\n"
        "import spin_envs.behavior as behavior\n"
        "behavior._policy_folder = lambda: Path(sys.argv[1])\n"
        "from spin_d3rlpy import FactoredBC, LockstepEvaluator, load_dataset\n"
        "dataset, env = load_dataset('spin/maze-a3/medium-v0', size=1000, jobs=1, progress=False)\n"
        "algo = FactoredBC(device='cpu:0')\n"
        "algo.fit(dataset, n_steps=2, show_progress=False)\n"
        "LockstepEvaluator(env, n_trials=1)(algo, dataset)\n"
        "try:\n"
        "    load_dataset('spin/cheetah-run-b3/medium-v0', size=1000, progress=False)\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n",
        str(policy_folder),
    )
    last = output.splitlines()[-1]
    assert re.match("MissingDependencyError Control suite environments need dm_control", last)
    versions = minari.load_dataset("spin/maze-a3/medium-1k-v0").storage.metadata["provenance"]
    assert set(versions["versions"]) == {"spin-d3rlpy", "numpy", "gymnasium", "minari"}
