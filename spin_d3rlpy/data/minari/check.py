"""Consistency of a dataset's arrays, record and simulator."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from minari import MinariDataset
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.coverage import Coverage, CoverageCounter
from spin_d3rlpy.data.minari.actions import ActionReader
from spin_d3rlpy.data.minari.environments import make_environment
from spin_d3rlpy.data.minari.playing import Step, replay
from spin_d3rlpy.data.minari.records import is_close, misplaced_end, record_problems
from spin_d3rlpy.data.minari.sources import DAMAGE, episode_arrays
from spin_d3rlpy.data.minari.staging import Checksum, return_statistics
from spin_d3rlpy.data.minari.workers import Workers
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError, SpinError
from spin_d3rlpy.nvec import nvec_from_space

_SHOWN_PROBLEMS = 10


@dataclasses.dataclass
class CheckReport:
    """Result of a check."""

    name: str
    returns: list[float] = dataclasses.field(default_factory=list)  # of episodes, undiscounted
    lengths: list[int] = dataclasses.field(default_factory=list)  # of episodes
    # Label and number of episodes of each policy, in order.
    parts: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    # Episodes that the simulator reproduced or should have.
    replayed: list[int] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)  # what could not be checked
    problems: list[str] = dataclasses.field(default_factory=list)  # empty for a good dataset
    coverage: Coverage | None = None  # of sound episodes; None without any

    def returns_by_policy(self) -> dict[str, list[float]]:
        """Returns the returns of each policy's episodes; empty without a record of them."""
        returns = iter(self.returns)
        return {label: list(itertools.islice(returns, n)) for label, n in self.parts}

    def summary(self) -> str:
        lines = [f"{self.name}: {len(self.returns)} episodes, {sum(self.lengths):,} transitions"]
        for label, returns in [*self.returns_by_policy().items(), ("all", self.returns)]:
            if returns:
                s = return_statistics(returns)
                lines.append(
                    f"  {label}: return {s['mean']:.2f} +- {s['std']:.2f} "
                    f"({s['min']:.2f} to {s['max']:.2f}), {len(returns)} episodes"
                )
        lines += [f"  {line}" for line in (self.coverage.lines() if self.coverage else [])]
        if self.replayed:
            lines.append(f"  replayed in the simulator: {len(self.replayed)} episodes")
        lines += [f"  not checked: {note}" for note in self.notes]
        lines += [f"  WRONG: {problem}" for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"  ... and {len(self.problems) - _SHOWN_PROBLEMS} more")
        lines.append("  bad" if self.problems else "  good")
        return "\n".join(lines)


def check_dataset(
    dataset: MinariDataset, replay_episodes: int | None = 3, trust: bool = False
) -> CheckReport:
    """Checks a dataset's arrays, its record (if any) and, by replaying, its alignment.

    Args:
        dataset: an opened dataset whose actions need no bins.
        replay_episodes: number of episodes (spread evenly) to replay from their seeds with their
            actions; None for all.
        trust: make the environment with the function that the dataset names, see `load_dataset`.

    Returns:
        The report, with errors in `problems`.

    Raises:
        InvalidActionSpaceError: another action space, e.g. continuous.
    """
    reader = _reader(dataset)
    storage = dataset.storage
    parts = [(part["policy"], part["episodes"]) for part in storage.metadata.get("composition", [])]
    report = CheckReport(dataset.id, parts=parts)
    n = int(dataset.total_episodes)
    wanted = n if replay_episodes is None else min(n, replay_episodes)
    chosen = np.linspace(0, n - 1, wanted).round().astype(int).tolist()
    checksum = Checksum()
    counter, n_sound = CoverageCounter(reader.nvec, int(dataset.total_steps)), 0
    try:
        with ExitStack() as stack:
            seeds = [episode.get("seed") for episode in storage.get_episode_metadata(chosen)]
            seed_of = dict(zip(chosen, seeds, strict=True))
            try:
                if None in seeds:
                    raise InvalidDatasetError("its episodes' seeds are unknown")
                play = stack.enter_context(_simulator(dataset, trust)) if chosen else None
            except InvalidDatasetError as error:
                play = None
                report.notes.append(f"alignment with the simulator ({error})")
            for index, raw in enumerate(storage.get_episodes(range(n))):
                episode = episode_arrays(dataset, index, raw, reader)
                choices = _check_arrays(report, raw, episode, reader)
                if choices is not None:
                    counter.add(episode.observations, choices)
                    n_sound += 1
                checksum.add(raw["observations"], episode.actions, raw["rewards"])
                checksum.add(raw["terminations"])
                if index in seed_of and choices is not None and play is not None:
                    report.replayed.append(index)
                    is_cut = index == n - 1 and bool(storage.metadata.get("last_episode_cut"))
                    actions = reader.actions(episode)
                    problem = _difference(play(seed_of[index], actions), episode, is_cut)
                    if problem:
                        report.problems.append(
                            f"Replayed {episode.name} (seed {seed_of[index]}): {problem}"
                            f"{_other_versions(storage.metadata)}"
                        )
    except (SpinError, *DAMAGE) as error:
        report.problems.append(
            f"Episode {len(report.returns)} cannot be read ({error}). The file is damaged."
        )
    else:
        digest = str(checksum)
        report.problems += record_problems(storage.metadata, report.lengths, report.returns, digest)
        if "checksum" not in storage.metadata:
            report.notes.append("checksum and statistics (this dataset has no record of them)")
    report.coverage = counter.result() if n_sound else None
    return report


