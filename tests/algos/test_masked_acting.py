"""Masks of states: kept where an algorithm acts, is evaluated, bootstraps and teaches."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from gymnasium.vector import SyncVectorEnv

from spin_d3rlpy import (
    SPINIDQL,
    AutoregressiveBC,
    AutoregressiveBCQ,
    AutoregressiveIQL,
    DecQN,
    DecQNOneStep,
    FactoredAWAC,
    FactoredBC,
    FactoredBCQ,
    FactoredIDQL,
    FactoredIQL,
    LockstepEvaluator,
    MultiDiscreteFQE,
    MultiDiscreteFQEConfig,
    relabel,
)
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import first_forbidden, is_choice, mask_of_info, pack
from spin_d3rlpy.errors import NoAllowedChoiceError
from tests.algos.problems import NVEC, OBSERVATION_SIZE, new_algorithm, random_buffer, tiny_fields
from tests.data.test_masks import MaskedEnv

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(300, OBSERVATION_SIZE)).astype(np.float32)
WAYS = [
    *(FactoredBC, AutoregressiveBC, FactoredBCQ, AutoregressiveBCQ, FactoredAWAC),
    *(DecQN, DecQNOneStep, SPINIDQL, FactoredIDQL),
]


def possible_masks(rows: int, nvec: list[int], seed: int = 1) -> np.ndarray[Any, Any]:
    """Random masks in which every slot has a choice."""
    rng = np.random.default_rng(seed)
    masks = (rng.random((rows, len(nvec), max(nvec))) < 0.4) & is_choice(nvec)
    sure = rng.integers(nvec, size=(rows, len(nvec)))
    np.put_along_axis(masks, sure[..., None], True, axis=2)
    return masks


def masked_buffer(nvec: list[int] | None = None) -> DeviceReplayBuffer:
    """Random data with random masks that allow what was done."""
    nvec = nvec or NVEC
    buffer = random_buffer(nvec)
    masks = possible_masks(len(buffer.observations), nvec)
    rows, actions = buffer.observation_index.numpy(), buffer.actions.numpy().astype(np.int64)
    masks[rows[:, None], np.arange(len(nvec)), actions] = True
    bits = torch.from_numpy(pack(masks, nvec))
    buffer.stored = dataclasses.replace(buffer.stored, masks=bits)
    return buffer


def fitted(algo_class: Any, buffer: DeviceReplayBuffer, **fields: Any) -> Any:
    torch.manual_seed(0)
    algo = new_algorithm(algo_class, **{**tiny_fields(algo_class), **fields})
    algo.fit(buffer, n_steps=3, **QUIET)
    return algo


def forbidden(masks: np.ndarray[Any, Any], actions: np.ndarray[Any, Any]) -> int:
    found = first_forbidden(pack(masks, NVEC), actions, NVEC)
    return 0 if found is None else found[2]


@pytest.mark.parametrize("algo_class", WAYS, ids=lambda a: a.__name__)
@pytest.mark.parametrize("sample", [False, True])
def test_actions_keep_a_mask_of_each_state(algo_class: Any, sample: bool) -> None:
    algo = fitted(algo_class, masked_buffer())
    masks = possible_masks(len(STATES), NVEC)
    assert forbidden(masks, algo.predict(STATES)) > 0
    actions = algo.predict_masked(STATES, masks, sample)
    assert forbidden(masks, actions) == 0
    if not sample:
        everything = np.ones((len(NVEC), max(NVEC)), bool)
        assert np.array_equal(algo.predict_masked(STATES, everything), algo.predict(STATES))
    masks[7, 1] = False
    with pytest.raises(NoAllowedChoiceError, match="for slot 1"):
        algo.predict_masked(STATES, masks)
    with pytest.raises(ValueError, match="Expected a bool mask"):
        algo.predict_masked(STATES, masks[:5])
    assert algo.impl.rule is None  # nothing of it remains


def test_rules_and_masks_hold_together() -> None:
    nvec = [4, 4, 4]
    algo = fitted(FactoredBC, random_buffer(nvec), rules=[all_different(4)])
    masks = np.ones((len(STATES), 3, 4), bool)
    masks[:, 2, :3] = False
    masks[:, :2, 3] = False
    actions = algo.predict_masked(STATES, masks)
    assert (actions[:, 2] == 3).all()
    assert all(len(set(action)) == 3 for action in actions.tolist())


class StrictEnv(MaskedEnv):
    """Refuses what its mask forbids, also after an episode's end."""

    def step(self, action: Any) -> Any:
        assert all(self.mask()[slot, choice] for slot, choice in enumerate(action))
        return super().step(action)


