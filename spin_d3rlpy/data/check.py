"""Consistency of a dataset's arrays, record and simulator."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from minari import MinariDataset
from numpy.typing import NDArray

from spin_d3rlpy.data.collect import Replay, replay
from spin_d3rlpy.data.environments import make_environment
from spin_d3rlpy.data.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.sources import DAMAGE, episode_arrays
from spin_d3rlpy.data.workers import Workers
from spin_d3rlpy.data.writing import Checksum, return_statistics
from spin_d3rlpy.errors import InvalidDatasetError, SpinError
from spin_d3rlpy.nvec import choices_of, nvec_from_space

REPLAYED_EPISODES = 3
_SHOWN_PROBLEMS = 10
_SUITE = "spin_envs.suite:DiscretizedSuiteEnv"
# Relative to 1 or to the largest entry: float32 rounding, far below what one wrong step changes.
_TOLERANCE = 1e-5


@dataclasses.dataclass
class CheckReport:
    """Result of a check."""

    name: str
    # `(episodes,)` undiscounted returns
    returns: list[float] = dataclasses.field(default_factory=list)
    # `(episodes,)` numbers of transitions
    lengths: list[int] = dataclasses.field(default_factory=list)
    # `(label, number of episodes)` of each policy, in order
    parts: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    # numbers of the episodes that the simulator reproduced or should have
    replayed: list[int] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)  # what could not be checked, and why
    # what is wrong; empty for a good dataset
    problems: list[str] = dataclasses.field(default_factory=list)

    def returns_by_policy(self) -> dict[str, list[float]]:
        """Returns the returns of each policy's episodes; empty without a record of them."""
        edges = itertools.accumulate((n for _, n in self.parts), initial=0)
        labels = (label for label, _ in self.parts)
        return {
            label: self.returns[first:last]
            for label, (first, last) in zip(labels, itertools.pairwise(edges), strict=True)
        }

    def summary(self) -> str:
        """Returns the report as a few lines of text."""
        lines = [f"{self.name}: {len(self.returns)} episodes, {sum(self.lengths):,} transitions"]
        for label, returns in [*self.returns_by_policy().items(), ("all", self.returns)]:
            if returns:
                s = return_statistics(returns)
                lines.append(
                    f"  {label}: return {s['mean']:.2f} +- {s['std']:.2f} "
                    f"({s['min']:.2f} to {s['max']:.2f}), {len(returns)} episodes"
                )
        if self.replayed:
            lines.append(f"  replayed in the simulator: {len(self.replayed)} episodes")
        lines += [f"  not checked: {note}" for note in self.notes]
        lines += [f"  WRONG: {problem}" for problem in self.problems[:_SHOWN_PROBLEMS]]
        if len(self.problems) > _SHOWN_PROBLEMS:
            lines.append(f"  ... and {len(self.problems) - _SHOWN_PROBLEMS} more")
        lines.append("  bad" if self.problems else "  good")
        return "\n".join(lines)


def check_dataset(
    dataset: MinariDataset, replay_episodes: int | None = REPLAYED_EPISODES, trust: bool = False
) -> CheckReport:
    """Checks a dataset's arrays, its record (if any) and, by replaying, its alignment.

    Args:
        dataset: an opened dataset with MultiDiscrete, MultiBinary or Discrete actions.
        replay_episodes: number of episodes (spread evenly) to replay from their seeds with their
            actions; None for all.
        trust: make the environment with the function that the dataset names, see `load_dataset`.

    Returns:
        The report, with errors in `problems`.

    Raises:
        InvalidActionSpaceError: another action space, e.g. continuous.
        ValueError: `replay_episodes` is negative.
    """
    if replay_episodes is not None and replay_episodes < 0:
        raise ValueError(f"Expected replay_episodes of at least 0, got {replay_episodes}.")
    nvec = nvec_from_space(dataset.action_space)
    report = CheckReport(dataset.id)
    metadata = dataset.storage.metadata
    report.parts += [(p["policy"], p["episodes"]) for p in metadata.get("composition", [])]
    n = int(dataset.total_episodes)
    wanted = n if replay_episodes is None else min(n, replay_episodes)
    chosen = set(np.linspace(0, n - 1, wanted).round().astype(int).tolist())
    checksum = Checksum()
    with closing(_Replay(dataset, report, trust)) as replay:
        try:
            for index, (raw, arrays) in enumerate(_episodes(dataset)):
                choices = choices_of(dataset.action_space, arrays.actions)
                counted = dataclasses.replace(arrays, actions=choices)
                sound = _check_arrays(report, raw, counted, nvec)
                checksum.add(*(raw[k] for k in ("observations", "actions", "rewards")))
                checksum.add(raw["terminations"])
                if index in chosen and sound:
                    replay.check(index, arrays)
        except (SpinError, *DAMAGE) as error:
            report.problems.append(
                f"Episode {len(report.returns)} cannot be read ({error}). The file is damaged."
            )
            return report
    _check_record(report, metadata, str(checksum))
    return report


def _episodes(dataset: MinariDataset) -> Iterator[tuple[dict[str, Any], EpisodeArrays]]:
    indices = range(int(dataset.total_episodes))
    for index, raw in zip(indices, dataset.storage.get_episodes(indices), strict=True):
        yield raw, episode_arrays(dataset, index, raw)


