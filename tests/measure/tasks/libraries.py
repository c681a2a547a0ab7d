"""Tasks of other people's packages: a test of the rules of trust that none of us wrote.

A city's signals in SUMO, teams in VMAS, foragers, pursuers of PettingZoo, and particles that
spread. Logs are by the packages' own heuristics, or rules of thumb, with noise.

    pip install sumo-rl libsumo eclipse-sumo vmas lbforaging "pettingzoo>=1.25" pygame mpe2
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete

from tests.measure.tasks.base import Floats, Ints, Task, by_name


def noisy(task: Task, actions: Ints, share: float) -> Ints:
    """Returns actions of which each slot's is random by chance, of slots of unlike sizes."""
    noise = np.stack([task.rng.integers(0, k, task.n) for k in task.nvec], 1)
    return np.where(task.rng.random(noise.shape) < share, noise, actions)


class City(gymnasium.Env[Any, Any]):
    """Eight signals of Cologne for an hour (RESCO), a decision every ten seconds.

    Observations are `sumo_rl`'s of all signals; the reward counts vehicles that stand.
    """

    def __init__(self) -> None:
        import sumo

        os.environ["LIBSUMO_AS_TRACI"] = "1"
        os.environ["SUMO_HOME"] = str(Path(sumo.__file__).parent)
        import sumo_rl

        folder = Path(sumo_rl.__file__).parent / "nets/RESCO/cologne8"
        self.sumo: Any = sumo_rl.SumoEnvironment(
            str(folder / "cologne8.net.xml"),
            str(folder / "cologne8.rou.xml"),
            begin_time=25_200,
            num_seconds=3_600,
            delta_time=10,
            yellow_time=3,
            min_green=7,
            reward_fn="queue",
            add_system_info=False,
            add_per_agent_info=False,
            sumo_warnings=False,
        )
        self.signals = self.sumo.ts_ids
        self.action_space = MultiDiscrete([self.sumo.action_spaces(s).n for s in self.signals])
        numbers = sum(self.sumo.observation_spaces(s).shape[0] for s in self.signals)
        self.observation_space = Box(-np.inf, np.inf, (numbers,), np.float32)

    def _observed(self, seen: dict[str, Any]) -> tuple[Floats, dict[str, Any]]:
        joined = np.concatenate([seen[signal] for signal in self.signals]).astype(np.float32)
        return joined, {"rule": np.array([self._most_pressure(s) for s in self.signals])}

    def _most_pressure(self, name: str) -> int:
        """Returns the phase that relieves the most: vehicles that stand before it, less behind."""
        signal = self.sumo.traffic_signals[name]
        links = signal.sumo.trafficlight.getControlledLinks(name)
        standing = signal.sumo.lane.getLastStepHaltingNumber
        pressures = [
            sum(
                standing(link[0][0]) - standing(link[0][1])
                for link, light in zip(links, phase.state, strict=True)
                if link and light in "gG"
            )
            for phase in signal.green_phases
        ]
        return int(np.argmax(pressures))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Floats, Any]:
        super().reset(seed=seed)
        return self._observed(self.sumo.reset(seed=seed))

    def step(self, action: Ints) -> tuple[Floats, float, bool, bool, Any]:
        choices = {s: int(a) for s, a in zip(self.signals, action, strict=True)}
        seen, rewards, over, _ = self.sumo.step(choices)
        observed, info = self._observed(seen)
        return observed, sum(rewards.values()), False, over["__all__"], info


class Cologne(Task):
    """The city's signals; each episode runs in a process of its own."""

    nvec, horizon, episodes = [4, 2, 3, 4, 3, 2, 3, 4], 360, 30

    def begin(self) -> None:
        if not hasattr(self, "cities") or self.cities.num_envs != self.n:
            self.cities: Any = gymnasium.vector.AsyncVectorEnv([City] * self.n)
        seeds = [int(s) for s in self.rng.integers(0, 2**31 - 1, self.n)]
        self.seen, infos = self.cities.reset(seed=seeds)
        self.best = infos["rule"]

    def observe(self) -> Floats:
        return self.seen

    def advance(self, actions: Ints) -> Floats:
        self.seen, rewards, _, _, infos = self.cities.step(actions)
        if "rule" in infos:
            self.best = np.stack(list(infos["rule"]))
        return rewards

    def rule(self) -> Ints:
        """The phase of most pressure (Varaiya, 2013)."""
        return self.best

    def log(self) -> Ints:
        return noisy(self, self.best, 0.5)


