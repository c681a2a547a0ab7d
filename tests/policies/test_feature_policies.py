"""SAINT and autoregressive policies of slots and choices with features."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

import spin_d3rlpy
from spin_d3rlpy import (
    SAINTBC,
    SAINTIQL,
    AutoregressiveBC,
    AutoregressiveIQL,
    LockstepEvaluator,
    TransformerConfig,
    fast,
    load_dataset,
    load_policy,
    save_policy,
)
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.asm.scorers import score_all
from spin_d3rlpy.policies import AutoregressivePolicy, Policy, SlotPolicy
from spin_d3rlpy.policies.entities import AttendingPolicy, EntityOrderPolicy
from spin_envs import ActionLayout
from tests.algos.problems import new_algorithm
from tests.asm.test_entities import assignments, permuted
from tests.asm.test_slot_scorer import agents
from tests.asm.test_slot_scorer import layout as layout_of_agents
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}
SMALL = TransformerConfig(
    width=8, n_blocks=2, n_heads=2, head_hidden=8, dropout=0.0, attention_dropout=0.0
)
OF_PAIRS, OF_AGENTS = "pairs", "agents"


def layout_of(kind: str, n: int) -> tuple[ActionLayout, int, list[int]]:
    """A layout, the length of its observations, and `nvec`."""
    if kind == OF_AGENTS:
        return layout_of_agents(n), 3 * n + 2, [4] * n
    env: Any = gymnasium.make("spin/dispatch-v0", couriers=n)
    return env.unwrapped.layout, 5 * n, [n + 1] * n


def entities(layout: ActionLayout) -> EntityConfig:
    return EntityConfig(width=8, slot_width=8, layout=layout)


def loud(policy: Any) -> Any:
    """A policy far from its start, where parts that begin with zeros matter."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return policy.eval()


def make_saint(kind: str = OF_PAIRS, n: int = 3) -> AttendingPolicy:
    layout, size, nvec = layout_of(kind, n)
    torch.manual_seed(0)
    policy: AttendingPolicy = loud(AttendingPolicy(size, nvec, entities(layout), SMALL))
    return policy


def make_ar(kind: str = OF_PAIRS, n: int = 3) -> EntityOrderPolicy:
    layout, size, nvec = layout_of(kind, n)
    torch.manual_seed(0)
    policy: EntityOrderPolicy = loud(EntityOrderPolicy(size, nvec, entities(layout)))
    return policy


def observations(kind: str, n: int, rows: int = 6) -> torch.Tensor:
    return torch.rand(rows, layout_of(kind, n)[1], generator=torch.Generator().manual_seed(1))


both_kinds = pytest.mark.parametrize("kind", [OF_PAIRS, OF_AGENTS])
both_policies = pytest.mark.parametrize("make", [make_saint, make_ar])


@both_kinds
def test_slots_see_choices_before_them_and_no_others(kind: str) -> None:
    policy, x = make_ar(kind, 4), observations(kind, 4)
    actions = torch.randint(4, (6, 4), generator=torch.Generator().manual_seed(2))
    logits = policy.slot_layout.split(policy(x, actions))
    for slot in range(4):
        masked = torch.where(torch.arange(4) < slot, actions, policy.slot_layout.max_choices)
        whole = score_all(policy.scorer, x, masked)[:, slot]
        torch.testing.assert_close(logits[:, slot], whole)
    other = policy.slot_layout.split(policy(x, (actions + 1) % 4))
    assert torch.equal(other[:, 0], logits[:, 0])
    assert not torch.allclose(other[:, 1], logits[:, 1])


