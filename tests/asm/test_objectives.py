from __future__ import annotations

import pytest
import torch

from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, masked_action_loss
from spin_d3rlpy.asm.objectives.base import parts_of_batch
from spin_d3rlpy.asm.objectives.masked import (
    MaskedActionModeling,
    MaskedActions,
    mask_actions,
    masked_accuracies,
)

NVEC = [7, 5]


def masked(n: int, mask_prob: float = 0.15) -> tuple[torch.Tensor, MaskedActions]:
    torch.manual_seed(0)
    actions = torch.stack([torch.randint(m, (n,)) for m in NVEC], 1)
    return actions, mask_actions(actions, torch.tensor(NVEC), mask_prob)


def test_selection_and_corruption_are_15_and_80_10_10_percent() -> None:
    n = 400_000
    actions, (tokens, selected, _) = masked(n)
    total = selected.sum().item()
    # Four standard deviations of a binomial.
    assert total / (2 * n) == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (2 * n)) ** 0.5)
    is_mask = tokens == torch.tensor(NVEC)
    assert not (is_mask & ~selected).any()
    assert is_mask.sum().item() / total == pytest.approx(0.8, abs=4 * (0.16 / total) ** 0.5)
    for i, m in enumerate(NVEC):
        rows = selected[:, i] & ~is_mask[:, i]
        share = rows.sum().item() / selected[:, i].sum().item()
        assert share == pytest.approx(0.2, abs=0.01)
        # Half of these are random choices, of which 1 / m happen to be the true one.
        same = (tokens[rows, i] == actions[rows, i]).double().mean().item()
        assert same == pytest.approx(0.5 + 0.5 / m, abs=0.02)
        changed = tokens[rows, i][tokens[rows, i] != actions[rows, i]]
        assert set(changed.tolist()) == set(range(m))


def test_slots_that_are_not_selected_stay() -> None:
    actions, (tokens, selected, _) = masked(5000)
    assert torch.equal(tokens[~selected], actions[~selected])


@pytest.mark.parametrize("mask_prob", [0.01, 0.15, 0.9])
def test_no_slot_is_selected_in_more_rows_than_the_capacity(mask_prob: float) -> None:
    for n in (1, 7, 64, 1024, 30_000):
        _, result = masked(n, mask_prob)
        assert result.selected.sum(0).max() <= result.capacity <= n


def test_at_least_one_slot_is_selected() -> None:
    for _ in range(20):
        actions = torch.zeros(1, 2, dtype=torch.long)
        result = mask_actions(actions, torch.tensor(NVEC), 1e-6)
        assert result.selected.sum() == 1


def test_only_selected_slots_carry_loss_and_it_is_their_mean_cross_entropy() -> None:
    torch.manual_seed(1)
    asm = ActionStructureModel(3, NVEC, TransformerConfig(width=8, n_blocks=1, n_heads=2)).eval()
    actions, m = masked(13, mask_prob=0.4)
    observations = torch.randn(13, 3)
    result = masked_action_loss(asm, observations, actions, m)
    log_p = [x.log_softmax(1) for x in asm(observations, m.tokens).split(NVEC, dim=1)]
    terms = [-log_p[i][b, actions[b, i]] for b in range(13) for i in range(2) if m.selected[b, i]]
    hits = [
        float(log_p[i][b].argmax() == actions[b, i])
        for b in range(13)
        for i in range(2)
        if m.selected[b, i]
    ]
    assert 0 < len(terms) < 26
    torch.testing.assert_close(result.loss, torch.stack(terms).mean())
    assert result.accuracy.item() == pytest.approx(sum(hits) / len(hits))
    # The true action of a slot that is not selected does not matter.
    other = torch.where(m.selected, actions, (actions + 1) % 5)
    torch.testing.assert_close(masked_action_loss(asm, observations, other, m).loss, result.loss)


@pytest.mark.parametrize("tokens_at_once", [1, 7, 40, 10_000])
def test_gradients_of_parts_add_up_to_those_of_the_batch(
    tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    asm = ActionStructureModel(3, NVEC, TransformerConfig(width=8, n_blocks=1, n_heads=2)).eval()
    bytes_at_once = tokens_at_once * 3 * 8 * 4
    monkeypatch.setattr("spin_d3rlpy.asm.objectives.base.BYTES_AT_ONCE", bytes_at_once)
    actions, m = masked(31, mask_prob=0.4)
    observations = torch.randn(31, 3)
    whole = masked_action_loss(asm, observations, actions, m)
    expected = torch.autograd.grad(whole.loss, list(asm.parameters()))
    monkeypatch.setattr("spin_d3rlpy.asm.objectives.masked.mask_actions", lambda *_: m)
    result = MaskedActionModeling(asm).add_gradients(observations, actions)
    torch.testing.assert_close(result.loss, whole.loss.detach())
    torch.testing.assert_close(result.accuracy, whole.accuracy)
    for parameter, gradient in zip(asm.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_parts_have_as_many_rows_as_the_format_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    asm = ActionStructureModel(3, NVEC, TransformerConfig(width=8, n_blocks=1, n_heads=2))
    row_bytes = (1 + len(NVEC)) * 3 * 8 * 4
    monkeypatch.setattr("spin_d3rlpy.asm.objectives.base.BYTES_AT_ONCE", 4 * row_bytes)
    cpu = torch.device("cpu")
    assert list(parts_of_batch(asm, 8, cpu)) == [slice(0, 4), slice(4, 8)]
    assert list(parts_of_batch(asm, 8, cpu, "bfloat16")) == [slice(0, 8)]
    assert list(parts_of_batch(asm, 8, torch.device("cuda"))) == [slice(0, 8)]
    asm.transformer.config.ffn_multiplier = 6
    assert list(parts_of_batch(asm, 8, cpu, "bfloat16")) == [slice(0, 4), slice(4, 8)]


def test_mask_ratio_can_be_uniform_per_row() -> None:
    torch.manual_seed(0)
    n, nvec = 20_000, torch.full((50,), 4)
    result = mask_actions(torch.zeros(n, 50).long(), nvec, 0.15, mask_prob_max=1.0)
    shares = result.selected.float().mean(1)  # one draw of p per row, seen through 50 slots
    assert shares.mean().item() == pytest.approx(0.575, abs=0.01)
    assert result.mask_prob == pytest.approx(0.575)
    # A uniform p and a binomial of 50 draws.
    variance = 0.85**2 / 12 + (0.575 - (0.575**2 + 0.85**2 / 12)) / 50
    assert shares.var().item() == pytest.approx(variance, rel=0.03)
    assert (shares > 0.51).float().mean().item() == pytest.approx(0.49 / 0.85, abs=0.015)
    is_mask = result.tokens == 4
    assert is_mask.sum().item() / result.selected.sum().item() == pytest.approx(0.8, abs=0.005)
    assert result.selected.sum(0).max() <= result.capacity < n


def test_accuracy_on_hidden_slots_counts_slots_and_whole_rows() -> None:
    torch.manual_seed(1)
    asm = ActionStructureModel(3, NVEC, TransformerConfig(width=8, n_blocks=1, n_heads=2)).eval()
    actions, observations = masked(200)[0], torch.randn(200, 3)
    everything = torch.tensor(NVEC).expand(200, -1)
    right = asm.slot_layout.argmax(asm(observations, everything)) == actions
    slot, exact = masked_accuracies(asm, observations, actions, [1.0]).values()
    assert slot == pytest.approx(right.float().mean().item())
    assert exact == pytest.approx(right.all(1).float().mean().item())
    assert 0 < exact < slot < 1
