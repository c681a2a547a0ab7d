"""What a trained policy would change, and what its log says it is worth (`spin-d3rlpy report`)."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from d3rlpy.models.encoders import EncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler
from numpy.typing import NDArray

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.asm import ActionStructureModel, load_asm
from spin_d3rlpy.asm.rules import AnyRule
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import forbidden_choices
from spin_d3rlpy.data.loader import open_dataset, read_as
from spin_d3rlpy.data.tables.preparation import TablePreparation
from spin_d3rlpy.errors import require_fields, shown
from spin_d3rlpy.evaluation.decisions import (
    Comparison,
    keeps_rule,
    never_logged,
    share_of_new_combinations,
)
from spin_d3rlpy.evaluation.doubly_robust import doubly_robust
from spin_d3rlpy.evaluation.estimates import (
    LEAST_EFFECTIVE_SIZE,
    Estimate,
    WeightedGains,
    summarize,
)
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQEConfig
from spin_d3rlpy.evaluation.importance import discounts, importance_sampling, masks_of_states
from spin_d3rlpy.evaluation.probabilities import BehaviorProbabilities, GreedyPolicy, with_masks
from spin_d3rlpy.files.yaml_settings import read_settings
from spin_d3rlpy.nvec import require_same_nvec
from spin_d3rlpy.policies.stages import PretrainASM
from spin_d3rlpy.runs.policy import open_policy
from spin_d3rlpy.runs.settings import PRETRAINED, create_algorithm
from spin_d3rlpy.runs.training import CONFIG
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.training.loop import Run
from spin_envs import FlatActions

REPORT = "report.html"
DEFAULT_GAMMA = 0.99  # of algorithms without a discount, such as behavior cloning
_STATES_AT_ONCE = 4096
_EPS = 1e-3  # added to standard deviations, by which states are divided
_SCALER = {"type": "standard", "params": {"eps": _EPS}}


@dataclasses.dataclass(frozen=True)
class ReportSettings:
    """How a report is made.

    Args:
        gamma: discount of returns; the algorithm's if None.
        fqe_steps: gradient steps of each Q function.
        model_updates: gradient steps of the model of who logged.
        soften: share of decisions that a careful first trial leaves to whoever logged.
        level: of the intervals.
        n_steps: logged steps that are looked at, at most; whole episodes, drawn at random.
        n_examples: changed decisions that are shown.
        seed: of networks, mini-batches and draws.
    """

    gamma: float | None = None
    fqe_steps: int = 1_000
    model_updates: int = 2_000
    soften: float = 0.9
    level: float = 0.9
    n_steps: int = 50_000
    n_examples: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require_fields(
            self,
            gamma=(self.gamma is None or 0.0 < self.gamma <= 1.0, "above 0 and up to 1, or None"),
            fqe_steps=(self.fqe_steps >= 1, "of at least 1"),
            model_updates=(self.model_updates >= 1, "of at least 1"),
            soften=(0.0 < self.soften < 1.0, "between 0 and 1"),
            level=(0.0 < self.level < 1.0, "between 0 and 1"),
            n_steps=(self.n_steps >= 1, "of at least 1"),
            n_examples=(self.n_examples >= 0, "of at least 0"),
        )


@dataclasses.dataclass(frozen=True)
class Example:
    """A logged state in which the policy decides otherwise.

    Attributes:
        episode: number of its episode in what was looked at.
        step: number of the step in it.
        state: `(obs,)`.
        row: its row in the comparison.
    """

    episode: int
    step: int
    state: NDArray[np.float32]
    row: int


@dataclasses.dataclass(frozen=True)
class Returns:
    """What a log returns by one reward, and what estimates say of the policy.

    Attributes:
        logged: mean discounted return of the log.
        policy: estimates of what the policy itself is worth, by importance sampling and, if its
            weights suffice, doubly robust.
        trial: the same, of a careful first trial that decides a share `1 - soften`.
    """

    logged: Estimate
    policy: list[Estimate]
    trial: list[Estimate]


@dataclasses.dataclass(frozen=True)
class RunReport:
    """What a report says.

    Attributes:
        algorithm: name of the algorithm's class.
        dataset: name of the log.
        learned_from_it: whether the policy was trained on these same episodes.
        settings: how the report was made.
        gamma: discount.
        episodes: number of episodes looked at.
        steps: number of their steps.
        all_episodes: number of the log's.
        mean_return: mean undiscounted return.
        logged: mean discounted return of the log.
        policy: estimates of what the policy itself is worth, by importance sampling and, if its
            weights suffice, doubly robust.
        trial: the same, of a careful first trial that decides a share `1 - soften`.
        comparison: logged and chosen actions.
        examples: of changed decisions.
        nvec: number of choices of each slot.
        never_logged: choices that no one made, by slot.
        new_combinations: share of the policy's decisions that equal no logged one.
        trust: how far the critics held on held-out episodes, if that was measured.
        rule_kept: share of the log's and of the policy's decisions that keep the rule, if any.
        against_masks: share of the states in which the policy would choose what their masks forbid
            if it was not given them; None if the log has no masks. Everything else in a report is
            of decisions that keep to the masks.
        preparation: names of the table, if the log was one.
        flat_actions: names and values of its environment's actions, unless these are choices.
        by_reward: returns by each of several rewards; empty if the log has one.
    """

    algorithm: str
    dataset: str
    learned_from_it: bool
    settings: ReportSettings
    gamma: float
    episodes: int
    steps: int
    all_episodes: int
    mean_return: float
    logged: Estimate
    policy: list[Estimate]
    trial: list[Estimate]
    comparison: Comparison
    examples: list[Example]
    nvec: list[int]
    never_logged: list[list[int]]
    new_combinations: float
    trust: Trust | None
    rule_kept: tuple[float, float] | None
    against_masks: float | None
    preparation: TablePreparation | None
    flat_actions: FlatActions | None
    by_reward: dict[str, Returns]


def measure_run(
    folder: Path,
    settings: ReportSettings | None = None,
    *,
    dataset: str | None = None,
    asm: Path | None = None,
    rule: AnyRule | None = None,
    device: str = "cpu:0",
    trust: bool = False,
    show_progress: bool = True,
) -> RunReport:
    """Compares a trained policy with a log and estimates its value.

    Where the log has masks of what may be chosen, decisions, their likelihoods and estimates are of
    what they allow.

    Args:
        folder: of a finished `spin-d3rlpy train`.
        settings: defaults if None.
        dataset: the log; the one that the policy was trained on if None. Another one of the same
            kind, such as later patients, gives estimates that do not lean towards the policy.
        asm: file of a model that was pre-trained on the log with `masking="any_order"`, for the
            probabilities of logged actions; a small one is trained if None.
        rule: what decisions must keep, see `spin_d3rlpy.asm.rules`; the policy's if None.
        device: as in d3rlpy.
        trust: see `load_dataset` and `load_policy`.
        show_progress: draw progress bars.

    Raises:
        FileNotFoundError: the folder has no policy or no settings.
        ValueError: its settings name no dataset.
        DatasetNotFoundError: see `load_dataset`.
        InvalidDatasetError: see `load_dataset`.
        NvecMismatchError: the log has other actions or states than the policy.
    """
    settings = settings or ReportSettings()
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"There is no {CONFIG} in {folder}. Expected the folder of a finished `spin-d3rlpy "
            "train`."
        )
    trained_on = read_settings(folder / CONFIG)
    own = trained_on.get("dataset")
    if dataset is None and not isinstance(own, str):
        raise ValueError(
            f"{folder / CONFIG} does not say what the policy was trained on: expected a line "
            f"`dataset: <name or path>`, got {shown(own)}. Add it, or pass a dataset."
        )
    algo = open_policy(str(folder), device, trust).algorithm
    rule = rule or algo.config.rule
    name = dataset or str(own)
    size = trained_on.get("size") if dataset is None else None
    stored = open_dataset(name, size, progress=show_progress, trust=trust)
    whole = read_as(stored, algo.flat_actions)
    require_same_nvec(algo.config.nvec, whole.nvec, "The policy", name)
    log = _part(whole, settings).seen_by(algo)
    # The report must not depend on, nor disturb, the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        images = algo.config.image_encoder_factory
        if asm:
            model = load_asm(asm, device)
        else:
            model = _model_of(log, settings, device, show_progress, images)
        behavior = BehaviorProbabilities(model)
        measured = _measure(algo, log, behavior, settings, device, rule, show_progress)
    return RunReport(
        algorithm=type(algo).__name__,
        dataset=name,
        learned_from_it=name == own,
        settings=settings,
        all_episodes=whole.size(),
        trust=getattr(algo, "trust", None),
        **measured,
    )


def _measure(
    algo: MultiDiscreteAlgo[Any, Any],
    log: DeviceReplayBuffer,
    behavior: BehaviorProbabilities,
    settings: ReportSettings,
    device: str,
    rule: AnyRule | None,
    show_progress: bool,
) -> dict[str, Any]:
    """Returns the fields of a report that are measured on the log."""
    own_gamma: float = getattr(algo.config, "gamma", DEFAULT_GAMMA)
    gamma = own_gamma if settings.gamma is None else settings.gamma

    def both(policy: GreedyPolicy, log: DeviceReplayBuffer) -> list[Estimate]:
        shared: dict[str, Any] = {
            "gamma": gamma,
            "level": settings.level,
            "seed": settings.seed,
        }
        fqe = MultiDiscreteFQEConfig(
            learning_rate=1e-3,
            observation_scaler=StandardObservationScaler(eps=_EPS),
            image_encoder_factory=algo.config.image_encoder_factory,
        )
        weighted = importance_sampling(log, policy, behavior, **shared)
        if weighted.effective_size < LEAST_EFFECTIVE_SIZE:
            # The doubly robust estimate needs the same weights, so it would be refused as well.
            return [weighted]
        robust = doubly_robust(
            log,
            policy,
            behavior,
            fqe=fqe,
            n_steps=settings.fqe_steps,
            value_samples=2,
            device=device,
            show_progress=show_progress,
            **shared,
        )
        return [weighted, robust]

    def returns(log: DeviceReplayBuffer) -> Returns:
        alone, trial = GreedyPolicy(algo), GreedyPolicy(algo, settings.soften, behavior)
        logged = _logged_return(log, gamma, settings)
        return Returns(logged, both(alone, log), both(trial, log))

    named = log.named_rewards
    comparison, states, against_masks = _compare(algo, log, behavior)
    whole = returns(log)
    every_action = log.actions.long().numpy()
    return {
        "gamma": gamma,
        "episodes": log.size(),
        "steps": log.transition_count,
        "mean_return": float(log.returns().mean()),
        "logged": whole.logged,
        "policy": whole.policy,
        "trial": whole.trial,
        "by_reward": {
            name: returns(log.with_weights({name: 1.0}))
            for name in (() if named is None else named.names)
        },
        "comparison": comparison,
        "examples": _examples(comparison, log, states, settings.n_examples),
        "nvec": list(log.nvec),
        "never_logged": never_logged(every_action, log.nvec),
        "new_combinations": share_of_new_combinations(every_action, comparison.chosen),
        "rule_kept": None
        if rule is None
        else (
            float(keeps_rule(rule, comparison.logged, states).mean()),
            float(keeps_rule(rule, comparison.chosen, states).mean()),
        ),
        "against_masks": against_masks,
        "preparation": log.preparation,
        "flat_actions": log.flat_actions,
    }


def _part(whole: DeviceReplayBuffer, settings: ReportSettings) -> DeviceReplayBuffer:
    """Returns whole episodes, drawn at random: at most `settings.n_steps` steps, or two of them."""
    if whole.transition_count <= settings.n_steps:
        return whole
    lengths = whole.episode_starts.diff().cpu().numpy()
    order = np.random.default_rng(settings.seed).permutation(whole.size())
    fitting = int((np.cumsum(lengths[order]) <= settings.n_steps).sum())
    return whole.select(sorted(order[: max(2, fitting)].tolist()))


def _model_of(
    log: DeviceReplayBuffer,
    settings: ReportSettings,
    device: str,
    show_progress: bool,
    images: EncoderFactory,
) -> ActionStructureModel:
    """Learns who logged: a small model of the log's actions, in any order of the slots.

    Images are encoded as the policy does.

    Held-out episodes stop it: a model that knows its own data by heart has wrong probabilities.
    """
    fields = {
        "architecture": "mlp",
        "mlp": {"width": 64, "n_layers": 2},
        "observation_scaler": _SCALER,
        "pretraining": {
            "masking": "any_order",
            "full_mask_share": 0.2,
            "batch_size": 256,
            "learning_rate": 1e-3,
            "n_epochs": settings.model_updates,
            "max_updates": settings.model_updates,
            "validation_share": 0.1,
            "patience": 10,
        },
    }
    algo = create_algorithm(PRETRAINED, fields, device)
    algo.config.image_encoder_factory = images
    algo.build_with_dataset(log)  # fits the scaler
    context = algo.stage_context(log.to(device), Run(show_progress))
    result = PretrainASM().train(context)
    assert result.asm is not None
    return result.asm


def _compare(
    algo: MultiDiscreteAlgo[Any, Any], log: DeviceReplayBuffer, behavior: BehaviorProbabilities
) -> tuple[Comparison, NDArray[np.float32], float | None]:
    """Returns the decisions in all logged states, these `(n, obs)` alone, and `against_masks`."""
    rows = log.observation_index.long()
    states = log.observations_at(rows).numpy()
    logged = log.actions.long().numpy()
    chosen, logged_log_prob, chosen_log_prob, is_against = [], [], [], []
    for start in range(0, len(states), _STATES_AT_ONCE):
        part = slice(start, start + _STATES_AT_ONCE)
        masks = masks_of_states(log, rows[part])
        decided = algo.predict(states[part])
        if masks is not None:
            is_against.append(forbidden_choices(masks, decided).any(1))
            decided = algo.predict_masked(states[part], masks)
        probabilities = with_masks(behavior, masks)
        chosen.append(decided.astype(np.int64))
        logged_log_prob.append(probabilities.log_prob(states[part], logged[part]))
        chosen_log_prob.append(probabilities.log_prob(states[part], decided))
    comparison = Comparison(
        logged,
        np.concatenate(chosen),
        np.concatenate(logged_log_prob),
        np.concatenate(chosen_log_prob),
    )
    against = float(np.concatenate(is_against).mean()) if is_against else None
    newest = log.observations[rows].numpy()  # of a history
    return comparison, newest, against


def _logged_return(log: DeviceReplayBuffer, gamma: float, settings: ReportSettings) -> Estimate:
    """The log's mean discounted return, with its interval."""
    starts, rewards = log.episode_starts.numpy(), log.rewards.double().numpy()
    lengths = np.diff(starts)
    discount = discounts(gamma, int(lengths.max()))
    returns = [float(rewards[a:b] @ discount[: b - a]) for a, b in itertools.pairwise(starts)]
    data = WeightedGains(np.ones((len(lengths), 1)), np.array(returns)[:, None], 0.0 * lengths)
    return summarize("mean of the log", data, False, settings.level, seed=settings.seed)


def _examples(
    comparison: Comparison, log: DeviceReplayBuffer, states: NDArray[np.float32], n: int
) -> list[Example]:
    starts = log.episode_starts.numpy()
    examples = []
    for row in comparison.examples(n):
        episode = int(np.searchsorted(starts, row, side="right")) - 1
        examples.append(Example(episode, row - int(starts[episode]), states[row], row))
    return examples
