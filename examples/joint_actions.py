"""One pre-trained file answers four questions: completions, alternatives, rules, support.

The data are pages that editors made (`spin/slate-v0`): no item stands on a page twice. Run with
`python examples/joint_actions.py`; a minute on a CPU.
"""

import argparse

import torch

from spin_d3rlpy import MLPConfig, PretrainingConfig, load_asm, load_dataset, save_asm
from spin_d3rlpy.asm import ActionStructureModel, pretrain
from spin_d3rlpy.asm.rules import all_different


def main(dataset_name: str, size: int | None, updates: int, rows: int) -> None:
    dataset, _ = load_dataset(dataset_name, size=size)
    torch.manual_seed(0)
    asm = ActionStructureModel(dataset.observations.shape[1], dataset.nvec, MLPConfig())
    config = PretrainingConfig(
        masking="any_order",
        batch_size=1024,
        learning_rate=4e-3,
        lr_schedule="linear",
        max_updates=updates,
    )
    pretrain(asm, dataset, config)
    save_asm(asm, "asm.safetensors")

    asm = load_asm("asm.safetensors")
    states, actions = dataset.sample_observations_and_actions(rows)
    n, k = actions.shape[1], dataset.nvec[0]

    rejected = actions[:1]
    given = torch.full_like(rejected, -1)
    given[0, -1] = rejected[0, -1]
    print("finished, the last choice given:", asm.complete(states[:1], given)[0].tolist())
    found = asm.sample(states[:1], 100)[:, 0].unique(dim=0)
    others = found[(found != rejected).any(1)]
    likely = asm.log_prob(states[:1].expand(len(others), -1), others)
    print("instead of a rejected action:   ", others[likely.argmax()].tolist())

    middle = rows // 2
    broken = actions.clone()
    broken[middle:, 0] = broken[middle:, 1]  # an item twice
    scores = asm.log_likelihood(states, broken).per_slot.amin(1)
    above = (scores[:middle, None] > scores[None, middle:]).float().mean()
    print(f"a page scores above one with an item twice in {above:.1%} of pairs")

    rule = all_different(k)
    columns = {
        "independent slots": asm.sample(states, slots_per_pass=n)[0],
        "slot by slot": asm.sample(states)[0],
        "slot by slot, last one given": asm.sample(states, given=given.expand(rows, -1))[0],
        "by the rule, last one given": asm.sample(
            states, given=given.expand(rows, -1), allowed=rule
        )[0],
    }
    print(f"{'samples':30} pages with an item twice\n{'-' * 55}")
    for name, samples in columns.items():
        twice = (samples.sort(1).values.diff(dim=1) == 0).any(1).float().mean()
        print(f"{name:30} {twice:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="spin/slate-n10/expert-v0")
    parser.add_argument("--size", type=int, default=20_000, help="its transitions")
    parser.add_argument("--updates", type=int, default=2_000, help="of pre-training")
    parser.add_argument("--rows", type=int, default=1_000, help="states that are asked about")
    args = parser.parse_args()
    main(args.dataset, args.size, args.updates, args.rows)
