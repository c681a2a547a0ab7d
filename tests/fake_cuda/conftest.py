from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_cuda.machine import FakeGPU, machine_with_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGPU]:
    """A GPU without contents in this process."""
    with machine_with_gpu(monkeypatch) as fake:
        yield fake
