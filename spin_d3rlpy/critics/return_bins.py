"""Distributions of returns over bins, which critics can learn in place of mean returns."""

from __future__ import annotations

import torch
from torch import nn

RETURN_BINS = 21  # 51 tell CoNE's pits less surely from few data
RANGE_MARGIN = 0.1  # on each side, as a share of the range of returns
TARGET_WIDTH = 0.75  # standard deviation of targets, in bins (Farebrother et al., 2024)
# Standard deviations that are taken off. Critics that are not sure whether an action is fatal give
# it little of a fatal return, and their means are right on average: the best of thousands of
# actions would be one that they take for safe by mistake. More makes them timid (CoNE).
CAUTION = 0.25
# Times that a fatal end counts as much as it is likely: of thousands of actions the best one tends
# to be one whose risk is underestimated. Once is a pit in one of 30 cells of CoNE whose distances
# are exact, twice a detour in some more (`tests/measure/fatal_ends.py`).
AVERSION = 1.5


class ReturnBins(nn.Module):
    """Distributions of standardized returns over bins of equal width, for each of O outputs.

    Errors of the rare returns that are far from all others, as of an action that ends an episode in
    a disaster, do not move the values of all other actions, as their squares would. Where fatal
    ends are known, they have a bin of their own, before the others, whose width they do not stretch
    then.

    Args:
        n_outputs: outputs (O).
        n_bins: bins (M) of each.
        has_fatal: whether there is one more, for fatal ends (`critics.fatal_ends`).

    References:
        * Farebrother et al., Stop Regressing: Training Value Functions via Classification for
          Scalable Deep RL, 2024: targets are normal distributions around returns.
    """

    edges: torch.Tensor  # (O, M + 1)
    fatal: torch.Tensor  # (O, 1): mean return of fatal ends, or (O, 0)

    def __init__(self, n_outputs: int, n_bins: int, has_fatal: bool = False) -> None:
        super().__init__()
        self.n_bins, self.has_fatal = n_bins, has_fatal
        self.register_buffer("edges", torch.linspace(-1.0, 1.0, n_bins + 1).repeat(n_outputs, 1))
        self.register_buffer("fatal", torch.full((n_outputs, int(has_fatal)), -1.0))

    @property
    def n_logits(self) -> int:
        """Of an output."""
        return self.n_bins + int(self.has_fatal)

    def fit(self, returns: torch.Tensor, are_fatal: torch.Tensor | None = None) -> None:
        """Takes the range of bins from standardized returns, a tenth more on each side.

        Args:
            returns: `(O, n)`.
            are_fatal: which of them are fatal ends', bool `(n,)`; where these have a bin.
        """
        if are_fatal is not None and are_fatal.any():
            self.fatal.copy_(returns[:, are_fatal].mean(1, keepdim=True))
            returns = returns[:, ~are_fatal]
        low, high = returns.amin(1), returns.amax(1)
        margin = RANGE_MARGIN * (high - low).clamp(min=1e-6)
        steps = torch.linspace(0.0, 1.0, self.n_bins + 1, device=returns.device)
        low, high = low - margin, high + margin
        self.edges.copy_(low[:, None] + steps * (high - low)[:, None])

    @property
    def middles(self) -> torch.Tensor:
        """Of the bins, `(O, M)`, or `(O, 1 + M)` with that of fatal ends."""
        return torch.cat([self.fatal, (self.edges[:, 1:] + self.edges[:, :-1]) / 2.0], dim=1)

    def means(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the means `(O, B)` of the distributions of logits `(B, O * n_logits)`."""
        probabilities = outputs.unflatten(1, (-1, self.n_logits)).softmax(-1)
        means: torch.Tensor = (probabilities * self.middles).sum(-1).T
        return means

    def cross_entropy(
        self,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        are_fatal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the mean cross-entropy, added over outputs.

        Args:
            outputs: logits `(B, O * n_logits)`.
            targets: standardized returns `(O, B)`.
            are_fatal: which of the steps are fatal ends, bool `(B,)`; where these have a bin.
        """
        log_p = outputs.unflatten(1, (-1, self.n_logits)).log_softmax(-1)
        width = self.edges[:, 1] - self.edges[:, 0]
        y = targets.T[..., None].clamp(self.edges[:, :1], self.edges[:, -1:])  # (B, O, 1)
        below = torch.special.ndtr((self.edges - y) / (TARGET_WIDTH * width[:, None]))
        share = below.diff(dim=-1)
        share = share / share.sum(-1, keepdim=True)  # (B, O, M)
        if are_fatal is not None:
            of_fatal = are_fatal[:, None, None].to(share.dtype).expand(-1, len(self.edges), 1)
            share = torch.cat([of_fatal, (1.0 - of_fatal) * share], dim=-1)
        loss: torch.Tensor = -(share * log_p).sum(-1).mean(0).sum()
        return loss


def careful_mean(logits: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """Returns means less a share of the standard deviations, of distributions over bins, `(B,)`.

    Args:
        logits: `(B, M)`.
        middles: of the bins, `(M,)`.
    """
    probabilities = logits.softmax(-1)
    mean, square = probabilities @ middles, probabilities @ middles.square()
    return mean - CAUTION * (square - mean.square()).clamp(min=0.0).sqrt()


def mean_with_fatal_ends(
    logits: torch.Tensor,
    least_log_odds: torch.Tensor,
    is_survived: torch.Tensor,
    middles: torch.Tensor,
) -> torch.Tensor:
    """Returns means of which what fatal ends cost is taken off 1.5 times, `(B,)`.

    Args:
        logits: of fatal ends and of bins of other returns, `(B, 1 + M)`.
        least_log_odds: that an end is fatal, `(B,)`. Networks also learn by heart which places were
            safe, and take others nearby for safe: what they know of risks counts where it is more.
        is_survived: where it surely is not, bool `(B,)`, whatever these say.
        middles: returns of a fatal end and of the bins, `(1 + M,)`.
    """
    others = logits[:, 1:].softmax(-1) @ middles[1:]
    risk = torch.maximum(logits.softmax(-1)[:, 0], least_log_odds.sigmoid())
    risk = torch.where(is_survived, 0.0, risk)
    return others - AVERSION * risk * (others - middles[0])
