"""Workarounds for the host libraries: one function each, with its reason and the host's version."""

from __future__ import annotations

import contextlib
import dataclasses
import json
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
    import onnx_ir
    from d3rlpy.dataset import ReplayBufferBase
    from d3rlpy.dataset.writers import _ActiveEpisode
    from d3rlpy.logging import LoggerAdapterFactory
    from d3rlpy.optimizers.optimizers import OptimizerWrapper
    from d3rlpy.types import NDArray, Observation


def log_folders(factory: LoggerAdapterFactory, name: str) -> list[Path]:
    """Returns the log folders of a run of this name.

    d3rlpy 2.8 names them by the second a run starts in, so runs that start together share a folder.
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
        # What an unsigned type is mixed with becomes a number with a point.
        is_unsigned = np.dtype(original.dtype).kind == "u"
        self.dtype = np.dtype(np.int64) if is_unsigned else original.dtype

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return choices_of(self.original, self.original.sample())

    def contains(self, x: Any) -> bool:
        return self.original.contains(actions_of(self.original, np.atleast_1d(x)))


class DiscreteView(gymnasium.Wrapper[Any, Any, Any, Any]):
    """View of a MultiDiscrete environment that d3rlpy accepts.

    d3rlpy 2.8 knows only `Box` and `Discrete` action spaces. Actions outside the space are refused,
    because d3rlpy's epsilon-greedy explorers draw such actions.

    Raises:
        InvalidActionSpaceError: the action space is of another kind.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = _DiscreteSpace(env.action_space)
        self._has_warned = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode; warns once of masks, which d3rlpy's loop neither keeps nor stores."""
        observation, info = self.env.reset(seed=seed, options=options)
        if "action_mask" in info and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "The environment has masks in info['action_mask'], which fit_online and collect of "
                "an algorithm do not keep: actions may break them, and the buffer has none. Play "
                "with spin_d3rlpy.collect(env, choose, with_masks=True), where choose calls "
                "predict_masked, and train with fit.",
                UserWarning,
                stacklevel=2,
            )
        return observation, info

    def step(self, action: Any) -> Any:
        """Steps the environment with an action `(N,)`.

        Raises:
            InvalidActionSpaceError: the action is not in the original action space.
        """
        original = self.action_space.original  # type: ignore[attr-defined]
        action = actions_of(original, np.atleast_1d(action))
        if isinstance(original, Discrete):
            action = int(action)
        if not original.contains(action):
            raise InvalidActionSpaceError(
                f"Expected an action of {original}, got {action!r}. Explore with "
                "spin_d3rlpy.MultiDiscreteEpsilonGreedy: d3rlpy's explorers draw one choice for "
                "all slots."
            )
        return self.env.step(action)


def keep_whole_episodes(buffer: ReplayBufferBase) -> None:
    """Makes a d3rlpy replay buffer keep episodes of any length apart and whole.

    d3rlpy 2.8 ends with an AssertionError at an episode's 10,001st step, and adds an episode of one
    step to the next one.
    """
    from d3rlpy.dataset import MixedReplayBuffer, ReplayBuffer
    from d3rlpy.dataset.writers import ExperienceWriter, _ActiveEpisode

    class Writer(ExperienceWriter):
        def write(
            self, observation: Observation, action: int | NDArray, reward: float | NDArray
        ) -> None:
            episode = self._active_episode
            if episode._cursor == episode._cache_size:
                _grow(episode)
            super().write(observation, action, reward)

        def clip_episode(self, terminated: bool) -> None:
            episode = self._active_episode
            if episode.size() != 1:
                super().clip_episode(terminated)
                return
            # A truncated one has no transition: d3rlpy stores no observation after the last action.
            if terminated:
                episode.shrink(terminated)
                self._buffer.append(episode, 0)
            self._active_episode = _ActiveEpisode(
                self._preprocessor,
                self._cache_size,
                self._observation_signature,
                self._action_signature,
                self._reward_signature,
            )

    if isinstance(buffer, MixedReplayBuffer):
        keep_whole_episodes(buffer._primary_replay_buffer)
    elif isinstance(buffer, ReplayBuffer) and type(buffer._writer) is ExperienceWriter:
        buffer._writer.__class__ = Writer


