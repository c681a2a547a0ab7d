"""An ordinary d3rlpy script in which one line, the algorithm, was changed to SPIN-IQL.

Run `python examples/swap_in.py --before` for the original. The data are random CartPole episodes
with a single slot; `MultiDiscrete` data need no further change.
"""

import argparse
from typing import Any

import d3rlpy
import gymnasium

from spin_d3rlpy import SPIN, IQLConfig, PretrainingConfig, TransformerConfig


def main(before: bool, data_steps: int, steps: int, folder: str) -> None:
    d3rlpy.seed(0)
    env = gymnasium.make("CartPole-v1")
    d3rlpy.envs.seed_env(env, 0)
    buffer = d3rlpy.dataset.create_fifo_replay_buffer(limit=100_000, env=env)
    random_policy = d3rlpy.algos.DiscreteRandomPolicyConfig().create()
    dataset = random_policy.collect(env, buffer, n_steps=data_steps, show_progress=False)

    algo: Any
    if before:
        algo = d3rlpy.algos.DiscreteCQLConfig(batch_size=64).create(device="cpu:0")
    else:
        algo = IQLConfig(batch_size=64, nvec=[2], **small()).create(device="cpu:0")

    epochs = algo.fit(
        dataset,
        n_steps=steps,
        n_steps_per_epoch=steps // 2,
        evaluators={
            "td_error": d3rlpy.metrics.TDErrorEvaluator(),
            "initial_value": d3rlpy.metrics.InitialStateValueEstimationEvaluator(),
        },
    )
    algo.save(f"{folder}/policy.d3")
    policy: Any = d3rlpy.load_learnable(f"{folder}/policy.d3")
    observation, _ = env.reset(seed=0)
    print("First action:", policy.predict(observation[None])[0])
    print("epoch  td_error  initial_value\n-----  --------  -------------")
    for epoch, metrics in epochs:
        print(f"{epoch:<5}  {metrics['td_error']:8.3f}  {metrics['initial_value']:13.3f}")


def small() -> dict[str, Any]:
    """Sizes for a small problem; the defaults are the paper's."""
    sizes = TransformerConfig(width=32, n_blocks=1)
    pretraining = PretrainingConfig(batch_size=256, max_updates=100)
    return {"policy": SPIN(sizes, pretraining)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", action="store_true", help="the original script")
    parser.add_argument("--data-steps", type=int, default=5_000, help="steps of random data")
    parser.add_argument("--steps", type=int, default=1_000, help="gradient steps")
    parser.add_argument("--folder", default=".", help="output folder")
    args = parser.parse_args()
    main(args.before, args.data_steps, args.steps, args.folder)
