"""SPIN-Distill: train, write ONNX, and compare size and latency with SPIN's Transformer.

Run with `python examples/distill_and_export.py` (extra `onnx`, and onnxruntime); minutes on a CPU.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from spin_d3rlpy import (
    SPIN,
    SPINIQL,
    DistillationConfig,
    LockstepEvaluator,
    PretrainingConfig,
    SPINDistill,
    SPINDistillIQL,
    TransformerConfig,
    load_dataset,
)
from spin_d3rlpy.files.results import format_table


def latency(path: Path, observation: Any, repeats: int) -> float:
    """Median milliseconds of one decision on one core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    name = session.get_inputs()[0].name
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        session.run(None, {name: observation})
        times.append(time.perf_counter() - started)
    return 1_000 * float(np.median(times))


def main(
    size: int, episodes: int, pretraining_updates: int, steps: int, repeats: int, folder: Path
) -> None:
    dataset, env = load_dataset("spin/cheetah-run-b3/medium-expert-v0", size=size)
    evaluator = LockstepEvaluator(env, episodes)
    sizes = TransformerConfig(width=128, n_blocks=2)
    pretraining = PretrainingConfig(max_updates=pretraining_updates, precision="auto")
    spin = SPINIQL(policy=SPIN(sizes, pretraining))
    spin.fit(dataset, n_steps=steps, n_steps_per_epoch=steps)
    distillation = DistillationConfig(n_updates=pretraining_updates)
    policy = SPINDistill(sizes, pretraining, distillation=distillation)
    student = SPINDistillIQL(asm=spin.asm, policy=policy)
    student.fit(dataset, n_steps=steps, n_steps_per_epoch=steps)
    rows = []
    algorithms: dict[str, Any] = {"spin": spin, "distill": student}
    for name, algo in algorithms.items():
        path = folder / f"{name}.onnx"
        algo.save_policy(str(path))
        milliseconds = latency(path, dataset.observations[:1].numpy(), repeats)
        result = {"ms per decision": round(milliseconds, 3), "return": round(evaluator(algo), 1)}
        rows.append({"policy": name, "kB": round(path.stat().st_size / 1e3), **result})
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="transitions of the dataset")
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--pretraining-updates", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=2_000, help="gradient steps")
    parser.add_argument("--repeats", type=int, default=200, help="number of timed decisions")
    parser.add_argument("--folder", type=Path, default=Path(), help="output folder")
    args = parser.parse_args()
    main(args.size, args.episodes, args.pretraining_updates, args.steps, args.repeats, args.folder)
