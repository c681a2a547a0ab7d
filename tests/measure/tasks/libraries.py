"""Nine tasks of other people's packages: a test of the rules of trust that none of us wrote.

A city's signals in SUMO, teams in VMAS, foragers, pursuers of PettingZoo, and three problems of
planning competitions. Logs are by the packages' own heuristics, or rules of thumb, with noise.

    pip install sumo-rl libsumo eclipse-sumo vmas lbforaging pettingzoo pygame pyRDDLGym \
        rddlrepository
"""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

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


class Sequential(Task):
    """Episodes of environments that know one episode at a time.

    `make` returns an object with `reset(seed)` and `step(action)`, which returns the reward and
    whether the task ends here; `seen` and `rule()` are of its state.
    """

    share: ClassVar[float] = 0.3

    @abstractmethod
    def make(self) -> Any: ...

    def begin(self) -> None:
        kept: list[Any] = getattr(self, "all", [])
        self.all = kept + [self.make() for _ in range(self.n - len(kept))]
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

    def make(self) -> Any:
        return _Forest()


class _Hunt:
    def __init__(self) -> None:
        from pettingzoo.sisl import pursuit_v4

        self.env: Any = pursuit_v4.parallel_env(max_cycles=1_000, surround=False)

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

    def make(self) -> Any:
        return _Hunt()


class _Planned:
    """A problem of the RDDL repository whose action fluents take some of their values."""

    def __init__(self, problem: str, instance: int, levels: list[list[float]]) -> None:
        import pyRDDLGym

        # A number would be taken for an open file.
        self.env: Any = pyRDDLGym.make(problem, str(instance))
        self.levels = levels
        spaces = self.env.action_space.items()
        self.kinds = {name: int if isinstance(s, Discrete) else float for name, s in spaces}
        constants = self.env.model.ground_vars_with_values(self.env.model.non_fluents)
        self.constants = {key: np.asarray(value) for key, value in constants.items()}

    def of(self, name: str) -> Floats:
        """Returns a constant of each object."""
        return np.array([v for k, v in self.constants.items() if k.split("___")[0] == name])

    def _see(self, seen: dict[str, Any]) -> None:
        self.seen = np.array([float(value) for value in seen.values()])
        self.state = seen

    def reset(self, seed: int) -> None:
        self._see(self.env.reset(seed=seed)[0])

    def step(self, action: Ints) -> tuple[float, bool]:
        of_slots = zip(self.kinds.items(), self.levels, action, strict=True)
        values = {name: kind(levels[a]) for (name, kind), levels, a in of_slots}
        seen, reward, ends, _, _ = self.env.step(values)
        self._see(seen)
        return float(reward), bool(ends)


class _Reservoirs(_Planned):
    def __init__(self) -> None:
        super().__init__("Reservoir_ippc2023", 3, [[0.0]] * 10)
        shares = [0.0, 0.1, 0.2, 0.4, 0.7]
        self.levels = [[s * top for s in shares] for top in self.of("TOP_RES")]

    def rule(self) -> Ints:
        """Releases what brings each to the middle of what is wanted, if nothing flows in."""
        middle = (self.of("MIN_LEVEL") + self.of("MAX_LEVEL")) / 2
        wanted = (self.seen - middle)[:, None]
        return np.abs(np.array(self.levels) - wanted).argmin(1)


class Reservoirs(Sequential):
    """Ten reservoirs whose water flows from one to the next (planning competition of 2023)."""

    nvec, horizon, episodes = [5] * 10, 100, 200

    def make(self) -> Any:
        return _Reservoirs()


class _Plants(_Planned):
    def __init__(self) -> None:
        super().__init__("PowerGen_ippc2023", 4, [[0.0]] * 7)
        low, high = self.of("PROD-UNITS-MIN"), self.of("PROD-UNITS-MAX")
        self.levels = [[0.0, a, (a + b) / 2, b] for a, b in zip(low, high, strict=True)]

    def rule(self) -> Ints:
        """The cheapest plants run as hard as the demand asks for."""
        warmth = float(self.state["temperature"])
        left = 9.0 + 0.04 * (warmth - 11.7) ** 2
        actions = np.zeros(7, int)
        for i in np.argsort(self.of("COST-PER-UNIT"), kind="stable"):
            enough = [k for k, level in enumerate(self.levels[i]) if level >= left]
            actions[i] = enough[0] if enough else 3
            left = max(left - self.levels[i][actions[i]], 0.0)
        return actions


class Plants(Sequential):
    """Seven power plants, a demand by the weather, and a fine for too little (2023)."""

    nvec, horizon, episodes = [4] * 7, 100, 200

    def make(self) -> Any:
        return _Plants()


class _Supply(_Planned):
    def __init__(self) -> None:
        lots = [0.0, 5.0, 10.0, 15.0, 20.0]
        super().__init__("SupplyChain_or", 0, [[0.0, 10.0, 20.0, 30.0, 40.0, 50.0]] + [lots] * 3)

    def rule(self) -> Ints:
        """Ships what the last demand took, in full trucks, and makes what is shipped."""
        named = self.state.items()
        stock = [float(v) for k, v in named if k.startswith("stock-warehouse")]
        demand = [float(v) for k, v in named if k.startswith("demand-new")]
        wanted = np.clip(np.array(demand) * 2 - np.array(stock), 0, 20)
        ships = np.rint(wanted / 5).astype(int)
        return np.concatenate([[min(int(np.ceil(5 * ships.sum() / 10)), 5)], ships])


class Supply(Sequential):
    """A factory makes goods and ships them to three warehouses, as the season asks for."""

    nvec, horizon, episodes = [6, 5, 5, 5], 100, 200

    def make(self) -> Any:
        return _Supply()


TASKS = by_name(Cologne, Transport, Wheel, Balance, Foraging, Pursuit, Reservoirs, Plants, Supply)
