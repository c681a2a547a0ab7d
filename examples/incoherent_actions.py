"""Detect incoherent actions: score a dataset with injected corruptions.

In each corrupted row one slot is swapped with another row's, so that it is common by itself
but does not fit the others. Run with `python examples/incoherent_actions.py`; minutes on a CPU.
"""

import argparse

import torch
from sklearn.metrics import roc_auc_score

from spin_d3rlpy import PretrainingConfig, TransformerConfig, load_dataset
from spin_d3rlpy.asm import ActionStructureModel, pretrain
from spin_d3rlpy.files.results import format_table


def main(dataset_name: str, size: int | None, updates: int, rows: int) -> None:
    dataset, _ = load_dataset(dataset_name, size=size)
    training, held_out = dataset.split(0.1)
    torch.manual_seed(0)
    asm = ActionStructureModel(
        dataset.observations.shape[1], dataset.nvec, TransformerConfig(width=64, n_blocks=2)
    )
    pretrain(asm, training, PretrainingConfig(max_updates=updates, precision="auto"))

    observations, actions = held_out.sample_observations_and_actions(rows)
    corrupted = actions.clone()
    slots = torch.randint(len(dataset.nvec), (rows,))
    corrupted[range(rows), slots] = actions[torch.randperm(rows), slots]
    changed = (corrupted != actions).any(1)  # some drew what was there already
    wrong = torch.rand(rows) < 0.5
    is_corrupted = wrong & changed
    shown = torch.where(wrong[:, None], corrupted, actions)

    scores = asm.log_likelihood(observations, shown)
    frequency = torch.stack(
        [training.actions[:, i].long().bincount(minlength=m) for i, m in enumerate(dataset.nvec)]
    ).log()
    alone = frequency.gather(1, shown.T).T.sum(1)  # each slot by itself
    found = scores.per_slot.argmin(1) == slots
    print(f"{int(is_corrupted.sum())} of {rows} rows are corrupted.")
    print(f"The corrupted slot is the least likely in {found[is_corrupted].float().mean():.1%}.")
    results = {
        "log-likelihood": scores.total,
        "least likely slot": scores.per_slot.min(1).values,
        "frequencies (no model)": alone,
    }
    aucs = {name: roc_auc_score(is_corrupted, -score) for name, score in results.items()}
    print(format_table([{"score": k, "ROC AUC": f"{v:.3f}"} for k, v in aucs.items()]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="spin/cheetah-run-b3/medium-expert-v0")
    parser.add_argument("--size", type=int, default=100_000, help="its transitions")
    parser.add_argument("--updates", type=int, default=2_000, help="of pre-training")
    parser.add_argument("--rows", type=int, default=4_096, help="number of scored rows")
    args = parser.parse_args()
    main(args.dataset, args.size, args.updates, args.rows)
