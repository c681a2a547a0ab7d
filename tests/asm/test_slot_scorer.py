"""Structure models of slots that have features and share choices that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, ActionStructureModel, FactoredIQL, PretrainingConfig
from spin_d3rlpy.asm import pretrain
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.sampling import slot_log_probs
from spin_d3rlpy.asm.slot_scorer import SlotScorer
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.episodes import EpisodeArrays, stack_episodes
from spin_d3rlpy.policies.entities import EntityPolicy
from spin_envs import ActionLayout

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