def _reader(dataset: MinariDataset) -> ActionReader:
    """Returns how the actions are read; those that need bins are refused."""
    if isinstance(dataset.action_space, Box):
        nvec_from_space(dataset.action_space)
    try:
        return ActionReader.of(dataset, None, lambda: iter(()))
    except InvalidDatasetError as error:
        raise InvalidActionSpaceError(f"Dataset {dataset.id} cannot be checked. {error}") from error


@contextmanager
def _simulator(
    dataset: MinariDataset, trust: bool
) -> Iterator[Callable[[int, Sequence[Any]], list[Step]]]:
    """Yields what replays an episode from its seed with its actions."""
    if dataset.env_spec is None:
        raise InvalidDatasetError("its environment is unknown")
    with closing(_as_recorded(make_environment(dataset, trust), dataset)) as env:
        if env.spec is None or env.spec.entry_point != "spin_envs.suite:DiscretizedSuiteEnv":
            yield functools.partial(replay, env)
            return
        # With the arithmetic that the data were made with. (Other environments may exist in this
        # process only.)
        spec = env.spec.to_json()
        with closing(Workers(1)) as workers:
            yield lambda seed, actions: workers.submit(
                "replay", {"spec": spec, "seed": seed, "actions": actions}
            ).result()


def _as_recorded(env: gymnasium.Env[Any, Any], dataset: MinariDataset) -> gymnasium.Env[Any, Any]:
    """Returns the environment with the time limit of the dataset's episodes, if that is another."""
    limit = dataset.storage.metadata.get("episode_limit")
    if not isinstance(limit, int) or limit < 1 or env.spec is None:
        return env
    env.close()
    spec = copy.copy(env.spec)
    spec.max_episode_steps = limit
    return gymnasium.make(spec)


def _check_arrays(
    report: CheckReport, raw: Mapping[str, Any], episode: EpisodeArrays, reader: ActionReader
) -> NDArray[np.integer[Any]] | None:
    """Adds an episode to the report; returns its choices `(T, N)`, None if it is not sound."""
    length = len(episode.rewards)
    report.lengths.append(length)
    report.returns.append(float(np.sum(episode.rewards, dtype=np.float64)))
    try:
        read = reader.read(episode)
        stack_episodes([read], [length], reader.nvec)
    except SpinError as error:
        report.problems.append(str(error))
        return None
    if problem := misplaced_end(raw["terminations"], raw["truncations"], length, episode.name):
        report.problems.append(problem)
    return read.actions


def _difference(steps: Sequence[Step], episode: EpisodeArrays, is_cut: bool = False) -> str:
    """Describes where the simulator's steps first differ from the episode's; empty if nowhere.

    A cut episode may end before the simulator's.
    """
    for t, (observation, reward, _, _) in enumerate(steps):
        if not is_close(observation, episode.observations[t]):
            return f"observation {t} is not the simulator's."
        recorded = episode.rewards[max(t - 1, 0)]
        if t and not is_close(np.array(reward), recorded):
            return f"the reward of step {t - 1} is {recorded:.6g}, the simulator's {reward:.6g}."
    *_, terminated, truncated = steps[-1]
    n_steps, length, over = len(steps) - 1, len(episode.actions), terminated or truncated
    if is_cut and n_steps == length and not over and not episode.terminated:
        return ""
    if n_steps < length and not over:
        return f"the action at step {n_steps} is not in the action space."
    if (n_steps, over, terminated) != (length, True, episode.terminated):
        return (
            f"it has {length} steps and terminated={episode.terminated}, the simulator's "
            f"{n_steps}{'' if over else ' or more'} and terminated={terminated}."
        )
    return ""


def _other_versions(metadata: Mapping[str, Any]) -> str:
    recorded = metadata.get("provenance", {}).get("versions", {})
    other = []
    for package in recorded.keys() & {"mujoco", "dm_control", "numpy"}:
        installed = importlib.metadata.version(package)
        if installed != recorded[package]:
            other.append(f"{package} {recorded[package]} (here {installed})")
    return f" It was recorded with {', '.join(sorted(other))}." if other else ""
