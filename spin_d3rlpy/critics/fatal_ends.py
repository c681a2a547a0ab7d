"""How likely a state is a fatal end, by what each of its numbers adds to the log-odds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

# A fatal end pays less than the lowest reward of all other steps by this share of their range.
MARGIN = 0.1
# Of the squares of weights, divided by the number of fatal ends: a hundred of them tell where it
# begins to be safe, a dozen are told apart from all else by weights that know them by heart. Ten
# times more gives places next to fatal ones more risk than a detour costs (CoNE).
RIDGE = 0.3
MOST_ROWS, MOST_NUMBERS = 65_536, 20_000_000  # that weights are fitted to
NEVER = -30.0  # log-odds where no end is fatal
NO_BOUND = -1e30  # no reward is below it; checkpoints hold finite numbers


def bound_of_fatal_ends(rewards: torch.Tensor, terminals: torch.Tensor) -> torch.Tensor:
    """Returns the reward `(1,)` below which an end costs more than any step `(n,)` that is none."""
    going_on = rewards[terminals == 0.0]
    if len(going_on) == 0:
        return rewards.new_full((1,), NO_BOUND)
    low, high = going_on.aminmax()
    return (low - MARGIN * (high - low).clamp(min=1e-6))[None]


def are_fatal(rewards: torch.Tensor, terminals: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Returns which steps `(n,)` are fatal ends, by that bound."""
    return (terminals > 0.0) & (rewards < bound)


class FatalEnds(nn.Module):
    """Log-odds that a place is a fatal end: a sum over its codes (logistic regression).

    A network learns fatal places by heart where a log has seen a hundred of them, and a sum finds
    what they have in common: that none of many numbers is at its edge, say.

    Args:
        n_codes: of a place (P), as `search.places` has them.
    """

    weight: torch.Tensor  # (P,)
    bias: torch.Tensor  # (1,)
    bound: torch.Tensor  # (1,): rewards of fatal ends are below it

    def __init__(self, n_codes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(n_codes))
        self.register_buffer("bias", torch.full((1,), NEVER))
        self.register_buffer("bound", torch.full((1,), NO_BOUND))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Returns the log-odds `(R,)` of places `(R, P)`."""
        return places @ self.weight + self.bias

    @torch.enable_grad()
    def fit(self, places: torch.Tensor, is_fatal: torch.Tensor, weights: torch.Tensor) -> None:
        """Learns from places `(n, P)` that steps led to.

        Args:
            places: their codes.
            is_fatal: which of them are fatal ends, bool `(n,)`.
            weights: how many steps each stands for, `(n,)`.
        """
        ridge = RIDGE / float(is_fatal.sum())
        codes, y, weights = places.detach().double(), is_fatal.double(), weights.double()
        learned = codes.new_zeros(codes.shape[1] + 1, requires_grad=True)
        optimizer = torch.optim.LBFGS([learned], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            log_odds = codes @ learned[:-1] + learned[-1]
            errors = binary_cross_entropy_with_logits(log_odds, y, weights, reduction="sum")
            total: torch.Tensor = errors + 0.5 * ridge * learned[:-1].square().sum()
            total.backward()
            return total

        optimizer.step(loss)
        self.weight.copy_(learned.detach()[:-1])
        self.bias.copy_(learned.detach()[-1:])
