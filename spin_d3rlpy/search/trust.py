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
from collections.abc import Callable, Sequence
from typing import Literal

from spin_d3rlpy.search import trust_bounds as bounds
from spin_d3rlpy.search.trust_figures import Figures, Search, Trial

ActsBy = Literal["search", "imitation", "samples"]


@dataclasses.dataclass(frozen=True)
class Trust(Figures):
    """By what the policy acts, which the figures decide.

    What is true of one search has a method that takes its figures, and of all a property that says
    why.
    """

    @property
    def _gamma(self) -> float:
        """The first discount, by which returns are counted."""
        return self.searches[0].gamma

    def _numbers(self, is_one: Callable[[Trial], bool]) -> list[int]:
        """Returns the numbers of the searches of which something is true."""
        return [i for i, trial in enumerate(self.trials) if is_one(trial)]

    @property
    def has_failed(self) -> tuple[bool, ...]:
        """By search, whether it was tried in the model of states and gained nothing for sure.

        What is gained where the data have not been is not sure.
        """
        return tuple(map(self.failed, self.trials))

    def failed(self, trial: Trial) -> bool:
        """Returns whether this search has; see `has_failed`."""
        return trial.is_tried and not self._gains_in_model(trial)

    def _gains_in_model(self, trial: Trial) -> bool:
        """Returns whether a search surely gains there, and where the data have been.

        What the model does not tell of rewards it can be wrong by: where it tells half, errors are
        taken for twice as large. (Of elevators with a layout it told 56 %, and found 2.3 +- 0.7 by
        a search that returned -334, imitation -55.) Or the gain is at least this share of the
        spread of returns, as rewards can be noise that nothing tells: of trader's it tells 17 %,
        and finds 74 +- 8, 2.9 times the spread, by one that gains 80. Of a search that changes more
        slots than samples do it has to be a part of the spread: it leads further from the data.
        """
        told = max(0.0, 1.0 - self.untold)
        is_told = trial.modeled * told - bounds.SURE_IN_MODEL * trial.modeled_error > 0.0
        is_large = trial.modeled >= self.untold * self.spread > 0.0
        is_sure = trial.is_sure_in_model and (is_told or is_large)
        is_enough = trial.is_mild or trial.modeled > self._least_of_bold(trial) * self.spread
        return is_sure and is_enough and trial.beyond < bounds.MOST_BEYOND

    def _least_of_bold(self, trial: Trial) -> float:
        """Returns the share of the spread of returns that a bold search has to gain there.

        40 % (see `least_alone`). Where the task ends episodes 5 %, if it changes at most twice as
        many slots as samples do: one of landers with 3.6 found 20 %, and returned -1.5, imitation
        2.4.
        """
        is_boldest = self.tells_ends and trial.changes > bounds.MOST_CHANGES_WITH_ENDS
        return bounds.LEAST_MODELED_GAIN if is_boldest else self.least_alone

    def to_try(self) -> int | None:
        """Returns the number of the search to be tried next in the model of states, if one is.

        Of those that may act if they gain there the best one by each discount is tried. Where the
        model foresees what actions lead to, the boldest by this discount, whatever critics say of
        it: it is compared with a milder one (`milder_than`), not tried after it.
        """
        if self.states < bounds.LEAST_STATES:
            return None
        may_act = self._to_be_tried
        done = [self.searches[i].gamma for i in may_act if self.trials[i].is_tried]
        among = [i for i in may_act if self.searches[i].gamma not in done]
        best = max(among, key=self.careful_gains.__getitem__, default=None)
        if best is None or not self.foresees:
            return best
        by_discount = [i for i in among if self.searches[i].gamma == self.searches[best].gamma]
        return min(by_discount, key=lambda i: self.searches[i].action_flexibility)

    @property
    def _to_be_tried(self) -> list[int]:
        """Numbers of searches that may act if they gain in the model of states."""
        confirmed = self._numbers(lambda it: self._may_be_confirmed(it) and not self.failed(it))
        if confirmed and not self._are_final(confirmed):
            return confirmed + [i for i in self._may_be_preferred if i not in confirmed]
        large = self._numbers(self.is_large)
        return confirmed or large or self._numbers(self._may_be_modeled)

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

    def compared(
        self,
        try_search: Callable[[Trust, int], Trust],
        returns_more: Callable[[int, int], bool],
    ) -> Trust:
        """Tries searches in the model of states, until none is left that may act by it.

        A milder one by the same discount comes first: steps that the data support less lead further
        from what they know, also from what that model knows. Where the data have shown that it
        foresees what actions lead to, the bolder one comes first if it returns more.

        Args:
            try_search: from trust and the number of a search, trust with what this search does.
            returns_more: whether the first of two searches returns more than the second there.
        """
        trust = self
        while (number := trust.to_try()) is not None:
            milder = trust.milder_than(number)
            if milder is not None and not (trust.foresees and returns_more(number, milder)):
                number = milder
            trust = try_search(trust, number)
        return trust

    @property
    def beat_imitation(self) -> tuple[bool, ...]:
        """By search, whether it gains more than the most likely action.

        Half of what is not confirmed is taken off. On slates whose most likely order was good,
        critics confirmed 1.5 of a gain of 2.8 over the samples; the most likely action gained 1.2,
        and returned 7.3 where the search returned 6.8. On prices they confirmed 2.1 of 3.8, which
        the search returned, and the most likely action gained 0.5.
        """
        return tuple(map(self.beats_imitation, self.trials))

    def beats_imitation(self, trial: Trial, doubt: float = 0.0) -> bool:
        """Returns whether this search does; gains may be lower by some standard errors."""
        doubted = doubt * (1.5 * trial.error + self.likeliest_error)
        return trial.doubted_gain + doubted > self.likeliest_gain

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
        return tuple(map(self.is_judged, self.trials))

    def is_judged(self, trial: Trial) -> bool:
        """Returns whether this search can be judged; see `are_judged`."""
        if self.has_model:
            return True
        if not self.is_possible(trial) or trial.way.gamma == self._gamma:
            return self.is_possible(trial)
        is_agreed = trial.confirmed >= bounds.LEAST_CONFIRMED * trial.promised
        is_enough = trial.confirmed >= bounds.LEAST_SHORT_GAIN * self.spread
        return is_enough and (is_agreed or not self.is_sequential)

    def is_possible(self, trial: Trial) -> bool:
        """Returns whether its gains in all steps of an episode could be true."""
        return not self.is_sequential or trial.confirmed <= bounds.MOST_IMPLIED * self.room

    @property
    def are_confirmed(self) -> tuple[bool, ...]:
        """By search, whether 85 % of its gain or more is confirmed, and the gain is real.

        A gain is real if it is surely above 0, 1 % of the spread of returns or more, judged, more
        than imitation's, and a gain in the model of states as well. Where two standard errors would
        decide whether 85 % is confirmed, whether it is a gain, or more than imitation's gain, that
        model does. (Critics of lanes agreed on a gain of 0.6, a hundredth of the spread, that was
        not surely one; in the model it was 45 +- 8, and 93 in truth.) It also decides where 75 % is
        confirmed, or may be, of a search that changes hardly more than samples do. What is open of
        one by a shorter discount needs the critics' consent all the same, unless the model foresees
        what actions lead to, or when episodes end: of the game of life it found 34 +- 4 and 14 +- 4
        (two logs) by discount 0, of which critics confirmed a tenth and a third of what they
        confirm by `gamma`; it returned 140 and 135 (imitation 298 and 294, the log 225). Where a
        log may be of several policies nothing is open: which policy a state is of tells returns,
        whatever actions do. Where other decisions follow, and there is no such model, 75 % of one
        by the first discount are enough that changes little more.
        """
        return tuple(map(self.is_confirmed, self.trials))

    def is_confirmed(self, trial: Trial) -> bool:
        """Returns whether this search is; see `are_confirmed`."""
        is_left_to_model = self._may_be_confirmed(trial) and self._gains_in_model(trial)
        is_agreed = self.is_agreed(trial, self.least_confirmed(trial))
        return (is_agreed or is_left_to_model) and not self.failed(trial)

    def least_confirmed(self, trial: Trial) -> float:
        """Returns the share of a gain that is enough, whatever the model of states says."""
        is_alone = self.is_sequential and not self.has_model
        is_mild = trial.changes <= bounds.MOST_CHANGES_BY_GAMMA
        is_enough = is_alone and is_mild and trial.way.gamma == self._gamma
        return bounds.LEAST_CONFIRMED_OF_MILD if is_enough else bounds.LEAST_CONFIRMED

    def _may_be_confirmed(self, trial: Trial) -> bool:
        """Returns whether critics confirm it, or leave it to the model of states."""
        is_open = self.is_agreed(trial, bounds.LEAST_CONFIRMED, 2.0) or (
            trial.is_mild and self.is_agreed(trial, bounds.LEAST_CONFIRMED_OF_MILD, 2.0)
        )
        knows = self._has_consent(trial) or self.foresees or self.tells_ends
        is_left = is_open and knows and (self._values_afterstates or not self.is_mixed)
        return self.is_agreed(trial, bounds.LEAST_CONFIRMED) or is_left

    @property
    def is_mixed(self) -> bool:
        """Whether the log may be of several policies, that are better and worse."""
        return self.persistence >= bounds.LEAST_MIXED

    def is_agreed(self, trial: Trial, least_confirmed: float, doubt: float = 0.0) -> bool:
        """Returns whether critics confirm a search, whatever the model of states says.

        Args:
            trial: its figures.
            least_confirmed: share of its gain.
            doubt: standard errors by which figures may be below their bounds.
        """
        bound, doubted = least_confirmed * trial.promised, doubt * trial.error
        # One of both may be open, not both: whether there is a gain, or whether others agree.
        if trial.confirmed - 2.0 * trial.error > 0.0:
            agree = trial.confirmed + doubted >= bound
        else:
            agree = doubt > 0.0 and trial.confirmed >= bound
        return (
            agree
            and trial.promised > 0.0
            and trial.confirmed + doubted >= bounds.LEAST_GAIN * self.spread
            and self.is_judged(trial)
            and self.beats_imitation(trial, doubt)
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
        return tuple(map(self.is_large, self.trials))

    def is_large(self, trial: Trial) -> bool:
        """Returns whether this search is; see `are_large`."""
        knows = (self.has_model and not self.tells_ends) or not self.is_sequential
        return self.looks_large(trial) and (knows or trial.is_mild)

    def looks_large(self, trial: Trial) -> bool:
        """Returns whether it is large as far as critics know what follows."""
        return (
            self.spread > 0.0
            and trial.careful_gain >= bounds.LEAST_CAREFUL_GAIN * self.spread
            and self.is_judged(trial)
            and self.beats_imitation(trial)
            and not (self.is_confirmed(trial) or self.failed(trial))
        )

    @property
    def are_large_in_model(self) -> tuple[bool, ...]:
        """By search, whether less is confirmed, of a gain that the model of states finds large.

        Critics confirm a gain by the first discount that is surely above 0, and a search as mild as
        any surely returns more than imitation in the model, by 40 % of the spread of returns or
        more. Of one by a shorter discount they have to confirm at least half of what they confirm
        of the mildest by the first one; where that is large, too, the model surely prefers it.
        Where the model foresees what actions lead to, any search that surely returns as much more
        than imitation. Critics of afterstates value by that model, and any gain counts. Where the
        task ends episodes 5 % are enough of a mild one, too, as a model that is believed tells
        nearly all rewards there (of reactor it found 22 and 32 %, of poles 13 %).
        """
        return tuple(map(self.is_large_in_model, self.trials))

    def is_large_in_model(self, trial: Trial) -> bool:
        """Returns whether this search is; see `are_large_in_model`."""
        if self.is_confirmed(trial) or self.is_large(trial):
            return False
        is_preferred = self._has_consent(trial) and (
            not self._looks_large_in_model(self._mildest) or self._beats_the_mildest(trial)
        )
        return self._looks_large_in_model(trial) and (self.foresees or is_preferred)

    def _looks_large_in_model(self, trial: Trial) -> bool:
        """Returns whether it is large there, whatever the discount."""
        is_large = trial.modeled > self.least_alone * self.spread
        return self._may_be_modeled(trial) and trial.is_sure_in_model and is_large

    @property
    def least_alone(self) -> float:
        """Share of the spread of returns from which on the model's gain counts alone."""
        if self._values_afterstates:
            return 0.0
        return bounds.LEAST_CAREFUL_GAIN if self.tells_ends else bounds.LEAST_MODELED_GAIN

    @property
    def _values_afterstates(self) -> bool:
        """Whether critics value where actions lead, by the model of states."""
        return self.foresees and self.untold == 0.0

    def _may_be_modeled(self, trial: Trial) -> bool:
        """Returns whether critics confirm any gain and the model has not found that it fails.

        However small it is: poles fell later (81 steps, imitation 74) by a search that gained 0.8 %
        of the spread of returns, and 7 % in the model. Of the mildest ones alone: bolder ones lead
        where the model is wrong. Of 23 that it surely found to gain in 15 tasks, 11 returned less
        than imitation, of 24 milder ones by the first discount 3.

        Where the data have shown that it foresees what actions lead to, any search may be large. In
        a log whose policy always ends in a pit, one action that avoids them gains nothing by the
        first discount (-1.3 +- 3), and acting so in every step gains 211 +- 51 (CoNE, 75 %).
        """
        is_asked = self.has_model and self.spread > 0.0 and not self.failed(trial)
        is_mildest = trial.way.action_flexibility == self._mildest.way.action_flexibility
        is_gain = trial.confirmed - 2.0 * trial.error > 0.0
        return is_asked and (self.foresees or (is_mildest and is_gain))

    @property
    def _mildest(self) -> Trial:
        """The mildest search by the first discount."""
        of_first = [trial for trial in self.trials if trial.way.gamma == self._gamma]
        return max(of_first, key=lambda trial: trial.way.action_flexibility)

    def _has_consent(self, trial: Trial) -> bool:
        """Returns whether critics confirm half of what they confirm of the mildest by `gamma`.

        Or it is by this discount. What comes later a shorter one leaves out, and else only the
        model would know it.
        """
        of_mildest = self._mildest.confirmed
        is_enough = trial.confirmed >= bounds.LEAST_OF_MILDEST * of_mildest > 0.0
        return trial.way.gamma == self._gamma or is_enough

    def _beats_the_mildest(self, trial: Trial) -> bool:
        """Returns whether the model surely prefers it to that one, or it is as long."""
        return trial.way.gamma == self._gamma or _surely_returns_more(trial, self._mildest)

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
        if self.is_trap and self.is_mixed:  # critics choose nothing there
            return True

        def is_one(trial: Trial) -> bool:
            likely = (
                trial.careful_gain + doubt * 2.0 * trial.error
            )  # what is not confirmed counts twice
            is_large = trial.careful_gain >= bounds.LEAST_CAREFUL_GAIN * self.spread
            is_in_reach = trial.confirmed >= bounds.LEAST_IN_REACH * trial.promised
            return likely < bounds.LEAST_GAIN * self.spread or not (is_in_reach or is_large)

        return not self.needs_critics and all(map(is_one, self.trials))

    @property
    def is_clear(self) -> bool:
        """Whether more states would hardly change which searches are confirmed.

        By three standard errors, each is confirmed or not, and its gain is enough or too little,
        more than imitation's or less, and critics can judge it or not.
        """
        return all(map(self._is_clear, self.trials))

    def _is_clear(self, trial: Trial) -> bool:
        error, bound = trial.error, bounds.LEAST_CONFIRMED * trial.promised
        is_mild = trial.changes <= bounds.MOST_CHANGES_BY_GAMMA
        lower = bounds.LEAST_CONFIRMED_OF_MILD * trial.promised if is_mild else bound
        from_short = abs(trial.confirmed - bounds.LEAST_SHORT_GAIN * self.spread)
        from_large = abs(trial.careful_gain - bounds.LEAST_CAREFUL_GAIN * self.spread)
        from_least = abs(trial.confirmed - bounds.LEAST_GAIN * self.spread)
        from_imitation = abs(trial.doubted_gain - self.likeliest_gain)
        if trial.way.gamma != self._gamma and not from_short > 3.0 * error:
            return False
        if trial.confirmed + 3.0 * error < lower:
            return from_large > 6.0 * error  # what is not confirmed counts twice
        return (
            trial.confirmed - 3.0 * error > bound
            and from_least > 3.0 * error
            and from_imitation > 4.5 * error + 3.0 * self.likeliest_error
        )

    def _are_final(self, confirmed: list[int]) -> bool:
        """Returns whether no other search is asked for where these are confirmed.

        Of dams critics agreed on a gain of 1.5 by discount 0, and confirmed 6.7 of 10.5 of the
        mildest search by `gamma`. The model found 15 +- 5 and 56 +- 4; they return 527 and 706
        (imitation 658).
        """
        return any(self._has_consent(self.trials[i]) for i in confirmed)

    @property
    def _may_be_preferred(self) -> list[int]:
        """Numbers of the searches that may act in place of others, if the model prefers them."""

        def may_be(trial: Trial) -> bool:
            return self._may_be_modeled(trial) and (self.foresees or self._has_consent(trial))

        return self._numbers(may_be)

    @property
    def _may_act(self) -> list[int]:
        """Numbers of the searches that are confirmed, or else of the large ones.

        Or else of those that are large in the model of states. Where critics confirm only searches
        by shorter discounts, and less than half of what they confirm of the mildest one by the
        first discount, others act if this model surely prefers them, by two standard errors.
        """
        confirmed = self._numbers(self.is_confirmed)
        if not confirmed:
            return self._numbers(self.is_large) or self._numbers(self.is_large_in_model)
        if self._are_final(confirmed):
            return confirmed
        most = max((self.trials[i] for i in confirmed), key=lambda trial: trial.modeled)
        return [
            i for i in self._may_be_preferred if _surely_returns_more(self.trials[i], most)
        ] or confirmed

    @property
    def best(self) -> Search:
        """The search with the largest careful gain, or that gains most in the model of states.

        Of those that may act; if none may, of those that did not fail in that model; if
        all did, of all.
        """
        return self.best_trial.way

    @property
    def best_trial(self) -> Trial:
        """The figures of the best search."""
        among = [self.trials[i] for i in self._may_act]
        tried = [trial for trial in among if trial.is_tried]
        if tried:
            most = max(tried, key=lambda trial: trial.modeled)
            least = most.modeled - bounds.LEVEL * most.modeled_error
            level = [trial for trial in tried if trial.modeled >= least]
            # What a search by a shorter discount gains depends less on what the data do later.
            return min(level, key=lambda trial: (trial.way.gamma, -trial.modeled))
        others = [trial for trial in self.trials if not self.failed(trial)]
        return max(among or others or self.trials, key=_known_gain)

    @property
    def share(self) -> float:
        """Confirmed share of the best search's gain."""
        best = self.best_trial
        return best.confirmed / best.promised if best.promised > 0.0 else 0.0

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
        if self.states < bounds.LEAST_STATES:
            return "imitation"
        if self._may_act:
            return "search"
        likes_samples = self.likeliest_gain + 2.0 * self.likeliest_error < 0.0
        if self._is_varied:
            is_worth_it = self.likeliest_gain - 2.0 * self.likeliest_error > 0.0
            likes_samples = self.is_sequential or not is_worth_it
        # What follows an action decides where critics say the contrary.
        is_sure_of_more = self.samples_gain - bounds.SURE_IN_MODEL * self.samples_error > 0.0
        is_sure_of_less = self.samples_gain + bounds.SURE_IN_MODEL * self.samples_error < 0.0
        is_worse = (
            self.leaves_the_data or is_sure_of_more or (likes_samples and not is_sure_of_less)
        )
        return "samples" if is_worse else "imitation"

    @property
    def leaves_the_data(self) -> bool:
        """Whether most likely actions lead where the data have not been."""
        return self.likeliest_beyond >= bounds.MOST_BEYOND_OF_LIKELIEST

    @property
    def chooses_samples(self) -> bool:
        """Whether the best of four new samples acts, by the critics, where one sample would.

        So it is where policies can stand still, if other critics confirm at least half of this
        gain, and it is surely one. All steps are some that the data's policy might take, so less is
        asked than of a search, and who draws again moves on in the end. (Rails: 21, one sample 8,
        searches -5 to -8, the log 10.) Not where the log may be of several policies: of
        finger-spin's mixed data critics confirm 94 % of the choice, which returns 652, 648 and 744,
        one sample 671, 692 and 768.
        """
        if not self.is_trap or self.is_mixed or self.states < bounds.LEAST_STATES:
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
        return math.log(self.alternatives) >= bounds.LEAST_VARIED * math.log(self.choices)

    def __str__(self) -> str:
        if self.is_trap:
            return f"acts by samples: {self._standstill}"
        if self.states < bounds.LEAST_STATES:
            return f"acts by imitation: {self.states} held-out states are too few to test critics"
        best = self.best_trial
        gamma, flexibility = best.way
        return (
            f"acts by {self.acts_by}: other critics confirm {self.share:.0%} of what a search by "
            f"discount {gamma:g} and action_flexibility {flexibility:g} gains in {self.states} "
            f"held-out states "
            f"({best.confirmed:.2g} +- {best.error:.1g} of {best.promised:.2g}; "
            f"expected {bounds.LEAST_CONFIRMED:.0%}){self._alternatives}"
            f"{self._size_of_gain}{self._judges}{self._imitation}{self._model}"
            f"{self._several_policies}{self._fallback}{self._alike}"
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
    def _alternatives(self) -> str:
        if self.alternatives == 0.0:
            return ""
        of_all = f" of {self.choices:.3g}" if self.choices else ""
        return f"; in the data a slot has {self.alternatives:.2f} likely choices{of_all}"

    @property
    def _size_of_gain(self) -> str:
        if self.spread == 0.0:
            return ""
        best = self.best_trial
        if self.is_large(best):  # why it acts though less is confirmed than expected
            return (
                f"; what is confirmed less what is not is {best.careful_gain / self.spread:.1%} "
                "of the standard deviation of returns (expected "
                f"{bounds.LEAST_CAREFUL_GAIN:.0%} where less is confirmed)"
            )
        if self.looks_large(best) and self.acts_by != "search":  # why it does not act
            return (
                f"; the gain is large, but the search changes {best.changes:.1f} times as many "
                f"slots as samples do (expected {bounds.MOST_CHANGES:g} where less is confirmed, "
                "and the task ends episodes or no model of states tells what it leads to)"
            )
        gain = (
            f"; the gain is {best.confirmed / self.spread:.1%} of the standard deviation of "
            f"returns (expected {bounds.LEAST_GAIN:.0%})"
        )
        is_less = self.least_confirmed(best) < bounds.LEAST_CONFIRMED
        if is_less and not self.is_agreed(best, bounds.LEAST_CONFIRMED):  # why that is enough
            return f"{gain}; the search {self._changes_of(bounds.MOST_CHANGES_BY_GAMMA)}"
        return gain

    @property
    def _judges(self) -> str:
        best = self.best_trial
        if self.is_judged(best):
            return ""
        if not self.is_possible(best):
            return (
                f"; in each step that is more than {bounds.MOST_IMPLIED:g} times the "
                f"{self.room:.2g} that the best held-out episode returned more than the mean (no "
                "more can be true where no model of states tells what follows)"
            )
        agreed = (
            f", with {bounds.LEAST_CONFIRMED:.0%} of it confirmed," if self.is_sequential else ""
        )
        return (
            f"; of a search by a discount shorter than {self.searches[0].gamma:g} a gain of "
            f"{bounds.LEAST_SHORT_GAIN:.0%}{agreed} is expected where no model of states tells "
            "what follows"
        )

    @property
    def _imitation(self) -> str:
        if self.beats_imitation(self.best_trial) or self.likeliest_gain <= 0.0:
            return ""
        return (
            f"; the most likely action gains {self.likeliest_gain:.2g}, the search less if half of "
            "what is not confirmed is taken off"
        )

    @property
    def _model(self) -> str:
        best = self.best_trial
        if not best.is_tried:
            return ""
        gain, error = best.modeled, best.modeled_error
        more = f"; in a model of states it returns {gain:+.2g} +- {error:.1g} more than imitation"
        if best.beyond >= bounds.MOST_BEYOND:
            return (
                f"{more}, but {best.beyond:.0%} of the numbers of the states that it leads to are "
                f"beyond what 99% of the data have (expected less than {bounds.MOST_BEYOND:.0%})"
            )
        if self.untold == bounds.ALL_UNTOLD:
            return f"{more}, but this model returns more than was logged for logged actions, too"
        least, of_bold = self.least_alone, self._least_of_bold(best)
        if best.is_sure_in_model and not best.is_mild and gain <= of_bold * self.spread:
            return (
                f"{more}, {gain / self.spread:.0%} of the standard deviation of returns (expected "
                f"{of_bold:.0%} of a search that changes {best.changes:.2f} times as many slots as "
                "samples do)"
            )
        if best.is_sure_in_model and self.failed(best) and self.untold < 1.0:  # why it does not act
            told = 1.0 - self.untold
            wanted = min(bounds.SURE_IN_MODEL * error / told, self.untold * self.spread)
            told_of = f"this model tells {told:.0%} of held-out rewards"
            return f"{more} (expected {wanted:.2g}, as {told_of})"
        is_open = not self.is_agreed(best, bounds.LEAST_CONFIRMED, 2.0)
        if self.is_confirmed(best) and is_open:  # why it acts
            return f"{more}, and {self._changes_of(bounds.MOST_CHANGES)}"
        if any(self.are_confirmed) and not self.is_confirmed(best):  # why it acts
            return f"{more}, and surely more than those by shorter discounts that are confirmed"
        is_too_little = self.acts_by != "search" and 0.0 < gain < least * self.spread
        if least == 0.0 or not (is_too_little or self.is_large_in_model(best)):
            return more
        return (  # why it acts though less is confirmed than expected, or why it does not
            f"{more}, {gain / self.spread:.0%} of the standard deviation of returns (expected "
            f"{least:.0%} where less is confirmed)"
        )

    def _changes_of(self, most: float) -> str:
        return (
            f"changes {self.best_trial.changes:.2f} times as many slots as samples do "
            f"(expected {most:g} where {bounds.LEAST_CONFIRMED_OF_MILD:.0%} is enough)"
        )

    @property
    def _several_policies(self) -> str:
        of_one_policy = dataclasses.replace(self, persistence=0.0)
        if self.acts_by == "search" or of_one_policy.acts_by != "search":
            return ""
        return (
            "; first halves of episodes tell what second halves pay (correlation "
            f"{self.persistence:.2f}, expected less than {bounds.LEAST_MIXED:g}), so the log may "
            "be of several policies, and what critics leave open is not left to this model"
        )

    @property
    def _alike(self) -> str:
        if not self.sticks_together or self.acts_by != "imitation":
            return ""
        return (
            "; things that nothing tells apart stayed together in the log if they chose alike, and "
            "returned less, so they draw their choices"
        )

    @property
    def _fallback(self) -> str:
        if not self.leaves_the_data or self.acts_by == "search":
            return ""
        return (
            f"; samples imitate, as {self.likeliest_beyond:.0%} of the numbers of the states that "
            "the most likely actions lead to are beyond what 99% of the data have (expected less "
            f"than {bounds.MOST_BEYOND_OF_LIKELIEST:.0%})"
        )


def _known_gain(trial: Trial) -> float:
    """Returns the careful gain; a search whose critics give no number is none to choose."""
    return -math.inf if math.isnan(trial.careful_gain) else trial.careful_gain


def _surely_returns_more(trial: Trial, other: Trial) -> bool:
    """Returns whether a search surely returns more than another one in the model of states."""
    error = max(trial.modeled_error, other.modeled_error)
    return trial.modeled - 2.0 * error > other.modeled


def untested(searches: Sequence[Search]) -> Trust:
    """Returns the trust in critics that could not be tested."""
    nothing = (0.0,) * len(searches)
    return Trust(tuple(searches), nothing, nothing, nothing, states=0)
