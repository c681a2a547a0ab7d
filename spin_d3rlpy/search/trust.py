"""How far a search by critics can be trusted: each critic's search is judged by the other critics.

A search finds the actions that its critic values too highly. Critics of an ensemble make different
mistakes: what one of them gains by a search and the others confirm is real, what they do not
confirm is its own mistake. Mistakes that all of them share remain, and are larger than a gain that
is small against what returns differ by. States are those of episodes that nothing was trained on.

Critics tell what one action gains if the data's policy chooses all later ones. Acting this way in
every step can return less, which a model of states shows (`search.state_model`): where there is
one, a search acts only if it surely returns more than imitation in it, too.

Where no search is trusted the policy imitates: by its most likely action, unless that model or the
critics find that its samples are surely better; the model decides where they disagree. The most
likely action of varied decisions can be nobody's, or better than all searches: it averages many
decisions, and is not chosen by a critic's mistakes.

A function of the observation can stand still for ever. Where logs show it, samples act, or the best
of four new ones by the critics, if these confirm each other's choices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

ActsBy = Literal["search", "imitation", "samples"]
# Share of a search's gain. Critics also agree on what none of them knows: of the searches that the
# careful gain chose, those with 66 to 80 % did harm, and those with 89 % or more paid.
LEAST_CONFIRMED = 0.85
# The same of a mild search that surely gains in the model of states. Critics confirmed 76 % of what
# one gained for a city's signals, whose rewards are noisy: it returned -1375, imitation -1819. Of
# others with 0.75 to 0.80, which surely gained there, too, those of signals and elevators lost.
LEAST_CONFIRMED_OF_MILD = 0.75
# Of the standard deviation of returns. A search that gained 0.005 of it returned 46 instead of
# imitation's 273 with 103 % confirmed (finger-spin); those that paid gained 0.02 to 0.46 of it.
LEAST_GAIN = 0.01
# The same of what is confirmed less what is not, where less is confirmed. Of such searches those
# that gained 0.02 of it were a matter of luck; with few noisy data, those with 58 to 79 % confirmed
# and careful gains of 0.08 to 0.43 all were better than imitation (examples/offers).
LEAST_CAREFUL_GAIN = 0.05
# Slots that a search changes of the most likely action, divided by those that samples change, where
# neither critics confirm a large gain of one step of many, nor a model of states. Mild searches
# hardly lead where the data do not: one with 1.1 returned 0.79 instead of 0.22 on a small ward. One
# with 1.7 wrote to tired customers, -2 instead of 5: their states do not tell, nor do critics.
MOST_CHANGES = 1.25
# Entropy of a slot's choices as a share of a uniform one's, where the most likely one is hardly
# likelier than others and would be taken every time. Of logs with 0.97 and 0.98 (collectors, jobs)
# it returns -7 and -12.4, samples 18 and -6.7; with less it is the better of both in 21 of 26.
LEAST_VARIED = 0.95
# Of the standard deviation of returns, of a search by a shorter discount that no model of states
# tries. Its critics leave out what comes later, and those by `gamma` may know little of it. One
# that gained 0.03 of it shot, did not turn and returned 3.2, imitation 15.9 (ViZDoom); another
# gained 0.055, 86 % of it confirmed, and wrote to tired customers: -2 instead of 5. Those that
# paid gained 0.08 or more.
LEAST_SHORT_GAIN = 0.07
# Times what the best held-out episode returned more than the mean in each step, where no model of
# states tells what follows. Gains of all steps add up, and critics that agree on far more are
# wrong together: six and nine times it on assembly (searches return -4, the log 6.5); where they
# were right 2.5 (clinic) and 4 (dials).
MOST_IMPLIED = 5.0
# The same of what a search returns in the model of states more than imitation, where critics
# confirm less. Where the log's rewards are noisy they confirm a third of what pays (campaigns: 17
# in the model, 10 in truth, of a spread of 12). Gains of 0.17 to 0.36 were losses on elevators and
# signals, larger ones on none of 13 tasks.
LEAST_MODELED_GAIN = 0.4
# Of a search's gain, where a model that foresees finds less than that. On cheetah-run's mixed data
# it found 7 and 8 % by searches of which critics confirmed 41 and 34 %, and which returned 476 and
# 504, imitation 594 and 583. On crane, where they confirm 82 % and more, it truly found 9 %.
LEAST_CONSENT = 0.5
# Of what critics confirm of the mildest search by `gamma`, of one by a shorter discount that the
# model finds large. On campaigns 0.32 of it, by discount 0, and 11 +- 1 in the model returned -12.
# Of 17 with more, where the mildest one gained little (lanes, playlists, irrigation, power plants,
# packets), none surely returned less than imitation, and 11 surely more.
LEAST_OF_MILDEST = 0.5
# Of the variance of what logged actions return, which a model of states tells. Of epidemic,
# batteries, conventions, crane and power plants it tells 0.75 to 0.91; of 54 gains that it surely
# found there and on two more, 51 are true. Of campaigns it tells 0.48, of signals none, and finds
# gains that are not.
LEAST_TOLD_RETURNS = 0.6
# Of a gain that is not large, part of the way: critics that confirm less of each search are far
# from 85 %. Of searches that acted in the end they confirmed 70 % after a quarter of their time.
LEAST_IN_REACH = 0.6
# Standard errors in the model of states by which a gain is one. Up to six searches are tried there,
# each in up to four times as many states while it is not sure, which is many chances for luck: by
# two, searches that gained 7 +- 3 and 4.5 +- 2 returned less than imitation (finger-spin), one
# that gained 3 +- 1 returned -190 to -350 (elevators with a layout; the log -57).
SURE_IN_MODEL = 3.0
# Share of the numbers of the states that a search leads to there, which are beyond what 99 % of the
# data have. Nobody knows what is paid there: where the log keeps wells from running dry the model
# knows of no fine for that, and of searches that empty them it found 9 and 27, in truth -121 and
# -106 (70 and 65 %). Boilers that burst in the cold 6 and -663 (75 %). Of those that truly gained
# one has 15 %, of rooms that nobody heated enough, and the others less.
MOST_BEYOND = 0.15
# The same of the policy's most likely action. It leaves out what the log's policy did by chance,
# and can lead elsewhere: of ten reservoirs, a third of whose gates were set by chance, it brings
# some beyond what the log has, and returns -314,000, samples -222,000 like the log (the model finds
# 67,000 more by it). Where it is right its share is 0 to 0.4 %.
MOST_BEYOND_OF_LIKELIEST = 0.05
# Standard errors there, too. Searches are tried in the same states, where what one gains more than
# another is much surer than what each of them gains.
LEVEL = 0.5
NOT_TRIED = 1e30  # standard error of what was not measured; files hold finite numbers
ANY_ROOM = 1e30  # it was not measured
ALL_UNTOLD = 1e30  # of a model of states that is not believed, whatever a search gains in it
LEAST_STATES = 32  # fewer do not tell


class Search(NamedTuple):
    """A way to search.

    Attributes:
        gamma: discount of the values that it compares actions by.
        action_flexibility: least probability of a choice, relative to the likeliest one's, in
            (0, 1].
    """

    gamma: float
    action_flexibility: float


@dataclasses.dataclass(frozen=True)
class Trust:
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
            value afterstates, or it tells 60 % of the variance of what logged actions return.
        room: what the best held-out episode returned more than the mean, divided by the mean number
            of steps.
        stays: share of steps that left the observation as it was (`search.standstill`). A
            function of the observation may stay there for ever, so each call draws new samples to
            imitate by.
        is_trap: whether such steps are frequent, return less than others, and repeat when the
            action is repeated. Samples act then, whatever critics or the model of states find.
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
    samples_error: float = NOT_TRIED
    likeliest_beyond: float = 0.0
    modeled: tuple[float, ...] = ()
    modeled_errors: tuple[float, ...] = ()
    beyond: tuple[float, ...] = ()
    changes: tuple[float, ...] = ()
    is_sequential: bool = False
    choices: float = 0.0
    untold: float = 0.0
    foresees: bool = False
    room: float = ANY_ROOM
    stays: float = 0.0
    is_trap: bool = False
    tells_ends: bool = False
    choice_promised: float = 0.0
    choice_confirmed: float = 0.0
    choice_error: float = 0.0

    def __post_init__(self) -> None:
        if not self.modeled:
            object.__setattr__(self, "modeled", (0.0,) * len(self.searches))
            object.__setattr__(self, "modeled_errors", (NOT_TRIED,) * len(self.searches))
        if not self.beyond:
            object.__setattr__(self, "beyond", (0.0,) * len(self.searches))
        if not self.changes:
            object.__setattr__(self, "changes", (0.0,) * len(self.searches))

    @property
    def has_failed(self) -> tuple[bool, ...]:
        """By search, whether it was tried in the model of states and gained nothing for sure.

        What is gained where the data have not been is not sure.
        """
        pairs = zip(self._tried, self._gain_in_model, strict=True)
        return tuple(is_tried and not gains for is_tried, gains in pairs)

    @property
    def _gain_in_model(self) -> tuple[bool, ...]:
        """By search, whether it surely gains there, and where the data have been.

        What the model does not tell of rewards it can be wrong by: where it tells half, errors are
        taken for twice as large. (Of elevators with a layout it told 56 %, and found 2.3 +- 0.7 by
        a search that returned -334, imitation -55.) Or the gain is at least this share of the
        spread of returns, as rewards can be noise that nothing tells: of trader's it tells 17 %,
        and finds 74 +- 8, 2.9 times the spread, by one that gains 80.
        """
        told = max(0.0, 1.0 - self.untold)
        figures = zip(self.modeled, self.modeled_errors, self.beyond, strict=True)
        return tuple(
            gain - SURE_IN_MODEL * error > 0.0
            and (
                gain * told - SURE_IN_MODEL * error > 0.0 or gain >= self.untold * self.spread > 0.0
            )
            and beyond < MOST_BEYOND
            for gain, error, beyond in figures
        )

    @property
    def _tried(self) -> tuple[bool, ...]:
        return tuple(error != NOT_TRIED for error in self.modeled_errors)

    @property
    def has_model(self) -> bool:
        """Whether policies were compared in a model of states."""
        return self.samples_error != NOT_TRIED

    def with_imitation(self, gains: torch.Tensor, likeliest_beyond: float = 0.0) -> Trust:
        """Adds how the policy imitates in the model of states.

        Args:
            gains: what samples return there less what most likely actions return, `(B,)`.
            likeliest_beyond: as in `Trust`.
        """
        mean, error = mean_and_error(gains.double())
        return dataclasses.replace(
            self, samples_gain=mean, samples_error=error, likeliest_beyond=likeliest_beyond
        )

    def to_try(self) -> int | None:
        """Returns the number of the search to be tried next in the model of states, if one is.

        Of those that may act if they gain there the best one by each discount is tried. Where the
        model foresees what actions lead to, the boldest by this discount, whatever critics say of
        it: it is compared with a milder one (`milder_than`), not tried after it.
        """
        if self.states < LEAST_STATES:
            return None
        may_act = self._to_be_tried
        done = [self.searches[i].gamma for i in may_act if self._tried[i]]
        among = [i for i in may_act if self.searches[i].gamma not in done]
        best = max(among, key=self.careful_gains.__getitem__, default=None)
        if best is None or not self.foresees:
            return best
        by_discount = [i for i in among if self.searches[i].gamma == self.searches[best].gamma]
        return min(by_discount, key=lambda i: self.searches[i].action_flexibility)

    @property
    def _to_be_tried(self) -> list[int]:
        """Numbers of searches that may act if they gain in the model of states."""
        pairs = zip(self._may_be_confirmed, self.has_failed, strict=True)
        confirmed = [i for i, (is_one, failed) in enumerate(pairs) if is_one and not failed]
        if confirmed and not self._are_final(confirmed):
            return confirmed + [i for i in self._may_be_preferred if i not in confirmed]
        large = [i for i, is_one in enumerate(self.are_large) if is_one]
        return confirmed or large or [i for i, is_one in enumerate(self._may_be_modeled) if is_one]

    def milder_than(self, number: int) -> int | None:
        """Returns the best of stricter searches by the same discount that may act, if one may.

        Args:
            number: of the search.
        """
        gamma, flexibility = self.searches[number]
        milder = [
            i
            for i in self._to_be_tried
            if self.searches[i].gamma == gamma and self.searches[i].action_flexibility > flexibility
        ]
        return max(milder, key=self.careful_gains.__getitem__, default=None)

    def with_search(self, number: int, gains: torch.Tensor, beyond: float = 0.0) -> Trust:
        """Adds what a search does in the model of states.

        Args:
            number: of the search.
            gains: what it returns there less what imitation does, `(B,)`.
            beyond: as in `Trust`.
        """
        modeled, errors, shares = [*self.modeled], [*self.modeled_errors], [*self.beyond]
        modeled[number], errors[number] = mean_and_error(gains.double())
        shares[number] = beyond
        return dataclasses.replace(
            self, modeled=tuple(modeled), modeled_errors=tuple(errors), beyond=tuple(shares)
        )

    @property
    def careful_gains(self) -> tuple[float, ...]:
        """By search, what is confirmed less what is not.

        What other critics do not confirm is a critic's own mistake. As much again is taken off the
        confirmed gain for mistakes that all critics share, which no comparison of them shows.
        """
        pairs = zip(self.promised, self.confirmed, strict=True)
        return tuple(confirmed - max(promised - confirmed, 0.0) for promised, confirmed in pairs)

    @property
    def beat_imitation(self) -> tuple[bool, ...]:
        """By search, whether it gains more than the most likely action.

        Half of what is not confirmed is taken off. On slates whose most likely order was good,
        critics confirmed 1.5 of a gain of 2.8 over the samples; the most likely action gained 1.2,
        and returned 7.3 where the search returned 6.8. On prices they confirmed 2.1 of 3.8, which
        the search returned, and the most likely action gained 0.5.
        """
        return self._beat_imitation(0.0)

    def _beat_imitation(self, doubt: float) -> tuple[bool, ...]:
        """Returns the same; gains may be lower by some standard errors, as in `_are_confirmed`."""
        pairs = zip(self._doubted_gains, self.standard_errors, strict=True)
        return tuple(
            gain + doubt * (1.5 * error + self.likeliest_error) > self.likeliest_gain
            for gain, error in pairs
        )

    @property
    def _doubted_gains(self) -> tuple[float, ...]:
        """By search, what is confirmed less half of what is not."""
        pairs = zip(self.confirmed, self.careful_gains, strict=True)
        return tuple((confirmed + careful) / 2.0 for confirmed, careful in pairs)

    @property
    def are_judged(self) -> tuple[bool, ...]:
        """By search, whether enough is known of what follows an action to judge it.

        A model of states knows it. Without one, critics by the first discount have to, and judge
        searches by this discount. Of others they judge those that gain 7 % of the spread of returns
        or more, and where other decisions follow, confirm 85 % of it: what a shorter discount
        leaves out and what is not confirmed would both have to be good. (Of collectors they
        confirmed 75 % by 0: it returned 4, imitation 26.) They judge no search of which the gains
        would add up to far more than any episode returned.
        """
        least, gamma = LEAST_SHORT_GAIN * self.spread, self.searches[0].gamma
        figures = zip(self.searches, self.promised, self.confirmed, self._are_possible, strict=True)

        def is_enough(promised: float, gain: float) -> bool:
            is_agreed = not self.is_sequential or gain >= LEAST_CONFIRMED * promised
            return gain >= least and is_agreed

        return tuple(
            self.has_model or (is_possible and (way.gamma == gamma or is_enough(promised, gain)))
            for way, promised, gain, is_possible in figures
        )

    @property
    def _are_possible(self) -> tuple[bool, ...]:
        """By search, whether its gains in all steps of an episode could be true."""
        most = MOST_IMPLIED * self.room
        return tuple(not self.is_sequential or gain <= most for gain in self.confirmed)

    @property
    def are_confirmed(self) -> tuple[bool, ...]:
        """By search, whether 85 % of its gain or more is confirmed, and the gain is real.

        A gain is real if it is surely above 0, 1 % of the spread of returns or more, judged, more
        than imitation's, and a gain in the model of states as well. Where two standard errors would
        decide whether 85 % is confirmed, whether it is a gain, or more than imitation's gain, that
        model does. (Critics of lanes agreed on a gain of 0.6, a hundredth of the spread, that was
        not surely one; in the model it was 45 +- 8, and 93 in truth.) So it does where 75 % is
        confirmed, or may be, of a search that changes hardly more than samples do.
        """
        figures = zip(
            self._are_confirmed(0.0),
            self._may_be_confirmed,
            self.has_failed,
            self._gain_in_model,
            strict=True,
        )
        return tuple(
            (is_ or (may_be and gains)) and not failed for is_, may_be, failed, gains in figures
        )

    @property
    def _may_be_confirmed(self) -> tuple[bool, ...]:
        """By search, whether critics leave it to the model of states."""
        mild = zip(self._are_confirmed(2.0, LEAST_CONFIRMED_OF_MILD), self.changes, strict=True)
        are_mild = [is_one and change <= MOST_CHANGES for is_one, change in mild]
        return tuple(map(any, zip(self._are_confirmed(2.0), are_mild, strict=True)))

    def _are_confirmed(
        self, doubt: float, least_confirmed: float = LEAST_CONFIRMED
    ) -> tuple[bool, ...]:
        """Returns by search whether critics confirm it, whatever the model of states says.

        Args:
            doubt: standard errors by which figures may be below their bounds.
            least_confirmed: share of its gain.
        """
        least = LEAST_GAIN * self.spread
        figures = zip(
            self.promised,
            self.confirmed,
            self.standard_errors,
            self.are_judged,
            self._beat_imitation(doubt),
            strict=True,
        )

        def is_agreed(promised: float, confirmed: float, error: float) -> bool:
            bound = least_confirmed * promised
            if confirmed - 2.0 * error > 0.0:
                return confirmed + doubt * error >= bound
            # One of both may be open, not both: whether there is a gain, or whether others agree.
            return doubt > 0.0 and confirmed >= bound

        return tuple(
            is_judged
            and beats
            and confirmed + doubt * error >= least
            and promised > 0.0
            and is_agreed(promised, confirmed, error)
            for promised, confirmed, error, is_judged, beats in figures
        )

    @property
    def are_large(self) -> tuple[bool, ...]:
        """By search, whether less is confirmed, of a gain that is large all the same.

        What is confirmed less what is not is 5 % of the spread of returns or more, more than what
        imitation gains, and the search gains in the model of states as well. Without such a model
        nobody knows what acting this way in every step returns: of decisions that follow each other
        it has to change hardly more than samples do. So it has where the task ends episodes: of
        trucks, and of tanks, the bold searches that the model found to gain crash.
        """
        knows = (self.has_model and not self.tells_ends) or not self.is_sequential
        pairs = zip(self._look_large, self.changes, strict=True)
        return tuple(is_one and (knows or change <= MOST_CHANGES) for is_one, change in pairs)

    @property
    def _look_large(self) -> tuple[bool, ...]:
        """By search, whether it is large as far as critics know what follows."""
        least = LEAST_CAREFUL_GAIN * self.spread
        may_act = map(all, zip(self.are_judged, self.beat_imitation, strict=True))
        figures = zip(self.careful_gains, self.are_confirmed, may_act, self.has_failed, strict=True)
        return tuple(
            self.spread > 0.0 and careful >= least and may and not (is_confirmed or failed)
            for careful, is_confirmed, may, failed in figures
        )

    @property
    def are_large_in_model(self) -> tuple[bool, ...]:
        """By search, whether less is confirmed, of a gain that the model of states finds large.

        Critics confirm a gain by the first discount that is surely above 0, and a search as mild as
        any surely returns more than imitation in the model, by 40 % of the spread of returns or
        more. Of one by a shorter discount they have to confirm at least half of what they confirm
        of the mildest by the first one; where that is large, too, the model surely prefers it.
        Where the model foresees what actions lead to, any search that surely returns as much more
        than imitation, or 5 % of the spread if critics confirm at least half of its gain. (On
        cheetah-run's mixed data one that gained 3 % in it returned 498, imitation 586.) Critics of
        afterstates value by that model, and any gain counts. Where the task ends episodes 5 % are
        enough of a mild one, too, as a model that is believed tells nearly all rewards there (of
        reactor it found 22 and 32 %, of poles 13 %).
        """
        figures = zip(
            self._may_be_modeled, self.modeled, self.modeled_errors, self._least_alone, strict=True
        )
        are_large = [
            may and gain - SURE_IN_MODEL * error > 0.0 and gain > least * self.spread
            for may, gain, error, least in figures
        ]
        if not self.foresees:
            allowed = self._beat_the_mildest if are_large[self._mildest] else self._have_consent
            are_large = [is_one and may for is_one, may in zip(are_large, allowed, strict=True)]
        acts_anyway = map(any, zip(self.are_confirmed, self.are_large, strict=True))
        return tuple(
            is_one and not anyway for is_one, anyway in zip(are_large, acts_anyway, strict=True)
        )

    @property
    def _least_alone(self) -> tuple[float, ...]:
        """By search, the share of the spread from which on the model's gain counts alone."""
        if self.foresees and self.untold == 0.0:
            return (0.0,) * len(self.searches)
        pairs = zip(self.promised, self.confirmed, strict=True)
        return tuple(
            LEAST_CAREFUL_GAIN
            if self.tells_ends or (self.foresees and confirmed >= LEAST_CONSENT * promised > 0.0)
            else LEAST_MODELED_GAIN
            for promised, confirmed in pairs
        )

    @property
    def _may_be_modeled(self) -> tuple[bool, ...]:
        """By search, whether critics confirm any gain and the model has not found that it fails.

        Of the mildest ones alone: bolder ones lead where the model is wrong. Of 23 that it surely
        found to gain in 15 tasks, 11 returned less than imitation, of 24 milder ones by the first
        discount 3.

        Where the data have shown that it foresees what actions lead to, any search may be large. In
        a log whose policy always ends in a pit, one action that avoids them gains nothing by the
        first discount (-1.3 +- 3), and acting so in every step gains 211 +- 51 (CoNE, 75 %).
        """
        least = LEAST_GAIN * self.spread
        figures = zip(
            self.searches, self.confirmed, self.standard_errors, self.has_failed, strict=True
        )
        is_asked = self.has_model and self.spread > 0.0
        mildest = self.searches[self._mildest].action_flexibility
        return tuple(
            is_asked
            and not failed
            and (
                self.foresees
                or (
                    way.action_flexibility == mildest and gain >= least and gain - 2.0 * error > 0.0
                )
            )
            for way, gain, error, failed in figures
        )

    @property
    def _mildest(self) -> int:
        """Number of the mildest search by the first discount."""
        first = self.searches[0].gamma
        of_first = [i for i, way in enumerate(self.searches) if way.gamma == first]
        return max(of_first, key=lambda i: self.searches[i].action_flexibility)

    @property
    def _have_consent(self) -> tuple[bool, ...]:
        """By search, whether critics confirm half of what they confirm of the mildest by `gamma`.

        Or it is by this discount. What comes later a shorter one leaves out, and else only the
        model would know it.
        """
        of_mildest, gamma = self.confirmed[self._mildest], self.searches[0].gamma
        pairs = zip(self.searches, self.confirmed, strict=True)
        return tuple(
            way.gamma == gamma or confirmed >= LEAST_OF_MILDEST * of_mildest > 0.0
            for way, confirmed in pairs
        )

    @property
    def _beat_the_mildest(self) -> tuple[bool, ...]:
        """By search, whether the model surely prefers it to that one, too, or it is as long."""
        least, error = self.modeled[self._mildest], self.modeled_errors[self._mildest]
        figures = zip(
            self.searches, self._have_consent, self.modeled, self.modeled_errors, strict=True
        )
        return tuple(
            way.gamma == self.searches[0].gamma
            or (has_consent and gain - 2.0 * max(error, own) > least)
            for way, has_consent, gain, own in figures
        )

    @property
    def is_out_of_reach(self) -> bool:
        """Whether critics are so far from confirming any search that none will act soon.

        Of each, what others confirm less what they do not is surely below 1 % of the spread of
        returns; or they confirm less than 60 % of a gain that is not large. On cheetah-run's mixed
        data, where no search acts, 63 % of a gain of 0.9 % was confirmed in the end, and imitation
        returns 520 and 536 if critics have this time, 567 and 563 if they have not. On ICU-Sepsis
        the gain was 1.0 % after a quarter of the training, 4 % in the end. With more training
        shares rise, and with them the mistakes that all critics share: on `signals` from 0.5 to
        0.87, of searches that returned half of what imitation does.
        """
        return self._is_far(2.0)

    @property
    def looks_out_of_reach(self) -> bool:
        """Whether they are as far as these states tell, surely or not."""
        return self._is_far(0.0)

    def _is_far(self, doubt: float) -> bool:
        """Returns whether they are, by some standard errors."""
        least, least_careful = LEAST_GAIN * self.spread, LEAST_CAREFUL_GAIN * self.spread
        figures = zip(
            self.careful_gains, self.confirmed, self.promised, self.standard_errors, strict=True
        )
        is_far = all(
            careful + doubt * 2.0 * error < least  # what is not confirmed counts twice
            or (confirmed < LEAST_IN_REACH * promised and careful < least_careful)
            for careful, confirmed, promised, error in figures
        )
        return not self.needs_critics and is_far

    @property
    def is_clear(self) -> bool:
        """Whether more states would hardly change which searches are confirmed.

        By three standard errors, each is confirmed or not, and its gain is enough or too little,
        more than imitation's or less, and critics can judge it or not.
        """
        least, least_careful = LEAST_GAIN * self.spread, LEAST_CAREFUL_GAIN * self.spread
        least_short, gamma = LEAST_SHORT_GAIN * self.spread, self.searches[0].gamma
        gains = zip(self.searches, self.confirmed, self.standard_errors, strict=True)
        is_judged_or_not = all(
            abs(gain - least_short) > 3.0 * error
            for way, gain, error in gains
            if way.gamma != gamma
        )
        return is_judged_or_not and all(
            (
                confirmed + 3.0 * error < LEAST_CONFIRMED * promised
                and abs(careful - least_careful) > 6.0 * error  # what is not confirmed counts twice
            )
            or (
                confirmed - 3.0 * error > LEAST_CONFIRMED * promised
                and abs(confirmed - least) > 3.0 * error
                and abs(doubted - self.likeliest_gain) > 4.5 * error + 3.0 * self.likeliest_error
            )
            for promised, confirmed, careful, doubted, error in zip(
                self.promised,
                self.confirmed,
                self.careful_gains,
                self._doubted_gains,
                self.standard_errors,
                strict=True,
            )
        )

    def _are_final(self, confirmed: list[int]) -> bool:
        """Returns whether no other search is asked for where these are confirmed.

        Of dams critics agreed on a gain of 1.5 by discount 0, and confirmed 6.7 of 10.5 of the
        mildest search by `gamma`. The model found 15 +- 5 and 56 +- 4; they return 527 and 706
        (imitation 658).
        """
        return any(self._have_consent[i] for i in confirmed)

    @property
    def _may_be_preferred(self) -> list[int]:
        """Numbers of the searches that may act in place of others, if the model prefers them."""
        pairs = zip(self._may_be_modeled, self._have_consent, strict=True)
        return [i for i, (may, consent) in enumerate(pairs) if may and (consent or self.foresees)]

    @property
    def _may_act(self) -> list[int]:
        """Numbers of the searches that are confirmed, or else of the large ones.

        Or else of those that are large in the model of states. Where critics confirm only searches
        by shorter discounts, and less than half of what they confirm of the mildest one by the
        first discount, others act if this model surely prefers them, by two standard errors.
        """
        confirmed, large, modeled = (
            [i for i, is_one in enumerate(are) if is_one]
            for are in (self.are_confirmed, self.are_large, self.are_large_in_model)
        )
        if not confirmed or self._are_final(confirmed):
            return confirmed or large or modeled
        most = max(confirmed, key=self.modeled.__getitem__)
        preferred = [
            i
            for i in self._may_be_preferred
            if self.modeled[i] - 2.0 * max(self.modeled_errors[i], self.modeled_errors[most])
            > self.modeled[most]
        ]
        return preferred or confirmed

    @property
    def _best(self) -> int:
        among = self._may_act
        tried = [i for i in among if self._tried[i]]
        if tried:
            most = max(tried, key=self.modeled.__getitem__)
            least = self.modeled[most] - LEVEL * self.modeled_errors[most]
            level = [i for i in tried if self.modeled[i] >= least]
            # What a search by a shorter discount gains depends less on what the data do later.
            return min(level, key=lambda i: (self.searches[i].gamma, -self.modeled[i]))
        # A search whose critics give no number is none to choose.
        gains = [-math.inf if math.isnan(gain) else gain for gain in self.careful_gains]
        others = [i for i, failed in enumerate(self.has_failed) if not failed]
        return max(among or others or range(len(gains)), key=gains.__getitem__)

    @property
    def best(self) -> Search:
        """The search with the largest careful gain, or that gains most in the model of states.

        Of those that may act; if none may, of those that did not fail in that model; if
        all did, of all.
        """
        return self.searches[self._best]

    @property
    def share(self) -> float:
        """Confirmed share of the best search's gain."""
        promised = self.promised[self._best]
        return self.confirmed[self._best] / promised if promised > 0.0 else 0.0

    @property
    def acts_by(self) -> ActsBy:
        """`"search"` if one is confirmed, large, or large in the model, else how to imitate.

        `"imitation"` takes the policy's most likely action, `"samples"` is where the model of
        states finds its samples surely better, or critics do and the model not surely worse. Also
        where decisions are nearly uniform, unless that model, or of single decisions critics, find
        samples surely worse; where most likely actions lead beyond the data; and wherever a
        function of the observation can stand still for ever.
        """
        if self.is_trap:
            return "samples"
        if self.states < LEAST_STATES:
            return "imitation"
        if self._may_act:
            return "search"
        likes_samples = self.likeliest_gain + 2.0 * self.likeliest_error < 0.0
        if self._is_varied:
            is_worth_it = self.likeliest_gain - 2.0 * self.likeliest_error > 0.0
            likes_samples = self.is_sequential or not is_worth_it
        # What follows an action decides where critics say the contrary.
        is_sure_of_more = self.samples_gain - SURE_IN_MODEL * self.samples_error > 0.0
        is_sure_of_less = self.samples_gain + SURE_IN_MODEL * self.samples_error < 0.0
        is_worse = (
            self._leaves_the_data or is_sure_of_more or (likes_samples and not is_sure_of_less)
        )
        return "samples" if is_worse else "imitation"

    @property
    def _leaves_the_data(self) -> bool:
        """Whether most likely actions lead where the data have not been."""
        return self.likeliest_beyond >= MOST_BEYOND_OF_LIKELIEST

    @property
    def chooses_samples(self) -> bool:
        """Whether the best of four new samples acts, by the critics, where one sample would.

        So it is where policies can stand still, if other critics confirm at least half of this
        gain, and it is surely one. All steps are some that the data's policy might take, so less is
        asked than of a search, and who draws again moves on in the end. (Rails: 21, one sample 8,
        searches -5 to -8, the log 10.)
        """
        if not self.is_trap or self.states < LEAST_STATES:
            return False
        is_sure = self.choice_confirmed - 2.0 * self.choice_error > 0.0
        return is_sure and self.choice_confirmed >= 0.5 * self.choice_promised

    @property
    def needs_critics(self) -> bool:
        """Whether critics choose what acts."""
        return self.acts_by == "search" or self.chooses_samples

    @property
    def _is_varied(self) -> bool:
        """Whether decisions of the data are nearly uniform as far as the policy tells."""
        if self.alternatives <= 1.0 or self.choices <= 1.0:
            return False
        return math.log(self.alternatives) >= LEAST_VARIED * math.log(self.choices)

    def __str__(self) -> str:
        if self.is_trap:
            return f"acts by samples: {self._standstill}"
        if self.states < LEAST_STATES:
            return f"acts by imitation: {self.states} held-out states are too few to test critics"
        best = self._best
        gamma, flexibility = self.best
        return (
            f"acts by {self.acts_by}: other critics confirm {self.share:.0%} of what a search by "
            f"discount {gamma:g} and action_flexibility {flexibility:g} gains in {self.states} "
            f"held-out states "
            f"({self.confirmed[best]:.2g} +- {self.standard_errors[best]:.1g} of "
            f"{self.promised[best]:.2g}; expected {LEAST_CONFIRMED:.0%}){self._alternatives}"
            f"{self._spread}{self._judges}{self._imitation}{self._model}{self._fallback}"
        )

    @property
    def _standstill(self) -> str:
        drawn = "a new sample is drawn"
        if self.chooses_samples:
            drawn = (
                "the best of some new samples is taken (other critics confirm "
                f"{self.choice_confirmed:.2g} +- {self.choice_error:.1g} of the "
                f"{self.choice_promised:.2g} that this gains)"
            )
        return (
            f"{self.stays:.0%} of the steps left the observation as it was, and returned less; a "
            f"function of it can stand still for ever, so in each call {drawn}"
        )

    @property
    def _judges(self) -> str:
        if self.are_judged[self._best]:
            return ""
        if not self._are_possible[self._best]:
            return (
                f"; in each step that is more than {MOST_IMPLIED:g} times the {self.room:.2g} that "
                "the best held-out episode returned more than the mean (no more can be true where "
                "no model of states tells what follows)"
            )
        agreed = f", with {LEAST_CONFIRMED:.0%} of it confirmed," if self.is_sequential else ""
        return (
            f"; of a search by a discount shorter than {self.searches[0].gamma:g} a gain of "
            f"{LEAST_SHORT_GAIN:.0%}{agreed} is expected where no model of states tells what "
            "follows"
        )

    @property
    def _imitation(self) -> str:
        if self.beat_imitation[self._best] or self.likeliest_gain <= 0.0:
            return ""
        return (
            f"; the most likely action gains {self.likeliest_gain:.2g}, the search less if half of "
            "what is not confirmed is taken off"
        )

    @property
    def _fallback(self) -> str:
        if not self._leaves_the_data or self.acts_by == "search":
            return ""
        return (
            f"; samples imitate, as {self.likeliest_beyond:.0%} of the numbers of the states that "
            "the most likely actions lead to are beyond what 99% of the data have (expected less "
            f"than {MOST_BEYOND_OF_LIKELIEST:.0%})"
        )

    @property
    def _model(self) -> str:
        best = self._best
        gain, error = self.modeled[best], self.modeled_errors[best]
        if error == NOT_TRIED:
            return ""
        more = f"; in a model of states it returns {gain:+.2g} +- {error:.1g} more than imitation"
        if self.beyond[best] >= MOST_BEYOND:
            return (
                f"{more}, but {self.beyond[best]:.0%} of the numbers of the states that it leads "
                f"to are beyond what 99% of the data have (expected less than {MOST_BEYOND:.0%})"
            )
        if self.untold == ALL_UNTOLD:
            return f"{more}, but this model returns more than was logged for logged actions, too"
        is_less_sure = gain - SURE_IN_MODEL * error > 0.0 and not self._gain_in_model[best]
        if is_less_sure and self.untold < 1.0:  # why it does not act
            least = min(SURE_IN_MODEL * error / (1.0 - self.untold), self.untold * self.spread)
            told = f"this model tells {1.0 - self.untold:.0%} of held-out rewards"
            return f"{more} (expected {least:.2g}, as {told})"
        if self.are_confirmed[best] and not self._are_confirmed(2.0)[best]:  # why it acts
            return (
                f"{more}, and changes {self.changes[best]:.2f} times as many slots as samples do "
                f"(expected {MOST_CHANGES:g} where {LEAST_CONFIRMED_OF_MILD:.0%} is enough)"
            )
        if any(self.are_confirmed) and not self.are_confirmed[best]:  # why it acts
            return f"{more}, and surely more than those by shorter discounts that are confirmed"
        least = self._least_alone[best]
        is_too_little = self.acts_by != "search" and 0.0 < gain < least * self.spread
        if least == 0.0 or not (is_too_little or self.are_large_in_model[best]):
            return more
        return (  # why it acts though less is confirmed than expected, or why it does not
            f"{more}, {gain / self.spread:.0%} of the standard deviation of returns (expected "
            f"{least:.0%} where less is confirmed)"
        )

    @property
    def _spread(self) -> str:
        if self.spread == 0.0:
            return ""
        share = self.confirmed[self._best] / self.spread
        if self.are_large[self._best]:  # why it acts though less is confirmed than expected
            careful = self.careful_gains[self._best] / self.spread
            return (
                f"; what is confirmed less what is not is {careful:.1%} of the standard deviation "
                f"of returns (expected {LEAST_CAREFUL_GAIN:.0%} where less is confirmed)"
            )
        if self._look_large[self._best] and self.acts_by != "search":  # why it does not act
            return (
                f"; the gain is large, but the search changes {self.changes[self._best]:.1f} times "
                f"as many slots as samples do (expected {MOST_CHANGES:g} where less is confirmed, "
                "and the task ends episodes or no model of states tells what it leads to)"
            )
        return (
            f"; the gain is {share:.1%} of the standard deviation of returns "
            f"(expected {LEAST_GAIN:.0%})"
        )

    @property
    def _alternatives(self) -> str:
        if self.alternatives == 0.0:
            return ""
        of_all = f" of {self.choices:.3g}" if self.choices else ""
        return f"; in the data a slot has {self.alternatives:.2f} likely choices{of_all}"


def mean_and_error(of_states: torch.Tensor) -> tuple[float, float]:
    """Returns the mean over states `(B,)` and its standard error."""
    error = of_states.std(correction=0) / len(of_states) ** 0.5
    return float(of_states.mean()), float(error)


def untested(searches: Sequence[Search]) -> Trust:
    """Returns the trust in critics that could not be tested."""
    nothing = (0.0,) * len(searches)
    return Trust(tuple(searches), nothing, nothing, nothing, states=0)
