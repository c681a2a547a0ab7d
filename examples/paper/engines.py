"""Where jobs run: processes on this machine, or a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from examples.paper.job import LOG
from examples.paper.worker import work
from spin_d3rlpy.data.minari.workers import default_jobs


def visible_gpu(number: int) -> str:
    """Returns the name of a GPU visible to this process, by torch's number.

    Raises:
        ValueError: this process sees no such GPU.
    """
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

    Raises:
        ImportError: Ray is not installed.
        ValueError: the cluster has less than one job needs.
    """

    def __init__(self, address: str | None = None, cpus: int = 1, gpus: int = 0) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError("Ray is not installed: pip install ray.") from error
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
