"""What a process holds in memory, and what a dataset's arrays take of it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from spin_d3rlpy.data import DeviceReplayBuffer


def resident_bytes(field: str) -> int:
    """Returns a figure of this process from Linux's `/proc/self/status`.

    Where that is not to be had, it is what `getrusage` counts as the peak: on Linux that is wrong,
    because a process inherits the peak of the one that started it.

    Args:
        field: `"VmRSS"` (held now), `"VmHWM"` (held at most) or `"RssAnon"` (held now and not
            backed by a file, which the system could take back).
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    [line] = [line for line in status.splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def array_bytes(buffer: DeviceReplayBuffer) -> int:
    """Returns the size of a buffer's arrays."""
    arrays = ("observations", "actions", "rewards", "terminals", "observation_index")
    return sum(int(getattr(buffer, name).nbytes) for name in arrays)
