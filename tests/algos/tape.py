"""A stand-in for CUDA graphs on the CPU: operations are put on a tape and played again.

As with a graph, playing repeats the very same operations on the very same tensors, with the same
numbers; Python between them does not run again; and recording changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


class UnrecordableError(RuntimeError):
    """What a CUDA graph could not record."""


def refuse_unrecordable(operation: Any, args: tuple[Any, ...]) -> None:
    """Raises where the host reads a value, a shape depends on data, or Python data is copied."""
    aten = torch.ops.aten
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    refused = operation is aten.lift_fresh.default or any(tag in operation.tags for tag in tags)
    if operation is aten.index.Tensor:  # its shape depends on data where a mask is an index
        refused = any(index is not None and index.dtype == torch.bool for index in args[1])
    if refused:
        raise UnrecordableError(f"{operation} cannot be recorded")


def written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Those of an operation's arguments that it writes to."""
    tensors: list[torch.Tensor] = []
    for i, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            tensors += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return tensors


class Tape(TorchDispatchMode):
    """Runs operations and remembers them, and what they overwrote."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[bool, Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        refuse_unrecordable(func, args)
        self._overwritten += [(t, t.clone()) for t in written(func, args, kwargs)]
        result = func(*args, **kwargs)
        self.operations.append((torch.is_grad_enabled(), func, args, kwargs, result))
        return result

    def undo(self) -> None:
        """Puts back what was overwritten."""
        with torch.no_grad():
            for tensor, before in reversed(self._overwritten):
                tensor.copy_(before)
        self._overwritten.clear()

    def play(self) -> None:
        """Does everything again, with results in the tensors that they were in."""
        for with_gradients, func, args, kwargs, result in self.operations:
            # Some operations return more where gradients are wanted; autograd itself is not asked.
            with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(with_gradients):
                again = func(*args, **kwargs)
                if written(func, args, kwargs):
                    continue
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class TapeRecorder:
    """Takes the place of `CudaRecorder`.

    Args:
        device: not used.
    """

    made = 0  # recordings, in all

    def __init__(self, device: object) -> None:
        pass

    def run(self, step: Callable[[], T]) -> T:
        """Runs a step."""
        return step()

    def record(self, step: Callable[[], T]) -> tuple[Callable[[], object], T]:
        """Records a step; weights and random numbers are afterwards as they were."""
        TapeRecorder.made += 1
        random = torch.get_rng_state()
        tape = Tape()
        with tape:
            result = step()
        tape.undo()
        torch.set_rng_state(random)
        return tape.play, result
