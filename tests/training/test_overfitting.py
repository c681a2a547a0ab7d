"""Errors that surely rise are noticed, and the best weights come back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spin_d3rlpy.training.overfitting import STEPS_BETWEEN_CHECKS, TRIAL_STEPS, OverfittingCheck

FALLING = [1.0 - 0.05 * i for i in range(12)]


@pytest.mark.parametrize(
    ("levels", "risen_at"),
    [
        ([1.0, 0.5, 0.9], 3),
        ([1.0, 0.8, 0.6, 0.5, 0.9, 0.4, 0.3], 5),
        ([*FALLING, 0.9, 0.9, 0.3], 14),  # after a tenth more steps than the least took
        ([*FALLING, 0.9, 0.3, 0.2], None),  # weights that move about
        ([1.0, 0.5, 0.501, 0.503, 0.499, 0.504], None),  # luck
    ],
)
def test_errors_that_surely_rise_are_told_from_luck(
    levels: list[float], risen_at: int | None
) -> None:
    torch.manual_seed(0)
    coming, noise = iter(levels), torch.rand(400)
    check = OverfittingCheck(
        "It", nn.Linear(1, 1), lambda: next(coming) + 0.2 * noise + 0.1 * torch.rand(400)
    )
    told = [check.after_step(STEPS_BETWEEN_CHECKS * i, 0.1) for i in range(1, len(levels) + 1)]
    assert told == [i == risen_at for i in range(1, len(levels) + 1)]  # once
    assert check.is_to_drop_out == (risen_at is not None)
    measured = len(levels) if risen_at is None else risen_at
    assert list(coming) == levels[measured:]  # and not measured any further


@pytest.mark.parametrize(("rise", "is_to_drop_out"), [(0.01, False), (0.03, True)])
def test_a_rise_that_is_sure_has_to_be_large_as_well(rise: float, is_to_drop_out: bool) -> None:
    coming = iter([2.0, 1.0, 1.0 + rise, 1.0 + rise])
    check = OverfittingCheck("It", nn.Linear(1, 1), lambda: torch.full((9,), next(coming)))
    for i in range(1, 4):
        check.after_step(STEPS_BETWEEN_CHECKS * i, 0.1)
    assert check.is_to_drop_out == is_to_drop_out


def test_the_network_goes_back_to_the_least_errors() -> None:
    network = nn.Linear(1, 1, bias=False)

    def errors() -> torch.Tensor:
        return (network.weight - 0.2).square().detach()[0].expand(9)

    check = OverfittingCheck("It", network, errors)
    for i, weight in enumerate([1.0, 0.3, 0.6], 1):
        with torch.no_grad():
            network.weight.fill_(weight)
        check.after_step(STEPS_BETWEEN_CHECKS * i, 0.1)
    assert check.is_to_drop_out
    assert network.weight.item() == pytest.approx(0.3)


def test_late_in_a_training_the_best_weights_come_back_without_dropout() -> None:
    network = nn.Linear(1, 1, bias=False)

    def errors() -> torch.Tensor:
        return (network.weight - 0.2).square().detach()[0].expand(9)

    check = OverfittingCheck("It", network, errors)
    for i, (weight, is_back) in enumerate([(1.0, 0), (0.3, 0), (0.6, 1), (0.7, 1), (0.25, 0)], 1):
        with torch.no_grad():
            network.weight.fill_(weight)
        assert check.after_step(STEPS_BETWEEN_CHECKS * i, 0.1 if i < 3 else 0.6) == bool(is_back)
        assert not check.is_to_drop_out
        assert network.weight.item() == pytest.approx(0.3 if is_back else weight)


def test_it_measures_every_so_many_steps() -> None:
    measured = []

    def errors() -> torch.Tensor:
        measured.append(1)
        return torch.ones(4)

    check = OverfittingCheck("It", nn.Linear(1, 1), errors)
    for step in range(1, STEPS_BETWEEN_CHECKS):
        check.after_step(step, 0.1)
    assert not measured
    check.after_step(STEPS_BETWEEN_CHECKS, 0.1)
    assert measured


@pytest.mark.parametrize(("with_dropout", "helps"), [(0.29, True), (0.305, True), (0.4, False)])
def test_dropout_that_does_not_help_ends(with_dropout: float, helps: bool) -> None:
    """Errors are those of the least ones after 300 steps, 2 % more at most, or it is taken back."""
    network, level = nn.Linear(1, 1, bias=False), 1.0

    def check_at(step: int, errors: float, weight: float) -> bool:
        nonlocal level
        level = errors
        with torch.no_grad():
            network.weight.fill_(weight)
        return check.after_step(step, 0.1)

    check = OverfittingCheck("It", network, lambda: torch.full((9,), level))
    for step, errors in ((100, 1.0), (200, 0.3)):
        assert not check_at(step, errors, errors)
    assert check_at(300, 0.5, 0.5)
    assert check.is_to_drop_out
    for step in range(400, 300 + TRIAL_STEPS, STEPS_BETWEEN_CHECKS):
        assert not check_at(step, 9.0, 9.0)  # at first they are larger
    assert check_at(300 + TRIAL_STEPS, with_dropout, 7.0) != helps
    assert check.is_to_drop_out == helps
    assert network.weight.item() == pytest.approx(7.0 if helps else 0.3)
    # Never again; what rises later only brings the best weights back.
    assert check_at(400 + TRIAL_STEPS, 0.8, 8.0) != helps
    assert check.is_to_drop_out == helps


def test_a_resumed_trial_ends_when_the_whole_one_does() -> None:
    def check_of(errors: list[float]) -> OverfittingCheck:
        coming = iter(errors)
        return OverfittingCheck("It", nn.Linear(1, 1), lambda: torch.full((9,), next(coming)))

    first = check_of([1.0, 0.5, 0.9])
    for step in (100, 200, 300):
        first.after_step(step, 0.1)
    again = check_of([0.8])
    again.load_state_dict(first.state_dict())
    assert [again.after_step(step, 0.1) for step in (400, 500, 600)] == [False, False, True]
    assert not again.is_to_drop_out
