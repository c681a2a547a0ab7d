"""The decoder, compared with loops over rows and slots."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spin_d3rlpy.asm.decoding import IndependentConditionals, Passes, decode, urgency_of
from spin_d3rlpy.asm.model import ActionStructureModel, MLPConfig
from spin_d3rlpy.asm.rules import OPEN, RowMask, all_different
from spin_d3rlpy.asm.sampling import sample
from spin_d3rlpy.errors import NoAllowedChoiceError
from spin_d3rlpy.nvec import SlotLayout, Slots, gumbel_noise

NVEC = [4, 5, 3]
LAYOUT = SlotLayout(NVEC)


def table(seed: int = 0) -> torch.Tensor:
    return LAYOUT.split(torch.randn(20, 12, generator=torch.Generator().manual_seed(seed)))


def urgency(scores: torch.Tensor, order: str) -> float:
    """How early a slot is chosen, by scores `(K,)`."""
    if (scores == -torch.inf).all():
        return float("inf")
    p = scores.softmax(0) if order != "regret" else scores
    best, second = p.topk(2).values.tolist()
    return float(best) if order == "confidence" else best - second


def plain(scores: torch.Tensor, order: str, rule: Any, noise: torch.Tensor) -> list[list[int]]:
    """Slots row by row, one at a time, the most urgent first."""
    actions = []
    for row in range(len(scores)):
        action = torch.full((1, len(NVEC)), OPEN)
        for _ in NVEC:
            allowed = scores[row].masked_fill(~rule(action)[0], -torch.inf)
            slots = [i for i in range(len(NVEC)) if action[0, i] == OPEN]
            if order != "slots":
                slots = sorted(slots, key=lambda i: -urgency(allowed[i], order))
            slot = slots[0]
            action[0, slot] = (allowed[slot] + noise[row, slot]).argmax()
        actions.append(action[0].tolist())
    return actions


@pytest.mark.parametrize("is_sample", [False, True])
@pytest.mark.parametrize("order", ["slots", "confidence", "margin", "regret"])
def test_slots_are_filled_in_order_among_what_a_rule_allows(order: Any, is_sample: bool) -> None:
    scores, noise = table(), gumbel_noise(torch.empty(20, 12)) if is_sample else None
    found = decode(IndependentConditionals(LAYOUT, scores), order, all_different(5), noise)
    added = torch.zeros_like(scores) if noise is None else LAYOUT.split(noise, fill=0.0)
    assert found.tolist() == plain(scores, order, all_different(5), added)


def test_orders_differ() -> None:
    """The likeliest choice, the largest lead in probability, and that in log-probability."""
    p = torch.tensor([[0.52, 0.475, 0.005], [0.45, 0.275, 0.275]])
    assert urgency_of(p.log()[None], "confidence").argmax(1).item() == 0
    assert urgency_of(p.log()[None], "margin").argmax(1).item() == 1
    values = torch.tensor([[[1.0, 0.0, -50.0, -50.0], [0.0, -1.1, -1.1, -1.1]]])
    assert urgency_of(values, "margin").argmax(1).item() == 0
    assert urgency_of(values, "regret").argmax(1).item() == 1


def test_what_is_given_stays_and_counts_for_the_rule() -> None:
    given = torch.full((20, 3), OPEN)
    given[::2, 1] = 2
    for order in ("slots", "confidence"):
        conditionals = IndependentConditionals(LAYOUT, table())
        found = decode(conditionals, order, all_different(5), given=given)
        assert (found[::2, 1] == 2).all()
        assert (found[::2, [0, 2]] != 2).all()
        free = decode(conditionals, order, all_different(5))
        assert torch.equal(found[1::2], free[1::2])


def test_masks_leave_slots_independent() -> None:
    scores = table()
    may = torch.rand(20, 3, 5) < 0.5
    may[..., 0] = True
    found = decode(IndependentConditionals(LAYOUT, scores), "confidence", RowMask(may))
    assert torch.equal(found, scores.masked_fill(~may, -torch.inf).argmax(-1))


def test_other_scores_count_where_no_choice_with_a_score_is_allowed() -> None:
    scores, otherwise = torch.full((1, 3, 5), -torch.inf), torch.zeros(1, 3, 5)
    scores[0, :, 1] = torch.tensor([3.0, 2.0, 1.0])  # all want the same, and nothing else
    otherwise[0, :, 4] = 1.0
    slot_layout = SlotLayout([5] * 3)
    found = decode(
        IndependentConditionals(slot_layout, scores),
        "regret",
        all_different(5),
        otherwise=otherwise,
    )
    assert sorted(found[0].tolist())[:2] == [0, 1]
    assert 4 in found[0]


@pytest.mark.parametrize("order", ["slots", "confidence"])
def test_a_slot_without_a_choice_is_named(order: Any) -> None:
    conditionals = IndependentConditionals(SlotLayout([2] * 3), torch.zeros(4, 3, 2))
    with pytest.raises(NoAllowedChoiceError, match="No choice is allowed for slot 2 in view of"):
        decode(conditionals, order, all_different(2))


def test_a_temperature_of_nearly_zero_is_greedy() -> None:
    conditionals = IndependentConditionals(LAYOUT, table())
    cold = decode(conditionals, noise=gumbel_noise, temperature=1e-9)
    assert torch.equal(cold, decode(conditionals))
    assert not torch.equal(decode(conditionals, noise=gumbel_noise), cold)


@pytest.mark.parametrize("passes", [Passes(), Passes(2), Passes(entropy_bound=1e9)])
def test_fewer_passes_see_fewer_choices(passes: Passes) -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(3, NVEC, MLPConfig(width=16)).eval()
    conditionals, looks = asm.slot_by_slot(torch.randn(20, 3)), []
    look = conditionals.logits_given

    def counted(actions: torch.Tensor, slots: Slots = None) -> torch.Tensor:
        looks.append((actions != OPEN).sum(1))
        return look(actions, slots)

    conditionals.logits_given = counted  # type: ignore[method-assign]
    decode(conditionals, "confidence", passes=passes)
    made = [int(n[0]) for n in looks]
    assert made == {1: [0, 1, 2], 2: [0, 2]}[passes.slots] if not passes.entropy_bound else [0]


def test_slots_in_order_are_as_ranks_say() -> None:
    torch.manual_seed(0)
    asm, x = ActionStructureModel(3, NVEC, MLPConfig(width=16)).eval(), torch.randn(20, 3)
    ranks = torch.arange(3.0).expand(20, -1)
    by_ranks = decode(asm.slot_by_slot(x), ranks)
    assert torch.equal(by_ranks, decode(asm.slot_by_slot(x), "slots"))
    assert torch.equal(by_ranks, sample(asm, x, temperature=0.0, order="slots")[0])


def test_a_sure_slot_is_urgent() -> None:
    scores = torch.tensor([[[0.0, 0.0, 0.0], [2.0, 0.0, -9.0]]])
    for order in ("confidence", "margin", "regret"):
        first, second = urgency_of(scores, order)[0].tolist()
        assert second > first