def _grow(episode: _ActiveEpisode) -> None:
    """Doubles the arrays of an episode that d3rlpy is recording."""
    size = episode._cache_size = 2 * episode._cache_size

    def grown(array: NDArray) -> NDArray:
        larger = np.empty((size, *array.shape[1:]), array.dtype)
        larger[: len(array)] = array
        return larger

    episode._observations = [grown(array) for array in episode._observations]
    episode._actions, episode._rewards = grown(episode._actions), grown(episode._rewards)


@contextlib.contextmanager
def quiet_tracing() -> Iterator[None]:
    """Silences deprecation and tracing warnings during d3rlpy 2.8's TorchScript export.

    The unrolled loop over slots has a fixed length, so tracing is correct here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", TracerWarning)
        yield


class _GreedyPolicy(nn.Module):
    """An algorithm's greedy policy as a module, scaling included, with or without masks."""

    def __init__(self, algo: Any, inputs: PolicyInputs) -> None:
        super().__init__()
        self.networks = nn.ModuleDict(algo.impl.modules.get_torch_modules())
        self._algo, self._inputs = algo, inputs

    def forward(self, seen: Any, masks: torch.Tensor | None = None) -> torch.Tensor:
        observations = self._inputs.rows(seen)
        inputs = self._algo.network_input(observations)
        actions: torch.Tensor = self._algo.impl.predict_allowed(
            inputs, masks, self._algo.states(observations)
        )
        return actions


@dataclasses.dataclass(frozen=True)
class PolicyInputs:
    """How an exported file takes observations.

    Attributes:
        names: of its inputs.
        parts: of rows `(B, obs)`: one tensor of B rows, or a tuple of them.
        rows: inverse of `parts`.
    """

    names: list[str]
    parts: Callable[[torch.Tensor], Any]
    rows: Callable[[Any], torch.Tensor]


def _example_inputs(algo: Any, masks: bool, inputs: PolicyInputs) -> tuple[Any, ...]:
    """Returns two observations and, if wanted, masks that allow everything."""
    impl, nvec = algo.impl, algo.config.nvec
    observations = inputs.parts(torch.zeros(2, impl.observation_shape[0], device=impl.device))
    if not masks:
        return (observations,)
    shape = (2, len(nvec), max(nvec))
    return observations, torch.ones(shape, dtype=torch.bool, device=impl.device)


def export_torchscript(algo: Any, masks: bool, inputs: PolicyInputs) -> bytes:
    """Returns an algorithm's greedy policy as TorchScript of observations and, if wanted, masks.

    d3rlpy 2.8 writes policies of observations only, and torch 2.13 ends the process when it writes
    a file to a full disk: hence bytes.
    """
    policy = _GreedyPolicy(algo, inputs).eval()
    algo.impl.modules.set_eval()
    algo.impl.modules.freeze()  # parameters become constants of the file
    try:
        with quiet_tracing(), torch.no_grad():
            examples = _example_inputs(algo, masks, inputs)
            traced = torch.jit.trace(lambda *inputs: policy(*inputs), examples, check_trace=False)
            kept = {f"{name}.json": text for name, text in _kept_with(algo).items()}
            content: bytes = traced.save_to_buffer(_extra_files=kept)
            return content
    finally:
        algo.impl.modules.unfreeze()


def _kept_with(algo: Any) -> dict[str, str]:
    """Returns what exported files say of an algorithm in addition to what they compute, as JSON."""
    actions = algo.flat_actions
    return {} if actions is None else {"flat_actions": json.dumps(actions.to_dict())}


