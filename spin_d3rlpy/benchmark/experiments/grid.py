"""Runs jobs in parallel, each in a process of its own, in the order that they need each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from spin_d3rlpy.benchmark.experiments.jobs import ERROR, RESULT, Job
from spin_d3rlpy.data import load_dataset

LOG = "log.txt"


class Running(Protocol):
    """A job that was started."""

    def poll(self) -> int | None:
        """Returns its exit status, or None while it runs."""

    def kill(self) -> None:
        """Ends it at once."""


class Engine(Protocol):
    """Where jobs run."""

    @property
    def n_slots(self) -> int:
        """How many run at once."""

    def start(self, root: Path, name: str, slot: int) -> Running:
        """Starts the job in `root / name`."""


class LocalEngine:
    """Processes on this machine.

    Args:
        n_workers: processes at once; for CPU jobs all cores if None, else one a GPU.
        devices: GPUs, of which each worker sees one.
    """

    def __init__(self, n_workers: int | None = None, devices: Sequence[int] = ()) -> None:
        self._devices = list(devices)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._cores = cores or 1
        self._n_slots = n_workers or (len(self._devices) or self._cores)

    @property
    def n_slots(self) -> int:
        """How many run at once."""
        return self._n_slots

    def start(self, root: Path, name: str, slot: int) -> subprocess.Popen[bytes]:
        """Starts `python -m spin_d3rlpy.benchmark.experiments.worker`."""
        threads = str(max(1, self._cores // self._n_slots))
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        if self._devices:
            env["CUDA_VISIBLE_DEVICES"] = str(self._devices[slot % len(self._devices)])
        with (root / name / LOG).open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "spin_d3rlpy.benchmark.experiments.worker",
                    str(root),
                    name,
                    threads,
                ],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


def with_requirements(jobs: Iterable[Job]) -> list[Job]:
    """Returns jobs and those they need, each once, needed ones first."""
    ordered: dict[str, Job] = {}
    for job in jobs:
        if job.asm is not None:
            ordered.setdefault(job.asm.name, job.asm)
        ordered.setdefault(job.name, job)
    return list(ordered.values())


def is_done(root: Path, job: Job) -> bool:
    """Whether a job has its result."""
    return (root / job.name / RESULT).exists()


def build_datasets(jobs: Iterable[Job], show_progress: bool = True) -> None:
    """Builds the datasets that jobs need, one after the other, each by all cores."""
    for name, size in dict.fromkeys((job.dataset, job.size) for job in jobs):
        _, env = load_dataset(name, size=size, progress=show_progress)
        env.close()


def run_grid(
    jobs: Iterable[Job],
    root: Path,
    engine: Engine | None = None,
    show_progress: bool = True,
    poll_seconds: float = 0.2,
) -> list[Job]:
    """Runs jobs that have no result yet, and what they need first.

    A job that fails leaves `error.txt` (the end of its log) and does not stop the others; those
    that need it are left out. Called again, it goes on where it was.

    Args:
        jobs: what to run.
        root: folder of the jobs' folders.
        engine: where they run; all of this machine's cores if None.
        show_progress: draw a bar with the time left.
        poll_seconds: how often jobs are looked after.

    Returns:
        The jobs that failed or could not be run.
    """
    engine = engine or LocalEngine()
    everything = with_requirements(jobs)
    waiting = [job for job in everything if not is_done(root, job)]
    build_datasets(waiting, show_progress)
    running: dict[int, tuple[Job, Running]] = {}
    failed: dict[str, Job] = {}
    bar = tqdm(
        total=len(everything),
        initial=len(everything) - len(waiting),
        desc="Jobs",
        disable=not show_progress,
    )
    try:
        while waiting or running:
            for slot, (job, process) in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                del running[slot]
                bar.update()
                if not is_done(root, job):
                    failed[job.name] = job
                    _note_failure(root / job.name, status)
            for job in [j for j in waiting if j.asm is not None and j.asm.name in failed]:
                waiting.remove(job)
                failed[job.name] = job
                bar.update()
            for slot in range(engine.n_slots):
                ready = next((j for j in waiting if j.asm is None or is_done(root, j.asm)), None)
                if slot in running or ready is None:
                    continue
                waiting.remove(ready)
                _prepare(root / ready.name, ready)
                running[slot] = (ready, engine.start(root, ready.name, slot))
            bar.set_postfix_str(f"{len(running)} running, {len(failed)} failed")
            if running:
                time.sleep(poll_seconds)
    finally:  # an interrupt: they go on from their checkpoints next time
        for _, process in running.values():
            process.kill()
        bar.close()
    return list(failed.values())


def _prepare(folder: Path, job: Job) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(job.to_json(), indent=1) + "\n")


def _note_failure(folder: Path, status: int) -> None:
    log = folder / LOG
    tail = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
    (folder / ERROR).write_text(f"exit status {status}\n" + "\n".join(tail) + "\n")
