from __future__ import annotations

import math
from unittest import mock

import pytest
import torch

from spin_d3rlpy.asm import (
    ActionStructureModel,
    PretrainingConfig,
    TransformerConfig,
    pretrain,
    pretraining,
)
from spin_d3rlpy.training.loop import Run

SMALL = TransformerConfig(width=16, n_blocks=1, n_heads=2, head_hidden=16, dropout=0.0)


class CoupledActions:
    """Slot 1 repeats slot 0, whatever the state; slot 0 is uniform over three choices."""

    transition_count = 500

    def __init__(self) -> None:
        self.requests: list[int] = []

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.requests.append(batch_size)
        first = torch.randint(3, (batch_size, 1))
        return torch.randn(batch_size, 5), first.expand(-1, 2)


def test_learns_how_slots_go_together() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(5, [3, 3], SMALL)
    pretrain(
        asm,
        CoupledActions(),
        PretrainingConfig(batch_size=250, learning_rate=5e-3, max_updates=300, n_epochs=999),
        Run(show_progress=False),
    )
    assert not asm.training
    observations = torch.randn(60, 5)
    known = torch.randint(3, (60,))
    tokens = torch.stack([known, torch.full((60,), 3)], 1)
    logits = asm.slot_layout.split(asm(observations, tokens))
    assert (logits[:, 1].argmax(1) == known).all()
    # With both hidden, no choice is much likelier than another.
    alone = asm.slot_layout.split(asm(observations, torch.full((60, 2), 3))).softmax(-1)
    assert alone.max() < 0.6


def test_epochs_are_ceil_n_over_batch_updates() -> None:
    source = CoupledActions()
    config = PretrainingConfig(n_epochs=3, batch_size=64)
    epochs = pretrain(
        ActionStructureModel(5, [3, 3], SMALL), source, config, Run(show_progress=False)
    )
    per_epoch = math.ceil(500 / 64)
    assert source.requests == [64] * (3 * per_epoch)
    assert [e["step"] for e in epochs] == [per_epoch, 2 * per_epoch, 3 * per_epoch]
    assert epochs[-1]["samples"] == 64 * 3 * per_epoch


@pytest.mark.parametrize(("share", "n_alike"), [(0.0, 0), (0.5, 5), (1.0, 10)])
def test_trajectories_are_drawn_alike_before_their_weights_count(
    share: float, n_alike: int
) -> None:
    alike, weighted = CoupledActions(), CoupledActions()
    config = PretrainingConfig(max_updates=10, batch_size=8, unweighted_share=share)
    asm, run = ActionStructureModel(5, [3, 3], SMALL), Run(show_progress=False)
    pretrain(asm, weighted, config, run, first_source=alike)
    assert (len(alike.requests), len(weighted.requests)) == (n_alike, 10 - n_alike)


@pytest.mark.parametrize(("first_source", "n"), [(CoupledActions(), 2), (None, 1)])
def test_a_step_that_draws_from_another_source_is_recorded_anew(
    first_source: CoupledActions | None, n: int
) -> None:
    config = PretrainingConfig(max_updates=10, batch_size=8, unweighted_share=0.5)
    asm, run = ActionStructureModel(5, [3, 3], SMALL), Run(show_progress=False)
    step_itself = mock.patch.object(pretraining, "recorded", side_effect=lambda step, *_: step)
    with step_itself as recorded:
        pretrain(asm, CoupledActions(), config, run, first_source=first_source)
    assert recorded.call_count == n


def test_no_epochs_leave_the_model_as_it_was() -> None:
    asm = ActionStructureModel(5, [3, 3], SMALL)
    before = {k: v.clone() for k, v in asm.state_dict().items()}
    epochs = pretrain(
        asm, CoupledActions(), PretrainingConfig(n_epochs=0), Run(show_progress=False)
    )
    assert epochs == []
    assert all(torch.equal(before[k], v) for k, v in asm.state_dict().items())


@pytest.mark.parametrize("fields", [{"mask_prob": 0.0}, {"mask_prob": 1.1}, {"random_share": 0.3}])
def test_impossible_masking_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected mask"):
        PretrainingConfig(**fields)  # type: ignore[arg-type]
