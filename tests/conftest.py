from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    # Networks here are tiny: threads cost more than they save, and far more beside other work.
    torch.set_num_threads(1)