class ShortEnv(StrictEnv):
    """Ends early in every second episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.limit = 5 if seed is None or seed % 2 else 2
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        state, reward, ended, cut, info = super().step(action)
        return state, reward, ended, cut or self.t >= self.limit, info


@pytest.mark.parametrize("mode", ["greedy", "sample"])
@pytest.mark.parametrize("env_class", [StrictEnv, ShortEnv])
@pytest.mark.parametrize("form", ["array", "slots"])
def test_evaluators_give_a_policy_the_masks_of_the_environment(
    mode: Any, env_class: Any, form: str
) -> None:
    algo = new_algorithm(FactoredBC, **tiny_fields(FactoredBC))
    algo.build_with_env(env_class())
    envs = SyncVectorEnv([lambda: env_class(form)] * 4)
    returns = LockstepEvaluator(envs, n_trials=6, seed=0, mode=mode).returns(algo)
    expected = [5.0] * 6 if env_class is StrictEnv else [2.0, 5.0] * 3
    assert returns.tolist() == expected


def test_a_policy_without_masks_is_evaluated_as_before() -> None:
    class Plain:
        def predict(self, x: Any) -> Any:
            return np.tile([2, 4, 1], (len(x), 1))

        sample_action = predict

    envs = SyncVectorEnv([MaskedEnv] * 2)
    assert LockstepEvaluator(envs, n_trials=2).returns(Plain()).tolist() == [5.0, 5.0]


def fixed_utilities(algo: Any) -> None:
    """Utilities of a slot's choices 0, 1, 2, ... become 0, 1, 2, ... everywhere."""
    flat = torch.cat([torch.arange(m, dtype=torch.float32) for m in NVEC])
    for critic in (algo.impl.modules.q_funcs, algo.impl.modules.targ_q_funcs):
        for q in critic:
            torch.nn.init.zeros_(q.head.weight)
            q.head.bias.data = flat.clone()


