"""Training steps as CUDA graphs: recorded once, then replayed without Python in between."""

from __future__ import annotations

import contextlib
import gc
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import torch
from d3rlpy.logging import LOG

T = TypeVar("T")
CompileGraph = bool | Literal["auto"]

# Steps before the recording: they create optimizer states, workspaces and scalers' tensors.
WARM_UP_STEPS = 3


class UnrecordableError(RuntimeError):
    """A step that cannot be recorded as a CUDA graph."""


def can_record(device: str | torch.device) -> bool:
    """Whether steps on a device can be recorded: on GPUs."""
    return torch.device(device).type == "cuda"


class CudaRecorder:
    """Records what happens on one CUDA device.

    Steps run on a stream of their own, as recording demands, in order with the current one. Random
    numbers are those of the device's generator: replays continue its sequence.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)

    def run(self, step: Callable[[], T]) -> T:
        """Runs a step on the recorder's stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = step()
        current.wait_stream(self._stream)
        return result

    def record(self, step: Callable[[], T]) -> tuple[Callable[[], object], T]:
        """Returns what replays a step, and its result, whose tensors every replay overwrites."""
        # A recording that fails leaves its stream the current one; the outer context does not.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            graph = torch.cuda.CUDAGraph()
            with self._undisturbed(), torch.cuda.graph(graph, stream=self._stream):
                result = step()
        return graph.replay, result

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Keeps a recording from what is left of others, and random numbers from its failure."""
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state = generator.clone_state()
        gc.collect()  # an older recording that is freed during this one would end it
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        except Exception:
            # The generator would count for the failed recording and draw nothing any more.
            generator.graphsafe_set_state(state)
            raise
        finally:
            if was_enabled:
                gc.enable()

    def run_watched(self, step: Callable[[], T]) -> tuple[T, str | None]:
        """Runs a step and tells what in it had the host wait, which no recording can hold."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self.run(step)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = [w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]
        for warning in caught:
            if warning not in waits and "Synchronization debug mode" not in str(warning.message):
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
        return result, f"{waits[0].filename}:{waits[0].lineno}" if waits else None


def recorded(
    step: Callable[[], T],
    optimizers: Sequence[torch.optim.Optimizer],
    device: str | torch.device,
    compile_graph: CompileGraph = True,
) -> Callable[[], T]:
    """Returns a step that is recorded and replayed, or `step` itself where that cannot be."""
    if compile_graph and can_record(device):
        return GraphedStep(step, optimizers, device, compile_graph)
    return step


class GraphedStep(Generic[T]):
    """A training step that is recorded after a few calls and replayed from then on.

    Every call is one step, the first ones included, which run as they are. A recording holds
    addresses and numbers: it is made again, after as many such calls, when an optimizer's state is
    replaced (a loaded file, a reset) or one of its options changes. The learning rate of Adam and
    AdamW is handed over, so schedules need no new recording.

    The step's tensors keep their places, its shapes never change, and it neither waits for the
    device nor copies from the host. One that cannot be recorded is an error, or if `compile_graph`
    is `"auto"` continues as it is, and the log says so.
    """

    def __init__(
        self,
        step: Callable[[], T],
        optimizers: Sequence[torch.optim.Optimizer],
        device: str | torch.device,
        compile_graph: CompileGraph = True,
    ) -> None:
        self._step = step
        self._optimizers = list(optimizers)
        self._recorder = CudaRecorder(device)
        self._is_optional = compile_graph == "auto"
        self._is_recorded = True  # or is to be
        self._calls = 0
        self._states: list[Any] = []
        self._options: list[dict[str, Any]] = []
        self._rates: list[tuple[dict[str, Any], float, torch.Tensor]] = []  # group, last, on device
        self._recording: tuple[Callable[[], object], T] | None = None

    def __call__(self) -> T:
        """Does one step and returns its result; a later call may overwrite the result's tensors.

        Raises RuntimeError if the step cannot be recorded and has to be.
        """
        if not self._is_recorded:
            return self._step()
        if self._has_changed():
            self._calls, self._recording = 0, None
        self._calls += 1
        if self._calls == WARM_UP_STEPS and self._is_optional:
            result, wait = self._recorder.run_watched(self._step)
            if wait is not None:
                self._give_up(f"the host waits for the device or copies to it in {wait}")
            return result
        if self._calls <= WARM_UP_STEPS:
            return self._recorder.run(self._step)
        if self._recording is None:
            try:
                self._recording = self._record()
            except UnrecordableError as error:
                if not self._is_optional:
                    raise
                self._give_up(str(error.__cause__))
                return self._step()
        for i, (group, last, rate) in enumerate(self._rates):
            if group["lr"] != last:
                rate.fill_(group["lr"])
                self._rates[i] = (group, group["lr"], rate)
        replay, result = self._recording
        replay()
        return result

    def _give_up(self, reason: str) -> None:
        self._is_recorded = False
        LOG.info("Steps are not recorded as a CUDA graph, but run one by one", reason=reason)

    def _has_changed(self) -> bool:
        states = [optimizer.state for optimizer in self._optimizers]
        options = [
            {
                k: v
                for k, v in group.items()
                if k != "params" and not (k == "lr" and _is_adam(group))
            }
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
        # The very same objects: their contents change with every step.
        same = len(states) == len(self._states) and all(map(operator.is_, states, self._states))
        changed = not same or options != self._options
        self._states, self._options = states, options
        return changed

    def _record(self) -> tuple[Callable[[], object], T]:
        try:
            with self._recordable():
                return self._recorder.record(self._step)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None:  # what ends a recording is followed by errors of its own
                if isinstance(cause, torch.OutOfMemoryError):
                    raise cause from None
                cause = cause.__cause__ or cause.__context__
            raise UnrecordableError(
                "This update cannot be recorded as a CUDA graph, because part of it waits for the "
                "device, copies from the host or has shapes that depend on the data. "
                "Pass compile_graph=False."
            ) from error

    @contextlib.contextmanager
    def _recordable(self) -> Iterator[None]:
        """Puts what may change into tensors on the device while the step is recorded."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        before = [dict(group) for group in groups]
        self._rates = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                device = group["params"][0].device
                if "capturable" in group:
                    group["capturable"] = True
                if _is_adam(group):
                    rate = torch.tensor(group["lr"], dtype=torch.float32, device=device)
                    self._rates.append((group, group["lr"], rate))
                    group["lr"] = rate
            for state in optimizer.state.values():
                if isinstance(state.get("step"), torch.Tensor):  # RMSprop has it on the host
                    state["step"] = state["step"].to(device)
        try:
            yield
        finally:
            for group, options in zip(groups, before, strict=True):
                group.update(options)


def _is_adam(group: dict[str, Any]) -> bool:
    """Whether a group is one of torch's fused Adam or AdamW, which read the rate from a tensor."""
    return bool(group.get("fused")) and "betas" in group
