"""Acting by files of `algo.save_policy`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from spin_d3rlpy._compat import quiet_tracing


def load_exported(path: str | Path) -> Callable[..., NDArray[Any]]:
    """Returns a function of a file's inputs, for tests that call one file several times.

    It takes what `exported_actions` takes after the path.
    """
    suffix = Path(path).suffix
    assert suffix in {".pt", ".onnx"}
    return _load_torchscript(path) if suffix == ".pt" else _load_onnx(path)


def exported_actions(path: str | Path, **inputs: NDArray[Any]) -> NDArray[Any]:
    """Loads an exported file and returns its actions.

    The test is skipped where the file is ONNX and onnxruntime is not installed.

    Args:
        path: of TorchScript (`.pt`) or ONNX (`.onnx`).
        inputs: what the file takes, by name: `observations` and, if it was exported with them,
            `masks`. ONNX knows these names; TorchScript takes the inputs in the order given.
    """
    return load_exported(path)(**inputs)


def _load_torchscript(path: str | Path) -> Callable[..., NDArray[Any]]:
    with quiet_tracing():  # newer versions of torch deprecate it
        policy = torch.jit.load(str(path))

    def act(**inputs: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = policy(*map(torch.from_numpy, inputs.values())).numpy()
        return actions

    return act


def _load_onnx(path: str | Path) -> Callable[..., NDArray[Any]]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    assert [output.name for output in session.get_outputs()] == ["actions"]

    def act(**inputs: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = session.run(["actions"], inputs)[0]
        return actions

    return act
