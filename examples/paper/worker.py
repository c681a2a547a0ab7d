"""Does one job, in a process of its own: `python -m examples.paper.worker`."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import structlog
import torch

from examples.paper.coordination import measure_coordination
from examples.paper.job import RESULT, RUN, Job
from examples.paper.linear import LinearCritic
from examples.paper.settings import EVALUATION_SEED, pretraining_of, settings_of
from spin_d3rlpy.algos.saving import load_policy
from spin_d3rlpy.asm import load_asm
from spin_d3rlpy.asm.probe import ProbeConfig, linear_probe
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset, with_rewards
from spin_d3rlpy.evaluation.metrics import ActingAlgo, ActionMode, LockstepEvaluator
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import read_csv, write_csv, write_json
from spin_d3rlpy.policies.stages import asm_file
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.runs.training import CURVE, POLICY, Env, run_pretraining, run_training
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.work import WorkClock
from spin_envs.rewards import REWARDS
from spin_envs.tasks import BenchmarkTask

HELD_OUT = 0.1  # share of the episodes that probes are tested on


def run_job(root: Path, name: str) -> None:
    """Does the job in folder `root / name`, resuming an earlier attempt.

    Waits for another process with the same job (a worker that outlived a killed `run`).
    """
    folder = root / name
    job = Job.from_json(json.loads((folder / "job.json").read_text()))
    with exclusive_folder(folder):
        if (folder / RESULT).exists():
            return
        write_json(folder / "machine.json", describe_machine())
        started = time.monotonic()
        if job.kind == "pretrain":
            result = _pretrain(root, job)
        elif job.kind == "train":
            result = _train(root, job)
        elif job.kind == "linear":
            result = _fit_linear(root, job)
        else:
            result = _probe(root, job)
        attempt = time.monotonic() - started
        write_json(folder / RESULT, {**result, "seconds_of_last_attempt": attempt})


def _pretrain(root: Path, job: Job) -> dict[str, Any]:
    folder, settings = root / job.name / RUN, pretraining_of(job)
    budget = Budget(job.seconds, _clock(job))
    result = run_pretraining(folder, settings, show_progress=False, budget=budget)
    return {f"pretraining_{k}": v for k, v in result.items() if k not in ("dataset", "asm")}


def _train(root: Path, job: Job) -> dict[str, Any]:
    folder = root / job.name
    asm = None if job.asm is None else str(_asm_path(root, job))
    settings = settings_of(job, asm)
    trained = run_training(
        folder / RUN,
        settings,
        show_progress=False,
        greedy_too=True,
        clock=_clock(job),
        spent=job.spent,
        change=lambda dataset, env: _change(job, dataset, env),
    )
    curve = read_csv(folder / RUN / CURVE)
    keys = ("return", "greedy_return", "update_seconds", "seconds", "cpu_seconds", "steps")
    result = {key: trained[key] for key in keys if key in trained}
    result["evaluation_seconds"] = sum(float(row["evaluation_seconds"]) for row in curve)
    if job.asm is not None:
        pretrained = json.loads((root / job.asm.name / RESULT).read_text())
        result |= {k: v for k, v in pretrained.items() if k.startswith("pretraining_")}
    coordinates = BenchmarkTask.parse(job.dataset.split("/")[1]).needs_coordination
    if job.final_episodes or coordinates:
        policy = load_policy(folder / RUN / POLICY, job.device)
        with closing(gymnasium.make(trained["env"], **trained["env_args"])) as env:
            if job.final_episodes:
                result |= _final_returns(job, policy, env)
            if coordinates:
                result |= measure_coordination(policy, env, job.episodes, EVALUATION_SEED)
    return result


def _fit_linear(root: Path, job: Job) -> dict[str, Any]:
    """Fits and evaluates a linear critic; its learning curve has one row."""
    buffer, env = load_dataset(job.dataset, size=job.size, progress=False)
    started = time.process_time()
    critic = LinearCritic(buffer)
    seconds = time.process_time() - started
    with closing(env), closing(LockstepEvaluator(env, job.episodes, EVALUATION_SEED)) as evaluator:
        returns = evaluator.returns(critic)
    row = {"step": 1, "return": float(returns.mean()), "return_std": float(returns.std())}
    folder = root / job.name / RUN
    folder.mkdir(exist_ok=True)
    write_csv(folder / CURVE, [row])
    row |= {"steps": 1, "greedy_return": row["return"], "evaluation_seconds": 0.0}
    return {**row, "update_seconds": seconds, "seconds": seconds}


def _final_returns(job: Job, policy: ActingAlgo, env: gymnasium.Env[Any, Any]) -> dict[str, float]:
    """Plays a trained policy's final episodes; returns means and standard deviations."""
    result: dict[str, float] = {}
    modes: dict[str, ActionMode] = {"return": job.mode, "greedy_return": "greedy"}
    for name, mode in modes.items():
        evaluator = LockstepEvaluator(env, job.final_episodes, EVALUATION_SEED, mode)
        with closing(evaluator):
            returns = evaluator.returns(policy)
        result |= {name: float(returns.mean()), f"{name}_std": float(returns.std())}
    return result


def _clock(job: Job) -> Callable[[], float]:
    """Returns what counts a job's seconds."""
    if job.clock == "ops":
        return WorkClock()
    # With one thread (see `work`) process time is that of one core, however busy it is.
    return time.monotonic if job.seconds is None else time.process_time


def _change(job: Job, dataset: DeviceReplayBuffer, env: Env) -> tuple[DeviceReplayBuffer, Env]:
    """Returns what a job trains on and is evaluated in."""
    if job.labeled < 1.0:
        order = np.random.default_rng(job.seed).permutation(dataset.size())
        dataset = dataset.select(sorted(order[: max(1, round(job.labeled * len(order)))].tolist()))
    if job.reward is not None and env is not None:
        assert env.spec is not None
        dataset = with_rewards(dataset, REWARDS[job.reward])
        env = gymnasium.make(env.spec.id, **{**env.spec.kwargs, "reward": job.reward})
    return dataset, env


def _probe(root: Path, job: Job) -> dict[str, Any]:
    buffer, env = load_dataset(job.dataset, size=job.size, progress=False)
    env.close()
    training, held_out = buffer.to(job.device).split(HELD_OUT)
    asm = load_asm(_asm_path(root, job), job.device)
    d3rlpy.seed(job.seed)
    config = ProbeConfig(**job.fields.get("probe", {}))
    return dataclasses.asdict(linear_probe(asm, training, held_out, config))


def _asm_path(root: Path, job: Job) -> Path:
    assert job.asm is not None
    return root / job.asm.name / RUN / asm_file(job.asm_epoch)


def work(root: Path, name: str, threads: int) -> None:
    """Does the job in `root / name`, in its own process, with its share of the machine's cores."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # Jobs that are given CPU seconds have those of one core.
    is_timed = json.loads((root / name / "job.json").read_text()).get("seconds") is not None
    torch.set_num_threads(1 if is_timed else threads)
    run_job(root, name)


if __name__ == "__main__":  # python -m examples.paper.worker ROOT NAME THREADS
    work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
