from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

from examples.paper import grid, worker
from examples.paper.catalog import EXPERIMENTS, PaperSettings
from examples.paper.engines import LocalEngine, visible_gpu
from examples.paper.grid import is_done, run_grid, with_requirements
from examples.paper.job import LOG, Job
from examples.paper.specs import SCALES, Method, Scale, pretraining_job
from examples.paper.worker import run_job
from spin_d3rlpy import algos
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.errors import DatasetNotFoundError
from spin_d3rlpy.policies import stages
from spin_d3rlpy.runs import training as training_run
from spin_d3rlpy.runs.settings import create_algorithm, train_settings
from spin_envs import reference_scores

SMOKE = dataclasses.replace(SCALES["smoke"], n_steps=6, n_evaluations=3)
MAZE = "spin/maze-a3/medium-expert-v0"


def maze_data(*_: Any, **__: Any) -> tuple[DeviceReplayBuffer, gymnasium.Env[Any, Any]]:
    """Random data in the maze's spaces, and the maze, whose episodes are quick."""
    rng = np.random.default_rng(0)
    lengths = [11] * 20
    n = sum(lengths)
    data = StackedEpisodes(
        observations=rng.random((n + 20, 2), dtype=np.float32),
        actions=rng.integers(2, size=(n, 3)).astype(np.int8),
        rewards=rng.normal(size=n).astype(np.float32),
        terminals=np.zeros(n, np.float32),
        lengths=lengths,
        nvec=[2, 2, 2],
    )
    return DeviceReplayBuffer(data), gymnasium.make("spin/maze-v0", actuators=3)


@pytest.fixture
def _maze(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "load_dataset", maze_data)
    monkeypatch.setattr(training_run, "_load", lambda *_: maze_data())
    monkeypatch.setattr(grid, "load_dataset", maze_data)
    monkeypatch.setattr("examples.paper.settings.CHECKPOINT_INTERVAL", 1)


maze = pytest.mark.usefixtures("_maze")


class InProcess:
    """An engine that does a job when it is started."""

    n_slots = 2

    def __init__(self) -> None:
        self.order: list[str] = []

    def start(self, root: Path, name: str, slot: int) -> InProcess:
        self.order.append(name.split("_")[0])
        (root / name / LOG).write_text(f"log of {name}")
        try:
            run_job(root, name)
        except RuntimeError as error:
            (root / name / LOG).write_text(str(error))
        return self

    def poll(self) -> int | None:
        return 0

    def kill(self) -> None:
        raise AssertionError("nothing runs")


def run(root: Path, *wanted: Job) -> tuple[list[Job], list[str]]:
    engine: Any = InProcess()
    failed = run_grid(wanted, root, engine, show_progress=False, poll_seconds=0.0)
    return failed, engine.order


def training(label: str = "SPIN", algorithm: str = "SPINIQL", **fields: Any) -> Job:
    return Method(label, algorithm, **fields).job(MAZE, 0, SMOKE, False, "cpu:0")


# -- what experiments are made of ------------------------------------------------------------


@pytest.mark.parametrize(
    "scale", [pytest.param(s, marks=() if s == "cpu" else pytest.mark.slow) for s in SCALES]
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "improvement" else pytest.mark.slow) for n in EXPERIMENTS],
)
def test_every_cell_can_be_configured(name: str, scale: str) -> None:
    cells = EXPERIMENTS[name].jobs(SCALES[scale], [0], "cpu:0")
    assert cells
    for dataset, _, job in cells:
        assert reference_scores(dataset) is not None
        assert Job.from_json(json.loads(json.dumps(dataclasses.asdict(job)))) == job
        if job.kind == "train":
            assert job.algorithm is not None
            if job.seconds is None:
                create_algorithm(job.algorithm, job.fields)
                assert job.n_steps % job.n_steps_per_epoch == 0
            else:
                kept = {k: getattr(job, k) for k in ("algorithm", "fields", "recipe", "seconds")}
                train_settings({"dataset": job.dataset, **kept}, "job")
        if job.asm is not None:
            create_algorithm("SPINIQL", job.asm.fields)


