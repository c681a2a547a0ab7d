"""Learn from clinicians of ICU-Sepsis with masks of admissible levels; needs `icu-sepsis`.

Run with `python examples/sepsis/train_on_icu.py`; three minutes a training on one core. Values are
exact: survival rates by the tables.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
from d3rlpy.logging import NoopAdapterFactory
from icu import N_PAIRS, NVEC, Tables, greedy, slot_masks, tables

from spin_d3rlpy import SPINIDQL, DecQN, FactoredBC, FactoredIDQL, FactoredIQL, collect
from spin_d3rlpy.files.results import format_table, write_csv

ALGORITHMS: Any = {a.__name__: a for a in (FactoredBC, FactoredIQL, DecQN, FactoredIDQL, SPINIDQL)}


def clinicians(model: Tables, seed: int) -> Any:
    """Returns a function that draws one of their admissible pairs for a patient."""
    rng, usual = np.random.default_rng(seed), model.usual()
    state_of = {features.tobytes(): state for state, features in enumerate(model.features)}

    def choose(observation: np.ndarray) -> np.ndarray:
        pair = rng.choice(N_PAIRS, p=usual[state_of[observation.tobytes()]])
        return np.array(divmod(pair, NVEC[1]))

    return choose


def row(name: str, model: Tables, chosen: np.ndarray, **more: Any) -> dict[str, Any]:
    """A line about the pair that is chosen in each state."""
    policy = np.eye(N_PAIRS)[chosen]
    values = {
        "value": f"{model.value(policy):.4f}",
        "if inadmissible is deadly": f"{model.with_deadly_pairs().value(policy):.4f}",
        "inadmissible": f"{model.inadmissible_share(chosen):.2%}",
    }
    return {"decided by": name, **values, "seed": "", "trust": "", **more}


def main(patients: int, seconds: float, seeds: list[int], names: list[str], out: Path) -> None:
    model, env = tables(), gymnasium.make("example/icu-sepsis-v0")
    q, masks = model.optimal_q(), slot_masks(model.pairs)
    rows = [row("optimal values", model, greedy(q, model.pairs))]
    log = collect(env, clinicians(model, seed=0), episodes=patients)
    quiet = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
    for seed, name in itertools.product(seeds, names):
        d3rlpy.seed(seed)
        algo = ALGORITHMS[name](recipe="tuned")
        algo.fit(log, seconds=seconds, clock="ops", **quiet)
        more = {"seed": seed, "trust": str(getattr(algo, "trust", ""))}
        masked = algo.predict_masked(model.features, masks) @ [NVEC[1], 1]
        rows.append(row(name, model, algo.predict(model.features) @ [NVEC[1], 1], **more))
        rows.append(row(f"{name}, masked", model, masked, **more))
        write_csv(out, rows)  # after each, because all take hours
    for name, policy in (("all", model.clinicians), ("admissible", model.usual())):
        print(f"The clinicians, {name} pairs: {model.value(policy):.3f}")
    print(format_table([{k: v for k, v in row.items() if k != "trust"} for row in rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=10_000, help="in the log")
    parser.add_argument("--seconds", type=float, default=150, help="nominal ones of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=Path("icu.csv"))
    args = parser.parse_args()
    main(args.patients, args.seconds, args.seeds, args.algorithms, args.out)
