"""Adam with its lists kept makes torch's steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from spin_d3rlpy.fused_adam import FusedAdam


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def pair(**fields: Any) -> list[tuple[nn.Sequential, torch.optim.Adam]]:
    """The same network with torch's Adam and with ours."""
    nets = [network(), network()]
    groups: list[list[dict[str, Any]]] = [
        [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.1}]
        for net in nets
    ]
    theirs = torch.optim.Adam(groups[0], lr=0.01, fused=True, foreach=False, **fields)
    ours = FusedAdam(torch.optim.Adam(groups[1], lr=0.01, **fields))
    return [(nets[0], theirs), (nets[1], ours)]


def train(net: nn.Sequential, optim: torch.optim.Optimizer, n_steps: int = 4) -> None:
    for i in range(n_steps):
        optim.zero_grad()
        x = torch.linspace(-1, 1, 14).view(2, 7) + i
        net(x).square().sum().backward()
        optim.step()


def assert_same(a: nn.Module, b: nn.Module) -> None:
    torch.testing.assert_close(list(a.parameters()), list(b.parameters()), rtol=0, atol=0)


@pytest.mark.parametrize("fields", [{}, {"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}])
def test_steps_are_torchs(fields: dict[str, Any]) -> None:
    (net, theirs), (other, ours) = pair(**fields)
    train(net, theirs)
    train(other, ours)
    assert not torch.equal(next(network().parameters()), next(net.parameters()))
    assert_same(net, other)
    expected, found = theirs.state_dict(), ours.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    for i, state in expected["state"].items():
        assert all(torch.equal(state[k], found["state"][i][k]) for k in state)


def test_states_are_loaded_by_either_from_either() -> None:
    (net, theirs), (other, ours) = pair()
    train(net, theirs)
    train(other, ours)
    saved = copy.deepcopy(theirs.state_dict()), copy.deepcopy(ours.state_dict())
    train(net, theirs, 1)  # states that are not those of the files
    train(other, ours, 1)
    theirs.load_state_dict(saved[1])
    ours.load_state_dict(saved[0])
    train(net, theirs)
    train(other, ours)
    assert_same(net, other)


def test_a_changed_learning_rate_counts() -> None:
    (net, theirs), (other, ours) = pair()
    for optim, module in ((theirs, net), (ours, other)):
        train(module, optim)
        optim.param_groups[0]["lr"] = 0.5
        train(module, optim)
    assert_same(net, other)


def test_groups_can_be_added_between_steps() -> None:
    (net, theirs), (other, ours) = pair()
    for optim, module in ((theirs, net), (ours, other)):
        more = nn.Parameter(torch.ones(3))
        module.register_parameter("more", more)
        train(module, optim)
        optim.add_param_group({"params": [more], "lr": 0.2, "fused": True, "foreach": False})
        for _ in range(3):
            optim.zero_grad()
            (more.square().sum() + module(torch.ones(1, 7)).sum()).backward()
            optim.step()
        assert not torch.equal(more, torch.ones(3))
    assert_same(net, other)


def test_parameters_without_gradients_stay_as_they_are() -> None:
    """At first, then with, then again without."""
    (net, theirs), (other, ours) = pair()
    for optim, module in ((theirs, net), (ours, other)):
        for frozen in (True, False, True):
            module[0].requires_grad_(not frozen)
            train(module, optim)
    assert_same(net, other)
    module[0].requires_grad_(True)
    optim.zero_grad()
    before = copy.deepcopy(module)
    optim.step()
    assert_same(before, module)


def test_closures_and_hooks_are_called_and_gradients_zeroed() -> None:
    _, (net, ours) = pair()
    calls = []
    ours.register_step_post_hook(lambda *_: calls.append("hook"))

    def closure() -> torch.Tensor:
        ours.zero_grad(set_to_none=False)
        loss: torch.Tensor = net(torch.ones(1, 7)).sum()
        loss.backward()
        return loss

    assert isinstance(ours.step(closure), torch.Tensor)
    assert calls == ["hook"]
    ours.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
    ours.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_a_copy_has_states_of_its_own() -> None:
    _, (net, ours) = pair()
    train(net, ours)
    module, optim = copy.deepcopy((net, ours))
    before = copy.deepcopy(net)
    train(module, optim)
    assert_same(before, net)
    train(net, ours)
    assert_same(module, net)


@pytest.mark.parametrize(
    "fields", [{"amsgrad": True}, {"maximize": True}, {"lr": torch.tensor(0.1)}]
)
def test_what_it_does_not_do_it_does_not_replace(fields: dict[str, Any]) -> None:
    parameters = list(network().parameters())
    assert not FusedAdam.can_replace(torch.optim.Adam(parameters, **fields))
    assert not FusedAdam.can_replace(torch.optim.AdamW(parameters))
    assert not FusedAdam.can_replace(torch.optim.SGD(parameters))
    optim = torch.optim.Adam(parameters)
    assert FusedAdam.can_replace(optim)
    sum(p.sum() for p in parameters).backward()  # type: ignore[union-attr]
    optim.step()
    assert not FusedAdam.can_replace(optim)
