"""The demonstration: SPIN and factored IQL on one dataset, in minutes on a CPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from spin_d3rlpy.algos.saving import load_policy
from spin_d3rlpy.data import DeviceReplayBuffer, load_dataset
from spin_d3rlpy.demo.courier_map import FIRST_FRAME, draw_map, play_couriers, wasted_share
from spin_d3rlpy.files.atomic import write_text
from spin_d3rlpy.files.locks import exclusive_folder
from spin_d3rlpy.files.results import format_table, read_csv, write_csv
from spin_d3rlpy.files.yaml_settings import format_settings
from spin_d3rlpy.runs.play import record_policy
from spin_d3rlpy.runs.plots import Curve, plot_curve_panels
from spin_d3rlpy.runs.settings import TrainSettings, train_settings
from spin_d3rlpy.runs.training import CURVE, POLICY, run_training
from spin_d3rlpy.training.budget import Clock
from spin_d3rlpy.training.threads import at_most, one_thread
from spin_envs import MissingDependencyError, reference_scores
from spin_envs.copies import copies_of
from spin_envs.rollout import EpisodeRecord, rollout

EVALUATION_SEED = 100
FINAL_EPISODES = 20
INTERVAL = 1.96  # standard errors: 95 % of normally distributed means
VIDEO_STEPS = 250
LEAST_SHARE = 0.05  # of the seconds, for pre-training to be shown
SPIN = "SPINIDQL"
ALGORITHMS = {"SPIN": SPIN, "F-IQL": "FactoredIQL"}
IN_VAIN = "sent in vain"


@dataclasses.dataclass(frozen=True)
class Task:
    """What a demonstration trains on.

    Attributes:
        dataset: its name.
        size: its transitions.
        seconds: of training per algorithm, by `clock`.
        clock: as in `fit`; by `"ops"` all machines make the same steps.
        n_epochs: evaluations after pre-training.
        episodes: of each of them.
        about: what is to be learned.
    """

    dataset: str
    size: int
    seconds: float
    clock: Clock
    n_epochs: int
    episodes: int
    about: str


TASKS = {
    "couriers": Task(
        dataset="spin/dispatch-n20/medium-expert-v0",
        size=50_000,
        seconds=20.0,
        clock="ops",
        n_epochs=2,
        episodes=5,
        about="20 couriers choose among 20 orders, all at once; two at one order waste a trip.",
    ),
    "robot": Task(
        dataset="spin/cheetah-run-b3/medium-expert-v0",
        size=400_000,
        seconds=150.0,
        clock="wall",
        n_epochs=3,
        episodes=20,
        about="A robot of six joints learns to run; each joint has three torques.",
    ),
}


def run_demo(
    folder: Path,
    task: str = "couriers",
    *,
    minutes: float | None = None,
    seed: int = 0,
    size: int | None = None,
    device: str = "cpu:0",
    recipe: str = "tuned",
    jobs: int | None = None,
    show_progress: bool = True,
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Builds the dataset, trains both algorithms equally long and compares them.

    They train at the same time, one in a process of its own. Writes `results.csv`, `curves.csv`,
    `curves.png` and one `spin_d3rlpy.runs.training` folder per algorithm; of couriers `map.gif` and
    its first frame, of the robot `spin.gif`. Finished trainings are reused, interrupted ones
    resumed.

    Args:
        folder: of the files.
        task: name in `TASKS`.
        minutes: of training per algorithm, by the task's clock; the task's own if None.
        seed: of networks and mini-batches.
        size: transitions of the dataset; the task's own if None.
        device: as in d3rlpy.
        recipe: of both algorithms.
        jobs: processes that build the dataset.
        show_progress: draw progress bars.
        log: takes lines of text.

    Returns:
        The table's rows: the data, both algorithms and the expert.

    Raises:
        ValueError: an unknown task, or the folder holds trainings with other settings.
        FolderInUseError: another demonstration is using the folder.
    """
    if task not in TASKS:
        raise ValueError(f"Expected a task of {', '.join(TASKS)}; got {task!r}.")
    chosen = TASKS[task]
    size, seconds = size or chosen.size, 60.0 * minutes if minutes else chosen.seconds
    log(f"{chosen.about}\n[1/3] Dataset {chosen.dataset}")
    dataset, env = load_dataset(chosen.dataset, size=size, jobs=jobs, progress=show_progress)
    n = dataset.transition_count
    log(f"      {n:,} transitions, {dataset.size()} episodes, {len(dataset.nvec)} choices each")
    common = {
        "dataset": chosen.dataset,
        "recipe": recipe,
        "seconds": seconds,
        "clock": chosen.clock,
        "seed": seed,
        "size": size,
        "device": device,
        "episodes": chosen.episodes,
        "evaluation_seed": EVALUATION_SEED,
        "n_epochs": chosen.n_epochs,
    }
    settings = {
        name: train_settings({**common, **_algorithm(name, chosen.clock)}, "demo")
        for name in ALGORITHMS.values()
    }
    unit = "nominal seconds" if chosen.clock == "ops" else "seconds"
    log(f"[2/3] {' and '.join(ALGORITHMS)}: {seconds:g} {unit} of training each")
    runs = _train(folder, settings, show_progress)
    log(f"[3/3] Results: {FINAL_EPISODES} episodes each")
    policies = {
        label: load_policy(folder / name / POLICY, device) for label, name in ALGORITHMS.items()
    }
    with one_thread():
        played = {label: _play(env, policy.predict) for label, policy in policies.items()}
    rows = _rows(dataset, env, played, runs, has_couriers=task == "couriers")
    write_csv(folder / "results.csv", rows)
    lines = {row["decided by"]: float(row["return"]) for row in (rows[0], rows[-1])}
    _draw_curves(folder, chosen.dataset, lines, f"{unit} of training, pre-training included")
    log(format_table(rows))
    if task == "couriers":
        with one_thread():
            maps = {
                label: play_couriers(env, policies[label].predict, EVALUATION_SEED)
                for label in reversed(ALGORITHMS)
            }
        shown = f"{draw_map(folder, maps)} shows who is sent where; look at {FIRST_FRAME} first."
    else:
        shown = _record_robot(folder, device)
    env.close()
    log(
        f"\n{shown}\nReturns are means of seeded episodes with greedy actions, +- half a 95 % "
        f"interval. {folder / 'curves.png'} shows how they were learned.\n"
        f'Use a policy: spin_d3rlpy.load_policy("{folder / SPIN / POLICY}").predict(observations)'
    )
    return rows


