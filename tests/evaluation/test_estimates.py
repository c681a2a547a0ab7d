"""Estimates from a log: plain computations, known truths, and logs that cannot answer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spin_d3rlpy import (
    SPINBC,
    SPINIDQL,
    ActionStructureModel,
    AutoregressiveBC,
    DecQN,
    DeviceReplayBuffer,
    FactoredBC,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    TransformerConfig,
)
from spin_d3rlpy.errors import InvalidActionSpaceError, InvalidDatasetError, NvecMismatchError
from spin_d3rlpy.evaluation import doubly_robust as doubly_robust_module
from spin_d3rlpy.evaluation.doubly_robust import doubly_robust
from spin_d3rlpy.evaluation.estimates import WeightedGains, summarize
from spin_d3rlpy.evaluation.importance import Weighting, importance_sampling
from spin_d3rlpy.evaluation.probabilities import (
    BehaviorProbabilities,
    GreedyPolicy,
    SampledPolicy,
)
from spin_d3rlpy.evaluation.slates import SlateEstimator, slate_value
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    new_algorithm,
    random_buffer,
    tiny_fields,
)
from tests.measure.slates import NVEC as SLATE_NVEC
from tests.measure.slates import Slates

ALL_ACTIONS = np.array(list(itertools.product(*map(range, NVEC))))


class Constant:
    """Probabilities that depend on the first slot's choice only."""

    def __init__(self, *chances: float) -> None:
        self.chances = np.array(chances)  # of the three choices of slot 0

    def log_prob(self, observations: NDArray[Any], actions: NDArray[Any]) -> Any:
        return np.log(self.chances[actions[:, 0]] / 10.0)  # 5 * 2 choices of the others

    def sample(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        return np.zeros((len(observations), 3), np.int64)


POLICY, BEHAVIOR = Constant(0.5, 0.3, 0.2), Constant(0.3, 0.3, 0.4)


@pytest.fixture
def log() -> DeviceReplayBuffer:
    # Episodes of different lengths: the second half of each second one is left out.
    return random_buffer()


def episodes_of(log: DeviceReplayBuffer) -> list[tuple[list[float], list[float]]]:
    """Rewards and ratios of each episode, as plain numbers."""
    ratio = (POLICY.chances / BEHAVIOR.chances)[log.actions[:, 0].numpy()].tolist()
    rewards, starts = log.rewards.double().tolist(), log.episode_starts.tolist()
    return [(rewards[a:b], ratio[a:b]) for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("weighting", ["per_decision", "self_normalized", "whole_episode"])
def test_importance_sampling_is_its_plain_computation(
    log: DeviceReplayBuffer, weighting: Weighting
) -> None:
    episodes, gamma = episodes_of(log), 0.9
    assert len({len(rewards) for rewards, _ in episodes}) > 1
    horizon = max(len(rewards) for rewards, _ in episodes)
    weights = []
    for _, ratios in episodes:
        products = list(itertools.accumulate(ratios, lambda a, b: a * b))
        weights.append(products + [products[-1]] * (horizon - len(products)))
    expected, n = 0.0, len(episodes)
    if weighting == "whole_episode":
        returns = [sum(gamma**t * r for t, r in enumerate(rewards)) for rewards, _ in episodes]
        last = [w[-1] for w in weights]
        expected = sum(w * g for w, g in zip(last, returns, strict=True)) / sum(last)
    else:
        for t in range(horizon):
            norm = sum(w[t] for w in weights) if weighting == "self_normalized" else n
            for (rewards, _), w in zip(episodes, weights, strict=True):
                expected += gamma**t * w[t] * (rewards[t] if t < len(rewards) else 0.0) / norm
    found = importance_sampling(log, POLICY, BEHAVIOR, weighting=weighting, gamma=gamma)
    assert found.value == pytest.approx(expected)
    assert found.low < found.value < found.high
    known = np.exp(BEHAVIOR.log_prob(np.empty(0), log.actions.numpy()))
    same = importance_sampling(log, POLICY, known, weighting=weighting, gamma=gamma)
    assert same.value == pytest.approx(found.value)


def test_the_logging_policy_itself_has_the_mean_return(log: DeviceReplayBuffer) -> None:
    found = importance_sampling(log, BEHAVIOR, BEHAVIOR)
    assert found.value == pytest.approx(float(log.returns().mean()))
    assert found.effective_size == pytest.approx(log.size())
    assert found.mean_weight == pytest.approx(1.0)


def test_clipping_bounds_the_weights_and_is_reported(log: DeviceReplayBuffer) -> None:
    loose = importance_sampling(log, POLICY, BEHAVIOR)
    tight = importance_sampling(log, POLICY, BEHAVIOR, clip=1.0)
    assert loose.clipped == 0.0
    assert 0.0 < tight.clipped <= 1.0
    assert tight.effective_size > loose.effective_size


# Of obp 0.4.1, for `Slates("cascade").draw(50, 3)`.
OBP: dict[SlateEstimator, float] = {
    "standard": 1.2651048313877666,
    "independent": 1.5101364437386573,
    "cascade": 1.3896383418383118,
}


@pytest.mark.parametrize("estimator", list(OBP))
def test_slates_are_estimated_as_by_the_open_bandit_pipeline(estimator: SlateEstimator) -> None:
    model = Slates("cascade")
    log = model.draw(50, 3)
    data = (log.observations, log.actions, log.rewards)
    found = slate_value(
        *data, model.evaluated, model.behavior, estimator=estimator, self_normalized=False
    )
    assert found.value == pytest.approx(OBP[estimator], rel=1e-12)


@pytest.mark.parametrize(
    ("reward", "estimator"),
    [
        ("own", "independent"),
        ("cascade", "cascade"),
        pytest.param("own", "cascade", marks=pytest.mark.slow),
        pytest.param("cascade", "standard", marks=pytest.mark.slow),
    ],
)
def test_intervals_of_slates_contain_the_truth_as_often_as_they_say(
    reward: str, estimator: SlateEstimator
) -> None:
    model = Slates(reward)
    truth, covered, answered = model.value(model.evaluated), 0, 0
    for seed in range(100):
        log = model.draw(1000, seed)
        data = (log.observations, log.actions, log.rewards)
        found = slate_value(
            *data,
            model.evaluated,
            model.behavior,
            estimator=estimator,
            self_normalized=False,
            n_bootstrap=300,
        )
        assert found.effective_size >= 30
        answered += found.is_answered
        covered += found.low <= truth <= found.high
    assert 80 <= covered <= 97
    # Right probabilities are refused by chance only: one log in twenty for each distinct weight.
    assert answered >= (85 if estimator == "standard" else 75)


@pytest.fixture(scope="module")
def behavior() -> BehaviorProbabilities:
    torch.manual_seed(0)
    return BehaviorProbabilities(ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY), n_orders=6)


def test_parts_of_an_action_have_probabilities_that_fit_each_other(
    behavior: BehaviorProbabilities,
) -> None:
    state = np.random.default_rng(0).normal(size=(1, OBSERVATION_SIZE)).astype(np.float32)
    states = np.repeat(state, len(ALL_ACTIONS), axis=0)
    whole = np.exp(behavior.log_prob(states, ALL_ACTIONS))
    prefix = np.exp(behavior.prefix_log_prob(states, ALL_ACTIONS))
    slot = np.exp(behavior.slot_log_prob(states, ALL_ACTIONS))
    assert whole.sum() == pytest.approx(1.0, abs=1e-5)
    assert prefix[:, -1].sum() == pytest.approx(1.0, abs=1e-5)
    for i, m in enumerate(NVEC):
        one_of_each = [int(np.argmax(ALL_ACTIONS[:, i] == choice)) for choice in range(m)]
        assert slot[one_of_each, i].sum() == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(prefix[:, 0], slot[:, 0], rtol=1e-5)


def test_observations_are_scaled_as_the_model_was_trained() -> None:
    asm = ActionStructureModel(OBSERVATION_SIZE, NVEC, TINY)
    states = np.full((1, OBSERVATION_SIZE), 4.0, np.float32)
    plain = BehaviorProbabilities(asm).slot_log_prob(states / 2.0, ALL_ACTIONS[:1])
    size = [2.0] * OBSERVATION_SIZE
    params = {"mean": [0.0] * OBSERVATION_SIZE, "std": size, "eps": 0.0}
    asm.observation_scaler = {"type": "standard", "params": params}
    scaled = BehaviorProbabilities(asm).slot_log_prob(states, ALL_ACTIONS[:1])
    np.testing.assert_allclose(scaled, plain, rtol=1e-4)
    with pytest.raises(NvecMismatchError, match=r"features.*got shape \(1, 2\)"):
        BehaviorProbabilities(asm).log_prob(np.zeros((1, 2)), ALL_ACTIONS[:1])


def built(algo_class: Any) -> Any:
    torch.manual_seed(0)
    algo = new_algorithm(algo_class, **tiny_fields(algo_class))
    algo.build_with_dataset(random_buffer())
    return algo


@pytest.mark.parametrize("algo_class", [FactoredBC, AutoregressiveBC])
def test_a_sampled_policy_has_the_probabilities_by_which_it_samples(algo_class: Any) -> None:
    policy = SampledPolicy(built(algo_class))
    state = np.random.default_rng(0).normal(size=(1, OBSERVATION_SIZE)).astype(np.float32)
    states = np.repeat(state, len(ALL_ACTIONS), axis=0)
    whole = policy.log_prob(states, ALL_ACTIONS)
    assert np.exp(whole).sum() == pytest.approx(1.0, abs=1e-5)
    prefix = policy.prefix_log_prob(states, ALL_ACTIONS)
    np.testing.assert_allclose(prefix[:, -1], whole, rtol=1e-5)
    torch.manual_seed(0)
    drawn = policy.sample(np.repeat(state, 20_000, axis=0))
    share = (drawn == ALL_ACTIONS[7]).all(1).mean()
    assert share == pytest.approx(np.exp(whole[7]), abs=0.01)
    if algo_class is AutoregressiveBC:
        with pytest.raises(TypeError, match="'cascade'"):
            policy.slot_log_prob(states, ALL_ACTIONS)
    else:
        each = policy.slot_log_prob(states, ALL_ACTIONS)
        np.testing.assert_allclose(each.sum(1), whole, rtol=1e-5)


def test_probabilities_are_without_dropout() -> None:
    algo = built(SPINBC)
    states = np.random.default_rng(0).normal(size=(len(ALL_ACTIONS), OBSERVATION_SIZE))
    states = states.astype(np.float32)
    algo.predict(states)
    acting = SampledPolicy(algo).log_prob(states, ALL_ACTIONS)
    algo.impl.modules.set_train()  # as a training leaves them
    np.testing.assert_array_equal(SampledPolicy(algo).log_prob(states, ALL_ACTIONS), acting)


@pytest.mark.parametrize("algo_class", [DecQN, SPINIDQL])
def test_an_algorithm_without_probabilities_is_refused(algo_class: Any) -> None:
    with pytest.raises(TypeError, match=r"GreedyPolicy\(algo\)"):
        SampledPolicy(built(algo_class))


def test_a_greedy_policy_is_an_indicator_and_softens(behavior: BehaviorProbabilities) -> None:
    states = np.random.default_rng(0).normal(size=(len(ALL_ACTIONS), OBSERVATION_SIZE))
    states = states.astype(np.float32)

    def predict(observations: NDArray[Any]) -> NDArray[Any]:
        return np.tile([1, 4, 0], (len(observations), 1))

    same = ALL_ACTIONS == [1, 4, 0]
    plain = GreedyPolicy(predict)
    assert np.exp(plain.log_prob(states, ALL_ACTIONS)).tolist() == same.all(1).tolist()
    soft = GreedyPolicy(predict, soften=0.3, behavior=behavior)
    logged = np.exp(behavior.prefix_log_prob(states, ALL_ACTIONS))
    expected = 0.7 * np.stack([same[:, :i].all(1) for i in (1, 2, 3)], axis=1) + 0.3 * logged
    found = np.exp(soft.prefix_log_prob(states, ALL_ACTIONS))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    torch.manual_seed(0)
    kept = (soft.sample(np.repeat(states, 100, axis=0)) == [1, 4, 0]).all(1).mean()
    assert 0.7 < kept < 0.75
    for bad in ({"soften": 1.0, "behavior": behavior}, {"soften": 0.1}):
        with pytest.raises(ValueError, match="soften from 0 up to below 1"):
            GreedyPolicy(predict, **bad)


def test_a_log_that_cannot_answer_says_so(log: DeviceReplayBuffer) -> None:
    def never(observations: NDArray[Any]) -> NDArray[Any]:
        return np.tile([2, 1, 1], (len(observations), 1))

    found = importance_sampling(log, GreedyPolicy(never), BEHAVIOR)
    assert not found.is_answered
    assert np.isnan(found.value)
    assert "The log cannot answer" in str(found)
    assert "count as 0.0 of the evaluated policy's, fewer than 30" in str(found)
    assert "nan" not in str(found)  # there is no number
    assert "13 logged episodes" in str(importance_sampling(log, BEHAVIOR, BEHAVIOR))


def test_wrong_probabilities_of_the_log_are_noticed() -> None:
    rng = np.random.default_rng(0)
    gains = rng.random((500, 1))
    base, fitting, too_large = np.zeros(500), [0.5, 1.5], [1.0, 2.0]
    right = summarize("x", WeightedGains(rng.choice(fitting, (500, 1)), gains, base), True)
    assert right.is_answered
    assert str(right).startswith("Estimated value")
    wrong = summarize("x", WeightedGains(rng.choice(too_large, (500, 1)), gains, base), True)
    assert wrong.effective_size > 400
    assert not wrong.is_answered
    assert "the mean weight is 1.52 +- 0.022 and should be 1" in str(wrong)


def test_a_mean_weight_may_be_off_by_chance_and_by_no_more() -> None:
    """A few percent are much if there are many episodes: intervals cover chance only."""
    gains = np.random.default_rng(0).random((10_000, 1))
    for mean, is_right in ((1.005, True), (1.03, False), (0.97, False)):
        halves = np.repeat([mean - 0.5, mean + 0.5], 5_000)[:, None]  # error of the mean: 0.005
        data = WeightedGains(halves, gains, np.zeros(10_000))
        found = summarize("x", data, True, n_bootstrap=100)
        assert found.mean_weight_error == pytest.approx(0.005)
        assert found.is_answered == is_right
        # Decisions that the log never makes have no weight in it.
        assert ("decides what the log never does" in str(found)) == (mean < 1.0)
        # Clipping explains a mean that is too low, not one that is too high.
        clipped = summarize("x", data, True, n_bootstrap=100, clipped=0.1)
        assert clipped.is_answered == (mean < 1.01)


def test_bootstrap_varies_as_much_as_the_mean_does() -> None:
    gains = np.random.default_rng(0).normal(size=(400, 1))
    data = WeightedGains(np.ones((400, 1)), gains, np.zeros(400))
    drawn = data.bootstrap(False, 2000, seed=1)
    assert drawn.std() == pytest.approx(gains.std() / 20.0, rel=0.1)
    assert np.array_equal(drawn, data.bootstrap(False, 2000, seed=1))


def test_known_probabilities_must_fit_the_log(log: DeviceReplayBuffer) -> None:
    with pytest.raises(InvalidDatasetError, match=r"of shape \(.*got shape \(3,\)"):
        importance_sampling(log, POLICY, np.ones(3))
    with pytest.raises(InvalidDatasetError, match="a smallest of 0"):
        importance_sampling(log, POLICY, np.zeros(log.transition_count))
    for bad in ({"gamma": 0.0}, {"clip": -1.0}, {"level": 1.0}, {"weighting": "none"}):
        with pytest.raises(ValueError, match=f"Expected {next(iter(bad))}"):
            importance_sampling(log, POLICY, BEHAVIOR, **bad)


def test_slates_with_bad_rewards_name_row_and_slot() -> None:
    model = Slates("own")
    log = model.draw(5, 0)
    log.rewards[3, 1] = np.nan
    both = model.evaluated, model.behavior
    with pytest.raises(InvalidDatasetError, match="row 3, slot 1 has nan"):
        slate_value(log.observations, log.actions, log.rewards, *both)
    with pytest.raises(InvalidDatasetError, match=r"one shape \(n, N\)"):
        slate_value(log.observations, log.actions, log.rewards[:, 0], *both)
    with pytest.raises(TypeError, match="slot_log_prob and prefix_log_prob"):
        slate_value(log.observations, log.actions, 0 * log.actions, POLICY, model.behavior)


@pytest.mark.parametrize("estimator", ["standard", "cascade", "independent"])
@pytest.mark.parametrize("choice", [3, -1, 0.5, float("nan")])
def test_slates_with_actions_that_are_no_choices_are_refused(
    estimator: SlateEstimator, choice: float
) -> None:
    asm = ActionStructureModel(3, [2, 3], TransformerConfig(width=8, n_blocks=1, n_heads=2))
    algo = FactoredBC(nvec=[2, 3])
    algo.create_impl((3,), 0)
    states, rewards = np.zeros((4, 3), np.float32), np.ones((4, 2))
    actions = np.array([[0, 1], [1, choice], [0, 2], [1, 0]])
    for who in (BehaviorProbabilities(asm), SampledPolicy(algo)):
        with pytest.raises(InvalidActionSpaceError, match="actions"):
            slate_value(states, actions, rewards, who, who, estimator=estimator)
        lists: Any = [[0, 1]] * 4
        right = slate_value(states, lists, rewards, who, who, estimator=estimator)
        assert right.value == pytest.approx(2.0)


def test_fitted_q_evaluation_takes_a_function(log: DeviceReplayBuffer) -> None:
    seen = []

    def rule(observations: NDArray[Any]) -> NDArray[Any]:
        seen.append(observations)
        return np.stack([(observations[:, i] > 0).astype(int) for i in range(3)], axis=1)

    fqe = MultiDiscreteFQE(rule, MultiDiscreteFQEConfig(batch_size=16), check=False)
    fqe.fit(log, n_steps=2, n_steps_per_epoch=2, show_progress=False)
    assert seen[0].shape == (64, OBSERVATION_SIZE)  # tried first
    assert fqe.predict_value(seen[0], rule(seen[0])).shape == (64,)
    assert np.array_equal(fqe.predict(seen[0]), rule(seen[0]))
    wrong = MultiDiscreteFQE(lambda x: np.zeros((len(x), 2)), MultiDiscreteFQEConfig(batch_size=16))
    with pytest.raises(InvalidActionSpaceError, match=r"integer actions of shape \(64, 3\)"):
        wrong.fit(log, n_steps=1, n_steps_per_epoch=1, show_progress=False)
    with pytest.raises(TypeError, match="a function"):
        fqe.save_policy("policy.pt")


def test_doubly_robust_learns_q_from_other_episodes(
    log: DeviceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[float] = []

    class PerfectQ:
        """Knows nothing but how many steps it was trained on, and gives that as Q."""

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def fit(self, dataset: DeviceReplayBuffer, **kwargs: Any) -> None:
            trained.append(float(dataset.transition_count))

        def predict_value(self, x: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
            return np.full(len(x), trained[-1])

    monkeypatch.setattr(doubly_robust_module, "MultiDiscreteFQE", PerfectQ)
    found = doubly_robust(
        log, BEHAVIOR, BEHAVIOR, n_steps=1, folds=3, self_normalized=False, value_samples=1
    )
    assert sum(trained) == 2 * log.transition_count  # each step is in two of three training sets
    # A constant Q cancels at weight 1 wherever the episode ends; the last V stays if it is cut off.
    starts, terminal = log.episode_starts.tolist(), log.terminals.tolist()
    fold_of = np.random.default_rng(0).permutation(log.size()) % 3
    rest = sum(trained[fold_of[i]] * (1.0 - terminal[end - 1]) for i, end in enumerate(starts[1:]))
    assert found.value == pytest.approx(float(log.returns().mean()) + rest / log.size())


def test_doubly_robust_does_not_touch_the_callers_random_numbers(log: DeviceReplayBuffer) -> None:
    config = MultiDiscreteFQEConfig(batch_size=16)
    torch.manual_seed(5)
    first = doubly_robust(log, POLICY, BEHAVIOR, fqe=config, n_steps=2, value_samples=1)
    number = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == number
    again = doubly_robust(log, POLICY, BEHAVIOR, fqe=config, n_steps=2, value_samples=1)
    assert first == again
    with pytest.raises(ValueError, match="folds of at least 2"):
        doubly_robust(log, POLICY, BEHAVIOR, folds=1)


def test_learned_probabilities_of_slates_are_near_the_true_ones() -> None:
    from tests.measure.log_coverage import behavior_of

    model = Slates("own")
    log = model.draw(4000, 0)
    learned = behavior_of(log, log.observations.shape[1], SLATE_NVEC, 0, 300)
    true = model.behavior.slot_log_prob(log.observations, log.actions)
    found = learned.slot_log_prob(log.observations, log.actions)
    assert np.abs(np.exp(found) - np.exp(true)).mean() < 0.05
