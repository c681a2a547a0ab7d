"""Copies of an environment that see and do what it does, for episodes in lock-step."""

from __future__ import annotations

import contextlib
import copy
import functools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from spin_envs.errors import EnvironmentCopyError
from spin_envs.vector import make_batch

Env: TypeAlias = gymnasium.Env[Any, Any]
AnyWrapper: TypeAlias = gymnasium.Wrapper[Any, Any, Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
Memory: TypeAlias = list[tuple[str, dict[str, Any]]]
T = TypeVar("T")
_ADDED_BY_MAKE = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
_STEPS_COMPARED = 3
_FREEZE = "_update_running_mean"  # of Gymnasium's normalizing wrappers
ADVICE = (
    "If its simulator allows one instance a process, pass n_trials=1, which plays in the "
    "environment that was given, or processes=True, which plays each copy in a process of its own."
)


def copies_of(
    env: Env, n: int, processes: bool = False, seconds: float = 60.0
) -> VectorEnv[Any, Any, Any]:
    """Returns a vector environment of an environment itself (`n=1`) or of `n` copies of it.

    They have what its wrappers have learned, such as running means, which stay as they are in
    copies. See `remember` for keeping them up to date.

    Args:
        env: the environment. To compare copies with it, it is reset, unless it is of this package.
        n: number of copies.
        processes: each is in a process of its own.
        seconds: in which the copies must be there and answer.

    Raises:
        EnvironmentCopyError: it cannot be copied, a copy does not answer, or does otherwise than
            the environment.
    """
    if n == 1 and not processes:
        return SyncVectorEnv([lambda: _Kept(env)])
    if processes:
        envs: AnyVectorEnv = _in_processes(env, n, seconds)
        return envs
    if _is_ours(env):
        assert env.spec is not None
        return make_batch(env.spec, n)
    copies: SyncVectorEnv = _bounded(env, seconds, lambda: _in_this_process(env, n))
    remember(env, copies)
    _bounded(env, seconds, lambda: _compare(env, copies.envs[0]))
    return copies


def remember(env: Env, envs: AnyVectorEnv) -> None:
    """Gives copies what the wrappers of an environment have learned since they were made."""
    memory = _memory(env)
    if not memory:
        return
    if isinstance(envs, AsyncVectorEnv):
        envs.call("adopt", memory)
    elif isinstance(envs, SyncVectorEnv):
        for one in envs.envs:
            if isinstance(one, _Kept):
                one.begin(memory)
            else:
                _adopt(one, memory)


def restore(envs: AnyVectorEnv) -> None:
    """Gives an environment that was played in itself what its wrappers had learned before."""
    for one in getattr(envs, "envs", ()):
        if isinstance(one, _Kept):
            one.end()


class _Kept(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment of a user: it is not closed here, and its wrappers learn nothing."""

    _before: Memory | None = None

    def begin(self, memory: Memory) -> None:
        """Remembers what wrappers have learned, and stops those that can be stopped."""
        self._before = memory
        _adopt(self.env, memory)

    def end(self) -> None:
        if self._before is not None:
            _adopt(self.env, self._before, freeze=False)

    def close(self) -> None:
        """Does nothing."""


class _InProcess(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A copy in a process of its own, whose wrappers another process tells what they know."""

    def adopt(self, memory: Memory) -> None:
        _adopt(self.env, memory)


class _Spaces(gymnasium.Env[Any, Any]):
    """Stands for an environment where only its spaces are asked for."""

    def __init__(self, env: Env) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.render_mode = env.metadata, env.render_mode


def _is_ours(env: Env) -> bool:
    spec = env.spec
    entry = None if spec is None else spec.entry_point
    return (
        isinstance(entry, str)
        and entry.startswith("spin_envs")
        and not any(True for _ in _learners(env))
        and not (spec is not None and spec.additional_wrappers)
    )


def _in_this_process(env: Env, n: int) -> Any:
    spec = env.spec
    if spec is not None and all(w.kwargs is not None for w in spec.additional_wrappers):
        return make_batch(spec, n)
    # Without a spec from which it can be made, or with a wrapper that keeps no arguments.
    return SyncVectorEnv([functools.partial(copy.deepcopy, env)] * n)


def _make(parent: int, spaces: _Spaces, spec: EnvSpec) -> Env:
    """Makes a copy in a new process, and its spaces where vector environments look at them."""
    return spaces if os.getpid() == parent else _InProcess(gymnasium.make(spec))


def _in_processes(env: Env, n: int, seconds: float) -> Any:
    """Returns copies in processes of their own; processes that do not answer are ended."""
    spec = env.spec
    if spec is None or any(w.kwargs is None for w in spec.additional_wrappers):
        raise EnvironmentCopyError(
            "Expected an environment of gymnasium.make, and wrappers that are a "
            "gymnasium.utils.RecordConstructorArgs: processes=True makes copies by their arguments."
        )
    before = set(multiprocessing.active_children())
    try:
        return _bounded(env, seconds, lambda: _start(env, spec, min(n, os.cpu_count() or 1)))
    except EnvironmentCopyError:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise


def _start(env: Env, spec: EnvSpec, n: int) -> Any:
    make = functools.partial(_make, os.getpid(), _Spaces(env), spec)
    # Not forked: such processes would inherit what allows one instance only.
    envs: Any = AsyncVectorEnv([make] * n, context="spawn")
    envs.reset(seed=list(range(n)))
    remember(env, envs)
    return envs


def _bounded(env: Env, seconds: float, make: Callable[[], T]) -> T:
    """Returns what a function returns within a time.

    It is left behind if it does not end: there is no way to stop a simulator that waits.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(make())
        except BaseException as error:
            errors.append(error)

    name = "The environment" if env.spec is None else env.spec.id
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors and isinstance(errors[0], EnvironmentCopyError):
        raise errors[0]
    if errors:
        raise EnvironmentCopyError(
            f"{name} could not be copied: {type(errors[0]).__name__}: {errors[0]} {ADVICE}"
        ) from errors[0]
    if not results:
        raise EnvironmentCopyError(
            f"{name} could not be copied: a second instance did not answer in {seconds:g} seconds. "
            f"{ADVICE}"
        )
    return results[0]


@contextlib.contextmanager
def as_it_was(env: Env) -> Iterator[None]:
    """Context after which an environment has its random numbers and wrappers' data again.

    Its episode is lost.
    """
    unwrapped: Any = env.unwrapped
    generator = copy.deepcopy(unwrapped._np_random), unwrapped._np_random_seed
    memory = _memory(env)
    try:
        yield
    finally:
        unwrapped._np_random, unwrapped._np_random_seed = generator
        _adopt(env, memory, freeze=False)


def _compare(env: Env, other: Env) -> None:
    """Checks that a copy does what the environment does, and that they do not share a state."""
    memory = _memory(env)
    with as_it_was(env):
        alone = _played(env, memory)
        if not data_equivalence(alone, _played(env, memory)):
            return  # it depends on more than the seed: nothing can be compared
        for what, steps in (
            ("does otherwise than it", _played(other, memory)),
            ("shares its state", _played(env, memory, other)),
        ):
            if not data_equivalence(alone, steps):
                raise EnvironmentCopyError(f"A copy of {env} {what}. {ADVICE}")
    _adopt(other, memory)


def _played(env: Env, memory: Memory, other: Env | None = None) -> list[Any]:
    """Returns what a few steps from a seed show; meanwhile another instance makes steps, too."""
    _adopt(env, memory)
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    observation, info = env.reset(seed=0)
    steps: list[Any] = [copy.deepcopy(observation)]
    if other is not None:
        other.reset(seed=1)
    for _ in range(_STEPS_COMPARED):
        action = _allowed(space.sample(), info)
        observation, reward, terminated, truncated, info = env.step(action)
        steps += [copy.deepcopy(observation), float(reward), bool(terminated), bool(truncated)]
        if terminated or truncated:
            break
        if other is not None:
            other.reset(seed=2)
    return steps


def _allowed(action: object, info: dict[str, Any]) -> object:
    mask = info.get("action_mask")
    chosen = np.asarray(action)
    if mask is None or chosen.ndim != 1 or len(mask) != len(chosen):
        return action
    return np.array([int(np.argmax(row)) for row in mask], dtype=chosen.dtype)


def _learners(env: Env) -> Iterator[AnyWrapper]:
    """Wrappers that Gymnasium does not add by itself, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        if not isinstance(env, (*_ADDED_BY_MAKE, _Kept, _InProcess)):
            yield env
        env = env.env


def _memory(env: Env) -> Memory:
    """Returns the data that wrappers have, such as running means, outermost first."""
    return [
        (
            type(wrapper).__qualname__,
            {
                name: copy.deepcopy(value)
                for name, value in vars(wrapper).items()
                if name != "env" and _is_data(value)
            },
        )
        for wrapper in _learners(env)
    ]


def _adopt(env: Env, memory: Memory, freeze: bool = True) -> None:
    """Gives wrappers the data of another environment's, or their own earlier data."""
    for wrapper, (name, data) in zip(_learners(env), memory, strict=True):
        if type(wrapper).__qualname__ != name:
            raise EnvironmentCopyError(f"A copy has {wrapper} in place of {name}. {ADVICE}")
        vars(wrapper).update(copy.deepcopy(data))
        if freeze and _FREEZE in vars(wrapper):
            setattr(wrapper, _FREEZE, False)


def _is_data(value: object, depth: int = 0) -> bool:
    """Whether a value is numbers, texts and arrays, or an object that holds nothing else."""
    if depth > 4 or callable(value) or isinstance(value, gymnasium.Space | gymnasium.Env):
        return False
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return True
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    parts: Sequence[object]
    if isinstance(value, dict):
        parts = [*value.values()]
    elif isinstance(value, list | tuple | set | deque):
        parts = [*value]
    elif hasattr(value, "__dict__"):
        parts = [*vars(value).values()]
    else:
        return False
    return all(_is_data(part, depth + 1) for part in parts)
