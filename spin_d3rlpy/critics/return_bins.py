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


class ReturnBins(nn.Module):
    """Distributions of standardized returns over bins of equal width, for each of O outputs.

    Errors of the rare returns that are far from all others, as of an action that ends an episode in
    a disaster, do not move the values of all other actions, as their squares would.

    References:
        * Farebrother et al., Stop Regressing: Training Value Functions via Classification for
          Scalable Deep RL, 2024: targets are normal distributions around returns.
    """

    edges: torch.Tensor  # (O, M + 1)

    def __init__(self, n_outputs: int, n_bins: int) -> None:
        super().__init__()
        self.n_bins = n_bins
        self.register_buffer("edges", torch.linspace(-1.0, 1.0, n_bins + 1).repeat(n_outputs, 1))

    def fit(self, returns: torch.Tensor) -> None:
        """Takes the range of bins from standardized returns `(O, n)`, a tenth more on each side."""
        low, high = returns.amin(1), returns.amax(1)
        margin = RANGE_MARGIN * (high - low).clamp(min=1e-6)
        steps = torch.linspace(0.0, 1.0, self.n_bins + 1, device=returns.device)
        low, high = low - margin, high + margin
        self.edges.copy_(low[:, None] + steps * (high - low)[:, None])

    @property
    def middles(self) -> torch.Tensor:
        """Of the bins, `(O, M)`."""
        return (self.edges[:, 1:] + self.edges[:, :-1]) / 2.0

    def means(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the means `(O, B)` of the distributions of logits `(B, O * M)`."""
        probabilities = outputs.unflatten(1, (-1, self.n_bins)).softmax(-1)  # (B, O, M)
        means: torch.Tensor = (probabilities * self.middles).sum(-1).T
        return means

    def cross_entropy(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross-entropy, added over outputs.

        Args:
            outputs: logits `(B, O * M)`.
            targets: standardized returns `(O, B)`.
        """
        log_p = outputs.unflatten(1, (-1, self.n_bins)).log_softmax(-1)  # (B, O, M)
        width = self.edges[:, 1] - self.edges[:, 0]
        y = targets.T[..., None].clamp(self.edges[:, :1], self.edges[:, -1:])  # (B, O, 1)
        below = torch.special.ndtr((self.edges - y) / (TARGET_WIDTH * width[:, None]))
        share = below.diff(dim=-1)
        share = share / share.sum(-1, keepdim=True)
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
