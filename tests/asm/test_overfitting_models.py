"""Structure models that learn decisions by heart get dropout, and no others do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from spin_d3rlpy import fast
from spin_d3rlpy.asm import (
    ActionStructureModel,
    MLPConfig,
    PretrainingConfig,
    TransformerConfig,
    pretrain,
)
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.objectives.masked import AnyOrderActionModeling
from spin_d3rlpy.asm.pretraining import Pretraining
from spin_d3rlpy.training.checkpoints import Checkpoints
from spin_d3rlpy.training.loop import Run
from spin_d3rlpy.training.overfitting import STEPS_BETWEEN_CHECKS
from spin_envs import ActionLayout

NVEC = [4, 4, 4]
STEPS = 5 * STEPS_BETWEEN_CHECKS  # errors rise at the second check, in the first half
CONFIG = PretrainingConfig(
    masking="any_order", batch_size=64, learning_rate=4e-3, max_updates=STEPS, n_epochs=STEPS
)
SIZES: list[Any] = [
    MLPConfig(width=64),
    TransformerConfig(width=16, n_blocks=1, head_hidden=64, dropout=0.0, attention_dropout=0.0),
    EntityConfig(layout=ActionLayout(shared_choices=True, slot_columns=((0,), (1,), (2,)))),
    EntityConfig(layout=ActionLayout(shared_choices=True, choice_features=((0.0,), (1.0,)) * 2)),
]
NAMES = ["mlp", "transformer", "pairs", "slots"]


class Decisions:
    """Rows of states and actions; of noise, these are no function of those."""

    def __init__(self, n: int, is_noise: bool, seed: int, device: str = "cpu:0") -> None:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 4)).astype(np.float32)
        known = np.stack([(x[:, i] > 0.0) + 2 * (x[:, i + 1] > 0.0) for i in range(3)], axis=1)
        actions = rng.integers(0, NVEC, (n, 3)) if is_noise else known
        self.transition_count = n
        self._x = torch.from_numpy(x).to(device)
        self._actions = torch.from_numpy(actions).to(device)

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(self.transition_count, (batch_size,), device=self._x.device)
        return self._x[rows], self._actions[rows]


def trained(size: Any, rate: float, is_noise: bool, device: str = "cpu:0") -> ActionStructureModel:
    torch.manual_seed(0)
    asm = ActionStructureModel(4, NVEC, size).to(device)
    config = dataclasses.replace(CONFIG, overfitting_dropout=rate)
    seen, unseen = (Decisions(n, is_noise, n, device) for n in (100, 256))
    pretrain(asm, seen, config, unseen=unseen)
    return asm.cpu()


class CrashError(Exception):
    """Stands for whatever ends a run."""


def test_a_resumed_run_drops_out_as_the_whole_one_does(tmp_path: Path) -> None:
    def run(folder: Path, last_step: int = STEPS) -> ActionStructureModel:
        torch.manual_seed(0)
        asm = ActionStructureModel(4, NVEC, MLPConfig(width=64))
        config = dataclasses.replace(CONFIG, overfitting_dropout=0.5, ema_decay=0.99)
        seen, unseen = (Decisions(n, True, n) for n in (100, 256))

        def crash(row: dict[str, Any], _folder: Path | None) -> None:
            if row["step"] >= last_step < STEPS:
                assert rates(asm) == {0.5}
                raise CrashError

        with Checkpoints(folder, 10, {}, dict) as checkpoints:
            checkpoints.start(resume=True)
            pretrain(asm, seen, config, Run(False, checkpoints), unseen=unseen, on_row=crash)
        return asm

    whole = run(tmp_path / "whole")
    with pytest.raises(CrashError):
        run(tmp_path / "crashed", STEPS - 80)
    again = run(tmp_path / "crashed")
    assert rates(again) == {0.5}
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def rates(asm: ActionStructureModel) -> set[float]:
    return {module.p for module in asm.modules() if isinstance(module, fast.Dropout)}


def error(asm: ActionStructureModel) -> float:
    x, actions = Decisions(1000, True, 3).sample_observations_and_actions(1000)
    torch.manual_seed(0)
    return float(AnyOrderActionModeling(asm).row_losses(x, actions).mean())


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, id=name, marks=() if name in ("mlp", "pairs") else pytest.mark.slow)
        for size, name in zip(SIZES, NAMES, strict=True)
    ],
)
def test_a_model_that_learns_noise_by_heart_drops_out_and_knows_better(size: Any) -> None:
    without, with_dropout = trained(size, 0.0, is_noise=True), trained(size, 0.5, is_noise=True)
    assert rates(without) == {0.0}
    assert rates(with_dropout) == {0.5}
    # A uniform guess is the best.
    assert np.log(4) < error(with_dropout) < error(without)


@pytest.mark.parametrize("size", SIZES[:1], ids=NAMES[:1])
def test_a_model_that_learns_what_holds_everywhere_does_not(size: Any) -> None:
    assert rates(trained(size, 0.5, is_noise=False)) == {0.0}


def test_dropout_that_does_not_help_ends_and_leaves_the_rates_as_they_were() -> None:
    """Decisions that follow a rule, and errors that are said to rise once and for good."""
    torch.manual_seed(0)
    asm = ActionStructureModel(4, NVEC, MLPConfig(width=16))
    own = next(module for module in asm.modules() if isinstance(module, fast.Dropout))
    own.p = 0.125
    config = dataclasses.replace(CONFIG, overfitting_dropout=0.5, max_updates=700)
    seen, unseen = (Decisions(n, False, n) for n in (100, 256))
    levels = [torch.full((9,), level) for level in (1.0, *9 * [2.0])]
    seen_rates = []
    with mock.patch.object(Pretraining, "_errors", side_effect=levels):
        training = Pretraining(asm, seen, config, Run(False), unseen=unseen)
        for number in range(1, 701):
            training.update(number, 0.1)
            seen_rates.append(own.p)
    assert seen_rates == [0.125] * 200 + [0.5] * 300 + [0.125] * 200


def test_without_rows_to_measure_by_nothing_changes() -> None:
    torch.manual_seed(0)
    asm = ActionStructureModel(4, NVEC, MLPConfig(width=16))
    config = PretrainingConfig(masking="any_order", max_updates=60, overfitting_dropout=0.5)
    pretrain(asm, Decisions(50, True, 1), config)
    assert rates(asm) == {0.0}


def test_other_objectives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"overfitting_dropout.*any_order"):
        PretrainingConfig(overfitting_dropout=0.5)
