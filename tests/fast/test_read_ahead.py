"""Rows of mapped arrays are asked for together, in whole pages, and only theirs."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from spin_d3rlpy import fast
from spin_d3rlpy.fast import read_ahead as module

PAGE = mmap.PAGESIZE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Ranges that are asked for."""
    ranges: list[tuple[int, int, int]] = []
    monkeypatch.setattr(module, "_madvise", lambda: lambda *given: ranges.append(given))
    return ranges


@pytest.mark.parametrize("width", [1, 37, 1000, 1024, 1025, 5000])
def test_pages_of_rows_are_asked_for_and_no_others(
    width: int, asked: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    array = np.memmap(tmp_path / "a", np.float32, "w+", shape=(400, width))
    mapped = torch.from_numpy(array)
    rows = torch.tensor([0, 7, 8, 250, 250, 399])
    module.read_ahead(mapped, rows)
    expected = set()
    for row in rows.tolist():
        start = mapped.data_ptr() + row * width * 4
        expected |= set(range(start // PAGE, (start + width * 4 - 1) // PAGE + 1))
    pages = [start // PAGE + i for start, length, _ in asked for i in range(length // PAGE)]
    assert sorted(pages) == sorted(expected)
    assert all(start % PAGE == length % PAGE == 0 for start, length, _ in asked)
    assert {advice for _, _, advice in asked} == {mmap.MADV_WILLNEED}
    with fast.plain():
        asked.clear()
        module.read_ahead(mapped, rows)
    assert not asked


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system knows no such hint")
def test_the_system_takes_the_hint(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "a", np.float32, "w+", shape=(400, 37))
    start = torch.from_numpy(array).data_ptr()
    advise = module._madvise()
    assert advise is not None
    assert [
        advise(*pages, mmap.MADV_WILLNEED)
        for pages in module._ranges(start + np.arange(400) * 37 * 4, 37 * 4)
    ] == [0]
    module.read_ahead(torch.from_numpy(array), torch.arange(400))
