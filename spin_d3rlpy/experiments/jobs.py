"""Jobs of workers: pre-train an ASM, train and evaluate an algorithm, or probe an ASM.

A job is a folder: `job.json`, `run/` (see `spin_d3rlpy.training`), `result.json` when it is done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import d3rlpy
import gymnasium
import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from spin_d3rlpy.algos.files import load_policy
from spin_d3rlpy.algos.idql import IDQL
from spin_d3rlpy.asm import load_asm
from spin_d3rlpy.asm.probe import ProbeConfig, linear_probe
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.data import load_dataset
from spin_d3rlpy.locks import exclusive_folder
from spin_d3rlpy.metrics import ActionMode
from spin_d3rlpy.policies.joint import JointPolicy
from spin_d3rlpy.reports import describe_machine, read_csv, write_json
from spin_d3rlpy.run_settings import PretrainSettings, TrainSettings, train_settings
from spin_d3rlpy.training import CURVE, POLICY, run_pretraining, run_training
from spin_envs.tasks import BenchmarkTask
from spin_envs.vector import make_batch

RESULT = "result.json"
RUN = "run"
ERROR = "error.txt"
LOG = "log.txt"
CHECKPOINT_INTERVAL = 1_000  # steps
EVALUATION_SEED = 100
TIMED_EPOCHS = 4  # evaluations of a timed training
TIMED_DECISIONS = 30
HELD_OUT = 0.1  # share of the episodes that probes are tested on

Choose = Callable[[NDArray[Any]], NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Job:
    """One piece of work; equal jobs are done once."""

    kind: Literal["pretrain", "train", "probe"]
    dataset: str  # name
    size: int | None = None  # its transitions; the published size if None
    seed: int = 0  # of networks and mini-batches
    device: str = "cpu:0"
    algorithm: str | None = None  # of a training: class in `spin_d3rlpy.algos`
    # Config fields, nested ones as dictionaries; of a pre-training `transformer`, `pretraining`.
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    n_steps: int = 0
    n_steps_per_epoch: int = 0
    episodes: int = 10  # per evaluation
    mode: ActionMode = "sample"  # evaluated actions
    recipe: str = "published"  # for fields not in `fields`
    seconds: float | None = None  # CPU time, pre-training included, instead of `n_steps`
    asm: Job | None = None  # the job that pre-trains the ASM of a training or probe
    asm_epoch: int | None = None  # epoch of the ASM; the last one if None, 0 is untrained

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        asm = content["asm"]
        return cls(**{**content, "asm": None if asm is None else cls.from_json(asm)})

    @property
    def name(self) -> str:
        """Name of its folder: a readable summary and a hash of all fields."""
        content = dataclasses.asdict(self)
        if self.seconds is None:  # names from before timed jobs existed
            del content["recipe"], content["seconds"]
        identity = json.dumps(content, sort_keys=True).encode()
        what = self.algorithm or self.kind
        dataset = self.dataset.removeprefix("spin/").removesuffix("-v0").replace("/", "-")
        return f"{what}_{dataset}_s{self.seed}_{hashlib.sha256(identity).hexdigest()[:10]}"


def run_job(root: Path, name: str) -> None:
    """Does the job in folder `root / name`, resuming an earlier attempt.

    Waits for another process with the same job (a worker that outlived a killed `bench run`).
    """
    folder = root / name
    job = Job.from_json(json.loads((folder / "job.json").read_text()))
    with exclusive_folder(folder):
        if (folder / RESULT).exists():
            return
        write_json(folder / "machine.json", describe_machine())
        started = time.monotonic()
        result = {"pretrain": _pretrain, "train": _train, "probe": _probe}[job.kind](root, job)
        attempt = time.monotonic() - started
        write_json(folder / RESULT, {**result, "seconds_of_last_attempt": attempt})


def _common_settings(job: Job) -> dict[str, Any]:
    named = {name: getattr(job, name) for name in ("dataset", "size", "seed", "device")}
    return {**named, "checkpoint_interval": CHECKPOINT_INTERVAL}


def _pretrain(root: Path, job: Job) -> dict[str, Any]:
    settings = PretrainSettings(**job.fields, **_common_settings(job))
    result = run_pretraining(root / job.name / RUN, settings, show_progress=False)
    return {f"pretraining_{k}": v for k, v in result.items() if k not in ("dataset", "asm")}


def _train(root: Path, job: Job) -> dict[str, Any]:
    folder = root / job.name
    values = {
        "algorithm": str(job.algorithm),
        "fields": dict(job.fields),
        "episodes": job.episodes,
        "evaluation_seed": EVALUATION_SEED,
        "mode": job.mode,
        **_common_settings(job),
    }
    if job.seconds is None:
        asm = None if job.asm is None else str(_asm_path(root, job))
        steps: Any = {"n_steps": job.n_steps, "n_steps_per_epoch": job.n_steps_per_epoch}
        settings = TrainSettings(asm=asm, **steps, **values)
    else:
        timed = {"recipe": job.recipe, "seconds": job.seconds, "n_epochs": TIMED_EPOCHS}
        settings = train_settings({**values, **timed}, "job")
    # With one thread (see `work`) process time is that of one core, however busy it is.
    clock = time.monotonic if job.seconds is None else time.process_time
    trained = run_training(
        folder / RUN, settings, show_progress=False, greedy_too=True, clock=clock
    )
    curve = read_csv(folder / RUN / CURVE)
    keys = ("return", "greedy_return", "update_seconds", "seconds", "steps")
    result = {key: trained[key] for key in keys}
    result["evaluation_seconds"] = sum(float(row["evaluation_seconds"]) for row in curve)
    if job.asm is not None:
        pretrained = json.loads((root / job.asm.name / RESULT).read_text())
        result |= {k: v for k, v in pretrained.items() if k.startswith("pretraining_")}
    if BenchmarkTask.parse(job.dataset.split("/")[1]).is_scripted:
        with closing(gymnasium.make(trained["env"], **trained["env_args"])) as env:
            policy = load_policy(folder / RUN / POLICY, job.device)
            result |= measure_coordination(policy, env, job.episodes, EVALUATION_SEED)
    return result


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
    suffix = "" if job.asm_epoch is None else f"_{job.asm_epoch}"
    return root / job.asm.name / RUN / f"asm{suffix}.safetensors"


def measure_coordination(
    algo: Any, env: gymnasium.Env[Any, Any], episodes: int, seed: int
) -> dict[str, float]:
    """Plays episodes, for each way of acting, of a task whose info counts `collisions`.

    Returns shares of actions in which a choice collides with another one, the median time of a
    greedy decision and, where the policy is a structure model, `ruled_return` and
    `ruled_collisions` of greedy actions that must not collide, a rule that it was not trained with.
    """
    assert env.spec is not None
    with closing(make_batch(env.spec, episodes)) as envs:
        found = {
            "greedy_collisions": _play(envs, algo.predict, seed)[1],
            "sampled_collisions": _play(envs, algo.sample_action, seed)[1],
            "milliseconds": _milliseconds(envs, algo.predict, seed),
        }
        if isinstance(algo, IDQL) and isinstance(algo.policy, JointPolicy):
            space = envs.single_action_space
            assert isinstance(space, gymnasium.spaces.MultiDiscrete)
            n_choices = int(space.nvec.max())
            # A courier may stay whatever the others do.
            stays = [n_choices - 1] if "dispatch" in env.spec.id else []
            rule = all_different(n_choices, except_for=stays)
            played = _play(envs, lambda x: algo.predict_with(x, allowed=rule), seed)
            found["ruled_return"], found["ruled_collisions"] = played
    return found


def _play(envs: Any, choose: Choose, seed: int) -> tuple[float, float]:
    """Plays one episode per environment; returns the mean return and the collisions' share."""
    torch.manual_seed(seed)
    observations, _ = envs.reset(seed=seed)
    total, collided, steps, over = 0.0, 0, 0, False
    while not over:
        observations, rewards, terminated, truncated, infos = envs.step(choose(observations))
        total += float(rewards.sum())
        collided += int((infos["collisions"] > 0).sum())
        steps += len(rewards)
        over = bool((terminated | truncated).all())  # all episodes have the same length
    return total / envs.num_envs, collided / steps


def _milliseconds(envs: Any, choose: Choose, seed: int) -> float:
    observations, _ = envs.reset(seed=seed)
    taken = timeit.repeat(lambda: choose(observations[:1]), number=1, repeat=TIMED_DECISIONS)
    return 1000.0 * float(np.median(taken))


def work(root: Path, name: str, threads: int) -> None:
    """Does the job in `root / name`, in its own process, with its share of the machine's cores."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # Jobs that are given CPU seconds have those of one core.
    is_timed = json.loads((root / name / "job.json").read_text()).get("seconds") is not None
    torch.set_num_threads(1 if is_timed else threads)
    run_job(root, name)


if __name__ == "__main__":  # python -m spin_d3rlpy.experiments.jobs ROOT NAME THREADS
    work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
