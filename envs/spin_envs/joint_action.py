"""Several agents as one: a parallel multi-agent environment with one MultiDiscrete action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.spaces.utils import flatten, flatten_space
from numpy.typing import NDArray

from spin_envs.errors import InvalidActionError
from spin_envs.layout import ActionLayout

MASK = "action_mask"
TeamReward: TypeAlias = Literal["sum", "mean"]


class ParallelEnvironment(Protocol):
    """What is used of a PettingZoo `ParallelEnv`."""

    possible_agents: list[Any]
    agents: list[Any]

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]: ...

    def action_space(self, agent: Any) -> gymnasium.Space[Any]: ...

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]: ...

    def step(
        self, actions: dict[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], dict[Any, bool], Any]: ...

    def close(self) -> None: ...


class JointAction(gymnasium.Env[NDArray[np.float32], NDArray[np.integer[Any]]]):
    """A team of agents as one agent, whose action is all their actions.

    The observation is the agents' observations, flattened, one after the other; the reward is the
    sum or mean of theirs. An episode is terminated when no agent is left, or all that are left have
    ended theirs, and truncated if any of the last ones was. An agent that has left the episode, or
    ended its own, observes zeros, and what is chosen for it has no effect.

    `info["action_mask"]` `(N, K)` allows what the agents' own masks allow, which they have in their
    infos or in their observations, under `"action_mask"`. An agent that has left, and one whose
    mask allows nothing, may only take its choice 0.

    Where agents have equally long observations, its `layout` says that each one's are the features
    of its slot, and where they have equally many choices, that they share them.

    Args:
        env: a PettingZoo parallel environment whose agents have `Discrete` actions.
        reward: `"sum"` or `"mean"` of the agents' rewards.

    Raises:
        ValueError: an agent's actions are not `Discrete`, or `reward` is unknown.
    """

    def __init__(self, env: ParallelEnvironment, reward: TeamReward = "sum") -> None:
        if reward not in ("sum", "mean"):
            raise ValueError(f"Expected reward 'sum' or 'mean', got {reward!r}.")
        self._env, self._reward = env, reward
        self._agents = list(env.possible_agents)
        spaces = [env.action_space(agent) for agent in self._agents]
        for agent, space in zip(self._agents, spaces, strict=True):
            if not isinstance(space, Discrete):
                raise ValueError(
                    f"Expected agents with Discrete actions, agent {agent!r} has {space}."
                )
        self._ended: set[Any] = set()
        self._actions = [space for space in spaces if isinstance(space, Discrete)]
        self._observations = [env.observation_space(agent) for agent in self._agents]
        parts = [flatten_space(space) for space in self._observations]
        self._sizes = [int(np.prod(part.shape or ())) for part in parts]
        bounds = [(part.low, part.high) for part in parts if isinstance(part, Box)]
        if len(bounds) < len(parts):
            raise ValueError("Expected agents with observations that flatten to a vector.")
        # Zeros stand for an agent that is gone.
        low = np.minimum(np.concatenate([low for low, _ in bounds]), 0.0)
        high = np.maximum(np.concatenate([high for _, high in bounds]), 0.0)
        self.observation_space = Box(low.astype(np.float32), high.astype(np.float32))
        self.nvec = np.array([int(space.n) for space in self._actions])
        self.action_space = MultiDiscrete(self.nvec)
        self.layout = self._layout()
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {
            "render_modes": [] if self.render_mode is None else [self.render_mode],
            "render_fps": getattr(env, "metadata", {}).get("render_fps", 10),
        }

    def _layout(self) -> ActionLayout:
        starts = np.cumsum([0, *self._sizes])
        alike = len(set(self._sizes)) == 1
        shared = len(set(self.nvec.tolist())) == 1
        return ActionLayout(
            shared_choices=shared,
            slot_columns=tuple(
                tuple(range(start, start + size))
                for start, size in zip(starts, self._sizes, strict=False)
            )
            if alike
            else (),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        observations, infos = self._env.reset(seed=seed, options=options)
        self._ended = set()
        return self._joined(observations), self._info(observations, infos)

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        chosen = np.asarray(action)
        if not self.action_space.contains(chosen.astype(self.action_space.dtype)):
            raise InvalidActionError(
                f"Expected an action of {self.action_space}, got {chosen.tolist()}."
            )
        acting = set(self._env.agents)
        actions = {
            agent: int(choice) + int(space.start)
            for agent, choice, space in zip(self._agents, chosen, self._actions, strict=True)
            if agent in acting
        }
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        before = set(self._ended)
        # Some environments keep agents that have ended among theirs.
        self._ended |= {agent for agent in acting if _either(agent, terminations, truncations)}
        total = float(sum(rewards.values()))
        reward = total if self._reward == "sum" else total / len(self._agents)
        over = not self._here()
        truncated = over and any(truncations.values())
        info = self._info(observations, infos)
        joined = self._joined({a: seen for a, seen in observations.items() if a not in before})
        return joined, reward, over and not truncated, truncated, info

    def _here(self) -> set[Any]:
        """The agents that still take part."""
        return set(self._env.agents) - self._ended

    def _joined(self, observations: Mapping[Any, Any]) -> NDArray[np.float32]:
        parts: list[Any] = [
            flatten(space, observations[agent]) if agent in observations else np.zeros(size)
            for agent, space, size in zip(
                self._agents, self._observations, self._sizes, strict=True
            )
        ]
        return np.concatenate(parts, dtype=np.float32)

    def _info(self, observations: Mapping[Any, Any], infos: object) -> dict[str, Any]:
        mask = np.arange(int(self.nvec.max())) < self.nvec[:, None]
        here = self._here()
        for row, n, agent in zip(mask, self.nvec.tolist(), self._agents, strict=True):
            if agent in here:
                own = _own_mask(agent, n, observations.get(agent), infos)
                row[:n] &= own
            if agent not in here or not row.any():
                row[0], row[1:] = True, False
        return {"action_mask": mask}

    def render(self) -> Any:
        """Renders the team's environment."""
        render: Callable[[], Any] = getattr(self._env, "render", lambda: None)
        return render()

    def close(self) -> None:
        self._env.close()


def _either(agent: object, *flags: Mapping[Any, bool]) -> bool:
    return any(bool(flag.get(agent, False)) for flag in flags)


def _own_mask(agent: object, n: int, observation: object, infos: object) -> NDArray[np.bool_]:
    """Returns which of its `n` choices an agent may make; all without a mask of its own.

    Raises:
        ValueError: the mask has another shape or other values.
    """
    allowed = np.ones(n, dtype=np.bool_)
    info = infos.get(agent) if isinstance(infos, Mapping) else None
    for part in (observation, info):
        given = part.get(MASK) if isinstance(part, Mapping) else None
        if given is None:
            continue
        mask = np.asarray(given)
        if mask.shape != (n,) or not np.isin(mask, (0, 1)).all():
            raise ValueError(
                f"Expected the {MASK} of agent {agent!r} as {n} numbers 0 or 1, one for each "
                f"choice, got {str(given)[:100]}."
            )
        allowed &= mask.astype(np.bool_)
    return allowed


def joint_action(env: ParallelEnvironment, reward: TeamReward = "sum") -> JointAction:
    """Returns a PettingZoo parallel environment as one with a MultiDiscrete action.

    Arguments and errors are those of `JointAction`. For use by name, register a function:

        gymnasium.register("my/spread-v0", entry_point=lambda: joint_action(parallel_env()))
    """
    return JointAction(env, reward)
