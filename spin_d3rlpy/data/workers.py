"""A pool of worker processes that play chunks of episodes."""

from __future__ import annotations

import dataclasses
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

from spin_d3rlpy.data.collect import Chunk, ChunkPlayer
from spin_envs.rollout import EpisodeRecord

_SCRIPT = Path(__file__).with_name("collect.py")


def default_jobs() -> int:
    """Number of CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def play_chunks(chunks: Iterable[Chunk], jobs: int) -> Generator[list[EpisodeRecord]]:
    """Yields each chunk's episodes, in order, at most a few chunks ahead of the consumer.

    Args:
        chunks: what to play; taken one by one, so that the consumer can end them.
        jobs: number of processes; 1 plays in this one.

    Raises:
        RuntimeError: a worker process ended without a reply.
    """
    remaining = iter(chunks)
    first = list(islice(remaining, jobs))
    if len(first) <= 1:
        with closing(ChunkPlayer()) as player:
            for chunk in chain(first, remaining):
                yield player.play(chunk)
        return
    # Not multiprocessing: its spawned workers run the user's script again, so that a script
    # without an `if __name__ == "__main__"` guard could not load a dataset.
    with closing(_Workers(len(first))) as workers:
        pending: deque[Future[list[EpisodeRecord]]] = deque()
        for chunk in chain(first, remaining):
            pending.append(workers.submit(chunk))
            if len(pending) > jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class _Workers:
    """Worker processes, each driven by one thread at a time."""

    def __init__(self, n: int) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._processes = []
        self._free: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="dataset-worker")
        for _ in range(n):
            process = subprocess.Popen(
                # -P: the script's folder must not shadow modules of other packages.
                [sys.executable, "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
            )
            self._processes.append(process)
            self._free.put(process)

    def submit(self, chunk: Chunk) -> Future[list[EpisodeRecord]]:
        return self._threads.submit(self._play, chunk)

    def close(self) -> None:
        """Ends the processes, also while they are at work."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                # What is left in the buffer has no reader anymore.
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _play(self, chunk: Chunk) -> list[EpisodeRecord]:
        process = self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        fields = {f.name: getattr(chunk, f.name) for f in dataclasses.fields(chunk)}
        try:
            pickle.dump(fields, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            reply: list[EpisodeRecord] | Exception = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise RuntimeError(
                f"A worker process ended unexpectedly (exit code {process.wait()}). If memory is "
                "short, build with fewer processes (jobs=1)."
            ) from error
        finally:
            self._free.put(process)
        if isinstance(reply, Exception):
            raise reply
        return reply
