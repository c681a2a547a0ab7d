"""Trained algorithms as files that can be untrusted: safetensors weights, a JSON configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from d3rlpy.base import DeviceArg, LearnableConfigWithShape
from d3rlpy.torch_utility import unwrap_ddp_model
from torch import nn

from spin_d3rlpy.algos.config import SCALERS, MultiDiscreteConfig
from spin_d3rlpy.asm.model import ActionStructureModel
from spin_d3rlpy.asm.rule_files import trusted_rules
from spin_d3rlpy.data.action_spaces import KEY as ACTIONS_KEY
from spin_d3rlpy.data.action_spaces import read_flat_actions
from spin_d3rlpy.data.scalers import scaler_to_dict
from spin_d3rlpy.data.tables.preparation import KEY, TablePreparation, read_preparation
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError, shown
from spin_d3rlpy.files.atomic import write_bytes
from spin_d3rlpy.files.fields import LARGEST
from spin_d3rlpy.files.untrusted import MAX_BYTES, open_untrusted
from spin_d3rlpy.histories import History
from spin_d3rlpy.policies.joint import JointPolicy
from spin_envs import FlatActions, ObservationLayout

FORMAT = "spin-d3rlpy policy"
VERSION = 1


def save_policy(algo: Any, path: str | Path) -> None:
    """Atomically writes a built algorithm's networks and configuration to `path`.

    The loaded algorithm acts and values the same and gives the same `support`. Optimizers are not
    saved: to resume training exactly, use `checkpoint_dir`. For a file that runs without this
    package, use `algo.save_policy`.

    Raises:
        TypeError: `algo` is not an algorithm of this package.
        RuntimeError: it is not built, or a scaler is not fitted.
        FileWriteError: the file cannot be written; an earlier one remains.
    """
    if not isinstance(getattr(algo, "config", None), MultiDiscreteConfig):
        raise TypeError(f"Expected an algorithm of spin_d3rlpy, got {type(algo).__name__}.")
    impl = algo.require_built(SCALERS)
    described = LearnableConfigWithShape(
        observation_shape=impl.observation_shape,
        action_size=impl.action_size,
        config=algo.config,
    )
    header = {
        "format": FORMAT,
        "version": VERSION,
        "grad_step": algo.grad_step,
        "algorithm": described.serialize_to_dict(),
        "has_asm": _separate_asm(algo) is not None,
    }
    if algo.preparation is not None:
        header[KEY] = algo.preparation.to_json()
    # Copies, because networks may share weights and this format cannot.
    tensors = {k: v.detach().cpu().clone() for k, v in _file_weights(algo).items()}
    write_bytes(path, safetensors.torch.save(tensors, {"spin": json.dumps(header)}))


def load_policy(
    path: str | Path,
    device: DeviceArg = False,
    max_bytes: int = MAX_BYTES,
    trust: bool = False,
) -> Any:
    """Reads an algorithm that `save_policy` wrote; the file may be untrusted.

    Nothing in it is executed without `trust`, and memory is allocated only if the file holds all
    weights of its configuration. Files of more than `max_bytes` are refused.

    Args:
        path: file of `save_policy`.
        device: where the algorithm is built.
        max_bytes: largest file that is read.
        trust: import the functions that the policy has as rules, which runs their modules. Named
            rules need no trust.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidCheckpointError: it is damaged, too large, of another kind or version, or its weights
            are not finite or do not match its configuration.
        UntrustedRuleError: it names a function as a rule, without `trust`.
    """
    advice = "Write one with save_policy, or copy it again."
    with (
        trusted_rules() if trust else nullcontext(),
        open_untrusted(Path(path), "policy file", advice, max_bytes) as file,
    ):
        header = file.header(FORMAT, VERSION)
        steps = header.get("grad_step")
        if type(steps) is not int or not 0 <= steps <= LARGEST:
            raise InvalidCheckpointError("its number of steps is not a number")
        params = header["algorithm"]["config"]["params"]
        file.check_spaces(
            params["nvec"],
            header["algorithm"]["observation_shape"],
            params.get("n_action_samples", 1),
            _pixels(params),
        )
        preparation, actions = _preparation(header), _flat_actions(header)
        with file.no_more_parameters():
            with torch.device("meta"):  # shapes without memory
                file.check_weights(_file_weights(_build(header, "meta")))
            algo = _build(header, device)
        file.read_into(_file_weights(algo))
    algo.set_grad_step(header["grad_step"])
    algo.preparation, algo.flat_actions = preparation, actions
    return algo


def _pixels(params: dict[str, Any]) -> int:
    """Returns how many numbers of an observation, or of a row of several, are of images."""
    images = params.get("observation_layout")
    if images is None:
        return 0
    return int(params.get("history", 1)) * ObservationLayout.from_dict(images).n_pixels


def _preparation(header: dict[str, Any]) -> TablePreparation | None:
    """The table's preparation in a file; policies of other data have none."""
    described = header["algorithm"]
    params = described["config"]["params"]
    size, length = described["observation_shape"][0], params.get("history", 1)
    try:
        if length != 1:
            actions = params["history_actions"]
            size = History(length, actions, tuple(params["nvec"])).observation_size(size)
        return read_preparation(header.get(KEY), size, params["nvec"])
    except InvalidDatasetError as error:
        raise InvalidCheckpointError(str(error)) from error


