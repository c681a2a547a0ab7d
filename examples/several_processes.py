"""Train one model with several processes, one per GPU (or on CPU cores).

Run with `torchrun --standalone --nproc_per_node 2 examples/several_processes.py`; with
`--checkpoints` an interrupted job resumes.
"""

import argparse
import os
from pathlib import Path

import d3rlpy
import torch

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    PretrainingConfig,
    TransformerConfig,
    load_dataset,
    save_policy,
)
from spin_d3rlpy.files.results import format_table


def main(size: int, pretraining_updates: int, steps: int, folder: Path, checkpoints: bool) -> None:
    on_gpu = torch.cuda.is_available()
    rank = d3rlpy.distributed.init_process_group("nccl" if on_gpu else "gloo")
    gpu = int(os.environ["LOCAL_RANK"])  # among this machine's processes; the rank is among all
    if on_gpu:
        torch.cuda.set_device(gpu)
    # One process builds the dataset, the others wait for it.
    dataset, _ = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)

    d3rlpy.seed(rank)  # each process draws batches of its own; gradients are averaged
    algo = SPINIQL(
        device=f"cuda:{gpu}" if on_gpu else "cpu:0",
        enable_ddp=True,
        policy=SPIN(
            transformer=TransformerConfig(width=64, n_blocks=2),
            pretraining=PretrainingConfig(max_updates=pretraining_updates, precision="auto"),
        ),
    )
    epochs = algo.fit(
        dataset,
        n_steps=steps,
        n_steps_per_epoch=steps,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory() if rank else None,
        show_progress=rank == 0,
        checkpoint_dir=folder / "checkpoints" if checkpoints else None,
        resume=checkpoints,
    )
    if rank == 0:
        save_policy(algo, folder / "policy.safetensors")
        columns = ("step", "critic_loss", "actor_loss")
        print(format_table([{c: f"{metrics[c]:.4g}" for c in columns} for _, metrics in epochs]))
    d3rlpy.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps")
    parser.add_argument("--folder", type=Path, default=Path(), help="output folder")
    parser.add_argument(
        "--checkpoints", action="store_true", help="save checkpoints and resume from them"
    )
    args = parser.parse_args()
    main(args.size, args.pretraining_updates, args.steps, args.folder, args.checkpoints)
