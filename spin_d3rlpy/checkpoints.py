"""Checkpoints from which an interrupted run goes on as if nothing had happened.

A file holds everything a run depends on (weights, optimizers, counters, random numbers) as torch
saves it, behind a line with the format's version and a checksum. It is written beside its place
and moved there, so that a kill at any moment leaves either the old file or the new one. Nothing
in it is ever executed: it is loaded with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spin_d3rlpy.distributed import Processes, SingleProcess
from spin_d3rlpy.errors import InvalidCheckpointError

MAGIC = "spin-d3rlpy checkpoint"
VERSION = 1
KEPT = 2  # the newest, and the one before it in case the newest is damaged
State = dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Where several processes train one model, process 0 writes and reads the files, and all have to
    call the same methods at the same steps. A file then holds everybody's random numbers, and of
    the rest process 0's, which is the others' too but for the means in their logs.

    Args:
        folder: where they are; created if missing.
        interval: steps between them.
        identity: JSON-like values that tell the run from others (configuration, dataset); only a
            checkpoint with the same identity is resumed from.
        shared_state: returns what every checkpoint holds beside its stage's own state.
        processes: those that train the model.

    Raises:
        ValueError: an interval below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        interval: int,
        identity: State,
        shared_state: Callable[[], State],
        processes: Processes | None = None,
    ) -> None:
        if interval < 1:
            raise ValueError(f"Expected checkpoint_interval of at least 1, got {interval}.")
        self.folder = Path(folder)
        self._processes = processes or SingleProcess()
        self._interval = interval
        self._identity = {**identity, "processes": self._processes.count}
        self._shared_state = shared_state
        self._resumed: State | None = None
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}  # what handled signals before

    # -- going on --------------------------------------------------------------------------

    def start(self, resume: bool) -> State | None:
        """Returns the newest checkpoint's shared state, or None if the run starts from nothing.

        Raises:
            InvalidCheckpointError: no checkpoint can be read, they are another run's, or there
                are some although `resume` is False.
        """
        self._resumed = self._processes.from_first(lambda: self._newest(resume))
        return None if self._resumed is None else self._resumed["shared"]

    def _newest(self, resume: bool) -> State | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for partial in self.folder.glob(".*.partial"):  # of a run that was killed while writing
            partial.unlink()
        paths = self._paths()
        if not paths:
            return None
        if not resume:
            raise InvalidCheckpointError(
                f"{self.folder} holds checkpoints of an earlier run. Pass resume=True to go on "
                "from them, or another checkpoint_dir."
            )
        problems = []
        for path in reversed(paths):
            try:
                content = read_checkpoint(path)
            except InvalidCheckpointError as error:
                problems.append(str(error))
                continue
            if content["identity"] != self._identity:
                raise InvalidCheckpointError(
                    f"{path} is of another run: {_difference(content['identity'], self._identity)}."
                    " Use the configuration and data it was made with, or another checkpoint_dir."
                )
            if problems:
                warnings.warn(
                    f"{' '.join(problems)} The one before it, {path.name}, is used.", stacklevel=2
                )
            return content
        raise InvalidCheckpointError(f"{' '.join(problems)} Remove {self.folder} to start anew.")

    @property
    def stage(self) -> str | None:
        """Stage of the checkpoint that `start` found."""
        return None if self._resumed is None else str(self._resumed["stage"])

    def resume(self, stage: str) -> State | None:
        """Returns the state of `stage` if the run was in it, with random numbers set back."""
        if self._resumed is None or self.stage != stage:
            return None
        content, self._resumed = self._resumed, None
        set_random_state(content["random"][self._processes.rank])
        state: State = content["state"]
        return state

    # -- saving ----------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether files are this process's business."""
        return self._processes.rank == 0

    def after_step(self, stage: str, step: int, state: Callable[[], State]) -> None:
        """Saves if a checkpoint is due; after an interrupt saves and lets it take its course."""
        if self._signal is not None or step % self._interval == 0:
            self.save(stage, step, state())
        self._deliver()

    def save(self, stage: str, step: int, state: State) -> None:
        """Writes a checkpoint and removes those that are no longer needed."""
        content = {
            "identity": self._identity,
            "stage": stage,
            "step": step,
            "shared": self._shared_state(),
            "state": state,
            "random": self._processes.gather(random_state()),
        }
        if not self.writes:
            return
        write_checkpoint(self.folder / f"{stage}_{step:010d}.ckpt", content)
        for path in self._paths()[:-KEPT]:
            path.unlink()

    def _deliver(self) -> None:
        """Lets a signal that was held back do what it would have done."""
        if self._signal is not None:
            number, self._signal = self._signal, None
            signal.signal(number, self._handlers[number])
            signal.raise_signal(number)

    @contextlib.contextmanager
    def saving_on_interrupt(self) -> Iterator[None]:
        """Holds back SIGINT and SIGTERM until `after_step`; a second one acts at once.

        Signals can be handled in the main thread only; elsewhere this does nothing. Neither does
        it with several processes, which a signal reaches at different steps.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or self._processes.count > 1:
            yield
            return

        def remember(number: int, _frame: Any) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt
            self._signal = number

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            # None: a handler that is not Python's, and that Python cannot set again.
            self._handlers[number] = signal.signal(number, remember) or signal.SIG_DFL
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, self._handlers[number])
            self._deliver()  # one that came after the last step

    def _paths(self) -> list[Path]:
        # "pretraining" comes before "training", also in the alphabet.
        return sorted(self.folder.glob("*.ckpt"))


def write_checkpoint(path: Path, content: State) -> None:
    """Writes a file that `read_checkpoint` reads, in one step."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getbuffer()
    header = f"{MAGIC} {VERSION} {hashlib.sha256(payload).hexdigest()}\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as f:
            f.write(header.encode())
            f.write(payload)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> State:
    """Reads a checkpoint, its tensors on the CPU.

    Raises:
        InvalidCheckpointError: it is damaged, of another version or no checkpoint.
    """
    header, _, payload = path.read_bytes().partition(b"\n")
    words = header.decode(errors="replace").split()
    if " ".join(words[:-2]) != MAGIC:
        raise InvalidCheckpointError(f"{path} is not a checkpoint of spin-d3rlpy.")
    if words[-2] != str(VERSION):
        raise InvalidCheckpointError(
            f"{path} has format version {words[-2]}, this spin-d3rlpy reads {VERSION}."
        )
    if words[-1] != hashlib.sha256(payload).hexdigest():
        raise InvalidCheckpointError(f"{path} is damaged: its checksum is wrong.")
    try:
        content: State = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise InvalidCheckpointError(f"{path} cannot be read: {error}.") from error
    return content


def _difference(found: State, expected: State) -> str:
    names = [key for key in expected if found.get(key) != expected[key]]
    parts = [f"{key} was {found.get(key)!r}, is {expected[key]!r}" for key in names]
    return "; ".join(parts) or "it has other fields"


def random_state() -> State:
    """Returns the state of all random numbers of torch (all devices), NumPy and Python."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "python": random.getstate(),
    }


def set_random_state(state: State) -> None:
    """Inverse of `random_state`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (name, keys.numpy().astype(np.uint32), position, has_gauss, gauss)
    )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
