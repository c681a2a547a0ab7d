"""One DecQN step against a plain computation written from the formulas."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers import SGDFactory

from spin_d3rlpy import DecQN
from tests.algos.problems import NVEC, random_buffer

GAMMA, POLYAK, LR = 0.9, 0.2, 0.05


@pytest.mark.parametrize("decomposition", ["mean", "sum"])
def test_loss_and_target_equal_the_formulas(decomposition: str) -> None:
    torch.manual_seed(3)
    algo = DecQN(
        encoder_factory=VectorEncoderFactory(hidden_units=[13]),
        optim_factory=SGDFactory(),
        learning_rate=LR,
        gamma=GAMMA,
        tau=POLYAK,
        decomposition=decomposition,
    )
    algo.build_with_dataset(random_buffer())
    assert algo.impl is not None
    networks = algo.impl.modules.get_torch_modules()
    online, target = networks["q_funcs"], networks["targ_q_funcs"]
    with torch.no_grad():
        for p in target.parameters():
            p.add_(torch.randn_like(p))
    batch = random_buffer().sample_transition_batch(211)
    # Returns over several steps, as the behavior trainer's replay has them.
    batch = dataclasses.replace(batch, intervals=torch.randint(1, 4, (211, 1)).float())
    assert batch.terminals.any()

    def combine(values: list[torch.Tensor]) -> torch.Tensor:
        total = torch.stack(values).sum(0)
        return total / 3 if decomposition == "mean" else total

    def by_slot(network: torch.nn.Module, x: object) -> list[list[torch.Tensor]]:
        return [list(q(x).split(NVEC, dim=1)) for q in network.children()]

    rows = torch.arange(211)
    with torch.no_grad():
        u_online = by_slot(online, batch.next_observations)
        u_target = by_slot(target, batch.next_observations)
        best = [(u_online[0][i] + u_online[1][i]).argmax(1) for i in range(3)]
        next_value = combine(
            [(u_target[0][i] + u_target[1][i])[rows, best[i]] / 2 for i in range(3)]
        )
        discount = GAMMA ** batch.intervals[:, 0] * (1 - batch.terminals[:, 0])
        y = batch.rewards[:, 0] + discount * next_value
        errors = [
            combine([u[i][rows, batch.actions[:, i]] for i in range(3)]) - y
            for u in by_slot(online, batch.observations)
        ]
        huber = [torch.where(e.abs() < 1, e**2 / 2, e.abs() - 0.5).mean() for e in errors]
        expected = float(huber[0] + huber[1])
    before = [p.detach().clone() for p in target.parameters()]
    assert algo.update(batch)["loss"] == pytest.approx(expected, rel=1e-5)
    for b, t, o in zip(before, target.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(t, (1 - POLYAK) * b + POLYAK * o)
