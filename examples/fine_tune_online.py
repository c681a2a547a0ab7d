"""Train SPIN-IQL on a dataset, then continue in the environment; minutes on a CPU.

Run with `python examples/fine_tune_online.py`; the options make it shorter.
"""

import argparse

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    LockstepEvaluator,
    PretrainingConfig,
    TransformerConfig,
    create_replay_buffer,
    load_dataset,
)
from spin_d3rlpy.files.results import format_table


def main(
    size: int, episodes: int, pretraining_updates: int, steps: int, online_steps: int, folder: str
) -> None:
    dataset, env = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    algo = SPINIQL(
        policy=SPIN(
            transformer=TransformerConfig(width=64, n_blocks=2),
            pretraining=PretrainingConfig(max_updates=pretraining_updates),
        )
    )
    evaluator = LockstepEvaluator(env, episodes)
    algo.fit(dataset, n_steps=steps, n_steps_per_epoch=1_000)
    offline = evaluator(algo)

    # The offline episodes stay in the buffer; new ones, sampled from the policy, join them.
    buffer = create_replay_buffer(env, limit=size + online_steps, episodes=dataset.episodes)
    algo.reset_optimizer_states()
    algo.fit_online(env, buffer, n_steps=online_steps, n_steps_per_epoch=1_000)
    algo.save(f"{folder}/policy.d3")
    returns = {"offline": offline, "offline, then online": evaluator(algo)}
    print(format_table([{"training": k, "return": round(v, 1)} for k, v in returns.items()]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=5_000, help="gradient steps offline")
    parser.add_argument("--online-steps", type=int, default=5_000, help="environment steps")
    parser.add_argument("--folder", default=".", help="output folder")
    args = parser.parse_args()
    main(
        args.size,
        args.episodes,
        args.pretraining_updates,
        args.steps,
        args.online_steps,
        args.folder,
    )
