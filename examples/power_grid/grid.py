"""A power grid of Grid2Op, one choice per substation, and an expert that simulates changes."""

from typing import Any

import grid2op
import numpy as np
from grid2op.gym_compat import BoxGymObsSpace, MultiDiscreteActSpace
from grid2op.Parameters import Parameters
from lightsim2grid import LightSimBackend

MOST, BUSY = 2, 0.8  # substations changed at once; load of a line from which the expert acts
OBSERVED = ["rho", "load_p", "gen_p", "topo_vect", "time_before_cooldown_sub"]


def make_grid() -> tuple[Any, Any, Any]:
    """The environment, its action space (MultiDiscrete), and what reads observations flat."""
    parameters = Parameters()
    parameters.MAX_SUB_CHANGED = MOST
    settings = {"test": True, "backend": LightSimBackend(), "param": parameters}
    env = grid2op.make("l2rpn_case14_sandbox", **settings)
    space = MultiDiscreteActSpace(env.action_space, attr_to_keep=["sub_set_bus"])
    return env, space, BoxGymObsSpace(env.observation_space, attr_to_keep=OBSERVED)


def decide(grid: Any, space: Any, rng: np.random.Generator, candidates: int) -> Any:
    """The expert: of random changes, the one after which the fullest line is least loaded."""
    best, least = np.zeros(len(space.nvec), dtype=int), grid.rho.max()
    for _ in range(candidates if least > BUSY else 0):
        action = np.zeros_like(best)
        subs = rng.choice(np.flatnonzero(space.nvec > 1), rng.integers(1, MOST + 1), False)
        action[subs] = rng.integers(1, space.nvec[subs])
        after, _, over, _ = grid.simulate(space.from_gym(action))
        if not over and after.rho.max() < least:
            best, least = action, after.rho.max()
    return best


def play(env: Any, space: Any, flat: Any, steps: int, act: Any) -> tuple[dict[str, Any], Any, Any]:
    """Whole episodes of at least this many steps as a table, the illegal share, the mean length."""
    rows: list[Any] = []
    lengths: list[int] = []
    illegal = []
    while len(rows) < steps:
        grid, over = env.reset(), False
        while not over:
            state, load = flat.to_gym(grid), grid.rho.max()
            action = act(grid, state)
            grid, _, over, info = env.step(space.from_gym(action))
            rows.append([*state, *action, 1.0 - load, over, len(lengths)])
            illegal.append(info["is_illegal"])
        lengths.append(grid.current_step)
    names = [f"s{i}" for i in range(len(state))] + [f"a{i}" for i in range(len(action))]
    columns = zip([*names, "reward", "over", "episode"], np.array(rows, float).T, strict=True)
    return dict(columns), np.mean(illegal), np.mean(lengths)
