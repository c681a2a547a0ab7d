"""What every algorithm must do, run on each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.metrics import InitialStateValueEstimationEvaluator, TDErrorEvaluator
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.preprocessing import MultiplyRewardScaler, StandardObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy import SAINTIQL, SPINIQL, DecQN, FactoredIQL, SPINEncoderFactory
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidObservationError,
    NvecMismatchError,
)
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    flat_parameters,
    mostly_wrong_replay_buffer,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)

ALGORITHMS = [SPINIQL, SAINTIQL, FactoredIQL, DecQN]
ACTOR_ALGORITHMS = [SPINIQL, SAINTIQL, FactoredIQL]
each_algorithm = pytest.mark.parametrize("algo_class", ALGORITHMS)


def fit(algo: Any, dataset: Any, n_steps: int = 4, **kwargs: Any) -> Any:
    kwargs = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, **kwargs}
    return algo.fit(dataset, n_steps=n_steps, **kwargs)


def make(algo_class: Any, **fields: Any) -> Any:
    d3rlpy.seed(1)
    return algo_class(**{"batch_size": 19, **tiny_fields(algo_class), **fields})


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


@each_algorithm
@pytest.mark.parametrize("nvec", [[3, 5, 2], [4], [2, 2, 2, 2, 2], [31, 2]])
def test_acts_within_the_action_space(
    algo_class: Any, nvec: list[int], observations: np.ndarray
) -> None:
    algo = make(algo_class)
    fit(algo, random_buffer(nvec))
    for actions in (algo.predict(observations), algo.sample_action(observations)):
        assert actions.shape == (11, len(nvec))
        assert np.issubdtype(actions.dtype, np.integer)
        assert ((actions >= 0) & (actions < nvec)).all()
    values = algo.predict_value(observations, algo.predict(observations))
    assert values.shape == (11,)
    assert np.isfinite(values).all()


@each_algorithm
def test_trains_exactly_the_steps_asked_for(algo_class: Any) -> None:
    algo = make(algo_class)
    seen: list[int] = []
    results = fit(
        algo,
        random_buffer(),
        n_steps=7,
        n_steps_per_epoch=3,
        callback=lambda _a, _e, step: seen.append(step),
    )
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert algo.grad_step == 7
    assert [epoch for epoch, _ in results] == [1, 2, 3]


def test_fewer_steps_than_an_epoch_are_all_trained() -> None:
    algo = make(FactoredIQL)
    results = fit(algo, random_buffer(), n_steps=5)  # d3rlpy's loop trains nothing here
    assert algo.grad_step == 5
    assert len(results) == 1
    assert "critic_loss" in results[0][1]


@pytest.mark.parametrize("n_steps", [0, -3])
def test_step_counts_below_one_are_refused(n_steps: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        fit(make(FactoredIQL), random_buffer(), n_steps=n_steps)


@each_algorithm
def test_two_seeded_runs_agree_exactly(algo_class: Any, observations: np.ndarray) -> None:
    outcomes = []
    for _ in range(2):
        algo = make(algo_class)
        metrics = fit(algo, random_buffer())[-1][1]
        losses = {k: v for k, v in metrics.items() if not k.startswith("time")}
        outcomes.append((losses, algo.predict(observations), algo.sample_action(observations)))
    assert outcomes[0][0] == outcomes[1][0]
    assert np.array_equal(outcomes[0][1], outcomes[1][1])
    assert np.array_equal(outcomes[0][2], outcomes[1][2])


@each_algorithm
def test_saved_and_loaded_algorithm_acts_the_same(
    algo_class: Any, observations: np.ndarray, tmp_path: Path
) -> None:
    algo = make(algo_class, observation_scaler=StandardObservationScaler())
    fit(algo, random_buffer())
    algo.save(str(tmp_path / "algo.d3"))
    loaded: Any = d3rlpy.load_learnable(str(tmp_path / "algo.d3"))
    assert type(loaded) is algo_class
    assert loaded.config.nvec == NVEC
    actions = algo.predict(observations)
    assert np.array_equal(actions, loaded.predict(observations))
    assert np.array_equal(
        algo.predict_value(observations, actions), loaded.predict_value(observations, actions)
    )
    # Optimizers were saved too: both continue alike.
    batch = random_buffer().sample_transition_batch(19)
    for one in (algo, loaded):
        torch.manual_seed(3)
        one.update(batch)
    assert np.array_equal(
        algo.predict_value(observations, actions), loaded.predict_value(observations, actions)
    )


@each_algorithm
def test_from_json_rebuilds_the_algorithm(algo_class: Any, tmp_path: Path) -> None:
    algo = make(algo_class)
    fit(
        algo,
        random_buffer(),
        logger_adapter=d3rlpy.logging.FileAdapterFactory(str(tmp_path)),
        experiment_name="run",
        with_timestamp=False,
    )
    again = algo_class.from_json(str(tmp_path / "run" / "params.json"))
    assert again.config == algo.config
    assert (
        flat_parameters(again.impl.q_function).keys()
        == flat_parameters(algo.impl.q_function).keys()
    )


@each_algorithm
def test_stock_mini_batches_and_device_batches_update_alike(algo_class: Any) -> None:
    stock = random_replay_buffer()
    algo = make(algo_class, nvec=NVEC)
    algo.build_with_dataset(random_buffer())
    metrics = algo.update(stock.sample_transition_batch(19))
    assert all(np.isfinite(v) for v in metrics.values())
    assert algo.grad_step == 1
    metrics = algo.update(random_buffer().sample_transition_batch(19))
    assert all(isinstance(v, float) for v in metrics.values())


@each_algorithm
def test_scalers_apply_to_stock_and_device_batches_alike(algo_class: Any) -> None:
    stock = random_replay_buffer().sample_transition_batch(19)
    device = TorchMiniBatch.from_batch(
        stock, gamma=0.99, compute_returns_to_go=False, device="cpu:0"
    )
    outcomes = []
    for batch in (stock, device):
        algo = make(
            algo_class,
            observation_scaler=StandardObservationScaler(),
            reward_scaler=MultiplyRewardScaler(7.0),
        )
        algo.build_with_dataset(random_buffer())
        torch.manual_seed(3)
        outcomes.append(algo.update(batch))
    assert outcomes[0] == outcomes[1]
    plain = make(algo_class)
    plain.build_with_dataset(random_buffer())
    torch.manual_seed(3)
    assert plain.update(device) != outcomes[0]


@each_algorithm
def test_stock_replay_buffer_needs_no_conversion(algo_class: Any) -> None:
    algo = make(algo_class, nvec=NVEC)
    fit(algo, random_replay_buffer())
    assert algo.grad_step == 4


@each_algorithm
def test_stock_evaluators_run_in_fit(algo_class: Any) -> None:
    evaluators = {
        "td_error": TDErrorEvaluator(),
        "initial_value": InitialStateValueEstimationEvaluator(),
    }
    metrics = fit(make(algo_class), random_buffer(), evaluators=evaluators)[-1][1]
    assert np.isfinite(metrics["td_error"])
    assert np.isfinite(metrics["initial_value"])


@each_algorithm
def test_one_huge_step_moves_every_trainable_parameter(algo_class: Any) -> None:
    sgd = d3rlpy.optimizers.SGDFactory()
    optims = (
        {"optim_factory": sgd, "learning_rate": 1e3}
        if algo_class is DecQN
        else {
            "actor_optim_factory": sgd,
            "critic_optim_factory": sgd,
            "actor_learning_rate": 1e3,
            "critic_learning_rate": 1e3,
        }
    )
    algo = make(algo_class, **optims)
    algo.build_with_dataset(random_buffer())
    networks = algo.impl.modules.get_torch_modules()
    before = {name: flat_parameters(net) for name, net in networks.items()}
    algo.update(random_buffer().sample_transition_batch(64))
    for name, net in networks.items():
        for key, parameter in net.named_parameters():
            moved = not torch.equal(before[name][key], parameter)
            # The bias of attention's keys shifts all scores of a query alike: no gradient, but
            # the same tensor holds the values' bias.
            assert moved == parameter.requires_grad or name.startswith("targ"), f"{name}.{key}"


@each_algorithm
def test_another_action_space_is_refused(algo_class: Any) -> None:
    algo = make(algo_class, nvec=[3, 5, 4])
    with pytest.raises(NvecMismatchError, match=r"\[3, 5, 4\].*\[3, 5, 2\]"):
        fit(algo, random_buffer())


def test_unknown_action_space_is_an_error() -> None:
    with pytest.raises(InvalidActionSpaceError, match="nvec="):
        make(FactoredIQL).create_impl((OBSERVATION_SIZE,), 5)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: np.where(np.arange(7) == 4, np.nan, x), "Row 0.*not finite"),
        (lambda x: x[:, :-1], r"shape \(B, 7\), got shape \(11, 6\)"),
        (lambda x: x[0], r"got shape \(7,\)"),
    ],
)
def test_bad_observations_are_refused(spoil: Any, message: str, observations: np.ndarray) -> None:
    algo = make(FactoredIQL)
    algo.build_with_dataset(random_buffer())
    for method in (algo.predict, algo.sample_action):
        with pytest.raises(InvalidObservationError, match=message):
            method(spoil(observations))


@pytest.mark.parametrize("action", [[3, 0, 0], [-1, 0, 0], [0.5, 0, 0], [0, 0]])
def test_values_of_impossible_actions_are_refused(
    action: list[float], observations: np.ndarray
) -> None:
    algo = make(FactoredIQL)
    algo.build_with_dataset(random_buffer())
    with pytest.raises(InvalidActionSpaceError, match="below"):
        algo.predict_value(observations, np.array([action] * 11))


def test_ddp_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ValueError, match="enable_ddp"):
        FactoredIQL(enable_ddp=True)


def learner(algo_class: Any, **fields: Any) -> Any:
    """A small, fast learner for the one-step problem."""
    small = VectorEncoderFactory(hidden_units=[32])
    fields = {"batch_size": 64, "gamma": 0.0, "nvec": [2, 2, 2], "tau": 0.1, **fields}
    if algo_class is DecQN:
        return make(algo_class, **fields, learning_rate=3e-3, encoder_factory=small)
    if algo_class is SPINIQL:
        fields["pretraining"] = PretrainingConfig(
            batch_size=64, max_updates=200, learning_rate=3e-3
        )
        fields["actor_encoder_factory"] = SPINEncoderFactory(
            transformer=TransformerConfig(width=32, n_blocks=1, head_hidden=32),
            frozen_dropout=False,
        )
    return make(
        algo_class,
        **fields,
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        critic_encoder_factory=small,
        value_encoder_factory=small,
    )


def share_of_right_actions(algo: Any) -> float:
    states = np.random.default_rng(5).normal(size=(500, 3)).astype(np.float32)
    return float((algo.predict(states) == (states > 0)).all(1).mean())


@each_algorithm
def test_solves_a_problem_that_imitation_does_not(algo_class: Any) -> None:
    algo = learner(algo_class)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=400)
    assert share_of_right_actions(algo) > 0.75


def test_imitation_does_not_solve_that_problem() -> None:
    # With equal weights IQL's policy loss is behavior cloning.
    algo = learner(FactoredIQL, weight_temp=0.0)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=400)
    assert share_of_right_actions(algo) < 0.1
