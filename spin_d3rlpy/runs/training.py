"""A training or pre-training as a folder that resumes after a kill (`spin-d3rlpy train`).

The file names below say what it holds; `machine.json` has versions and processors.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
from d3rlpy.dataset import EpisodeBase
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy.algos.saving import save_policy
from spin_d3rlpy.asm import save_asm
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.data.bins_texts import bins_of_texts
from spin_d3rlpy.data.loader import open_dataset
from spin_d3rlpy.data.minari.environments import is_unregistered
from spin_d3rlpy.evaluation.against_data import compare_with_data
from spin_d3rlpy.evaluation.metrics import (
    ActingAlgo,
    LockstepEvaluator,
    MultiDiscreteActionMatchEvaluator,
)
from spin_d3rlpy.files.atomic import write_text
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import read_json, write_csv, write_json
from spin_d3rlpy.files.yaml_settings import format_settings, read_settings
from spin_d3rlpy.policies.stages import ASM_FILE, PretrainASM, asm_file
from spin_d3rlpy.runs.machine import describe_machine
from spin_d3rlpy.runs.settings import (
    PRETRAINED,
    PretrainSettings,
    TrainSettings,
    create_algorithm,
    pretraining_fields,
)
from spin_d3rlpy.training.budget import Budget, create_clock
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.loop import Run, StageLog
from spin_envs import normalized_score, reference_scores

CONFIG = "config.yaml"
RESULT = "result.json"
CURVE = "curve.csv"
POLICY = "policy.safetensors"
FIRST = "first.json"  # the evaluation before training
Env = gymnasium.Env[Any, Any] | None
Change = Callable[[DeviceReplayBuffer, Env], tuple[DeviceReplayBuffer, Env]]
MATCHED_STEPS = 2_000  # logged, that policies without an environment are compared with


def _evaluators(
    env: gymnasium.Env[Any, Any], settings: TrainSettings, greedy_too: bool
) -> dict[str, Callable[..., float]]:
    """Returns d3rlpy evaluators of the same episodes, which the first one plays."""
    episodes, seed = settings.episodes, settings.evaluation_seed
    evaluator = LockstepEvaluator(env, episodes, seed, settings.mode)
    greedy = evaluator if settings.mode == "greedy" else None
    if greedy_too and greedy is None:
        greedy = LockstepEvaluator(env, episodes, seed, "greedy")
    last: dict[str, float] = {}

    def play(algo: ActingAlgo, _dataset: object) -> float:
        started = time.monotonic()
        returns = evaluator.returns(algo)
        last["evaluation_seconds"] = time.monotonic() - started
        last["return_std"] = float(returns.std())
        if greedy is not None:
            greedy_returns = returns if greedy is evaluator else greedy.returns(algo)
            last["greedy_return"] = float(greedy_returns.mean())
        return float(returns.mean())

    def last_value(name: str) -> Callable[..., float]:
        """An evaluator that returns a number of the episodes that `play` has played."""
        return lambda _algo, _dataset: last[name]

    evaluators: dict[str, Callable[..., float]] = {"return": play}
    evaluators["return_std"] = last_value("return_std")
    evaluators["evaluation_seconds"] = last_value("evaluation_seconds")
    if greedy_too:
        evaluators["greedy_return"] = last_value("greedy_return")
    return evaluators


def run_training(
    folder: Path,
    settings: TrainSettings,
    show_progress: bool = True,
    trust: bool = False,
    greedy_too: bool = False,
    clock: Callable[[], float] | None = None,
    spent: float = 0.0,
    change: Change | None = None,
) -> dict[str, Any]:
    """Trains, or resumes an earlier attempt in the folder.

    With an environment, evaluations (also before training) measure its return; without one, the
    share of logged actions that the policy would take, which measures imitation, not quality (see
    `MultiDiscreteFQE`).

    Args:
        folder: of the run; created if missing.
        settings: what to train, see `train_settings`.
        show_progress: draw progress bars.
        trust: see `load_dataset`.
        greedy_too: where evaluations sample, also play greedy actions (`greedy_return`): early in
            training they can be good while samples are not.
        clock: counts the seconds of training; `settings.clock` by default.
        spent: of these seconds, by the pre-training of `settings.asm`.
        change: returns what to train on and to evaluate in, e.g. fewer episodes; the same in each
            attempt.

    Returns:
        The content of `result.json`: last evaluation, seconds and the policy's file.

    Raises:
        FolderInUseError: another process is using the folder; nothing in it is changed.
        FileWriteError: a file cannot be written.
        ValueError: the folder belongs to another run, or wrong settings.
        DatasetNotFoundError: see `load_dataset`.
        InvalidDatasetError: see `load_dataset`.
    """
    clock = clock or create_clock(settings.clock)
    budget = Budget(settings.seconds, clock, settings.n_epochs)
    budget.spent = spent
    with _open_folder(folder, settings) as finished:
        return finished or _train(
            folder, settings, budget, show_progress, trust, greedy_too, change
        )


def _train(
    folder: Path,
    settings: TrainSettings,
    budget: Budget,
    show_progress: bool,
    trust: bool,
    greedy_too: bool,
    change: Change | None,
) -> dict[str, Any]:
    """Trains in a folder that is this process's own, see `run_training`."""
    algo = create_algorithm(settings.algorithm, settings.fields, settings.device)
    if settings.asm is not None:
        if not getattr(algo, "takes_asm", False):
            raise ValueError(f"{settings.algorithm} does not use an ASM; only SPIN's policies do.")
        algo.set_asm(settings.asm)
    dataset, env = _load(settings, show_progress, trust)
    if change is not None:
        dataset, env = change(dataset, env)
    d3rlpy.seed(settings.seed)
    algo.build_with_dataset(dataset)
    evaluators: dict[str, Any]
    rows: list[dict[str, Any]] = []
    if env is None:
        match = MultiDiscreteActionMatchEvaluator("slot", _some_episodes(dataset))
        evaluators = {"action_match": match}
    else:
        evaluators = _evaluators(env, settings, greedy_too)
        first = folder / FIRST
        if not first.exists():
            write_json(first, {name: play(algo, dataset) for name, play in evaluators.items()})
        rows.append(
            {
                "step": 0,
                "update_seconds": 0.0,
                "seconds": budget.spent,
                **read_json(first),
            }
        )
    update_seconds = 0.0
    for _, metrics in algo.fitter(
        dataset,
        n_steps=settings.n_steps,
        n_steps_per_epoch=settings.n_steps_per_epoch,
        experiment_name="log",
        with_timestamp=False,
        logger_adapter=NoopAdapterFactory(),
        show_progress=show_progress,
        save_interval=sys.maxsize,
        evaluators=evaluators,
        best_by=next(iter(evaluators)),
        checkpoint_dir=folder / "checkpoints",
        resume=True,
        checkpoint_interval=settings.checkpoint_interval,
        seconds=budget,
    ):
        update_seconds += metrics["time_epoch"]
        rows.append({"update_seconds": update_seconds, **metrics})
        write_csv(folder / CURVE, rows)
    save_policy(algo, folder / POLICY)
    if getattr(algo, "asm", None) is not None:
        save_asm(algo.asm, folder / ASM_FILE)
    names = [name for name in ("cpu_seconds", *evaluators) if name in rows[-1]]
    result = {
        "algorithm": settings.algorithm,
        "dataset": settings.dataset,
        "recipe": settings.recipe,
        "steps": rows[-1]["step"],
        "policy": str(folder / POLICY),
        "update_seconds": update_seconds,
        "seconds": rows[-1]["seconds"],
        **{name: rows[-1][name] for name in names},
    }
    if env is not None:
        result |= _compared(result, settings, dataset, env)
        env.close()
    write_json(folder / RESULT, result)
    return result


