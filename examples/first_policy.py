"""Train SPIN-IQL on a discretized control task and evaluate it; minutes on a CPU.

Run with `python examples/first_policy.py`; `--steps` and `--size` make it shorter.
"""

import argparse

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    LockstepEvaluator,
    PretrainingConfig,
    TransformerConfig,
    load_dataset,
    save_asm,
)
from spin_d3rlpy.files.results import format_table


def main(size: int, episodes: int, pretraining_updates: int, steps: int, folder: str) -> None:
    dataset, env = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    algo = SPINIQL(
        policy=SPIN(
            transformer=TransformerConfig(width=64, n_blocks=2),
            pretraining=PretrainingConfig(max_updates=pretraining_updates),
        )
    )
    evaluator = LockstepEvaluator(env, episodes)
    epochs = algo.fit(
        dataset, n_steps=steps, n_steps_per_epoch=1_000, evaluators={"return": evaluator}
    )
    assert algo.asm is not None
    save_asm(algo.asm, f"{folder}/asm.safetensors")  # SPINIQL(asm=...) takes it over later
    algo.save(f"{folder}/policy.d3")
    columns = ("step", "seconds", "return")
    print(format_table([{c: round(metrics[c], 1) for c in columns} for _, metrics in epochs]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps")
    parser.add_argument("--folder", default=".", help="output folder")
    args = parser.parse_args()
    main(args.size, args.episodes, args.pretraining_updates, args.steps, args.folder)
