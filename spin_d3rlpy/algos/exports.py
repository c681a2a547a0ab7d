"""Greedy policies as TorchScript and ONNX files, which run without d3rlpy and this package."""

from __future__ import annotations

from typing import Any

import torch
from d3rlpy.logging import LOG

from spin_d3rlpy._compat import PolicyInputs, export_onnx, export_torchscript
from spin_d3rlpy.algos.saving import copy_to
from spin_d3rlpy.files.atomic import write_bytes
from spin_d3rlpy.images import RowSize


def export_policy(algo: Any, fname: str, masks: bool) -> None:
    """Writes a built algorithm's greedy policy; see `MultiDiscreteAlgo.save_policy`.

    Raises:
        ValueError: another extension, or a rule is a function that such a file cannot hold.
        ImportError: ONNX without the package `onnx` (`pip install "spin-d3rlpy[onnx]"`).
        FileWriteError: the file cannot be written; an earlier one remains.
    """
    if torch.device(algo.impl.device).type != "cpu":  # files would hold the device's name
        export_policy(copy_to(algo, "cpu:0"), fname, masks)
    elif fname.endswith(".onnx"):
        _export_onnx(algo, fname, masks)
    elif fname.endswith(".pt"):
        if functions := _functions_of_rules(algo):
            raise ValueError(
                f"TorchScript would repeat what the rule {functions[0]} did for one example. "
                "Write a file ending in .onnx, which follows tensor operations, or in "
                ".safetensors (spin_d3rlpy.save_policy)."
            )
        write_bytes(fname, export_torchscript(algo, masks, policy_inputs(algo)))
    else:
        raise ValueError(f"Expected a file name ending in .pt or .onnx, got {fname!r}.")


def policy_inputs(algo: Any) -> PolicyInputs:
    """Returns how an exported file takes a built algorithm's observations."""
    size = algo.impl.observation_shape[0]
    if isinstance(size, RowSize):
        return PolicyInputs(size.part_names, size.parts, size.rows)
    return PolicyInputs(["observations"], _same, _same)


def _same(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _export_onnx(algo: Any, fname: str, masks: bool) -> None:
    LOG.info("Writing ONNX, in seconds; in minutes if the policy searches slot by slot")
    try:
        content = export_onnx(algo, masks, policy_inputs(algo))
    except torch.onnx.errors.OnnxExporterError as error:
        if functions := _functions_of_rules(algo):
            raise ValueError(
                f"A rule among {functions} cannot be exported to ONNX: it does more than "
                "tensor operations, such as asking for a number. Rewrite it, or keep the "
                "policy as .safetensors (spin_d3rlpy.save_policy)."
            ) from error
        raise
    write_bytes(fname, content)


def _functions_of_rules(algo: Any) -> list[str]:
    rule = algo.config.rule
    return [] if rule is None else list(rule.functions)
