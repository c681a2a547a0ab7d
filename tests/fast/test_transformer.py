"""The fast twin of the trunk against the model's own `forward`, and what is kept of frozen ones."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy import fast
from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, masked_action_loss
from spin_d3rlpy.asm.model import SlotTransformer
from spin_d3rlpy.asm.objectives.masked import MaskedActions, mask_actions
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.fast.transformer import folded_layers

NVEC = [3, 5, 2]
CONFIG = TransformerConfig(width=12, n_blocks=2, n_heads=3, n_state_tokens=2, head_hidden=7)


def case() -> tuple[ActionStructureModel, torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    asm = ActionStructureModel(11, NVEC, CONFIG).eval()
    for p in asm.parameters():
        nn.init.normal_(p, std=0.3)
    actions = torch.stack([torch.randint(m, (64,)) for m in NVEC], 1)
    return asm, torch.randn(64, 11), actions


def plain_loss(
    asm: ActionStructureModel,
    observations: torch.Tensor,
    actions: torch.Tensor,
    masked: MaskedActions,
) -> torch.Tensor:
    """The loss of `masked_action_loss`, of all rows, slot by slot."""
    with fast.plain():
        logits = asm(observations, masked.tokens).split(NVEC, dim=1)
    losses = [
        cross_entropy(slot_logits[chosen], slot_actions[chosen], reduction="sum")
        for slot_logits, slot_actions, chosen in zip(
            logits, actions.T, masked.selected.T, strict=True
        )
    ]
    return torch.stack(losses).sum() / masked.selected.sum()


def test_loss_and_every_gradient_equal_the_plain_formulation() -> None:
    asm, observations, actions = case()
    masked = mask_actions(actions, asm.mask_ids, 0.4)
    assert masked.capacity < 64
    quick = masked_action_loss(asm, observations, actions, masked).loss
    plain = plain_loss(asm, observations, actions, masked)
    torch.testing.assert_close(quick, plain)
    for (name, _), found, expected in zip(
        asm.named_parameters(),
        torch.autograd.grad(quick, list(asm.parameters())),
        torch.autograd.grad(plain, list(asm.parameters())),
        strict=True,
    ):
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_all_logits_equal_the_plain_formulation() -> None:
    asm, observations, actions = case()
    rows = torch.stack([torch.randperm(64)[:5] for _ in NVEC], 1)
    with fast.plain():
        plain, some = asm(observations, actions), asm(observations, actions, rows)
    torch.testing.assert_close(asm(observations, actions), plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(asm(observations, actions, rows), some, rtol=1e-4, atol=1e-5)
    picked = [p[rows[:, i]] for i, p in enumerate(plain.split(NVEC, dim=1))]
    torch.testing.assert_close(some, torch.cat(picked, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", [contextlib.nullcontext, fast.plain])
def test_bfloat16_stays_close_to_plain_float32(
    context: type[contextlib.AbstractContextManager[None]],
) -> None:
    """The tolerance that `precision` documents: 1 % of a gradient's norm, 0.01 of the loss."""
    torch.manual_seed(3)
    asm = ActionStructureModel(17, [3] * 6).eval()
    observations, actions = torch.randn(128, 17), torch.randint(3, (128, 6))
    masked = mask_actions(actions, asm.mask_ids)
    losses, gradients = [], []
    for is_rounded, how in ((False, fast.plain()), (True, context())):
        with how, autocast("cpu", "bfloat16" if is_rounded else "float32"):
            loss = masked_action_loss(asm, observations, actions, masked).loss
        losses.append(loss)
        parameters = torch.autograd.grad(loss, list(asm.parameters()))
        gradients.append(torch.cat([g.flatten() for g in parameters]))
    assert abs(losses[0] - losses[1]) < 0.01
    assert (gradients[0] - gradients[1]).norm() < 0.01 * gradients[0].norm()
    assert not torch.equal(gradients[0], gradients[1])


@pytest.fixture
def trunk() -> SlotTransformer:
    torch.manual_seed(0)
    config = TransformerConfig(width=8, n_blocks=2, n_heads=2, dropout=0.0, attention_dropout=0.0)
    return SlotTransformer(3, config).requires_grad_(False)


def _new_weights(trunk: SlotTransformer, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {k: torch.randn_like(v) for k, v in trunk.state_dict().items()}


def test_frozen_weights_are_folded_once(trunk: SlotTransformer) -> None:
    first = folded_layers(trunk)
    assert folded_layers(trunk) is first
    trunk.state_encoder[0].bias.mul_(5)  # type: ignore[operator]
    assert folded_layers(trunk) is not first


def test_a_changed_weight_or_precision_is_seen(trunk: SlotTransformer) -> None:
    x, table = torch.randn(4, 3), torch.randn(5, 8)
    before = trunk(x, table)
    with autocast("cpu", "bfloat16"):
        rounded = trunk(x, table)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(trunk(x, table), before)
    trunk.load_state_dict(_new_weights(trunk, 1))
    fresh = SlotTransformer(3, TransformerConfig(width=8, n_blocks=2, n_heads=2))
    fresh.eval().requires_grad_(False)
    fresh.load_state_dict(trunk.state_dict())
    assert torch.equal(trunk.eval()(x, table), fresh(x, table))
    with autocast("cpu", "bfloat16"):
        assert torch.equal(trunk(x, table), fresh(x, table))
    other = copy.deepcopy(trunk)
    other.load_state_dict(_new_weights(trunk, 2))
    assert torch.equal(trunk(x, table), fresh(x, table))
    assert not torch.equal(other(x, table), fresh(x, table))


def test_trained_weights_are_not_kept_even_without_gradients(trunk: SlotTransformer) -> None:
    # torch's fused optimizers change parameters without counting it.
    trunk.requires_grad_(True)
    optim = torch.optim.Adam(trunk.parameters(), lr=0.1, fused=True)
    x, table = torch.randn(4, 3), torch.randn(5, 8)
    with torch.no_grad():
        before = trunk(x, table)
    trunk(x, table).square().sum().backward()
    optim.step()
    with torch.no_grad():
        assert not torch.allclose(trunk(x, table), before)
