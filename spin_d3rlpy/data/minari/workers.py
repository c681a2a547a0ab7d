"""Worker processes that play episodes with the same arithmetic on every processor."""

from __future__ import annotations

import functools
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from spin_d3rlpy.data.minari.playing import Chunk
from spin_envs.rollout import EpisodeRecord

_SCRIPT = Path(__file__).with_name("playing.py")
_AVX2 = {"AVX2", "X86_V3"}  # as NumPy 1 and 2 call it
_AVX512 = ("AVX512", "X86_V4")


def default_jobs() -> int:
    """Returns the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environment() -> dict[str, str]:
    """Returns environment variables for identical arithmetic on all x86-64 processors with AVX2.

    OpenBLAS and NumPy choose kernels by the processor, and kernels differ in the last bit, which
    the simulation soon magnifies. Other processors' arithmetic is recorded, see `arithmetic`.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    simd = np.show_config("dicts")["SIMD Extensions"]
    present, absent = simd.get("found", []), simd.get("not found", [])
    if _AVX2.intersection(present):
        env["OPENBLAS_CORETYPE"] = "Haswell"
        wide = [name for name in (*present, *absent) if name.startswith(_AVX512)]
        env["NPY_DISABLE_CPU_FEATURES"] = " ".join(wide)
        env.pop("NPY_ENABLE_CPU_FEATURES", None)  # NumPy takes one of the two
    return env


def play_chunks(chunks: Iterable[Chunk], jobs: int) -> Generator[list[EpisodeRecord]]:
    """Yields each chunk's episodes, in order, at most a few chunks ahead of the consumer."""
    remaining = iter(chunks)
    first = list(islice(remaining, jobs))
    with closing(Workers(len(first))) as workers:
        pending: deque[Future[list[EpisodeRecord]]] = deque()
        for chunk in chain(first, remaining):
            # As fields: workers have the class under another module name.
            pending.append(workers.submit("play", vars(chunk)))
            if len(pending) > jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@functools.cache
def worker_arithmetic() -> list[str]:
    """Returns the workers' `arithmetic`, see `collect`."""
    with closing(Workers(1)) as workers:
        answer: list[str] = workers.submit("arithmetic", {}).result()
    return answer


class WorkerEndedError(RuntimeError):
    """A worker process ended during a request, so that the cause is not known."""


class Workers:
    """Worker processes, each driven by one thread at a time; output of quiet ones is discarded.

    (multiprocessing would run the user's script again, and so need a guard in it.)
    """

    def __init__(self, n: int, quiet: bool = False) -> None:
        env = worker_environment()
        self._threads = ThreadPoolExecutor(max(n, 1), thread_name_prefix="dataset-worker")
        self._processes = [
            subprocess.Popen(
                # -P: the script's folder must not shadow modules of other packages.
                [sys.executable, "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if quiet else None,
                env=env,
            )
            for _ in range(n)
        ]
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._free.put(process)

    def submit(self, verb: str, fields: dict[str, Any]) -> Future[Any]:
        return self._threads.submit(self._request, (verb, fields))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()  # closes the pipes and waits

    def _request(self, request: tuple[str, dict[str, Any]]) -> Any:
        process = self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            reply = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            advice = "If memory is short, build with fewer processes (jobs=1)."
            raise WorkerEndedError(
                f"A worker process ended unexpectedly (exit code {process.wait()})."
                + (f" {advice}" if request[0] == "play" else "")
            ) from error
        finally:
            self._free.put(process)
        if isinstance(reply, Exception):
            raise reply
        return reply
