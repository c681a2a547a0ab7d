"""How much of what a critic's search gains the other critics confirm, in how many states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from spin_d3rlpy.asm.decoding import Conditionals
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_bounds import LEAST_STATES
from spin_d3rlpy.search.trust_figures import Search, mean_and_error

LEAST_CHANCE = 1e-3  # share of slots: policies without chance change none
FIRST_STATES = 64  # enough where no search is near the bound
SECOND_STATES = 256  # where these look as if no search is in reach, and do not tell it surely
MOST_STATES = 1024
MOST_CHOICES = 5000  # slots times states: a search visits each
# Moves of all states, which a search values in each round. Trained policies leave few; one that is
# hardly trained leaves hundreds in a state, and nothing is to be known by valuing all of them.
MOST_MOVES = 6400


def count_alternatives(conditionals: Conditionals, actions: torch.Tensor) -> float:
    """Returns the exponential of the mean entropy of a slot's choice in view of all others.

    Args:
        conditionals: of the policy.
        actions: of the policy, `(B, N)`.
    """
    log_p = conditionals.given_others(actions).float().log_softmax(-1)
    entropies = -torch.where(log_p.isfinite(), log_p.exp() * log_p, 0.0).sum(-1)
    return float(entropies.mean().exp())


def count_moves(
    conditionals: Conditionals, actions: torch.Tensor, action_flexibility: float
) -> float:
    """Returns how many other likely choices the slots of a state have together, the mean.

    Args:
        conditionals: of the policy.
        actions: of the policy, `(B, N)`.
        action_flexibility: as in `Search`.
    """
    logits = conditionals.given_others(actions)
    least = logits.amax(-1, keepdim=True) + math.log(action_flexibility)
    return float((logits >= least).sum((1, 2)).double().mean()) - actions.shape[1]


def states_to_look_at(n_slots: int, n_moves: float) -> int:
    """Returns how many states `measure_trust` should be given.

    Args:
        n_slots: that a search visits in each.
        n_moves: that it values in each, see `count_moves`.
    """
    by_moves = int(MOST_MOVES / max(1.0, n_moves))
    return max(LEAST_STATES, min(MOST_STATES, MOST_CHOICES // n_slots, by_moves))


@torch.no_grad()
def measure_trust(
    searches: Sequence[Search],
    n_critics: int,
    search: Callable[[int, Search], torch.Tensor],
    values: Callable[[torch.Tensor], torch.Tensor],
    own: torch.Tensor,
    likeliest: torch.Tensor,
    alternatives: float,
    spread: float,
) -> Trust:
    """Measures by each critic's search how much of its gain the other critics confirm.

    Args:
        searches: ways to search (S).
        n_critics: of the ensemble (E), 2 or more.
        search: from the number of a critic and a way to search, the actions `(B, N)` that this
            critic finds best.
        values: from actions `(A, B, N)` their values by the first discount, `(E, A, B)`.
        own: samples of the policy, `(A, B, N)`.
        likeliest: actions of the policy, `(B, N)`.
        alternatives: as in `Trust`.
        spread: as in `Trust`.
    """
    of_own = values(own)
    usual = of_own.mean(1)  # (E, B)
    of_likeliest = (values(likeliest[None])[:, 0] - usual).mean(0).double()  # (B,)
    by_chance = float((own != likeliest).double().mean())
    promised, confirmed, errors, changes = [], [], [], []
    for way in searches:
        by_itself, by_others, changed = [], [], []
        for critic in range(n_critics):
            found = search(critic, way)
            changed.append(float((found != likeliest).double().mean()))
            gains = values(found[None])[:, 0] - usual  # (E, B)
            by_itself.append(gains[critic])
            by_others.append((gains.sum(0) - gains[critic]) / (n_critics - 1))
        promised.append(float(torch.stack(by_itself).mean()))
        mean, error = mean_and_error(torch.stack(by_others).mean(0).double())
        confirmed.append(mean)
        errors.append(error)
        changes.append(sum(changed) / n_critics / max(by_chance, LEAST_CHANCE))
    figures = tuple(promised), tuple(confirmed), tuple(errors)
    of_policy = alternatives, spread, *mean_and_error(of_likeliest)
    trust = Trust(tuple(searches), *figures, own.shape[1], *of_policy)
    choice_promised, choice_confirmed, choice_error = _gain_of_choice(of_own)
    return dataclasses.replace(
        trust,
        changes=tuple(changes),
        choice_promised=choice_promised,
        choice_confirmed=choice_confirmed,
        choice_error=choice_error,
    )


def _gain_of_choice(values: torch.Tensor) -> tuple[float, float, float]:
    """Returns what a critic gains by choosing among samples, and as others value it, with an error.

    Args:
        values: of samples by each critic, `(E, A, B)`.
    """
    n_critics = len(values)
    picks = values.argmax(1).expand(n_critics, -1, -1)  # (E, E, B): by whom, in the second place
    gains = values.gather(1, picks) - values.mean(1, keepdim=True)
    by_itself = gains.diagonal().mean(1)  # (B,)
    by_others = (gains.sum((0, 1)) / n_critics - by_itself) / (n_critics - 1)
    return float(by_itself.mean()), *mean_and_error(by_others.double())
