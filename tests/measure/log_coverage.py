"""How often intervals of estimates from a log contain the true value, where that is known exactly.

Run with `python -m tests.measure.log_coverage [--out FILE.csv] [--repetitions 100] [--seconds S]`.
Each repetition draws a new log, learns its probabilities, and estimates with 90 % intervals. ICU-
Sepsis needs `pip install icu-sepsis==2.0.1`. Without it, only slates are measured.
"""

from __future__ import annotations

import csv
import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import structlog
import torch
import typer
from d3rlpy.models.encoders import VectorEncoderFactory
from numpy.typing import NDArray

from spin_d3rlpy import (
    ActionStructureModel,
    MLPConfig,
    MultiDiscreteFQEConfig,
    PretrainingConfig,
)
from spin_d3rlpy.asm.pretraining import StateActionSource, pretrain
from spin_d3rlpy.evaluation.doubly_robust import doubly_robust
from spin_d3rlpy.evaluation.estimates import Estimate
from spin_d3rlpy.evaluation.importance import importance_sampling
from spin_d3rlpy.evaluation.probabilities import BehaviorProbabilities, GreedyPolicy
from spin_d3rlpy.evaluation.slates import SlateEstimator, slate_value
from spin_d3rlpy.files.atomic import atomic_write
from tests.measure import sepsis
from tests.measure.slates import NVEC as SLATE_NVEC
from tests.measure.slates import Slates

Floats = NDArray[np.float64]

LEVEL = 0.9
EPISODES = 1000
SLATES = 2000
TILT = 40.0
SOFTEN = 0.95
STEPS = 200  # of each Q function


def behavior_of(
    log: StateActionSource, size: int, nvec: list[int], seed: int, updates: int
) -> BehaviorProbabilities:
    """Learns who logged, from nothing but the log."""
    torch.manual_seed(seed)
    asm = ActionStructureModel(size, nvec, MLPConfig(width=64, n_layers=2))
    config = PretrainingConfig(
        masking="any_order",
        full_mask_share=0.2,
        batch_size=256,
        learning_rate=3e-3,
        lr_schedule="cosine",
        n_epochs=10_000,
        max_updates=updates,
    )
    pretrain(asm, log, config)
    return BehaviorProbabilities(asm, n_orders=8)


def slate_rows(seed: int, n: int = SLATES) -> Iterator[dict[str, Any]]:
    """Yields a row per estimator and kind of reward, with learned probabilities."""
    for reward in ("own", "cascade"):
        model = Slates(reward)
        log = model.draw(n, seed)
        behavior = behavior_of(log, log.observations.shape[1], SLATE_NVEC, seed, 400)
        truth = model.value(model.evaluated)
        for estimator, self_normalized in itertools.product(
            get_args(SlateEstimator), (False, True)
        ):
            found = slate_value(
                log.observations,
                log.actions,
                log.rewards,
                model.evaluated,
                behavior,
                estimator=estimator,
                self_normalized=self_normalized,
                level=LEVEL,
                seed=seed,
            )
            yield row(f"slates, reward of {reward}", "learned", "shifted", found, truth, seed)


def sepsis_rows(
    model: sepsis.Sepsis, q: Floats, seed: int, episodes: int = EPISODES
) -> Iterator[dict[str, Any]]:
    """Yields a row per policy, estimator and source of probabilities."""
    log, logged = model.play(model.clinicians, episodes, seed)
    updates = 400
    learned = behavior_of(log, model.features.shape[1], sepsis.NVEC, seed, updates)
    tilted = sepsis.TablePolicy(model, tilt(model.clinicians, q))
    truth = model.value(tilted.table)
    for found in estimates(log, tilted, logged, seed, with_q=True):
        yield row("icu-sepsis", "known", "tilted clinicians", found, truth, seed)
    for found in estimates(log, tilted, learned, seed, with_q=False):
        yield row("icu-sepsis", "learned", "tilted clinicians", found, truth, seed)
    optimal = sepsis.TablePolicy(model, np.eye(q.shape[1])[q.argmax(1)])
    softened = GreedyPolicy(optimal.sample, SOFTEN, learned)
    truth = model.value(as_table(model, softened))
    for found in estimates(log, softened, learned, seed, with_q=True):
        yield row("icu-sepsis", "learned", "softened optimum", found, truth, seed)


