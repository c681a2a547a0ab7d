"""Which columns of an observation are of which slots, where nobody has said it.

Robots, machines and regions are often observed by the same few numbers each, one after the other,
and so are the things around them. One network for all slots, which sees the numbers of the thing
that it chooses for, and what is around it, learns from a few rows what a network of the whole
observation does not learn from many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from d3rlpy.logging import LOG
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.scorers import create_scorer, score_all
from spin_d3rlpy.data import DeviceReplayBuffer
from spin_d3rlpy.data.scalers import moments_by_feature
from spin_d3rlpy.training.work import WorkClock
from spin_envs import ActionLayout

TESTED_SHARE = 0.1  # of the episodes
LEAST_ROWS = 1_000  # of the others: fewer tell nothing
MOST_TESTED = 4_096  # rows
MOST_SLOTS = 4  # of one thing
MOST_NUMBERS = 4_096  # of an observation, and choices of all slots: more would take minutes
MOST_OF_ONE = 4  # columns of one thing or object, where others remain
MOST_PAIRS = 400  # of things and objects
N_PROMISING, N_KEPT = 8, 2  # groupings that are trained longer than all, and longest
FLAT_WIDTH, FLAT_LEARNING_RATE = 256, 3e-3
OWN_WIDTH, OWN_LEARNING_RATE = 32, 1e-2
CLIPPED_AT = 8.0  # standard deviations
# By how much the mean cross-entropy of held-out choices is smaller: as a share of what observations
# tell, and in standard errors. Where things are known to have columns of their own (CoNE, rooms,
# wells, machines) it is 8 to 16 % and 5 to 16 errors, and more of teams; of tanks and batteries,
# whose choices depend on other columns as well, 3 %.
LEAST_LESS, SURELY = 0.08, 4.0
# Of a run's seconds. More are not spent on a question that finds nothing in half of the logs.
MOST_OF_SECONDS = 1 / 3

Columns = list[list[int]]


class Length(NamedTuple):
    """Of a training: updates, rows of each, and after how many it is tested."""

    n_updates: int
    batch_size: int
    tested_every: int


# Of 32 logs where own columns are used the best grouping was among the first three after 20 updates
# in all, the best objects among the first six.
OF_ALL, OF_PROMISING, OF_THE_BEST = Length(20, 128, 20), Length(100, 128, 100), Length(300, 256, 50)
# The network of whole observations learns slower, and knows more in the end: of elevators it does
# after four times as many updates.
OF_ALL_COLUMNS = Length(1_200, 256, 50)


class Grouping(NamedTuple):
    """Columns that may be of things for which equally many slots choose each.

    Attributes:
        things: columns of each thing, in the same order, `(A, f)`.
        rest: columns of none of them, `(c,)`.
        objects: of the rest, the columns of each object that slots look at, `(M, g)`.
    """

    things: Columns
    rest: list[int]
    objects: Columns

    def layout(self, n_slots: int) -> ActionLayout:
        """Returns the layout of slots that choose for these things in turn."""
        each = n_slots // len(self.things)
        numbers = tuple((float(i % each),) for i in range(n_slots)) if each > 1 else ()
        return ActionLayout(
            shared_choices=True,
            slot_columns=tuple(tuple(self.things[i // each]) for i in range(n_slots)),
            slot_features=numbers,
            object_columns=tuple(map(tuple, self.objects)),
        )


def _in_turn(columns: list[int], n: int) -> Iterator[Columns]:
    """Yields columns of n things.

    All of one come one after the other, or one, two or three of each thing in turn, as where two
    coordinates of all things come before two others of all.
    """
    size = len(columns) // n
    for each in sorted({1, 2, 3, size}):
        if size % each == 0:
            turns = [columns[i : i + n * each] for i in range(0, size * n, n * each)]
            yield [[c for turn in turns for c in turn[i * each :][:each]] for i in range(n)]


def groupings(observation_size: int, n_slots: int) -> Iterator[Grouping]:
    """Yields how columns may belong to things.

    The things' columns are first or last. They are as many as there can be of each, or a few.
    """
    for n in range(2, n_slots + 1):
        most = observation_size // n
        if n_slots % n or n_slots // n > MOST_SLOTS or most == 0:
            continue
        for size in sorted({*range(1, min(MOST_OF_ONE, most) + 1), most}):
            for first in sorted({0, observation_size - size * n}):
                used = list(range(first, first + size * n))
                rest = [i for i in range(observation_size) if i not in used]
                for things in _in_turn(used, n):
                    yield Grouping(things, rest, [])


def with_objects(grouping: Grouping) -> Iterator[Grouping]:
    """Yields how the rest of the columns may belong to objects.

    Fewer than one object's may be left over, at the end.
    """
    for size in range(1, MOST_OF_ONE + 1):
        n = len(grouping.rest) // size
        if n > 1 and n * len(grouping.things) <= MOST_PAIRS:
            for objects in _in_turn(grouping.rest[: n * size], n):
                yield grouping._replace(objects=objects)


class Answer(NamedTuple):
    """What data say of the grouping that tells most.

    Attributes:
        grouping: of the columns.
        of_own: cross-entropies of held-out rows by it, `(B,)`, means over slots.
        of_all: by the whole observation, `(B,)`.
        of_nothing: their mean by how often each slot makes each choice.
    """

    grouping: Grouping
    of_own: torch.Tensor
    of_all: torch.Tensor
    of_nothing: float

    @property
    def is_used(self) -> bool:
        """Whether it surely tells more than the whole observation does."""
        return are_surely_less(self.of_own, self.of_all, self.of_nothing)


def are_surely_less(losses: torch.Tensor, others: torch.Tensor, of_nothing: float) -> bool:
    """Returns whether losses of held-out rows `(B,)` are less than others of the same rows."""
    less, told = others - losses, of_nothing - float(losses.mean())
    is_more = float(less.mean()) >= LEAST_LESS * told > 0.0
    return is_more and float(less.mean()) > SURELY * float(less.std()) / math.sqrt(len(less))


def find_own_columns(
    buffer: DeviceReplayBuffer, run_seconds: float | None = None
) -> ActionLayout | None:
    """Returns a layout by which one network surely tells more of held-out choices, or None.

    Args:
        buffer: transitions with numbers as observations. All slots need equally many choices.
        run_seconds: of the run that waits for the answer, if it has a budget. Nothing is asked
            where this would take more than a third of them, in nominal seconds (`training.work`):
            a resumed run has to find the same.
    """
    answer = ask(buffer, math.inf if run_seconds is None else MOST_OF_SECONDS * run_seconds)
    if answer is None:
        return None
    LOG.info(
        "What a slot's own columns tell of held-out choices",
        cross_entropy=round(float(answer.of_own.mean()), 4),
        by_whole_observations=round(float(answer.of_all.mean()), 4),
        by_nothing=round(answer.of_nothing, 4),
        are_used=answer.is_used,
    )
    return answer.grouping.layout(len(buffer.nvec)) if answer.is_used else None


def ask(buffer: DeviceReplayBuffer, most_seconds: float = math.inf) -> Answer | None:
    """Returns what the data say of columns; None where there is nothing to ask, or too few rows.

    Networks learn to imitate the other episodes: one of the whole observation, and for each
    grouping one for all things, which sees the columns of one and the rest: as columns, and if
    that does not surely tell less, as objects where these surely tell more. Random numbers outside
    do not depend on it.

    Args:
        buffer: as in `find_own_columns`.
        most_seconds: nominal ones; None is returned where more are needed, about.
    """
    nvec = buffer.nvec
    is_alike = len(nvec) > 1 and len(set(nvec)) == 1
    is_large = max(buffer.observation_size, sum(nvec)) > MOST_NUMBERS
    if not is_alike or is_large or buffer.size() < 2:
        return None
    found = list(groupings(buffer.observation_size, len(nvec)))
    training, test = buffer.split(TESTED_SHARE)
    if not found or training.transition_count < LEAST_ROWS:
        return None
    probe = _Probe(training, test)
    with torch.random.fork_rng([buffer.device] if buffer.device.type == "cuda" else []):
        seconds = probe.seconds(found)
        is_too_long = seconds > most_seconds
        LOG.info(
            "Does not ask the data which columns are of which slots: that would take too long"
            if is_too_long
            else "Asks the data which columns are of which slots; find_own_columns=False does not",
            groupings=len(found),
            seconds=round(seconds, 1),
        )
        if is_too_long:
            return None
        kept = probe.best_of(found, N_KEPT)
        best, of_own = probe.best_after_training(kept)
        answer = Answer(best, of_own, probe.losses_of_flat(OF_ALL_COLUMNS), probe.loss_of_nothing)
        if are_surely_less(answer.of_all, of_own, answer.of_nothing):
            return answer
        objects = [it for grouping in kept for it in with_objects(grouping)]
        if not objects:
            return answer
        best, of_objects = probe.best_after_training(probe.best_of(objects, 1))
        if are_surely_less(of_objects, of_own, answer.of_nothing):
            return answer._replace(grouping=best, of_own=of_objects)
        return answer


class _Probe:
    """Short trainings on some episodes, that are tested on others."""

    def __init__(self, training: DeviceReplayBuffer, test: DeviceReplayBuffer) -> None:
        self.nvec, self.training, self.moments = training.nvec, training, training.moments()
        index = test.spread_index(MOST_TESTED)
        self.tested = test.observations_at(test.observation_index[index]).float()
        self.choices = test.actions[index].long()  # (B, N)
        frequencies = torch.stack(
            [
                torch.bincount(of_slot, minlength=self.nvec[0])
                for of_slot in training.actions.long().T
            ]
        )
        shares = (frequencies + 1.0) / (frequencies + 1.0).sum(1, keepdim=True)  # (N, K)
        self.loss_of_nothing = -float(shares.log().gather(1, self.choices.T).mean())

    def seconds(self, found: list[Grouping]) -> float:
        """Returns about how many nominal seconds it takes to choose among these groupings."""
        of_own, of_flat = WorkClock(), WorkClock()
        with of_own.counting():
            self.losses_of_own(found[0], OF_ALL)
        some = OF_ALL_COLUMNS._replace(n_updates=OF_ALL_COLUMNS.tested_every)
        with of_flat.counting():
            self.losses_of_flat(some)
        n_promising = min(N_PROMISING, len(found))
        n_own = OF_ALL.n_updates * len(found) + OF_PROMISING.n_updates * n_promising
        n_own += OF_THE_BEST.n_updates * N_KEPT
        seconds_of_own = n_own / OF_ALL.n_updates * of_own()
        return seconds_of_own + OF_ALL_COLUMNS.n_updates / some.n_updates * of_flat()

    def best_of(self, found: list[Grouping], n: int) -> list[Grouping]:
        """Returns the n groupings that tell most after few updates."""
        return self._first(self._first(found, OF_ALL, N_PROMISING), OF_PROMISING, n)

    def _first(self, found: list[Grouping], length: Length, n: int) -> list[Grouping]:
        """Returns the n groupings that tell most after trainings of this length."""
        if len(found) <= n:
            return found
        losses = [float(self.losses_of_own(it, length).mean()) for it in found]
        order = sorted(range(len(found)), key=losses.__getitem__)
        return [found[i] for i in order[:n]]

    def best_after_training(self, found: list[Grouping]) -> tuple[Grouping, torch.Tensor]:
        """Returns the grouping that tells most, and losses of held-out rows `(B,)`."""
        losses = [self.losses_of_own(grouping, OF_THE_BEST) for grouping in found]
        best = min(range(len(found)), key=lambda i: float(losses[i].mean()))
        return found[best], losses[best]

    def losses_of_flat(self, length: Length) -> torch.Tensor:
        """Returns losses of held-out rows `(B,)` by one network of whole observations."""
        layers: list[nn.Module] = []
        for size in (self.tested.shape[1], FLAT_WIDTH):
            layers += [nn.Linear(size, FLAT_WIDTH), nn.LayerNorm(FLAT_WIDTH), nn.ReLU()]
        torch.manual_seed(0)
        network = nn.Sequential(*layers, nn.Linear(FLAT_WIDTH, sum(self.nvec)))
        return self._losses(network, network, None, FLAT_LEARNING_RATE, length)

    def losses_of_own(self, grouping: Grouping, length: Length) -> torch.Tensor:
        """Returns the same by one network for all things."""
        layout, n_slots = grouping.layout(len(self.nvec)), len(self.nvec)
        torch.manual_seed(0)
        config = EntityConfig(layout=layout, slot_width=OWN_WIDTH)
        scorer = create_scorer(self.tested.shape[1], self.nvec, config)

        def logits(x: torch.Tensor) -> torch.Tensor:
            masked = torch.full((len(x), n_slots), self.nvec[0], device=x.device)
            return score_all(scorer, x, masked)

        return self._losses(scorer, logits, layout, OWN_LEARNING_RATE, length)

    def _losses(
        self,
        network: nn.Module,
        logits: Callable[[torch.Tensor], torch.Tensor],
        layout: ActionLayout | None,
        learning_rate: float,
        length: Length,
    ) -> torch.Tensor:
        """Returns losses of held-out rows when their mean was smallest, `(B,)`."""
        network.to(self.tested.device)
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, length.n_updates)
        # Columns of one feature are scaled alike.
        moments = moments_by_feature(*self.moments, layout)
        mean, deviation = (numbers.float() for numbers in moments)

        def losses(observations: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
            x = ((observations - mean) / (deviation + 1e-6)).clamp(-CLIPPED_AT, CLIPPED_AT)
            of_slots = logits(x).reshape(-1, self.nvec[0])
            by_slot = cross_entropy(of_slots, choices.flatten(), reduction="none")
            return by_slot.view(choices.shape).mean(1)

        best = torch.full_like(self.tested[:, 0], math.inf)
        for number in range(1, length.n_updates + 1):
            rows, actions = self.training.sample_observations_and_actions(length.batch_size)
            loss = losses(rows.float(), actions.long()).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            if number % length.tested_every == 0:
                with torch.no_grad():
                    found = losses(self.tested, self.choices)
                best = found if float(found.mean()) < float(best.mean()) else best
        return best
