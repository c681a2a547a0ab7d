"""Checkpoints from which an interrupted run resumes exactly.

After a line with format version and checksum, a file is torch's, loaded with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from spin_d3rlpy.errors import CheckpointWriteError, DivergenceError, InvalidCheckpointError
from spin_d3rlpy.files.atomic import atomic_write, write_errors
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.untrusted import require_memory
from spin_d3rlpy.training.distributed import Processes

MAGIC = "spin-d3rlpy checkpoint"
_MAX_HEADER = 200  # bytes of the first line
_BLOCK = 2**20  # bytes read at a time for the checksum
VERSION = 3  # 2 could hold a network and its average swapped
DEFAULT_KEEP = 2  # the newest, and the one before it in case the newest is damaged
ADVICE = (
    "The same run would diverge again: lower the learning rate, clip gradients or scale rewards "
    "and observations, and start again."
)
State = dict[str, Any]
_KEYS = {"identity", "stage", "step", "shared", "state", "random"}


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run in one folder, locked from `start` to the end of the context.

    With several processes, process 0 reads and writes the files and all processes call the same
    methods at the same steps. A file holds the random states of all processes and the rest of
    process 0, which differs from the others only in logged means.

    Args:
        folder: created if missing.
        interval: steps between checkpoints, of which the newest `keep` are kept.
        identity: JSON-like values; only a checkpoint with the same identity is resumed.
        shared_state: returns the part of the state that all stages share.
        processes: the processes that train the model.
        keep: number of checkpoints.

    Raises:
        ValueError: `interval` or `keep` is below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        interval: int,
        identity: State,
        shared_state: Callable[[], State],
        processes: Processes | None = None,
        keep: int = DEFAULT_KEEP,
    ) -> None:
        if interval < 1:
            raise ValueError(f"Expected checkpoint_interval of at least 1, got {interval}.")
        if keep < 1:
            raise ValueError(f"Expected keep_checkpoints of at least 1, got {keep}.")
        self.folder = Path(folder)
        self._keep = keep
        self._lock = contextlib.ExitStack()
        self._processes = processes or Processes()
        self._interval = interval
        self._identity = {**identity, "processes": self._processes.count}
        self._shared_state = shared_state
        self._resumed: State | None = None
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}  # the handlers before this run's

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    # -- resuming --------------------------------------------------------------------------

    def start(self, resume: bool) -> State | None:
        """Returns the newest checkpoint's shared state; None for a new run."""
        self._resumed = self._processes.from_first(lambda: self._newest(resume))
        return None if self._resumed is None else self._resumed["shared"]

    def _newest(self, resume: bool) -> State | None:
        self._lock_folder()
        for partial in self.folder.glob(".*.partial"):  # of a run that was killed while writing
            partial.unlink()
        paths = self._paths()
        if not paths:
            return None
        if not resume:
            raise InvalidCheckpointError(
                f"{self.folder} holds checkpoints of an earlier run. Pass resume=True to "
                "continue from them, or another checkpoint_dir."
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
                    f"{path} belongs to another run: "
                    f"{_difference(content['identity'], self._identity)}. Use its "
                    "configuration and data, or another checkpoint_dir."
                )
            if problems:
                warnings.warn(
                    f"{' '.join(problems)} The one before it, {path.name}, is used.", stacklevel=2
                )
            return content
        raise InvalidCheckpointError(f"{' '.join(problems)} Remove {self.folder} to start again.")

    def _lock_folder(self) -> None:
        """Creates, locks and tests the folder, so that write errors come before training."""
        probe = self.folder / f".{os.getpid()}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(exclusive_folder(self.folder, wait=False))
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointWriteError(
                f"Checkpoints cannot be written to {self.folder} ({error.strerror}). Make the "
                "folder writable, or choose another checkpoint_dir."
            ) from error

    @property
    def stage(self) -> str | None:
        """Stage of the checkpoint that `start` found."""
        return None if self._resumed is None else str(self._resumed["stage"])

    def resume(self, stage: str) -> State | None:
        """Returns the state of `stage` and restores random states, if the run was in that stage."""
        if self._resumed is None or self.stage != stage:
            return None
        content, self._resumed = self._resumed, None
        set_random_state(content["random"][self._processes.rank])
        state: State = content["state"]
        return state

    # -- saving ----------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether this process writes files."""
        return self._processes.rank == 0

    def after_step(self, stage: str, step: int, state: Callable[[], State]) -> None:
        """Saves if a checkpoint is due or a signal arrived, then raises the deferred signal."""
        if self._signal is not None or step % self._interval == 0:
            self.save(stage, step, state())
        self._raise_deferred_signal()

    def save(self, stage: str, step: int, state: State) -> None:
        """Writes a checkpoint and removes old ones.

        Raises:
            DivergenceError: a weight is not finite; nothing is written.
            CheckpointWriteError: the disk has no room, or cannot be written; earlier ones remain.
        """
        shared = self._shared_state()
        # The same in all processes, but for the means in their logs, so all stop here or none.
        if broken := _not_finite({**shared, **state}):
            raise DivergenceError(
                f"The run diverged: {broken} is not finite at step {step} of {stage}. {self.advice}"
            )
        content = {
            "identity": self._identity,
            "stage": stage,
            "step": step,
            "shared": shared,
            "state": state,
            "random": self._processes.gather(random_state()),
        }
        if not self.writes:
            return
        path = self.folder / f"{stage}_{step:010d}.ckpt"
        try:
            write_checkpoint(path, content)
            for old in self._paths()[: -self._keep]:
                old.unlink()
        except OSError as error:
            left = self._paths()
            raise CheckpointWriteError(
                f"{error} "
                + (f"{left[-1].name} is intact: r" if left else "R")
                + "esume with resume=True when there is room."
            ) from error

    @property
    def advice(self) -> str:
        """Advice for a run that diverged."""
        left = self._paths()
        kept = f"The last good checkpoint is {left[-1]}." if left else "There is no checkpoint yet."
        return f"{kept} {ADVICE}"

    def _raise_deferred_signal(self) -> None:
        """Restores the handler of a deferred signal and raises the signal."""
        if self._signal is not None:
            number, self._signal = self._signal, None
            signal.signal(number, self._handlers[number])
            signal.raise_signal(number)

    @contextlib.contextmanager
    def saving_on_interrupt(self) -> Iterator[None]:
        """Defers SIGINT and SIGTERM until `after_step`; a second one acts at once.

        Does nothing outside the main thread or with several processes, which a signal reaches at
        different steps.
        """
        if threading.current_thread() is not threading.main_thread() or self._processes.count > 1:
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
            self._raise_deferred_signal()  # one that came after the last step

    def _paths(self) -> list[Path]:
        # "pretraining" comes before "training", also in the alphabet.
        return sorted(self.folder.glob("*.ckpt"))


