"""One IQL step against a plain float64 computation written from the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import SGDFactory
from torch import nn

from spin_d3rlpy import FactoredIQL
from tests.algos.problems import NVEC, random_buffer

LR = 0.05
BETA, TAU, CLIP, POLYAK, GAMMA = 2.0, 0.8, 1.3, 0.1, 0.9


class ReferenceIQL:
    """IQL's formulas on a copy of the networks' weights, slot by slot, in float64."""

    def __init__(self, modules: Any) -> None:
        self.w: dict[str, dict[str, torch.Tensor]] = {
            name: {k: v.detach().double().requires_grad_() for k, v in network.named_parameters()}
            for name, network in modules.get_torch_modules().items()
        }

    def mlp(self, w: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Linear, ReLU, linear; weights in the order they were registered."""
        w1, b1, w2, b2 = w.values()
        return torch.clamp(x @ w1.T + b1, min=0) @ w2.T + b2

    def q(self, name: str, member: int, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        keys = [k for k in self.w[name] if k.startswith(f"{member}.")]
        flat = self.mlp({k: self.w[name][k] for k in keys}, s)
        total = torch.zeros(len(s), dtype=torch.float64)
        start = 0
        for i, m in enumerate(NVEC):
            total = total + flat[torch.arange(len(s)), start + a[:, i]]
            start += m
        return total

    def log_prob(self, s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        flat = self.mlp(self.w["policy"], s)
        total = torch.zeros(len(s), dtype=torch.float64)
        start = 0
        for i, m in enumerate(NVEC):
            p = torch.exp(flat[:, start : start + m])
            p = p / p.sum(1, keepdim=True)
            total = total + torch.log(p[torch.arange(len(s)), a[:, i]])
            start += m
        return total

    def value(self, s: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.w["value_func"], s)[:, 0]

    def descend(self, name: str, loss: torch.Tensor) -> None:
        parameters = list(self.w[name].values())
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data -= LR * g

    def step(self, batch: Any) -> dict[str, float]:
        s, s2 = batch.observations.double(), batch.next_observations.double()
        a = batch.actions.long()
        r, d = batch.rewards.double()[:, 0], batch.terminals.double()[:, 0]
        target_q = torch.minimum(
            self.q("targ_q_funcs", 0, s, a), self.q("targ_q_funcs", 1, s, a)
        ).detach()
        v_before = self.value(s)
        u = target_q - v_before
        value_loss = torch.where(u < 0, (1 - TAU) * u**2, TAU * u**2).mean()
        self.descend("value_func", value_loss)
        y = (r + GAMMA * (1 - d) * self.value(s2)).detach()
        critic_loss = sum(((self.q("q_funcs", e, s, a) - y) ** 2).mean() for e in (0, 1))
        assert isinstance(critic_loss, torch.Tensor)
        self.descend("q_funcs", critic_loss)
        weight = torch.clamp(torch.exp(BETA * u.detach()), max=CLIP)
        actor_loss = -(weight * self.log_prob(s, a)).mean()
        self.descend("policy", actor_loss)
        for k, target in self.w["targ_q_funcs"].items():
            target.data = (1 - POLYAK) * target.data + POLYAK * self.w["q_funcs"][k].data
        assert (weight == CLIP).any()
        assert (weight < CLIP).any()
        return {
            "value_loss": value_loss.item(),
            "critic_loss": critic_loss.item(),
            "actor_loss": actor_loss.item(),
        }


@pytest.fixture
def algo() -> FactoredIQL:
    torch.manual_seed(7)
    sgd, small = SGDFactory(), VectorEncoderFactory(hidden_units=[13])
    algo = FactoredIQL(
        actor_encoder_factory=small,
        critic_encoder_factory=small,
        value_encoder_factory=small,
        actor_optim_factory=sgd,
        critic_optim_factory=sgd,
        actor_learning_rate=LR,
        critic_learning_rate=LR,
        weight_temp=BETA,
        expectile=TAU,
        max_weight=CLIP,
        tau=POLYAK,
        gamma=GAMMA,
    )
    algo.build_with_dataset(random_buffer())
    return algo


def test_losses_and_all_networks_after_two_steps_equal_the_formulas(algo: FactoredIQL) -> None:
    assert algo.impl is not None
    # Targets that differ from the online critic, so that mixing them up shows.
    with torch.no_grad():
        for p in algo.impl.modules.get_torch_modules()["targ_q_funcs"].parameters():
            p.add_(torch.randn_like(p) * 0.1)
    reference = ReferenceIQL(algo.impl.modules)
    for _ in range(2):
        batch = random_buffer().sample_transition_batch(211)
        assert batch.terminals.any()
        expected, found = reference.step(batch), algo.update(batch)
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5), name
    for name, network in algo.impl.modules.get_torch_modules().items():
        assert isinstance(network, nn.Module)
        for key, parameter in network.named_parameters():
            torch.testing.assert_close(
                parameter.double(), reference.w[name][key], rtol=1e-4, atol=1e-6
            )
