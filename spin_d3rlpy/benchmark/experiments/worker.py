"""A worker process: `python -m spin_d3rlpy.benchmark.experiments.worker ROOT NAME THREADS`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog

from spin_d3rlpy.benchmark.experiments.jobs import run_job, set_threads

if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    set_threads(int(sys.argv[3]))
    run_job(Path(sys.argv[1]), sys.argv[2])
