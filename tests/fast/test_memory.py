from __future__ import annotations

import mmap
import platform

import pytest

from spin_d3rlpy import fast
from spin_d3rlpy.fast import cpu
from tests.subprocesses import run_python


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_and_used_again() -> None:
    """Counts page faults of allocating and freeing the same arrays in a process of its own.

    Without `keep_freed_memory` there are as many as pages, mostly: it depends on what lies next to
    the arrays, so that is not tested.
    """
    arrays, rounds = 8, 5
    faults = run_python(
        "import resource, torch\n"
        "from spin_d3rlpy.fast import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "def step():\n"
        f"    arrays = [torch.ones(2**20) for _ in range({arrays})]\n"
        f"for _ in range({rounds}):\n"
        "    step()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        f"for _ in range({rounds}):\n"
        "    step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    pages = rounds * arrays * 4 * 2**20 // mmap.PAGESIZE
    assert int(faults.split()[-1]) < pages / 10


def test_the_hosts_memory_settings_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(cpu, "_set_thresholds", lambda: calls.append(True))
    monkeypatch.setenv("SPIN_D3RLPY_MALLOC", "0")
    fast.keep_freed_memory()
    monkeypatch.delenv("SPIN_D3RLPY_MALLOC")
    with fast.plain():
        fast.keep_freed_memory()
    assert not calls
    fast.keep_freed_memory()
    assert calls
