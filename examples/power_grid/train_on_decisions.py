"""Offline RL on a power grid (Grid2Op): a choice per substation, at most two changed at once.

The data come from an expert that simulates random changes and takes the best. Illegal actions,
which change more, do nothing. Run `pip install "spin-d3rlpy[grid2op]"`, then
`python examples/power_grid/train_on_decisions.py`; about half an hour on a CPU.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from grid import MOST, decide, make_grid, play

from spin_d3rlpy import SPINIDQL, SPINIQL, AutoregressiveIDQL, FactoredIDQL, from_table
from spin_d3rlpy.asm.rules import at_most_changed


def one_decision(choose: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a chooser for `play`, which asks for one state at a time."""
    return lambda _, x: choose(x[None])[0]


def main(steps: int, candidates: int, seconds: float, test_steps: int) -> None:
    env, space, flat = make_grid()
    rng = np.random.default_rng(0)
    env.seed(0)
    log, illegal, survived = play(
        env, space, flat, steps, lambda g, _: decide(g, space, rng, candidates)
    )
    s, a = ([name for name in log if name[0] == x and name[1:].isdigit()] for x in "sa")
    options: Any = {"reward": "reward", "terminal": "over", "nvec": space.nvec.tolist()}
    options["last_step"] = "drop"  # the log ends, the grid does not
    dataset = from_table(log, observations=s, actions=a, episode="episode", **options)
    rows = [("expert", illegal, survived)]
    rule = at_most_changed([0] * len(a), MOST, max(space.nvec))
    for algo_class in (FactoredIDQL, AutoregressiveIDQL, SPINIQL, SPINIDQL):
        torch.manual_seed(0)
        algo: Any = algo_class(recipe="tuned")
        algo.fit(dataset, seconds=seconds, show_progress=False)
        ways = {"": algo.sample_action}
        if algo_class is SPINIDQL:
            ways[", by the rule"] = functools.partial(algo.predict_with, allowed=rule)
        for way, choose in ways.items():
            env.seed(1)
            _, illegal, survived = play(env, space, flat, test_steps, one_decision(choose))
            rows.append((algo_class.__name__ + way, illegal, survived))
    print(f"{'':28} illegal  steps survived\n{'-' * 50}")
    for name, illegal, survived in rows:
        print(f"{name:28} {illegal:7.1%} {survived:8.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4_000, help="of the expert's data")
    parser.add_argument("--candidates", type=int, default=12, help="that the expert simulates")
    parser.add_argument("--seconds", type=float, default=90.0, help="of each training")
    parser.add_argument("--test-steps", type=int, default=2_000, help="of each policy")
    main(**vars(parser.parse_args()))
