"""What a worker does: pre-train an ASM, train and evaluate an algorithm, or probe an ASM.

A job is a folder. `job.json` says what to do, `checkpoints/` is what a killed job goes on from,
`result.json` (written last, in one step) says that it is done. Its other files are `machine.json`
(versions, machine, git commit), `curve.csv` and, for pre-training, `asm_<epoch>.safetensors`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import d3rlpy
import gymnasium
from d3rlpy.logging import (
    CombineAdapterFactory,
    FileAdapterFactory,
    LoggerAdapterFactory,
    TensorboardAdapterFactory,
    WanDBAdapterFactory,
)
from d3rlpy.logging.logger import AlgProtocol, LoggerAdapter

from spin_d3rlpy.asm import (
    ActionStructureModel,
    PretrainingConfig,
    TransformerConfig,
    load_asm,
    pretrain,
    save_asm,
)
from spin_d3rlpy.asm.pretraining import PretrainingEpoch
from spin_d3rlpy.asm.probe import ProbeConfig, linear_probe
from spin_d3rlpy.checkpoints import Checkpoints
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.locks import exclusive_folder
from spin_d3rlpy.metrics import ActingAlgo, ActionMode, LockstepEvaluator
from spin_d3rlpy.reports import describe_machine, write_csv, write_json
from spin_d3rlpy.training import create_algorithm

Kind = Literal["pretrain", "train", "probe"]
RESULT = "result.json"
ERROR = "error.txt"
LOG = "log.txt"
TRACKERS = "trackers.json"
TRACKER_NAMES = ("tensorboard", "wandb")
CHECKPOINT_INTERVAL = 1_000  # steps
EVALUATION_SEED = 100
HELD_OUT = 0.1  # share of the episodes that probes are tested on


@dataclasses.dataclass(frozen=True)
class Job:
    """One piece of work; equal jobs are done once, whatever they are for.

    Args:
        kind: what to do.
        dataset: name.
        size: its transitions; the published size if None.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        algorithm: training: class in `spin_d3rlpy.algos`.
        fields: training: config fields, nested ones as dictionaries. Pre-training: `transformer`
            and `pretraining`.
        n_steps: training: gradient steps.
        n_steps_per_epoch: training: gradient steps between evaluations.
        episodes: training: episodes of an evaluation.
        mode: training: how actions are chosen in evaluation.
        asm: training and probe: the job that pre-trains the ASM.
        asm_epoch: after which of its epochs; the last one if None, 0 is untrained.
    """

    kind: Kind
    dataset: str
    size: int | None = None
    seed: int = 0
    device: str = "cpu:0"
    algorithm: str | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    n_steps: int = 0
    n_steps_per_epoch: int = 0
    episodes: int = 10
    mode: ActionMode = "sample"
    asm: Job | None = None
    asm_epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As a dictionary that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """Inverse of `to_json`."""
        asm = content["asm"]
        return cls(**{**content, "asm": None if asm is None else cls.from_json(asm)})

    @property
    def name(self) -> str:
        """Name of its folder: what a reader wants to see, and a hash of everything."""
        identity = json.dumps(self.to_json(), sort_keys=True).encode()
        what = self.algorithm or self.kind
        dataset = self.dataset.removeprefix("spin/").removesuffix("-v0").replace("/", "-")
        return f"{what}_{dataset}_s{self.seed}_{hashlib.sha256(identity).hexdigest()[:10]}"


def run_job(root: Path, name: str) -> None:
    """Does what `job.json` says, going on from where an earlier attempt was.

    Whoever else does the same job (a worker that outlived a killed `bench run`) is waited for.

    Args:
        root: folder of all jobs.
        name: folder in it.
    """
    folder = root / name
    job = Job.from_json(json.loads((folder / "job.json").read_text()))
    with exclusive_folder(folder):
        if (folder / RESULT).exists():
            return
        write_json(folder / "machine.json", {**describe_machine(), "git_commit": _git_commit()})
        started = time.monotonic()
        result = {"pretrain": _pretrain, "train": _train, "probe": _probe}[job.kind](root, job)
        attempt = time.monotonic() - started
        write_json(folder / RESULT, {**result, "seconds_of_last_attempt": attempt})


def _pretrain(root: Path, job: Job) -> dict[str, Any]:
    folder = root / job.name
    config = PretrainingConfig(**job.fields["pretraining"])
    buffer = _load(job)
    d3rlpy.seed(job.seed)
    transformer = TransformerConfig(**job.fields["transformer"])
    asm = ActionStructureModel(buffer.observations.shape[1], buffer.nvec, transformer)
    asm.to(job.device)
    held_out = None
    if config.validation_share:
        buffer, held_out = buffer.split(config.validation_share)

    def on_epoch(epoch: PretrainingEpoch) -> None:
        if epoch.epoch % config.checkpoint_interval == 0:
            save_asm(asm, folder / f"asm_{epoch.epoch}.safetensors")

    with _checkpoints(folder) as checkpoints:
        if checkpoints.start(resume=True) is None:
            save_asm(asm, folder / "asm_0.safetensors")
        epochs = pretrain(
            asm,
            buffer,
            config,
            on_epoch=on_epoch,
            show_progress=False,
            checkpoints=checkpoints,
            held_out=held_out,
        )
    save_asm(asm, folder / "asm.safetensors")
    rows = [epoch.row() for epoch in epochs]
    if rows:
        write_csv(folder / "curve.csv", rows)
    last = rows[-1] if rows else {"step": 0, "samples": 0, "seconds": 0.0}
    return {f"pretraining_{key}": value for key, value in last.items()}


class _Measurement:
    """Evaluators that play once and report several numbers.

    Whatever counts as the return, greedy actions are played, too: early in training a policy's
    most likely action can be good while its samples are not.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], job: Job) -> None:
        self._evaluator = LockstepEvaluator(env, job.episodes, EVALUATION_SEED, job.mode)
        self._greedy = LockstepEvaluator(env, job.episodes, EVALUATION_SEED, "greedy")
        self.last: dict[str, float] = {}

    def play(self, algo: ActingAlgo) -> dict[str, float]:
        """Plays the episodes."""
        started = time.monotonic()
        returns = self._evaluator.returns(algo)
        seconds = time.monotonic() - started
        is_greedy = self._evaluator.mode == "greedy"
        greedy = returns if is_greedy else self._greedy.returns(algo)
        self.last = {
            "return": float(returns.mean()),
            "return_std": float(returns.std()),
            "greedy_return": float(greedy.mean()),
            "evaluation_seconds": seconds,
        }
        return self.last

    def evaluators(self) -> dict[str, Any]:
        """d3rlpy evaluators, of which the first one plays."""
        names = ("return_std", "greedy_return", "evaluation_seconds")
        return {
            "return": lambda algo, _: self.play(algo)["return"],
            **{name: lambda _, __, name=name: self.last[name] for name in names},
        }