def _algorithm(name: str, clock: Clock) -> dict[str, Any]:
    """Returns the settings of one of the algorithms."""
    if clock != "ops":
        return {"algorithm": name}
    fields: dict[str, Any] = {"precision": "float32"}  # `"auto"` depends on the processor
    if name == SPIN:
        fields["pretraining"] = {"precision": "float32"}
    return {"algorithm": name, "fields": fields}


def _play(
    env: gymnasium.Env[Any, Any], act: Callable[[NDArray[Any]], NDArray[Any]]
) -> list[EpisodeRecord]:
    """Returns `FINAL_EPISODES` seeded episodes of a policy."""
    seeds = [EVALUATION_SEED + i for i in range(FINAL_EPISODES)]
    with closing(copies_of(env, FINAL_EPISODES)) as envs:
        return list(rollout(envs, lambda x, _: act(x.astype(np.float32)), seeds))


def _rows(
    dataset: DeviceReplayBuffer,
    env: gymnasium.Env[Any, Any],
    played: Mapping[str, Sequence[EpisodeRecord]],
    runs: Mapping[str, Mapping[str, Any]],
    has_couriers: bool,
) -> list[dict[str, Any]]:
    """Returns the table: the data, each policy and the expert, worst first."""
    scores = reference_scores(env)
    assert scores is not None
    expert = scores[1]

    def row(who: str, returns: NDArray[Any], actions: NDArray[Any] | None, **more: Any) -> Any:
        error = INTERVAL * returns.std(ddof=1) / len(returns) ** 0.5 if len(returns) > 1 else 0.0
        cells = {
            "decided by": who,
            "return": f"{returns.mean():.1f}",
            "+-": f"{error:.1f}" if error else "",
            "of the expert": f"{returns.mean() / expert:.0%}",
        }
        if has_couriers:
            cells[IN_VAIN] = "" if actions is None else f"{wasted_share(actions):.0%}"
        return {**cells, **more}

    none = {"steps": "", "seconds": ""}
    of_data = row("the data", dataset.returns().numpy(), dataset.actions.cpu().numpy(), **none)
    by_policy = []
    for label, episodes in played.items():
        run = runs[ALGORITHMS[label]]
        returns = np.array([episode.rewards.sum() for episode in episodes])
        actions = np.concatenate([episode.actions for episode in episodes])
        trained = {"steps": run["steps"], "seconds": round(run["seconds"], 1)}
        by_policy.append(row(label, returns, actions, **trained))
    by_policy.sort(key=lambda one: float(one["return"]))
    return [of_data, *by_policy, row("the expert", np.array([expert]), None, **none)]


