"""Estimates from logs with masks: probabilities of what is allowed, exact where all is known."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spin_d3rlpy import (
    BC,
    SPINBC,
    ActionStructureModel,
    AutoregressiveBC,
    DeviceReplayBuffer,
    FactoredBC,
    FactoredBCQ,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
)
from spin_d3rlpy.algos.bc import BCImpl
from spin_d3rlpy.algos.impl import PolicyModules
from spin_d3rlpy.data.buffer.episodes import StackedEpisodes
from spin_d3rlpy.data.buffer.masks import forbidden_choices, is_choice, pack
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidDatasetError,
    NoAllowedChoiceError,
)
from spin_d3rlpy.evaluation import doubly_robust as doubly_robust_module
from spin_d3rlpy.evaluation.doubly_robust import doubly_robust
from spin_d3rlpy.evaluation.importance import Weighting, importance_sampling
from spin_d3rlpy.evaluation.probabilities import (
    BehaviorProbabilities,
    GreedyPolicy,
    SampledPolicy,
)
from spin_d3rlpy.evaluation.slates import slate_value
from spin_d3rlpy.policies import SPINJoint
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    new_algorithm,
    random_buffer,
    tiny_fields,
)

ALL_ACTIONS = np.array(list(itertools.product(*map(range, NVEC))))
GAMMA = 0.9
# Two first states and two later ones. In states of a step, equally many actions are allowed.
STATES = np.random.default_rng(3).normal(size=(4, OBSERVATION_SIZE)).astype(np.float32)
ALLOWED = [
    [[0, 1], [0, 2, 4], [0, 1]],
    [[1, 2], [1, 2, 3], [0, 1]],
    [[0, 2], [3, 4], [1]],
    [[1, 2], [0, 4], [0]],
]
REWARDS = np.random.default_rng(4).normal(size=(4, len(ALL_ACTIONS)))


def mask_of(allowed: list[list[int]]) -> NDArray[np.bool_]:
    mask = np.zeros((len(NVEC), max(NVEC)), bool)
    for slot, choices in enumerate(allowed):
        mask[slot, choices] = True
    return mask


MASKS = np.stack([mask_of(allowed) for allowed in ALLOWED])


def actions_of(state: int) -> list[int]:
    """Numbers of the actions that are allowed in a state."""
    return [
        number
        for number, action in enumerate(ALL_ACTIONS.tolist())
        if all(choice in ALLOWED[state][slot] for slot, choice in enumerate(action))
    ]


def next_state(action: int) -> int:
    return 2 + int(ALL_ACTIONS[action, 0]) % 2


@pytest.fixture(scope="module")
def log() -> DeviceReplayBuffer:
    """Every possible episode once, as an equal chance of every allowed action gives them.

    So means over the log are exact expectations.
    """
    states, actions, rewards = [], [], []
    for first in (0, 1):
        for one in actions_of(first):
            later = next_state(one)
            for two in actions_of(later):
                states += [first, later, later]
                actions += [one, two]
                rewards += [REWARDS[first, one], REWARDS[later, two]]
    episodes = len(actions) // 2
    return DeviceReplayBuffer(
        StackedEpisodes(
            observations=STATES[states],
            actions=ALL_ACTIONS[actions].astype(np.int8),
            rewards=np.array(rewards, np.float32),
            terminals=np.tile([0.0, 1.0], episodes).astype(np.float32),
            lengths=[2] * episodes,
            nvec=NVEC,
            masks=pack(MASKS[states], NVEC),
        )
    )


def known(log: DeviceReplayBuffer) -> NDArray[np.float64]:
    """Probabilities of the logged actions."""
    return np.tile([1 / 12, 1 / 4], log.size())


def value(chances: NDArray[np.float64]) -> float:
    """The exact value of a policy with these probabilities `(4, actions)`."""
    later = (chances * REWARDS).sum(1)
    total = 0.0
    for first in (0, 1):
        for action in actions_of(first):
            after = REWARDS[first, action] + GAMMA * later[next_state(action)]
            total += chances[first, action] * after / 2.0
    return total


class StructureModel(BC[SPINJoint]):
    """Acts by a structure model; nothing is trained."""

    def inner_create_impl(self, observation_shape: Any, action_size: int) -> None:
        modules = PolicyModules(policy=self.create_policy(observation_shape), actor_optim=None)
        self._impl = BCImpl(observation_shape, modules, self._config, self._device)


def joint(order: Any = "slots") -> StructureModel:
    return StructureModel(policy=SPINJoint(transformer=TINY, order=order))


def built(policy: Any) -> Any:
    torch.manual_seed(0)
    algo: Any = (
        joint() if policy is StructureModel else new_algorithm(policy, **tiny_fields(policy))
    )
    algo.build_with_dataset(random_buffer())
    for parameters in algo.impl.policy.parameters():  # far from equal chances
        parameters.data *= 2.0
    return algo


POLICIES = [FactoredBC, SPINBC, AutoregressiveBC, StructureModel]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)


def masked_chances(prefix: NDArray[np.float64], state: int) -> NDArray[np.float64]:
    """Probabilities of all actions with a mask, from unmasked ones of prefixes, number by number.

    Slot after slot, a choice's share of what is allowed after the choices before it.
    """
    of: dict[tuple[int, ...], float] = {(): 1.0}
    for action, values in zip(ALL_ACTIONS.tolist(), prefix.tolist(), strict=True):
        for slot in range(len(NVEC)):
            of[tuple(action[: slot + 1])] = values[slot]
    chances = np.zeros(len(ALL_ACTIONS))
    for number in actions_of(state):
        chance = 1.0
        before: tuple[int, ...] = ()
        for slot, choice in enumerate(ALL_ACTIONS[number].tolist()):
            share = sum(of[(*before, other)] for other in ALLOWED[state][slot])
            before = (*before, choice)
            chance *= of[before] / share
        chances[number] = chance
    return chances


def chances_of(who: Any, method: str = "log_prob") -> NDArray[np.float64]:
    """Probabilities of all actions in the four states."""
    return np.stack(
        [
            np.exp(getattr(who, method)(np.repeat(state[None], len(ALL_ACTIONS), 0), ALL_ACTIONS))
            for state in STATES
        ]
    )


def repeated(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.repeat(masks[None], len(ALL_ACTIONS), axis=0)


def chances_with_masks(who: Any, method: str = "log_prob") -> NDArray[np.float64]:
    parts = []
    for state, mask in zip(STATES, MASKS, strict=True):
        states = np.repeat(state[None], len(ALL_ACTIONS), 0)
        kept = who.masked(repeated(mask))
        parts.append(np.exp(getattr(kept, method)(states, ALL_ACTIONS)))
    return np.stack(parts)


@each_policy
def test_probabilities_of_a_policy_are_of_what_masks_allow(policy: Any) -> None:
    algo = built(policy)
    who = SampledPolicy(algo)
    prefix = chances_of(who, "prefix_log_prob")
    expected = np.stack([masked_chances(prefix[s], s) for s in range(4)])
    found = chances_with_masks(who)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-5)
    whole = chances_with_masks(who, "prefix_log_prob")[..., -1]
    np.testing.assert_allclose(whole, expected, rtol=1e-4)
    # They are those of the algorithm's own samples, and masks matter.
    n = 20_000
    torch.manual_seed(1)
    states = np.repeat(STATES[:1], n, axis=0)
    drawn = who.masked(np.repeat(MASKS[:1], n, axis=0)).sample(states)
    changes = expected[0] - chances_of(who)[0]
    most = int(changes.argmax())
    share = (drawn == ALL_ACTIONS[most]).all(1).mean()
    assert changes[most] > 0.02
    assert share == pytest.approx(expected[0, most], abs=0.01)


def test_slots_of_independent_slots_have_probabilities_of_what_is_allowed() -> None:
    who = SampledPolicy(built(FactoredBC))
    each, whole = chances_with_masks(who, "slot_log_prob"), chances_with_masks(who)
    np.testing.assert_allclose(each.prod(-1), whole, rtol=1e-4)
    for slot, choices in enumerate(ALLOWED[0]):
        one_of_each = [int(np.argmax(ALL_ACTIONS[:, slot] == choice)) for choice in choices]
        assert each[0, one_of_each, slot].sum() == pytest.approx(1.0, abs=1e-5)


@pytest.fixture(scope="module")
def behavior() -> BehaviorProbabilities:
    torch.manual_seed(0)
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY)
    return BehaviorProbabilities(asm, n_orders=6)


def test_probabilities_of_the_log_are_of_what_masks_allow(behavior: BehaviorProbabilities) -> None:
    prefix = chances_of(behavior, "prefix_log_prob")
    expected = np.stack([masked_chances(prefix[s], s) for s in range(4)])
    found = chances_with_masks(behavior, "prefix_log_prob")[..., -1]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # The mean over all orders is the distribution of samples.
    whole = chances_with_masks(behavior)
    np.testing.assert_allclose(whole.sum(1), 1.0, rtol=1e-5)
    assert (whole > 0.0).sum(1).tolist() == [12, 12, 4, 4]
    n = 20_000
    torch.manual_seed(1)
    kept = behavior.masked(np.repeat(MASKS[2:3], n, axis=0))
    drawn = kept.sample(np.repeat(STATES[2:3], n, axis=0))
    for number in actions_of(2):
        share = (drawn == ALL_ACTIONS[number]).all(1).mean()
        assert share == pytest.approx(whole[2, number], abs=0.015)
    each = chances_with_masks(behavior, "slot_log_prob")
    one_of_each = [int(np.argmax(ALL_ACTIONS[:, 1] == choice)) for choice in ALLOWED[1][1]]
    assert each[1, one_of_each, 1].sum() == pytest.approx(1.0, abs=1e-5)


@each_policy
@pytest.mark.parametrize("weighting", ["per_decision", "self_normalized"])
def test_importance_sampling_gives_the_enumerated_value(
    policy: Any, weighting: Weighting, log: DeviceReplayBuffer
) -> None:
    who = SampledPolicy(built(policy))
    prefix = chances_of(who, "prefix_log_prob")
    truth = value(np.stack([masked_chances(prefix[s], s) for s in range(4)]))
    found = importance_sampling(log, who, known(log), weighting=weighting, gamma=GAMMA)
    assert found.value == pytest.approx(truth, abs=1e-4)
    assert found.mean_weight == pytest.approx(1.0, abs=1e-4)
    # Without masks the policy would be estimated to do what it cannot.
    without = DeviceReplayBuffer.select(log, range(log.size()))
    without.stored = dataclasses.replace(without.stored, masks=None)
    free = importance_sampling(without, who, known(log), weighting=weighting, gamma=GAMMA)
    assert abs(free.mean_weight - 1.0) > 0.05


def test_a_careful_trial_is_the_enumerated_mixture(
    log: DeviceReplayBuffer, behavior: BehaviorProbabilities
) -> None:
    algo = built(FactoredBCQ)
    assert forbidden_choices(MASKS, algo.predict(STATES)).any()
    chosen = algo.predict_masked(STATES, MASKS)
    is_chosen = (chosen[:, None] == ALL_ACTIONS).all(2)
    truth = value(0.3 * is_chosen + 0.7 * chances_with_masks(behavior))
    careful = GreedyPolicy(algo, soften=0.7, behavior=behavior)
    found = importance_sampling(log, careful, known(log), weighting="per_decision", gamma=GAMMA)
    assert found.value == pytest.approx(truth, abs=1e-4)
    assert found.mean_weight == pytest.approx(1.0, abs=1e-4)
    torch.manual_seed(0)
    drawn = careful.masked(np.repeat(MASKS, 50, axis=0)).sample(np.repeat(STATES, 50, axis=0))
    assert not forbidden_choices(np.repeat(MASKS, 50, axis=0), drawn).any()


def test_doubly_robust_values_are_of_what_masks_allow(
    log: DeviceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any Q cancels if its values are of the policy's own, allowed actions."""

    class AnyQ:
        def __init__(self, act: Any, config: Any, device: Any, **options: bool) -> None:
            assert options == {"takes_masks": True, "check": False}
            assert np.array_equal(act(STATES, MASKS), algo.predict_masked(STATES, MASKS))

        def fit(self, dataset: DeviceReplayBuffer, **kwargs: Any) -> None: ...

        def predict_value(self, x: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(3.0 * x[:, 0] * action[:, 1] - action[:, 0] + 5.0 * action[:, 2])

    algo = built(FactoredBCQ)
    is_chosen = (algo.predict_masked(STATES, MASKS)[:, None] == ALL_ACTIONS).all(2)
    monkeypatch.setattr(doubly_robust_module, "MultiDiscreteFQE", AnyQ)
    found = doubly_robust(
        log,
        GreedyPolicy(algo),
        known(log),
        n_steps=1,
        gamma=GAMMA,
        self_normalized=False,
        value_samples=1,
    )
    assert found.value == pytest.approx(value(1.0 * is_chosen), abs=1e-4)


@pytest.mark.slow
def test_doubly_robust_learns_from_what_masks_allow(
    log: DeviceReplayBuffer, behavior: BehaviorProbabilities
) -> None:
    who = SampledPolicy(built(FactoredBC))
    truth = value(chances_with_masks(who))
    config = MultiDiscreteFQEConfig(learning_rate=3e-3, batch_size=64)
    found = doubly_robust(log, who, known(log), fqe=config, n_steps=400, gamma=GAMMA)
    assert found.low < truth < found.high
    assert found.value == pytest.approx(truth, abs=0.15)


def test_fitted_q_evaluation_gives_a_function_the_masks(log: DeviceReplayBuffer) -> None:
    seen: list[Any] = []

    def first_allowed(observations: NDArray[Any], masks: Any) -> NDArray[Any]:
        seen.append(masks)
        return np.asarray(masks.argmax(2))

    config = MultiDiscreteFQEConfig(batch_size=16)
    fqe = MultiDiscreteFQE(first_allowed, config, takes_masks=True)
    fqe.fit(log, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    assert all(masks.shape[1:] == (3, 5) for masks in seen)
    assert np.array_equal(fqe.predict_masked(STATES, MASKS), MASKS.argmax(2))
    with pytest.raises(TypeError, match="takes_masks=True"):
        MultiDiscreteFQE(lambda x: x).predict_masked(STATES, MASKS)


def test_who_cannot_keep_masks_is_refused(
    log: DeviceReplayBuffer, behavior: BehaviorProbabilities
) -> None:
    algo = built(FactoredBCQ)
    with pytest.raises(InvalidActionSpaceError, match=r"mask forbids it.*GreedyPolicy\(algo\)"):
        importance_sampling(log, GreedyPolicy(algo.predict), behavior)

    class Own:
        def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Any:
            return np.full(len(actions), -1.0)

        def sample(self, observations: NDArray[Any]) -> Any:
            return np.zeros((len(observations), 3), np.int64)

    with pytest.raises(TypeError, match=r"Own has no method masked\(masks\).*returns self"):
        importance_sampling(log, Own(), behavior)
    surest = joint("confidence")
    surest.build_with_dataset(log)
    with pytest.raises(TypeError, match=r"order 'confidence'.*GreedyPolicy\(algo\)"):
        SampledPolicy(surest)  # also without masks


def test_masks_that_do_not_fit_are_refused(behavior: BehaviorProbabilities) -> None:
    for who in (behavior, SampledPolicy(built(FactoredBC)), GreedyPolicy(built(FactoredBC))):
        with pytest.raises(InvalidDatasetError, match=r"the 4 states whose masks.*got 2"):
            who.masked(MASKS).log_prob(STATES[:2], ALL_ACTIONS[:2])
    stuck = MASKS.copy()
    stuck[2, 1] = False
    past = MASKS.copy()
    past[2, 2] = ~is_choice(NVEC)[2]  # only what the slot does not have
    for who in (behavior, SampledPolicy(built(FactoredBC))):
        with pytest.raises(NoAllowedChoiceError, match=r"for slot 1 of row 2"):
            who.masked(stuck)
        with pytest.raises(NoAllowedChoiceError, match=r"for slot 2 of row 2"):
            who.masked(past)
        with pytest.raises(ValueError, match=r"bool mask of shape \(4, 3, 5\)"):
            who.masked(2 * MASKS.astype(int))
    with pytest.raises(NoAllowedChoiceError, match=r"for slot 1 of row 2"):
        behavior.asm.log_prob(torch.from_numpy(STATES), ALL_ACTIONS[:4], allowed=stuck)


def test_slates_may_have_masks(behavior: BehaviorProbabilities) -> None:
    """Each allowed slate of one state once, logged with equal chances."""
    numbers = actions_of(0)
    actions, n = ALL_ACTIONS[numbers], len(numbers)
    states, masks = np.repeat(STATES[:1], n, 0), np.repeat(MASKS[:1], n, 0)
    rewards = np.random.default_rng(0).normal(size=actions.shape)

    class Equal:
        def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Any:
            return np.full(n, -np.log(n))

        def sample(self, observations: NDArray[Any]) -> Any:
            raise NotImplementedError

        def masked(self, masks: NDArray[np.bool_]) -> Equal:
            return self

    who = SampledPolicy(built(AutoregressiveBC))
    options: dict[str, Any] = {"estimator": "standard", "self_normalized": False}
    found = slate_value(states, actions, rewards, who, Equal(), masks=masks, **options)
    expected = chances_with_masks(who)[0, numbers] @ rewards.sum(1)
    assert found.value == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InvalidDatasetError, match=r"Expected masks \(n, N, K\), bool"):
        slate_value(states, actions, rewards, who, Equal(), masks=masks[:, :2])
    masks[4, 0] = [False, False, True, False, False]
    with pytest.raises(InvalidDatasetError, match="row 4, slot 0 has the choice"):
        slate_value(states, actions, rewards, who, Equal(), masks=masks)
