"""Critics that will not act leave the rest of a run for a time to imitation."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, Factored, FactoredIDQL, SPINJoint, from_table
from spin_d3rlpy.algos.idql import algorithm as algorithm_module
from spin_d3rlpy.algos.idql.impl import IDQLImpl
from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig
from spin_d3rlpy.asm.pretraining import Pretraining
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.policies.further_pretraining import FurtherPretraining
from spin_d3rlpy.search.agreement import FIRST_STATES
from spin_d3rlpy.search.standstill import Standstill
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from spin_d3rlpy.training.budget import Budget
from spin_d3rlpy.training.loop import Run
from tests.algos.problems import TINY

NVEC = [3, 2, 2]
QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
TOTAL = 2.0  # seconds


class Clock:
    """Time passes whenever it is asked for, so that a run has the same steps on every machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def log(n: int = 1000, rewards: int = 1, length: int = 2) -> DeviceReplayBuffer:
    """Episodes whose choices mostly follow from the state; those of the first slot pay."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    actions = (x[:, :3] > 0).astype(int)
    is_odd = rng.random((n, 3)) < 0.1
    actions = np.where(is_odd, rng.integers(0, NVEC, (n, 3)), actions)
    table: dict[Any, Any] = {"episode": np.arange(n) // length}
    table |= {f"x_{i}": x[:, i] for i in range(4)} | {f"a_{i}": actions[:, i] for i in range(3)}
    table["reward"] = 3.0 * (actions[:, 0] == 0)
    columns: dict[str, Any] = {
        "observations": [f"x_{i}" for i in range(4)],
        "actions": [f"a_{i}" for i in range(3)],
    }
    if rewards == 1:
        columns["reward"] = "reward"
    else:
        table["other"] = 1.0 * (actions[:, 1] == 0)
        columns["rewards"] = {"one": "reward", "two": "other"}
        columns["weights"] = {"one": 1.0, "two": 1.0}
    return from_table(table, **columns, nvec=NVEC, episode="episode", terminal=True)


def algorithm(kind: type[Any] = SPINIDQL, **fields: Any) -> Any:
    pretraining = PretrainingConfig(
        masking="any_order", budget_share=0.4, batch_size=32, ema_decay=0.9, lr_schedule="linear"
    )
    policy = SPINJoint(transformer=TINY, pretraining=pretraining)
    return kind(
        policy=policy if kind is SPINIDQL else Factored(),
        joint_critic=True,
        expectile=0.5,
        held_out_share=0.3,
        batch_size=32,
        **fields,
    )


def fitted(kind: type[Any] = SPINIDQL, fields: Any = None, **options: Any) -> Any:
    d3rlpy.seed(0)
    algo = algorithm(kind, **(fields or {}))
    rows = algo.fit(log(), **{"seconds": Budget(TOTAL, Clock()), **options, **QUIET})
    algo.last_row = rows[-1][1]
    return algo


def has_given_up(algo: Any) -> bool:
    return "critic_loss" not in algo.last_row


def has_one_model(algo: Any) -> bool:
    """Whether what users get is what acts."""
    models = (model.state_dict().values() for model in (algo.policy.asm, algo.asm))
    return all(torch.equal(one, two) for one, two in zip(*models, strict=True))


def out_of_reach(answer: bool) -> Any:
    return mock.patch.object(Trust, "_is_far", return_value=answer)


@functools.cache
def going_on() -> Any:
    """A run whose critics know what pays; tests leave it as it is."""
    return fitted()


@functools.cache
def given_up() -> tuple[Any, list[float]]:
    """A run that gave its critics up, and how far each update of its pre-training was.

    Tests leave it as it is.
    """
    update = Pretraining.update
    with (
        out_of_reach(True),
        mock.patch.object(Pretraining, "update", autospec=True, side_effect=update) as made,
    ):
        algo = fitted()
    return algo, [call.args[1] for call in made.call_args_list]


def networks(algo: Any) -> list[torch.Tensor]:
    modules = algo.impl.modules.get_torch_modules()
    return [value for module in modules.values() for value in module.state_dict().values()]


def test_searches_are_out_of_reach_if_others_confirm_little_of_every_gain() -> None:
    searches = (Search(0.99, 0.02), Search(0.0, 0.02))

    def trust(*confirmed: float) -> Trust:
        return Trust(searches, (1.0, 1.0), confirmed, (0.01, 0.01), states=64, spread=10.0)

    assert trust(0.4, 0.45).is_out_of_reach
    assert trust(0.4, 0.59).is_out_of_reach
    assert not trust(0.4, 0.6).is_out_of_reach
    large = dataclasses.replace(trust(0.4, 0.55), spread=1.0)  # a tenth of it less what is doubted
    assert not large.is_out_of_reach
    assert not trust(0.4, 0.9).is_out_of_reach
    small = dataclasses.replace(trust(0.4, 0.6), spread=100.0)  # of which that gain is 0.6 %
    assert small.is_out_of_reach
    assert not dataclasses.replace(small, standard_errors=(0.01, 0.25)).is_out_of_reach
    doubted = dataclasses.replace(trust(0.65, 0.65), spread=40.0)  # 1.6 % of it, 0.75 % if doubted
    assert doubted.is_out_of_reach
    assert not dataclasses.replace(doubted, spread=29.0).is_out_of_reach
    unsure = dataclasses.replace(doubted, standard_errors=(0.01, 0.03))
    assert (unsure.is_out_of_reach, unsure.looks_out_of_reach) == (False, True)


def test_critics_out_of_reach_leave_their_time_to_the_structure_model() -> None:
    algo, numbers = given_up()
    assert has_given_up(algo)
    first, rest = numbers[: numbers.index(1, 1)], numbers[numbers.index(1, 1) :]
    # 40 % of the seconds, then what is left after a third of the others.
    assert len(rest) / len(first) == pytest.approx(1.05, abs=0.15)
    assert has_one_model(algo)
    copied = copy.deepcopy(algo)  # nothing of the run is kept
    assert "critic_loss" in copied.update(log().sample_transition_batch(32))  # after the run


def test_more_pretraining_predicts_choices_better() -> None:
    buffer = log()
    x = buffer.observations_at(buffer.observation_index).numpy()
    runs = going_on(), given_up()[0]
    scores = [algo.support(x, buffer.actions.numpy()).mean() for algo in runs]
    assert scores[1] > scores[0] + 0.02


def test_critics_that_know_what_pays_go_on() -> None:
    assert not has_given_up(going_on())


@pytest.mark.parametrize("is_trap", [False, True])
def test_critics_that_choose_among_samples_go_on(is_trap: bool) -> None:
    """No search is in reach, but where policies can stand still another choice is."""
    figures: dict[str, Any] = {"choice_promised": 0.1, "choice_confirmed": 0.1, "states": 64}
    figures["choice_error"] = 0.01
    measure = IDQLImpl.measure_trust

    def measured(impl: Any, *states: torch.Tensor) -> Trust:
        nothing = (0.0,) * len(impl.trust.figures[0])
        return dataclasses.replace(measure(impl, *states), confirmed=nothing, **figures)

    found = Standstill(0.1, is_trap)
    with (
        mock.patch.object(IDQLImpl, "measure_trust", autospec=True, side_effect=measured),
        mock.patch.object(algorithm_module, "standstill", return_value=found),
    ):
        assert has_given_up(fitted()) is not is_trap


@pytest.mark.parametrize(("acts_by", "brief_tests"), [("search", 1), ("imitation", 3)])
def test_it_is_asked_until_a_search_may_act(acts_by: str, brief_tests: int) -> None:
    measure = IDQLImpl.measure_trust
    with (
        out_of_reach(False),
        mock.patch.object(Trust, "acts_by", property(lambda _: acts_by)),
        mock.patch.object(Trust, "is_clear", property(lambda _: True)),
        mock.patch.object(IDQLImpl, "measure_trust", autospec=True, side_effect=measure) as made,
    ):
        fitted()
    assert made.call_count == brief_tests + 1  # and the last, whole one


@pytest.mark.parametrize("is_sure", [False, True])
def test_more_states_are_looked_at_where_few_do_not_tell_surely(is_sure: bool) -> None:
    measure, seen = IDQLImpl.measure_trust, list[int]()

    def counted(impl: Any, x: torch.Tensor, states: torch.Tensor) -> Trust:
        seen.append(len(x))
        return measure(impl, x, states)

    def is_far(trust: Trust, doubt: float) -> bool:
        return doubt == 0.0 or (is_sure and trust.states > FIRST_STATES)

    with (
        mock.patch.object(Trust, "_is_far", is_far),
        mock.patch.object(Trust, "acts_by", property(lambda _: "imitation")),
        mock.patch.object(Trust, "is_clear", property(lambda _: True)),
        mock.patch.object(IDQLImpl, "measure_trust", counted),
    ):
        assert has_given_up(fitted()) is is_sure
    assert seen == [64, 256] * (1 if is_sure else 3) + [64]


def test_of_steps_none_are_given_up() -> None:
    d3rlpy.seed(0)
    algo = algorithm()
    algo.config.policy.pretraining.max_updates = 4
    with out_of_reach(True):  # a user asked for as many
        rows = algo.fit(log(), n_steps=40, n_steps_per_epoch=4, **QUIET)
    assert "critic_loss" in rows[-1][1]


def test_critics_of_several_rewards_stay_for_other_weights() -> None:
    d3rlpy.seed(0)
    algo = algorithm()
    with out_of_reach(True):
        rows = algo.fit(log(rewards=2), seconds=Budget(TOTAL, Clock()), **QUIET)
    assert algo.config.n_rewards == 2
    assert "critic_loss" in rows[-1][1]


def test_critics_of_single_decisions_stay() -> None:
    d3rlpy.seed(0)
    algo = algorithm()
    with out_of_reach(True):
        rows = algo.fit(log(length=1), seconds=Budget(TOTAL, Clock()), **QUIET)
    assert "critic_loss" in rows[-1][1]


def test_a_search_that_always_acts_keeps_its_critics() -> None:
    with out_of_reach(True):
        assert not has_given_up(fitted(fields={"search": "always"}))


def test_a_model_that_was_given_stays_what_it_is() -> None:
    model = copy.deepcopy(given_up()[0].asm)
    assert isinstance(model, ActionStructureModel)
    before = [value.clone() for value in model.state_dict().values()]
    with out_of_reach(True):
        algo = fitted(fields={"asm": model})
    assert not has_given_up(algo)
    for one, two in zip(before, algo.asm.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_other_policies_go_on_without_the_critics() -> None:
    with (
        out_of_reach(True),
        mock.patch.object(
            IDQLImpl, "_update_critics", autospec=True, side_effect=IDQLImpl._update_critics
        ) as made,
    ):
        algo = fitted(kind=FactoredIDQL)
    assert has_given_up(algo)
    assert made.call_count == pytest.approx(0.3 * algo.grad_step, rel=0.1)


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoint_dir": tmp_path, "checkpoint_interval": 7}
    calls, update = itertools.count(), Pretraining.update

    def die(*arguments: Any) -> Any:
        if next(calls) == 125:  # of the further pre-training
            raise KeyboardInterrupt
        return update(*arguments)

    whole, _ = given_up()
    with (
        out_of_reach(True),
        mock.patch.object(Pretraining, "update", die),
        pytest.raises(KeyboardInterrupt),
    ):
        fitted(**kept)
    with out_of_reach(False):  # what was decided stays
        again = fitted(**kept, resume=True)
    assert has_given_up(again)
    assert again.grad_step == whole.grad_step
    assert again.trust == whole.trust
    for one, two in zip(networks(again), networks(whole), strict=True):
        assert torch.equal(one, two)
    finished = fitted(**kept, resume=True)
    assert has_one_model(finished)
    assert torch.equal(networks(finished)[0], networks(whole)[0])


def test_a_run_that_has_none_of_its_time_left_makes_a_last_step() -> None:
    algo = SPINIDQL(
        policy=SPINJoint(transformer=TINY, pretraining=PretrainingConfig(max_updates=3))
    )
    data = log(100)
    algo.fit(data, n_steps=2, n_steps_per_epoch=2, **QUIET)
    policy: Any = algo.policy
    further = FurtherPretraining(policy, lambda: algo.stage_context(data, Run(show_progress=False)))
    loss = further.update(1.0)["asm_loss"]
    assert torch.isfinite(loss)
