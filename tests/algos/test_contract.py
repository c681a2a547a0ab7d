"""d3rlpy's contract for `fit`: what subclasses, loggers and evaluators written for it rely on."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.constants import LoggingStrategy
from d3rlpy.logging import FileAdapterFactory, NoopAdapterFactory
from d3rlpy.preprocessing import MinMaxObservationScaler, StandardRewardScaler

from spin_d3rlpy import (
    DecQNBCQ,
    DecQNCQL,
    DecQNIQL,
    DecQNOneStep,
    FactoredBC,
    FactoredIQL,
    MultiDiscreteEpsilonGreedy,
    save_policy,
)
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQE, MultiDiscreteFQEConfig
from tests.algos.problems import (
    ALGORITHMS,
    NVEC,
    SignEnv,
    new_algorithm,
    random_buffer,
    random_replay_buffer,
    tiny_fields,
)

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
TIMES = {"time_step", "time_sample_batch", "time_algorithm_update"}


def make(algo_class: Any, **fields: Any) -> Any:
    return new_algorithm(algo_class, **{"batch_size": 19, **tiny_fields(algo_class), **fields})


class CountingBC(FactoredBC):
    """A subclass as d3rlpy's users write them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[Any] = []

    def update(self, batch: Any) -> dict[str, float]:
        self.batches.append(batch)
        return {**super().update(batch), "batches": float(len(self.batches))}


def test_fit_calls_an_update_that_a_subclass_overrides() -> None:
    algo = make(CountingBC)
    metrics = algo.fit(random_buffer(), n_steps=3, **QUIET)[-1][1]
    assert algo.grad_step == len(algo.batches) == 3
    assert algo.batches[0].actions.shape == (19, len(NVEC))
    assert metrics["batches"] == 2.0  # the mean of 1, 2 and 3
    assert metrics["loss"] > 0.0


def test_fit_calls_an_update_that_is_assigned() -> None:
    algo = make(FactoredBC)
    algo.update = lambda batch: {"loss": 7.0}
    assert algo.fit(random_buffer(), n_steps=2, **QUIET)[-1][1]["loss"] == 7.0
    assert algo.grad_step == 0


def test_positional_arguments_are_the_hosts(tmp_path: Path) -> None:
    for name in ("fit", "fitter"):
        host, ours = (
            list(inspect.signature(getattr(c, name)).parameters)
            for c in (QLearningAlgoBase, FactoredBC)
        )
        # By position `fitter` takes only what both verbs have in one order.
        n = len(host) if name == "fit" else 4
        assert host[:n] == ours[:n]
    calls: list[Any] = []

    def measure(algo: Any, dataset: Any) -> float:
        return 5.0

    adapter = FileAdapterFactory(str(tmp_path))
    results = make(FactoredBC).fit(
        random_buffer(),
        4,
        2,
        "named",
        False,
        1,
        LoggingStrategy.STEPS,
        adapter,
        False,
        1,
        {"five": measure},
        lambda *call: calls.append(call[1:]),
        lambda *call: calls.append(call[1:]),
    )
    assert [metrics["five"] for _, metrics in results] == [5.0, 5.0]
    assert calls == [(1, 1), (1, 2), (1, 2), (2, 3), (2, 4), (2, 4)]
    assert len((tmp_path / "named" / "loss.csv").read_text().splitlines()) == 4


def test_times_of_steps_and_their_parts_are_logged() -> None:
    for algo_class in (FactoredBC, CountingBC):
        metrics = make(algo_class).fit(random_buffer(), n_steps=3, **QUIET)[-1][1]
        assert metrics.keys() > TIMES
        parts = metrics["time_sample_batch"] + metrics["time_algorithm_update"]
        assert 0.0 < parts <= metrics["time_step"]
        assert 3 * metrics["time_step"] <= metrics["time_epoch"]


def test_evaluation_is_timed_apart_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(*_: Any) -> float:
        time.sleep(0.2)
        return 1.0

    options = {**QUIET, "show_progress": True}
    algo = make(FactoredBC)
    metrics = algo.fit(random_buffer(), n_steps=3, evaluators={"mine": slow}, **options)[-1][1]
    assert metrics["time_evaluation"] >= 0.2
    assert metrics["time_epoch"] < metrics["time_evaluation"] + 3 * metrics["time_step"]
    assert "evaluating mine" in capsys.readouterr().err
    assert "time_evaluation" not in make(FactoredBC).fit(random_buffer(), n_steps=3, **QUIET)[-1][1]


