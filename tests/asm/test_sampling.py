"""Samples and log-probabilities of whole actions, against enumeration of small action spaces."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import chisquare

from spin_d3rlpy.asm import ActionStructureModel, MLPConfig, TransformerConfig
from spin_d3rlpy.asm.rules import all_different, at_most_changed, every, never, within_budget
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    NoAllowedChoiceError,
    NvecMismatchError,
)

NVEC = [3, 2, 4]
ACTIONS = list(itertools.product(*map(range, NVEC)))
SIZES = [TransformerConfig(width=16, n_blocks=1, n_heads=2, head_hidden=16), MLPConfig(width=16)]


def model(sizes: Any = SIZES[1], nvec: list[int] = NVEC) -> ActionStructureModel:
    """A model that is sure enough of its choices for wrong distributions to show."""
    torch.manual_seed(1)
    asm = ActionStructureModel(4, nvec, sizes)
    with torch.no_grad():
        asm.heads.get_parameter("weight" if isinstance(sizes, MLPConfig) else "weight2").mul_(4)
    return asm


@torch.no_grad()
def enumerated(
    asm: ActionStructureModel, state: torch.Tensor, orders: Any, temperature: float = 1.0
) -> torch.Tensor:
    """The probability of each of `ACTIONS`, sampled in orders that are equally likely."""
    asm.eval()
    total = torch.zeros(len(ACTIONS))
    for order in orders:
        for k, action in enumerate(ACTIONS):
            tokens, p = torch.tensor([NVEC]), 1.0
            for slot in order:
                logits = asm(state, tokens)[0].split(NVEC)[slot] / temperature
                p *= float(logits.softmax(0)[action[slot]])
                tokens[0, slot] = action[slot]
            total[k] += p / len(orders)
    return total


def counts(samples: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([NVEC[1] * NVEC[2], NVEC[2], 1])
    return torch.bincount((samples * weights).sum(-1).flatten(), minlength=len(ACTIONS))


def p_value(samples: torch.Tensor, probabilities: torch.Tensor) -> float:
    seen = counts(samples)
    assert not seen[probabilities == 0].any()
    likely = probabilities * seen.sum() >= 5  # the others together are one class
    observed = [*seen[likely].tolist(), int(seen[~likely].sum())]
    expected = [*probabilities[likely].tolist(), float(probabilities[~likely].sum())]
    if not expected[-1]:
        observed, expected = observed[:-1], expected[:-1]
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [scale * e for e in expected]).pvalue)


ALL_ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("sizes", SIZES, ids=["transformer", "mlp"])
def test_samples_in_random_order_follow_the_enumerated_distribution(sizes: Any) -> None:
    asm, state = model(sizes), torch.randn(1, 4)
    expected = enumerated(asm, state, ALL_ORDERS)
    samples = asm.sample(state, 20_000)
    assert samples.shape == (20_000, 1, 3)
    assert p_value(samples, expected) > 0.01
    # It would be noticed: another order, another temperature, independent slots.
    assert p_value(samples, enumerated(asm, state, ALL_ORDERS, 1.3)) < 1e-6
    assert p_value(asm.sample(state, 20_000, slots_per_pass=3), expected) < 1e-6


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2)])
def test_fixed_orders_and_temperatures(order: tuple[int, ...]) -> None:
    asm, state = model(), torch.randn(1, 4)
    samples = asm.sample(state, 20_000, order=order, temperature=0.7)
    assert p_value(samples, enumerated(asm, state, [order], 0.7)) > 0.01


def test_conditionals_given_some_choices() -> None:
    asm, state = model(), torch.randn(1, 4)
    asm.eval()
    samples = asm.sample(state, 20_000, given=torch.tensor([[-1, 1, 2]]))
    assert (samples[..., 1:] == torch.tensor([1, 2])).all()
    expected = torch.zeros(len(ACTIONS))
    p = asm(state, torch.tensor([[NVEC[0], 1, 2]]))[0].split(NVEC)[0].softmax(0)
    for k, action in enumerate(ACTIONS):
        if action[1:] == (1, 2):
            expected[k] = p[action[0]].detach()
    assert p_value(samples, expected) > 0.01


def test_log_prob_is_the_enumerated_one_with_all_orders() -> None:
    asm, state = model(), torch.randn(1, 4)
    actions = torch.tensor(ACTIONS)
    observations = state.expand(len(ACTIONS), -1)
    exact = asm.log_prob(observations, actions, n_orders=6)
    torch.testing.assert_close(exact.exp(), enumerated(asm, state, ALL_ORDERS))
    torch.testing.assert_close(exact.exp().sum(), torch.tensor(1.0))
    some = asm.log_prob(observations, actions, n_orders=2)
    assert torch.equal(some, asm.log_prob(observations, actions, n_orders=2))
    assert not torch.allclose(some, exact)
    with pytest.raises(ValueError, match="n_orders of at least 1"):
        asm.log_prob(observations, actions, n_orders=0)


def test_zero_temperature_in_order_of_confidence_completes() -> None:
    asm, states = model(), torch.randn(30, 4)
    partial = torch.full((30, 3), -1)
    partial[:10, 1] = 1
    filled = asm.sample(states, given=partial, temperature=0.0, order="confidence")[0]
    assert torch.equal(filled, asm.complete(states, partial))


def test_given_noise_makes_samples_repeatable() -> None:
    asm, states = model(), torch.randn(5, 4)
    noise = torch.randn(2, 5, sum(NVEC))
    first, second = (asm.sample(states, 2, order=(0, 1, 2), noise=noise) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("slots_per_pass", [1, 2, 5])
@pytest.mark.parametrize("order", ["random", "confidence", (3, 1, 0, 2, 4)])
def test_no_sample_breaks_a_rule(order: Any, slots_per_pass: int) -> None:
    nvec = [6, 5, 6, 6, 5]
    asm, states = model(SIZES[0], nvec), torch.randn(200, 4)
    options: Any = {"order": order, "slots_per_pass": slots_per_pass}
    different = asm.sample(states, allowed=all_different(6), **options)[0]
    assert all(len(set(a)) == 5 for a in different.tolist())
    repeated = asm.sample(states, allowed=all_different(6, except_for=[2]), **options)[0]
    for action in repeated.tolist():
        others = [a for a in action if a != 2]
        assert len(set(others)) == len(others)
    assert (repeated == 2).sum(1).max() > 1
    default = [0, 1, 2, 3, 4]
    changed = asm.sample(states, allowed=at_most_changed(default, 2, 6), **options)[0]
    assert (changed != torch.tensor(default)).sum(1).max() == 2
    costs = torch.arange(6.0).expand(5, -1)
    cheap = asm.sample(states, allowed=within_budget(costs.tolist(), 7.0), **options)[0]
    assert cheap.sum(1).max() <= 7
    both = every(all_different(6), within_budget(costs.tolist(), 13.0))
    sums = asm.sample(states, allowed=both, given=torch.full((200, 5), -1), **options)[0]
    assert sums.sum(1).max() <= 13
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[:, 0] = False
    assert (asm.sample(states, allowed=mask, **options) > 0).all()


@pytest.mark.parametrize("given", [[1, 1, -1], [1, -1, 1], [3, 1, 1]])
def test_given_choices_that_break_a_rule_are_refused(given: list[int]) -> None:
    asm, states = model(nvec=[4, 4, 4]), torch.randn(4, 4)
    rows = [[-1, -1, -1]] * 3 + [given]
    for rule in (all_different(4), within_budget([[0.0, 0.1, 0.2, 0.3]] * 3, 0.15)):
        with pytest.raises(NoAllowedChoiceError, match=r"given choice [13] of slot"):
            asm.sample(states, given=rows, allowed=rule)
    kept = asm.sample(states, given=[[0, 1, -1]] * 4, allowed=all_different(4))
    assert (kept[..., :2] == torch.tensor([0, 1])).all()


def test_given_choices_that_break_a_mask_are_refused() -> None:
    asm, states = model(), torch.randn(4, 4)
    mask = torch.ones(4, 3, 4, dtype=torch.bool)
    mask[2, 0, 1] = False
    given = torch.tensor([[1, -1, -1]]).expand(4, -1)
    with pytest.raises(NoAllowedChoiceError, match="choice 1 of slot 0 in row 2"):
        asm.sample(states, given=given, allowed=mask)
    assert (asm.sample(states[:2], given=given[:2], allowed=mask[:2])[..., 0] == 1).all()


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    tenths=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6),
    kind=st.sampled_from([float, np.float32]),
)
def test_a_budget_that_costs_in_tenths_meet_exactly_is_kept(
    tenths: list[list[int]], kind: Any
) -> None:
    costs = [[kind(c) / kind(10) for c in row] for row in tenths]
    for choices in ([0] * len(tenths), [2] * len(tenths)):
        total = sum(row[c] for row, c in zip(tenths, choices, strict=True))
        rule = within_budget(costs, total / 10)
        assert opened_in_turn(rule, choices)
        if total:
            assert not opened_in_turn(within_budget(costs, (total - 1) / 10), choices)


def opened_in_turn(rule: Any, choices: list[int]) -> bool:
    """Whether a rule allows each of the choices in view of all others."""
    for slot, choice in enumerate(choices):
        partial = torch.tensor([choices])
        partial[0, slot] = -1
        if not rule(partial)[0, slot, choice]:
            return False
    return True


@pytest.mark.parametrize("together", [{1: 2}, {0: 1, 2: 3}, {0: 0, 1: 2, 2: 2}], ids=str)
def test_choices_that_are_never_made_together(together: dict[int, int]) -> None:
    rule = never(together, 4)
    for choices in itertools.product(range(4), repeat=3):
        is_forbidden = all(choices[slot] == choice for slot, choice in together.items())
        assert opened_in_turn(rule, list(choices)) is not is_forbidden
    open_slots = torch.full((2, 3), -1)
    assert rule(open_slots).all().item() is (len(together) > 1)
    asm, states = model(nvec=[4, 4, 4]), torch.randn(64, 4)
    slots, forbidden = list(together), torch.tensor(list(together.values()))
    for allowed, is_kept in ((rule, True), (None, False)):
        drawn = asm.sample(states, n=9, allowed=allowed)
        seen = (drawn[..., slots] == forbidden).all(-1).any().item()
        assert seen is not is_kept
    with pytest.raises(ValueError, match="at least one slot"):
        never({}, 4)


def test_a_rule_of_other_actions_is_refused() -> None:
    asm, states = model(nvec=[4, 4, 4]), torch.randn(4, 4)
    two_slots = torch.ones(4, 2, 4, dtype=torch.bool)
    for rule in (
        all_different(3),
        within_budget([[0.0, 1.0, 2.0, 3.0]] * 2, 2.0),
        at_most_changed([0, 0], 1, 4),
        lambda partial: two_slots,
    ):
        with pytest.raises(NvecMismatchError, match=r"\(4, 3, 4\)"):
            asm.sample(states, allowed=rule)


def test_where_no_choice_is_left() -> None:
    asm, states = model(), torch.randn(4, 4)
    with pytest.raises(NoAllowedChoiceError, match=r"slot \d in view of .*-1: open.*loosen"):
        asm.sample(states, allowed=torch.zeros(3, 4, dtype=torch.bool))
    # Slot 1 has two choices, which the others take.
    given = torch.tensor([[0, -1, 1]]).expand(4, -1)
    with pytest.raises(NoAllowedChoiceError, match="slot 1"):
        asm.sample(states, given=given, allowed=all_different(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n and slots_per_pass of at least 1"),
        ({"slots_per_pass": 0}, "slots_per_pass=0"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"order": (0, 0, 1)}, "each of 3 slots once"),
        ({"order": "left"}, "'regret' or each of 3 slots"),
        ({"allowed": torch.ones(3, 3, dtype=torch.bool)}, r"bool mask of shape \(4, 3, 4\)"),
        ({"allowed": torch.ones(3, 4)}, "got torch.float32"),
        ({"allowed": np.ones((3, 4))}, "got torch.float64"),
        ({"allowed": np.ones((3, 3), bool)}, r"bool mask of shape \(4, 3, 4\)"),
        ({"allowed": [[True] * 4, [True] * 3, [True] * 4]}, "bool mask .* list .* same length"),
        ({"allowed": "all"}, "a mask or a rule.*got 'all'"),
        ({"allowed": {0: [1]}}, "a mask or a rule.*got {0"),
        ({"allowed": lambda partial: partial}, r"rule .* got torch.int64 of shape \(4, 3\)"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"order": torch.tensor([0, 1, 1])}, "each of 3 slots once"),
        ({"order": np.array([[0, 1, 2]])}, "each of 3 slots once"),
        ({"order": np.array([0.0, 1.0, 2.0])}, "each of 3 slots once"),
        ({"order": 0}, "each of 3 slots once"),
        ({"noise": torch.zeros(1, 4, 8)}, r"noise of shape \(1, 4, 9\).*\(1, 4, 8\)"),
        ({"noise": torch.zeros(4, 9)}, r"noise of shape \(1, 4, 9\)"),
        ({"noise": torch.zeros(1, 4, 9, dtype=torch.int64)}, "Got torch.int64"),
        ({"noise": "none"}, "noise of shape"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model().sample(torch.randn(4, 4), **options)


@pytest.mark.parametrize("convert", [np.asarray, lambda x: x.tolist()], ids=["numpy", "list"])
@pytest.mark.parametrize("shape", [(3, 4), (40, 3, 4)], ids=["all", "each"])
def test_masks_and_choices_that_are_no_tensors_hold_as_well(
    convert: Any, shape: tuple[int, ...]
) -> None:
    asm, states = model(), torch.randn(40, 4)
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = True
    given = torch.full((40, 3), -1)
    given[:20, 1] = 1
    mask[..., 1, 1] = True  # what is given must be allowed
    expected = mask.expand(40, 3, 4).clone()
    expected[:20, 1] = torch.tensor([False, True, False, False])
    for order in ((2, 0, 1), convert(torch.tensor([2, 0, 1])), torch.tensor([2, 0, 1])):
        torch.manual_seed(0)
        tensors = asm.sample(states, 20, given=given, allowed=mask, order=(2, 0, 1))
        assert expected.expand(20, -1, -1, -1).gather(3, tensors[..., None]).all()
        torch.manual_seed(0)
        others = asm.sample(states, 20, given=convert(given), allowed=convert(mask), order=order)
        assert torch.equal(tensors, others)
    with pytest.raises(NoAllowedChoiceError):
        asm.sample(states, allowed=convert(torch.zeros(shape, dtype=torch.bool)))


@pytest.mark.parametrize("convert", [np.asarray, lambda x: x.tolist()], ids=["numpy", "list"])
def test_actions_and_noise_that_are_no_tensors(convert: Any) -> None:
    asm, states = model(), torch.randn(4, 4)
    noise = torch.randn(2, 4, sum(NVEC))
    fixed: dict[str, Any] = {"order": (0, 1, 2)}
    actions = asm.sample(states, 2, noise=noise, **fixed)
    assert torch.equal(asm.sample(states, 2, noise=convert(noise), **fixed), actions)
    chosen = convert(actions[0])
    assert torch.equal(asm.log_prob(states, chosen), asm.log_prob(states, actions[0]))
    assert torch.equal(
        asm.log_likelihood(states, chosen).total, asm.log_likelihood(states, actions[0]).total
    )
    partial = torch.tensor([[1, -1, -1]]).expand(4, -1)
    assert torch.equal(asm.complete(states, convert(partial)), asm.complete(states, partial))


def test_a_rule_may_return_numpy() -> None:
    rule = at_most_changed((0, 0, 0), 1, 4)
    in_numpy: Any = lambda partial: rule(partial).numpy()  # noqa: E731
    samples = model().sample(torch.randn(50, 4), allowed=in_numpy)
    assert ((samples != 0).sum(-1) <= 1).all()


@pytest.mark.parametrize(
    "given", [np.zeros((1, 3)), [[0, 1]], [[0, 1, 0], [0]], "none", np.ones((1, 3), bool)]
)
def test_given_choices_of_other_kinds_are_refused(given: Any) -> None:
    with pytest.raises(InvalidActionSpaceError, match=r"integer actions of shape \(1, 3\)"):
        model().sample(torch.randn(1, 4), given=given)


def test_wrong_given_choices() -> None:
    with pytest.raises(InvalidActionSpaceError, match=r"Slot 1 of row 0 is 2; .*-1: open"):
        model().sample(torch.randn(1, 4), given=torch.tensor([[0, 2, 0]]))


def test_a_temperature_that_vanishes_in_float32_breaks_no_mask() -> None:
    allowed = torch.tensor([[False, True, True, False], [False, True, True, False]])
    asm = model(nvec=[4, 4])
    states = torch.randn(200, 4)
    samples = asm.sample(states, temperature=1e-300, allowed=allowed)
    assert set(samples.unique().tolist()) <= {1, 2}
    greedy = asm.sample(states, temperature=0.0, allowed=allowed, order=(0, 1))
    assert torch.equal(
        asm.sample(states, temperature=1e-300, allowed=allowed, order=(0, 1)), greedy
    )
