"""Experiments on a real Ray cluster of this machine."""

from __future__ import annotations

import csv
import gc
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from examples.paper.engines import LocalEngine, RayEngine
from examples.paper.grid import is_done, run_grid
from examples.paper.job import ERROR, Job
from examples.paper.specs import SCALES, Method
from spin_d3rlpy.data import load_dataset

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # Ray's own start takes longer than its patience on a busy machine

MAZE, SIZE = "spin/maze-a3/medium-v0", 2_000
LONG = Job(
    "train",
    MAZE,
    SIZE,
    algorithm="FactoredIQL",
    fields={"batch_size": 16},
    n_steps=2_000,
    n_steps_per_epoch=1_000,
    episodes=2,
)


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        load_dataset(MAZE, size=SIZE, progress=False)
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
        yield
        # Ray leaves its processes to themselves, which Python warns of.
        started = [thing for thing in gc.get_objects() if type(thing) is subprocess.Popen]
        ray.shutdown()
        for process in started:
            process.wait(timeout=60)


def _returns(root: Path, job: Job) -> list[str]:
    with (root / job.name / "run" / "curve.csv").open() as file:
        return [row["return"] for row in csv.DictReader(file)]


def test_a_job_whose_worker_is_killed_goes_on_and_ends_as_if_it_was_not(tmp_path: Path) -> None:
    engine = RayEngine()
    assert engine.n_slots == 2
    grid = threading.Thread(target=run_grid, args=([LONG], tmp_path / "ray", engine, False))
    grid.start()
    checkpoints = tmp_path / "ray" / LONG.name / "run" / "checkpoints"
    while not (checkpoints.exists() and any(checkpoints.iterdir())):
        assert grid.is_alive()
        time.sleep(0.05)
    [worker] = [p for p in psutil.process_iter(["cmdline"]) if "_logged_work" in str(p.cmdline())]
    worker.kill()
    assert not is_done(tmp_path / "ray", LONG)
    grid.join()
    assert is_done(tmp_path / "ray", LONG)
    assert not run_grid([LONG], tmp_path / "local", LocalEngine(1), False)
    assert _returns(tmp_path / "ray", LONG) == _returns(tmp_path / "local", LONG)


def test_jobs_wait_for_those_they_need_and_failures_are_noted(tmp_path: Path) -> None:
    scale = SCALES["smoke"]
    spin = Method("SPIN", "SPINIQL").job(MAZE, 0, scale, early=True, device="cpu:0")
    bad = Job("train", MAZE, SIZE, algorithm="NoSuchAlgorithm", n_steps=1, n_steps_per_epoch=1)
    engine = RayEngine()
    failed = run_grid([spin, bad], tmp_path, engine, False)
    assert [job.name for job in failed] == [bad.name]
    assert "NoSuchAlgorithm" in (tmp_path / bad.name / ERROR).read_text()
    assert is_done(tmp_path, spin)


def test_why_a_machine_cannot_run_a_job_is_noted(tmp_path: Path) -> None:
    def worker(root: Path, name: str, threads: int) -> None:
        raise ModuleNotFoundError("No module named 'spin_d3rlpy'")

    engine = RayEngine()
    engine._task = ray.remote(worker)
    assert run_grid([LONG], tmp_path, engine, False) == [LONG]
    assert "No module named 'spin_d3rlpy'" in (tmp_path / LONG.name / ERROR).read_text()


def test_more_than_the_cluster_has_is_refused() -> None:
    with pytest.raises(ValueError, match="a job needs"):
        RayEngine(cpus=3)
    with pytest.raises(ValueError, match="a job needs"):
        RayEngine(gpus=1)