def test_models_are_saved_when_save_interval_says_so(tmp_path: Path) -> None:
    make(FactoredBC).fit(
        random_buffer(),
        n_steps=10,
        n_steps_per_epoch=2,
        save_interval=2,
        logger_adapter=FileAdapterFactory(str(tmp_path)),
        experiment_name="run",
        with_timestamp=False,
        show_progress=False,
    )
    assert sorted(path.name for path in (tmp_path / "run").glob("*.d3")) == [
        "model_4.d3",
        "model_8.d3",
    ]


def test_evaluators_get_the_dataset_passed_in() -> None:
    seen: list[Any] = []

    def measure(algo: Any, dataset: Any) -> float:
        seen.append(dataset)
        return 0.0

    given = [random_buffer(), random_replay_buffer()]
    for dataset in given:
        algo = make(FactoredBC, nvec=NVEC)
        algo.fit(dataset, n_steps=1, evaluators={"seen": measure}, **QUIET)
    assert [one is other for one, other in zip(seen, given, strict=True)] == [True, True]


@pytest.mark.parametrize("algo_class", [DecQNBCQ, DecQNCQL, DecQNIQL, DecQNOneStep])
def test_scalers_that_an_environment_cannot_fit_say_so(algo_class: Any, tmp_path: Path) -> None:
    algo, data = make(algo_class), random_buffer()
    algo.build_with_env(SignEnv())
    x = data.observations[:2].numpy()
    for attempt in (
        lambda: algo.predict(x),
        lambda: algo.sample_action(x),
        lambda: algo.predict_value(x, data.actions[:2].numpy()),
        lambda: algo.update(data.sample_transition_batch(19)),
        lambda: algo.save_policy(str(tmp_path / "policy.pt")),
        lambda: save_policy(algo, tmp_path / "policy.safetensors"),
        lambda: algo.collect(SignEnv(), n_steps=2, show_progress=False),
        lambda: algo.fit_online(SignEnv(), n_steps=2, **QUIET),
    ):
        with pytest.raises(
            RuntimeError,
            match=f"{algo_class.__name__} has a StandardObservationScaler as observation_scaler.*"
            "build_with_dataset first, or pass observation_scaler=None",
        ):
            attempt()
    algo.build_with_dataset(data)  # what the message says
    assert algo.predict(x).shape == (2, len(NVEC))


@pytest.mark.parametrize("algo_class", ALGORITHMS, ids=lambda a: a.__name__)
def test_a_subclass_may_bring_its_own_update_and_networks(algo_class: Any) -> None:
    asked: list[str] = []

    class Own(algo_class):  # type: ignore[misc]
        impl_class = type("OwnImpl", (algo_class.impl_class,), {})

    for name in [n for n in dir(algo_class) if n.startswith("create_") and n != "create_impl"]:

        def create(self: Any, *args: Any, _name: str = name, **kwargs: Any) -> Any:
            asked.append(_name)
            return getattr(super(Own, self), _name)(*args, **kwargs)

        setattr(Own, name, create)
    algo = new_algorithm(Own, nvec=NVEC, **tiny_fields(algo_class))
    algo.create_impl((7,), 0)
    assert type(algo.impl) is Own.impl_class
    # Whatever a class has for making a part, it makes by it.
    unused = {n for n in dir(algo_class) if n.startswith("create_")} - {"create_impl", *asked}
    assert unused == set()


def test_a_fitted_q_evaluation_may_bring_its_own_update() -> None:
    class Own(MultiDiscreteFQE):
        impl_class = type("OwnImpl", (MultiDiscreteFQE.impl_class,), {})

    algo = Own(lambda x: np.zeros((len(x), len(NVEC)), int), MultiDiscreteFQEConfig(nvec=NVEC))
    algo.create_impl((7,), 0)
    assert type(algo.impl) is Own.impl_class


def test_reward_scalers_that_are_not_fitted_say_so() -> None:
    algo = make(FactoredIQL, reward_scaler=StandardRewardScaler())
    algo.build_with_env(SignEnv())
    with pytest.raises(RuntimeError, match="StandardRewardScaler as reward_scaler"):
        algo.update(random_buffer().sample_transition_batch(19))


def test_scalers_that_an_environment_can_fit_are_fitted_online() -> None:
    algo, env = make(FactoredIQL, observation_scaler=MinMaxObservationScaler()), SignEnv()
    with pytest.raises(RuntimeError, match="MinMaxObservationScaler as observation_scaler"):
        algo.fit_online(env, n_steps=3, **QUIET)  # its bounds are infinite
    env.observation_space = gymnasium.spaces.Box(-5.0, 5.0, (7,))
    algo.fit_online(env, n_steps=3, explorer=MultiDiscreteEpsilonGreedy(), **QUIET)
    assert algo.observation_scaler.maximum.tolist() == [5.0] * 7
