"""For CPUs: products by oneDNN, freed memory that is kept, sums of few outputs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding_bag
from torch.utils._python_dispatch import _disable_current_modes

from spin_d3rlpy._compat import cpu_multiplies_bfloat16
from spin_d3rlpy.fast.switch import is_on


@functools.cache
def onednn_multiplies_float32() -> bool:
    """Whether float32 products on this CPU are to be left to oneDNN.

    torch gives them to MKL, which multiplies half as fast as oneDNN on AMD's processors. The only
    way to choose is to let oneDNN round factors to bfloat16, which it does where that is faster, so
    with AMX. Elsewhere it computes in float32, and a few products make sure of it. Older versions
    of torch have no such setting.
    """
    if products_setting() is None:
        return False
    try:
        vendor_is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    if not vendor_is_amd or getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)():
        return False
    generator = torch.Generator().manual_seed(0)
    # Once a process: not to be counted as a part of the training that happens to be the first.
    with float32_products_by_onednn(), _disable_current_modes():
        for shape in ((256, 17, 256), (256, 256, 18), (256, 256, 256), (2048, 256, 512)):
            a = torch.rand(shape[0], shape[1], generator=generator)
            b = torch.rand(shape[1], shape[2], generator=generator)
            exact = a.double() @ b.double()
            if ((a @ b - exact).abs() / exact).max() > 1e-5:  # bfloat16 is off by 1e-3
                return False
    return True


# Of a product's seconds in float32 to those in bfloat16, from which on whole steps are faster too:
# what is around the products, rounding included, gains nothing or loses.
LEAST_GAIN = 1.3


@functools.cache
def multiplies_faster_in_bfloat16() -> bool:
    """Whether bfloat16 is the faster format for products on this CPU, measured once a process.

    That it has units for them does not say so: AVX512-BF16 multiplied 2 times as fast as float32 on
    one Intel processor, and 0.65 times on another one, where steps in bfloat16 took 1.3 times as
    long.
    """
    if not cpu_multiplies_bfloat16():
        return False
    seconds = _seconds_of_products()
    return seconds[torch.float32] > LEAST_GAIN * seconds[torch.bfloat16]


def _seconds_of_products() -> dict[torch.dtype, float]:
    """Returns the seconds of a product in both formats, each the least of several turns."""
    seconds = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    # Whoever asks may be tracing, or in autocast.
    with _disable_current_modes(), torch.autocast("cpu", enabled=False), torch.no_grad():
        factors = {dtype: torch.ones(512, 512, dtype=dtype) for dtype in seconds}
        for _ in range(6):
            for dtype, factor in factors.items():
                began = time.perf_counter()
                factor @ factor
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds


def products_setting() -> Any:
    """Returns torch's setting of oneDNN's products; None in versions (2.6) that have none."""
    return getattr(torch.backends.mkldnn, "matmul", None)


# Who uses oneDNN now, in all threads: the setting is the process's.
_onednn_users = 0
_precision_before = "none"
_onednn_lock = threading.Lock()


@contextlib.contextmanager
def float32_products_by_onednn() -> Iterator[None]:
    """Enables float32 products by oneDNN, see `onednn_multiplies_float32`.

    The last thread to leave sets back what the first one found.
    """
    global _onednn_users, _precision_before
    products = products_setting()
    with _onednn_lock:
        _onednn_users += 1
        if _onednn_users == 1:
            _precision_before = products.fp32_precision
            # The least precision that products may have, not the one that they get: "ieee", the
            # other choice, sends them to MKL. Callers have made sure that oneDNN stays in float32.
            products.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _onednn_lock:
            _onednn_users -= 1
            if _onednn_users == 0:
                products.fp32_precision = _precision_before


def keep_freed_memory() -> None:
    """Tells the C library to keep freed memory for the next allocation.

    glibc gives larger arrays back to the system each time, and touching new pages again took up to
    half of a training step on a CPU. This holds until the process ends: it stays as large as it
    once was. `SPIN_D3RLPY_MALLOC=0` in the environment leaves the settings alone.
    """
    if is_on() and os.environ.get("SPIN_D3RLPY_MALLOC") != "0":
        _set_thresholds()


@functools.cache
def _set_thresholds() -> None:
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the largest value that glibc accepts
        mallopt(trim_threshold, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library (glibc) would keep it.

    A hundred thousand small arrays that are freed one by one stay a part of the process otherwise.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def sum_of_outputs(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, outputs: torch.Tensor
) -> torch.Tensor:
    """`linear(x, weight, bias).gather(1, outputs).sum(1)`, `(B,)`, without the other outputs."""
    added = embedding_bag(outputs, weight, mode="sum")  # (B, in)
    return (x * added).sum(1) + bias[outputs].sum(1)
