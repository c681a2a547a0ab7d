from __future__ import annotations

import pytest
import torch
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy.critics.base import ValueFunction
from spin_d3rlpy.critics.factored import FactoredCritic
from spin_d3rlpy.fast.precision import autocast
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.training.averages import polyak_update

NVEC = [3, 5, 2]
ENCODER = VectorEncoderFactory(hidden_units=[11])


@pytest.mark.parametrize(("decomposition", "divisor"), [("sum", 1), ("mean", 3)])
def test_joint_value_combines_the_chosen_utilities(decomposition: str, divisor: int) -> None:
    critic = FactoredCritic((7,), ENCODER, NVEC, 2, decomposition)  # type: ignore[arg-type]
    observations = torch.randn(4, 7)
    actions = torch.tensor([[0, 4, 1], [2, 0, 0], [1, 3, 1], [0, 1, 0]])
    utilities = critic.utilities(observations)
    assert utilities.shape == (2, 4, 10)
    values = critic.values(SlotLayout(NVEC), utilities, actions)
    for e in range(2):
        for b in range(4):
            a = actions[b].tolist()
            u = utilities[e, b]
            expected = (u[a[0]] + u[3 + a[1]] + u[8 + a[2]]) / divisor
            torch.testing.assert_close(values[e, b], expected)


@pytest.mark.parametrize("decomposition", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_of_chosen_utilities_alone_are_the_same_in_both_directions(
    decomposition: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    critic = FactoredCritic((7,), ENCODER, NVEC, 2, decomposition).to(dtype)  # type: ignore[arg-type]
    observations = torch.randn(6, 7, dtype=dtype)
    actions = torch.stack([torch.randint(m, (6,)) for m in NVEC], dim=1)
    slot_layout = SlotLayout(NVEC)
    alone = critic.q_values(slot_layout, observations, actions)
    of_all = critic.values(slot_layout, critic.utilities(observations), actions)
    assert alone.shape == (2, 6)
    assert alone.dtype == dtype
    torch.testing.assert_close(alone, of_all)
    weights = torch.randn_like(alone)
    parameters = list(critic.parameters())
    for actual, expected in zip(
        torch.autograd.grad((alone * weights).sum(), parameters),
        torch.autograd.grad((of_all * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)


def test_chosen_utilities_are_added_in_float32_within_autocast() -> None:
    torch.manual_seed(0)
    critic = FactoredCritic((7,), ENCODER, NVEC)
    observations, actions = torch.randn(4, 7), torch.zeros(4, 3, dtype=torch.int64)
    slot_layout = SlotLayout(NVEC)
    with autocast("cpu", "bfloat16"):
        alone = critic.q_values(slot_layout, observations, actions)
        of_all = critic.values(slot_layout, critic.utilities(observations), actions)
    assert alone.dtype == torch.float32
    torch.testing.assert_close(alone, of_all)


def test_members_start_different() -> None:
    utilities = FactoredCritic((7,), ENCODER, NVEC).utilities(torch.randn(4, 7))
    assert not torch.allclose(utilities[0], utilities[1])


def test_unknown_decomposition_is_refused() -> None:
    with pytest.raises(ValueError, match="'sum' or 'mean', got 'max'"):
        FactoredCritic((7,), ENCODER, NVEC, 2, "max")  # type: ignore[arg-type]


def test_state_values_are_one_per_row() -> None:
    assert ValueFunction((7,), ENCODER)(torch.randn(4, 7)).shape == (4,)


def test_polyak_update_moves_the_target_by_tau() -> None:
    online, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    expected = [
        0.9 * t + 0.1 * o for t, o in zip(target.parameters(), online.parameters(), strict=True)
    ]
    before = [p.clone() for p in online.parameters()]
    polyak_update(target, online, 0.1)
    for e, t in zip(expected, target.parameters(), strict=True):
        torch.testing.assert_close(t, e)
    assert all(torch.equal(b, p) for b, p in zip(before, online.parameters(), strict=True))
