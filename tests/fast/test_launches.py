"""What GPUs compute in fewer kernels, here on the CPU, against how it is written elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from d3rlpy.models.encoders import EncoderFactory, VectorEncoderFactory
from torch import nn

from spin_d3rlpy.asm import ActionStructureModel, TransformerConfig, masked_action_loss
from spin_d3rlpy.asm.objectives.masked import mask_actions
from spin_d3rlpy.critics.base import ValueFunction, expectile_loss, squared_error
from spin_d3rlpy.critics.factored import FactoredCritic
from spin_d3rlpy.fast import losses, switch
from spin_d3rlpy.fast.mlp import linear_layers
from spin_d3rlpy.fast.precision import autocast, backward
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.base import FactoredPolicy, joint_log_prob
from spin_d3rlpy.policies.features import QueryFeatures, SlotPolicy
from tests.algos.problems import NVEC

B, OBS = 19, 7
Result = tuple[torch.Tensor, list[torch.Tensor | None]]


def on_gpu_path(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    monkeypatch.setattr(switch, "counts_launches", lambda _: on)


def both_ways(
    monkeypatch: pytest.MonkeyPatch,
    module: nn.Module,
    call: Callable[[], torch.Tensor],
    precision: Any = "float32",
) -> list[Result]:
    """Outputs and all parameters' gradients, as written elsewhere and in few kernels."""
    results = []
    for on in (False, True):
        on_gpu_path(monkeypatch, on)
        module.zero_grad()
        torch.manual_seed(3)
        with autocast("cpu", precision):
            outputs = call()
            factors = torch.arange(1.0, outputs.numel() + 1).view(outputs.shape)
            backward((outputs * factors).sum())
        results.append((outputs.detach(), [p.grad for p in module.parameters()]))
    return results


def assert_same(results: list[Result], tolerance: float) -> None:
    (expected, slopes), (found, others) = results
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for slope, other in zip(slopes, others, strict=True):
        assert slope is not None
        assert other is not None
        assert slope.shape == other.shape
        assert (slope - other).norm() <= tolerance * slope.norm()


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
@pytest.mark.parametrize("units", [[13, 13], [13, 11], [5]])
@pytest.mark.parametrize("n_critics", [1, 3])
def test_critics(
    monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float, units: Any, n_critics: int
) -> None:
    torch.manual_seed(0)
    critic = FactoredCritic((OBS,), VectorEncoderFactory(units), NVEC, n_critics)
    x = torch.randn(B, OBS)
    assert_same(both_ways(monkeypatch, critic, lambda: critic.utilities(x), precision), tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_values_and_factored_policies(
    monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float
) -> None:
    torch.manual_seed(0)
    x, factory = torch.randn(B, OBS), VectorEncoderFactory([13, 13])
    value = ValueFunction((OBS,), factory)
    assert value(x).shape == (B,)
    assert_same(both_ways(monkeypatch, value, lambda: value(x), precision), tolerance)
    policy = FactoredPolicy((OBS,), factory.create((OBS,)), NVEC)
    assert_same(both_ways(monkeypatch, policy, lambda: policy(x), precision), tolerance)


def test_dropout_and_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the draws differ: each output's mean over draws, and its slope, are the plain ones."""
    torch.manual_seed(0)
    factory = VectorEncoderFactory([16, 16], dropout_rate=0.4)
    policy = FactoredPolicy((OBS,), factory.create((OBS,)), NVEC)
    x = torch.randn(1, OBS).expand(20_000, -1).contiguous()
    results = []
    for on in (False, True):
        on_gpu_path(monkeypatch, on)
        policy.zero_grad()
        outputs = policy(x).mean(0)
        (outputs * torch.arange(1.0, 11.0)).sum().backward()
        results.append((outputs.detach(), [p.grad for p in policy.parameters()]))
    assert_same(results, 0.05)
    policy.eval()
    assert_same(both_ways(monkeypatch, policy, lambda: policy(x[:5])), 1e-5)


@pytest.mark.parametrize(
    "factory",
    [
        VectorEncoderFactory([5], activation="tanh"),
        VectorEncoderFactory([5], use_layer_norm=True),
        VectorEncoderFactory([5, 5], exclude_last_activation=True),
    ],
)
def test_other_encoders_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, factory: EncoderFactory
) -> None:
    critic = FactoredCritic((OBS,), factory, NVEC)
    assert linear_layers(critic[0].encoder, critic[0].head) is None  # type: ignore[arg-type]
    x = torch.randn(B, OBS)
    assert_same(both_ways(monkeypatch, critic, lambda: critic.utilities(x)), 0.0)


def test_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = nn.Linear(1, 2 * B)
    targets, weight, one = torch.randn(B), torch.rand(B), torch.ones(1)
    logits = nn.Linear(1, B * sum(NVEC))
    actions = torch.stack([torch.randint(m, (B,)) for m in NVEC], 1)

    def values() -> torch.Tensor:
        return module(one).view(2, B)  # type: ignore[no-any-return]

    def log_prob() -> torch.Tensor:
        return joint_log_prob(SlotLayout(NVEC), logits(one).view(B, -1), actions)

    for network, call in (
        (module, lambda: squared_error(values(), targets)),
        (module, lambda: expectile_loss(values().flatten(), 0.8)),
        (logits, log_prob),
    ):
        assert_same(both_ways(monkeypatch, network, call), 1e-5)
    torch.testing.assert_close(
        losses.weighted_mean(targets, weight, -1.0), -(targets * weight).mean()
    )


CONFIG = TransformerConfig(
    width=12,
    n_blocks=2,
    n_heads=3,
    n_state_tokens=2,
    head_hidden=7,
    dropout=0.0,
    attention_dropout=0.0,
)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_pretraining(monkeypatch: pytest.MonkeyPatch, precision: str, tolerance: float) -> None:
    torch.manual_seed(2)
    asm = ActionStructureModel(OBS, NVEC, CONFIG)
    observations = torch.randn(64, OBS)
    actions = torch.stack([torch.randint(m, (64,)) for m in NVEC], 1)
    masked = mask_actions(actions, asm.mask_ids, 0.4)
    results = both_ways(
        monkeypatch,
        asm,
        lambda: masked_action_loss(asm, observations, actions, masked).loss,
        precision,
    )
    named = [name for name, _ in asm.named_parameters()]
    # The keys' half of this bias has no gradient but rounding errors.
    kept = [i for i, name in enumerate(named) if not name.endswith("key_value.bias")]
    assert_same([(loss, [g[i] for i in kept]) for loss, g in results], tolerance)


@pytest.mark.parametrize("frozen", [True, False])
def test_slot_policies(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    torch.manual_seed(2)
    policy = SlotPolicy(NVEC, QueryFeatures(OBS, len(NVEC), CONFIG, frozen), CONFIG)
    trained = nn.ModuleList(copy.copy(module) for _, module in policy.trainable_modules())
    x = torch.randn(B, OBS)
    results = both_ways(monkeypatch, trained, lambda: policy(x))
    assert_same([(out, [g for g in slopes if g is not None]) for out, slopes in results], 1e-3)
