"""What the tuned recipe is made of, with every algorithm: off by default, on together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.optimizers import AdamFactory
from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory

from spin_d3rlpy import SPINIDQL, SPINIQL, FactoredBC, FactoredIQL, load_policy, save_policy
from spin_d3rlpy.algos.actor_critic import weights_of_sample_size
from spin_d3rlpy.algos.recipes import RECIPES, Recipe, recipe_fields
from spin_d3rlpy.asm import MLPConfig, PretrainingConfig
from spin_d3rlpy.asm.objectives.masked import MaskedActionModeling
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.policies import SPINJoint
from tests.algos.problems import (
    ALGORITHMS,
    NVEC,
    OBSERVATION_SIZE,
    TINY,
    each_algorithm,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)
from tests.algos.runs import SETTINGS, CrashError, assert_equal, crash_at, fit, outcome, seed
from tests.exported_files import exported_actions

OBSERVATIONS = np.linspace(-2, 2, 5 * OBSERVATION_SIZE, dtype=np.float32).reshape(5, -1)


def tuned(algo_class: Any, **fields: Any) -> Any:
    """An algorithm by the tuned recipe, in small."""
    small = tiny_fields(algo_class)
    given = {k: v for k, v in small.items() if k in ("pretraining", "distillation")}
    if algo_class.__name__.startswith("SPIN") and "Distill" not in algo_class.__name__:
        config = PretrainingConfig(
            masking="any_order", ema_decay=0.9, lr_schedule="linear", batch_size=32, max_updates=5
        )
        given = {"mlp": MLPConfig(width=16), "pretraining": config}
    elif "policy" in small:
        given["policy"] = small["policy"]
    sizes = {"batch_size": 19, "imitation_batch_size": 23, "state_model_updates": 5}
    names = {f.name for f in dataclasses.fields(algo_class.config_class)}
    sizes = {k: v for k, v in sizes.items() if k in names}
    return new_algorithm(algo_class, recipe="tuned", **{**given, **sizes, **fields})


@pytest.mark.parametrize("kind", ["one episode", "constant rewards", "duplicate episodes"])
@pytest.mark.parametrize("algo_class", [SPINIQL, SPINIDQL, FactoredBC])
def test_data_without_better_episodes_are_trained_on_with_one_warning(
    algo_class: Any, kind: str, tmp_path: Path
) -> None:
    episodes = list(random_replay_buffer().episodes)[::2]  # of one length
    if kind != "constant rewards":
        episodes = episodes[:1] * (1 if kind == "one episode" else 4)
    else:
        for episode in episodes:
            episode.rewards[:] = 0.1
    replay = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
    buffer = DeviceReplayBuffer.from_replay_buffer(replay, NVEC)
    algo = tuned(algo_class)
    with pytest.warns(UserWarning, match="cannot be weighted") as warned:
        algo.fit(buffer, **SETTINGS, checkpoint_dir=tmp_path)
    assert len(warned) == 1
    assert algo.predict(OBSERVATIONS).shape == (5, len(NVEC))


@each_algorithm
def test_every_algorithm_trains_by_the_tuned_recipe_and_resumes(
    algo_class: Any, tmp_path: Path
) -> None:
    seed(1)
    algo = tuned(algo_class)
    whole = outcome(algo, fit(algo, tmp_path / "whole"))
    seed(1)
    with pytest.raises(CrashError):
        fit(tuned(algo_class), tmp_path / "crashed", callback=crash_at(7))
    seed(9)
    resumed = tuned(algo_class)
    assert_equal(outcome(resumed, fit(resumed, tmp_path / "crashed")), whole)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert np.array_equal(loaded.predict(OBSERVATIONS), algo.predict(OBSERVATIONS))


@pytest.mark.parametrize("algo_class", ALGORITHMS, ids=lambda c: c.__name__)
def test_the_published_recipe_is_the_default(algo_class: Any) -> None:
    assert algo_class(recipe="published").config == algo_class().config
    assert recipe_fields("tuned", algo_class.config_class)


def test_given_fields_win_over_the_recipe() -> None:
    algo = FactoredIQL(recipe="tuned", batch_size=7, ema_decay=0.0)
    assert algo.config.batch_size == 7
    assert algo.config.ema_decay == 0.0
    assert algo.config.lr_schedule == "linear"


def test_unknown_recipes_and_two_sources_are_refused() -> None:
    with pytest.raises(ValueError, match=f"{', '.join(RECIPES)}; got 'best'"):
        FactoredIQL(recipe="best")
    with pytest.raises(ValueError, match="either config= or recipe='tuned'"):
        FactoredIQL(FactoredIQL.config_class(), recipe="tuned")


@pytest.mark.parametrize("algo_class", ALGORITHMS, ids=lambda c: c.__name__)
def test_changing_an_algorithms_recipe_changes_no_other(algo_class: Any) -> None:
    first = algo_class(recipe="tuned").config
    unchanged = repr(algo_class(recipe="tuned").config)
    policy: Any = getattr(first, "policy", None)
    if hasattr(policy, "pretraining"):
        policy.pretraining.max_updates = 7
    if hasattr(policy, "sizes"):
        policy.sizes.n_layers = 9
    first.imitation_weights.temperature = 3.0
    assert repr(algo_class(recipe="tuned").config) == unchanged


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_name_in_a_recipe_is_a_field_of_an_algorithm(recipe: Recipe) -> None:
    configs = [algo_class().config for algo_class in ALGORITHMS]
    known: set[str] = set()
    of_policies: set[str] = set()
    for config in configs:
        known |= vars(config).keys()
        of_policies |= vars(config.policy).keys() if hasattr(config, "policy") else set()
    for config in configs:
        kind = config.policy.get_type() if hasattr(config, "policy") else ""
        assert recipe.objective(kind, type(config)).keys() <= known
        assert recipe.policy(kind, type(config)).keys() <= of_policies


@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_the_algorithms_precision_is_that_of_its_stages(
    wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []

    def train(asm: Any, source: Any, config: PretrainingConfig, *_: Any) -> list[Any]:
        used.append(config.precision)
        return []

    monkeypatch.setattr("spin_d3rlpy.policies.stages.pretrain", train)
    algo = new_algorithm(SPINIQL, precision=wanted, **tiny_fields(SPINIQL))
    algo.pretrain(random_buffer(), show_progress=False, logger_adapter=NoopAdapterFactory())
    own = new_algorithm(SPINIQL, precision="float32", **tiny_fields(SPINIQL))
    policy = own.config.policy
    policy.pretraining = dataclasses.replace(policy.pretraining, precision="auto")
    own.pretrain(random_buffer(), show_progress=False, logger_adapter=NoopAdapterFactory())
    assert used == [wanted, "auto"]


def test_two_schedules_are_refused() -> None:
    optimizer = AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=10))
    algo = FactoredBC(lr_schedule="linear", actor_optim_factory=optimizer)
    with pytest.raises(ValueError, match=r"lr_scheduler_factory.*lr_schedule='linear'"):
        fit(algo, None, resume=False)


def test_the_average_acts_is_saved_and_exported(tmp_path: Path) -> None:
    seed(0)
    algo = FactoredBC(batch_size=16, ema_decay=0.9, actor_learning_rate=0.05)
    fit(algo, None, resume=False)
    impl: Any = algo.impl
    trained, average = impl.policy, impl.acting_policy
    inputs = torch.from_numpy(OBSERVATIONS)
    impl.modules.set_eval()
    assert not torch.equal(trained(inputs), average(inputs))
    assert np.array_equal(algo.predict(OBSERVATIONS), average.greedy(inputs).numpy())
    algo.save_policy(path := str(tmp_path / "policy.onnx"))
    actions = exported_actions(path, observations=OBSERVATIONS)
    assert np.array_equal(actions, algo.predict(OBSERVATIONS))


def test_a_pretrained_policy_acts_so_before_its_first_step() -> None:
    seed(0)
    algo = tuned(SPINIQL)
    buffer = random_buffer()
    algo.pretrain(buffer, show_progress=False)
    asm = algo.asm
    assert asm is not None
    hidden = torch.tensor(NVEC).expand(len(OBSERVATIONS), -1)
    inputs = algo.config.observation_scaler.transform(torch.from_numpy(OBSERVATIONS))
    expected = asm.slot_layout.argmax(asm(inputs, hidden))
    assert np.array_equal(algo.predict(OBSERVATIONS), expected.numpy())


def test_critics_start_with_returns_to_the_end() -> None:
    algo = FactoredIQL(batch_size=8, monte_carlo_share=0.5)
    buffer = random_buffer()
    algo.build_with_dataset(buffer)
    source = algo.batch_source_at(algo.batch_source(buffer), 0.4)
    assert source.sample_transition_batch(64).intervals.max() > 1
    assert algo.batch_source_at(source, 0.6).sample_transition_batch(64).intervals.max() == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_weights_have_the_sample_size_that_is_asked_for(share: float, scale: float) -> None:
    torch.manual_seed(0)
    advantage = scale * torch.randn(512)
    weights = weights_of_sample_size(advantage, share)
    assert weights.mean() == pytest.approx(1.0, abs=1e-4)
    size = weights.sum().square() / (len(weights) * weights.square().sum())
    assert size == pytest.approx(share, abs=0.02)
    order = advantage.argsort()
    assert (weights[order].diff() >= 0).all()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_sample_size_that_no_weights_have_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="weight_ess in"):
        FactoredIQL(weight_ess=share)


def test_policies_learn_from_their_own_batch() -> None:
    """Only the best trajectory is imitated, while critics see all."""
    buffer = random_buffer()
    best = int(buffer.returns().argmax())
    first, last = buffer.episode_starts[best : best + 2].tolist()
    weights = TrajectoryWeights(temperature=1e-3, min_episodes=1.0)
    algo = FactoredIQL(batch_size=16, imitation_batch_size=33, trajectory_weights=weights)
    algo.build_with_dataset(buffer)
    seen: list[Any] = []
    impl: Any = algo.impl
    original = impl.log_prob

    def log_prob(batch: Any) -> torch.Tensor:
        seen.append(batch)
        result: torch.Tensor = original(batch)
        return result

    impl.log_prob = log_prob
    algo.fit(buffer, n_steps=2, show_progress=False, logger_adapter=NoopAdapterFactory())
    rows = buffer.observation_index[first:last]
    for batch in seen:
        assert len(batch.actions) == 33
        assert np.isin(batch.rows.numpy(), rows.numpy()).all()


def test_structure_models_learn_from_all_trajectories_before_the_best() -> None:
    """Every other step of the pre-training sees the best trajectory alone."""
    buffer = random_buffer()
    best = int(buffer.returns().argmax())
    rows_of_best = buffer.observation_index[slice(*buffer.episode_starts[best : best + 2])]
    known = {tuple(x.tolist()) for x in buffer.observations_at(rows_of_best)}
    weights = TrajectoryWeights(temperature=1e-3, min_episodes=1.0)
    config = PretrainingConfig(batch_size=64, max_updates=4, unweighted_share=0.5)
    policy = SPINJoint(transformer=TINY, pretraining=config)
    algo = SPINIDQL(policy=policy, trajectory_weights=weights)
    are_of_best = []
    gradients = MaskedActionModeling.add_gradients

    def add_gradients(self: Any, observations: torch.Tensor, *others: Any) -> Any:
        are_of_best.append({tuple(x.tolist()) for x in observations} <= known)
        return gradients(self, observations, *others)

    with mock.patch.object(MaskedActionModeling, "add_gradients", add_gradients):
        algo.fit(buffer, n_steps=1, show_progress=False, logger_adapter=NoopAdapterFactory())
    assert are_of_best == [False, False, True, True]
