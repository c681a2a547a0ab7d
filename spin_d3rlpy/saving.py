"""Trained algorithms as files that run nothing: safetensors weights, configuration as JSON.

d3rlpy's own format (`algo.save`, `d3rlpy.load_learnable`) is a pickle: whoever made such a file can
have anything run where it is loaded. These files can come from anyone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from d3rlpy.base import DeviceArg, LearnableConfigWithShape
from d3rlpy.torch_utility import unwrap_ddp_model
from torch import nn

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.impl import MultiDiscreteConfig
from spin_d3rlpy.atomic import written_whole
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.policies import SPINEncoderFactory

FORMAT = "spin-d3rlpy policy"
VERSION = 1
MAX_BYTES = 4 * 2**30
_MAX_CONFIG_BYTES = 2**24  # a configuration holds the statistics that observations are scaled with
_TYPES = {"F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool, "I64": torch.int64}


def save_policy(algo: MultiDiscreteAlgo[Any, Any], path: str | Path) -> None:
    """Writes a built algorithm's networks and configuration to `path`, in one step.

    `load_policy` gives an algorithm that acts and values the same. Optimizers are not in the file:
    training can go on from it, but not as if it had not stopped (`checkpoint_dir` is for that).

    Args:
        algo: any algorithm of this package.
        path: the file, e.g. `policy.safetensors`.

    Raises:
        TypeError: another kind of algorithm.
        RuntimeError: it is not built.
    """
    if not isinstance(algo, MultiDiscreteAlgo):
        raise TypeError(f"Expected an algorithm of spin_d3rlpy, got {type(algo).__name__}.")
    if algo.impl is None:
        raise RuntimeError("Call fit, build_with_dataset or build_with_env first.")
    described = LearnableConfigWithShape(
        observation_shape=algo.impl.observation_shape,
        action_size=algo.impl.action_size,
        config=algo.config,
    )
    header = {
        "format": FORMAT,
        "version": VERSION,
        "grad_step": algo.grad_step,
        "algorithm": described.serialize_to_dict(),
    }
    # Copies, because networks may share weights and this format cannot.
    tensors = {k: v.detach().cpu().clone() for k, v in _weights(algo).items()}
    with written_whole(Path(path)) as partial:
        safetensors.torch.save_file(tensors, partial, {"spin": json.dumps(header)})


def load_policy(
    path: str | Path, device: DeviceArg = False, max_bytes: int = MAX_BYTES
) -> MultiDiscreteAlgo[Any, Any]:
    """Reads an algorithm that `save_policy` wrote. The file may be anyone's.

    Nothing in it is run, and its configuration is built without memory first, so that networks
    are made only if the file holds all their weights.

    Args:
        path: the file.
        device: as in d3rlpy (`"cuda:0"`, `True`, ...).
        max_bytes: larger files are refused.

    Returns:
        An algorithm of the class that was saved.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, too large, of another kind or version, its weights
            are not those that its configuration asks for, or they are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No policy file at {path}. Write one with save_policy.")
    if path.stat().st_size > max_bytes:
        raise InvalidCheckpointError(
            f"{path} has {path.stat().st_size} bytes, over the limit of {max_bytes}. Pass "
            "max_bytes= if it is yours."
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = _read_header(file.metadata())
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            found = {k: (s.get_dtype(), tuple(s.get_shape())) for k, s in slices.items()}
            _check_sizes(header, found)
            _check_weights(_build(header, "meta", len(found)), found)
            algo = _build(header, device, len(found))
            for key, tensor in _weights(algo).items():
                value = file.get_tensor(key)
                if value.is_floating_point() and not value.isfinite().all():
                    raise InvalidCheckpointError(f"its weights {key} are not finite")
                tensor.data.copy_(value)
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{path} is not a good policy file: {error}.") from error
    except Exception as error:  # what a stranger's configuration ends in is not foreseeable
        raise InvalidCheckpointError(
            f"{path} is not a readable policy file ({error!r}). Copy it again or save it again."
        ) from error
    algo.set_grad_step(header["grad_step"])
    return algo


def _weights(algo: MultiDiscreteAlgo[Any, Any]) -> dict[str, torch.Tensor]:
    assert algo.impl is not None
    networks: Mapping[str, nn.Module] = algo.impl.modules.get_torch_modules()
    return {
        f"{name}/{key}": value
        for name, network in networks.items()
        for key, value in unwrap_ddp_model(network).state_dict().items()
    }


def _read_header(metadata: dict[str, str] | None) -> dict[str, Any]:
    text = (metadata or {}).get("spin", "{}")
    if len(text) > _MAX_CONFIG_BYTES:
        raise InvalidCheckpointError(f"its configuration has {len(text)} bytes")
    header = json.loads(text)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidCheckpointError("it is a safetensors file of another kind")
    if header.get("version") != VERSION:
        raise InvalidCheckpointError(
            f"it has format version {header.get('version')}, this spin-d3rlpy reads {VERSION}"
        )
    if type(header.get("grad_step")) is not int or header["grad_step"] < 0:
        raise InvalidCheckpointError("its number of steps is no number")
    return header


def _check_sizes(header: dict[str, Any], found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Bounds what is laid out for the action space by how many weights there are."""
    n_weights = sum(math.prod(shape) for _, shape in found.values())
    params = header["algorithm"]["config"]["params"]
    nvec, observation_shape = params["nvec"], header["algorithm"]["observation_shape"]
    n_samples = params.get("n_action_samples", 1)
    numbers = [*nvec, *observation_shape, n_samples]
    if not all(type(number) is int and number > 0 for number in numbers):
        raise InvalidCheckpointError("its shapes are no positive numbers")
    # What is made beside weights: a table of slots by the largest number of choices, and noise.
    tables = max(len(nvec) * max(nvec), n_samples * sum(nvec))
    if max(sum(nvec), *observation_shape) > n_weights or tables > 64 * n_weights:
        raise InvalidCheckpointError("it has fewer weights than its action space needs")


def _build(
    header: dict[str, Any], device: DeviceArg, n_tensors: int
) -> MultiDiscreteAlgo[Any, Any]:
    described: Any = LearnableConfigWithShape.deserialize_from_dict(header["algorithm"])
    if not isinstance(described.config, MultiDiscreteConfig):
        raise InvalidCheckpointError("it is of an algorithm that this package does not have")
    config: Any = described.config
    encoder = getattr(config, "actor_encoder_factory", None)
    if isinstance(encoder, SPINEncoderFactory):  # its weights are in this file
        config.actor_encoder_factory = dataclasses.replace(encoder, asm_path=None)
    algo: MultiDiscreteAlgo[Any, Any] = config.create(device)
    # Without memory where nothing but shapes is asked for.
    on_meta = torch.device("meta") if device == "meta" else nullcontext()
    with _at_most(n_tensors), on_meta:
        algo.create_impl(tuple(described.observation_shape), described.action_size)
    return algo


@contextmanager
def _at_most(n_tensors: int) -> Iterator[None]:
    """Stops the making of networks with many more parameters than the file has."""
    made = 0

    def count(*_: Any) -> None:
        nonlocal made
        made += 1
        # Some parts are made twice, for example before they are copied to targets.
        if made > 4 * n_tensors + 64:
            raise InvalidCheckpointError("its configuration asks for more weights than it holds")

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_weights(
    algo: MultiDiscreteAlgo[Any, Any], found: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    expected = {k: (v.dtype, tuple(v.shape)) for k, v in _weights(algo).items()}
    read = {k: (_TYPES.get(dtype), shape) for k, (dtype, shape) in found.items()}
    for key in sorted({*expected, *read}):
        if expected.get(key) != read.get(key):
            raise InvalidCheckpointError(
                f"its configuration asks for {key} as {expected.get(key, 'nothing')}, it holds "
                f"{found.get(key, 'nothing')}"
            )
