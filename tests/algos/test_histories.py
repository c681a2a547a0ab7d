"""Algorithms whose states are histories: acting keeps them, and everything works with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler

from spin_d3rlpy import (
    SPINBC,
    SPINIDQL,
    SPINIQL,
    FactoredBC,
    FactoredBCQ,
    FactoredIQL,
    LockstepEvaluator,
    MultiDiscreteActionMatchEvaluator,
    MultiDiscreteFQE,
    load_policy,
    relabel,
    save_policy,
)
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.errors import InvalidCheckpointError, InvalidDatasetError, InvalidObservationError
from spin_d3rlpy.evaluation.doubly_robust import doubly_robust
from spin_d3rlpy.evaluation.importance import importance_sampling
from spin_d3rlpy.evaluation.probabilities import BehaviorProbabilities, GreedyPolicy
from spin_d3rlpy.policies.feature_cache import CachedFeatures
from spin_envs import ActionLayout
from tests.algos.problems import new_algorithm, random_buffer, tiny_fields
from tests.algos.runs import CrashError, assert_equal, crash_at, fit, make, outcome, seed
from tests.algos.test_masked_acting import masked_buffer
from tests.algos.test_state_rules import NVEC as ZONES
from tests.algos.test_state_rules import log as log_of_zones
from tests.algos.zones import count_broken, neighbors_apart
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
HISTORY: dict[str, Any] = {"history": 3, "history_actions": True}


def fitted(algo_class: Any, buffer: Any = None, **fields: Any) -> Any:
    torch.manual_seed(0)
    scaler = StandardObservationScaler()
    given = {**tiny_fields(algo_class), "observation_scaler": scaler, **HISTORY, **fields}
    algo = new_algorithm(algo_class, **given)
    algo.fit(random_buffer() if buffer is None else buffer, n_steps=3, **QUIET)
    return algo


def play(algo: Any, buffer: DeviceReplayBuffer, episode: int, **options: Any) -> Any:
    """Actions in an episode's observations, shown one by one."""
    start, end = buffer.episode_starts[episode : episode + 2].tolist()
    seen = buffer.observations[start + episode : end + episode].numpy()
    algo.reset()
    return np.stack([algo.act(observation, **options) for observation in seen])


@pytest.mark.parametrize("algo_class", [SPINIQL, SPINIDQL, FactoredBCQ])
def test_acting_keeps_the_history_by_itself(algo_class: Any, tmp_path: Path) -> None:
    algo, buffer = fitted(algo_class, history_actions=False), random_buffer()
    save_policy(algo, path := tmp_path / "policy.safetensors")
    policy = load_policy(path)
    states = buffer.with_history(3)
    for episode in (0, 1):
        rows = states.episodes[episode].observations
        expected = algo.predict(rows)
        assert np.array_equal(play(policy, buffer, episode), expected)
        assert np.array_equal(policy.predict(rows), expected)
    assert policy.impl.observation_shape == (3 * 7 + 2,)


def test_a_file_whose_history_does_not_fit_is_damaged(tmp_path: Path) -> None:
    save_policy(fitted(FactoredBC), path := tmp_path / "policy.safetensors")
    content = path.read_bytes()
    old = b'\\"history\\": 3'
    assert old in content
    for digit in b"49":
        path.write_bytes(content.replace(old, old[:-1] + bytes([digit])))
        with pytest.raises(InvalidCheckpointError, match=r"rows of|of another length|shape"):
            load_policy(path)


def test_own_actions_are_part_of_it() -> None:
    algo, buffer = fitted(FactoredIQL), random_buffer()
    actions = play(algo, buffer, 0)
    own = buffer.actions.clone()
    own[: len(actions)] = torch.from_numpy(actions)
    rows = buffer.with_actions(own).with_history(3, actions=True).episodes[0].observations
    assert np.array_equal(algo.predict(rows), actions)
    logged = buffer.with_history(3, actions=True).episodes[0].observations
    assert not np.array_equal(rows, logged)