@pytest.mark.parametrize("algo_class", [DecQN, FactoredBCQ, DecQNOneStep, FactoredAWAC])
def test_bootstrapped_values_are_of_what_the_next_state_allows(
    algo_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = masked_buffer()
    fields = {"action_flexibility": 0.0} if algo_class is FactoredBCQ else {}
    algo = fitted(algo_class, buffer, **fields)
    fixed_utilities(algo)
    name = "compute_expected_values" if algo_class is FactoredAWAC else "compute_next_values"
    found: list[torch.Tensor] = []
    method = getattr(type(algo.impl), name)

    def watch(self: Any, *inputs: Any) -> Any:
        found.append(method(self, *inputs))
        return found[-1]

    monkeypatch.setattr(type(algo.impl), name, watch)
    batch = buffer.transitions(torch.arange(32))
    masks = batch.masks if algo_class is FactoredAWAC else batch.next_masks
    states = batch.observations if algo_class is FactoredAWAC else batch.next_observations
    assert masks is not None
    choices = torch.arange(max(NVEC)).float()
    if algo_class in (DecQN, FactoredBCQ):
        expected = torch.where(masks, choices, -1.0).amax(-1)
    else:
        with torch.no_grad():
            logits = algo.impl.policy(states)
        logits = algo.impl.policy.slot_layout.split(logits).masked_fill(~masks, -torch.inf)
        expected = (logits.softmax(-1) * choices).sum(-1)
    by_mean = algo_class in (DecQN, DecQNOneStep)
    total = expected.mean(-1) if by_mean else expected.sum(-1)
    algo.impl.modules.set_eval()
    if algo_class is FactoredAWAC:  # its policy would move before
        monkeypatch.setattr(algo.impl, "minimize", lambda loss, optim: loss.detach())
    algo.impl.compute_update(batch, 0)
    assert torch.allclose(found[0].detach(), total, atol=1e-5)


def test_fitted_q_evaluation_bootstraps_by_the_next_states_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = masked_buffer()
    algo = fitted(FactoredBC, buffer)
    fqe = MultiDiscreteFQE(algo, MultiDiscreteFQEConfig(batch_size=64))
    fqe.build_with_dataset(buffer)
    batch = buffer.transitions(torch.arange(128))
    assert batch.next_masks is not None
    assert fqe.impl is not None
    states = np.asarray(batch.next_observations)
    actions = fqe.impl._next_actions(batch).numpy()
    masks = batch.next_masks.numpy()
    assert forbidden(masks, actions) == 0
    assert forbidden(masks, algo.predict(states)) > 0
    assert np.array_equal(fqe.predict_masked(states, masks), actions)
    fqe.fit(buffer, n_steps=2, **QUIET)


def test_a_students_dataset_keeps_the_masks() -> None:
    buffer = masked_buffer()
    taught = relabel(buffer, fitted(DecQN, buffer))
    masks = taught.masks_at(taught.observation_index)
    assert masks is not None
    assert forbidden(masks.numpy(), taught.actions.numpy()) == 0


def test_batches_have_the_masks_of_their_states() -> None:
    buffer = masked_buffer()
    batch = buffer.sample_transition_batch(50)
    assert batch.masks is not None
    assert batch.next_masks is not None
    assert batch.masks.gather(2, batch.actions[..., None]).all()
    assert torch.equal(batch.next_masks, buffer.masks_at(batch.next_rows))  # type: ignore[arg-type]
    assert random_buffer().sample_transition_batch(5).masks is None


@pytest.mark.parametrize(
    "algo_class", [FactoredIQL, AutoregressiveIQL, FactoredBCQ, DecQN, SPINIDQL]
)
def test_threads_do_not_see_each_others_masks(algo_class: Any) -> None:
    algo = fitted(algo_class, masked_buffer())
    free = algo.predict(STATES)
    all_masks = [possible_masks(len(STATES), NVEC, seed) for seed in range(6)]
    expected = [algo.predict_masked(STATES, masks) for masks in all_masks]

    def act(number: int) -> bool:
        masked = algo.predict_masked(STATES, all_masks[number % 6])
        is_free = np.array_equal(algo.predict(STATES), free)
        return is_free and np.array_equal(masked, expected[number % 6])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(act, range(24)))
    assert np.array_equal(algo.predict(STATES), free)


@pytest.mark.parametrize("algo_class", [FactoredBC, FactoredBCQ, DecQN, SPINIDQL])
def test_no_states_have_no_actions(algo_class: Any) -> None:
    algo = fitted(algo_class, masked_buffer())
    nothing, masks = STATES[:0], possible_masks(0, NVEC)
    for actions in (
        algo.predict(nothing),
        algo.sample_action(nothing),
        algo.predict_masked(nothing, masks),
        algo.predict_masked(nothing, masks, sample=True),
    ):
        assert actions.shape == (0, len(NVEC))
        assert actions.dtype == np.int64


def flat(masks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Masks `(..., N, K)` with slot after slot's choices, `(..., S)`."""
    chosen: np.ndarray[Any, Any] = masks[..., is_choice(NVEC)]
    return chosen


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8])
def test_flat_masks_mean_the_same(kind: Any) -> None:
    algo = fitted(SPINIDQL, masked_buffer())
    masks = possible_masks(len(STATES), NVEC)
    expected = algo.predict_masked(STATES, masks)
    for given in (masks.astype(kind), flat(masks).astype(kind)):
        assert np.array_equal(algo.predict_masked(STATES, given), expected)
        assert np.array_equal(algo.predict_with(STATES, allowed=given.astype(bool)), expected)
    one = algo.predict_masked(STATES, masks[0])
    assert np.array_equal(algo.predict_masked(STATES, flat(masks[0]).astype(kind)), one)
    assert np.array_equal(pack(flat(masks), NVEC), pack(masks, NVEC))
    of_info = mask_of_info({"action_mask": flat(masks[0])}, NVEC)
    assert of_info is not None
    assert np.array_equal(of_info, masks[0])
    for wrong in (flat(masks)[:, 1:], 2 * flat(masks).astype(int), flat(masks)[:4]):
        with pytest.raises(ValueError, match="Expected a bool mask"):
            algo.predict_masked(STATES, wrong)
