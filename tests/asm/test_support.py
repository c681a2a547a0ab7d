from __future__ import annotations

import pytest
import torch

from spin_d3rlpy import SPINIQL
from spin_d3rlpy.asm import ActionStructureModel, PretrainingConfig, TransformerConfig, pretrain
from spin_d3rlpy.errors import InvalidActionSpaceError
from spin_d3rlpy.training.loop import Run

NVEC = [3, 5, 2]
SIZES = TransformerConfig(width=16, n_blocks=1, n_heads=2, head_hidden=16)


@pytest.fixture
def asm() -> ActionStructureModel:
    torch.manual_seed(0)
    return ActionStructureModel(4, NVEC, SIZES)


def random_actions(n: int) -> torch.Tensor:
    return torch.stack([torch.randint(m, (n,)) for m in NVEC], 1)


def test_each_slot_is_hidden_alone_and_scored_by_its_softmax(asm: ActionStructureModel) -> None:
    observations, actions = torch.randn(7, 4), random_actions(7)
    asm.train()  # dropout must be off all the same
    result = asm.log_likelihood(observations, actions)
    assert asm.training
    asm.eval()
    for b in range(7):
        for i, m in enumerate(NVEC):
            tokens = actions[b].clone()
            tokens[i] = m
            logits = asm(observations[b : b + 1], tokens[None])[0].split(NVEC)[i]
            torch.testing.assert_close(result.per_slot[b, i], logits.log_softmax(0)[actions[b, i]])
    torch.testing.assert_close(result.total, result.per_slot.sum(1))


def test_chunks_do_not_matter(asm: ActionStructureModel, monkeypatch: pytest.MonkeyPatch) -> None:
    observations, actions = torch.randn(7, 4), random_actions(7)
    partial = actions.masked_fill(torch.rand(7, 3) < 0.5, -1)
    scores, filled = asm.log_likelihood(observations, actions), asm.complete(observations, partial)
    monkeypatch.setattr("spin_d3rlpy.asm.sampling._ROWS_AT_ONCE", 2)
    torch.testing.assert_close(asm.log_likelihood(observations, actions).total, scores.total)
    assert torch.equal(asm.complete(observations, partial), filled)


def test_completion_takes_the_surest_slot_first(asm: ActionStructureModel) -> None:
    observations = torch.randn(20, 4)
    partial = random_actions(20)
    partial[:10] = -1
    partial[10:, 1:] = -1
    filled = asm.complete(observations, partial)
    asm.eval()
    for b in range(20):
        action = partial[b].clone()
        while (action == -1).any():
            tokens = torch.where(action == -1, torch.tensor(NVEC), action)
            split = asm(observations[b : b + 1], tokens[None])[0].split(NVEC)
            best = {i: x.softmax(0).max(0) for i, x in enumerate(split) if action[i] == -1}
            slot = max(best, key=lambda i: float(best[i].values.detach()))
            action[slot] = best[slot].indices
        assert torch.equal(filled[b], action)
    specified = partial != -1
    assert torch.equal(filled[specified], partial[specified])


def test_nothing_to_complete(asm: ActionStructureModel) -> None:
    actions = random_actions(3)
    assert torch.equal(asm.complete(torch.randn(3, 4), actions), actions)


class Coupled:
    """Slot 1 repeats slot 0."""

    transition_count = 500

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randint(3, (batch_size, 1))
        return torch.randn(batch_size, 5), first.expand(-1, 2)


def test_a_combination_never_seen_scores_lower_although_its_parts_are_common() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(5, [3, 3], SIZES)
    config = PretrainingConfig(batch_size=250, learning_rate=5e-3, max_updates=300, n_epochs=999)
    pretrain(asm, Coupled(), config, Run(show_progress=False))
    first = torch.randint(3, (50, 1))
    seen = asm.log_likelihood(torch.randn(50, 5), first.expand(-1, 2)).total
    unseen = asm.log_likelihood(torch.randn(50, 5), torch.cat([first, (first + 1) % 3], 1)).total
    assert seen.min() > unseen.max() + 2
    known = torch.cat([first, torch.full_like(first, -1)], 1)
    assert torch.equal(asm.complete(torch.randn(50, 5), known), first.expand(-1, 2))


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (torch.tensor([[0, 5, 0]]), "Slot 1 of row 0 is 5; expected 0 to 4"),
        (torch.tensor([[0, -1, 0]]), "is -1; expected 0 to 4"),
        (torch.tensor([[0, 0]]), r"shape \(1, 3\)"),
        (torch.tensor([[0.0, 0.0, 0.0]]), "integer actions"),
    ],
)
def test_wrong_actions_are_refused(
    asm: ActionStructureModel, actions: torch.Tensor, problem: str
) -> None:
    with pytest.raises(InvalidActionSpaceError, match=problem):
        asm.log_likelihood(torch.randn(1, 4), actions)


def test_wrong_partial_actions_are_refused(asm: ActionStructureModel) -> None:
    with pytest.raises(InvalidActionSpaceError, match=r"expected -1 to 1 \(-1: open\)"):
        asm.complete(torch.randn(1, 4), torch.tensor([[0, 0, -2]]))


def test_an_algorithm_without_asm_says_so(asm: ActionStructureModel) -> None:
    algo = SPINIQL(asm=asm)
    algo.create_impl((4,), 5)
    observations, actions = torch.randn(3, 4), random_actions(3)
    scores = algo.support(observations.numpy(), actions.numpy())
    torch.testing.assert_close(
        torch.from_numpy(scores), asm.log_likelihood(observations, actions).per_slot
    )
    algo._asm = None
    with pytest.raises(RuntimeError, match="set_asm"):
        algo.support(observations.numpy(), actions.numpy())
