"""How many multiply-adds a training step needs at least, as this package formulates it.

A step cannot take less time than these over the rate of the unit that does them. Products only:
normalizations, random numbers, softmax, optimizers and memory traffic come on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

from spin_d3rlpy.asm import TransformerConfig
from spin_d3rlpy.asm.objectives.masked import row_capacity
from spin_d3rlpy.policies import AutoregressiveConfig

# A training step multiplies three times (forward, gradients of inputs, gradients of weights),
# the frozen trunk below trained queries twice, and what nothing trains once.
TRAINED, PASSED_THROUGH, FORWARD = 3, 2, 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes that decide the cost of a step.

    Args:
        name: for tables.
        observation_size: length of an observation.
        nvec: number of choices of each slot.
    """

    name: str
    observation_size: int
    nvec: tuple[int, ...]

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return len(self.nvec)


def mlp(sizes: Sequence[int]) -> int:
    """Multiply-adds of one row through dense layers."""
    return sum(a * b for a, b in pairwise(sizes))


def trunk(problem: Problem, config: TransformerConfig, read: float) -> float:
    """Multiply-adds of one row through state encoder and blocks.

    The first block projects embeddings once for all rows (not counted); of the last block's
    second half only the slots that are read (`read` of N) are computed.
    """
    d, m = config.width, config.n_state_tokens
    n = problem.n_slots
    t = m + n
    rest = (1 + 2 * config.ffn_multiplier) * d * d  # output projection and feed-forward layers
    attention = 2 * t * t * d
    total = float(mlp([problem.observation_size, 2 * d, m * d]))
    for i in range(config.n_blocks):
        projected = m if i == 0 else t
        finished = read if i == config.n_blocks - 1 else t
        total += 3 * d * d * projected + attention + rest * finished
    return total


def heads(problem: Problem, config: TransformerConfig) -> int:
    """Multiply-adds of one row through all slots' heads."""
    return sum(mlp([config.width, config.head_hidden, m]) for m in problem.nvec)


def pretraining_step(
    problem: Problem, config: TransformerConfig, batch_size: int, mask_prob: float
) -> float:
    """One update of masked action modeling."""
    share = row_capacity(batch_size, mask_prob) / batch_size
    row = trunk(problem, config, share * problem.n_slots) + share * heads(problem, config)
    return TRAINED * batch_size * row


def slot_policy_step(
    problem: Problem, config: TransformerConfig, batch_size: int, trunk_passes: int
) -> float:
    """The policy's share of a step: SAINT (TRAINED), SPIN (PASSED_THROUGH), cached SPIN (0)."""
    row = trunk_passes * trunk(problem, config, problem.n_slots) + TRAINED * heads(problem, config)
    return batch_size * row


def factored_policy_step(problem: Problem, batch_size: int, hidden: int = 256) -> float:
    """The factored policy's share of a step."""
    sizes = [problem.observation_size, hidden, hidden, sum(problem.nvec)]
    return TRAINED * batch_size * mlp(sizes)


def autoregressive_policy_step(
    problem: Problem, config: AutoregressiveConfig, batch_size: int
) -> float:
    """The autoregressive policy's share of a step."""
    width, inputs = config.lstm_width, config.state_width + config.action_width
    slot = 4 * width * (inputs + width) + (config.n_layers - 1) * 4 * width * 2 * width
    row = problem.observation_size * config.state_width + problem.n_slots * slot
    return TRAINED * batch_size * (row + width * sum(problem.nvec))


def iql_critics_step(
    problem: Problem, batch_size: int, n_critics: int = 2, hidden: int = 256
) -> float:
    """IQL's Q and V networks: target Q, V of the state and of the next state, Q.

    As on a CPU, where nothing of Q's output layer is a product.
    """
    below = mlp([problem.observation_size, hidden, hidden])
    q = below * (FORWARD + TRAINED)
    v = (below + hidden) * (TRAINED + FORWARD)
    return batch_size * (n_critics * q + v)