def test_the_paper_scale_is_the_configs_defaults() -> None:
    for algorithm in ("SPINIQL", "SAINTIQL", "FactoredIQL", "AutoregressiveIQL"):
        job = Method("x", algorithm).job(MAZE, 0, SCALES["paper"], False, "cpu:0")
        built = create_algorithm(algorithm, job.fields).config
        assert built == getattr(algos, algorithm)().config
        assert job.n_steps == built.n_steps
        assert (job.n_steps_per_epoch, job.episodes) == (5_000, 10)


def test_cells_of_one_dataset_and_seed_share_their_pretraining() -> None:
    cells = [
        job
        for name in ("returns", "early", "awac", "bcq", "asm-epochs")
        for _, _, job in EXPERIMENTS[name].jobs(SMOKE, [0], "cpu:0", ["cheetah-run-b3/medium-e"])
    ]
    everything = with_requirements(cells)
    assert sum(job.kind == "pretrain" for job in everything) == 1
    assert len({job.name for job in everything}) == len(everything)


def test_anything_that_changes_a_result_changes_the_folder() -> None:
    job = training()
    for change in ({"seed": 1}, {"n_steps": 3}, {"mode": "greedy"}, {"asm_epoch": 0}):
        assert dataclasses.replace(job, **change).name != job.name
    other = training(pretraining={"mask_prob_max": 1.0})
    assert other.name != job.name


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no 'retruns'\. Near matches: returns"):
        PaperSettings(["early", "retruns"]).complete()
    with pytest.raises(ValueError, match=r"no 'gpu'\. Near matches: cpu"):
        PaperSettings(["early"], "gpu").complete()


# -- running them ----------------------------------------------------------------------------


@maze
def test_needed_jobs_run_first_and_nothing_runs_twice(tmp_path: Path) -> None:
    probe = Job("probe", MAZE, asm=training().asm, fields={"probe": SMOKE.probe}, asm_epoch=0)
    wanted = [training(), training("F", "FactoredIQL"), probe]
    failed, order = run(tmp_path, *wanted)
    assert failed == []
    assert order == ["pretrain", "SPINIQL", "FactoredIQL", "probe"]
    result = json.loads((tmp_path / wanted[0].name / "result.json").read_text())
    assert result["pretraining_step"] == 4
    assert result["update_seconds"] > 0
    rows = (tmp_path / wanted[0].name / "run" / "curve.csv").read_text().split()
    assert [row.split(",")[0] for row in rows] == ["step", "0", "2", "4", "6"]
    machine = json.loads((tmp_path / wanted[0].name / "machine.json").read_text())
    assert machine["versions"]["torch"]
    assert run(tmp_path, *wanted) == ([], [])


@maze
def test_a_failure_is_noted_and_stops_only_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(*_: Any, **__: Any) -> None:
        raise RuntimeError("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(stages, "pretrain", pretrain)
        failed, order = run(tmp_path, training(), training("F", "FactoredIQL"))
    assert [job.kind for job in failed] == ["pretrain", "train"]
    assert order == ["pretrain", "FactoredIQL"]
    error = (tmp_path / failed[0].name / "error.txt").read_text()
    assert "the disk is on fire" in error
    failed, order = run(tmp_path, training(), training("F", "FactoredIQL"))
    assert (failed, order) == ([], ["pretrain", "SPINIQL"])
    assert not list(tmp_path.glob("*/error.txt"))


@maze
def test_a_dataset_that_cannot_be_built_stops_only_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **options: Any) -> Any:
        if name != MAZE:
            raise DatasetNotFoundError(f"No policy has learned {name}.")
        return maze_data()

    f = Method("F", "FactoredIQL")
    unknown = f.job("spin/walker-walk-b3/expert-v0", 0, SMOKE, False, "cpu:0")
    with monkeypatch.context() as patch:
        patch.setattr(grid, "load_dataset", load)
        failed, order = run(tmp_path, unknown, training("F", "FactoredIQL"))
    assert failed == [unknown]
    assert order == ["FactoredIQL"]
    assert "No policy has learned" in (tmp_path / unknown.name / "error.txt").read_text()
    assert run(tmp_path, unknown) == ([], ["FactoredIQL"])


