"""The attention-free structure model and the any-order objective."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

from spin_d3rlpy.asm import (
    ActionStructureModel,
    MLPConfig,
    PretrainingConfig,
    TransformerConfig,
    load_asm,
    pretrain,
    save_asm,
)
from spin_d3rlpy.asm.model import SlotMLP
from spin_d3rlpy.asm.objectives.masked import (
    AnyOrderActionModeling,
    MaskedActions,
    mask_any_number,
    masked_action_loss,
)
from spin_d3rlpy.asm.probe import ProbeConfig, attention_maps, linear_probe
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.training.loop import Run
from tests.saved_files import read_saved, write_saved

NVEC = [3, 5, 2]
SIZES: list[MLPConfig | TransformerConfig] = [
    MLPConfig(11, 3),
    TransformerConfig(width=8, n_blocks=1, n_heads=2),
]


def problem(
    n: int, config: MLPConfig | TransformerConfig = SIZES[0]
) -> tuple[ActionStructureModel, torch.Tensor, torch.Tensor, MaskedActions]:
    torch.manual_seed(0)
    asm = ActionStructureModel(4, NVEC, config).eval()
    actions = torch.stack([torch.randint(m, (n,)) for m in NVEC], 1)
    return asm, torch.randn(n, 4), actions, mask_any_number(actions, torch.tensor(NVEC))


def test_log_probabilities_equal_those_of_one_hot_inputs() -> None:
    asm, x, actions, masked = problem(23)
    trunk, hidden = asm.trunk, []
    assert isinstance(trunk, SlotMLP)
    for row in range(23):
        inputs = [x[row]]
        for slot, m in enumerate(NVEC):
            token = int(masked.tokens[row, slot])
            assert token == (m if masked.selected[row, slot] else actions[row, slot])
            bits = torch.zeros(m + 1)
            bits[token] = 1.0  # a choice, or the mask bit
            inputs.append(bits)
        hidden.append(torch.cat(inputs))
    h = torch.stack(hidden)
    first = torch.cat([trunk.state_encoder.weight, asm.embedding.weight.T], 1)
    h = h @ first.T + trunk.state_encoder.bias
    h = layer_norm(h, (11,), trunk.hidden[0].weight, trunk.hidden[0].bias).relu()  # type: ignore[arg-type]
    for i in (2, 5):
        h = trunk.hidden[i](h)
        norm = trunk.hidden[i + 1]
        h = layer_norm(h, (11,), norm.weight, norm.bias).relu()  # type: ignore[arg-type]
    expected = h @ asm.heads.weight.T + asm.heads.bias  # type: ignore[operator]
    for a, b in zip(asm(x, masked.tokens).split(NVEC, 1), expected.split(NVEC, 1), strict=True):
        torch.testing.assert_close(a.log_softmax(1), b.log_softmax(1))


@pytest.mark.parametrize(
    ("full_share", "shares"),
    [(0.0, [0.2, 0.2, 0.2, 0.2, 0.2]), (0.5, [0.1, 0.1, 0.1, 0.1, 0.6]), (1.0, [0, 0, 0, 0, 1])],
)
def test_every_number_of_slots_and_every_slot_is_hidden_equally_often(
    full_share: float, shares: list[float]
) -> None:
    n, slots = 40_000, 5
    actions = torch.zeros(n, slots, dtype=torch.long)
    torch.manual_seed(0)
    tokens, selected, mean = mask_any_number(actions, torch.full((slots,), 2), full_share)
    assert torch.equal(tokens, 2 * selected)  # hidden, never random
    counts = torch.bincount(selected.sum(1), minlength=slots + 1)
    assert counts[0] == 0
    expected = n * torch.tensor(shares)
    bound = 5 * (expected * (1 - expected / n)).sqrt()
    assert ((counts[1:] - expected).abs() <= bound).all()
    assert mean == pytest.approx(sum(k * share / slots for k, share in enumerate(shares, 1)))
    assert selected.double().mean(0).tolist() == pytest.approx([mean] * slots, abs=0.015)


@pytest.mark.parametrize("config", SIZES, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("rows_at_once", [1, 5, 100])
def test_every_row_is_the_mean_over_its_hidden_slots(
    config: MLPConfig | TransformerConfig, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asm, x, actions, _ = problem(17, config)
    bytes_at_once = 4 * rows_at_once * config.entries_a_row(len(NVEC))
    monkeypatch.setattr("spin_d3rlpy.asm.objectives.base.BYTES_AT_ONCE", bytes_at_once)
    torch.manual_seed(5)
    result = AnyOrderActionModeling(asm).add_gradients(x, actions)
    torch.manual_seed(5)
    masked = mask_any_number(actions, asm.mask_ids)
    total, hits = torch.zeros(()), 0.0
    for row in range(17):
        logits = asm(x[row : row + 1], masked.tokens[row : row + 1])[0].split(NVEC)
        k = int(masked.selected[row].sum())
        for slot in range(len(NVEC)):
            if masked.selected[row, slot]:
                total = total - logits[slot].log_softmax(0)[actions[row, slot]] / (17 * k)
                hits += float(logits[slot].argmax() == actions[row, slot]) / (17 * k)
    torch.testing.assert_close(result.loss, total.detach())
    assert result.accuracy.item() == pytest.approx(hits)
    expected = torch.autograd.grad(total, list(asm.parameters()))
    for parameter, gradient in zip(asm.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_the_published_loss_takes_an_mlp_too() -> None:
    asm, x, actions, masked = problem(29)
    losses = [
        torch.nn.functional.cross_entropy(logits, actions[:, i], reduction="none")
        for i, logits in enumerate(asm(x, masked.tokens).split(NVEC, 1))
    ]
    expected = torch.stack(losses, 1)[masked.selected].mean()
    torch.testing.assert_close(masked_action_loss(asm, x, actions, masked).loss, expected)


class Coupled:
    """Slot 1 repeats slot 0, of three choices that the state does not tell: log 3 for both."""

    transition_count = 500

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randint(3, (batch_size, 1))
        return torch.randn(batch_size, 5), first.expand(-1, 2)


@pytest.mark.parametrize("config", [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.slow)])
def test_held_out_likelihood_per_slot_is_that_of_the_joint_distribution(
    config: MLPConfig | TransformerConfig,
) -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(5, [3, 3], config)
    settings = PretrainingConfig(
        masking="any_order",
        batch_size=250,
        learning_rate=1e-2,
        max_updates=300,
        n_epochs=999,
        validation_share=0.5,
    )
    rows = pretrain(asm, Coupled(), settings, Run(show_progress=False), held_out=Coupled())
    assert rows[-1]["validation_nll_per_slot"] == pytest.approx(math.log(3) / 2, abs=0.03)
    assert rows[-1]["validation_slot_accuracy_at_1"] < 0.45
    x = torch.randn(40, 5)
    first = torch.randint(3, (40, 1))
    known = torch.cat([first, torch.full_like(first, -1)], 1)
    assert torch.equal(asm.complete(x, known), first.expand(-1, 2))
    assert asm.log_likelihood(x, first.expand(-1, 2)).per_slot.exp().min() > 0.9


def test_saved_and_loaded(tmp_path: Path) -> None:
    asm, x, _, masked = problem(7)
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    loaded = load_asm(path)
    assert loaded.config == MLPConfig(11, 3)
    assert torch.equal(loaded(x, masked.tokens), asm(x, masked.tokens))
    header, weights = read_saved(path)
    write_saved(path, header | {"architecture": "transformer"}, weights)
    with pytest.raises(InvalidCheckpointError, match="n_layers"):
        load_asm(path)


def test_an_architecture_that_is_unknown_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "asm.safetensors"
    save_asm(problem(1)[0], path)
    header, weights = read_saved(path)
    write_saved(path, header | {"architecture": "mixer"}, weights)
    with pytest.raises(InvalidCheckpointError, match="mixer"):
        load_asm(path)


def test_what_needs_attention_says_so() -> None:
    asm, x, _, masked = problem(7)
    for objective in ("variational", "contrastive"):
        with pytest.raises(ValueError, match=r"MLPConfig.*TransformerConfig"):
            PretrainingConfig(objective=objective).create_objective(asm)
    with pytest.raises(ValueError, match=r"MLPConfig.*TransformerConfig"):
        attention_maps(asm, x, masked.tokens)


def test_probes_read_the_features_that_slots_share() -> None:
    class Sign:
        transition_count = 500

        def sample_observations_and_actions(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.randn(n, 4)
            return x, torch.stack([(x[:, i] > 0).long() for i in range(3)], 1)

    torch.manual_seed(0)
    asm = ActionStructureModel(4, NVEC, MLPConfig(64))
    result = linear_probe(asm, Sign(), Sign(), ProbeConfig(200, 512, test_rows=1024))
    assert result.slot > 0.9


@pytest.mark.parametrize("fields", [{"width": 0}, {"n_layers": 1.5}])
def test_impossible_sizes_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected (width in|n_layers to be a whole)"):
        MLPConfig(**fields)


def test_impossible_masking_is_refused() -> None:
    with pytest.raises(ValueError, match="'bernoulli' or 'any_order'"):
        PretrainingConfig(masking="all")  # type: ignore[arg-type]


def test_an_impossible_share_of_full_masks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        PretrainingConfig(masking="any_order", full_mask_share=1.5)


def test_pretraining_sees_the_wanted_share_of_full_masks() -> None:
    asm, x, actions, _ = problem(17)
    config = PretrainingConfig(masking="any_order", full_mask_share=1.0)
    found = config.create_objective(asm).add_gradients(x, actions).loss
    masked = mask_any_number(actions, asm.mask_ids, full_share=1.0)
    expected = AnyOrderActionModeling(asm).loss(x, actions, masked).loss
    torch.testing.assert_close(found, expected)
