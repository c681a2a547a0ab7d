from __future__ import annotations

import torch

from spin_d3rlpy.training.threads import at_most, one_thread


def test_one_thread_is_for_a_while_only() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        with at_most(3):  # not more than before
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