@both_kinds
@both_policies
def test_probabilities_sum_to_one_and_are_those_of_samples(
    make: Callable[..., Policy], kind: str
) -> None:
    policy, x = make(kind, 2), observations(kind, 2, 1)
    k = policy.slot_layout.max_choices
    everything = torch.tensor(list(itertools.product(range(k), repeat=2)))
    p = policy.log_prob(x.expand(len(everything), -1), everything).exp().detach()
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-5)
    torch.manual_seed(1)
    n = 20_000
    samples = policy.sample(x.expand(n, -1))
    shares = torch.bincount(samples @ torch.tensor([k, 1]), minlength=k * k) / n
    assert p.max() < 0.95
    assert ((shares - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-4).all()
    by_slot = p.unflatten(0, (k, k))
    first = by_slot.sum(1).argmax()
    assert policy.greedy(x)[0].tolist() == [first, by_slot[first].argmax()]


def test_permuting_slots_and_choices_permutes_saints_logits() -> None:
    n, policy, x = 4, make_saint(n=4), observations(OF_PAIRS, 4)
    slots, orders = [2, 0, 3, 1], [3, 1, 0, 2]
    logits = policy.slot_layout.split(policy(x))
    moved = policy.slot_layout.split(policy(permuted(x, n, slots, orders)))
    torch.testing.assert_close(moved, logits[:, slots][..., [*orders, 4]], atol=1e-5, rtol=1e-4)
    policy, x = make_saint(OF_AGENTS, 3), observations(OF_AGENTS, 3)
    turned = torch.cat([x[:, 3:9], x[:, :3], x[:, 9:]], dim=1)
    logits = policy.slot_layout.split(policy(x))
    moved = policy.slot_layout.split(policy(turned))
    torch.testing.assert_close(moved, logits[:, [1, 2, 0]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [make_ar, make_saint])
def test_permuting_choices_permutes_log_probs(make: Callable[..., Policy]) -> None:
    policy, x = make(OF_PAIRS, 4), observations(OF_PAIRS, 4)
    actions = torch.randint(5, (6, 4), generator=torch.Generator().manual_seed(2))
    orders = [3, 1, 0, 2]
    to = torch.empty(5, dtype=torch.int64)  # where a choice is now; staying stays
    to[torch.tensor([*orders, 4])] = torch.arange(5)
    moved = policy.log_prob(permuted(x, 4, [0, 1, 2, 3], orders), to[actions])
    torch.testing.assert_close(moved, policy.log_prob(x, actions), atol=1e-5, rtol=1e-4)


@both_kinds
def test_saints_slots_see_the_others_features(kind: str) -> None:
    policy, x = make_saint(kind, 3), observations(kind, 3)
    other = x.clone()
    other[:, 0] += 1.0  # of the first slot
    before, after = (policy.slot_layout.split(policy(y)) for y in (x, other))
    assert not torch.allclose(before[:, 1], after[:, 1])
    policy(x).square().mean().backward()  # every parameter matters
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for name, parameter in policy.named_parameters()
        if "count" not in name and "made" not in name and name != "scorer.choice"
    )


@both_kinds
@pytest.mark.parametrize("by_launches", [False, True])
def test_the_fast_transformer_takes_tokens_of_each_row(
    kind: str, by_launches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, x = make_saint(kind, 4), observations(kind, 4)
    with fast.switch.plain():
        expected = policy(x)
    monkeypatch.setattr(fast.switch, "counts_launches", lambda _: by_launches)
    torch.testing.assert_close(policy(x), expected, atol=1e-5, rtol=1e-4)


def test_attention_changes_slots_and_choices() -> None:
    scorer, x = make_saint(n=4).scorer, observations(OF_PAIRS, 4)

    def changed(thing: int) -> torch.Tensor:
        """Which logits `(N, K)` change with what one thing learns."""
        before, after = scorer.open(x), scorer.open(x)
        ones = torch.eye(9)[thing][:, None]
        after.attend(lambda slots, choices, _: (slots + ones[:4], choices + ones[4:]))
        made = torch.zeros(len(x), 5)
        return (before.logits(made) - after.logits(made)).abs().amax(0) > 1e-6

    of_slot = changed(2)
    assert of_slot[2].all()
    assert of_slot.sum() == 5
    assert changed(4 + 3)[:, 3].all()


def test_saint_keeps_its_queries_where_slots_have_no_features() -> None:
    env = gymnasium.make("spin/slate-v0", places=4)
    for algo_class, policy_class in ((SAINTBC, SlotPolicy), (AutoregressiveBC, EntityOrderPolicy)):
        algo = algo_class(recipe="smoke")
        algo.build_with_env(env)
        assert isinstance(algo.policy, policy_class)
        x = env.reset(seed=0)[0][None]
        assert algo.sample_action(x).shape == (1, 4)


@both_kinds
@both_policies
def test_weights_serve_any_number_of_slots(make: Callable[..., Policy], kind: str) -> None:
    few, many = make(kind, 3), make(kind, 7)
    many.load_state_dict(few.state_dict())
    assert many.greedy(observations(kind, 7)).shape == (6, 7)


@pytest.mark.parametrize("objective", ["IQL", "AWAC", "BCQ", "BC", "IDQL"])
@pytest.mark.parametrize(
    ("method", "policy_class"),
    [("SAINT", AttendingPolicy), ("Autoregressive", EntityOrderPolicy)],
)
def test_algorithms_use_the_layout(
    method: str, policy_class: type[Policy], objective: str, tmp_path: Path
) -> None:
    buffer = assignments(4, 4)
    algo_class = getattr(spin_d3rlpy, method + objective)
    algo = algo_class(recipe="smoke", rules=[all_different(5, except_for=[4])])
    rows = algo.fit(buffer, n_steps=3, n_steps_per_epoch=3, **QUIET)
    assert all(np.isfinite(value) for value in rows[-1][1].values())
    assert isinstance(algo.policy, policy_class)
    x = np.random.default_rng(0).random((50, 20)).astype(np.float32)
    for actions in (algo.predict(x), algo.sample_action(x)):
        for row in actions.tolist():
            taken = [order for order in row if order != 4]
            assert len(set(taken)) == len(taken)
    save_policy(algo, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(loaded.predict(x), algo.predict(x))
    assert loaded.config.policy == algo.config.policy


@pytest.mark.parametrize("algo_class", [SAINTBC, AutoregressiveBC])
def test_they_keep_to_masks_and_to_what_is_given(algo_class: Any) -> None:
    algo = algo_class(recipe="smoke")
    algo.fit(assignments(4, 4), n_steps=2, n_steps_per_epoch=2, **QUIET)
    rng = np.random.default_rng(0)
    x, masks = rng.random((30, 20)).astype(np.float32), rng.random((30, 4, 5)) < 0.5
    masks[..., 4] = True
    actions = algo.predict_masked(x, masks)
    assert np.take_along_axis(masks, actions[..., None], 2).all()
    given = np.full((30, 4), -1)
    given[:, 2] = 1
    assert (algo.predict_with(x, given=given)[:, 2] == 1).all()


@pytest.mark.parametrize("algo_class", [SAINTBC, AutoregressiveBC])
def test_slots_whose_choices_lack_features(algo_class: Any, tmp_path: Path) -> None:
    data = agents(30)
    algo = algo_class(recipe="smoke")
    algo.fit(data, n_steps=5, n_steps_per_epoch=5, **QUIET)
    assert isinstance(algo.policy, AttendingPolicy | EntityOrderPolicy)
    x = data.observations_at(data.observation_index[:20]).numpy()
    save_policy(algo, tmp_path / "policy.safetensors")
    actions = load_policy(tmp_path / "policy.safetensors").predict(x)
    np.testing.assert_array_equal(actions, algo.predict(x))


@pytest.mark.parametrize("algo_class", [SAINTBC, AutoregressiveBC])
@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exports_act_the_same(algo_class: Any, extension: str, tmp_path: Path) -> None:
    algo = algo_class(recipe="smoke")
    algo.fit(assignments(4, 4), n_steps=2, n_steps_per_epoch=2, **QUIET)
    x = np.random.default_rng(0).random((11, 20)).astype(np.float32)
    path = str(tmp_path / f"policy.{extension}")
    algo.save_policy(path)
    assert np.array_equal(exported_actions(path, observations=x), algo.predict(x))


def test_weights_of_few_slots_act_on_many() -> None:
    for algo_class in (SAINTIQL, AutoregressiveIQL):
        algo = algo_class(recipe="smoke")
        algo.fit(assignments(4, 4), n_steps=2, n_steps_per_epoch=2, **QUIET)
        env = gymnasium.make("spin/dispatch-v0", couriers=7)
        assert algo.resized(env).predict(env.reset(seed=0)[0][None]).shape == (1, 7)


@pytest.mark.parametrize(
    ("algo_class", "policy_class"),
    [(SAINTBC, SlotPolicy), (AutoregressiveBC, AutoregressivePolicy)],
)
def test_a_layout_without_features_changes_nothing(
    algo_class: Any, policy_class: type[Policy]
) -> None:
    weights, buffer = [], assignments(4, 2)
    for fields in (
        {"layout": ActionLayout()},
        {"layout": ActionLayout(shared_choices=True)},
        {"entities": None},
    ):
        d3rlpy.seed(1)
        algo = new_algorithm(algo_class, recipe="smoke", **fields)
        algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
        assert isinstance(algo.policy, policy_class)
        weights.append(torch.cat([p.flatten() for p in algo.policy.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_the_recipe_keeps_the_sizes_that_are_given() -> None:
    sizes = EntityConfig(width=5)
    algo = new_algorithm(SAINTBC, recipe="tuned", entities=sizes)
    algo.build_with_dataset(assignments(4, 2))
    layout = assignments(4, 1).layout
    assert layout is not None
    assert algo.config.policy.entities == dataclasses.replace(sizes, layout=layout)
    assert algo.config.policy.transformer.width == 64


@pytest.mark.parametrize(
    "algo_class", [pytest.param(SAINTBC, marks=pytest.mark.slow), AutoregressiveBC]
)
def test_features_help_on_a_small_dispatch(algo_class: Any) -> None:
    dataset, env = load_dataset("spin/dispatch-n5/expert-v0", size=3_000, progress=False)
    returns = []
    with closing(env), closing(LockstepEvaluator(env, 20, seed=1_000)) as evaluator:
        for layout in (None, ActionLayout()):
            d3rlpy.seed(0)
            algo = algo_class(recipe="tuned", layout=layout, imitation_batch_size=64)
            algo.fit(dataset, n_steps=150, n_steps_per_epoch=150, **QUIET)
            returns.append(float(evaluator.returns(algo).mean()))
    assert returns[0] > 1.3 * returns[1], returns
