"""Rules that see the state: no way of acting breaks them, and they see it unscaled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.preprocessing import StandardObservationScaler
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy import (
    SPINBC,
    SPINIDQL,
    AutoregressiveBC,
    AutoregressiveBCQ,
    BraVE,
    DecQN,
    DecQNBCQ,
    DecQNOneStep,
    FactoredAWAC,
    FactoredBC,
    FactoredBCQ,
    FactoredIDQL,
    LockstepEvaluator,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    load_policy,
    relabel,
    save_policy,
)
from spin_d3rlpy.asm import ActionStructureModel
from spin_d3rlpy.asm.rules import all_different, every, in_states, sees_state
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import first_forbidden, pack
from spin_d3rlpy.errors import NvecMismatchError
from spin_d3rlpy.evaluation.decisions import keeps_rule
from tests.algos.problems import (
    OBSERVATION_SIZE,
    TINY,
    new_algorithm,
    random_buffer,
    tiny_fields,
)
from tests.algos.test_masked_acting import possible_masks
from tests.algos.zones import count_broken, neighbors_apart
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
NVEC = [6, 5, 6]
WAYS = [
    *(FactoredBC, AutoregressiveBC, FactoredAWAC, FactoredBCQ, AutoregressiveBCQ),
    *(DecQN, DecQNBCQ, DecQNOneStep, SPINIDQL, FactoredIDQL),
]


def whole_numbers(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(3, 9, size=shape).astype(np.float32)


STATES = whole_numbers((200, OBSERVATION_SIZE), 1)


def log() -> DeviceReplayBuffer:
    buffer = random_buffer(NVEC)
    shape = tuple(buffer.observations.shape)
    return buffer.with_observations(torch.from_numpy(whole_numbers(shape, 2)))


def fitted(algo_class: Any, buffer: Any = None, **fields: Any) -> Any:
    torch.manual_seed(0)
    scaler = StandardObservationScaler()  # states of the rule must not be scaled
    given = {**tiny_fields(algo_class), "observation_scaler": scaler, **fields}
    algo = new_algorithm(algo_class, **given)
    algo.fit(log() if buffer is None else buffer, n_steps=3, **QUIET)
    return algo


class Zones(gymnasium.Env[Any, Any]):
    """Whole numbers as states; counts the actions that break the rule."""

    broken = 0
    steps_of_all = 0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,))
        self.action_space = gymnasium.spaces.MultiDiscrete(NVEC)

    def _see(self) -> Any:
        numbers = self.np_random.integers(3, 9, size=OBSERVATION_SIZE)
        self.state: np.ndarray[Any, Any] = numbers.astype(np.float32)
        return self.state

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        Zones.broken += count_broken(self.state[None], action[None])
        Zones.steps_of_all += 1
        self.steps += 1
        return self._see(), 0.0, False, self.steps == 4, {}


@pytest.mark.parametrize("algo_class", WAYS, ids=lambda a: a.__name__)
def test_no_decision_of_any_way_breaks_the_rule(algo_class: Any, tmp_path: Path) -> None:
    assert count_broken(STATES, fitted(algo_class).sample_action(STATES)) > 20
    algo = fitted(algo_class, rules=[neighbors_apart])
    greedy = algo.predict(STATES)
    assert count_broken(STATES, greedy) == count_broken(STATES, algo.sample_action(STATES)) == 0

    masks = np.ones((200, 3, 6), bool)
    masks[np.arange(200), np.arange(200) % 3, np.arange(200) % 2] = False  # its zone has another
    for sample in (False, True):
        chosen = algo.predict_masked(STATES, masks, sample=sample)
        assert count_broken(STATES, chosen) == 0
        assert masks[np.arange(200)[:, None], np.arange(3), chosen].all()

    save_policy(algo, path := tmp_path / "policy.safetensors")
    assert np.array_equal(load_policy(path, trust=True).predict(STATES), greedy)
    fqe = MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(batch_size=32), check=False)
    buffer = log()
    fqe.fit(buffer, n_steps=9, **QUIET)
    assert fqe.impl is not None
    known: Any = fqe.impl._known
    rows = (known[:, 0] >= 0).numpy()
    assert rows.sum() > 100
    assert count_broken(buffer.observations.numpy()[rows], known.numpy()[rows]) == 0
    assert count_broken(STATES, fqe.predict(STATES)) == 0


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_an_evaluator_and_students_keep_it(mode: Any) -> None:
    algo = fitted(SPINIDQL, rules=[neighbors_apart])
    evaluator = LockstepEvaluator(Zones(), n_trials=3, mode=mode)
    Zones.broken = Zones.steps_of_all = 0  # copies were compared by random actions
    evaluator(algo)
    assert Zones.broken == 0 < Zones.steps_of_all
    taught = relabel(log(), algo)
    states = taught.observations_at(taught.observation_index).numpy()
    assert count_broken(states, taught.actions) == 0
    assert count_broken(STATES, fitted(FactoredBC, taught).sample_action(STATES)) == 0
    evaluator(fitted(FactoredBC))
    assert Zones.broken > 0


@pytest.mark.parametrize("algo_class", [FactoredIDQL, SPINIDQL])
def test_a_search_keeps_it(algo_class: Any) -> None:
    fields = {"joint_critic": True, "search_sweeps": 2, "action_flexibility": 1e-6}
    moved = {}
    for rules in ([], [neighbors_apart]):
        algo = fitted(algo_class, rules=rules, held_out_share=0.2, search="always", **fields)
        found = algo.predict(STATES)
        algo.config.search_sweeps = 0
        moved[bool(rules)] = int((algo.predict(STATES) != found).any(1).sum())
        if rules:
            assert count_broken(STATES, found) == 0
    assert min(moved.values()) > 50  # the search moves, with and without the rule


@pytest.mark.parametrize("algo_class", [FactoredBC, AutoregressiveBC, SPINIDQL])
def test_a_call_takes_it_or_several_rules(algo_class: Any) -> None:
    algo = fitted(algo_class)
    given = np.tile([-1, 2, -1], (200, 1))
    both: list[Any] = [neighbors_apart, all_different(6)]
    for options in (
        {"allowed": neighbors_apart},
        {"allowed": both},
        {"allowed": every(*both), "given": given},
    ):
        chosen = algo.predict_with(STATES, **options)
        assert count_broken(STATES, chosen) == 0
    assert (chosen[:, 1] == 2).all()
    for extra in (neighbors_apart, both):
        for sample in (False, True):
            chosen = algo.act(STATES, extra, sample=sample)
            assert count_broken(STATES, chosen) == 0
    assert all(len(set(action)) == 3 for action in chosen.tolist())


def test_a_models_samples_keep_it() -> None:
    algo = fitted(SPINBC)
    model: ActionStructureModel = algo.asm
    assert model.observation_scaler is not None
    samples = model.sample(STATES, n=3, allowed=neighbors_apart)
    assert all(count_broken(STATES, one) == 0 for one in samples)
    assert keeps_rule(neighbors_apart, samples[0].numpy(), STATES).all()
    free = model.sample(STATES, n=1)[0].numpy()
    assert keeps_rule(neighbors_apart, free, STATES).sum() == 200 - count_broken(STATES, free)


def test_a_batch_of_the_users_has_unscaled_states() -> None:
    algo = fitted(FactoredBCQ, rules=[neighbors_apart])
    drawn = log().sample_transition_batch(32)
    fields = {
        field.name: getattr(drawn, field.name) for field in dataclasses.fields(TorchMiniBatch)
    }
    assert np.isfinite(algo.update(TorchMiniBatch(**fields))["critic_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_an_onnx_file_keeps_it(masked: bool, tmp_path: Path) -> None:
    algo = fitted(FactoredBC, rules=[neighbors_apart_on_paper])
    algo.save_policy(path := str(tmp_path / "policy.onnx"), masks=masked)
    masks = possible_masks(200, NVEC) | (np.arange(200) % 2 == 0)[:, None, None]
    inputs = {"observations": STATES} | ({"masks": masks} if masked else {})
    chosen = exported_actions(path, **inputs)
    if masked:  # rules and masks together may leave nothing, which is -1
        whole = (chosen >= 0).all(1)
        assert whole.sum() > 100
        assert first_forbidden(pack(masks[whole], NVEC), chosen[whole], NVEC) is None
        assert count_broken(STATES[whole], chosen[whole]) == 0
    else:
        assert np.array_equal(chosen, algo.predict(STATES))
    with pytest.raises(ValueError, match=r"\.onnx"):
        algo.save_policy(str(tmp_path / "policy.pt"))


def neighbors_apart_on_paper(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The rule without the question that a file cannot ask."""
    choices = torch.arange(6)
    zones = torch.where(state[:, :1] % 2 == 1, choices % 3, choices // 2)
    chosen = torch.where(partial == -1, -1, zones.gather(1, partial.clamp(min=0)))
    nobody = torch.full_like(chosen[:, :1], -1)
    before = torch.cat([nobody, chosen[:, :-1]], dim=1)[..., None]
    after = torch.cat([chosen[:, 1:], nobody], dim=1)[..., None]
    return (zones[:, None] != before) & (zones[:, None] != after)


def of_three(partial: torch.Tensor, state: torch.Tensor, more: object) -> torch.Tensor:
    raise AssertionError("is never asked")


def flat(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(partial), 6, dtype=torch.bool)


def of_five(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.ones(*partial.shape, 5, dtype=torch.bool)


def one_row(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.ones(1, *partial.shape[1:], 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (of_three, ValueError, r"rule\(partial, state\); got of_three\(partial.*state.*more"),
        (flat, ValueError, r"bool mask \(R, N, K\) = .*bool of shape"),
        (of_five, NvecMismatchError, "K is the most choices"),
        (5, ValueError, "a function.*got 5"),
    ],
)
def test_a_wrong_rule_is_refused(rule: Any, error: type[Exception], message: str) -> None:
    algo = fitted(FactoredBC)
    for call in (algo.act, lambda x, extra: algo.predict_with(x, allowed=extra)):
        with pytest.raises((error, ValueError)) as refused:
            call(STATES, [rule, neighbors_apart])
        if rule != 5:
            refused.match(message)
    if rule != 5:
        with pytest.raises((error, NvecMismatchError)):
            fitted(FactoredBC, rules=[rule])


def test_a_mask_of_too_few_rows_is_refused_when_it_comes() -> None:
    algo = fitted(FactoredBC, rules=[one_row])  # one row was asked about when it was built
    with pytest.raises(NvecMismatchError, match=r"= \(200, 3, 'K'\), got \(1, 3, 6\)"):
        algo.predict(STATES)


def test_the_signature_tells_whether_a_rule_sees_states() -> None:
    assert sees_state(neighbors_apart)
    assert sees_state(lambda partial, state=None: partial)
    assert not sees_state(lambda partial, k=3: partial)
    assert not sees_state(lambda *several: several[0])
    assert not sees_state(all_different(3))
    assert sees_state(every(all_different(3), neighbors_apart))
    assert not sees_state(in_states(neighbors_apart, torch.zeros(1, 2)))


def test_networks_alone_say_that_they_do_not_know_the_states() -> None:
    algo = fitted(FactoredBC, rules=[neighbors_apart])
    with pytest.raises(RuntimeError, match="was not told them"):
        algo.impl.predict_best_action(algo.network_input(STATES))


def test_brave_refuses_it_as_any_rule() -> None:
    with pytest.raises(ValueError, match="BraVE keeps no rules"):
        BraVE(rules=[neighbors_apart])


def test_a_transformers_search_asks_in_the_states_order() -> None:
    """`given` and candidates repeat states; a wrong order would break the rule somewhere."""
    algo = fitted(SPINIDQL, transformer=TINY, n_action_samples=5)
    given = np.full((200, 3), -1)
    given[::2, 0] = STATES[::2, 3] % 5
    chosen = algo.predict_with(STATES, given=given, allowed=neighbors_apart)
    assert count_broken(STATES, chosen) == 0
