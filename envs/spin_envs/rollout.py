"""Episodes played in lock-step, with one policy call per step for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ActFunction = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.int64]]
MaskedActFunction = Callable[[NDArray[np.float32], NDArray[np.int64], list[Any]], NDArray[np.int64]]


@dataclasses.dataclass(frozen=True)
class EpisodeRecord:
    """One episode of T steps."""

    seed: int  # what the environment was reset with
    observations: NDArray[np.float32]  # `(T + 1, obs)` float32
    actions: NDArray[np.int64]  # `(T, N)` int64
    rewards: NDArray[np.float64]  # `(T,)` float64
    terminated: bool  # whether the task ended it (rather than a time limit)


def rollout(
    envs: gymnasium.vector.VectorEnv[Any, Any, Any],
    act: ActFunction,
    seeds: Sequence[int],
    record: bool = True,
    on_step: Callable[[int], None] | None = None,
    on_infos: Callable[[dict[str, Any], NDArray[np.int64]], None] | None = None,
    act_masked: MaskedActFunction | None = None,
) -> Iterator[EpisodeRecord]:
    """Plays one episode per seed, `envs.num_envs` at a time in lock-step, and yields them in order.

    Episode `i` depends only on `seeds[i]` and the actions of `act`, not on the number of
    environments.

    Args:
        envs: a vector environment with next-step autoreset (Gymnasium's default).
        act: returns actions `(B, N)` for observations `(B, obs)` and episode indices `(B,)` of the
            episodes still running.
        act_masked: is called instead where infos have `"action_mask"`, with a list of what each of
            these episodes has there (`(N, K)`, or one array for each slot) as third argument.
        seeds: one per episode.
        record: keep observations and actions, not only rewards and the first observation.
        on_step: called with the number of environment steps just made.
        on_infos: called after each step with the vector environment's infos and the rows of the
            environments whose episodes were running.

    Raises:
        ValueError: `envs` resets in the same step, or `act` returns a wrong number of actions.
    """
    mode = (envs.metadata or {}).get("autoreset_mode")  # Gymnasium 1.1 and later
    if mode is not None and mode.value != "NextStep":
        raise ValueError(f"Expected a vector environment with next-step autoreset, got {mode}.")
    shape = envs.action_space.shape
    assert shape is not None, "MultiDiscrete spaces have a shape."
    for first in range(0, len(seeds), envs.num_envs):
        batch = [int(seed) for seed in seeds[first : first + envs.num_envs]]
        n = len(batch)
        # What is left over in a last, smaller batch plays along unseen.
        padded = [*batch, *[batch[0]] * (envs.num_envs - n)]
        observations, infos = envs.reset(seed=padded)  # type: ignore[arg-type]  # takes lists
        actions = np.zeros(shape, dtype=np.int64)
        running = np.arange(n)
        steps = np.zeros(n, dtype=np.int64)
        terminated = np.zeros(n, dtype=np.bool_)
        # A row of all episodes per step. Copies: environments and policies may reuse arrays.
        seen, acted, paid = [observations[:n].copy()], [], []
        while len(running):
            masks = None if act_masked is None else infos.get("action_mask")
            if act_masked is None or masks is None:
                chosen = act(observations[running], first + running)
            else:
                for i in set(range(envs.num_envs)).difference(running.tolist()):
                    actions[i] = _first_allowed(masks[i], actions[i])  # it plays along unseen
                chosen = act_masked(
                    observations[running], first + running, [masks[i] for i in running]
                )
            if len(chosen) != len(running):
                raise ValueError(
                    f"Expected {len(running)} actions, one per observation, got {len(chosen)}."
                )
            actions[running] = chosen
            observations, rewards, ended, cut, infos = envs.step(actions)
            steps[running] += 1
            paid.append(rewards[:n].copy())
            if record:
                seen.append(observations[:n].copy())
                acted.append(actions[:n].copy())
            if on_step is not None:
                on_step(len(running))
            if on_infos is not None:
                on_infos(infos, running)
            over = (ended | cut)[running]
            if over.any():
                terminated[running] = ended[running]
                running = running[~over]
        for i, t in enumerate(steps):
            made = np.stack([a[i] for a in acted[:t]]) if record else np.zeros((0, 0), np.int64)
            yield EpisodeRecord(
                seed=batch[i],
                observations=np.stack([o[i] for o in seen[: t + 1]]),
                actions=made,
                rewards=np.array([r[i] for r in paid[:t]], dtype=np.float64),
                terminated=bool(terminated[i]),
            )


def _first_allowed(mask: Sequence[Sequence[int]] | None, otherwise: NDArray[np.int64]) -> Any:
    """Returns an action that a mask allows, or another one where there is no mask."""
    return otherwise if mask is None else [int(np.argmax(row)) for row in mask]
