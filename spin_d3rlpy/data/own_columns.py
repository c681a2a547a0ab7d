"""Which columns of an observation are of which slots, where nobody has said it.

Robots, machines and regions are often observed by the same few numbers each, one after the other.
One network for all of them, which sees only the numbers of the thing that it chooses for, learns
from a few rows what a network of the whole observation does not learn from many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from d3rlpy.logging import LOG
from torch import nn
from torch.nn.functional import cross_entropy

from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.scalers import moments_by_feature
from spin_envs import ActionLayout

TESTED_SHARE = 0.1  # of the episodes
LEAST_ROWS = 1_000  # of the others: fewer tell nothing
MOST_TESTED = 4_096  # rows
MOST_SLOTS = 4  # of one thing
MOST_NUMBERS = 4_096  # of an observation, and choices of all slots: more would take minutes
N_UPDATES, BATCH_SIZE, CHECKED_EVERY = 300, 256, 50
FLAT_WIDTH, FLAT_LEARNING_RATE = 256, 3e-3
OWN_WIDTH, OWN_LEARNING_RATE = 64, 1e-2
CLIPPED_AT = 8.0  # standard deviations
# By which the mean cross-entropy of held-out choices is smaller, as a share and in standard errors.
LEAST_LESS, SURELY = 0.02, 5.0


class Grouping(NamedTuple):
    """Columns that may be of things for which equally many slots choose each.

    Attributes:
        columns: of each thing, in the same order, `(A, f)`.
        rest: of none of them, `(c,)`.
    """

    columns: list[list[int]]
    rest: list[int]

    def layout(self, n_slots: int) -> ActionLayout:
        """Returns the layout of slots that choose for these things in turn."""
        each = n_slots // len(self.columns)
        numbers = tuple((float(i % each),) for i in range(n_slots)) if each > 1 else ()
        return ActionLayout(
            shared_choices=True,
            slot_columns=tuple(tuple(self.columns[i // each]) for i in range(n_slots)),
            slot_features=numbers,
        )


def groupings(observation_size: int, n_slots: int) -> Iterator[Grouping]:
    """Yields how columns may belong to things: all of one, or one of all, come one after the other.

    What is left over, fewer columns than there are things, is first or last.
    """
    for n in range(2, n_slots + 1):
        size, n_rest = divmod(observation_size, n)
        if n_slots % n or n_slots // n > MOST_SLOTS or size == 0:
            continue
        for first in sorted({0, n_rest}):
            used = range(first, first + size * n)
            rest = [i for i in range(observation_size) if i not in used]
            yield Grouping([list(used[i * size : (i + 1) * size]) for i in range(n)], rest)
            if size > 1:
                yield Grouping([list(used[i::n]) for i in range(n)], rest)


def find_own_columns(buffer: DeviceReplayBuffer) -> ActionLayout | None:
    """Returns a layout by which one network surely tells more of held-out choices, or None.

    Two networks learn to imitate the other episodes: one of the whole observation, and one for all
    things, which sees the columns of one and what is left over. Random numbers outside do not
    depend on it.

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
        of_all = probe.losses_of_flat()
        of_own = [probe.losses_of_own(grouping) for grouping in found]
    best = min(range(len(found)), key=lambda i: float(of_own[i].mean()))
    less = of_all - of_own[best]
    is_more = float(less.mean()) >= LEAST_LESS * float(of_all.mean())
    is_sure = float(less.mean()) > SURELY * float(less.std()) / math.sqrt(len(less))
    LOG.info(
        "What a slot's own columns tell of held-out choices",
        cross_entropy=round(float(of_own[best].mean()), 4),
        by_whole_observations=round(float(of_all.mean()), 4),
        are_used=is_more and is_sure,
    )
    return found[best].layout(len(nvec)) if is_more and is_sure else None


class _Probe:
    """Short trainings on some episodes, that are tested on others."""

    def __init__(self, training: DeviceReplayBuffer, test: DeviceReplayBuffer) -> None:
        self.nvec, self.training, self.moments = training.nvec, training, training.moments()
        index = test.spread_index(MOST_TESTED)
        self.tested = test.observations_at(test.observation_index[index]).float()
        self.choices = test.actions[index].long()  # (B, N)

    def losses_of_flat(self) -> torch.Tensor:
        """Returns losses of held-out rows `(B,)` by one network of whole observations."""
        n_inputs, n_outputs = self.tested.shape[1], sum(self.nvec)
        return self._losses(self._scale(None), n_inputs, n_outputs, FLAT_WIDTH, FLAT_LEARNING_RATE)

    def losses_of_own(self, grouping: Grouping) -> torch.Tensor:
        """Returns the same by one network for all things."""
        scale = self._scale(grouping.layout(len(self.nvec)))
        columns = torch.tensor(grouping.columns, device=self.tested.device)  # (A, f)
        rest = torch.tensor(grouping.rest, dtype=torch.int64, device=self.tested.device)
        n = len(columns)

        def inputs(observations: torch.Tensor) -> torch.Tensor:
            x = scale(observations)
            common = x[:, rest][:, None].expand(-1, n, -1)
            return torch.cat([x[:, columns], common], dim=2)

        n_inputs, n_outputs = columns.shape[1] + len(rest), sum(self.nvec) // n
        return self._losses(inputs, n_inputs, n_outputs, OWN_WIDTH, OWN_LEARNING_RATE)

    def _scale(self, layout: ActionLayout | None) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns what standardizes observations, columns of one feature alike."""
        moments = moments_by_feature(*self.moments, layout)
        mean, deviation = (numbers.float() for numbers in moments)
        return lambda x: ((x - mean) / (deviation + 1e-6)).clamp(-CLIPPED_AT, CLIPPED_AT)

    def _losses(
        self,
        inputs: Callable[[torch.Tensor], torch.Tensor],
        n_inputs: int,
        n_outputs: int,
        width: int,
        learning_rate: float,
    ) -> torch.Tensor:
        """Returns losses of held-out rows when their mean was smallest, `(B,)`."""
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for size in (n_inputs, width):
            layers += [nn.Linear(size, width), nn.LayerNorm(width), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(width, n_outputs)).to(self.tested.device)
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, N_UPDATES)
        n_choices = self.nvec[0]

        def losses(observations: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
            logits = network(inputs(observations)).reshape(-1, n_choices)
            by_slot = cross_entropy(logits, choices.flatten(), reduction="none")
            return by_slot.view(choices.shape).mean(1)

        best = torch.full_like(self.tested[:, 0], math.inf)
        for number in range(1, N_UPDATES + 1):
            rows, actions = self.training.sample_observations_and_actions(BATCH_SIZE)
            loss = losses(rows.float(), actions.long()).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            if number % CHECKED_EVERY == 0:
                with torch.no_grad():
                    found = losses(self.tested, self.choices)
                best = found if float(found.mean()) < float(best.mean()) else best
        return best
