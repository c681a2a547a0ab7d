"""Evaluation of policies in environments, all episodes in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, cast, get_args

import gymnasium
import numpy as np
import torch
from d3rlpy.dataset import EpisodeBase, ReplayBufferBase
from d3rlpy.logging import LOG
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from spin_d3rlpy.data.action_spaces import with_flat_actions
from spin_d3rlpy.data.buffer.masks import INFO, mask_of_info
from spin_d3rlpy.data.observation_spaces import is_vector, with_flat_observations
from spin_d3rlpy.evaluation.against_data import compare_with_data
from spin_d3rlpy.histories import History, Recent
from spin_d3rlpy.nvec import actions_of, nvec_from_space, require_same_nvec
from spin_envs import FlatActions, ObservationLayout
from spin_envs.copies import copies_of, remember, restore
from spin_envs.flat_actions import is_flat
from spin_envs.rollout import MaskedActFunction, rollout

ActionMode = Literal["greedy", "sample"]
MatchMode = Literal["slot", "exact"]


class MultiDiscreteActionMatchEvaluator:
    """d3rlpy evaluator: share of the dataset's actions that the greedy policy takes, 0 to 1.

    d3rlpy's `DiscreteActionMatchEvaluator` compares single choices only.

    Args:
        mode: `"exact"` counts rows with all slots equal, `"slot"` counts slots.
        episodes: reference episodes; the training dataset if None.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(
        self, mode: MatchMode = "exact", episodes: Sequence[EpisodeBase] | None = None
    ) -> None:
        if mode not in get_args(MatchMode):
            raise ValueError(f"Expected mode 'slot' or 'exact', got {mode!r}.")
        self.mode: MatchMode = mode
        self._episodes = episodes

    def __call__(self, algo: ActingAlgo, dataset: ReplayBufferBase) -> float:
        """Returns the share, from 0 to 1."""
        matched, count = 0, 0
        history = History.of(getattr(algo, "config", None))
        for episode in dataset.episodes if self._episodes is None else self._episodes:
            x: Any = episode.observations
            if history is not None and x.shape[1] != cast(Any, algo).observation_shape[0]:
                x = history.of_episode(x, episode.actions)  # those of a dataset may be rows
            match = algo.predict(x) == episode.actions  # (T, N)
            match = match.all(1) if self.mode == "exact" else match
            matched += int(match.sum())
            count += match.size
        return matched / count


def action_marginals(actions: NDArray[Any], nvec: Sequence[int]) -> NDArray[np.float64]:
    """Returns each choice's frequency in actions `(n, N)`, `(N, K)`.

    Rows sum to 1; entries past a slot's last choice are NaN.
    """
    shares = np.full((len(nvec), max(nvec)), np.nan)
    for slot, n_choices in enumerate(nvec):
        counts = np.bincount(actions[:, slot], minlength=n_choices)
        shares[slot, :n_choices] = counts / len(actions)
    return shares


class ActingAlgo(Protocol):
    """Interface that evaluation needs; every d3rlpy Q-learning algorithm has it."""

    def predict(self, x: Any) -> NDArray[Any]:
        """Greedy actions for a batch of observations."""

    def sample_action(self, x: Any) -> NDArray[Any]:
        """Sampled actions for a batch of observations."""


