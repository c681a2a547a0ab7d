"""What every algorithm must do (`tests.algos.conformance`), run on each of them, and more."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy import (
    SAINT,
    SAINTAWAC,
    SPINIDQL,
    SPINIQL,
    AutoregressiveBCQ,
    BraVE,
    DecQNBCQ,
    DecQNConfig,
    FactoredBC,
    FactoredIQL,
    RePreM,
    RePreMConfig,
    RePreMIQL,
    RePreMPretrainingConfig,
    SPINDistillIQL,
)
from spin_d3rlpy.asm import MLPConfig, PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    InvalidObservationError,
)
from spin_d3rlpy.runs.settings import split_fields
from tests.algos.conformance import CHECKS, Case, acts_within_the_action_space, check_algo
from tests.algos.problems import (
    ALGORITHMS,
    OBSERVATION_SIZE,
    SignEnv,
    each_algorithm,
    has_field,
    learning_rates,
    mostly_wrong_replay_buffer,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    small_networks,
    tiny_fields,
)

CRITICS = [a for a in ALGORITHMS if has_field(a, "n_critics")]
# Learning to the end: every objective.
LEARNERS = {
    *("SPINIQL", "FactoredBCQ", "FactoredAWAC", "FactoredIDQL"),
    *("DecQN", "DecQNCQL", "DecQNBCQ", "DecQNIQL", "DecQNOneStep"),
}
QUICK_LEARNERS = {"SPINIQL", "FactoredIDQL", "DecQN", "DecQNIQL"}


def fit(algo: Any, dataset: Any, n_steps: int = 4, **kwargs: Any) -> Any:
    kwargs = {"logger_adapter": NoopAdapterFactory(), "show_progress": False, **kwargs}
    return algo.fit(dataset, n_steps=n_steps, **kwargs)


def make(algo_class: Any, **fields: Any) -> Any:
    d3rlpy.seed(1)
    return new_algorithm(algo_class, **{"batch_size": 19, **tiny_fields(algo_class), **fields})


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(11, OBSERVATION_SIZE)).astype(np.float32)


def case(algo_class: Any, folder: Path, nvec: list[int] | None = None, **changes: Any) -> Case:
    def make_config(**fields: Any) -> Any:
        given = {**tiny_fields(algo_class), **changes, **fields}
        return algo_class.config_class(**split_fields(algo_class, given))

    return Case(make_config, random_buffer(nvec), SignEnv, folder)


@each_algorithm
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(check: Any, algo_class: Any, tmp_path: Path) -> None:
    check(case(algo_class, tmp_path))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_with_a_structure_model_without_attention(check: Any, tmp_path: Path) -> None:
    check(case(SPINIQL, tmp_path, architecture="mlp", mlp=MLPConfig(width=13), head_init="asm"))


@pytest.mark.parametrize(
    "algo_class",
    [
        # One of each kind of policy and of acting.
        *(SPINIQL, SPINIDQL, AutoregressiveBCQ, DecQNBCQ),
        *(
            pytest.param(a, marks=pytest.mark.slow)
            for a in (FactoredBC, SPINDistillIQL, RePreMIQL, BraVE, SAINTAWAC)
        ),
    ],
    ids=lambda a: a.__name__,
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_with_a_history(check: Any, algo_class: Any, tmp_path: Path) -> None:
    plain = case(algo_class, tmp_path, history=3, history_actions=True)
    check(dataclasses.replace(plain, dataset=plain.dataset.with_history(3, actions=True)))


@each_algorithm
@pytest.mark.parametrize("nvec", [[4], [1000, 2], [3] * 64], ids=len)
def test_acts_within_other_action_spaces(algo_class: Any, nvec: list[int], tmp_path: Path) -> None:
    acts_within_the_action_space(case(algo_class, tmp_path, nvec))


def test_all_checks_run_on_a_contributors_algorithm() -> None:
    small = VectorEncoderFactory(hidden_units=[5])
    check_algo(partial(DecQNConfig, encoder_factory=small), random_buffer(), SignEnv)
    spoiled = random_buffer()
    spoiled.nvec[0] += 1  # the environment's first slot has fewer choices
    with pytest.raises(AssertionError):
        check_algo(partial(DecQNConfig, encoder_factory=small), spoiled, SignEnv)


@pytest.mark.parametrize(
    "algo_class",
    [
        a
        for a in ALGORITHMS
        # A structure model that acts by itself is never trained here.
        if a.__name__.startswith(("SPIN", "SAINT", "Factored")) and a is not SPINIDQL
    ],
)
def test_policies_have_dropout_in_training_only(algo_class: Any, observations: np.ndarray) -> None:
    fields: dict[str, Any] = {}
    if algo_class.__name__.startswith("Factored"):
        fields["encoder_factory"] = VectorEncoderFactory(hidden_units=[32], dropout_rate=0.5)
    algo = make(algo_class, **fields)
    algo.build_with_dataset(random_buffer())
    x = torch.from_numpy(observations)
    policy = algo.impl.policy.train()
    assert not torch.equal(policy(x), policy(x))
    assert torch.equal(policy.eval()(x), policy(x))


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


def test_stock_mini_batches_are_computed_in_the_configured_precision() -> None:
    outcomes = []
    for precision in ("float32", "bfloat16"):
        algo = make(FactoredIQL, precision=precision)
        algo.build_with_dataset(random_buffer())
        np.random.seed(3)  # noqa: NPY002
        outcomes.append(algo.update(random_replay_buffer().sample_transition_batch(19)))
    assert outcomes[0] != outcomes[1]
    assert outcomes[1]["critic_loss"] == pytest.approx(outcomes[0]["critic_loss"], rel=0.05)


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
        fields["policy"] = SAINT(still)
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
        fields["policy"] = RePreM()
    return make(
        algo_class,
        **{**learning_rates(algo_class, 3e-3), **small_networks(algo_class, 32), **fields},
    )


def share_of_right_actions(algo: Any) -> float:
    states = np.random.default_rng(5).normal(size=(500, 4)).astype(np.float32)
    states[:, 3] = 0.0
    return float((algo.predict(states) == (states[:, :3] > 0)).all(1).mean())


@pytest.mark.parametrize(
    "algo_class",
    [
        pytest.param(a, marks=() if a.__name__ in QUICK_LEARNERS else pytest.mark.slow)
        for a in CRITICS
        if a.__name__ in LEARNERS
    ],
)
def test_solves_a_problem_that_imitation_does_not(algo_class: Any) -> None:
    algo = learner(algo_class)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=350)
    assert share_of_right_actions(algo) > 0.5  # by chance 0.125


@pytest.mark.parametrize("algo_class", [FactoredBC])
def test_imitation_does_not_solve_that_problem(algo_class: Any) -> None:
    algo = learner(algo_class)
    fit(algo, mostly_wrong_replay_buffer(), n_steps=350)
    assert share_of_right_actions(algo) < 0.05