def _draw_curves(folder: Path, title: str, lines: Mapping[str, float], xlabel: str) -> None:
    """Writes `curves.csv` and `curves.png` from the trainings' own files."""
    points: list[dict[str, Any]] = []
    curves: dict[str, Curve] = {}
    for label, name in ALGORITHMS.items():
        curve = read_csv(folder / name / CURVE)
        points += [
            {
                "algorithm": label,
                "step": int(row["step"]),
                "seconds": round(float(row["seconds"]), 1),
                "mean_return": round(float(row["return"]), 2),
                "std_return": round(float(row["return_std"]), 2),
            }
            for row in curve
        ]
        x, y = (np.array([float(row[key]) for row in curve]) for key in ("seconds", "return"))
        curves[label] = Curve(x, y[None], _pretraining_seconds(curve))
    write_csv(folder / "curves.csv", points)
    reference_lines = {title: dict(lines)}
    plot_curve_panels(
        folder / "curves.png", {title: curves}, reference_lines=reference_lines, xlabel=xlabel
    )


def _record_robot(folder: Path, device: str) -> str:
    """Writes `spin.gif`, if this machine can render; returns a line about it."""
    video = folder / "spin.gif"
    try:
        record_policy(str(folder / SPIN), video, max_steps=VIDEO_STEPS, device=device)
    except MissingDependencyError as error:
        return f"No video of SPIN: {error}"
    return f"{video} shows {VIDEO_STEPS} steps of SPIN."


def _pretraining_seconds(rows: Sequence[Mapping[str, str]]) -> float:
    """Returns when the first steps began to be measured; 0 if that was soon.

    `rows` are a training's, the first one before any step, the second after an epoch.
    """
    first, last = rows[min(1, len(rows) - 1)], rows[-1]
    before = float(first["seconds"]) - float(first["update_seconds"])
    # Moving the dataset to its device takes a moment for every algorithm.
    return before if before > LEAST_SHARE * float(last["seconds"]) else 0.0


def _train(
    folder: Path, settings: Mapping[str, TrainSettings], show_progress: bool
) -> dict[str, dict[str, Any]]:
    """Trains the algorithms at the same time; the first one shows its bars."""
    results = {}
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // len(settings))  # cores of each
    with ExitStack() as stack:
        stack.enter_context(exclusive_folder(folder, wait=False))  # before files of runs change
        stack.enter_context(at_most(threads))
        others = [
            stack.enter_context(_in_background(folder / name, settings[name], threads))
            for name in list(settings)[1:]
        ]
        for name in settings:
            # Reads the results of one that is finished, resumes one that failed.
            results[name] = run_training(folder / name, settings[name], show_progress)
            for process in others:
                process.wait()
    return results


@contextmanager
def _in_background(
    folder: Path, settings: TrainSettings, threads: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Trains in a process of its own, which writes nothing and is ended with the context."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder.with_suffix(".yaml")
    write_text(config, format_settings(settings))
    command = ["train", "--config", str(config), "--out", str(folder), "--no-progress"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from spin_d3rlpy.cli import main; main()", *command],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt is for the demo, which then ends this process
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
