"""Tune by the log alone, without the simulator; needs `pip install optuna`.

`--by likelihood` ranks structure models by the probability of held-out actions, `--by fqe` ranks
policies by fitted Q evaluation on held-out episodes. Both print their trials, the best first.
"""

import argparse
from typing import Any

import numpy as np
import optuna

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    BehaviorProbabilities,
    FactoredIQL,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    PretrainingConfig,
    TransformerConfig,
    load_dataset,
)
from spin_d3rlpy.files.results import format_table

GAMMA = 0.99  # the same for all trials: values of other discounts are not comparable


def held_out_likelihood(trial: optuna.Trial, training: Any, held_out: Any, steps: int) -> float:
    """Mean log-probability of held-out actions by a structure model of `steps` updates."""
    width = trial.suggest_categorical("width", [32, 64, 128])
    rate = trial.suggest_float("learning_rate", 1e-4, 3e-3, log=True)
    pretraining = PretrainingConfig(
        masking="any_order", learning_rate=rate, max_updates=steps, n_epochs=10_000
    )
    algo = SPINIQL(policy=SPIN(TransformerConfig(width=width, n_blocks=2), pretraining))
    algo.pretrain(training, show_progress=False)
    assert algo.asm is not None
    states = np.concatenate([e.observations[: len(e.actions)] for e in held_out.episodes])
    actions = np.concatenate([e.actions for e in held_out.episodes]).astype(np.int64)
    return float(BehaviorProbabilities(algo.asm).log_prob(states, actions).mean())


def estimated_value(trial: optuna.Trial, training: Any, held_out: Any, steps: int) -> float:
    """Mean value of the first decisions by fitted Q evaluation on episodes not trained on."""
    expectile = trial.suggest_float("expectile", 0.5, 0.9)
    weight_temp = trial.suggest_float("weight_temp", 0.5, 10.0, log=True)
    policy = FactoredIQL(expectile=expectile, weight_temp=weight_temp, gamma=GAMMA)
    quiet: dict[str, Any] = {"n_steps": steps, "n_steps_per_epoch": steps, "show_progress": False}
    policy.fit(training, **quiet)
    fqe = MultiDiscreteFQE(policy, MultiDiscreteFQEConfig(gamma=GAMMA))
    fqe.fit(held_out, **quiet)
    first = np.stack([episode.observations[0] for episode in held_out.episodes])
    return float(fqe.predict_value(first, policy.predict(first)).mean())


def main(by: str, trials: int, size: int, steps: int) -> None:
    dataset, _ = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    training, held_out = dataset.split(0.3)
    score = {"likelihood": held_out_likelihood, "fqe": estimated_value}[by]
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(lambda trial: score(trial, training, held_out, steps), n_trials=trials)
    best_first = sorted(study.trials, key=lambda t: -t.value)
    print(format_table([{"trial": t.number, by: f"{t.value:.3f}", **t.params} for t in best_first]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=["likelihood", "fqe"], default="likelihood")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--steps", type=int, default=3_000, help="updates of each network")
    args = parser.parse_args()
    main(args.by, args.trials, args.size, args.steps)
