"""Variational and contrastive pre-training against computations from their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, TransformerConfig, pretrain
from spin_d3rlpy.asm.objectives.ablations import (
    ContrastiveActionModeling,
    VariationalActionModeling,
)
from spin_d3rlpy.asm.objectives.base import PretrainingObjective
from spin_d3rlpy.asm.pretraining import ObjectiveName
from spin_d3rlpy.training.loop import Run

NVEC = [3, 5, 2]
SIZES = TransformerConfig(
    width=8, n_blocks=1, n_heads=2, head_hidden=8, dropout=0.0, attention_dropout=0.0
)
Array = NDArray[np.float64]


def problem(n: int) -> tuple[ActionStructureModel, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    actions = torch.stack([torch.randint(m, (n,)) for m in NVEC], 1)
    asm = ActionStructureModel(4, NVEC, SIZES).double()
    return asm, torch.randn(n, 4, dtype=torch.float64), actions


def linear(layer: torch.nn.Module, x: Array) -> Array:
    assert isinstance(layer, torch.nn.Linear)
    result: Array = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    return result


def gelu(x: Array) -> Array:
    erf = torch.erf(torch.from_numpy(x / np.sqrt(2))).numpy()
    result: Array = 0.5 * x * (1 + erf)
    return result


def log_softmax(x: Array) -> Array:
    result: Array = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return result


def trunk_features(asm: ActionStructureModel, x: torch.Tensor, a: torch.Tensor) -> Array:
    with torch.no_grad():
        features: Array = asm.trunk(x, asm.embedding.weight, a + asm.row_offsets).numpy()
    return features


def test_variational_loss_is_reconstruction_plus_weighted_divergence() -> None:
    asm, x, a = problem(6)
    vam = VariationalActionModeling(asm, latent_size=5, kl_weight=0.3).double()
    noise = torch.randn(6, 5, dtype=torch.float64)
    result = vam.loss(x, a, noise)

    pooled = trunk_features(asm, x, a).mean(1)
    encoded = linear(vam.posterior, pooled)
    mu, log_var = encoded[:, :5], encoded[:, 5:]
    z = mu + np.exp(log_var / 2) * noise.numpy()
    with torch.no_grad():
        state = asm.transformer.state_encoder(x).numpy()
    hidden = gelu(linear(vam.decoder[0], np.concatenate([z, state], 1)))
    logits = np.split(linear(vam.decoder_out, hidden), np.cumsum(NVEC)[:-1], axis=1)
    nll = np.mean([[-log_softmax(y)[b, a[b, i]] for i, y in enumerate(logits)] for b in range(6)])
    kl = np.mean(0.5 * (mu**2 + np.exp(log_var) - 1 - log_var).sum(1))
    assert result.loss.item() == pytest.approx(nll + 0.3 * kl, rel=1e-10)
    hits = [[y[b].argmax() == a[b, i] for i, y in enumerate(logits)] for b in range(6)]
    assert result.accuracy.item() == pytest.approx(np.mean(hits))


def test_contrastive_loss_tells_own_context_from_those_of_other_rows() -> None:
    asm, x, a = problem(6)
    cam = ContrastiveActionModeling(asm, projection_size=4, temperature=0.2).double()
    # The product computes in float32 from here on, whatever the precision.
    result = cam.loss(x, a)

    features = trunk_features(asm, x, a)  # (6, 3, 8)
    losses, hits = [], []
    for i in range(3):
        others = np.delete(features, i, axis=1).mean(1)
        u = linear(cam.project_slot[2], gelu(linear(cam.project_slot[0], features[:, i])))
        v = linear(cam.project_context[2], gelu(linear(cam.project_context[0], others)))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        similarity = u @ v.T / 0.2
        losses += [-log_softmax(similarity)[b, b] for b in range(6)]
        hits += [similarity[b].argmax() == b for b in range(6)]
    assert result.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert result.accuracy.item() == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("tokens_at_once", [4, 12, 1000])
def test_variational_gradients_of_parts_are_those_of_the_batch(
    tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asm, x, a = problem(7)
    bytes_at_once = tokens_at_once * 3 * asm.config.width * 4
    monkeypatch.setattr("spin_d3rlpy.asm.objectives.base.BYTES_AT_ONCE", bytes_at_once)
    vam = VariationalActionModeling(asm, latent_size=5).double()
    torch.manual_seed(1)
    noise = torch.randn(7, 5)
    whole = vam.loss(x, a, noise)
    trained = [p for n, p in vam.named_parameters() if "heads" not in n and "embedding" not in n]
    expected = torch.autograd.grad(whole.loss, trained)
    torch.manual_seed(1)
    result = vam.add_gradients(x, a)
    torch.testing.assert_close(result.loss, whole.loss.detach())
    for parameter, gradient in zip(trained, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


class Coupled:
    """Slot 1 repeats slot 0, which the state tells."""

    transition_count = 500

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randint(3, (batch_size, 1))
        x = torch.randn(batch_size, 5)
        x[:, :1] = first - 1.0
        return x, first.expand(-1, 2)


@pytest.mark.parametrize(
    "name", ["masked", "variational", pytest.param("contrastive", marks=pytest.mark.slow)]
)
def test_every_objective_trains_the_trunk_and_predicts_held_out_data(name: ObjectiveName) -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(5, [3, 3], SIZES)
    before = {k: v.clone() for k, v in asm.trunk.named_parameters()}
    config = PretrainingConfig(
        objective=name, batch_size=100, learning_rate=3e-3, n_epochs=40, validation_share=0.5
    )
    epochs = pretrain(asm, Coupled(), config, Run(show_progress=False), held_out=Coupled())
    assert all(not torch.equal(before[k], v) for k, v in asm.trunk.named_parameters())
    first, last = epochs[0], epochs[-1]
    assert last["loss"] < first["loss"]
    if name == "masked":
        assert last["validation_slot_accuracy_at_0.15"] > 0.99
        assert last["validation_exact_accuracy_at_1"] > 0.99
    else:
        assert last["validation_loss"] < first["validation_loss"]
    if name == "variational":
        assert last["validation_slot_accuracy"] > 0.99
    if name == "contrastive":
        # Among 256 rows, chance is 1/256.
        assert last["validation_context_accuracy"] > 10 / 256


@pytest.mark.parametrize("name", ["masked", "variational", "contrastive"])
def test_measuring_does_not_change_training(name: ObjectiveName) -> None:
    weights = []
    for held_out in (None, Coupled()):
        torch.manual_seed(0)
        asm = ActionStructureModel(5, [3, 3], TransformerConfig(width=8, n_blocks=1, n_heads=2))
        config = PretrainingConfig(objective=name, batch_size=100, n_epochs=2)
        pretrain(asm, Coupled(), config, Run(show_progress=False), held_out=held_out)
        weights.append(asm.trunk.state_dict())
    assert all(torch.equal(v, weights[1][k]) for k, v in weights[0].items())


def test_stops_when_held_out_data_is_not_predicted_better_and_keeps_the_best_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    snapshots = []

    def validate(self: PretrainingObjective, *_: object) -> tuple[float, dict[str, float]]:
        snapshots.append({k: v.clone() for k, v in self.asm.state_dict().items()})
        return next(scores), {}

    monkeypatch.setattr("spin_d3rlpy.asm.objectives.masked.MaskedActionModeling.validate", validate)
    asm = ActionStructureModel(5, [3, 3], SIZES)
    config = PretrainingConfig(batch_size=250, n_epochs=9, validation_share=0.1, patience=2)
    epochs = pretrain(asm, Coupled(), config, Run(show_progress=False), held_out=Coupled())
    assert len(epochs) == 4
    assert all(torch.equal(v, snapshots[1][k]) for k, v in asm.state_dict().items())


def test_patience_needs_something_to_wait_for() -> None:
    with pytest.raises(ValueError, match="validation_share"):
        PretrainingConfig(patience=2)
    config = PretrainingConfig(patience=2, validation_share=0.1)
    with pytest.raises(ValueError, match="held_out"):
        pretrain(ActionStructureModel(5, [3, 3], SIZES), Coupled(), config)


@pytest.mark.parametrize(
    "fields",
    [{"objective": "mam"}, {"mask_prob_max": 0.1}, {"mask_prob_max": 1.1}, {"validation_share": 1}],
)
def test_impossible_settings_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        PretrainingConfig(**fields)  # type: ignore[arg-type]


def test_one_sub_action_has_no_context() -> None:
    asm = ActionStructureModel(5, [3], SIZES)
    with pytest.raises(ValueError, match="single one"):
        PretrainingConfig(objective="contrastive").create_objective(asm)
