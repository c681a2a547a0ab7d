"""Detects that networks overfit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from d3rlpy.logging import LOG
from torch import nn

CHECKED_ROWS = 8192  # held-out ones, at most
STEPS_BETWEEN_CHECKS = 100
# Standard errors. Each check is one more chance for a rise by luck. Errors that fell again were at
# most 2.3 above the least (CoNE with 10 % of pits).
SURELY = 2.5
# Of the least errors. Where dropout was right those of critics rose by 35 and 52 % in the end
# (trader, offers), of structure models by 3 to 9 %. On ICU-Sepsis those of critics rose by 0.8 %,
# and with dropout the search returned 0.791 instead of 0.814.
LEAST_RISE = 0.02
# Times the steps until the least errors. What is learned by heart until then costs the time in
# which dropout is to make up for it (examples/offers).
PATIENCE = 1.1
# Share of a training. Dropout needs the rest of it to learn: of a search for power plants that
# returned -90 until then, the last 3 % with dropout left -124 (tests/measure/tasks/operations.py).
LATEST = 0.5
# Steps after which errors with dropout are to be no worse than the least ones. Those of structure
# models fell below these within 200 steps where decisions differ by chance. On elevators, whose
# decisions follow a rule, they were 24 % above them, and 16 % at the end of the training: imitation
# returned -245, and -71 by a model that learned on without dropout (the log -57).
TRIAL_STEPS = 300


class OverfittingCheck:
    """Compares errors on held-out rows with the least ones, and restores the weights of these.

    Critics and models of states can memorize the noise of rewards, structure models that of
    decisions. Then errors on rows that nothing is trained on rise.

    Args:
        name: of what overfits, in the log.
        network: gets the weights of the least errors back once errors have risen.
        errors: measures its errors of the same held-out rows, `(B,)`.

    Attributes:
        is_to_drop_out: whether errors were, in the first half of the training, 2 % above the least
            ones, and surely (by 2.5 standard errors of the difference, row by row), after a tenth
            more steps than it took to reach these. They are measured once more then, after 300
            steps: if they are as much above the least ones with dropout, too, it ends.
    """

    def __init__(self, name: str, network: nn.Module, errors: Callable[[], torch.Tensor]) -> None:
        self.is_to_drop_out = False
        self._name, self._network, self._errors = name, network, errors
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._least: torch.Tensor | None = None
        self._best_step = 0
        self._dropout_began: int | None = None  # at which step

    def after_step(self, step: int, progress: float) -> bool:
        """Measures every 100 steps; returns whether the weights of the least errors are back.

        Args:
            step: number of the step.
            progress: completed share of the training.
        """
        began = self._dropout_began
        is_over = self.is_to_drop_out and step != (began or 0) + TRIAL_STEPS
        if step % STEPS_BETWEEN_CHECKS or is_over:
            return False
        errors = self._errors().cpu()
        if self._least is None or errors.mean() < self._least.mean():
            self._least, self._best_step = errors, step
            self._best_weights = copy.deepcopy(self._network.state_dict())
            return False
        rise = errors - self._least
        is_large = rise.mean() > LEAST_RISE * self._least.mean()
        is_sure = rise.mean() > SURELY * rise.std() / len(rise) ** 0.5
        if not (is_large and is_sure) or step < PATIENCE * self._best_step:
            return False
        assert self._best_weights is not None
        self._network.load_state_dict(self._best_weights)
        self.is_to_drop_out = began is None and progress < LATEST
        if self.is_to_drop_out:
            self._dropout_began = step
            how = "with dropout"
        else:
            reason = "would come too late" if began is None else "did not help"
            how = f"without dropout, which {reason}"
        LOG.info(
            f"{self._name} overfits: training continues from the best weights, {how}",
            step=step,
            best_step=self._best_step,
        )
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured so far."""
        return {
            "has_risen": self.is_to_drop_out,  # as checkpoints call it
            "least": self._least,
            "best_step": self._best_step,
            "best_weights": self._best_weights,
            "dropout_began": self._dropout_began,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.is_to_drop_out, self._least = state["has_risen"], state["least"]
        self._best_step, self._best_weights = state["best_step"], state["best_weights"]
        self._dropout_began = state["dropout_began"]
