"""Reading safetensors files from untrusted sources, and the memory that any such file may take.

Nothing is executed, and memory is allocated only if the file holds all weights of its networks.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import safetensors
import torch
from torch import nn

from spin_d3rlpy.errors import InvalidCheckpointError, UntrustedRuleError

MAX_BYTES = 4 * 2**30
_MAX_HEADER_BYTES = 2**24  # a configuration holds the statistics of observation scaling
_TYPES = {"F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool, "I64": torch.int64}
_CONTAINER = Path("/sys/fs/cgroup")  # limits of Linux's containers
# Declared type and shape of each weight, by name.
Found: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]


def available_memory() -> int:
    """Returns the bytes that this process can still take without swapping.

    Page cache that can be dropped counts as available, and the limits of a container and of the
    process hold, where the system tells them. Otherwise it is half of the machine's memory.
    """
    return max(0, min(_machines_memory(), _containers_memory(), _limit_of_process()))


def require_memory(needed: int, what: str, advice: str, error: type[Exception]) -> None:
    """Raises an error of the given type, with both numbers, if memory has no room.

    Args:
        needed: bytes that are about to be allocated.
        what: takes them, as the subject of the message.
        advice: what to do, a sentence.
        error: the type.
    """
    available = available_memory()
    if needed > available:
        raise error(
            f"{what} would take {needed:,} bytes of memory, of which {available:,} are available. "
            f"{advice}"
        )


def _machines_memory() -> int:
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return 2**62  # unknown: allocation itself fails
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _containers_memory() -> int:
    try:
        limit = (_CONTAINER / "memory.max").read_text().strip()
        used = int((_CONTAINER / "memory.current").read_text())
        statistics = dict(
            line.split() for line in (_CONTAINER / "memory.stat").read_text().splitlines()
        )
        return 2**62 if limit == "max" else int(limit) - used + int(statistics["inactive_file"])
    except (OSError, KeyError, ValueError):
        return 2**62


def _limit_of_process() -> int:
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return 2**62
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return limit - used
    except (ImportError, OSError, ValueError):
        return 2**62


class UntrustedFile:
    """A safetensors file that is checked before it is read; raises InvalidCheckpointError."""

    def __init__(self, file: Any) -> None:
        self._file = file
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        # As the file declares them.
        self.weights: Found = {k: (s.get_dtype(), tuple(s.get_shape())) for k, s in slices.items()}

    def header(self, kind: str, version: int) -> dict[str, Any]:
        """Returns the JSON header, if it is of this kind and version.

        Raises:
            InvalidCheckpointError: a header of another kind or version, or one too long.
        """
        text = (self._file.metadata() or {}).get("spin", "{}")
        if len(text) > _MAX_HEADER_BYTES:
            raise InvalidCheckpointError(f"its configuration has {len(text)} bytes")
        header = json.loads(text)
        if not isinstance(header, dict) or header.get("format") != kind:
            raise InvalidCheckpointError(f"it is a safetensors file, but not a {kind}")
        if header.get("version") != version:
            raise InvalidCheckpointError(
                f"it has format version {header.get('version')}, this spin-d3rlpy reads {version}"
            )
        _require_finite(header)
        return header

    def check_spaces(
        self, nvec: Any, observation_shape: Sequence[Any], n_samples: Any = 1, pixels: int = 0
    ) -> None:
        """Bounds the spaces' memory by the number of weights.

        Of an observation's numbers, `pixels` are of images, whose layers share their weights.

        Raises:
            InvalidCheckpointError: shapes are not positive, or need more weights than there are.
        """
        n_weights = sum(math.prod(shape) for _, shape in self.weights.values())
        numbers = [*nvec, *observation_shape, n_samples]
        if not nvec or not all(type(number) is int and number > 0 for number in numbers):
            raise InvalidCheckpointError("its shapes are not positive numbers")
        # Memory in addition to weights: a table of slots by most choices, and noise.
        tables = max(len(nvec) * max(nvec), n_samples * sum(nvec), pixels)
        needed = max(sum(nvec), max(observation_shape) - pixels)
        if needed > n_weights or tables > 64 * n_weights:
            raise InvalidCheckpointError("it has fewer weights than its action space needs")

    @contextmanager
    def no_more_parameters(self) -> Iterator[None]:
        """Stops creation of networks with many more parameters than the file has."""
        made, allowed = 0, 4 * len(self.weights) + 64

        def count(*_: Any) -> None:
            nonlocal made
            made += 1
            # Some parts are made twice, for example before they are copied to targets.
            if made > allowed:
                raise InvalidCheckpointError("its configuration needs more weights than it holds")

        hook = nn.modules.module.register_module_parameter_registration_hook(count)
        try:
            yield
        finally:
            hook.remove()

    def check_weights(self, expected: Mapping[str, torch.Tensor]) -> None:
        """Compares declared weights with those of networks created without memory.

        Raises:
            InvalidCheckpointError: a weight is missing, left over or of another shape or type.
        """
        wanted = {k: (v.dtype, tuple(v.shape)) for k, v in expected.items()}
        read = {k: (_TYPES.get(dtype), shape) for k, (dtype, shape) in self.weights.items()}
        for key in sorted({*wanted, *read}):
            if wanted.get(key) != read.get(key):
                raise InvalidCheckpointError(
                    f"its configuration needs {key} as {wanted.get(key, 'nothing')}, it holds "
                    f"{self.weights.get(key, 'nothing')}"
                )

    def read_into(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Loads the weights of networks, if they are finite.

        Raises:
            InvalidCheckpointError: weights are not finite.
        """
        for key, tensor in weights.items():
            value = self._file.get_tensor(key)
            if value.is_floating_point() and not value.isfinite().all():
                raise InvalidCheckpointError(f"its weights {key} are not finite")
            tensor.data.copy_(value)


def _require_finite(content: object) -> None:
    """Raises InvalidCheckpointError for NaN or infinity among JSON's values, which Python takes."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidCheckpointError(f"its configuration has a number that is {value}")


@contextmanager
def open_untrusted(path: Path, kind: str, advice: str, max_bytes: int) -> Iterator[UntrustedFile]:
    """Opens a file; any failure in the block becomes an InvalidCheckpointError with its name."""
    if not path.is_file():
        raise FileNotFoundError(f"No {kind} at {path}. {advice}")
    size = path.stat().st_size
    if size > max_bytes:
        raise InvalidCheckpointError(
            f"{path} has {size} bytes, over the limit of {max_bytes}. Pass max_bytes= if it is "
            "yours."
        )
    require_memory(size, str(path), "Free memory, or use a smaller one.", InvalidCheckpointError)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield UntrustedFile(file)
    except UntrustedRuleError:  # nothing is wrong with the file
        raise
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{path} is not a valid {kind}: {error}. {advice}") from error
    except Exception as error:  # an untrusted configuration can cause any error
        raise InvalidCheckpointError(
            f"{path} is not a readable {kind} ({error!r}). {advice}"
        ) from error
