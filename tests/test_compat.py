"""Each workaround does what it says, and fails here when the host no longer needs it."""

from __future__ import annotations

import dataclasses

import d3rlpy
import pytest
import torch
from d3rlpy.optimizers import AdamFactory, AdamWFactory, SGDFactory

from spin_d3rlpy._compat import fuse_adam


@pytest.mark.parametrize("factory_class", [AdamFactory, AdamWFactory])
def test_fused_adam_makes_the_same_steps(factory_class: type[AdamFactory]) -> None:
    outcomes = []
    for fused in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Linear(7, 3)
        optim = factory_class(weight_decay=0.1).create(net.named_modules(), lr=0.01, compiled=False)
        if fused:
            fuse_adam(optim)
            assert optim.optim.param_groups[0]["fused"]
        for _ in range(5):
            optim.zero_grad()
            net(torch.ones(2, 7)).square().sum().backward()
            optim.step()
        outcomes.append(net.weight.detach())
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_other_optimizers_are_left_alone() -> None:
    net = torch.nn.Linear(7, 3)
    optim = SGDFactory().create(net.named_modules(), lr=0.01, compiled=False)
    groups = [dict(group) for group in optim.optim.param_groups]
    assert fuse_adam(optim) is optim
    assert optim.optim.param_groups == groups


def test_d3rlpys_adam_still_has_no_fused_option() -> None:
    assert "fused" not in {field.name for field in dataclasses.fields(AdamFactory)}


def test_d3rlpys_loop_still_drops_steps_that_do_not_fill_an_epoch() -> None:
    """Why `fitter` has a loop of its own."""
    algo = d3rlpy.algos.DQNConfig(batch_size=4).create()
    buffer = d3rlpy.dataset.ReplayBuffer(
        d3rlpy.dataset.InfiniteBuffer(),
        episodes=[
            d3rlpy.dataset.Episode(
                torch.zeros(9, 3).numpy(),
                torch.arange(9)[:, None].numpy() % 2,
                torch.zeros(9, 1).numpy(),
                terminated=True,
            )
        ],
    )
    adapter = d3rlpy.logging.NoopAdapterFactory()
    assert algo.fit(buffer, n_steps=5, show_progress=False, logger_adapter=adapter) == []
