"""Problems of planning competitions: tasks with rules that none of us wrote.

Logs are by rules of thumb with noise.

    pip install pyRDDLGym rddlrepository
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from tests.measure.tasks.base import Floats, Ints, by_name
from tests.measure.tasks.libraries import Sequential

CELLS = [f"x{x}__y{y}" for x in range(1, 5) for y in range(1, 5)]


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
        return self._act({name: kind(levels[a]) for (name, kind), levels, a in of_slots})

    def _act(self, values: dict[str, float]) -> tuple[float, bool]:
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
    one = _Reservoirs


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
    one = _Plants


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
    one = _Supply


class _Chosen(_Planned):
    """A problem of truth values, of which each choice of a slot sets some.

    Some instances allow one intervention a step; here each slot may have its own.
    """

    def __init__(self, problem: str, instance: int, choices: list[list[list[str]]]) -> None:
        super().__init__(problem, instance, [])
        self.env.sampler.rddl.max_allowed_actions = len(self.kinds)
        self.choices = choices

    def step(self, action: Ints) -> tuple[float, bool]:
        named = [name for of, a in zip(self.choices, action, strict=True) for name in of[a]]
        return self._act(dict.fromkeys(named, 1))

    def related(self, name: str, rows: int) -> Floats:
        """Returns a constant of pairs of objects as a table."""
        return self.of(name).reshape(rows, -1).astype(float)

    def now(self, name: str) -> Floats:
        """Returns what is true of each object."""
        return np.array([v for k, v in self.state.items() if k.split("___")[0] == name])


class _Reaches(_Chosen):
    def __init__(self) -> None:
        both = [(f"eradicate___r{i}", f"restore___r{i}") for i in range(1, 7)]
        choices = [[[], [away], [plant], [away, plant]] for away, plant in both]
        super().__init__("Tamarisk_MDP_ippc2014", 5, choices)

    def rule(self) -> Ints:
        """Eradicates where the weed is, plants where nothing is."""
        weed, native = (self.now(f"{plant}-at").reshape(6, 2) for plant in ("tamarisk", "native"))
        return weed.any(1) + 2 * (~weed & ~native).any(1)


class Tamarisk(Sequential):
    """A weed spreads along six reaches of a river (planning competition of 2014)."""

    nvec, horizon, episodes = [4] * 6, 40, 500
    one = _Reaches


class _Woods(_Chosen):
    def __init__(self) -> None:
        choices: list[list[list[str]]] = [
            [[], [f"put-out___{c}"], [f"cut-out___{c}"]] for c in CELLS
        ]
        super().__init__("Wildfire_MDP_ippc2014", 3, choices)

    def rule(self) -> Ints:
        """Puts out each fire, and cuts what is next to one and to a target."""
        burning, bare = self.now("burning"), self.now("out-of-fuel")
        target, next_to = self.of("TARGET"), self.related("NEIGHBOR", 16)
        cut = (next_to @ burning > 0) & (next_to @ target > 0) & ~bare & ~target
        return np.where(burning, 1, np.where(cut, 2, 0))


class Wildfires(Sequential):
    """Fires that spread to four of sixteen cells that matter (2014)."""

    nvec, horizon, episodes = [3] * 16, 40, 500
    one = _Woods


class _Cells(_Chosen):
    def __init__(self) -> None:
        super().__init__("GameOfLife_MDP_ippc2011", 5, [[[], [f"set___{c}"]] for c in CELLS])

    def rule(self) -> Ints:
        """Sets cells that would die or stay empty, next to two or three that live."""
        alive = self.now("alive")
        neighbors = self.related("NEIGHBOR", 16) @ alive
        lives = (alive & (neighbors >= 2) & (neighbors <= 3)) | (~alive & (neighbors == 3))
        return (~lives & (neighbors >= 2) & (neighbors <= 4)).astype(int)


class Life(Sequential):
    """Sixteen cells of the game of life, with noise; each that lives pays (2011)."""

    nvec, horizon, episodes = [2] * 16, 40, 500
    one = _Cells


class _Network(_Chosen):
    def __init__(self) -> None:
        choices: list[list[list[str]]] = [[[], [f"reboot___c{i}"]] for i in range(1, 21)]
        super().__init__("SysAdmin_MDP_ippc2011", 4, choices)

    def rule(self) -> Ints:
        """Reboots what does not run."""
        return (~self.now("running")).astype(int)


class Computers(Sequential):
    """Twenty computers that fail if those that they depend on do; a reboot costs (2011)."""

    nvec, horizon, episodes = [2] * 20, 40, 500
    one = _Network


class _Readers(_Chosen):
    def __init__(self) -> None:
        choices = [[[f"recommend___c{c}__i{i}"] for i in range(1, 16)] for c in range(1, 11)]
        super().__init__("RecSim_ippc2023", 1, choices)

    def rule(self) -> Ints:
        """What is most like each consumer."""
        items = self.now("item-feature").reshape(15, 2)
        consumers = self.related("CONSUMER-AFFINITY", 10)
        return np.linalg.norm(consumers[:, None] - items, axis=-1).argmin(1)


class Readers(Sequential):
    """Ten consumers, each shown one of fifteen items; what is shown decides what comes (2023)."""

    nvec, horizon, episodes = [15] * 10, 100, 200
    one = _Readers


TASKS = by_name(Reservoirs, Plants, Supply, Tamarisk, Wildfires, Life, Computers, Readers)
