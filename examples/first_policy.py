"""Train SPIN on couriers who choose among orders, or on a robot; a minute on a CPU.

Run with `python examples/first_policy.py`, or with
`--dataset spin/cheetah-run-b3/medium-expert-v0 --seconds 180` for a robot of six joints.
"""

import argparse

from spin_d3rlpy import SPINIDQL, LockstepEvaluator, load_dataset, save_asm, save_policy
from spin_d3rlpy.files.results import format_table


def main(name: str, size: int, episodes: int, seconds: float, folder: str) -> None:
    dataset, env = load_dataset(name, size=size)
    algo = SPINIDQL(recipe="tuned", device="cpu:0")
    algo.fit(dataset, seconds=seconds)
    evaluator = LockstepEvaluator(env, episodes)
    returns = {"data": float(dataset.returns().mean()), "SPIN": evaluator(algo, dataset)}
    assert algo.asm is not None
    save_asm(algo.asm, f"{folder}/asm.safetensors")  # SPINIDQL(asm=...) takes it over later
    save_policy(algo, f"{folder}/policy.safetensors")
    print(algo.trust)
    print(format_table([{"by": name, "return": f"{mean:.1f}"} for name, mean in returns.items()]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="spin/dispatch-n20/medium-expert-v0")
    parser.add_argument("--size", type=int, default=50_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of the evaluation")
    parser.add_argument("--seconds", type=float, default=60, help="of training")
    parser.add_argument("--folder", default=".", help="output folder")
    args = parser.parse_args()
    main(args.dataset, args.size, args.episodes, args.seconds, args.folder)