def _train(root: Path, job: Job) -> dict[str, Any]:
    folder = root / job.name
    buffer, env = load_dataset(job.dataset, size=job.size, progress=False)
    d3rlpy.seed(job.seed)
    algo = create_algorithm(str(job.algorithm), job.fields, job.device)
    if job.asm is not None:
        algo.set_asm(load_asm(_asm_path(root, job), job.device))
    algo.build_with_dataset(buffer)
    measurement = _Measurement(env, job)
    first = folder / "first.json"
    if not first.exists():
        write_json(first, measurement.play(algo))
    results = algo.fit(
        buffer,
        n_steps=job.n_steps,
        n_steps_per_epoch=job.n_steps_per_epoch,
        experiment_name="log",
        with_timestamp=False,
        logger_adapter=_loggers(folder),
        show_progress=False,
        save_interval=10**9,
        evaluators=measurement.evaluators(),
        checkpoint_dir=folder / "checkpoints",
        resume=True,
        checkpoint_interval=CHECKPOINT_INTERVAL,
    )
    rows = [{"step": 0, "update_seconds": 0.0, **json.loads(first.read_text())}]
    for epoch, metrics in results:
        rows.append(
            {
                "step": min(epoch * job.n_steps_per_epoch, job.n_steps),
                "update_seconds": rows[-1]["update_seconds"] + metrics["time_epoch"],
                **{name: metrics[name] for name in measurement.last},
            }
        )
    write_csv(folder / "curve.csv", rows)
    of_asm = json.loads((root / job.asm.name / RESULT).read_text()) if job.asm else {}
    return {
        "return": rows[-1]["return"],
        "greedy_return": rows[-1]["greedy_return"],
        "update_seconds": rows[-1]["update_seconds"],
        "evaluation_seconds": sum(row["evaluation_seconds"] for row in rows),
        **{k: v for k, v in of_asm.items() if k.startswith("pretraining_")},
    }


class _NamedWandb(WanDBAdapterFactory):
    """Calls its run as the job; all jobs' logs have the same name in d3rlpy."""

    def __init__(self, name: str) -> None:
        super().__init__("spin-d3rlpy")
        self._name = name

    def create(
        self, algo: AlgProtocol, experiment_name: str, n_steps_per_epoch: int
    ) -> LoggerAdapter:
        return super().create(algo, self._name, n_steps_per_epoch)


def _loggers(folder: Path) -> LoggerAdapterFactory:
    """Files, and what `trackers.json` names: not part of the job, results are the same."""
    factories: list[LoggerAdapterFactory] = [FileAdapterFactory(str(folder))]
    if (folder / TRACKERS).exists():
        for tracker in json.loads((folder / TRACKERS).read_text()):
            if tracker == "tensorboard":
                factories.append(TensorboardAdapterFactory(str(folder)))
            else:
                factories.append(_NamedWandb(folder.name))
    return CombineAdapterFactory(factories)


def _probe(root: Path, job: Job) -> dict[str, Any]:
    buffer = _load(job)
    training, held_out = buffer.split(HELD_OUT)
    asm = load_asm(_asm_path(root, job), job.device)
    d3rlpy.seed(job.seed)
    config = ProbeConfig(**job.fields.get("probe", {}))
    return dataclasses.asdict(linear_probe(asm, training, held_out, config))


def _asm_path(root: Path, job: Job) -> Path:
    assert job.asm is not None
    suffix = "" if job.asm_epoch is None else f"_{job.asm_epoch}"
    return root / job.asm.name / f"asm{suffix}.safetensors"


def _load(job: Job) -> DeviceReplayBuffer:
    buffer, env = load_dataset(job.dataset, size=job.size, progress=False)
    env.close()
    return buffer.to(job.device)


def _checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", CHECKPOINT_INTERVAL, {}, dict)


def _git_commit() -> str | None:
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None