def estimates(log: Any, policy: Any, behavior: Any, seed: int, with_q: bool) -> Iterator[Estimate]:
    """Yields what the estimators find."""
    for weighting in ("per_decision", "self_normalized", "whole_episode"):
        yield importance_sampling(
            log, policy, behavior, weighting=weighting, level=LEVEL, seed=seed
        )
    if with_q:
        fqe = MultiDiscreteFQEConfig(
            learning_rate=1e-3, batch_size=64, encoder_factory=VectorEncoderFactory([64, 64])
        )
        yield doubly_robust(
            log,
            policy,
            behavior,
            fqe=fqe,
            n_steps=STEPS,
            value_samples=2,
            level=LEVEL,
            seed=seed,
        )


def tilt(behavior: Floats, q: Floats) -> Floats:
    """Returns what a behavior would be if better actions became likelier, `(S, A)`."""
    tilted = behavior * np.exp(TILT * (q - q.max(1, keepdims=True)))
    return np.asarray(tilted / tilted.sum(1, keepdims=True))


def as_table(model: sepsis.Sepsis, policy: GreedyPolicy) -> Floats:
    """Returns a policy's probabilities `(S, A)`, normalized: a model's are nearly so."""
    pairs = np.stack(np.divmod(np.arange(25), 5), axis=1)
    columns = [
        policy.log_prob(model.features, np.repeat(pair[None], len(model.features), axis=0))
        for pair in pairs
    ]
    table = np.exp(np.stack(columns, axis=1))
    return np.asarray(table / table.sum(1, keepdims=True))


def row(
    problem: str, probabilities: str, policy: str, found: Estimate, truth: float, seed: int
) -> dict[str, Any]:
    """Returns a line of the table."""
    return {
        "problem": problem,
        "probabilities": probabilities,
        "policy": policy,
        "estimator": found.estimator,
        "seed": seed,
        "estimate": f"{found.value:.5f}",
        "low": f"{found.low:.5f}",
        "high": f"{found.high:.5f}",
        "truth": f"{truth:.5f}",
        "covered": int(found.low <= truth <= found.high),
        "effective_size": f"{found.effective_size:.1f}",
        "mean_weight": f"{found.mean_weight:.3f}",
        "mean_weight_error": f"{found.mean_weight_error:.3f}",
        "answered": int(found.is_answered),
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each kind of row, its coverage: of all, and of those with an answer."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    names = ("problem", "probabilities", "policy", "estimator")
    for line in rows:
        kinds.setdefault(tuple(line[name] for name in names), []).append(line)
    found = []
    for kind, lines in kinds.items():
        answered = [line for line in lines if line["answered"]]
        errors = np.array([float(x["estimate"]) - float(x["truth"]) for x in lines])
        found.append(
            {
                **dict(zip(names, kind, strict=True)),
                "repetitions": len(lines),
                "coverage": f"{np.mean([x['covered'] for x in lines]):.2f}",
                "answered": len(answered),
                "coverage_of_answered": (
                    f"{np.mean([x['covered'] for x in answered]):.2f}" if answered else ""
                ),
                "truth": f"{np.mean([float(x['truth']) for x in lines]):.4f}",
                "mean_error": f"{errors.mean():.4f}",
                "root_mean_square_error": f"{np.sqrt(np.square(errors).mean()):.4f}",
            }
        )
    return found


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes a table, atomically."""
    with atomic_write(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(
    out: Annotated[Path, typer.Option(help="A CSV file for the table.")] = Path(
        "examples/results/log_coverage.csv"
    ),
    repetitions: Annotated[int, typer.Option(help="Logs of each problem.")] = 100,
    first: Annotated[int, typer.Option(help="Seed of the first log.")] = 0,
    seconds: Annotated[float, typer.Option(help="Begin no repetition after this time.")] = 3600.0,
) -> None:
    """Measures and prints coverage."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    torch.set_num_threads(1)
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    model = sepsis.load() if sepsis.is_installed() else None
    q = None if model is None else model.optimal_q()
    for seed in range(first, first + repetitions):
        if time.monotonic() - begun > seconds:
            break
        rows += slate_rows(seed)
        if model is not None and q is not None:
            rows += sepsis_rows(model, q, seed)
        write(rows, out)
        write(summary(rows), out.with_name(f"{out.stem}_summary.csv"))
    for line in summary(rows):
        print(line)


if __name__ == "__main__":
    typer.run(main)