class LockstepEvaluator:
    """d3rlpy evaluator: mean return of seeded episodes played in parallel.

    One call of the policy serves all episodes, and every evaluation uses the same start states.
    d3rlpy's `EnvironmentEvaluator` steps a single unseeded environment. Masks of an environment, in
    `info["action_mask"]`, are kept by this package's algorithms. At the end of `fit` a warning says
    if the policy returns less than its data.

    Args:
        env: an environment, of which copies are made, or a vector environment with next-step
            autoreset (used directly). If its actions are no slots of choices, they become those of
            a policy's data, and copies are made when it is evaluated. Copies have what its wrappers
            have learned by then, such as running means; evaluations change nothing of that. It is
            reset to compare copies with it, unless it is of `spin_envs`. Observations that are no
            vectors come to the policy as rows: flattened as by Gymnasium, or with images by
            `spin_envs.FlattenImages`.
        n_trials: number of episodes; 1 plays in the environment itself.
        seed: the first episode's seed; later ones count up.
        mode: `"greedy"` (`predict`) or `"sample"` (`sample_action`, as in the published IQL and
            AWAC results).
        processes: play in processes, with at most one copy each, for simulators that allow one
            instance a process. Scripts then need `if __name__ == "__main__":`.
        copy_seconds: in which the copies must be there and answer.

    Raises:
        EnvironmentCopyError: the environment cannot be copied, or a copy does otherwise.
        ValueError: an unknown mode, or no trials.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
        n_trials: int = 10,
        seed: int = 100,
        mode: ActionMode = "greedy",
        processes: bool = False,
        copy_seconds: float = 60.0,
    ) -> None:
        if mode not in get_args(ActionMode):
            raise ValueError(f"Expected mode 'greedy' or 'sample', got {mode!r}.")
        if n_trials < 1:
            raise ValueError(f"Expected n_trials of at least 1, got {n_trials}.")
        self.mode: ActionMode = mode
        self.seeds = range(seed, seed + n_trials)
        self._last_returns: NDArray[np.float64] | None = None
        self._original = None if isinstance(env, VectorEnv) else env
        self._make = partial(copies_of, n=n_trials, processes=processes, seconds=copy_seconds)
        self._nested: gymnasium.Env[Any, Any] | None = None
        # By which copies of that were made.
        self._kept: tuple[FlatActions | None, ObservationLayout | None] = None, None
        self._envs: VectorEnv[Any, Any, Any] | None = None
        if isinstance(env, VectorEnv):
            self._envs = env
        elif is_flat(env.action_space) and is_vector(env.observation_space):
            self._envs = self._make(env)
        else:
            self._nested = env

    def _envs_for(self, algo: ActingAlgo) -> VectorEnv[Any, Any, Any]:
        """Returns the environments, with actions and images as the policy's data had them."""
        images = getattr(getattr(algo, "config", None), "observation_layout", None)
        kept = getattr(algo, "flat_actions", None), images
        if self._nested is not None and (self._envs is None or kept != self._kept):
            self.close()
            self._kept = kept
            slots = with_flat_actions(self._nested, kept[0])
            self._original = with_flat_observations(slots, images)
            self._envs = self._make(self._original)
        assert self._envs is not None
        return self._envs

    def __call__(self, algo: ActingAlgo, dataset: ReplayBufferBase | None = None) -> float:
        """Returns the mean undiscounted return; `dataset` is not used."""
        self._last_returns = self.returns(algo)
        return float(self._last_returns.mean())

    def compare_with_data(self, dataset: ReplayBufferBase) -> None:
        """Warns if the last call's returns are below a dataset's by two standard errors."""
        returns = self._last_returns
        if returns is None:
            return
        mean, std = float(returns.mean()), float(returns.std())
        compared = compare_with_data(mean, std, len(returns), dataset)
        if compared.is_below:
            LOG.warning(f"{compared} {compared.advice}", mode=self.mode)

    def returns(
        self, algo: ActingAlgo, on_step: Callable[[int], None] | None = None
    ) -> NDArray[np.float64]:
        """Returns each episode's undiscounted return, in order of seeds, `(n_trials,)`."""
        envs = self._envs_for(algo)
        space = envs.single_action_space
        if (nvec := getattr(getattr(algo, "config", None), "nvec", None)) is not None:
            require_same_nvec(nvec, nvec_from_space(space), "The policy", "the environment")
        choose = algo.predict if self.mode == "greedy" else algo.sample_action
        # Sampling must neither depend on nor disturb the training's random numbers.
        device = torch.device(getattr(getattr(algo, "impl", None), "device", "cpu"))
        recent = Recent(History.of(getattr(algo, "config", None)))

        def act(x: NDArray[Any], episodes: NDArray[Any]) -> NDArray[Any]:
            chosen = choose(recent.rows(x, episodes.tolist()))
            recent.acted(x, chosen, episodes.tolist())
            return actions_of(space, chosen)

        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            self._as_it_was(envs),
        ):
            torch.manual_seed(self.seeds[0])
            episodes = rollout(
                envs,
                act,
                self.seeds,
                record=False,
                on_step=on_step,
                act_masked=self._masked(algo, space, recent),
            )
            return np.array([episode.rewards.sum() for episode in episodes])

    @contextmanager
    def _as_it_was(self, envs: VectorEnv[Any, Any, Any]) -> Iterator[None]:
        """Context of playing, in which the environment's wrappers learn nothing for good."""
        if self._original is not None:
            remember(self._original, envs)
        try:
            yield
        finally:
            restore(envs)

    def _masked(
        self, algo: ActingAlgo, space: gymnasium.Space[Any], recent: Recent
    ) -> MaskedActFunction | None:
        """Returns how a policy acts by masks; None if it knows none."""
        choose = getattr(algo, "predict_masked", None)
        if choose is None:
            return None
        nvec = nvec_from_space(space)

        def act(x: NDArray[Any], episodes: NDArray[Any], given: list[Any]) -> NDArray[Any]:
            rows = [mask_of_info({INFO: mask}, nvec) for mask in given]
            if any(mask is None for mask in rows):
                raise ValueError(f"Expected info[{INFO!r}] of every state or of none.")
            masks = np.stack([mask for mask in rows if mask is not None])
            seen = recent.rows(x, episodes.tolist())
            chosen = choose(seen, masks, sample=self.mode == "sample")
            recent.acted(x, chosen, episodes.tolist())
            return actions_of(space, chosen)

        return act

    def close(self) -> None:
        """Closes the environments."""
        if self._envs is not None:
            self._envs.close()
