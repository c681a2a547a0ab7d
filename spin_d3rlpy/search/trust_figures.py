"""What was measured of a policy and of searches by critics, by which `search.trust` decides."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import NamedTuple, Self

import torch

from spin_d3rlpy.search import trust_bounds as bounds


class Search(NamedTuple):
    """A way to search.

    Attributes:
        gamma: discount of the values that it compares actions by.
        action_flexibility: least probability of a choice, relative to the likeliest one's, in
            (0, 1].
    """

    gamma: float
    action_flexibility: float


class Trial(NamedTuple):
    """The figures of one search; see `Figures`, which has them by search."""

    way: Search
    promised: float
    confirmed: float
    error: float
    modeled: float
    modeled_error: float
    beyond: float
    changes: float

    @property
    def is_tried(self) -> bool:
        """Whether it was tried in the model of states."""
        return self.modeled_error != bounds.NOT_TRIED

    @property
    def is_mild(self) -> bool:
        """Whether it changes hardly more slots of the most likely action than samples do."""
        return self.changes <= bounds.MOST_CHANGES

    @property
    def careful_gain(self) -> float:
        """What is confirmed less what is not."""
        return self.confirmed - max(self.promised - self.confirmed, 0.0)

    @property
    def doubted_gain(self) -> float:
        """What is confirmed less half of what is not."""
        return (self.confirmed + self.careful_gain) / 2.0

    @property
    def is_sure_in_model(self) -> bool:
        """Whether it surely returns more than imitation in the model of states."""
        return self.modeled - bounds.SURE_IN_MODEL * self.modeled_error > 0.0


@dataclasses.dataclass(frozen=True)
class Figures:
    """What critics gain by a search, and how much of it other critics confirm.

    Gains are mean advantages over the policy's own actions, in units of returns by `gamma`.

    Attributes:
        searches: ways to search that were compared; the first one has the algorithm's `gamma` and
            `action_flexibility`.
        promised: by search, the gain of each critic's actions as that critic values them.
        confirmed: the same as the other critics value it.
        standard_errors: of `confirmed`, over states.
        states: held-out states that were looked at; 0 if there were too few episodes to hold any
            out.
        alternatives: choices that the policy has for a slot in view of all others: the exponential
            of the mean entropy, 1 where the data never tried anything else. 0 without a search
            slot by slot.
        spread: standard deviation of the data's returns.
        likeliest_gain: mean advantage of the policy's most likely action over its samples, as all
            critics value them.
        likeliest_error: standard error of `likeliest_gain`, over states.
        samples_gain: mean of what the policy's samples return in the model of states, less what its
            most likely actions return.
        samples_error: its standard error, over the states that both start in; `NOT_TRIED` without
            such a model.
        likeliest_beyond: share of the numbers of the states that most likely actions lead to there,
            which are beyond what 99 % of the data have.
        modeled: by search, what it returns there less what the most likely actions return.
        modeled_errors: their standard errors; `NOT_TRIED` of searches that were not.
        beyond: by search, the same of the states that it leads to; 0 of searches that were not
            tried.
        changes: by search, how many slots of the policy's most likely action it changes, divided
            by how many the policy's samples do.
        is_sequential: whether other decisions follow a decision, so that the data are not single
            ones.
        choices: that a slot has, the geometric mean; 0 if it is not known.
        untold: share of the variance of held-out rewards that the model of states does not tell;
            `ALL_UNTOLD` if logged actions return more in it than was logged.
        foresees: whether the data have shown that this model tells what actions lead to: critics
            value afterstates, or it tells 70 % of the variance of what logged actions return.
        room: what the best held-out episode returned more than the mean, divided by the mean number
            of steps.
        stays: share of steps that left the observation as it was (`search.standstill`). A
            function of the observation may stay there for ever, so each call draws new samples to
            imitate by.
        is_trap: whether such steps are frequent, return less than others, and repeat when the
            action is repeated. Samples act then, whatever critics or the model of states find.
        sticks_together: whether things that nothing tells apart, and that choose alike, stay so in
            the log, and return less (`search.alike_slots`). Their slots draw their choices where
            most likely actions imitate.
        persistence: how far the first halves of the log's episodes tell what the second ones pay, a
            correlation (`data.buffer.weights`); 0 if it cannot be told.
        choice_promised: gain of the best of four samples by each critic, as that critic values it.
        choice_confirmed: the same as the other critics value it.
        choice_error: standard error of `choice_confirmed`, over states.
        tells_ends: whether the task ends episodes, and the model of states tells when, and nearly
            all rewards until then.
    """

    searches: tuple[Search, ...]
    promised: tuple[float, ...]
    confirmed: tuple[float, ...]
    standard_errors: tuple[float, ...]
    states: int
    alternatives: float = 0.0
    spread: float = 0.0
    likeliest_gain: float = 0.0
    likeliest_error: float = 0.0
    samples_gain: float = 0.0
    samples_error: float = bounds.NOT_TRIED
    likeliest_beyond: float = 0.0
    modeled: tuple[float, ...] = ()
    modeled_errors: tuple[float, ...] = ()
    beyond: tuple[float, ...] = ()
    changes: tuple[float, ...] = ()
    is_sequential: bool = False
    choices: float = 0.0
    untold: float = 0.0
    foresees: bool = False
    room: float = bounds.ANY_ROOM
    stays: float = 0.0
    is_trap: bool = False
    sticks_together: bool = False
    tells_ends: bool = False
    persistence: float = 0.0
    choice_promised: float = 0.0
    choice_confirmed: float = 0.0
    choice_error: float = 0.0

    def __post_init__(self) -> None:
        if not self.modeled:
            object.__setattr__(self, "modeled", (0.0,) * len(self.searches))
            object.__setattr__(self, "modeled_errors", (bounds.NOT_TRIED,) * len(self.searches))
        if not self.beyond:
            object.__setattr__(self, "beyond", (0.0,) * len(self.searches))
        if not self.changes:
            object.__setattr__(self, "changes", (0.0,) * len(self.searches))

    @functools.cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The figures by search."""
        columns = (
            self.searches,
            self.promised,
            self.confirmed,
            self.standard_errors,
            self.modeled,
            self.modeled_errors,
            self.beyond,
            self.changes,
        )
        return tuple(itertools.starmap(Trial, zip(*columns, strict=True)))

    @property
    def careful_gains(self) -> tuple[float, ...]:
        """By search, what is confirmed less what is not.

        What other critics do not confirm is a critic's own mistake. As much again is taken off the
        confirmed gain for mistakes that all critics share, which no comparison of them shows.
        """
        return tuple(trial.careful_gain for trial in self.trials)

    @property
    def has_model(self) -> bool:
        """Whether policies were compared in a model of states."""
        return self.samples_error != bounds.NOT_TRIED

    def with_imitation(self, gains: torch.Tensor, likeliest_beyond: float = 0.0) -> Self:
        """Adds how the policy imitates in the model of states.

        Args:
            gains: what samples return there less what most likely actions return, `(B,)`.
            likeliest_beyond: as in `Figures`.
        """
        mean, error = mean_and_error(gains.double())
        return dataclasses.replace(
            self, samples_gain=mean, samples_error=error, likeliest_beyond=likeliest_beyond
        )

    def with_search(self, number: int, gains: torch.Tensor, beyond: float = 0.0) -> Self:
        """Adds what a search does in the model of states.

        Args:
            number: of the search.
            gains: what it returns there less what imitation does, `(B,)`.
            beyond: as in `Figures`.
        """
        return self.with_figures(number, *mean_and_error(gains.double()), beyond)

    def with_figures(self, number: int, gain: float, error: float, beyond: float) -> Self:
        """Adds the same by a mean and its standard error."""
        modeled, errors, shares = [*self.modeled], [*self.modeled_errors], [*self.beyond]
        modeled[number], errors[number], shares[number] = gain, error, beyond
        return dataclasses.replace(
            self, modeled=tuple(modeled), modeled_errors=tuple(errors), beyond=tuple(shares)
        )


def mean_and_error(of_states: torch.Tensor) -> tuple[float, float]:
    """Returns the mean over states `(B,)` and its standard error."""
    error = of_states.std(correction=0) / len(of_states) ** 0.5
    return float(of_states.mean()), float(error)
