"""Runs that `test_kills` kills, in a module that their processes can import."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from examples.paper import grid, settings, worker
from examples.paper.job import RESULT, Job
from examples.paper.specs import SCALES, pretraining_job
from examples.paper.worker import run_job
from spin_d3rlpy.asm import load_asm
from tests.measure.kills import OUTCOME, digest
from tests.paper.test_experiments import MAZE, maze_data


def forgetful(folder: Path, doing: Any) -> None:
    """Ends with how often it was started."""
    doing.value = b"counting"
    starts = folder / "starts"
    with starts.open("a") as file:
        file.write("x")
    time.sleep(1.0)
    (folder / OUTCOME).write_text(starts.read_text())


def failing(_folder: Path, doing: Any) -> None:
    """Fails."""
    doing.value = b"failing"
    raise SystemExit(1)


def benchmark_jobs(folder: Path, doing: Any) -> None:
    """Pre-trains an ASM and trains SPIN-IQL on it, as two benchmark jobs."""
    torch.set_num_threads(1)
    vars(worker).update(load_dataset=maze_data)
    vars(settings).update(CHECKPOINT_INTERVAL=1)
    scale = SCALES["smoke"]
    asm = pretraining_job(MAZE, 0, scale, "cpu:0", {"max_updates": 40})
    training = Job(
        kind="train",
        dataset=MAZE,
        algorithm="SPINIQL",
        fields={"batch_size": 16, "transformer": scale.transformer},
        n_steps=40,
        n_steps_per_epoch=10,
        episodes=2,
        asm=asm,
    )
    results = []
    for job in (asm, training):
        doing.value = job.kind.encode()
        grid._prepare(folder / job.name, job)
        run_job(folder, job.name)
        result = json.loads((folder / job.name / RESULT).read_text())
        results.append({k: v for k, v in result.items() if "seconds" not in k})
    rows = (folder / training.name / "run" / "curve.csv").read_text().splitlines()
    curve = [row.split(",") for row in rows]
    timed = [i for i, name in enumerate(curve[0]) if "seconds" in name]
    outcome = {
        "results": results,
        "curve": [[v for i, v in enumerate(row) if i not in timed] for row in curve],
        "asm": {
            path.name: digest(load_asm(path).state_dict())
            for path in sorted((folder / asm.name).glob("*.safetensors"))
        },
    }
    (folder / OUTCOME).write_text(json.dumps(outcome))
