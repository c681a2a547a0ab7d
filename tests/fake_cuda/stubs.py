"""Stands in for the driver that a CUDA build of torch asks how many GPUs there are.

Autograd asks even where tensors have no contents (see `machine.py`). Two libraries of a few lines
are compiled into a temporary folder and loaded before torch is imported, so that torch finds their
functions first: so this module is the first import of `tests/conftest.py`. On machines with a
driver, where torch has no CUDA, and in runs of all tests, it does nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ASKED = "SPIN_TESTS_FAKE_CUDA"
# How many GPUs there are: none until `machine_with_gpu` says otherwise.
COUNT = """
static signed char count;
void set_device_count(int n) { count = (signed char)n; }
signed char _ZN3c104cuda12device_countEv(void) { return count; } /* c10::cuda::device_count() */
"""
# The driver's functions that torch's library for kernels made at run time names; one is called.
NAMES = """CtxGetCurrent CtxSetCurrent DeviceGet DeviceGetAttribute DevicePrimaryCtxRetain
FuncGetAttribute FuncSetAttribute FuncSetCacheConfig GetErrorString LaunchCooperativeKernel
LaunchKernel LinkAddData_v2 LinkComplete LinkCreate_v2 ModuleGetFunction ModuleLoad ModuleLoadData
ModuleLoadDataEx ModuleUnload OccupancyMaxActiveBlocksPerMultiprocessor PointerGetAttribute
TensorMapEncodeTiled"""
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
DRIVER = "".join(f"int cu{name}(void) {{ return {NO_DEVICE}; }}\n" for name in NAMES.split()) + (
    "int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)"
    "{ *flags = *active = 0; return 0; }\n"
)


def _reason() -> str | None:
    """Why there is no stand-in, after loading it if there is none."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    if not (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists():
        return "torch is a CPU build; this needs a CUDA build, but no driver"
    if "fake_cuda" in " ".join(sys.argv):
        os.environ[ASKED] = "1"  # for pytest's workers
    if ASKED not in os.environ:
        return "takes minutes; run with -m fake_cuda"
    compiler = shutil.which("cc")
    if compiler is None:
        return "no C compiler, which makes the stand-in for the driver"
    if "torch" in sys.modules:
        return "torch was imported before tests/fake_cuda/stubs.py"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        return "there is a driver: tests/algos/test_cuda.py says more"
    with tempfile.TemporaryDirectory() as folder:
        for name, code in (("libcuda.so.1", DRIVER), ("libcount.so", COUNT)):
            path = f"{folder}/{name}"
            options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", path]
            subprocess.run([compiler, *options], input=code.encode(), check=True)
            _libraries.append(ctypes.CDLL(path, ctypes.RTLD_GLOBAL))
    # torch imports it late, and with it Triton, whose LLVM crashes where Mesa's is loaded already.
    importlib.import_module("torch._dynamo")
    return None


_libraries: list[ctypes.CDLL] = []
MISSING = _reason()


def set_device_count(n: int) -> None:
    """Has torch believe in so many GPUs."""
    _libraries[-1].set_device_count(n)