class Counting(gymnasium.Env[Any, Any]):
    """Says its number in every observation, and ends after so many steps."""

    made = 0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (7,))
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 5, 2])

    def _see(self) -> Any:
        return np.array([self.number, self.steps, 0, 0, 0, 0, 0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.steps = int(seed or 0), 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._see(), 0.0, False, self.steps == 3 + self.number % 2, {}


def test_an_evaluator_keeps_one_history_per_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = fitted(FactoredBC)
    evaluator = LockstepEvaluator(Counting(), n_trials=3, seed=10)
    asked: list[Any] = []
    chosen: list[Any] = []
    original = algo.predict

    def predict(x: Any) -> Any:
        asked.append(x)
        chosen.append(original(x))
        return chosen[-1]

    monkeypatch.setattr(algo, "predict", predict)
    for _ in range(2):  # the second evaluation knows nothing of the first one
        asked.clear()
        chosen.clear()
        evaluator(algo)
        assert [len(rows) for rows in asked] == [3, 3, 3, 1]  # two episodes end earlier
        for step, rows in enumerate(asked):
            numbers = rows[:, [0, 7, 14]]
            assert (numbers == numbers[:, :1]).all()
            steps = rows[:, [1, 8, 15]]
            assert (steps == np.maximum(np.arange(step - 2, step + 1), 0)).all()
            assert (rows[:, -2:] == (np.arange(step - 2, step) < 0)).all()
            for place, before in ((21, step - 2), (31, step - 1)):
                made = rows[:, place : place + 10]
                assert made.sum() == (0 if before < 0 else 3 * len(rows))
                if before == step - 1 >= 0 and len(chosen[before]) == len(rows):
                    first = np.array([0, 3, 8])
                    assert (np.take_along_axis(made, first + chosen[before], 1) == 1).all()


@pytest.mark.parametrize("has_scaler", [False, True])
@pytest.mark.parametrize("algo_class", [SPINIDQL, FactoredBCQ])
def test_rules_see_the_newest_observation_and_masks_hold(algo_class: Any, has_scaler: bool) -> None:
    buffer = log_of_zones()
    scaler = StandardObservationScaler() if has_scaler else None
    algo = fitted(algo_class, buffer, rules=[neighbors_apart], observation_scaler=scaler)
    states = buffer.with_history(3, actions=True)
    rows, newest = states.states[:].numpy(), buffer.observations.numpy()
    for chosen in (algo.predict(rows), algo.sample_action(rows)):
        assert count_broken(newest, chosen) == 0
    fqe = MultiDiscreteFQE(algo, check=False)
    fqe.fit(buffer, n_steps=5, **QUIET)
    known: Any = fqe.impl
    known = known._known.numpy()
    seen = known[:, 0] >= 0
    assert seen.sum() > 50
    assert count_broken(newest[seen], known[seen]) == 0
    mask = np.ones((3, 6), bool)
    mask[0, :2] = False
    played = play(algo, buffer, 0, extra=mask)
    assert count_broken(newest[: len(played)], played) == 0
    assert (played[:, 0] >= 2).all()
    both = play(fitted(algo_class, buffer), buffer, 0, extra=[neighbors_apart, all_different(6)])
    assert all(len(set(action)) == 3 for action in both.tolist())
    assert list(ZONES) == [6, 5, 6]


def test_masks_of_a_dataset_go_with_a_history() -> None:
    buffer = masked_buffer()
    algo = fitted(FactoredBCQ, buffer)
    rows = buffer.observation_index
    masks: Any = buffer.masks_at(rows)
    states = buffer.with_history(3, actions=True).observations_at(rows).numpy()
    chosen = algo.predict_masked(states, masks.numpy())
    assert masks.numpy()[np.arange(len(rows))[:, None], np.arange(3), chosen].all()
    taught = relabel(buffer, algo)
    assert np.array_equal(taught.actions, chosen)
    assert taught.history is None
    assert fitted(FactoredBC, taught, history=1, history_actions=False).config.history == 1


@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_files_take_rows_as_input(extension: str, tmp_path: Path) -> None:
    algo = fitted(SPINIQL)
    rows = random_buffer().with_history(3, actions=True).states[:20].numpy()
    algo.save_policy(path := str(tmp_path / f"policy.{extension}"))
    assert np.array_equal(exported_actions(path, observations=rows), algo.predict(rows))


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    seed(1)
    whole = make(SPINIQL, **HISTORY)
    expected = outcome(whole, fit(whole, None))
    seed(1)
    with pytest.raises(CrashError):
        fit(make(SPINIQL, **HISTORY), tmp_path, callback=crash_at(5))
    seed(99)
    again = make(SPINIQL, **HISTORY)
    assert_equal(expected, outcome(again, fit(again, tmp_path)))


def test_cached_features_are_those_of_rows() -> None:
    fields: dict[str, Any] = {"cache_features": True, "train_queries": False}
    algo = fitted(SPINIQL, **fields)
    assert algo.caches_features
    buffer = algo._as_buffer(random_buffer())
    source = algo.batch_source_at(buffer, 0.0)
    assert isinstance(source, CachedFeatures)
    rows = torch.arange(0, 200, 7)
    inputs = algo.network_input(buffer.observations_at(rows).numpy())
    expected = algo.policy.fixed_features.eval()(inputs)
    assert torch.allclose(source.features[rows].float(), expected, atol=0.02)  # kept in 16 bits


def test_estimates_and_evaluators_see_what_the_policy_sees() -> None:
    buffer = random_buffer()
    log = buffer.with_history(3, actions=True)
    pretraining = PretrainingConfig(masking="any_order", batch_size=32, max_updates=5)
    model = fitted(SPINBC, pretraining=pretraining).asm
    algo = fitted(FactoredBC)
    behavior = BehaviorProbabilities(model)
    policy = GreedyPolicy(algo, 0.5, behavior)
    assert np.isfinite(importance_sampling(log, policy, behavior).value)
    estimate = doubly_robust(log, policy, behavior, n_steps=3, show_progress=False)
    assert np.isfinite(estimate.value)
    share = MultiDiscreteActionMatchEvaluator("slot")(algo, log)
    matched = [algo.predict(e.observations) == e.actions for e in log.episodes]
    assert share == pytest.approx(np.concatenate(matched).mean())
    assert MultiDiscreteActionMatchEvaluator("slot", buffer.episodes)(algo, log) == share
    metrics = algo.fit(
        buffer, n_steps=1, evaluators={"match": MultiDiscreteActionMatchEvaluator()}, **QUIET
    )
    assert 0.0 <= metrics[-1][1]["match"] <= 1.0


def test_a_dataset_brings_its_history() -> None:
    algo = new_algorithm(FactoredBC, **tiny_fields(FactoredBC))
    algo.build_with_dataset(random_buffer().with_history(4))
    assert (algo.config.history, algo.config.history_actions) == (4, False)
    with pytest.raises(InvalidDatasetError, match="has a history already, of 2"):
        algo.fit(random_buffer().with_history(2), n_steps=1, **QUIET)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"history": 18, "history_actions": False}, InvalidDatasetError, "longest episode's"),
        ({"history": 0, "history_actions": False}, ValueError, r"history in \[1, "),
        ({"history": 1}, ValueError, "history_actions.*False without a history"),
        ({"layout": "features"}, ValueError, r"history=1, or layout=ActionLayout\(\)"),
    ],
)
def test_what_cannot_be_is_refused_before_training(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    if "layout" in fields:
        columns = ((0,), (1,), (2,))
        fields = {"layout": ActionLayout(slot_columns=columns, shared_choices=True)}
        buffer = random_buffer([4, 4, 4])
    else:
        buffer = random_buffer()
    with pytest.raises(error, match=message):
        fitted(SPINIQL, buffer, **fields)


def test_what_fails_is_not_remembered() -> None:
    algo, buffer = fitted(FactoredIQL), random_buffer()
    expected = play(algo, buffer, 0)
    algo.reset()
    for step, observation in enumerate(buffer.observations[: len(expected)].numpy()):
        for wrong in (observation[:3], observation * np.nan):
            with pytest.raises(InvalidObservationError):
                algo.act(wrong)
        with pytest.raises(ValueError, match="Expected a bool mask"):
            algo.act(observation, np.ones(3))
        assert np.array_equal(algo.act(observation), expected[step])


def test_an_evaluation_of_a_policy_with_another_history_is_refused() -> None:
    algo = fitted(FactoredBC, history=1, history_actions=False)
    with pytest.raises(InvalidDatasetError, match="has a history already"):
        MultiDiscreteFQE(algo).fit(random_buffer().with_history(3), n_steps=1, **QUIET)


def test_rows_of_another_length_are_refused_with_advice() -> None:
    algo = fitted(FactoredBC)
    with pytest.raises(InvalidObservationError, match=r"\(B, 43\).*act\(observation\) keeps them"):
        algo.predict(np.zeros((2, 7), np.float32))
    with pytest.raises(ValueError, match="single observations"):
        algo.predict_table([])
