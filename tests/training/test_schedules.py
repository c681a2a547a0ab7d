"""Learning-rate schedules and averages of weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from spin_d3rlpy.training.averages import WeightAverage
from spin_d3rlpy.training.loop import Loop, Run
from spin_d3rlpy.training.schedules import Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [1.0, 1.0, 1.0, 1.0]),
        (Schedule(warmup=0.2), [0.5, 1.0, 1.0, 1.0]),
        (Schedule("linear"), [0.9, 0.5, 0.25, 0.0]),
        (Schedule("linear", 0.2), [0.5, 0.625, 0.3125, 0.0]),
        (Schedule("cosine"), [(1 + math.cos(math.pi * p)) / 2 for p in (0.1, 0.5, 0.75, 1.0)]),
    ],
    ids=str,
)
def test_the_factor_rises_and_falls(schedule: Schedule, expected: list[float]) -> None:
    found = [schedule.factor(progress) for progress in (0.1, 0.5, 0.75, 1.0)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "warmup", "message"),
    [("exponential", 0.0, "lr_schedule"), ("linear", 1.0, "warmup"), ("linear", -0.1, "warmup")],
)
def test_bad_schedules_are_refused(name: str, warmup: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(name, warmup)  # type: ignore[arg-type]


def test_an_average_follows_the_weights_and_soon_forgets_the_first() -> None:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    network.bias.requires_grad_(False)  # frozen parameters are not averaged
    average = WeightAverage(network, 0.9)
    expected = network.weight.detach().clone()
    bias = network.bias.clone()
    for step in range(100):
        with torch.no_grad():
            network.weight.add_(torch.randn(2, 3))
        average.update(step)
        keep = min(0.9, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * network.weight.detach()
    assert torch.allclose(average.average.get_parameter("weight"), expected, atol=1e-5)
    assert torch.equal(average.average.get_parameter("bias"), bias)


def test_averaged_weights_are_in_use_only_within_the_context() -> None:
    network = nn.Linear(2, 1)
    average = WeightAverage(network, 0.5)
    with torch.no_grad():
        network.weight.add_(1.0)
    own, averaged = network.weight.detach().clone(), average.average.get_parameter("weight").clone()
    with average.in_use():
        assert torch.equal(network.weight, averaged)
    assert torch.equal(network.weight, own)
    average.sync()
    assert torch.equal(average.average.get_parameter("weight"), own)


@pytest.mark.parametrize("decay", [0.0, 1.0, -1.0])
def test_bad_decays_are_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="ema_decay"):
        WeightAverage(nn.Linear(1, 1), decay)


def test_the_loop_sets_learning_rates_of_given_and_loaded_optimizers() -> None:
    network = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    rates = []

    def run(n_steps: int) -> None:
        loop = Loop(
            Run(show_progress=False),
            "stage",
            n_steps,
            n_steps,
            optimizers=[optimizer],
            schedule=Schedule("linear"),
        )

        def step() -> dict[str, torch.Tensor]:
            rates.append(optimizer.param_groups[0]["lr"])
            return {}

        for _ in loop.epochs(step):
            loop.add_row(loop.take_row())

    run(4)
    assert rates == pytest.approx([0.0875, 0.0625, 0.0375, 0.0125])
    state = optimizer.state_dict()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    optimizer.load_state_dict(state)  # its current rate is the last one
    run(2)
    assert rates[4:] == pytest.approx([0.075, 0.025])