def export_onnx(algo: Any, masks: bool, inputs: PolicyInputs) -> bytes:
    """Returns an algorithm's greedy policy as ONNX, for batches of any size.

    d3rlpy 2.8 passes a traced function, which torch 2.13 refuses, and fixes the batch size to one.
    torch's own optimization compares each operation with all others (onnxscript 0.7): that of a
    search over ten slots does not end in minutes. With `masks` the file has a second input.

    Raises:
        ImportError: onnx or onnxscript is not installed, or torch is too old for this policy.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'Exporting to ONNX needs further packages: pip install "spin-d3rlpy[onnx]".'
        ) from error
    examples = _example_inputs(algo, masks, inputs)
    # A scaler makes its tensors at the first call.
    algo.network_input(inputs.rows(examples[0]))
    # Without a bound torch 2.6 finds that the batch cannot be of any size.
    batch = torch.export.Dim("batch", max=2**31 - 1)
    algo.impl.modules.set_eval()
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # packages that are not installed, and the like
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of torch's own code
            program = torch.onnx.export(
                _GreedyPolicy(algo, inputs).eval(),
                examples,
                input_names=inputs.names + ["masks"] * masks,
                output_names=["actions"],
                dynamic_shapes=tuple(
                    tuple({0: batch} for _ in example) if isinstance(example, tuple) else {0: batch}
                    for example in examples
                ),
                dynamo=True,
                verbose=False,
                optimize=False,
            )
            assert program is not None
            _require_any_batch(program.model)
            _shrink_onnx(program.model)
            program.model.metadata_props.update(_kept_with(algo))
    finally:
        logging.disable(disabled)
    content: bytes = program.model_proto.SerializeToString()
    return content


def _require_any_batch(model: onnx_ir.Model) -> None:
    """Raises ImportError if the number of observations is fixed, as torch 2.6 has it with LSTMs."""
    for batch in (given.shape[0] for given in model.graph.inputs if given.shape is not None):
        if isinstance(batch, int):
            raise ImportError(
                f"Expected a torch that writes this policy as ONNX for any number of observations "
                f"(2.13 does), got {torch.__version__}, which fixes it to {batch}. Update torch, "
                "or write TorchScript (.pt)."
            )


def _count_axes_from_the_front(model: onnx_ir.Model) -> None:
    """Replaces negative axes of reductions, in place.

    onnxruntime 1.2x leaves an axis counted from the back in the result of no rows: the largest of
    `(0, N, K)` is `(0, N, K)`. No rows are common: moves of a search that finds none.
    """
    import onnx_ir

    for node in list(model.graph):
        reduced = node.inputs[0] if node.inputs else None
        if reduced is None or reduced.shape is None:  # torch's own sums of lengths
            continue
        rank = len(reduced.shape)
        if node.op_type.startswith("Reduce") and len(node.inputs) > 1:
            given = node.inputs[1]
            axes = None if given is None else onnx_ir.convenience.get_const_tensor(given)
            if axes is None:
                continue
            positive = [int(axis) % rank for axis in axes.numpy().reshape(-1)]
            constant = onnx_ir.node("Constant", [], attributes={"value_ints": positive})
            model.graph.insert_before(node, constant)
            node.replace_input_with(1, constant.outputs[0])
        elif node.op_type in ("ArgMax", "ArgMin") and "axis" in node.attributes:
            axis = node.attributes["axis"].as_int() % rank
            node.attributes["axis"] = onnx_ir.AttrInt64("axis", axis)


def _shrink_onnx(model: onnx_ir.Model) -> None:
    """Computes constants, and each expression once, in place."""
    from onnx_ir.passes import Sequential, common
    from onnxscript.optimizer import fold_constants

    common.InlinePass()(model)
    fold_constants(model)
    _count_axes_from_the_front(model)
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)


def fuse_adam(optim: OptimizerWrapper) -> OptimizerWrapper:
    """Switches a new Adam or AdamW to torch's fused kernel; returns other optimizers unchanged.

    d3rlpy 2.8's optimizer factories have no `fused` argument.
    """
    if isinstance(optim.optim, torch.optim.Adam | torch.optim.AdamW) and not optim.optim.state:
        for group in optim.optim.param_groups:
            group["fused"], group["foreach"] = True, False
    return optim


def step_without_schedule(optim: OptimizerWrapper) -> None:
    """Makes one optimizer step with gradient clipping, without advancing its schedule.

    d3rlpy 2.8 advances the schedule on the host, which a recorded CUDA graph would not repeat.
    """
    schedule, optim._lr_scheduler = optim._lr_scheduler, None
    try:
        optim.step()
    finally:
        optim._lr_scheduler = schedule


def has_schedule(optim: OptimizerWrapper) -> bool:
    """Whether an optimizer has a d3rlpy learning-rate scheduler (private in 2.8)."""
    return optim._lr_scheduler is not None


def advance_schedule(optim: OptimizerWrapper) -> None:
    """Sets an optimizer's next learning rate, if it has a schedule."""
    if optim._lr_scheduler is not None:
        optim._lr_scheduler.step()


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 products (private functions of torch 2.13).

    `ATEN_CPU_CAPABILITY=avx2`, by which one measures as on a plainer CPU, forbids them: emulated
    products made a training five times as long.
    """
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX", "AVX2"):
        return False
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def is_exporting() -> bool:
    """Whether this call is being exported to a file, which must also hold for other inputs."""
    return is_tracing() or torch.compiler.is_compiling()