class Team(Task):
    """Agents of a VMAS scenario, each with two slots of three choices: forces along both axes."""

    scenario: ClassVar[str]
    share: ClassVar[float] = 0.4  # of choices that are random

    def begin(self) -> None:
        import importlib

        import vmas

        seed = int(self.rng.integers(2**31))
        self.world: Any = vmas.make_env(
            self.scenario,
            num_envs=self.n,
            continuous_actions=False,
            multidiscrete_actions=True,
            seed=seed,
            max_steps=None,
        )
        policy = importlib.import_module(f"vmas.scenarios.{self.scenario}").HeuristicPolicy
        self.heuristic = policy(continuous_action=True)
        self.seen = self.world.reset(seed=seed)

    def observe(self) -> Floats:
        return torch.cat(self.seen, 1).numpy()

    def advance(self, actions: Ints) -> Floats:
        pairs = torch.as_tensor(actions).view(self.n, -1, 2)
        self.seen, rewards, over, _ = self.world.step(list(pairs.unbind(1)))
        self.over = over.numpy()
        return torch.stack(rewards).view(len(rewards), self.n).mean(0).numpy()

    def fails(self) -> Ints:
        return self.over

    def rule(self) -> Ints:
        """The package's own heuristic, each force rounded to none, or all in one direction."""
        forces = [self.heuristic.compute_action(seen, u_range=1.0) for seen in self.seen]
        signs = torch.cat([f.sign() * (f.abs() > 0.33) for f in forces], 1).numpy()
        return np.where(signs == 0, 0, np.where(signs < 0, 1, 2))

    def log(self) -> Ints:
        return self.mixed(self.rule(), self.share)


class Transport(Team):
    """Four agents push a package to its place."""

    scenario, nvec, horizon, episodes = "transport", [3] * 8, 150, 200


class Wheel(Team):
    """Four agents turn a bar at a given speed."""

    scenario, nvec, horizon, episodes = "wheel", [3] * 8, 100, 300


class Balance(Team):
    """Three agents carry a ball on a bar; dropping it ends the episode."""

    scenario, nvec, horizon, episodes = "balance", [3] * 6, 100, 300


class Discovery(Team):
    """Five agents find targets, which count where two of them see it."""

    scenario, nvec, horizon, episodes = "discovery", [3] * 10, 100, 300


class Sequential(Task):
    """Episodes of environments that know one episode at a time.

    Attributes:
        one: class of objects with `reset(seed)` and `step(action)`, which returns the reward and
            whether the task ends here; `seen` and `rule()` are of its state.
    """

    one: ClassVar[type[Any]]
    share: ClassVar[float] = 0.3

    def begin(self) -> None:
        kept: list[Any] = getattr(self, "all", [])
        self.all = kept + [self.one() for _ in range(self.n - len(kept))]
        for env in self.all[: self.n]:
            env.reset(int(self.rng.integers(2**31 - 1)))
        self.ended = np.zeros(self.n, bool)

    def observe(self) -> Floats:
        return np.stack([env.seen for env in self.all[: self.n]])

    def advance(self, actions: Ints) -> Floats:
        rewards = np.zeros(self.n)
        for i in np.flatnonzero(~self.is_over):
            rewards[i], self.ended[i] = self.all[i].step(actions[i])
        return rewards

    def fails(self) -> Ints:
        return self.ended

    def rule(self) -> Ints:
        return np.stack([env.rule() for env in self.all[: self.n]])

    def log(self) -> Ints:
        return noisy(self, self.rule(), self.share)


