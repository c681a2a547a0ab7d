"""Drafts of actions where slots are scored one by one, compared with whole passes of the model."""

from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.asm.decoding import decode, decode_in_groups
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import MLPConfig, StructureConfig, TransformerConfig
from spin_d3rlpy.asm.rules import OPEN
from spin_d3rlpy.nvec import gumbel_noise
from spin_d3rlpy.policies import joint
from spin_d3rlpy.policies.joint import DRAFT_PASSES, JointPolicy
from spin_envs import ActionLayout

N_SLOTS, OBSERVATION = 11, 22
COLUMNS = tuple((2 * slot, 2 * slot + 1) for slot in range(N_SLOTS))
MODELS: dict[str, tuple[StructureConfig, list[int]]] = {
    "mlp": (MLPConfig(width=16), [3] * N_SLOTS),
    "mlp of unequal slots": (MLPConfig(width=16), [2, 5, 3, 3, 4, 2, 6, 3, 2, 2, 4]),
    "transformer": (
        TransformerConfig(width=8, n_heads=1, n_blocks=1, head_hidden=8),
        [2, 5, 3, 3, 4, 2, 6, 3, 2, 2, 4],
    ),
    "features of slots": (
        EntityConfig(slot_width=8, layout=ActionLayout(shared_choices=True, slot_columns=COLUMNS)),
        [4] * N_SLOTS,
    ),
}


@pytest.fixture(params=MODELS)
def policy(request: pytest.FixtureRequest) -> JointPolicy:
    torch.manual_seed(0)
    structure, nvec = MODELS[request.param]
    policy = JointPolicy(OBSERVATION, nvec, structure).eval()
    with torch.no_grad():  # as after training, choices depend on each other
        for parameter in policy.asm.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return policy


def noise_of(policy: JointPolicy, n: int) -> torch.Tensor:
    return gumbel_noise(torch.empty(n, policy.slot_layout.total))


@torch.no_grad()
def test_each_group_of_slots_sees_the_groups_before_alone(policy: JointPolicy) -> None:
    layout, x, noise = policy.slot_layout, torch.rand(5, OBSERVATION), noise_of(policy, 6)
    drafts = policy.draft_several(x, 6, noise)
    assert drafts.shape == (6, 5, N_SLOTS)
    added, mask = layout.split(noise, fill=0.0)[:, None], torch.tensor(layout.nvec)
    for slot in range(N_SLOTS):
        group = slot % DRAFT_PASSES
        before = torch.tensor([other % DRAFT_PASSES < group for other in range(N_SLOTS)])
        tokens = torch.where(before, drafts, mask).flatten(0, 1)
        logits = layout.split(policy.asm(x.repeat(6, 1), tokens)).unflatten(0, (6, 5))
        assert torch.equal(drafts[..., slot], (logits + added)[:, :, slot].argmax(-1))


@torch.no_grad()
def test_groups_of_one_slot_are_the_slots_in_order(policy: JointPolicy) -> None:
    x, noise = torch.rand(9, OBSERVATION), noise_of(policy, 9)
    in_groups = decode_in_groups(policy.conditionals_of_any(x), N_SLOTS, noise)
    in_order = decode(policy.conditionals_of_any(x), "slots", noise=noise)
    assert torch.equal(in_groups, in_order)


@torch.no_grad()
def test_few_slots_are_sampled(monkeypatch: pytest.MonkeyPatch, policy: JointPolicy) -> None:
    monkeypatch.setattr(joint, "FEW_SLOTS", N_SLOTS)
    x, noise = torch.rand(5, OBSERVATION), noise_of(policy, 6)
    drafts = policy.draft_several(x, 6, noise)
    assert torch.equal(drafts, policy.sample_several(x, 6, noise))


@torch.no_grad()
def test_drafts_that_must_keep_choices_are_samples(policy: JointPolicy) -> None:
    x, noise = torch.rand(5, OBSERVATION), noise_of(policy, 6)
    given = torch.full((30, N_SLOTS), OPEN)
    given[:, 3] = 1
    drafts = policy.draft_several(x, 6, noise, given=given)
    assert (drafts[..., 3] == 1).all()
    assert torch.equal(
        drafts.flatten(0, 1),
        policy.decode(x.repeat(6, 1), noise.repeat_interleave(5, 0), given=given),
    )