class CrashError(RuntimeError):
    """Stands for whatever ends a worker."""


@pytest.mark.slow
@maze
@pytest.mark.parametrize("crash", [3, 9])  # in pre-training, in training
def test_a_stopped_job_goes_on_and_ends_like_an_uninterrupted_one(
    crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curve(root: Path) -> list[str]:
        rows = (root / training().name / "run" / "curve.csv").read_text().split()
        columns = rows[0].split(",")
        kept = [columns.index(name) for name in ("step", "return", "return_std", "greedy_return")]
        return [str([row.split(",")[i] for i in kept]) for row in rows]

    run(tmp_path / "whole", training())
    calls = 0
    original = DeviceReplayBuffer.sample_index

    def sample(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == crash:
            raise CrashError
        return original(self, *args)

    monkeypatch.setattr(DeviceReplayBuffer, "sample_index", sample)
    failed, _ = run(tmp_path / "stopped", training())
    assert failed
    assert list((tmp_path / "stopped").glob("*/run/checkpoints/*.ckpt"))
    assert run(tmp_path / "stopped", training())[0] == []
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


def test_an_interrupt_ends_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    class Endless:
        n_slots = 1

        def start(self, root: Path, name: str, slot: int) -> Endless:
            return self

        def poll(self) -> None:
            raise KeyboardInterrupt

        def kill(self) -> None:
            killed.append(1)

    monkeypatch.setattr(grid, "load_dataset", maze_data)
    with pytest.raises(KeyboardInterrupt):
        run_grid([training("F", "FactoredIQL")], tmp_path, cast("Any", Endless()), False, 0.0)
    assert killed == [1]


@pytest.mark.slow
def test_a_worker_is_a_process_whose_log_tells_what_went_wrong(tmp_path: Path) -> None:
    job = Job("train", "spin/no-such-b3/medium-v0", algorithm="FactoredIQL")
    grid._prepare(tmp_path / job.name, job)
    process = LocalEngine(1).start(tmp_path, job.name, 0)
    assert process.wait(timeout=120) != 0
    assert not is_done(tmp_path, job)
    grid._note_failure(tmp_path / job.name, 1)
    assert "DatasetNotFoundError" in (tmp_path / job.name / "error.txt").read_text()


def test_pretraining_jobs_differ_by_objective() -> None:
    plain = pretraining_job(MAZE, 0, SMOKE, "cpu:0")
    other = pretraining_job(MAZE, 0, SMOKE, "cpu:0", {"objective": "variational"})
    assert plain.name != other.name


def test_seconds_name_the_same_job_however_they_are_written() -> None:
    names = {
        Method("F", "FactoredIQL").timed_job(MAZE, 0, scale, "cpu:0").name
        for scale in (Scale(maze_seconds=2), Scale(maze_seconds=2.0))
    }
    assert len(names) == 1


def test_a_job_sees_one_of_the_gpus_that_its_parent_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpu(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8f5a")
    assert [visible_gpu(0), visible_gpu(1)] == ["3", "GPU-8f5a"]
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=3, GPU-8f5a, got 2"):
        visible_gpu(2)
    # Whichever it is, the job finds it first: reports find the job whatever GPU it ran on.
    for device in ("cuda", "cuda:0", "cuda:1"):
        jobs = PaperSettings(["maze"], "smoke", device=device).jobs()
        assert {job.device for job in jobs} == {"cuda:0"}
