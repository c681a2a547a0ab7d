"""Runs jobs in parallel, in order of their dependencies: processes here, or a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.data.workers import default_jobs
from spin_d3rlpy.experiments.jobs import ERROR, LOG, RESULT, Job, work
from spin_d3rlpy.progress import progress_bar
from spin_d3rlpy.reports import write_json


def visible_gpu(number: int) -> str:
    """Returns the name of a GPU visible to this process, by torch's number."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return str(number)
    names = [name.strip() for name in allowed.split(",") if name.strip()]
    if number >= len(names):
        raise ValueError(
            f"Expected one of the GPUs of CUDA_VISIBLE_DEVICES={allowed}, got {number}."
        )
    return names[number]


class LocalEngine:
    """Processes on this machine."""

    def __init__(self, n_workers: int | None = None, devices: Sequence[int] = ()) -> None:
        self._devices = list(devices)
        self._cores = default_jobs()
        self.n_slots = n_workers or len(self._devices) or self._cores

    def start(self, root: Path, name: str, slot: int) -> subprocess.Popen[bytes]:
        threads = str(max(1, self._cores // self.n_slots))
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        if self._devices:
            env["CUDA_VISIBLE_DEVICES"] = visible_gpu(self._devices[slot % len(self._devices)])
        with (root / name / LOG).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", work.__module__, str(root), name, threads],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


class RayEngine:
    """Tasks of a Ray cluster, each job in its own process.

    The jobs' folder and Minari's datasets must be on a file system shared by all machines, and this
    package must be installed on them. A job whose worker or machine dies is restarted elsewhere, up
    to three times, from its checkpoint.
    """

    def __init__(self, address: str | None = None, cpus: int = 1, gpus: int = 0) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError('Ray is not installed: pip install "spin-d3rlpy[ray]".') from error
        self._ray: Any = ray
        self._needs = {"CPU": cpus, "GPU": gpus}
        if not self._ray.is_initialized():
            self._ray.init(address=address, log_to_driver=False, include_dashboard=False)
        if self.n_slots == 0:
            raise ValueError(
                f"The Ray cluster has {self._ray.cluster_resources()}, a job needs {self._needs}. "
                "Add machines, or request less."
            )
        # A process may not do two jobs: what one leaves in it could change the other's results.
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1)(_logged_work)

    @property
    def n_slots(self) -> int:
        has = self._ray.cluster_resources()
        return min(int(has.get(what, 0) // need) for what, need in self._needs.items() if need)

    def start(self, root: Path, name: str, slot: int) -> RayTask:
        reference = self._task.remote(root.absolute(), name, self._needs["CPU"])
        return RayTask(self._ray, reference, root / name / LOG)


class RayTask:
    """A job on a Ray cluster. Errors of Ray, such as a missing package, are logged to `log`."""

    def __init__(self, ray: Any, reference: Any, log: Path) -> None:
        self._ray, self._reference, self._log = ray, reference, log

    def poll(self) -> int | None:
        """Returns 0 or 1 (failed), or None while it runs."""
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            with self._log.open("a") as log:
                print(error, file=log)
            return 1
        return 0

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def _logged_work(root: Path, name: str, threads: int) -> None:
    with (
        (root / name / LOG).open("a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        work(root, name, threads)


Engine: TypeAlias = LocalEngine | RayEngine
Running: TypeAlias = "subprocess.Popen[bytes] | RayTask"


def with_requirements(jobs: Iterable[Job]) -> list[Job]:
    """Returns jobs and their requirements, each once, requirements first."""
    ordered: dict[str, Job] = {}
    for job in jobs:
        if job.asm is not None:
            ordered.setdefault(job.asm.name, job.asm)
        ordered.setdefault(job.name, job)
    return list(ordered.values())


def is_done(root: Path, job: Job) -> bool:
    """Whether a job has its result."""
    return (root / job.name / RESULT).exists()


def build_datasets(
    jobs: Iterable[Job], show_progress: bool = True
) -> dict[tuple[str, int | None], str]:
    """Builds the jobs' datasets with all cores; returns the errors of those that failed."""
    missing = {}
    for name, size in dict.fromkeys((job.dataset, job.size) for job in jobs):
        try:
            _, env = load_dataset(name, size=size, progress=show_progress)
            env.close()
        except Exception:  # whatever the error, other datasets' jobs must run
            missing[name, size] = traceback.format_exc()
    return missing


def run_grid(
    jobs: Iterable[Job],
    root: Path,
    engine: Engine | None = None,
    show_progress: bool = True,
    poll_seconds: float = 0.2,
) -> list[Job]:
    """Runs unfinished jobs and their requirements, resuming earlier attempts.

    A job that fails, or whose dataset cannot be built, leaves `error.txt` (the end of its log);
    jobs that depend on it are skipped, others continue. Returns those that failed or were skipped.
    """
    engine = engine or LocalEngine()
    everything = with_requirements(jobs)
    waiting = [job for job in everything if not is_done(root, job)]
    missing = build_datasets(waiting, show_progress)
    running: dict[int, tuple[Job, Running]] = {}
    failed: dict[str, Job] = {}
    done = len(everything) - len(waiting)
    bar = progress_bar("Jobs", "job", show_progress, total=len(everything), initial=done)
    for job in [j for j in waiting if (j.dataset, j.size) in missing]:
        waiting.remove(job)
        failed[job.name] = job
        _prepare(root / job.name, job)
        (root / job.name / ERROR).write_text(missing[job.dataset, job.size])
        bar.update()
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
            bar.set_postfix_str(f"{len(running)} running, {len(failed)} failed", refresh=False)
            bar.update(0)
            if running:
                time.sleep(poll_seconds)
    finally:  # an interrupt: they resume from their checkpoints next time
        for _, process in running.values():
            process.kill()
        bar.close()
    return list(failed.values())


def _prepare(folder: Path, job: Job) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)
    write_json(folder / "job.json", dataclasses.asdict(job))


def _note_failure(folder: Path, status: int) -> None:
    log = folder / LOG
    tail = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
    (folder / ERROR).write_text(f"exit status {status}\n" + "\n".join(tail) + "\n")
