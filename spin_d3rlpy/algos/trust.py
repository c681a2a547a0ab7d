"""How far a search by critics can be trusted: each critic's search is judged by the other critics.

A search finds the actions that its critic values too highly. Critics of an ensemble make different
mistakes: what one of them gains by a search and the others confirm is real, what they do not
confirm is its own mistake. States are those of episodes that nothing was trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from spin_d3rlpy.policies.base import Conditionals

ActsBy = Literal["search", "imitation"]
LEAST_CONFIRMED = 0.6  # share of a search's gain
# Where the data hardly ever show another choice, critics share what they do not know, and their
# agreement tells less.
LEAST_CONFIRMED_OF_FEW = 0.85
FEW_CHOICES = 1.3  # of a slot
FEW_ALTERNATIVES = 1.05  # nothing else was tried: nothing can be known to be better
LEAST_STATES = 32  # fewer do not tell
MOST_STATES = 1024
MOST_CHOICES = 5000  # slots times states: a search visits each


@dataclasses.dataclass(frozen=True)
class Trust:
    """What critics gain by a search, and how much of it other critics confirm.

    Gains are mean advantages over the policy's own actions, in units of returns by `gamma`.

    Attributes:
        gammas: discounts that a search may act by; the first one is the algorithm's `gamma`.
        promised: by discount, the gain of each critic's search as that critic values it.
        confirmed: the same as the other critics value it.
        standard_errors: of `confirmed`, over states.
        states: held-out states that were looked at; 0 if there were too few episodes to hold any
            out.
        alternatives: choices that the policy has for a slot in view of all others: the exponential
            of the mean entropy, 1 where the data never tried anything else. 0 without a search
            slot by slot.
    """

    gammas: tuple[float, ...]
    promised: tuple[float, ...]
    confirmed: tuple[float, ...]
    standard_errors: tuple[float, ...]
    states: int
    alternatives: float = 0.0

    @property
    def best(self) -> int:
        """Number of the discount whose search gains most, as the other critics value it."""
        return max(range(len(self.gammas)), key=lambda i: self.confirmed[i])

    @property
    def share(self) -> float:
        """Confirmed share of the gain by the best discount."""
        promised = self.promised[self.best]
        return self.confirmed[self.best] / promised if promised > 0.0 else 0.0

    @property
    def least_share(self) -> float:
        """Least confirmed share for a search: 60 %, or 85 % where slots have few choices."""
        few = 0.0 < self.alternatives < FEW_CHOICES
        return LEAST_CONFIRMED_OF_FEW if few else LEAST_CONFIRMED

    @property
    def acts_by(self) -> ActsBy:
        """`"search"` where `least_share` of the gain or more is confirmed, else `"imitation"`."""
        if self.states < LEAST_STATES:
            return "imitation"
        surely = self.confirmed[self.best] - 2.0 * self.standard_errors[self.best] > 0.0
        return "search" if surely and self.share >= self.least_share else "imitation"

    def __str__(self) -> str:
        if self.states < LEAST_STATES:
            return f"acts by imitation: {self.states} held-out states are too few to test critics"
        best = self.best
        return (
            f"acts by {self.acts_by}: other critics confirm {self.share:.0%} of what a search by "
            f"discount {self.gammas[best]:g} gains in {self.states} held-out states "
            f"({self.confirmed[best]:.2g} +- {self.standard_errors[best]:.1g} of "
            f"{self.promised[best]:.2g}; expected {self.least_share:.0%}){self._alternatives}"
        )

    @property
    def _alternatives(self) -> str:
        if self.alternatives == 0.0:
            return ""
        return f"; in the data a slot has {self.alternatives:.2f} likely choices"


class TrustSwitch(nn.Module):
    """Trust as part of an algorithm's networks, so that whatever saves them keeps it.

    Args:
        gammas: as in `Trust`.
    """

    figures: torch.Tensor  # (4, G): gammas, promised, confirmed, standard errors
    states: torch.Tensor  # (1,): -1 as long as nothing was measured
    alternatives: torch.Tensor  # (1,)

    def __init__(self, gammas: Sequence[float]) -> None:
        super().__init__()
        figures = torch.zeros(4, len(gammas), dtype=torch.float64)
        figures[0] = torch.tensor(gammas, dtype=torch.float64)
        self.register_buffer("figures", figures)
        self.register_buffer("states", torch.tensor([-1]))
        self.register_buffer("alternatives", torch.zeros(1, dtype=torch.float64))

    @property
    def trust(self) -> Trust | None:
        """What was measured last."""
        states = int(self.states)
        if states < 0:
            return None
        gammas, promised, confirmed, errors = map(tuple, self.figures.tolist())
        return Trust(gammas, promised, confirmed, errors, states, float(self.alternatives))

    @trust.setter
    def trust(self, trust: Trust) -> None:
        rows = [trust.gammas, trust.promised, trust.confirmed, trust.standard_errors]
        self.figures.copy_(torch.tensor(rows, dtype=torch.float64))
        self.states.fill_(trust.states)
        self.alternatives.fill_(trust.alternatives)

    @property
    def acts_by(self) -> ActsBy:
        """How to act; critics that were not tested are trusted."""
        trust = self.trust  # built from tensors
        return "search" if trust is None else trust.acts_by


def untested(gammas: Sequence[float], states: int = 0) -> Trust:
    """Returns the trust in critics that could not be tested."""
    nothing = (0.0,) * len(gammas)
    return Trust(tuple(gammas), nothing, nothing, nothing, states)


def count_alternatives(conditionals: Conditionals, actions: torch.Tensor, n_slots: int) -> float:
    """Returns the exponential of the mean entropy of a slot's choice in view of all others.

    Args:
        conditionals: of the policy, with `actions` as the slots' choices.
        actions: of the policy, `(B, N)`.
        n_slots: of the action (N).
    """
    entropies = []
    for slot in range(n_slots):
        conditionals.hide(slot)
        log_p = conditionals.logits(slot).float().log_softmax(1)
        entropies.append(-(log_p.exp() * log_p).sum(1).mean())
        conditionals.choose(slot, actions[:, slot])
    return float(torch.stack(entropies).mean().exp())


def states_to_look_at(n_slots: int) -> int:
    """Returns how many states `measure_trust` should be given: a search visits every slot."""
    return max(LEAST_STATES, min(MOST_STATES, MOST_CHOICES // n_slots))


@torch.no_grad()
def measure_trust(
    gammas: Sequence[float],
    n_critics: int,
    search: Callable[[int, int], torch.Tensor],
    values: Callable[[torch.Tensor], torch.Tensor],
    own: torch.Tensor,
    alternatives: float,
) -> Trust:
    """Lets each critic search, and the other ones judge what it found.

    Args:
        gammas: discounts that a search may act by (G).
        n_critics: of the ensemble (E), 2 or more.
        search: from the numbers of a critic and a discount, the actions `(B, N)` that this critic
            finds best by that discount.
        values: from actions `(A, B, N)` their values by the first discount, `(E, A, B)`.
        own: actions of the policy, `(A, B, N)`.
        alternatives: as in `Trust`.
    """
    usual = values(own).mean(1)  # (E, B)
    promised, confirmed, errors = [], [], []
    for discount in range(len(gammas)):
        by_itself, by_others = [], []
        for critic in range(n_critics):
            gains = values(search(critic, discount)[None])[:, 0] - usual  # (E, B)
            by_itself.append(gains[critic])
            by_others.append((gains.sum(0) - gains[critic]) / (n_critics - 1))
        promised.append(float(torch.stack(by_itself).mean()))
        of_states = torch.stack(by_others).mean(0).double()
        confirmed.append(float(of_states.mean()))
        errors.append(float(of_states.std(correction=0) / len(of_states) ** 0.5))
    return Trust(
        tuple(gammas), tuple(promised), tuple(confirmed), tuple(errors), own.shape[1], alternatives
    )