def _flat_actions(header: dict[str, Any]) -> FlatActions | None:
    """The space of its environment's actions in a file, if it is another than slots."""
    params = header["algorithm"]["config"]["params"]
    kept = params.get(ACTIONS_KEY, header.get(ACTIONS_KEY))  # the latter is of older files
    try:
        return read_flat_actions(kept, params["nvec"])
    except InvalidDatasetError as error:
        raise InvalidCheckpointError(str(error)) from error


def copy_to(algo: Any, device: str) -> Any:
    """Returns a built algorithm's copy on another device, to act by."""
    impl = algo.impl
    described = LearnableConfigWithShape(impl.observation_shape, impl.action_size, algo.config)
    with trusted_rules():  # this process has imported them before
        copy = _build({"algorithm": described.serialize_to_dict(), "has_asm": False}, device)
    with torch.no_grad():
        weights = _weights(algo)
        for name, value in _weights(copy).items():
            value.copy_(weights[name])
    copy.preparation = algo.preparation
    return copy


def _weights(algo: Any) -> dict[str, torch.Tensor]:
    assert algo.impl is not None
    networks: Mapping[str, nn.Module] = algo.impl.modules.get_torch_modules()
    return {
        f"{name}/{key}": value
        for name, network in networks.items()
        for key, value in unwrap_ddp_model(network).state_dict().items()
    }


def _build(header: dict[str, Any], device: DeviceArg) -> Any:
    described: Any = LearnableConfigWithShape.deserialize_from_dict(header["algorithm"])
    if not isinstance(described.config, MultiDiscreteConfig):
        raise InvalidCheckpointError("its algorithm is unknown to this package")
    saved = header["algorithm"]["config"]["params"]
    _require_same(saved, described.config.serialize_to_dict())
    algo = described.config.create(device)
    algo.create_impl(tuple(described.observation_shape), described.action_size)
    if header["has_asm"]:
        _add_asm(algo)
    return algo


def _require_same(given: object, read: object, name: str = "configuration") -> None:
    """Raises InvalidCheckpointError unless a saved configuration is what was read from it.

    Readers of JSON leave unknown fields out, and turn "32" and 32.5 into the whole number 32.
    """
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in read:
                raise InvalidCheckpointError(f"its {name} has an unknown field {shown(key)}")
            _require_same(value, read[key], name if key == "params" else key)
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for value, own in zip(given, read, strict=True):
            _require_same(value, own, name)
    elif given is not None and (given != read or isinstance(given, bool) != isinstance(read, bool)):
        raise InvalidCheckpointError(f"its {name} is {shown(given)}, which is of another type")


def _separate_asm(algo: Any) -> ActionStructureModel | None:
    """The model of an algorithm whose networks do not contain the whole of it."""
    if not getattr(algo, "takes_asm", False) or isinstance(algo.policy, JointPolicy):
        return None
    asm: ActionStructureModel | None = algo.asm
    return asm


def _file_weights(algo: Any) -> dict[str, torch.Tensor]:
    weights, asm = _weights(algo), _separate_asm(algo)
    if asm is not None:
        weights.update({f"asm/{key}": value for key, value in asm.state_dict().items()})
    return weights


def _add_asm(algo: Any) -> None:
    """Gives a built algorithm a model whose weights are still to be read."""
    if not getattr(algo, "takes_asm", False):
        raise InvalidCheckpointError("its policy has no Action Structure Model")
    config = algo.config
    structure = config.policy.structure
    asm = ActionStructureModel(algo.impl.observation_shape[0], config.nvec, structure)
    asm.observation_scaler = scaler_to_dict(config.observation_scaler)
    algo.keep_asm(asm.to(algo.impl.device).requires_grad_(False).eval())
