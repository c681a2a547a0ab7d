from __future__ import annotations

import time

import pytest
import torch

from spin_d3rlpy.fast.cpu import float32_products_by_onednn, onednn_multiplies_float32


@pytest.mark.slow
@pytest.mark.skipif(not onednn_multiplies_float32(), reason="needs AMD's processor without AMX")
def test_torchs_own_float32_products_are_still_slower_on_amds_processors() -> None:
    """Why there is `onednn_multiplies_float32`."""
    a, b = torch.rand(2048, 256), torch.rand(256, 512)

    def seconds() -> float:
        started = time.process_time()
        for _ in range(20):
            a @ b
        return time.process_time() - started

    own = min(seconds() for _ in range(20))
    with float32_products_by_onednn():
        onednn = min(seconds() for _ in range(20))
    assert onednn < 0.9 * own
