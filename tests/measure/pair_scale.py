"""Memory and time of a model that scores pairs of slots and choices, by their numbers.

Each size runs in a process of its own: steps of pre-training on made-up states and actions, then
one greedy decision, the surest slot first. Choices have 4 features, slots 2 and a distance.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, pretrain
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.files.results import format_table, write_csv
from spin_d3rlpy.policies.joint import JointPolicy
from spin_envs import ActionLayout

_MEASURE = "import sys; from tests.measure import pair_scale as p; p.print_measured(*sys.argv[1:])"
SIZES = [(10, 10), (20, 50), (50, 50), (100, 100), (100, 1000)]
BATCH_SIZE = 128
STEPS = 3


def layout(n_slots: int, n_choices: int) -> ActionLayout:
    """Returns slots of 2 columns, choices of 4, compared by their first one."""
    size = 2 * n_slots + 4 * n_choices
    of_choices = range(2 * n_slots, size, 4)  # first columns
    return ActionLayout(
        shared_choices=True,
        slot_columns=tuple((2 * i, 2 * i + 1) for i in range(n_slots)),
        choice_columns=tuple(tuple(range(i, i + 4)) for i in of_choices),
        compared=((0, 0),),
    )


class MadeUp:
    """Random states and actions."""

    transition_count = BATCH_SIZE

    def __init__(self, n_slots: int, n_choices: int) -> None:
        self._observations = torch.randn(BATCH_SIZE, 2 * n_slots + 4 * n_choices)
        self._actions = torch.randint(n_choices, (BATCH_SIZE, n_slots))

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns all of them."""
        return self._observations, self._actions


def config_of(steps: int) -> PretrainingConfig:
    """Returns settings of a short run."""
    return PretrainingConfig(
        masking="any_order", batch_size=BATCH_SIZE, max_updates=steps, n_epochs=steps
    )


def print_measured(n_slots: str, n_choices: str) -> None:
    """Prints a row of the table as JSON."""
    torch.set_num_threads(1)
    n, k = int(n_slots), int(n_choices)
    asm = ActionStructureModel(2 * n + 4 * k, [k] * n, EntityConfig(layout=layout(n, k)))
    source = MadeUp(n, k)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pretrain(asm, source, config_of(1))  # the first step of a process takes longer
    began = time.process_time()
    pretrain(asm, source, config_of(STEPS))
    step = (time.process_time() - began) / STEPS
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    state = torch.randn(1, 2 * n + 4 * k)
    policy = JointPolicy(2 * n + 4 * k, [k] * n, asm.config, "confidence")
    policy.asm = asm
    with torch.no_grad():
        policy.greedy(state)
        began = time.process_time()
        for _ in range(STEPS):
            policy.greedy(state)
    row = {
        "slots": n,
        "choices": k,
        "logits a state": n * k,
        "ms a step of 128": round(1000 * step),
        "MB beyond the model": round(memory),
        "ms a decision": round(1000 * (time.process_time() - began) / STEPS, 1),
    }
    print(json.dumps(row))


def main(
    out: Annotated[Path, typer.Option(help="folder of the table")] = Path("pair-scale"),
) -> None:
    """Measures all sizes and writes the table."""
    rows = []
    for n, k in SIZES:
        command = [sys.executable, "-c", _MEASURE, str(n), str(k)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(format_table(rows[-1:]))
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "pair_scale.csv", rows)


if __name__ == "__main__":
    typer.run(main)
