"""A worker process: `python -m spin_d3rlpy.experiments.worker ROOT NAME THREADS`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import structlog
import torch

from spin_d3rlpy.experiments.jobs import run_job


def work(root: Path, name: str, threads: int) -> None:
    """Does the job in `root / name` with its share of the machine's cores."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # Jobs that are given CPU seconds have those of one core.
    is_timed = json.loads((root / name / "job.json").read_text()).get("seconds") is not None
    torch.set_num_threads(1 if is_timed else threads)
    run_job(root, name)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
