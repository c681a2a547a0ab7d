"""What structure models are worth per CPU second of pre-training: `python -m tests.measure...`.

For each model and number of seconds: held-out joint negative log-likelihood per slot (any-order,
on the better half of the held-out episodes) and returns of the fully masked model, which is what
SPIN's policy starts as. One thread.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import d3rlpy
import torch
import typer

from spin_d3rlpy import SPINBC, LockstepEvaluator, TransformerConfig, load_dataset
from spin_d3rlpy.asm.objectives.masked import AnyOrderActionModeling
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.files.results import write_csv
from spin_d3rlpy.files.yaml_settings import check_name
from spin_d3rlpy.policies.stages import PretrainASM
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.loop import Run
from tests.algos.problems import new_algorithm

SMALL = TransformerConfig(width=64, n_blocks=2, head_hidden=64, dropout=0.0, attention_dropout=0.0)
WARM: dict[str, Any] = {"query_init": "mask", "head_init": "asm"}
# By name: recipe, fields of SPIN-BC, changed fields of its pre-training.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "published, width 64": ("published", {"transformer": SMALL, **WARM}, {}),
    "any order, width 64": ("published", {"transformer": SMALL, **WARM}, {"masking": "any_order"}),
    "tuned": ("tuned", {}, {}),
    "tuned, lr 2e-3": ("tuned", {}, {"learning_rate": 2e-3}),
    "tuned, lr 8e-3": ("tuned", {}, {"learning_rate": 8e-3}),
    "tuned, no average": ("tuned", {}, {"ema_decay": 0.0}),
}


def measure(
    model: str,
    seconds: float,
    training: DeviceReplayBuffer,
    held_out: DeviceReplayBuffer,
    env: Any,
    episodes: int,
) -> dict[str, Any]:
    """Pre-trains one model for so many CPU seconds and returns its row."""
    recipe, fields, changes = MODELS[model]
    d3rlpy.seed(0)
    algo = new_algorithm(SPINBC, recipe=recipe, **fields)
    factory: Any = algo.config.policy
    factory.pretraining = dataclasses.replace(factory.pretraining, budget_share=1.0, **changes)
    algo.build_with_dataset(training)
    run = Run(False, budget=Budget(seconds, time.process_time))
    result = PretrainASM().train(algo.stage_context(training, run))
    assert result.asm is not None
    algo.set_asm(result.asm)
    rows = result.rows
    impl: Any = algo.impl
    impl.sync_average()
    assert algo.asm is not None
    scaler = algo.config.observation_scaler
    with torch.random.fork_rng():
        torch.manual_seed(0)
        observations, actions = held_out.sample_observations_and_actions(20_000)
        inputs = observations if scaler is None else scaler.transform(observations)
        found = AnyOrderActionModeling(algo.asm).validate(inputs, actions)
    return {
        "model": model,
        "cpu_seconds": seconds,
        "updates": rows[-1]["step"],
        "rows": rows[-1]["samples"],
        "nll_per_slot": round(-found[0], 4),
        "greedy": round(LockstepEvaluator(env, episodes, 100, "greedy")(algo, None), 1),
        "sampled": round(LockstepEvaluator(env, episodes, 100, "sample")(algo, None), 1),
    }


def main(
    dataset: Annotated[str, typer.Argument(help="E.g. spin/cheetah-run-b3/medium-expert-v0.")],
    out: Annotated[Path, typer.Option(help="The CSV.")] = Path("structure_seconds.csv"),
    seconds: Annotated[list[float] | None, typer.Option(help="Repeatable.")] = None,
    models: Annotated[list[str] | None, typer.Option(help="Repeatable; default: all.")] = None,
    size: Annotated[int | None, typer.Option(help="Transitions of the dataset.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Of an evaluation.")] = 10,
) -> None:
    """Measure models of the table."""
    for model in models or ():
        check_name(model, list(MODELS), "models")
    torch.set_num_threads(1)
    data, env = load_dataset(dataset, size=size)
    training, held_out = data.split(0.1)
    returns = held_out.returns()
    better = (returns >= returns.median()).nonzero()[:, 0].tolist()
    rows = []
    for model in models or MODELS:
        for budget in seconds or (30.0, 60.0, 120.0):
            row = measure(model, budget, training, held_out.select(better), env, episodes)
            rows.append({"dataset": dataset, **row})
            write_csv(out, rows)
    env.close()


if __name__ == "__main__":
    typer.run(main)
