"""Several agents as one: a parallel multi-agent environment with one MultiDiscrete action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete
from gymnasium.spaces.utils import flatten, flatten_space
from numpy.typing import NDArray

from spin_envs.flat_actions import BinsOf, FlatActions
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

    An agent may have several choices: its slots follow each other, one for each number of its
    actions, whatever space they are of. Their names are the agent's, and where it has several, keys
    and positions, as in `robot_1/arm/0`.

    `info["action_mask"]` `(N, K)` allows what the agents' own masks allow, which they have in their
    infos or in their observations, under `"action_mask"`, in any form that `FlatActions.mask`
    takes. In a slot whose mask allows nothing, and in those of an agent that has left, only choice
    0 may be taken. `info["agents"]` has the agents' infos.

    Its `layout` says that an agent's observations are the features of its slots, followed by zeros
    where another agent's are longer, and so are the kind of agent and the number of the slot, if
    there are several; where all slots have equally many choices, that they share them.

    Args:
        env: a PettingZoo parallel environment.
        reward: `"sum"` or `"mean"` of the agents' rewards.
        bins: of agents with continuous actions, see `FlatActions`; names begin with the agent's. Or
            the `actions` of another such environment, or a policy's `flat_actions`.
        log: logged actions, a dict of the agents' each, by which bins are made.

    Attributes:
        actions: the `FlatActions` of a `Dict` of the agents' actions.

    Raises:
        ValueError: an agent's actions cannot be converted (the text says where, such as
            `action["robot_1"][0]`), or not without bins, or `reward` is unknown.
        InvalidActionError: a logged action is not in the agents' spaces.
    """

    def __init__(
        self,
        env: ParallelEnvironment,
        reward: TeamReward = "sum",
        bins: BinsOf | FlatActions | None = None,
        log: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        if reward not in ("sum", "mean"):
            raise ValueError(f"Expected reward 'sum' or 'mean', got {reward!r}.")
        self._env, self._reward = env, reward
        self._agents = list(env.possible_agents)
        # Pairs keep the agents' order, which a dict would sort.
        pairs = [(agent, env.action_space(agent)) for agent in self._agents]
        self.actions = FlatActions.made(Dict(pairs), bins, log)
        self._ended: set[Any] = set()
        self._slots = self.actions.slots_of_entries()
        self._all = self.actions.mask({})
        self._observations = [env.observation_space(agent) for agent in self._agents]
        parts = [flatten_space(space) for space in self._observations]
        self._sizes = [int(np.prod(part.shape or ())) for part in parts]
        bounds = [(part.low, part.high) for part in parts if isinstance(part, Box)]
        if len(bounds) < len(parts):
            raise ValueError("Expected agents with observations that flatten to a vector.")
        # Zeros stand for an agent that is gone, and for what others observe in addition.
        low, high = np.zeros((2, len(bounds), max(self._sizes)), np.float32)
        for i, (size, bound) in enumerate(zip(self._sizes, bounds, strict=True)):
            low[i, :size], high[i, :size] = np.minimum(bound[0], 0.0), np.maximum(bound[1], 0.0)
        self.observation_space = Box(low.ravel(), high.ravel())
        self.nvec = self.actions.nvec
        self.action_space = MultiDiscrete(self.nvec)
        self.layout = self._layout()
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {
            "render_modes": [] if self.render_mode is None else [self.render_mode],
            "render_fps": getattr(env, "metadata", {}).get("render_fps", 10),
        }

    def _layout(self) -> ActionLayout:
        size = max(self._sizes)
        columns, features = [], []
        agents = zip(self._sizes, self._slots.values(), strict=True)
        kinds = [(of, tuple(self.nvec[slots].tolist())) for of, slots in agents]
        known = list(dict.fromkeys(kinds))
        most = max(len(slots) for slots in self._slots.values())
        for i, slots in enumerate(self._slots.values()):
            for number in range(len(slots)):
                columns.append(tuple(range(i * size, (i + 1) * size)))
                # What observations do not tell: the kind of agent, and which of its slots it is.
                kind = _one_hot(known.index(kinds[i]), len(known))
                features.append((*kind, *_one_hot(number, most)))
        return ActionLayout(
            shared_choices=len(set(self.nvec.tolist())) == 1,
            slot_columns=tuple(columns),
            slot_features=tuple(features) if features[0] else (),
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
        acting = set(self._env.agents)
        chosen = self.actions.unflatten(action)
        actions = {agent: one for agent, one in chosen.items() if agent in acting}
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
        joined = np.zeros((len(self._agents), max(self._sizes)), np.float32)
        rows = zip(joined, self._agents, self._observations, self._sizes, strict=True)
        for row, agent, space, size in rows:
            if agent in observations:
                row[:size] = np.asarray(flatten(space, observations[agent]))
        return joined.ravel()

    def _info(self, observations: Mapping[Any, Any], infos: object) -> dict[str, Any]:
        here = self._here()
        of_agents = infos if isinstance(infos, Mapping) else {}
        allowed = self._all.copy()
        for of in (observations, of_agents):
            masks = {agent: _mask_in(of.get(agent)) for agent in self._agents if agent in here}
            if any(mask is not None for mask in masks.values()):
                allowed &= self.actions.mask(masks)
        for agent, slots in self._slots.items():
            if agent not in here:
                allowed[slots] = False
        allowed[~allowed.any(1), 0] = True
        return {MASK: allowed, "agents": dict(of_agents)}

    def render(self) -> Any:
        """Renders the team's environment."""
        render: Callable[[], Any] = getattr(self._env, "render", lambda: None)
        return render()

    def close(self) -> None:
        self._env.close()


def _either(agent: object, *flags: Mapping[Any, bool]) -> bool:
    return any(bool(flag.get(agent, False)) for flag in flags)


def _one_hot(number: int, count: int) -> tuple[int, ...]:
    """Returns a number as features; none if there is only one."""
    return tuple(int(number == k) for k in range(count)) if count > 1 else ()


def _mask_in(part: object) -> Any:
    """Returns an agent's mask in what it observes or its info; None without."""
    return part.get(MASK) if isinstance(part, Mapping) else None


def joint_action(
    env: ParallelEnvironment,
    reward: TeamReward = "sum",
    bins: BinsOf | FlatActions | None = None,
    log: Sequence[Mapping[Any, Any]] | None = None,
) -> JointAction:
    """Returns a PettingZoo parallel environment as one with a MultiDiscrete action.

    Arguments and errors are those of `JointAction`. For use by name, register a function:

        gymnasium.register("my/spread-v0", entry_point=lambda: joint_action(parallel_env()))
    """
    return JointAction(env, reward, bins, log)
