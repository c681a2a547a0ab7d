"""Critics of where an action leads: the state that it makes of this one, its afterstate.

Where an action can end an episode, one in a thousand is fatal. A critic of states and actions sees
few of these in its data, and learns each of them by heart instead of what they have in common: the
place they lead to. Where this can be told from a state and an action, a critic of the afterstate
alone has less to learn (Sutton and Barto, Reinforcement Learning, 2018, section 6.8). What fatal
places have in common a sum of log-odds finds first (`critics.fatal_ends`).
"""

from __future__ import annotations

from typing import Self

import torch
from torch import nn
from torch.nn.functional import pad

from spin_d3rlpy.critics.joint import ActionEncoder, ActionSums, Moves
from spin_d3rlpy.search.state_model import StateModel


class Afterstates(ActionEncoder):
    """Encodes states and actions by the next state, as a model predicts it.

    Args:
        model: of what follows an action. It is not a part of this network: all critics share it,
            and it does not learn with them.
        width: of what networks see.
    """

    tells_fatal_ends = True

    def __init__(self, model: StateModel, width: int) -> None:
        super().__init__()
        self._model = (model,)  # torch registers what is not in a tuple
        self.choices_touch = model.network.actions.choices_touch
        self.gains_by_exchanges = model.network.actions.gains_by_exchanges
        self.place = nn.Linear(model.places.size, width)

    def open(self, observations: torch.Tensor) -> ActionSums:
        model = self._model[0]
        return _SumsInStates(model, model.network.open(observations), observations)

    def seen(self, sums: torch.Tensor) -> torch.Tensor:
        return self._model[0].places_after(sums)

    def encoded(self, seen: torch.Tensor) -> torch.Tensor:
        encoded: torch.Tensor = self.place(seen)
        return encoded

    def fatal_log_odds(self, seen: torch.Tensor) -> torch.Tensor:
        log_odds: torch.Tensor = self._model[0].fatal_ends(seen)
        return log_odds

    def are_survived(self, seen: torch.Tensor) -> torch.Tensor:
        model = self._model[0]
        survived: torch.Tensor = model.survived(model.places.keys(seen))
        return survived


class _SumsInStates(ActionSums):
    """Sums of a model of states, next to the states' own numbers."""

    def __init__(self, model: StateModel, sums: ActionSums, x: torch.Tensor) -> None:
        self._model, self._sums, self._x = model, sums, x

    def total(self, actions: torch.Tensor) -> torch.Tensor:
        return self._model.total(self._x, actions, self._sums)

    def changes(self, actions: torch.Tensor, moves: Moves) -> torch.Tensor:
        return pad(self._sums.changes(actions, moves), (0, self._model.places.observation_size))

    def of(self, rows: torch.Tensor) -> Self:
        return type(self)(self._model, self._sums.of(rows), self._x[rows])
