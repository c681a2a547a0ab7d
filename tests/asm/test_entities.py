"""Structure models that score slots and choices by their features."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory
from gymnasium.spaces import Dict, Discrete

from spin_d3rlpy import (
    SAINTIQL,
    SPINBC,
    SPINIDQL,
    SPINIQL,
    ActionStructureModel,
    AutoregressiveIQL,
    FactoredBC,
    FactoredIQL,
    LockstepEvaluator,
    PretrainingConfig,
    load_asm,
    load_dataset,
    load_policy,
    save_asm,
    save_policy,
)
from spin_d3rlpy.asm import entities, pretrain, sampling
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import MLPConfig
from spin_d3rlpy.asm.rules import Rule, all_different
from spin_d3rlpy.asm.sampling import slot_log_probs
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler
from spin_d3rlpy.errors import NoAllowedChoiceError
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import joint
from spin_d3rlpy.policies.base import FactoredPolicy
from spin_d3rlpy.policies.entities import EntityPolicy
from spin_d3rlpy.policies.factories import SPINJoint
from spin_d3rlpy.policies.features import SlotPolicy
from spin_d3rlpy.policies.joint import CONSIDERED, JointPolicy
from spin_envs import ActionLayout
from tests.algos.problems import new_algorithm
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def dispatch(couriers: int) -> tuple[Any, ActionLayout]:
    env = gymnasium.make("spin/dispatch-v0", couriers=couriers)
    return env, env.unwrapped.layout  # type: ignore[attr-defined]


def make_asm(couriers: int) -> ActionStructureModel:
    torch.manual_seed(0)
    config = EntityConfig(width=8, layout=dispatch(couriers)[1])
    return ActionStructureModel(5 * couriers, [couriers + 1] * couriers, config).eval()


def permuted(x: torch.Tensor, n: int, couriers: list[int], orders: list[int]) -> torch.Tensor:
    """Observations of dispatch with couriers and orders in another order."""
    slots = x[:, : 2 * n].unflatten(1, (n, 2))[:, couriers].flatten(1)
    choices = x[:, 2 * n :].unflatten(1, (n, 3))[:, orders].flatten(1)
    return torch.cat([slots, choices], dim=1)


def test_permuting_slots_and_choices_permutes_logits() -> None:
    n, asm = 4, make_asm(4)
    x, tokens = torch.rand(6, 20), torch.randint(5, (6, 4))
    tokens[:, 1] = 5  # masked
    slots, orders = [2, 0, 3, 1], [3, 1, 0, 2]
    logits = asm.slot_layout.split(asm(x, tokens))
    to = torch.empty(6, dtype=torch.int64)  # where a choice is now; staying and the mask stay
    to[torch.tensor([*orders, 4, 5])] = torch.arange(6)
    moved = asm.slot_layout.split(asm(permuted(x, n, slots, orders), to[tokens[:, slots]]))
    torch.testing.assert_close(moved, logits[:, slots][..., [*orders, 4]])


def test_a_choice_made_by_one_slot_changes_the_others_logits() -> None:
    asm, x = make_asm(4), torch.rand(1, 20)
    open_tokens = asm.mask_ids.expand(1, -1)
    chosen = open_tokens.clone()
    chosen[:, 0] = 2
    assert not torch.allclose(asm(x, open_tokens), asm(x, chosen))


def test_slot_by_slot_gives_the_logits_of_whole_passes() -> None:
    asm, x, actions = make_asm(4), torch.rand(6, 20), torch.randint(5, (6, 4))
    chain, tokens = asm.slot_by_slot(x), asm.mask_ids.expand(6, -1).clone()
    for slot in (2, 0, 3, 1):
        whole = asm.slot_layout.split(asm(x, tokens))[:, slot]
        torch.testing.assert_close(chain.logits(slot), whole)
        chain.choose(slot, actions[:, slot])
        tokens[:, slot] = actions[:, slot]
    given_others = asm.slot_by_slot(x).given_others(actions)
    for slot in range(4):
        hidden = actions.clone()
        hidden[:, slot] = asm.mask_ids[slot]
        whole = asm.slot_layout.split(asm(x, hidden))[:, slot]
        torch.testing.assert_close(given_others[:, slot], whole)
    total = slot_log_probs(asm, x, actions, range(4)).sum(1)
    assert (total < 0).all()


def test_rows_that_are_scored_in_parts_get_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    asm, x, actions = make_asm(4), torch.rand(7, 20), torch.randint(5, (7, 4))
    sizes, scores_of = [], entities.PairScores._scores_of

    def counted(state: Any, choices: torch.Tensor, *others: Any) -> torch.Tensor:
        sizes.append(len(choices))
        scores: torch.Tensor = scores_of(state, choices, *others)
        return scores

    with torch.no_grad():
        whole = asm.slot_by_slot(x).given_others(actions)
        monkeypatch.setattr(entities.PairScores, "_scores_of", counted)
        monkeypatch.setattr(entities, "ENTRIES_AT_ONCE", 3 * 4 * 5 * 8)
        parts = asm.slot_by_slot(x).given_others(actions)
    assert sizes == [3, 3, 1]
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_other_models_see_each_slot_in_view_of_the_others(name: str) -> None:
    from spin_d3rlpy import MLPConfig, TransformerConfig

    torch.manual_seed(0)
    sizes: Any = {"mlp": MLPConfig(8), "transformer": TransformerConfig(8, 1, 2)}[name]
    asm = ActionStructureModel(5, [3, 2, 4], sizes).eval()
    x, actions = torch.rand(6, 5), torch.stack([torch.randint(m, (6,)) for m in (3, 2, 4)], 1)
    given_others = asm.slot_by_slot(x).given_others(actions)
    for slot in range(3):
        hidden = actions.clone()
        hidden[:, slot] = asm.mask_ids[slot]
        whole = asm.slot_layout.split(asm(x, hidden))[:, slot]
        torch.testing.assert_close(given_others[:, slot], whole, atol=1e-5, rtol=1e-4)


def test_weights_do_not_depend_on_the_number_of_slots() -> None:
    small, large = make_asm(4), make_asm(9)
    large.load_state_dict(small.state_dict())
    assert large(torch.rand(2, 45), large.mask_ids.expand(2, -1)).shape == (2, 90)


def test_a_file_keeps_the_layout(tmp_path: Path) -> None:
    asm = make_asm(4)
    save_asm(asm, tmp_path / "asm.safetensors")
    loaded = load_asm(tmp_path / "asm.safetensors")
    assert loaded.config == asm.config
    x, tokens = torch.rand(3, 20), torch.randint(5, (3, 4))
    torch.testing.assert_close(loaded(x, tokens), asm(x, tokens))


def assignments(couriers: int, episodes: int = 30) -> DeviceReplayBuffer:
    """Each courier takes an order that none before it took, the nearest one."""
    rng = np.random.default_rng(0)
    stacked = []
    for i in range(episodes):
        x = rng.random((21, 5 * couriers)).astype(np.float32)
        actions = np.zeros((20, couriers), np.int64)
        for t in range(20):
            places = x[t, : 2 * couriers].reshape(couriers, 2)
            orders = x[t, 2 * couriers :].reshape(couriers, 3)[:, :2]
            distance = np.abs(places[:, None] - orders).sum(-1)
            for c in range(couriers):
                actions[t, c] = distance[c].argmin()
                distance[:, actions[t, c]] = np.inf
        stacked.append(EpisodeArrays(f"e{i}", x, actions, np.ones(20, np.float32), False))
    nvec = [couriers + 1] * couriers
    buffer = DeviceReplayBuffer(stack_episodes(iter(stacked), [20] * episodes, nvec))
    buffer.layout = dispatch(couriers)[1]
    return buffer


SLOW_ORDERS = [pytest.param(order, marks=pytest.mark.slow) for order in ("slots", "confidence")]


@pytest.mark.parametrize("order", [*SLOW_ORDERS, "margin"])
def test_it_learns_choices_that_exclude_each_other_and_acts_on_more(order: Any) -> None:
    buffer = assignments(4, 60)
    pretraining = PretrainingConfig(
        masking="any_order", batch_size=256, max_updates=400, learning_rate=1e-2
    )
    algo = new_algorithm(
        SPINIDQL,
        pretraining=pretraining,
        order=order,
        entropy_bound=None if order == "slots" else 0.5,
        observation_scaler=ClippedStandardObservationScaler(),
        candidate_temperature=0.0,
        n_action_samples=1,
        joint_critic=True,
    )
    algo.fit(buffer, n_steps=1, n_steps_per_epoch=1, **QUIET)
    policy: Any = algo.policy
    assert isinstance(policy, JointPolicy)
    assert policy.asm.scorer is not None
    distinct = []
    for acting, env in ((algo, dispatch(4)[0]), (None, dispatch(9)[0])):
        acting = algo.resized(env) if acting is None else acting
        x = np.random.default_rng(1).random((100, env.observation_space.shape[0]))
        actions = acting.predict(x.astype(np.float32))
        distinct.append(np.mean([len(set(row)) / len(row) for row in actions.tolist()]))
    assert min(distinct) > 0.9, distinct


def test_resized_needs_features_and_equal_ones() -> None:
    env, layout = dispatch(5)
    algo = FactoredBC(layout=ActionLayout())
    algo.build_with_dataset(assignments(4, 2))
    with pytest.raises(ValueError, match="with a layout"):
        algo.resized(env)
    algo = FactoredBC()
    algo.build_with_dataset(assignments(4, 2))
    slate = gymnasium.make("spin/slate-v0", places=3)
    with pytest.raises(ValueError, match=r"depends on|features"):
        algo.resized(slate)
    assert algo.resized(env).config.layout == layout


class Named(gymnasium.ActionWrapper[Any, Any, Any]):
    """Takes a choice of each courier by name."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        slots: Any = env.action_space
        self.action_space = Dict(
            {f"courier {i:02}": Discrete(int(m)) for i, m in enumerate(slots.nvec)}
        )

    def action(self, action: Any) -> Any:
        return np.array(list(action.values()))


