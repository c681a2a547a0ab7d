"""Whether choices that a network tells apart by their features differ in more than these."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from d3rlpy.torch_utility import TorchMiniBatch

from spin_d3rlpy.asm.entities import EntityFeatures, count_choices
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_envs import ActionLayout

TOO_ALIKE = 0.2  # share of critics' errors that which choices were made explains
MOST_ROWS = 4096
LEAST_ROWS_A_CHOICE = 20


def warn_of_alike_choices(
    layout: ActionLayout,
    nvec: Sequence[int],
    held_out: DeviceReplayBuffer,
    scale: Callable[[TorchMiniBatch], TorchMiniBatch],
    errors_of: Callable[[TorchMiniBatch], torch.Tensor],
) -> None:
    """Warns (UserWarning) if values are wrong by choice, where choices are told apart by features.

    Args:
        layout: of the action.
        nvec: number of choices of each slot.
        held_out: transitions that nothing was trained on.
        scale: scales a batch as in training.
        errors_of: temporal-difference errors of a scaled batch, `(B,)`.
    """
    n = min(held_out.transition_count, MOST_ROWS)
    is_by_features = layout.has_choice_features and not layout.choice_identity
    if not is_by_features or n < LEAST_ROWS_A_CHOICE * max(nvec):
        return
    # The run's random numbers do not depend on whether this is looked at.
    order = torch.randperm(held_out.transition_count, generator=torch.Generator().manual_seed(0))
    rows = order[:n].to(held_out.device)
    batch = scale(held_out.transitions(rows))
    x = batch.observations
    assert isinstance(x, torch.Tensor)
    features = EntityFeatures(x.shape[1], nvec, layout).to(x.device).choices(x)
    made = batch.actions[..., None].expand(-1, -1, features.shape[2])
    of_choices = features.gather(1, made).sum(1)
    share = share_by_choice(errors_of(batch), batch.actions, of_choices, max(nvec))
    if share < TOO_ALIKE:
        return
    warnings.warn(
        f"Which choices are made explains {share:.0%} of the critics' errors in held-out "
        "episodes, beyond their features: choices differ in more than these. If number k is the "
        "same thing in every state, say choice_identity=True in the layout; otherwise give more "
        "features.",
        UserWarning,
        stacklevel=3,
    )


def share_by_choice(
    errors: torch.Tensor, actions: torch.Tensor, features: torch.Tensor, n_choices: int
) -> float:
    """Returns which share of the variance of errors the choices made explain beyond features.

    Errors are predicted by ridge regressions on one half of the rows and judged on the other: by
    sums of the features of the choices made, and by how often each choice is made in addition.

    Args:
        errors: `(B,)`.
        actions: `(B, N)`.
        features: of the choices made, summed over slots, `(B, F)`.
        n_choices: of a slot (K).
    """
    counts = count_choices(actions.long(), n_choices)
    both = torch.cat([features, counts], dim=1)
    return _explained(errors, both) - max(0.0, _explained(errors, features))


def _explained(errors: torch.Tensor, predictors: torch.Tensor) -> float:
    """Share of the variance of errors `(B,)` that predictors `(B, P)` explain in new rows."""
    x, y = predictors.double(), errors.double()
    x, y = x - x.mean(0), y - y.mean()
    half = len(y) // 2
    eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    known = x[:half].T
    weights = torch.linalg.solve(known @ known.T + 1e-2 * max(half, 1) * eye, known @ y[:half])
    rest, predicted = y[half:], x[half:] @ weights
    total = float(rest.square().sum())
    return 1.0 - float((rest - predicted).square().sum()) / total if total > 0.0 else 0.0