def _not_finite(content: State) -> str | None:
    """Returns the name of a tensor with NaN or infinite entries, or None."""
    tensors = dict(_tensors(content, ""))
    checks = [tensor.isfinite().all() for tensor in tensors.values()]
    # One wait for the device, however many tensors.
    if not checks or bool(torch.stack([check.to(checks[0].device) for check in checks]).all()):
        return None
    return next(name for name, check in zip(tensors, checks, strict=True) if not check)


def _tensors(content: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        if content.is_floating_point():
            yield path, content
    elif isinstance(content, dict | list | tuple):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from _tensors(value, f"{path}.{key}" if path else str(key))


def write_checkpoint(path: Path, content: State) -> None:
    """Atomically writes a file that `read_checkpoint` reads."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getbuffer()
    header = f"{MAGIC} {VERSION} {hashlib.sha256(payload).hexdigest()}\n"
    with write_errors(path), atomic_write(path) as partial, partial.open("wb") as f:
        f.write(header.encode())
        f.write(payload)


def read_checkpoint(path: Path) -> State:
    """Reads a checkpoint, its tensors on the CPU.

    Raises:
        InvalidCheckpointError: it is damaged, or larger than the available memory.
    """
    try:
        # Before anything is read: a file with holes takes little space on the disk. The content is
        # in memory twice, as bytes and as tensors.
        require_memory(
            2 * path.stat().st_size,
            f"Reading {path}",
            "Free memory, or remove the file if it is damaged.",
            InvalidCheckpointError,
        )
        with path.open("rb") as file:
            _check_payload(path, file)
            # Only content with the right checksum is read into memory.
            payload = io.BytesIO(file.read())
    except OSError as error:
        raise InvalidCheckpointError(f"{path} cannot be read ({error.strerror}).") from error
    except MemoryError as error:
        size = path.stat().st_size
        raise InvalidCheckpointError(f"{path} ({size} bytes) is larger than the memory.") from error
    try:
        content: State = torch.load(payload, map_location="cpu", weights_only=True)
    except Exception as error:  # an untrusted file can cause any error
        raise InvalidCheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or content.keys() != _KEYS:
        raise InvalidCheckpointError(f"{path} is not a checkpoint of spin-d3rlpy.")
    return content


def _check_payload(path: Path, file: BinaryIO) -> None:
    """Checks header and checksum in little memory; leaves the file where the payload begins."""
    words = file.readline(_MAX_HEADER).removesuffix(b"\n").decode(errors="replace").split(" ")
    if " ".join(words[:-2]) != MAGIC:
        raise InvalidCheckpointError(f"{path} is not a checkpoint of spin-d3rlpy.")
    if words[-2] != str(VERSION):
        raise InvalidCheckpointError(
            f"{path} has format version {words[-2]}, this spin-d3rlpy reads {VERSION}."
        )
    start, digest = file.tell(), hashlib.sha256()
    while block := file.read(_BLOCK):
        digest.update(block)
    if words[-1] != digest.hexdigest():
        raise InvalidCheckpointError(f"{path} is damaged: its checksum is wrong.")
    file.seek(start)


def _difference(saved: State, expected: State) -> str:
    names = [key for key in expected if saved.get(key) != expected[key]]
    parts = [f"{key} was {saved.get(key)!r}, is {expected[key]!r}" for key in names]
    return "; ".join(parts) or "it has other fields"


def random_state() -> State:
    """Returns the random states of torch (all devices), NumPy and Python."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    words = torch.from_numpy(np.asarray(keys).astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), words, int(position), int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }


def set_random_state(state: State) -> None:
    """Inverse of `random_state`."""
    torch.set_rng_state(state["torch"])
    # There may be fewer GPUs than there were.
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (name, keys.numpy().astype(np.uint32), position, has_gauss, gauss)
    )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