def test_a_resized_policy_acts_as_the_environment_takes_it() -> None:
    algo = FactoredBC()
    algo.build_with_dataset(assignments(4, 2))
    env = Named(dispatch(5)[0])
    acting = algo.resized(env)
    action = acting.act(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
    assert acting.config.nvec == [6] * 5
    assert LockstepEvaluator(env, n_trials=2).returns(acting).shape == (2,)


def test_policies_use_the_layout_unless_told_otherwise(tmp_path: Path) -> None:
    buffer = assignments(4, 4)
    pretraining = PretrainingConfig(masking="any_order", max_updates=2, batch_size=8)
    for algo in (
        FactoredIQL(),
        FactoredBC(),
        new_algorithm(SPINBC, pretraining=pretraining, train_queries=False),
        new_algorithm(SPINIDQL, pretraining=pretraining, joint_critic=True),
    ):
        algo.fit(buffer, n_steps=2, n_steps_per_epoch=2, **QUIET)
        policy: Any = algo.policy
        assert isinstance(policy, EntityPolicy | JointPolicy)
        path = tmp_path / f"{type(algo).__name__}.safetensors"
        save_policy(algo, path)
        loaded = load_policy(path)
        x = np.random.default_rng(0).random((5, 20)).astype(np.float32)
        np.testing.assert_array_equal(loaded.predict(x), algo.predict(x))
        assert loaded.config.layout == buffer.layout
    flat = FactoredIQL(layout=ActionLayout())
    flat.build_with_dataset(buffer)
    assert not isinstance(flat.policy, EntityPolicy)


def test_only_the_last_layers_of_a_spin_policy_are_trained() -> None:
    buffer = assignments(4, 4)
    pretraining = PretrainingConfig(masking="any_order", max_updates=2, batch_size=8)
    algo = new_algorithm(SPINBC, pretraining=pretraining, train_queries=False)
    algo.fit(buffer, n_steps=3, n_steps_per_epoch=3, **QUIET)
    asm, policy = algo.asm, algo.policy
    assert isinstance(policy, EntityPolicy)
    assert asm is not None
    assert asm.scorer is not None
    same = {
        name
        for (name, a), b in zip(
            asm.scorer.named_parameters(), policy.scorer.parameters(), strict=True
        )
        if torch.equal(a, b)
    }
    changed = {name for name, _ in policy.scorer.named_parameters()} - same
    assert changed
    assert all(name.startswith(("hidden", "out")) for name in changed)


def test_columns_of_one_feature_are_scaled_alike() -> None:
    scaler = ClippedStandardObservationScaler()
    algo = FactoredBC(observation_scaler=scaler)
    algo.build_with_dataset(assignments(4, 3))
    mean: Any = algo.config.observation_scaler.mean  # type: ignore[union-attr]
    x = mean[[0, 2, 4, 6, 8, 11, 14, 17]]  # of couriers and orders
    assert len(set(x.tolist())) == 1
    assert mean[0] != mean[1]
    assert len(set(mean[[10, 13, 16, 19]].tolist())) == 1  # time left


def test_surest_slots_first_with_an_entropy_bound() -> None:
    asm, x = make_asm(6), torch.rand(50, 30)
    one_a_pass = asm.sample(x, temperature=0.0, order="confidence")
    passes = passes_of(asm)
    none = asm.sample(x, temperature=0.0, order="confidence", entropy_bound=0.0)
    assert len(passes) == 6  # none of these is sure
    assert none.shape == one_a_pass.shape
    passes.clear()
    everything = asm.sample(x, temperature=0.0, order="confidence", entropy_bound=1e9)
    assert len(passes) == 1
    assert torch.equal(everything[0], asm.slot_layout.argmax(asm(x, asm.mask_ids.expand(50, -1))))
    ruled = asm.sample(
        x, temperature=0.0, order="margin", entropy_bound=1e9, allowed=all_different(7, [6])
    )[0]
    for row in ruled.tolist():
        orders = [order for order in row if order != 6]
        assert len(set(orders)) == len(orders)
    with pytest.raises(ValueError, match="entropy_bound"):
        asm.sample(x, entropy_bound=-1.0)
    with pytest.raises(ValueError, match="entropy_bound"):
        asm.sample(x, entropy_bound=1.0, slots_per_pass=2)


def test_slots_without_features_have_equal_logits() -> None:
    env = gymnasium.make("spin/slate-v0", places=4)
    config = EntityConfig(width=8, layout=env.unwrapped.layout)  # type: ignore[attr-defined]
    asm = ActionStructureModel(5, [8] * 4, config).eval()
    logits = asm.slot_layout.split(asm(torch.rand(3, 5), asm.mask_ids.expand(3, -1)))
    assert torch.equal(logits[:, 0], logits[:, 3])
    assert config.entries_a_row(4) == 8 * 8  # scored once


def test_a_model_of_features_needs_them() -> None:
    with pytest.raises(ValueError, match="features of choices"):
        ActionStructureModel(5, [3, 3], EntityConfig(layout=ActionLayout()))
    with pytest.raises(ValueError, match="width"):
        EntityConfig(width=0)


@pytest.mark.slow
def test_couriers_coordinate() -> None:
    """ALGORITHMS.md, section 10, in a small form: greedy couriers collide, joint ones do not."""
    buffer, env = load_dataset("spin/dispatch-n10/expert-v0", size=20_000, progress=False)
    assert buffer.layout == dispatch(10)[1]
    assert dataclasses.is_dataclass(buffer.layout)
    config = PretrainingConfig(masking="any_order", max_updates=1_500, learning_rate=3e-3)
    asm = ActionStructureModel(50, [11] * 10, EntityConfig(layout=buffer.layout))
    pretrain(asm, buffer, config)
    x = buffer.observations[:500]
    greedy = asm.slot_layout.argmax(asm(x, asm.mask_ids.expand(500, -1)))
    joint = asm.sample(x, temperature=0.0, order="confidence")[0]
    collisions = [
        np.mean([10 - len(set(row)) for row in actions.tolist()]) for actions in (greedy, joint)
    ]
    assert collisions[1] < 0.25 * collisions[0]
    env.close()


def choose_surest(
    asm: ActionStructureModel,
    x: torch.Tensor,
    order: Any,
    rule: Rule | None = None,
    slots_per_pass: int = 1,
) -> torch.Tensor:
    """Returns what a policy chooses that acts by a model, slots in an order of their own."""
    policy = JointPolicy(x.shape[1], asm.nvec, asm.config, order, None, slots_per_pass)
    policy.asm = asm
    return policy.greedy(x, rule)


@pytest.mark.parametrize("order", ["confidence", "margin", "regret"])
def test_surest_first_is_as_sampling_where_all_slots_are_looked_at(order: Any) -> None:
    asm, x = make_asm(6), torch.rand(50, 30)
    expected = asm.sample(x, temperature=0.0, order=order)[0]
    assert torch.equal(choose_surest(asm, x, order), expected)


def test_surest_first_looks_at_few_slots_again() -> None:
    asm, x = make_asm(12), torch.rand(40, 60)
    scored: list[int] = []
    hidden = asm.scorer.hidden  # type: ignore[union-attr]
    hidden.register_forward_hook(lambda _, inputs, __: scored.append(inputs[0].shape[1]))
    rule = all_different(13, [12])
    actions = choose_surest(asm, x, "confidence", rule=rule)
    assert scored == [12, *[CONSIDERED] * 4, *range(7, 0, -1)]
    for row in actions.tolist():
        orders = [order for order in row if order != 12]
        assert len(set(orders)) == len(orders)


def test_each_choice_of_surest_first_is_in_view_of_the_others() -> None:
    asm, x = make_asm(12), torch.rand(20, 60)
    order: list[torch.Tensor] = []

    def everything(partial: torch.Tensor) -> torch.Tensor:
        order.append(partial.clone())
        return torch.ones(*partial.shape, 13, dtype=torch.bool)

    actions = choose_surest(asm, x, "confidence", rule=everything)
    for partial, later in pairwise(
        [*order, actions]
    ):  # what is open next is the best choice of a pass over all slots
        tokens = torch.where(partial == -1, asm.mask_ids, partial)
        best = asm.slot_layout.argmax(asm(x, tokens))
        new = (partial == -1) & (later != -1)
        assert new.sum() == len(x)
        assert torch.equal(later[new], best[new])


def test_surest_first_says_where_a_rule_leaves_nothing() -> None:
    asm, x = make_asm(12), torch.rand(2, 60)

    def nothing(partial: torch.Tensor) -> torch.Tensor:
        may = torch.ones(*partial.shape, 13, dtype=torch.bool)
        may[:, 3] = (partial != -1).sum(1)[:, None] < 2
        return may

    with pytest.raises(NoAllowedChoiceError, match="slot 3"):
        choose_surest(asm, x, "confidence", rule=nothing)


def test_large_batches_are_decided_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = JointPolicy(60, [13] * 12, make_asm(12).config, "confidence")
    x, sizes = torch.rand(10, 60), []
    scorer: Any = policy.asm.scorer
    whole, opened = policy.greedy(x), scorer.open

    def counted(observations: torch.Tensor) -> Any:
        sizes.append(len(observations))
        return opened(observations)

    scorer.open = counted
    entries = policy.asm.config.entries_a_row(12)
    monkeypatch.setattr(sampling, "_ENTRIES_AT_ONCE", 4 * entries)
    assert torch.equal(policy.greedy(x), whole)
    assert sizes == [4, 4, 2]


class _CountsRows(DeviceReplayBuffer):
    """Remembers how many rows were drawn."""

    drawn: list[int]

    def sample_observations_and_actions(self, batch_size: int) -> tuple[Any, Any]:
        self.drawn.append(batch_size)
        return super().sample_observations_and_actions(batch_size)


def drafting_policy(couriers: int, order: Any = "confidence") -> JointPolicy:
    policy = JointPolicy(5 * couriers, [couriers + 1] * couriers, make_asm(couriers).config, order)
    policy.asm, policy.slots_per_pass = make_asm(couriers), 6
    return policy


@pytest.mark.parametrize("order", ["confidence", "margin", "regret"])
def test_drafts_are_samples_where_only_a_choice_itself_tells_that_it_is_made(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, x, noise = (
        drafting_policy(12, order),
        torch.rand(7, 60),
        gumbel_noise(torch.empty(10, 156)),
    )
    scorer: Any = policy.asm.scorer
    samples = policy.sample_several(x, 5, noise[:5], 0.5)
    # The network sees a summary, too.
    assert not torch.equal(policy.draft_several(x, 10, noise), samples)
    with torch.no_grad():
        for summary in (scorer.all_choices.weight, scorer.made.weight, scorer.count.weight[:, 0]):
            summary.zero_()  # the last one counts choices beyond the first
    looked_at = passes_of(policy.asm)
    drafts = policy.draft_several(x, 10, noise)  # half as many
    assert looked_at == [12, 12]  # for all drafts of all states
    policy.slots_per_pass = 3  # as many as of drafts
    assert torch.equal(drafts, policy.sample_several(x, 5, noise[:5], 0.5))
    assert len(drafts.unique(dim=0)) == 5
    rule, given = all_different(13, [12]), torch.full((70, 12), -1)
    given[:, 2] = 4
    ruled = policy.draft_several(x, 10, noise, rule=rule, given=given)
    assert (ruled[..., 2] == 4).all()
    for row in ruled.flatten(0, 1).tolist():
        orders = [order for order in row if order != 12]
        assert len(set(orders)) == len(orders)
    policy.order = "slots"  # drafts of few slots are samples
    monkeypatch.setattr(joint, "FEW_SLOTS", 12)
    assert torch.equal(policy.draft_several(x, 10, noise), policy.sample_several(x, 10, noise))


def test_drafts_of_many_states_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, x = drafting_policy(6), torch.rand(7, 30)
    for noise in (torch.rand(10, 42), torch.rand(10, 7, 42)):
        together = policy.draft_several(x, 10, noise)
        monkeypatch.setattr(joint, "DRAFTS_AT_ONCE", 11)
        assert torch.equal(policy.draft_several(x, 10, noise), together)
        for row in range(7):
            own = noise if noise.dim() == 2 else noise[:, row]
            assert torch.equal(
                policy.draft_several(x[row : row + 1], 10, own)[:, 0], together[:, row]
            )
    assert policy.draft_several(x, 4).shape == (2, 7, 6)
    assert policy.draft_several(x[:0], 3, noise[:3, 0]).shape == (2, 0, 6)


def test_batches_of_pairs_are_cut_to_a_number_of_entries() -> None:
    data = assignments(5)
    data.__class__ = _CountsRows
    assert isinstance(data, _CountsRows)
    data.drawn = []
    asm, config = make_asm(5), PretrainingConfig(batch_size=1024, n_epochs=1)
    assert isinstance(asm.config, EntityConfig)
    entries = asm.config.entries_a_row(5)
    for limit, rows in [(100 * entries, 100), (1, 32), (None, 1024)]:
        cut = dataclasses.replace(asm.config, entries_per_update=limit)
        assert cut == asm.config  # models of either are the same
        asm.config = cut
        rows_of_log = pretrain(asm, data, config)
        assert set(data.drawn) == {rows}
        assert rows_of_log[-1]["samples"] == rows * rows_of_log[-1]["step"]
        assert rows_of_log[-1]["step"] == -(-data.transition_count // rows)
        data.drawn.clear()


def test_policies_of_pairs_imitate_batches_that_are_cut() -> None:
    data = assignments(5)
    for algorithm in (FactoredIQL, FactoredBC, SAINTIQL, AutoregressiveIQL):
        algo = algorithm(recipe="tuned")
        algo.build_with_dataset(data)
        config = algo.policy.config
        assert isinstance(config, EntityConfig)
        assert algo.policy.rows_per_update(1024) == 1024
        config.entries_per_update = 64 * config.entries_a_row(5)
        rows = algo.batch_size if algorithm is FactoredBC else algo._imitation_rows
        assert rows == 64


def passes_of(asm: ActionStructureModel) -> list[int]:
    """Returns a list to which each pass of the network of pairs adds the slots it looks at."""
    looked_at: list[int] = []
    hidden = asm.scorer.hidden  # type: ignore[union-attr]
    hidden.register_forward_hook(lambda _, inputs, __: looked_at.append(inputs[0].shape[1]))
    return looked_at


def test_a_pass_chooses_the_surest_slots_whose_choices_differ() -> None:
    asm, x = make_asm(20), torch.rand(1, 100)
    first = asm.slot_layout.split(asm(x, asm.mask_ids[None]))[0].log_softmax(-1)  # (N, K)
    surest = first.amax(-1).argsort(descending=True)[:4]
    best = first.argmax(-1)
    chosen = choose_surest(asm, x, "confidence", slots_per_pass=4)[0]
    kept = [s for i, s in enumerate(surest) if best[s] not in best[surest[:i]]]
    assert len(kept) > 1
    assert [int(chosen[s]) for s in kept] == [int(best[s]) for s in kept]

    passes = passes_of(asm)
    choose_surest(asm, x, "confidence", slots_per_pass=4)
    assert 5 <= len(passes) < 20
    assert passes[:2] == [20, 8]
    passes.clear()
    choose_surest(asm, x, "confidence", slots_per_pass=4, rule=lambda a: all_different(21)(a))
    assert len(passes) == 20


def test_slots_that_would_take_the_same_choice_wait_for_each_other() -> None:
    asm, x = make_asm(12), torch.rand(30, 60)
    scorer: Any = asm.scorer
    with torch.no_grad():  # slots are alike, and what is chosen already decides
        for part in (scorer.slot, scorer.pair):
            part.weight.zero_()
        for weight in (scorer.count.weight, scorer.hidden[0].weight[0]):
            weight.zero_()
        scorer.count.weight[0, 1] = 100.0
        scorer.hidden[0].weight[0, 0] = 1.0
        scorer.out.weight[0, 0] = -1.0
    one_by_one = choose_surest(asm, x, "confidence")
    assert all(len(set(row)) == 12 for row in one_by_one.tolist())
    together = choose_surest(asm, x, "confidence", slots_per_pass=8)
    assert torch.equal(together.sort(1).values, one_by_one.sort(1).values)


def test_other_models_choose_one_slot_a_pass() -> None:
    torch.manual_seed(0)
    asm, x = ActionStructureModel(3, [4] * 9, MLPConfig(width=16)).eval(), torch.rand(20, 3)
    one_by_one = choose_surest(asm, x, "confidence")
    assert torch.equal(choose_surest(asm, x, "confidence", slots_per_pass=8), one_by_one)


@pytest.mark.parametrize("search_sweeps", [0, 1])
@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_file_chooses_several_slots_a_pass_too(
    extension: str, search_sweeps: int, tmp_path: Path
) -> None:
    data = assignments(20)
    n = 8 if search_sweeps else 1  # a search starts from the best of several drafts
    algo = SPINIDQL(recipe="tuned", n_action_samples=n, search_sweeps=search_sweeps)
    algo.config.search = "always" if search_sweeps else "auto"
    algo.build_with_dataset(data)
    assert isinstance(algo.policy, JointPolicy)
    assert (algo.policy.order, algo.policy.slots_per_pass) == ("confidence", 8)
    x = data.observations[:30]
    one_by_one = choose_surest(algo.policy.asm, algo.network_input(x.numpy()), "confidence")
    actions = algo.predict(x.numpy())
    assert not np.array_equal(actions, one_by_one.numpy())
    path = str(tmp_path / f"policy.{extension}")
    algo.save_policy(path)
    assert np.array_equal(exported_actions(path, observations=x.numpy()), actions)


def test_slots_are_chosen_in_their_order_where_choices_have_no_features() -> None:
    policy = SPINJoint(architecture="mlp").create_policy(3, [4, 4])
    assert policy.order == "slots"
    with pytest.raises(ValueError, match="slots_per_pass"):
        SPINJoint(slots_per_pass=0)
    with pytest.raises(ValueError, match="order"):
        SPINJoint(order="surest")  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", [FactoredIQL, SAINTIQL, SPINIQL])
def test_independent_slots_without_features_see_the_flat_observation(algorithm: Any) -> None:
    """By features of choices alone they would all choose alike."""
    places = gymnasium.make("spin/slate-v0", places=4)
    algo = algorithm(recipe="tuned")
    algo.build_with_env(places)
    assert algo.config.layout == places.unwrapped.layout  # type: ignore[attr-defined]
    assert isinstance(algo.policy, FactoredPolicy | SlotPolicy)
    couriers = algorithm(recipe="tuned")
    couriers.build_with_env(dispatch(4)[0])
    assert not isinstance(couriers.policy, FactoredPolicy | SlotPolicy)


def pair_layout(n: int, k: int) -> ActionLayout:
    """The observation is a table of one number for each slot with each choice."""
    columns = [[[i * k + j] for j in range(k)] for i in range(n)]
    return ActionLayout(shared_choices=True, pair_columns=columns)  # type: ignore[arg-type]


def matched(n: int, k: int, rows: int) -> DeviceReplayBuffer:
    """Each slot took the choice whose number in its row of the table is the largest."""
    rng, episodes = np.random.default_rng(0), []
    for i in range(rows // 20):
        tables = rng.uniform(size=(21, n, k)).astype(np.float32)
        x, actions = tables.reshape(21, -1), tables[:20].argmax(-1)
        episodes.append(EpisodeArrays(f"e{i}", x, actions, np.ones(20, np.float32), False))
    lengths = [20] * len(episodes)
    buffer = DeviceReplayBuffer(stack_episodes(iter(episodes), lengths, [k] * n))
    buffer.layout = pair_layout(n, k)
    return buffer


def test_permuting_a_table_of_pairs_permutes_logits() -> None:
    torch.manual_seed(0)
    config = EntityConfig(width=8, layout=pair_layout(4, 5))
    asm = ActionStructureModel(20, [5] * 4, config).eval()
    x, slots, choices = torch.rand(3, 20), [2, 0, 3, 1], [4, 2, 0, 1, 3]
    masked = asm.mask_ids.expand(3, -1)
    logits = asm.slot_layout.split(asm(x, masked))
    moved = x.unflatten(1, (4, 5))[:, slots][:, :, choices].flatten(1)
    torch.testing.assert_close(
        asm.slot_layout.split(asm(moved, masked)),
        logits[:, slots][:, :, choices],
        atol=1e-6,
        rtol=1e-5,
    )


@pytest.mark.parametrize("algorithm", [pytest.param(FactoredBC, marks=pytest.mark.slow), SPINIDQL])
@pytest.mark.slow
def test_features_of_pairs_are_learned_from(algorithm: Any, tmp_path: Path) -> None:
    data, new = matched(6, 7, 400), matched(6, 7, 500)
    index = new.observation_index[400:]
    x, best = new.observations_at(index), new.actions[400:].numpy()
    shares, alike = {}, TrajectoryWeights(temperature=None)
    for name, layout in (("pairs", None), ("nothing", ActionLayout())):
        torch.manual_seed(0)
        algo = algorithm(recipe="tuned", layout=layout, trajectory_weights=alike)
        if algorithm is SPINIDQL:
            algo.config.policy.pretraining.max_updates = 150
        algo.fit(data, n_steps=150 if algorithm is FactoredBC else 1, **QUIET)
        shares[name] = (algo.predict(x.numpy()) == best).mean()
        if name == "pairs":
            algo.save_policy(path := str(tmp_path / "policy.pt"))
            exported = exported_actions(path, observations=x.numpy())
            assert np.array_equal(exported, algo.predict(x.numpy()))
    assert shares["pairs"] > 0.85 > 0.6 > shares["nothing"]
