"""Workarounds for the host libraries: one function each, with its reason and the host's version."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn
from torch.jit._trace import TracerWarning, is_tracing

from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.nvec import actions_of, choices_of, nvec_from_space

if TYPE_CHECKING:  # importing d3rlpy imports gym
    from d3rlpy.logging import LoggerAdapterFactory
    from d3rlpy.optimizers.optimizers import OptimizerWrapper


def log_folders(factory: LoggerAdapterFactory, name: str) -> list[Path]:
    """Returns the folders that a run of this name would log to.

    d3rlpy 2.8 names them after the second in which a run starts and writes on in a folder that is
    there: runs that start together, of which one machine can hold many, mix their files.
    """
    from d3rlpy.logging import CombineAdapterFactory, FileAdapterFactory, TensorboardAdapterFactory

    if isinstance(factory, CombineAdapterFactory):
        return [folder for part in factory._adapter_factories for folder in log_folders(part, name)]
    if isinstance(factory, FileAdapterFactory):
        return [Path(factory._root_dir, name)]
    if isinstance(factory, TensorboardAdapterFactory):
        return [Path(factory._root_dir, "runs", name)]
    return []


class _DiscreteSpace(Discrete):
    """`Discrete` by type, by shape and samples a MultiDiscrete space that starts at 0."""

    def __init__(self, original: gymnasium.Space[Any]) -> None:
        super().__init__(max(nvec_from_space(original)))
        self.original = original
        self._shape = original.shape
        self.dtype = original.dtype

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return choices_of(self.original, self.original.sample())

    def contains(self, x: Any) -> bool:
        return self.original.contains(actions_of(self.original, np.atleast_1d(x)))


class DiscreteView(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with MultiDiscrete actions in a form that d3rlpy takes.

    d3rlpy 2.8 knows `Box` and `Discrete` action spaces only; with this view its `fit_online`,
    `collect` and replay buffers work as they are. Actions that are not in the space are refused,
    because d3rlpy's epsilon-greedy explorers draw them.

    Raises:
        InvalidActionSpaceError: another action space.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = _DiscreteSpace(env.action_space)

    def step(self, action: Any) -> Any:
        """Steps the environment with an action `(N,)`."""
        original = self.action_space.original  # type: ignore[attr-defined]
        action = actions_of(original, np.atleast_1d(action))
        if isinstance(original, Discrete):
            action = int(action)
        if not original.contains(action):
            raise InvalidActionSpaceError(
                f"Expected an action of {original}, got {action!r}. Explore with "
                "spin_d3rlpy.MultiDiscreteEpsilonGreedy: d3rlpy's explorers draw one choice for "
                "all sub-actions."
            )
        return self.env.step(action)


@contextlib.contextmanager
def quiet_tracing() -> Iterator[None]:
    """Silences what tracing a policy warns of.

    torch 2.13 deprecates tracing (2.15 by another kind of warning), with which d3rlpy 2.8 exports;
    the loop over sub-actions that tracing unrolls has a fixed length, so that is meant.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", TracerWarning)
        yield


class _GreedyPolicy(nn.Module):
    """An algorithm's greedy policy as a module, scaling included."""

    def __init__(self, algo: Any) -> None:
        super().__init__()
        self.networks = nn.ModuleDict(algo.impl.modules.get_torch_modules())
        self._algo = algo

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        scaler = self._algo.config.observation_scaler
        if scaler is not None:
            observations = scaler.transform(observations)
        actions: torch.Tensor = self._algo.impl.inner_predict_best_action(observations)
        return actions


def export_onnx(algo: Any, path: str) -> None:
    """Writes an algorithm's greedy policy as ONNX, for batches of any size.

    d3rlpy 2.8 hands a traced function to `torch.onnx.export`, which torch 2.13 refuses, and fixes
    the batch size to one.

    Raises:
        ImportError: the packages onnx and onnxscript, which torch needs, are not installed.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'Exporting to ONNX needs further packages: pip install "spin-d3rlpy[onnx]".'
        ) from error
    example = torch.zeros(2, algo.impl.observation_shape[0], device=algo.impl.device)
    if algo.config.observation_scaler is not None:
        algo.config.observation_scaler.transform(example)  # it makes its tensors at the first call
    algo.impl.modules.set_eval()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # packages that are not installed, and the like
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own code
            program = torch.onnx.export(
                _GreedyPolicy(algo).eval(),
                (example,),
                input_names=["observations"],
                output_names=["actions"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(disabled)
    assert program is not None
    program.save(path)


def fuse_adam(optim: OptimizerWrapper) -> OptimizerWrapper:
    """Switches a new Adam or AdamW to torch's fused kernel.

    d3rlpy 2.8's optimizer factories have no `fused` argument. On two CPU cores the fused kernel
    takes about a tenth of the loop's time. Other optimizers are returned as they are.
    """
    if isinstance(optim.optim, torch.optim.Adam | torch.optim.AdamW) and not optim.optim.state:
        for group in optim.optim.param_groups:
            group["fused"], group["foreach"] = True, False
    return optim


def step_without_schedule(optim: OptimizerWrapper) -> None:
    """Does one step of an optimizer, gradients clipped, and leaves its schedule where it is.

    d3rlpy 2.8 advances the schedule, which is arithmetic of the host, with the optimizer; a
    recorded step would never do it again.
    """
    schedule, optim._lr_scheduler = optim._lr_scheduler, None
    try:
        optim.step()
    finally:
        optim._lr_scheduler = schedule


def has_schedule(optim: OptimizerWrapper) -> bool:
    """Whether an optimizer has a learning-rate scheduler of d3rlpy's, which 2.8 keeps private."""
    return optim._lr_scheduler is not None


def advance_schedule(optim: OptimizerWrapper) -> None:
    """Sets an optimizer's next learning rate, if it has a schedule."""
    if optim._lr_scheduler is not None:
        optim._lr_scheduler.step()


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products.

    torch 2.13 tells this only through private functions; without them the answer is no.
    """
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def is_exporting() -> bool:
    """Whether this call is recorded into a file, which must hold for other inputs, too."""
    return is_tracing() or torch.compiler.is_compiling()
