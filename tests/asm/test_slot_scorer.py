"""Structure models of slots that have features and share choices that have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import numpy as np
import torch
from d3rlpy.logging import NoopAdapterFactory
from gymnasium.spaces import Box, MultiDiscrete

from spin_d3rlpy import SPINIDQL, ActionStructureModel, FactoredIQL, PretrainingConfig
from spin_d3rlpy.asm import pretrain
from spin_d3rlpy.asm.entities import OBJECT_WIDTH, EntityConfig
from spin_d3rlpy.asm.sampling import slot_log_probs
from spin_d3rlpy.asm.slot_scorer import SlotScorer
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler
from spin_d3rlpy.policies.entities import EntityPolicy
from spin_envs import ActionLayout
from tests.exported_files import exported_actions

QUIET: dict[str, Any] = {"logger_adapter": NoopAdapterFactory(), "show_progress": False}


def layout(n: int) -> ActionLayout:
    """Slots of three features each, then two columns of context."""
    columns = tuple(tuple(range(3 * slot, 3 * slot + 3)) for slot in range(n))
    return ActionLayout(shared_choices=True, slot_columns=columns)


def make_asm(n: int, k: int = 4) -> ActionStructureModel:
    torch.manual_seed(0)
    config = EntityConfig(slot_width=8, layout=layout(n))
    asm = ActionStructureModel(3 * n + 2, [k] * n, config).eval()
    assert isinstance(asm.scorer, SlotScorer)
    for of_others in (asm.scorer.all_slots, asm.scorer.made):  # as after training
        torch.nn.init.normal_(of_others.weight)
    return asm


def test_permuting_slots_permutes_logits() -> None:
    asm, x, tokens = make_asm(3), torch.rand(6, 11), torch.randint(4, (6, 3))
    tokens[:, 1] = 4  # masked
    order = [2, 0, 1]
    moved = torch.cat([x[:, :9].unflatten(1, (3, 3))[:, order].flatten(1), x[:, 9:]], dim=1)
    logits = asm.slot_layout.split(asm(x, tokens))
    torch.testing.assert_close(
        asm.slot_layout.split(asm(moved, tokens[:, order])), logits[:, order]
    )


def test_it_sees_which_slot_chose_what() -> None:
    asm, x = make_asm(3), torch.rand(1, 11)
    seen = []
    for tokens in ([4, 4, 4], [2, 4, 4], [4, 2, 4], [1, 4, 4]):
        seen.append(asm.slot_layout.split(asm(x, torch.tensor([tokens])))[0, 2])
    for i, one in enumerate(seen):
        assert not any(torch.allclose(one, other) for other in seen[i + 1 :])


def test_slot_by_slot_gives_the_logits_of_whole_passes() -> None:
    asm, x, actions = make_asm(4), torch.rand(6, 14), torch.randint(4, (6, 4))
    chain, tokens = asm.slot_by_slot(x), asm.mask_ids.expand(6, -1).clone()
    for slot in (2, 0, 3, 1):
        whole = asm.slot_layout.split(asm(x, tokens))[:, slot]
        torch.testing.assert_close(chain.logits(slot), whole)
        chain.choose(slot, actions[:, slot])
        tokens[:, slot] = actions[:, slot]
    given_others = chain.given_others(actions)
    tokens[:, 0] = 4
    torch.testing.assert_close(given_others[:, 0], asm.slot_layout.split(asm(x, tokens))[:, 0])


def test_weights_do_not_depend_on_the_number_of_slots() -> None:
    shapes = [
        {name: weight.shape for name, weight in make_asm(n).state_dict().items()} for n in (2, 9)
    ]
    assert shapes[0] == shapes[1]


def among_objects(n: int = 2, m: int = 3) -> ActionLayout:
    """Slots and objects at two coordinates each, then a column of context."""
    columns = tuple((2 * i, 2 * i + 1) for i in range(n + m))
    return ActionLayout(shared_choices=True, slot_columns=columns[:n], object_columns=columns[n:])


def asm_among_objects(n: int = 2, m: int = 3) -> ActionStructureModel:
    torch.manual_seed(0)
    config = EntityConfig(slot_width=8, layout=among_objects(n, m))
    return ActionStructureModel(2 * (n + m) + 1, [4] * n, config).eval()


def test_objects_are_seen_whatever_their_order() -> None:
    asm, x, tokens = asm_among_objects(), torch.rand(6, 11), torch.full((6, 2), 4)
    places = x[:, :10].unflatten(1, (5, 2))
    logits = asm(x, tokens)
    moved = torch.cat([places[:, [0, 1, 4, 2, 3]].flatten(1), x[:, 10:]], dim=1)
    torch.testing.assert_close(asm(moved, tokens), logits)
    elsewhere = x.clone()
    elsewhere[:, 4] += 1.0  # the first object
    changes = asm(elsewhere, tokens) - logits
    assert changes.abs().amax(1).min() > 1e-3


def test_weights_do_not_depend_on_the_number_of_objects() -> None:
    shapes = [
        {name: weight.shape for name, weight in asm_among_objects(n, m).state_dict().items()}
        for n, m in ((2, 3), (5, 9))
    ]
    assert shapes[0] == shapes[1]


def test_many_objects_cut_batches() -> None:
    few, many = (EntityConfig(layout=among_objects(4, m)) for m in (2, 100))
    assert few.rows_per_update(512, 4) == 512
    assert many.rows_per_update(512, 4) == 2_000_000 // (4 * 100 * OBJECT_WIDTH)


def test_critics_see_objects_and_policies_with_them_act_from_files(tmp_path: Path) -> None:
    data = agents(20)
    data.layout = ActionLayout(
        shared_choices=True,
        slot_columns=((0, 1), (3, 4), (6, 7)),
        object_columns=((2, 5), (8, 9)),
    )
    algo: Any = SPINIDQL(recipe="smoke", joint_critic=True, search_sweeps=1)
    algo.fit(data, n_steps=20, n_steps_per_epoch=20, **QUIET)
    seen, actions = data.observations_at(data.observation_index[:50]), data.actions[:50]
    swapped, moved = seen[:, [0, 1, 8, 3, 4, 9, 6, 7, 2, 5, 10]], seen.clone()
    moved[:, 8] += 1.0  # one of the objects
    values, of_swapped, of_moved = (
        algo.predict_value(x.numpy(), actions.numpy()) for x in (seen, swapped, moved)
    )
    np.testing.assert_allclose(of_swapped, values, atol=1e-5)
    assert np.abs(of_moved - values).min() > 1e-6
    x = data.observations_at(data.observation_index[:50]).numpy()
    algo.save_policy(path := str(tmp_path / "policy.pt"))
    assert np.array_equal(exported_actions(path, observations=x), algo.predict(x))


class Walkers(gymnasium.Env[Any, Any]):
    """Agents and objects on a plane; nothing happens."""

    def __init__(self, n: int, m: int) -> None:
        self.layout = among_objects(n, m)
        self.observation_space = Box(-1.0, 1.0, (2 * (n + m) + 1,))
        self.action_space = MultiDiscrete([4] * n)


def test_policies_act_with_more_agents_and_objects() -> None:
    d3rlpy.seed(0)
    scaler = ClippedStandardObservationScaler()
    joint: dict[str, Any] = {"joint_critic": True, "search_sweeps": 1}
    algo: Any = SPINIDQL(recipe="smoke", observation_scaler=scaler, **joint)
    data = agents(20)  # three agents, eleven columns
    data.layout = among_objects(3, 2)
    algo.fit(data, n_steps=20, n_steps_per_epoch=20, **QUIET)
    x = np.random.default_rng(0).normal(size=(30, 25)).astype(np.float32)
    assert algo.resized(Walkers(5, 7)).predict(x).shape == (30, 5)
    same = algo.resized(Walkers(3, 2))
    assert np.array_equal(same.predict(x[:, :11]), algo.predict(x[:, :11]))


def agents(episodes: int, n: int = 3) -> DeviceReplayBuffer:
    """The first agent chooses freely; the others choose alike, by their own sign one of two."""
    rng, parts = np.random.default_rng(0), []
    for i in range(episodes):
        x = rng.choice([-1.0, 1.0], size=(21, 3 * n + 2)).astype(np.float32)
        free = rng.integers(2, size=(20, 1))
        actions = free + 2 * (x[:20, 0 : 3 * n : 3] > 0)
        rewards = (actions == 3).sum(1).astype(np.float32)
        parts.append(EpisodeArrays(f"e{i}", x, actions, rewards, terminated=True))
    buffer = DeviceReplayBuffer(stack_episodes(iter(parts), [20] * episodes, [4] * n))
    buffer.layout = layout(n)
    return buffer


def test_it_learns_what_depends_on_other_slots() -> None:
    data, asm = agents(50), make_asm(3)
    x, actions = data.observations_at(data.observation_index), data.actions.long()
    settings = PretrainingConfig(
        masking="any_order", max_updates=300, batch_size=256, learning_rate=1e-2
    )
    pretrain(asm, data, settings)
    # One free choice of two, all others follow: log(2) in all, not for each.
    surprise = -slot_log_probs(asm.eval(), x, actions, range(3)).sum(1).mean()
    assert np.log(2) <= surprise + 1e-3
    assert surprise < 1.3 * np.log(2)


def test_algorithms_take_it_where_slots_alone_have_features() -> None:
    data = agents(20)
    algo = SPINIDQL(recipe="smoke", joint_critic=True, search_sweeps=1)
    algo.fit(data, n_steps=20, n_steps_per_epoch=20, **QUIET)
    assert algo.asm is not None
    assert isinstance(algo.asm.scorer, SlotScorer)
    x = data.observations_at(data.observation_index[:50]).numpy()
    assert algo.predict(x).shape == (50, 3)
    factored = FactoredIQL(recipe="smoke")
    factored.fit(data, n_steps=5, n_steps_per_epoch=5, **QUIET)
    assert isinstance(factored.policy, EntityPolicy)
    assert isinstance(factored.policy.scorer, SlotScorer)
