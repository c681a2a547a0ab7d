"""Datasets do not depend on the kernels that OpenBLAS takes in the process that builds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.subprocesses import import_path

# Kernels that every x86-64 processor of the last fifteen years can run. They add up the squares of
# humanoid-stand's initial orientation in different orders.
KERNELS = ("Prescott", "Nehalem")
SCRIPT = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_info
kernels = {i["architecture"] for i in threadpool_info() if i["internal_api"] == "openblas"}
from spin_d3rlpy.data import build_dataset, parse_name
from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.loader import open_local
spec = parse_name("spin/humanoid-stand-b3/medium-expert-v0", 2000)
build_dataset(spec, jobs=1, progress=False)
dataset = open_local(spec.name)
checked = [spec.name, *sys.argv[1:]] if sys.argv[1:] else []
problems = [p for d in checked for p in check_dataset(open_local(d)).problems]
metadata = dataset.storage.metadata
print(json.dumps([
    sorted(kernels), metadata["checksum"], metadata["provenance"]["platform"], problems
]))
"""


def _build(kernel: str, folder: Path, *others: str) -> Any:
    """Builds with a kernel, and checks datasets `others`, if any, and what is built."""
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *others],
        env={
            **os.environ,
            "PYTHONPATH": import_path(),
            "OPENBLAS_CORETYPE": kernel,
            "MINARI_DATASETS_PATH": str(folder),
        },
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(built.stdout)


@pytest.mark.slow
def test_two_kernels_build_the_same_dataset_and_find_each_others_good(tmp_path: Path) -> None:
    found = np.show_config("dicts")["SIMD Extensions"].get("found", [])
    if not {"AVX2", "X86_V3"} & set(found):
        pytest.skip("not an x86-64 processor with AVX2, where the kernel is chosen")
    first, second = KERNELS
    kernel, checksum, platform, problems = _build(first, tmp_path / first)
    data = tmp_path / first / "spin" / "humanoid-stand-b3" / "medium-expert-2k-v0"
    other_kernel, *other = _build(second, tmp_path / second, str(data))
    if kernel == other_kernel:
        pytest.skip(f"NumPy's BLAS is not an OpenBLAS with the kernels {KERNELS}")
    assert other == [checksum, platform, problems]
    assert problems == []
    assert any("Haswell" in entry for entry in platform)
