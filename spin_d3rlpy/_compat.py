"""Workarounds for the host libraries: one function each, with its reason and the host's version."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
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

    Args:
        env: has a MultiDiscrete, MultiBinary or Discrete action space.

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


def advance_schedule(optim: OptimizerWrapper) -> None:
    """Sets an optimizer's next learning rate, if it has a schedule."""
    if optim._lr_scheduler is not None:
        optim._lr_scheduler.step()


@functools.cache
def keep_freed_memory() -> None:
    """Has the C library keep freed memory for the next allocation instead of returning it.

    A training step allocates and frees the same arrays over and over. glibc gives larger ones
    back to the system each time, and touching new pages again took up to half of a step on a CPU
    (torch 2.13 has no allocator of its own there). The process stays as large as it once was.
    Without glibc this does nothing.
    """
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the largest value that glibc accepts
        mallopt(trim_threshold, 2**31 - 1)


@functools.cache
def onednn_multiplies_float32() -> bool:
    """Whether float32 products on this CPU are to be left to oneDNN.

    torch 2.13 gives them to MKL, which multiplies half as fast as oneDNN on AMD's processors. The
    only way to choose is to let oneDNN round factors to bfloat16, which it does where that is
    faster, so with AMX. Elsewhere it computes in float32, and a few products make sure of it.
    """
    try:
        vendor_is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    if not vendor_is_amd or getattr(torch.cpu, "_is_amx_tile_supported", lambda: True)():
        return False
    generator = torch.Generator().manual_seed(0)
    with float32_products_by_onednn():
        for shape in ((256, 17, 256), (256, 256, 18), (256, 256, 256), (2048, 256, 512)):
            a = torch.rand(shape[0], shape[1], generator=generator)
            b = torch.rand(shape[1], shape[2], generator=generator)
            exact = a.double() @ b.double()
            if ((a @ b - exact).abs() / exact).max() > 1e-5:  # bfloat16 is off by 1e-3
                return False
    return True


@contextlib.contextmanager
def float32_products_by_onednn() -> Iterator[None]:
    """Lets oneDNN do float32 products, see `onednn_multiplies_float32`."""
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products.

    torch 2.13 tells this only through private functions; without them the answer is no.
    """
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def onednn_linear(
    dtype: torch.dtype,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Linear layer `(x, weight, bias)` on CPUs by oneDNN's own kernel, without gradients.

    torch 2.13 has it only as a private operator, for its compiler. None where that is missing and
    where products of this type are not oneDNN's.
    """
    if dtype == torch.bfloat16:
        is_onednns = cpu_multiplies_bfloat16()
    else:
        products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        stays = dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        is_onednns = stays and products.fp32_precision == "bf16"
    if not (is_onednns and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return None
    operator = torch.ops.mkldnn._linear_pointwise
    return lambda x, weight, bias: operator(x, weight, bias, "none", [], "")


def is_exporting() -> bool:
    """Whether this call is recorded into a file, which must hold for other inputs, too."""
    return is_tracing() or torch.compiler.is_compiling()
