"""Dropout whose random numbers cost less than a tenth of torch's on a CPU."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import dropout as torch_dropout

from spin_d3rlpy.fast.switch import is_on

TModule = TypeVar("TModule", bound=nn.Module)

# Integer type of the same width, to handle a float's bits; and 16 random bits an entry.
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}

# Powers of a number modulo 2^64. Its lower half-word is such that, of all its powers up to the
# 31st, none maps choices of 16 bits to nearby ones modulo 2^16 (found by trying all of them).
_LANES = 32
_MULTIPLIERS = torch.from_numpy(
    np.array([pow(0x9E3779B97F4A0185, i, 2**64) for i in range(_LANES)], np.uint64).view(np.int64)
)[:, None]


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Zeroes entries with probability `p` and scales the others so that the mean stays.

    On CPUs torch draws one Bernoulli number an entry, which took a quarter of a pre-training
    step; here one word of 64 random bits serves four entries. In bfloat16 the scale
    `1 / (1 - p)` is first rounded to that type and `p` follows from it (0.1 becomes 0.0986), so
    that the mean stays. `p` is met to within 2^-16.
    """
    if p == 0.0:
        return x
    return x * dropout_factor(x, p) if is_on_cpu(x) else torch_dropout(x, p)


def add_dropout(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    """Returns `x + dropout(y)`, in one pass over both where that is this module's dropout."""
    if p == 0.0 or not is_on_cpu(y):
        return x + dropout(y, p)
    return torch.addcmul(x, y, dropout_factor(y, p))


def is_on_cpu(x: torch.Tensor) -> bool:
    """Whether `x` is of a kind that this folder has CPU code for: float32 or bfloat16."""
    return x.device.type == "cpu" and x.dtype in _BITS


def dropout_factor(x: torch.Tensor, p: float) -> torch.Tensor:
    """What `dropout` multiplies a float32 or bfloat16 tensor on the CPU with: zeros and scales."""
    scale = torch.tensor(1.0 / (1.0 - p), dtype=x.dtype)
    end = round(2**16 / scale.item()) - 2**15  # of 16 random bits, signed, those below it are kept
    end = min(max(end, 1 - 2**15), 2**15 - 1)
    n = x.numel()
    kept = random_words(-(-n // 4)).view(torch.int16)[:n]
    # -1, which has all bits, where the entry is kept and else 0: comparing takes five times as long
    kept = kept.clamp_(end - 1, end).sub_(end)
    width = _BITS[x.dtype]
    return kept.to(width).bitwise_and_(scale.view(width)).view(x.dtype).view(x.shape)


def random_words(n: int) -> torch.Tensor:
    """Draws n words of 64 random bits with torch's generator.

    That generator works on one core, number after number. So only one of 32 words comes from it.
    From each drawn number x come 32 words `c_i + m_i x` modulo 2^64, where the c_i are drawn as
    well: any three words are independent, and the multipliers m_i see to it that words with
    numbers in common have no common pattern.
    """
    n_drawn = -(-n // _LANES)
    drawn = torch.empty(n_drawn + _LANES, dtype=torch.int64).random_(-(2**63), None)
    words = torch.addcmul(drawn[n_drawn:, None], _MULTIPLIERS, drawn[:n_drawn])
    return words.flatten()[:n]


class Dropout(nn.Dropout):
    """torch's module with this dropout."""

    @property
    def rate(self) -> float:
        """Probability of zeroing an entry now: none in evaluation mode."""
        return self.p if self.training else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies dropout in training mode."""
        return dropout(x, self.rate) if is_on() else super().forward(x)


def replace_dropout(module: TModule) -> TModule:
    """Puts this `Dropout` in the place of torch's inside a module, and returns it."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, Dropout(child.p))
        else:
            replace_dropout(child)
    return module