def _check_arrays(
    report: CheckReport, raw: Mapping[str, Any], arrays: EpisodeArrays, nvec: Sequence[int]
) -> bool:
    """Adds an episode to the report; returns whether it can be replayed."""
    length = len(arrays.rewards)
    report.lengths.append(length)
    report.returns.append(float(np.sum(arrays.rewards, dtype=np.float64)))
    try:
        stack_episodes([arrays], [length], nvec)
    except SpinError as error:
        report.problems.append(str(error))
        return False
    over = np.asarray(raw["terminations"]) | np.asarray(raw["truncations"])
    if over.shape != (length,) or over[:-1].any() or not over[-1]:
        report.problems.append(
            f"Expected {arrays.name} to be terminated or truncated at its last step and at no "
            f"other, it is at steps {np.flatnonzero(over).tolist()[:5]} of {length}."
        )
    return True


def _check_record(report: CheckReport, metadata: Mapping[str, Any], checksum: str) -> None:
    for key, found in (
        ("total_episodes", len(report.returns)),
        ("total_steps", sum(report.lengths)),
    ):
        if int(metadata[key]) != found:
            report.problems.append(f"The record says {key}={metadata[key]}, there are {found}.")
    if "checksum" not in metadata:
        report.notes.append("checksum and statistics (this dataset has no record of them)")
        return
    if metadata["checksum"] != checksum:
        report.problems.append(
            f"The checksum of the data is {checksum}, the record says {metadata['checksum']}."
        )
    first = 0
    for part in metadata.get("composition", []):
        returns = report.returns[first : first + part["episodes"]]
        steps = sum(report.lengths[first : first + part["episodes"]])
        if part.get("transitions", steps) != steps:
            report.problems.append(
                f"The record says {part['transitions']} transitions of {part['policy']}, "
                f"there are {steps}."
            )
        _check_statistics(report, f"of {part['policy']}", part["returns"], returns)
        first += part["episodes"]
    _check_statistics(report, "of all episodes", metadata["returns"], report.returns)


def _check_statistics(
    report: CheckReport, whose: str, recorded: Mapping[str, float], returns: Sequence[float]
) -> None:
    found: Mapping[str, float] = return_statistics(returns) if returns else {}
    for key, value in recorded.items():
        if key not in found or not np.isclose(found[key], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            report.problems.append(
                f"The {key} return {whose} is {found.get(key, 'missing')}, the record says {value}."
            )


class _Replay:
    """Replays episodes; creates workers at the first one."""

    def __init__(self, dataset: MinariDataset, report: CheckReport, trust: bool) -> None:
        self._dataset = dataset
        self._report = report
        self._trust = trust
        self._env: gymnasium.Env[Any, Any] | None = None
        self._workers: Workers | None = None
        self._note = "" if dataset.env_spec else "its environment is unknown"

    def check(self, index: int, episode: EpisodeArrays) -> None:
        [metadata] = self._dataset.storage.get_episode_metadata([index])
        if not self._note and metadata.get("seed") is None:
            self._note = "its episodes' seeds are unknown"
        if not self._note and self._env is None:
            try:
                self._env = make_environment(self._dataset, self._trust)
            except InvalidDatasetError as error:
                self._note = str(error)
        if self._note:
            note = f"alignment with the simulator ({self._note})"
            if note not in self._report.notes:
                self._report.notes.append(note)
            return
        self._report.replayed.append(index)
        problem = _difference(self._play(int(metadata["seed"]), episode.actions), episode)
        if problem:
            self._report.problems.append(
                f"Replayed {episode.name} (seed {metadata['seed']}): {problem}"
                f"{_other_versions(self._dataset)}"
            )

    def _play(self, seed: int, actions: NDArray[Any]) -> Replay:
        assert self._env is not None
        spec = self._env.spec
        if spec is None or spec.entry_point != _SUITE:
            return replay(self._env, seed, actions)
        # With the arithmetic that the data were made with. (Other environments may exist in this
        # process only.)
        if self._workers is None:
            self._workers = Workers(1)
        request = {"spec": spec.to_json(), "seed": seed, "actions": actions}
        return Replay(**self._workers.submit("replay", request).result())

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        if self._workers is not None:
            self._workers.close()


def _difference(found: Replay, episode: EpisodeArrays) -> str:
    """Describes where the simulator first differs; empty if nowhere."""
    if not _close(found.observations[0], episode.observations[0]):
        return "its first observation is not the simulator's."
    for t, reward in enumerate(found.rewards):
        if not _close(found.observations[t + 1], episode.observations[t + 1]):
            return f"the observation after step {t} is not the simulator's."
        if not _close(np.array(reward), episode.rewards[t]):
            return (
                f"the reward of step {t} is {episode.rewards[t]:.6g}, the simulator's {reward:.6g}."
            )
    steps, length = len(found.rewards), len(episode.actions)
    ended = found.terminated or found.truncated
    if steps < length and ended:
        return f"the simulator's episode ends after {steps} of {length} steps."
    if steps < length:
        return f"the action at step {steps} is not in the action space."
    if not ended:
        return f"the simulator's episode continues after {length} steps."
    if found.terminated != episode.terminated:
        return f"it is terminated={episode.terminated}, the simulator's {found.terminated}."
    return ""


def _close(a: NDArray[Any], b: NDArray[Any]) -> bool:
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0, atol=_TOLERANCE * scale))


def _other_versions(dataset: MinariDataset) -> str:
    recorded = dataset.storage.metadata.get("provenance", {}).get("versions", {})
    other = []
    for package in ("mujoco", "dm_control", "numpy"):
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # the maze needs no simulator
            installed = "none"
        if installed != recorded.get(package, installed):
            other.append(f"{package} {recorded[package]} (here {installed})")
    return f" It was recorded with {', '.join(other)}." if other else ""
