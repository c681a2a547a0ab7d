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
from spin_envs import ActionLayout

TESTED_SHARE = 0.1  # of the episodes
LEAST_ROWS = 1_000  # of the others: fewer tell nothing
MOST_TESTED = 4_096  # rows
MOST_SLOTS = 4  # of one thing
MOST_NUMBERS = 4_096  # of an observation, and choices of all slots: more would take minutes
MOST_OF_ONE = 4  # columns of one thing or object, where others remain
MOST_PAIRS = 400  # of things and objects
N_UPDATES, BATCH_SIZE, CHECKED_EVERY = 300, 256, 50
# Of all groupings at first, and how many of them are trained longer.
SHORT_UPDATES, SHORT_BATCH_SIZE, N_KEPT = 100, 128, 2
# The network of whole observations learns slower, and knows more in the end: of elevators it does
# after four times as many updates.
FLAT_UPDATES, FLAT_WIDTH, FLAT_LEARNING_RATE = 1_200, 256, 3e-3
OWN_WIDTH, OWN_LEARNING_RATE = 32, 1e-2
CLIPPED_AT = 8.0  # standard deviations
# By which the mean cross-entropy of held-out choices is smaller, as a share and in standard errors.
LEAST_LESS, SURELY = 0.02, 5.0

Columns = list[list[int]]


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
    """Yields columns of n things: all of one come one after the other, or one of all."""
    size = len(columns) // n
    yield [columns[i * size : (i + 1) * size] for i in range(n)]
    if size > 1:
        yield [columns[i::n] for i in range(n)]


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


def find_own_columns(buffer: DeviceReplayBuffer) -> ActionLayout | None:
    """Returns a layout by which one network surely tells more of held-out choices, or None.

    Networks learn to imitate the other episodes: one of the whole observation, and for each
    grouping one for all things, which sees the columns of one and the rest, as columns or as
    objects. Random numbers outside do not depend on it.

    Args:
        buffer: transitions with numbers as observations. All slots need equally many choices.
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
        kept = probe.best_of(found)
        kept = probe.best_of([*kept, *(it for one in kept for it in with_objects(one))])
        of_all = probe.losses_of_flat()
        of_own = [probe.losses_of_own(grouping) for grouping in kept]
    best = min(range(len(kept)), key=lambda i: float(of_own[i].mean()))
    less = of_all - of_own[best]
    is_more = float(less.mean()) >= LEAST_LESS * float(of_all.mean())
    is_sure = float(less.mean()) > SURELY * float(less.std()) / math.sqrt(len(less))
    LOG.info(
        "What a slot's own columns tell of held-out choices",
        cross_entropy=round(float(of_own[best].mean()), 4),
        by_whole_observations=round(float(of_all.mean()), 4),
        are_used=is_more and is_sure,
    )
    return kept[best].layout(len(nvec)) if is_more and is_sure else None


class _Probe:
    """Short trainings on some episodes, that are tested on others."""

    def __init__(self, training: DeviceReplayBuffer, test: DeviceReplayBuffer) -> None:
        self.nvec, self.training, self.moments = training.nvec, training, training.moments()
        index = test.spread_index(MOST_TESTED)
        self.tested = test.observations_at(test.observation_index[index]).float()
        self.choices = test.actions[index].long()  # (B, N)

    def best_of(self, found: list[Grouping]) -> list[Grouping]:
        """Returns those of some groupings that tell most after few updates."""
        losses = [float(self.losses_of_own(it, is_short=True).mean()) for it in found]
        order = sorted(range(len(found)), key=losses.__getitem__)
        return [found[i] for i in order[:N_KEPT]]

    def losses_of_flat(self) -> torch.Tensor:
        """Returns losses of held-out rows `(B,)` by one network of whole observations."""
        layers: list[nn.Module] = []
        for size in (self.tested.shape[1], FLAT_WIDTH):
            layers += [nn.Linear(size, FLAT_WIDTH), nn.LayerNorm(FLAT_WIDTH), nn.ReLU()]
        torch.manual_seed(0)
        network = nn.Sequential(*layers, nn.Linear(FLAT_WIDTH, sum(self.nvec)))
        return self._losses(network, network, None, FLAT_LEARNING_RATE)

    def losses_of_own(self, grouping: Grouping, is_short: bool = False) -> torch.Tensor:
        """Returns the same by one network for all things."""
        layout, n_slots = grouping.layout(len(self.nvec)), len(self.nvec)
        torch.manual_seed(0)
        config = EntityConfig(layout=layout, slot_width=OWN_WIDTH)
        scorer = create_scorer(self.tested.shape[1], self.nvec, config)

        def logits(x: torch.Tensor) -> torch.Tensor:
            masked = torch.full((len(x), n_slots), self.nvec[0], device=x.device)
            return score_all(scorer, x, masked)

        return self._losses(scorer, logits, layout, OWN_LEARNING_RATE, is_short)

    def _losses(
        self,
        network: nn.Module,
        logits: Callable[[torch.Tensor], torch.Tensor],
        layout: ActionLayout | None,
        learning_rate: float,
        is_short: bool = False,
    ) -> torch.Tensor:
        """Returns losses of held-out rows when their mean was smallest, `(B,)`."""
        network.to(self.tested.device)
        n_updates = FLAT_UPDATES if layout is None else N_UPDATES
        batch_size, checked_every = BATCH_SIZE, CHECKED_EVERY
        if is_short:
            n_updates, batch_size, checked_every = SHORT_UPDATES, SHORT_BATCH_SIZE, SHORT_UPDATES
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, n_updates)
        # Columns of one feature are scaled alike.
        moments = moments_by_feature(*self.moments, layout)
        mean, deviation = (numbers.float() for numbers in moments)

        def losses(observations: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
            x = ((observations - mean) / (deviation + 1e-6)).clamp(-CLIPPED_AT, CLIPPED_AT)
            of_slots = logits(x).reshape(-1, self.nvec[0])
            by_slot = cross_entropy(of_slots, choices.flatten(), reduction="none")
            return by_slot.view(choices.shape).mean(1)

        best = torch.full_like(self.tested[:, 0], math.inf)
        for number in range(1, n_updates + 1):
            rows, actions = self.training.sample_observations_and_actions(batch_size)
            loss = losses(rows.float(), actions.long()).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            if number % checked_every == 0:
                with torch.no_grad():
                    found = losses(self.tested, self.choices)
                best = found if float(found.mean()) < float(best.mean()) else best
        return best
