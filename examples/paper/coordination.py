"""How well a policy coordinates: collisions of choices, the time of a decision, play by a rule."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.policies.joint import JointPolicy
from spin_envs.rollout import rollout
from spin_envs.vector import make_batch

TIMED_DECISIONS = 30

Choose = Callable[[NDArray[Any]], NDArray[Any]]


def measure_coordination(
    algo: Any, env: gymnasium.Env[Any, Any], episodes: int, seed: int
) -> dict[str, float]:
    """Plays episodes, for each way of acting, of a task whose info counts `collisions`.

    Returns shares of actions in which a choice collides with another one, the median time of a
    greedy decision and, where the policy is a structure model, `ruled_return` and
    `ruled_collisions` of greedy actions that must not collide, a rule that it was not trained with.
    """
    assert env.spec is not None
    with closing(make_batch(env.spec, episodes)) as envs:
        measures = {
            "greedy_collisions": _play(envs, algo.predict, seed)[1],
            "sampled_collisions": _play(envs, algo.sample_action, seed)[1],
            "milliseconds": _milliseconds(envs, algo.predict, seed),
        }
        if isinstance(algo, IDQL) and isinstance(algo.policy, JointPolicy):
            space = envs.single_action_space
            assert isinstance(space, gymnasium.spaces.MultiDiscrete)
            n_choices = int(space.nvec.max())
            # A courier may stay whatever the others do.
            stays = [n_choices - 1] if "dispatch" in env.spec.id else []
            rule = all_different(n_choices, except_for=stays)
            played = _play(envs, lambda x: algo.predict_with(x, allowed=rule), seed)
            measures["ruled_return"], measures["ruled_collisions"] = played
    return measures


def _play(envs: VectorEnv[Any, Any, Any], choose: Choose, seed: int) -> tuple[float, float]:
    """Plays one episode per environment; returns the mean return and the collisions' share."""
    torch.manual_seed(seed)
    has_collision: list[NDArray[np.bool_]] = []

    def count(infos: dict[str, Any], running: NDArray[np.int64]) -> None:
        has_collision.append(infos["collisions"][running] > 0)

    seeds = range(seed, seed + envs.num_envs)
    episodes = rollout(envs, lambda x, _: choose(x), seeds, record=False, on_infos=count)
    mean_return = float(np.mean([episode.rewards.sum() for episode in episodes]))
    return mean_return, float(np.concatenate(has_collision).mean())


def _milliseconds(envs: Any, choose: Choose, seed: int) -> float:
    observations, _ = envs.reset(seed=seed)
    taken = timeit.repeat(lambda: choose(observations[:1]), number=1, repeat=TIMED_DECISIONS)
    return 1000.0 * float(np.median(taken))
