"""What every algorithm must do, run on each of them."""

from __future__ import annotations

import json
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

from spin_d3rlpy import (
    FactoredIQL,
    RePreMConfig,
    RePreMEncoderFactory,
    RePreMIQL,
    RePreMPretrainingConfig,
    SAINTEncoderFactory,
    SPINDistillIQL,
)
from spin_d3rlpy.algos import AWAC
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidObservationError,
    NvecMismatchError,
)
from tests.algos.problems import (
    ALGORITHMS,
    NVEC,
    OBSERVATION_SIZE,
    flat_parameters,
    has_field,
    learning_rates,
    mostly_wrong_replay_buffer,
    optimizers,
    random_buffer,
    random_replay_buffer,
    small_networks,
    tiny_fields,
)

each_algorithm = pytest.mark.parametrize("algo_class", ALGORITHMS)
CRITICS = [a for a in ALGORITHMS if has_field(a, "n_critics")]
each_critic = pytest.mark.parametrize("algo_class", CRITICS)


def fit(algo: Any, dataset: Any, n_steps: int = 4, **kwargs: Any) -> Any:
    kwargs = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, **kwargs}
    return algo.fit(dataset, n_steps=n_steps, **kwargs)


def make(algo_class: Any, **fields: Any) -> Any:
    d3rlpy.seed(1)
    return algo_class(**{"batch_size": 19, **tiny_fields(algo_class), **fields})


def networks(algo: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, network in algo.impl.modules.get_torch_modules().items()
        for key, value in network.state_dict().items()
    }


def assert_same_networks(one: Any, other: Any) -> None:
    first, second = networks(one), networks(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


@each_algorithm
@pytest.mark.parametrize("nvec", [[3, 5, 2], [4], [1000, 2], [3] * 64], ids=len)
def test_acts_within_the_action_space(
    algo_class: Any, nvec: list[int], observations: np.ndarray
) -> None:
    algo = make(algo_class)
    fit(algo, random_buffer(nvec), n_steps=1)
    for actions in (algo.predict(observations), algo.sample_action(observations)):
        assert actions.shape == (11, len(nvec))
        assert np.issubdtype(actions.dtype, np.integer)
        assert ((actions >= 0) & (actions < nvec)).all()
    if algo_class not in CRITICS:
        with pytest.raises(NotImplementedError, match="does not learn values"):
            algo.predict_value(observations, algo.predict(observations))
        return
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
    assert np.array_equal(algo.predict(observations), loaded.predict(observations))
    assert_same_networks(algo, loaded)
    # Optimizers were saved too: both continue alike.
    batch = random_buffer().sample_transition_batch(19)
    for one in (algo, loaded):
        torch.manual_seed(3)
        one.update(batch)
    assert_same_networks(algo, loaded)


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
    assert json.loads(again.config.serialize()) == json.loads(algo.config.serialize())
    assert networks(again).keys() == networks(algo).keys()


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


def test_stock_mini_batches_are_computed_in_the_configured_precision() -> None:
    outcomes = []
    for precision in ("float32", "bfloat16"):
        algo = make(FactoredIQL, precision=precision)
        algo.build_with_dataset(random_buffer())
        np.random.seed(3)  # noqa: NPY002
        outcomes.append(algo.update(random_replay_buffer().sample_transition_batch(19)))
    assert outcomes[0] != outcomes[1]
    assert outcomes[1]["critic_loss"] == pytest.approx(outcomes[0]["critic_loss"], rel=0.05)


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


@each_critic
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
    algo = make(
        algo_class,
        **optimizers(algo_class, d3rlpy.optimizers.SGDFactory()),
        **learning_rates(algo_class, 1e3),
        # With values this far off, any other temperature leaves AWAC's policy without weight.
        **({"lam": 1e9} if issubclass(algo_class, AWAC) else {}),
    )
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
def test_trains_with_dropout_and_acts_without(algo_class: Any, observations: np.ndarray) -> None:
    fields: dict[str, Any] = {}
    if algo_class.__name__.startswith("Factored"):
        encoder = VectorEncoderFactory(hidden_units=[32], dropout_rate=0.5)
        fields["actor_encoder_factory"] = encoder
    algo = make(algo_class, **fields)
    algo.build_with_dataset(random_buffer())
    algo.update(random_buffer().sample_transition_batch(19))
    modules = algo.impl.modules.get_torch_modules().values()
    assert all(module.training for network in modules for module in network.modules())
    assert np.array_equal(algo.predict(observations), algo.predict(observations))
    assert not any(module.training for network in modules for module in network.modules())
    if algo_class.__name__.startswith(("SPIN", "SAINT", "Factored")):
        x = torch.from_numpy(observations)
        policy = algo.impl.policy.train()
        assert not torch.equal(policy(x), policy(x))
        assert torch.equal(policy.eval()(x), policy(x))


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


def learner(algo_class: Any, **fields: Any) -> Any:
    """A small, fast learner for the one-step problem."""
    fields = {"batch_size": 64, "gamma": 0.9, "nvec": [2, 2, 2], **fields}
    if algo_class in CRITICS:
        fields["tau"] = 0.1
    still = TransformerConfig(
        width=32, n_blocks=1, head_hidden=32, dropout=0.0, attention_dropout=0.0
    )
    if algo_class.__name__.startswith("SAINT"):
        fields["actor_encoder_factory"] = SAINTEncoderFactory(still)
    if has_field(algo_class, "action_flexibility"):
        fields["action_flexibility"] = 0.1
    if has_field(algo_class, "alpha"):
        fields["alpha"] = 0.3
    if algo_class.__name__.startswith("SPIN"):
        fields["pretraining"] = PretrainingConfig(
            batch_size=64, max_updates=200, learning_rate=3e-3
        )
        fields["transformer"] = still
    if algo_class is SPINDistillIQL:
        fields["distillation"] = DistillationConfig(n_updates=300, batch_size=64)
        fields["hidden_units"] = [32]
    if algo_class is RePreMIQL:
        fields["sizes"] = RePreMConfig(width=32, n_blocks=1, window=2, head_hidden=32, dropout=0)
        fields["pretraining"] = RePreMPretrainingConfig(max_updates=100)
        fields["actor_encoder_factory"] = RePreMEncoderFactory()
    return make(
        algo_class,
        **{**learning_rates(algo_class, 3e-3), **small_networks(algo_class, 32), **fields},
    )


def share_of_right_actions(algo: Any) -> float:
    states = np.random.default_rng(5).normal(size=(500, 4)).astype(np.float32)
    states[:, 3] = 0.0
    return float((algo.predict(states) == (states[:, :3] > 0)).all(1).mean())


@each_critic
def test_solves_a_problem_that_imitation_does_not(algo_class: Any) -> None:
    algo = learner(algo_class)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=500)
    assert share_of_right_actions(algo) > 0.5  # by chance 0.125


@pytest.mark.parametrize("algo_class", [a for a in ALGORITHMS if a not in CRITICS])
def test_imitation_does_not_solve_that_problem(algo_class: Any) -> None:
    algo = learner(algo_class)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=500)
    assert share_of_right_actions(algo) < 0.05
