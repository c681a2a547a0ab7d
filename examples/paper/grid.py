"""Runs jobs in parallel, in order of their dependencies."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from examples.paper.engines import Engine, LocalEngine, Running
from examples.paper.job import ERROR, LOG, RESULT, Job
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.files.atomic import write_text
from spin_d3rlpy.files.results import write_json
from spin_d3rlpy.training.progress import progress_bar


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
        write_text(root / job.name / ERROR, missing[job.dataset, job.size])
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
    write_text(folder / ERROR, f"exit status {status}\n" + "\n".join(tail) + "\n")
