"""Many instances of an environment in one process, with little overhead per step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from spin_envs.action_grid import check_action
from spin_envs.base import MultiDiscreteEnv, WithPlainSpec
from spin_envs.cone import ConeEnv
from spin_envs.dispatch import DispatchEnv
from spin_envs.maze import MazeEnv
from spin_envs.slate import SlateEnv
from spin_envs.suite import DiscretizedSuiteEnv

Observations = NDArray[np.float32]


def make_batch(
    spec: EnvSpec | str,
    num_envs: int,
    wrappers: Sequence[Callable[[Any], gymnasium.Wrapper[Any, Any, Any, Any]]] = (),
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Makes `num_envs` instances in this process, in the fastest way that the environment supports.

    Args:
        spec: environment id, or the spec of an environment made by `gymnasium.make`.
        num_envs: number of instances.
        wrappers: applied to each instance, innermost first; instances then step one by one, in
            Gymnasium's `SyncVectorEnv`.
        **kwargs: arguments of the environment, e.g. `bins`.
    """
    env_spec = gymnasium.spec(spec) if isinstance(spec, str) else spec
    entry = env_spec.vector_entry_point
    # Not anyone's vector environment: some cannot seed each instance, as episodes need it. And a
    # spec with wrappers of its own can only be made one instance at a time.
    ours = (
        isinstance(entry, str) and entry.startswith(__name__) and not env_spec.additional_wrappers
    )
    mode = "vector_entry_point" if ours and not wrappers else "sync"
    return gymnasium.make_vec(
        spec, num_envs=num_envs, vectorization_mode=mode, wrappers=wrappers, **kwargs
    )


class InProcessVectorEnv(
    WithPlainSpec, VectorEnv[Observations, NDArray[np.integer[Any]], NDArray[Any]]
):
    """A vector environment that writes all observations into one array.

    Steps, rewards and seeds equal those of `gymnasium.vector.SyncVectorEnv` bit for bit, with
    next-step autoreset: the step after an episode's end ignores the action, pays 0 and returns the
    next episode's first observation. Made by `gymnasium.make_vec(id, num_envs=n)`.

    `env_class` takes `kwargs`; `max_episode_steps` truncates, None is its own limit only.
    """

    envs: Sequence[MultiDiscreteEnv] = ()  # Gymnasium closes also what could not be made

    # What Gymnasium's own vector environments offer for each instance.
    call: Any = SyncVectorEnv.call
    get_attr: Any = SyncVectorEnv.get_attr
    set_attr: Any = SyncVectorEnv.set_attr

    def __init__(
        self,
        env_class: Callable[..., MultiDiscreteEnv],
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"Expected num_envs of at least 1, got {num_envs}.")
        self.num_envs = num_envs
        self.envs = [env_class(**kwargs) for _ in range(num_envs)]
        first = self.envs[0]
        self._nvec = first.nvec
        self.metadata = dict(first.metadata)
        if hasattr(gymnasium.vector, "AutoresetMode"):  # Gymnasium 1.1 and later
            self.metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self._shape = (num_envs, *first.observation_space.shape)
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._limit = float("inf") if max_episode_steps is None else max_episode_steps
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Starts an episode in every instance; an integer seed `s` stands for `s, s + 1, ...`.

        Returns observations `(num_envs, obs)` float32 and infos.
        """
        if isinstance(seed, int | np.integer):
            seed = range(int(seed), int(seed) + self.num_envs)
        seeds = [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"Expected {self.num_envs} seeds, got {len(seeds)}.")
        out = np.empty(self._shape, np.float32)
        infos: dict[str, Any] = {}
        for i, (env, one) in enumerate(zip(self.envs, seeds, strict=True)):
            infos = self._add_info(infos, env.start_into(out[i], one, options), i)
        self._elapsed[:] = 0
        self._over[:] = False
        return out, infos

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[
        Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Steps every instance, or starts its next episode if the last one is over.

        Observations are `(num_envs, obs)` float32; errors are those of `MultiDiscreteEnv.step`.
        """
        checked = check_action(actions, self._nvec, self.num_envs)
        # A new array each time: what an earlier step returned stays as it was.
        out = np.empty(self._shape, np.float32)
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        rows: Sequence[int] = range(self.num_envs)
        if self._over.any():
            for i in np.flatnonzero(self._over).tolist():
                infos = self._add_info(infos, self.envs[i].start_into(out[i], None), i)
            self._elapsed[self._over] = -1  # this step is not one of the episode's
            rows = np.flatnonzero(~self._over).tolist()
        for i in rows:
            result = self.envs[i].advance_into(out[i], checked[i])
            rewards[i], terminated[i], truncated[i], info = result
            if info:
                infos = self._add_info(infos, info, i)
        self._elapsed += 1
        truncated |= self._elapsed >= self._limit
        self._over = terminated | truncated
        return out, rewards, terminated, truncated, infos

    def end_episodes(self, over: NDArray[np.bool_]) -> None:
        """Ends the episodes of instances where `over` `(num_envs,)`, by rules of the caller."""
        self._over |= over

    def render(self) -> tuple[NDArray[np.uint8] | None, ...]:  # type: ignore[override]
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()  # type: ignore[no-untyped-call]


# By the names that the registered specs have.
MazeVectorEnv = functools.partial(InProcessVectorEnv, MazeEnv)
DispatchVectorEnv = functools.partial(InProcessVectorEnv, DispatchEnv)
ConeVectorEnv = functools.partial(InProcessVectorEnv, ConeEnv)
SlateVectorEnv = functools.partial(InProcessVectorEnv, SlateEnv)
SuiteVectorEnv = functools.partial(InProcessVectorEnv, DiscretizedSuiteEnv)