def _compared(
    result: dict[str, Any],
    settings: TrainSettings,
    dataset: DeviceReplayBuffer,
    env: gymnasium.Env[Any, Any],
) -> dict[str, Any]:
    """Returns how a result was evaluated, and what it is against its data and the expert."""
    assert env.spec is not None
    compared = compare_with_data(result["return"], result["return_std"], settings.episodes, dataset)
    described = {
        "episodes": settings.episodes,
        "mode": settings.mode,
        "data_return": compared.data_mean,
        "below_data": compared.is_below,
        "env": env.spec.id,
        "env_args": env.spec.kwargs,
    }
    if compared.is_below:
        described["warning"] = f"{compared} {compared.advice}"
    if reference_scores(env) is not None:
        described["score"] = float(normalized_score(env, result["return"]))
    return described


def _some_episodes(dataset: DeviceReplayBuffer) -> list[EpisodeBase]:
    """Returns episodes, evenly spaced, of about `MATCHED_STEPS` steps together; at least one.

    A search looks at each state for milliseconds: all states of a log take longer than a training.
    """
    spacing = max(1, dataset.transition_count // MATCHED_STEPS)
    return list(dataset.episodes[::spacing])


class _ModelsIn(StageLog):
    """A stage's log of nothing but the folder where it saves models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def run_pretraining(
    folder: Path,
    settings: PretrainSettings,
    show_progress: bool = True,
    trust: bool = False,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """Pre-trains an ASM, or resumes an earlier attempt in the folder.

    Arguments and errors are those of `run_training`. Of the seconds of a `budget` it takes its
    `budget_share`. Writes `asm_0.safetensors` (untrained) and
    `asm_<epoch>.safetensors` every `pretraining.checkpoint_interval` epochs and after the last one.

    Returns:
        The content of `result.json`: the last epoch and the model's file.
    """
    with _open_folder(folder, settings) as finished:
        return finished or _pretrain(folder, settings, show_progress, trust, budget or Budget())


def _pretrain(
    folder: Path, settings: PretrainSettings, show_progress: bool, trust: bool, budget: Budget
) -> dict[str, Any]:
    """Pre-trains in a folder that is this process's own, see `run_pretraining`."""
    fields = {k: v for k, v in pretraining_fields(settings).items() if v}
    algo = create_algorithm(PRETRAINED, fields, settings.device)
    dataset, env = _load(settings, show_progress, trust)
    if env is not None:
        env.close()
    algo.build_with_dataset(dataset)  # fits the scaler
    d3rlpy.seed(settings.seed)
    with Checkpoints(
        folder / "checkpoints", settings.checkpoint_interval, _identity(settings), dict
    ) as checkpoints:
        run = Run(
            show_progress,
            checkpoints,
            compile_graph=algo.config.compile_graph,
            log=lambda _stage, _prefix, _epoch_steps: nullcontext(_ModelsIn(folder)),
            budget=budget,
        )
        stage, context = PretrainASM(), algo.stage_context(dataset.to(settings.device), run)
        asm = stage.create_model(context)
        if checkpoints.start(resume=True) is None:
            save_asm(asm, folder / asm_file(0))
        rows = stage.train_model(asm, context).rows
    if rows:
        write_csv(folder / CURVE, rows)
    save_asm(asm, folder / ASM_FILE)
    last = rows[-1] if rows else {"step": 0, "samples": 0, "seconds": 0.0}
    result = {"dataset": settings.dataset, "asm": str(folder / ASM_FILE), **last}
    if budget.seconds is not None:  # as it counts them, not those of the wall clock
        result |= {"seconds": budget.spent, "cpu_seconds": budget.cpu_seconds}
    write_json(folder / RESULT, result)
    return result


Settings = TrainSettings | PretrainSettings


def _load(
    settings: Settings, show_progress: bool, trust: bool
) -> tuple[DeviceReplayBuffer, gymnasium.Env[Any, Any] | None]:
    """Returns the dataset and, if it names one, its environment."""
    bins = bins_of_texts(settings.bins)
    stored = open_dataset(settings.dataset, settings.size, progress=show_progress, trust=trust)
    if stored.env_spec is not None and is_unregistered(stored.env_spec):
        # Another process's class, which no text names: the data are enough to train.
        warnings.warn(
            f"The environment {stored.env_spec.id!r} of {stored.id} is not registered in this "
            "process, so the policy is not evaluated in it.",
            UserWarning,
            stacklevel=2,
        )
        return DeviceReplayBuffer.from_minari(stored, bins=bins), None
    if stored.env_spec is None:
        return DeviceReplayBuffer.from_minari(stored, bins=bins), None
    return load_dataset(stored, trust=trust, bins=bins)


def _identity(settings: Settings) -> dict[str, Any]:
    """Returns the settings that a resumed run must share; `n_steps` may grow."""
    return {k: v for k, v in dataclasses.asdict(settings).items() if k != "n_steps"}


def _defaults(settings: Settings) -> dict[str, Any]:
    """Returns the settings that may be left out."""
    missing, defaults = dataclasses.MISSING, {}
    for field in dataclasses.fields(settings):
        if field.default_factory is not missing:
            defaults[field.name] = field.default_factory()
        elif field.default is not missing:
            defaults[field.name] = field.default
    return defaults


def _holds_work(folder: Path) -> bool:
    """Whether steps were made in a run's folder."""
    files = [folder / CURVE, folder / RESULT, *(folder / "checkpoints").glob("*.ckpt")]
    return any(file.exists() for file in files)


@contextmanager
def _open_folder(folder: Path, settings: Settings) -> Iterator[dict[str, Any] | None]:
    """Holds a run's folder; yields its result if it is finished, or writes its settings there."""
    folder.mkdir(parents=True, exist_ok=True)
    # Before anything is written: settings of a second run must not meet the first one's result.
    with exclusive_folder(folder, wait=False):
        yield _begin(folder, settings)


def _begin(folder: Path, settings: Settings) -> dict[str, Any] | None:
    path = folder / CONFIG
    wanted = dataclasses.asdict(settings)
    if not _holds_work(folder):  # an attempt that failed at its start blocks no other
        (folder / FIRST).unlink(missing_ok=True)
    elif path.exists():
        # A file of before there was a setting is of a run that had its default.
        saved = {**_defaults(settings), **read_settings(path)}
        if "compile_graph" in saved.get("fields", {}):  # results do not depend on it
            saved["fields"]["compile_graph"] = wanted["fields"]["compile_graph"]
        before, steps = saved.get("n_steps", 0), wanted.get("n_steps", 0)
        differing = [
            f"{key}={saved.get(key)!r} (asked for: {value!r})"
            for key, value in wanted.items()
            if (before > steps if key == "n_steps" else saved.get(key) != value)
        ]
        if differing or saved.keys() != wanted.keys():
            what = "; ".join(differing) or "other settings"
            raise ValueError(f"{folder} holds a run with {what}. Pass another --out, or remove it.")
        if (folder / RESULT).exists() and before == steps:
            result: dict[str, Any] = read_json(folder / RESULT)
            return result
    write_text(path, format_settings(settings))
    write_json(folder / "machine.json", describe_machine())
    return None
