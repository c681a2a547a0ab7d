"""Learn from clinicians of ICU-Sepsis with masks of admissible levels; needs `icu-sepsis`.

Run with `python examples/sepsis/train_on_icu.py`. Values are exact: survival rates by the tables.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from icu import N_PAIRS, NVEC, Tables, greedy, slot_masks, tables

from spin_d3rlpy import DecQN, FactoredBC, FactoredIQL, LockstepEvaluator, collect
from spin_d3rlpy.files.results import format_table

ALGORITHMS = {"FactoredBC": FactoredBC, "FactoredIQL": FactoredIQL, "DecQN": DecQN}


def clinicians(model: Tables, seed: int) -> Any:
    """Returns a function that draws one of their admissible pairs for a patient."""
    rng, usual = np.random.default_rng(seed), model.usual()
    state_of = {features.tobytes(): state for state, features in enumerate(model.features)}

    def choose(observation: np.ndarray) -> np.ndarray:
        pair = rng.choice(N_PAIRS, p=usual[state_of[observation.tobytes()]])
        return np.array(divmod(pair, NVEC[1]))

    return choose


def row(name: str, model: Tables, chosen: np.ndarray, simulated: str = "") -> dict[str, str]:
    """A line about the pair that is chosen in each state."""
    policy = np.eye(N_PAIRS)[chosen]
    return {
        "decided by": name,
        "value": f"{model.value(policy):.3f}",
        "if inadmissible is deadly": f"{model.with_deadly_pairs().value(policy):.3f}",
        "inadmissible": f"{model.inadmissible_share(chosen):.1%}",
        "simulated": simulated,
    }


def main(patients: int, steps: int, test_patients: int) -> None:
    model, env = tables(), gymnasium.make("example/icu-sepsis-v0")
    q = model.optimal_q()
    rows = [
        row("optimal values, any pair", model, greedy(q)),
        row("optimal values, admissible", model, greedy(q, model.pairs)),
    ]
    log = collect(env, clinicians(model, seed=0), episodes=patients)
    masks = slot_masks(model.pairs)
    for name, algorithm in ALGORITHMS.items():
        algo: Any = algorithm(gamma=0.99) if name != "FactoredBC" else algorithm()
        algo.fit(log, n_steps=steps, n_steps_per_epoch=steps)
        survived = LockstepEvaluator(env, test_patients)(algo)  # it takes the masks by itself
        chosen = algo.predict(model.features) @ [NVEC[1], 1]
        masked = algo.predict_masked(model.features, masks) @ [NVEC[1], 1]
        rows.append(row(name, model, chosen))
        rows.append(row(f"{name}, masked", model, masked, f"{survived:.3f}"))
    print(f"The clinicians: {model.value(model.clinicians):.3f}")
    print(f"Their admissible pairs only: {model.value(model.usual()):.3f}")
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=1_000, help="in the log")
    parser.add_argument("--steps", type=int, default=2_000, help="gradient steps")
    parser.add_argument("--test-patients", type=int, default=500, help="simulated")
    args = parser.parse_args()
    main(args.patients, args.steps, args.test_patients)