class _Forest:
    def __init__(self) -> None:
        import lbforaging  # noqa: F401

        self.env: Any = gymnasium.make("Foraging-8x8-4p-3f-v3").unwrapped

    def reset(self, seed: int) -> None:
        self.seen = np.concatenate(self.env.reset(seed=seed)[0])

    def step(self, action: Ints) -> tuple[float, bool]:
        seen, rewards, done, _, _ = self.env.step([int(a) for a in action])
        self.seen = np.concatenate(seen)
        return float(np.sum(rewards)), bool(done)

    def rule(self) -> Ints:
        """All go to the food that is nearest to all of them, and take it together."""
        food = np.argwhere(self.env.field > 0)
        at = np.array([player.position for player in self.env.players])
        if len(food) == 0:
            return np.zeros(4, int)
        target = food[np.abs(food[:, None] - at).sum((1, 2)).argmin()]
        off = target - at
        along_rows = np.where(off[:, 0] > 0, 2, 1)
        along_columns = np.where(off[:, 1] > 0, 4, 3)
        rows_first = np.abs(off[:, 0]) > np.abs(off[:, 1])
        steps = np.where(rows_first, along_rows, along_columns)
        return np.where(np.abs(off).sum(1) == 1, 5, steps)


class Foraging(Sequential):
    """Four foragers of different strength; some food takes several to carry."""

    nvec, horizon, episodes = [6] * 4, 50, 600
    one = _Forest


class _Agents:
    """An environment of PettingZoo; `each` are its agents' observations."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def _see(self, seen: dict[str, Floats]) -> None:
        self.each = np.stack([seen[agent] for agent in self.env.possible_agents])
        self.seen = self.each.reshape(-1)

    def reset(self, seed: int) -> None:
        self._see(self.env.reset(seed=seed)[0])

    def step(self, action: Ints) -> tuple[float, bool]:
        chosen = dict(zip(self.env.possible_agents, action, strict=True))
        seen, rewards, ends, _, _ = self.env.step({k: int(v) for k, v in chosen.items()})
        self._see(seen)
        return float(np.mean(list(rewards.values()))), any(ends.values())


class _Hunt(_Agents):
    def __init__(self) -> None:
        from pettingzoo.sisl import pursuit_v5

        super().__init__(pursuit_v5.parallel_env(max_cycles=1_000, surround=False))

    def rule(self) -> Ints:
        """Towards the nearest evader in sight, or any way."""
        actions = []
        for number, view in enumerate(self.each):
            x, y = np.nonzero(view[..., 2])
            if len(x) == 0:
                actions.append((number + int(10 * view[..., :2].sum())) % 5)
                continue
            nearest = np.argmin(np.abs(x - 3) + np.abs(y - 3))
            dx, dy = y[nearest] - 3, x[nearest] - 3
            along_x = 1 if dx > 0 else 0
            along_y = 2 if dy > 0 else 3
            actions.append(along_x if abs(dx) >= abs(dy) else along_y)
        return np.array(actions)


class Pursuit(Sequential):
    """Eight pursuers catch evaders in a maze, two at a time, each sees 7 x 7 cells (SISL)."""

    nvec, horizon, episodes = [5] * 8, 100, 200
    one = _Hunt


class _Plane(_Agents):
    def __init__(self) -> None:
        from mpe2 import simple_spread_v3

        # Half of each reward is of all landmarks, half of collisions of the agent.
        super().__init__(simple_spread_v3.parallel_env(N=4, max_cycles=1_000))

    def rule(self) -> Ints:
        """Each to a landmark of its own, the nearest pairs first."""
        off = self.each[:, 4:12].reshape(4, 4, 2) - 0.3 * self.each[:, None, :2]
        far = np.linalg.norm(off, axis=-1)
        actions = np.zeros(4, int)
        for _ in range(4):
            agent, landmark = np.unravel_index(far.argmin(), far.shape)
            x, y = off[agent, landmark]
            if max(abs(x), abs(y)) > 0.05:
                along_x, along_y = (2 if x > 0 else 1), (4 if y > 0 else 3)
                actions[agent] = along_x if abs(x) > abs(y) else along_y
            far[agent], far[:, landmark] = np.inf, np.inf
        return actions


class Spread(Sequential):
    """Four agents cover four landmarks and do not collide (multi-agent particle environments)."""

    nvec, horizon, episodes = [5] * 4, 50, 400
    one = _Plane


TASKS = by_name(Cologne, Transport, Wheel, Balance, Discovery, Foraging, Pursuit, Spread)
