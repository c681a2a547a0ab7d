"""A GPU that is not there: tensors on `cuda:0` have shapes, types and a device, but no contents.

Everything that reaches the GPU passes `FakeGPU`, which computes shapes only, counts kernels and
notes what a training step must not do: have the host wait for the device, copy from the host, or
hand tensors of two devices to one operation (an error, as on a GPU). CPU tensors are real.

A CUDA build of torch is needed, because only there do CUDA tensors go through autograd and
autocast; a driver is not.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import pytest
import torch
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from spin_d3rlpy.fast import attention, losses
from spin_d3rlpy.policies import reprem
from tests.fake_cuda import stubs

aten = torch.ops.aten
GPU = "cuda:0"
DEVICES = 8  # that autograd counts; the others are never used

# Operations that launch nothing, in addition to views.
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
# Operations that launch more than one kernel: orders of magnitude from torch's CUDA sources.
LAUNCHES = {
    "topk": 4,
    "nonzero": 3,
    "index_put": 6,
    "_index_put_impl_": 6,
    "embedding_dense_backward": 6,
    "_foreach_norm": 2,
    "_cudnn_rnn": 24,
    "_cudnn_rnn_backward": 40,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "_scaled_dot_product_flash_attention_backward": 3,
}
# What an operation that has to move its arguments is for.
MOVES = {aten._to_copy.default, aten.copy_.default, aten.lift_fresh.default}


class Event(NamedTuple):
    """Something that a training step must not do.

    Args:
        kind: `"wait"` for the device, `"copy"` from the host, `"mix"` of devices.
        what: the operation.
        recording: whether a CUDA graph was being recorded.
    """

    kind: Literal["wait", "copy", "mix"]
    what: str
    recording: bool


def on_gpu(x: Any) -> bool:
    """Whether it is a tensor on the GPU."""
    return isinstance(x, torch.Tensor) and x.device.type == "cuda"


class FakeGPU(TorchDispatchMode):
    """Computes shapes of what happens on the GPU.

    Attributes:
        events: what was noted since the last `watch`.
        operations: how often each operation was called since then.
        recordings: CUDA graphs that were recorded.
        replays: how often one was replayed.
        stream: the current one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.events: list[Event] = []
        self.operations: Counter[str] = Counter()
        self.recordings = self.replays = 0
        self.is_recording = False
        self.warns = False
        self.stream: object = "default"

    @contextlib.contextmanager
    def watch(self) -> Iterator[FakeGPU]:
        """Starts events and counts again; afterwards they stand still."""
        self.events, self.operations = [], Counter()
        try:
            yield self
        finally:
            self.events, self.operations = list(self.events), Counter(self.operations)

    @property
    def kernels(self) -> int:
        """Kernels launched since the last `watch`."""
        return sum(n * LAUNCHES.get(name, 1) for name, n in self.operations.items())

    def note(self, kind: Literal["wait", "copy", "mix"], what: str) -> None:
        """Remembers an event, and warns of it as torch's synchronization mode would."""
        self.events.append(Event(kind, what, self.is_recording))
        if self.is_recording:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        if self.warns:
            callers = (f for f in traceback.extract_stack()[::-1] if "torch" not in f.filename)
            at = next(frame for frame in callers if frame.filename != __file__)
            message = f"called a synchronizing CUDA operation: {what}"
            warnings.warn_explicit(message, UserWarning, at.filename, at.lineno or 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        wanted = kwargs.get("device")
        to_gpu = wanted is not None and torch.device(wanted).type == "cuda"
        if not to_gpu and not any(on_gpu(x) for x in tensors):
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        if func is aten._local_scalar_dense.default:
            self.note("wait", "item")
            return _contents(args[0]).item()
        if func is aten.copy_.default and on_gpu(args[0]) != on_gpu(args[1]):
            if args[0].numel():
                self.note("copy" if on_gpu(args[0]) else "wait", f"copy_ {tuple(args[0].shape)}")
            return args[0]
        if func is aten._to_copy.default and wanted is not None and not to_gpu:
            self.note("wait", f"to the host {tuple(args[0].shape)}")
            return _contents(args[0]).to(kwargs.get("dtype") or args[0].dtype)
        if func is aten._to_copy.default and not on_gpu(args[0]):
            self.note("copy", f"to the device {tuple(args[0].shape)}")
            return self._moved(args[0], kwargs)
        self._refuse_mixed(func, tensors, kwargs)
        if func is aten.equal.default:
            self.note("wait", name)
            return True
        args = self._without_masks(func, args)
        if func is aten.nonzero.default:
            self.note("wait", name)
            return args[0].new_empty((0, args[0].dim()), dtype=torch.long)
        if not (func.is_view or name in FREE or func.namespace == "prim"):
            self.operations[name] += 1
        return self._shapes(func, name, args, kwargs)

    def _moved(self, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
        with self._fake:
            moved = torch.empty_like(
                tensor, device=GPU, dtype=kwargs.get("dtype"), requires_grad=False
            )
        if not tensor.is_floating_point() or tensor.dim() == 0:
            moved.contents = tensor.detach().clone()  # type: ignore[attr-defined]
        return moved

    def _refuse_mixed(self, func: Any, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> None:
        generator = kwargs.get("generator")
        mixed = [x for x in tensors if not on_gpu(x) and x.dim() > 0]  # numbers may come along
        of_host = generator is not None and generator.device.type != "cuda"
        if func not in MOVES and any(map(on_gpu, tensors)) and (mixed or of_host):
            self.note("mix", str(func))
            raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
        if "mkldnn" in str(func):
            self.note("mix", str(func))

    def _without_masks(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """An index that is a mask has the host wait for its count; here nothing is chosen."""
        if func._schema.name.rpartition("::")[2] not in (
            "index",
            "index_put",
            "index_put_",
            "_index_put_impl_",
        ):
            return args
        if not any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args
        self.note("wait", "a mask as index")
        indices: list[Any] = []
        for index in args[1]:
            if index is not None and index.dtype == torch.bool:
                none = index.new_empty(0, dtype=torch.long)
                indices += [none] * index.dim()
            else:
                indices.append(index)
        return (args[0], indices, *args[2:])

    def _shapes(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        if name.startswith("_fused_adam"):  # torch knows no shapes for a rate on the device
            return None
        with self._fake:
            if name == "_cudnn_rnn_backward":
                like = torch.empty_like
                return like(args[0]), like(args[4]), like(args[5]), [like(w) for w in args[1]]
            result = func(*args, **kwargs)
        _compute_contents(func, name, args, kwargs, result)
        if func is aten.fill_.Scalar:
            args[0].contents = torch.full(args[0].shape, args[1], dtype=args[0].dtype)
        elif name.endswith("_") and hasattr(args[0], "contents"):
            del args[0].contents
        return result


def _compute_contents(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
    """Where all that an operation reads is known, its result is: indices of a dataset, mostly."""
    read = [x for x in tree_leaves((args, kwargs)) if on_gpu(x)]
    if not read or name.endswith("_") or not all(hasattr(x, "contents") for x in read):
        return
    args, kwargs = tree_map_only(FakeTensor, lambda x: x.contents, (args, kwargs))
    found = func(*args, **{k: v for k, v in kwargs.items() if k != "device"})
    for made, value in zip(tree_leaves(result), tree_leaves(found), strict=True):
        if on_gpu(made):
            made.contents = value


def _contents(tensor: torch.Tensor) -> torch.Tensor:
    """What the host reads: what it once wrote, else something that checks pass."""
    found = getattr(tensor, "contents", None)
    if found is not None:
        return found.clone()  # type: ignore[no-any-return]
    filled = 1 if tensor.dtype == torch.bool or tensor.dim() == 0 else 0
    return torch.full(tensor.shape, filled, dtype=tensor.dtype)


# -- torch.cuda without a driver -------------------------------------------------------------


class Stream:
    """Takes the place of `torch.cuda.Stream`."""

    device = torch.device(GPU)

    def __init__(self, device: Any = None, **_: Any) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        """The device waits, not the host."""


class Generator:
    """Takes the place of a GPU's random generator."""

    def get_state(self) -> torch.Tensor:
        """Returns a state of the usual size."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Sets nothing."""


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _cuda_module(gpu: FakeGPU) -> dict[str, Any]:
    """What of `torch.cuda` would ask the driver."""

    @contextlib.contextmanager
    def stream(other: object) -> Iterator[None]:
        before, gpu.stream = gpu.stream, other
        try:
            yield
        finally:
            gpu.stream = before

    @contextlib.contextmanager
    def graph(made: Graph, stream: object = None, **_: Any) -> Iterator[None]:
        # As in torch, a recording that fails leaves its stream.
        before, gpu.stream, gpu.is_recording = gpu.stream, stream, True
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError("operation failed due to a previous error during capture") from error
        finally:
            gpu.is_recording = False
        gpu.stream = before
        gpu.recordings += 1

    class Graph:
        def replay(self) -> None:
            gpu.replays += 1

    def sync_debug_mode(mode: int | str) -> None:
        gpu.warns = mode in (1, "warn")

    properties = SimpleNamespace(
        name="a GPU that is not there", major=9, minor=0, total_memory=80 << 30, warp_size=32
    )
    state = Generator().get_state
    return {
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: properties.name,
        "is_bf16_supported": lambda *_, **__: True,
        "synchronize": lambda *_: gpu.note("wait", "synchronize"),
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (79 << 30, 80 << 30),
        "device": _nothing,
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda *_: gpu.stream if isinstance(gpu.stream, Stream) else Stream(),
        "CUDAGraph": Graph,
        "graph": graph,
        "is_current_stream_capturing": lambda: gpu.is_recording,
        "get_sync_debug_mode": lambda: int(gpu.warns),
        "set_sync_debug_mode": sync_debug_mode,
        "default_generators": (Generator(),),
        "get_rng_state": lambda *_: state(),
        "set_rng_state": lambda *_: None,
        "get_rng_state_all": lambda: [state()],
        "set_rng_state_all": lambda _: None,
        "manual_seed": lambda _: None,
        "manual_seed_all": lambda _: None,
    }


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
) -> torch.Tensor:
    """What torch would choose on a GPU of the last years, which it would ask for its properties."""
    if q.dtype == torch.bfloat16 and attn_mask is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p)[0]  # type: ignore[no-any-return]
    if attn_mask is not None:
        attn_mask = attn_mask.new_zeros((), dtype=q.dtype).where(attn_mask, -torch.inf)
        attn_mask = attn_mask.expand(*q.shape[:2], q.shape[2], k.shape[2])
    needs = any(x.requires_grad for x in (q, k, v))
    found = aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, needs, dropout_p)
    return found[0]  # type: ignore[no-any-return]


def _lstm(self: nn.LSTM, tokens: torch.Tensor, memory: Any = None) -> Any:
    """cuDNN's, which autocast always has in half precision."""
    if not on_gpu(tokens):
        return _lstm_forward(self, tokens, memory)
    if memory is None:
        zeros = tokens.new_zeros(self.num_layers, tokens.shape[1], self.hidden_size)
        memory = zeros, zeros
    kind = torch.float16 if torch.is_autocast_enabled("cuda") else tokens.dtype
    with torch.autocast("cuda", enabled=False):
        weights = [w.to(kind) for w in self._flat_weights if w is not None]
        flat = torch.cat([w.detach().flatten() for w in weights])
        states = (memory[0].to(kind), memory[1].to(kind))
        sizes: tuple[Any, ...] = (
            2,
            self.hidden_size,
            0,
            self.num_layers,
            False,
            0.0,
            self.training,
            False,
            [],
        )
        cudnn: Any = torch._cudnn_rnn
        outputs, h, c, *_ = cudnn(tokens.to(kind), weights, 4, flat, *states, *sizes, None)
    return outputs, (h, c)


def _apply(self: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """Moves a module; torch would swap what is in tensors, which these refuse."""
    for child in self.children() if recurse else ():
        child._apply(change)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            moved = change(parameter.detach())
            if (moved.device, moved.dtype) != (parameter.device, parameter.dtype):
                self._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = change(buffer)
    return self


def _export(algo: Any, path: str) -> None:
    """TorchScript, which is of the host, knows no modes of dispatch."""
    with _disable_current_modes():
        _save_policy(algo, path)


_save_policy = QLearningAlgoBase.save_policy
_lstm_forward = nn.LSTM.forward
_save = torch.save


def _save_contents(content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
    _save(tree_map_only(FakeTensor, _contents, content), file, *args, **kwargs)


@contextlib.contextmanager
def machine_with_gpu(patch: pytest.MonkeyPatch) -> Iterator[FakeGPU]:
    """This process has a GPU within this context, as far as it can be told without contents."""
    stubs.set_device_count(0)
    torch._C._ensureCUDADeviceGuardSet()  # only where there seems to be none
    stubs.set_device_count(DEVICES)
    gpu = FakeGPU()
    for name, value in _cuda_module(gpu).items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(fake_tensor, "init_gpu_context", lambda _: None)
    patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    patch.setattr(attention, "scaled_dot_product_attention", _attention)
    patch.setattr(reprem, "scaled_dot_product_attention", _attention)
    patch.setattr(nn.LSTM, "forward", _lstm)
    patch.setattr(nn.LSTM, "flatten_parameters", lambda _: None)
    patch.setattr(FakeTensor, "data_ptr", lambda x: id(x), raising=False)
    # A GPU's tensors are updated many at once; torch asks their exact type.
    patch.setattr(torch.nn.utils.clip_grad, "_has_foreach_support", lambda *_: True)
    patch.setattr(nn.Module, "_apply", _apply)
    patch.setattr(QLearningAlgoBase, "save_policy", _export)
    patch.setattr(torch, "save", _save_contents)
    losses.one.cache_clear()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes them there and copies
    with torch.autograd.set_multithreading_enabled(False), gpu:  # its threads are a real GPU's
        try:
            yield gpu
        finally:
            losses.one.cache_clear()
            torch._C._set_only_lift_cpu_tensors(False)
            stubs.set_device_count(0)
