"""The autoregressive policy: each slot's distribution depends on the choices of those before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from spin_d3rlpy._compat import cpu_multiplies_bfloat16, is_exporting
from spin_d3rlpy.asm.model import PerSlotLogits
from spin_d3rlpy.asm.rules import OPEN
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.files.fields import check_fields
from spin_d3rlpy.images import behind_images
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.policies.base import SlotOrderPolicy

# From how many rows on oneDNN's LSTM is the faster one on a CPU: each call brings the weights into
# its own layout first, which with one row takes fifteen times as long as a step of the LSTM.
MANY_ROWS = 128

Memory = list[tuple[torch.Tensor, torch.Tensor]]  # hidden and cell state (B, D) of each layer


@dataclasses.dataclass()
class AutoregressiveConfig:
    """Sizes of the autoregressive policy; the defaults are those of SPIN's published code.

    Args:
        state_width: of the state embedding.
        action_width: of the embedding of the previous slot's choice.
        lstm_width: of each LSTM layer.
        n_layers: number of LSTM layers.
    """

    state_width: int = 128
    action_width: int = 32
    lstm_width: int = 256
    n_layers: int = 2

    def __post_init__(self) -> None:
        check_fields(self)


class SlotLinear(PerSlotLogits):
    """One linear layer per slot, `D -> m_i`, all computed in one batched product."""

    def __init__(self, slot_layout: SlotLayout, width: int) -> None:
        super().__init__(slot_layout)
        n, k, bound = slot_layout.n_slots, slot_layout.max_choices, width**-0.5
        self.weight = nn.Parameter(torch.empty(n, width, k).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n, 1, k).uniform_(-bound, bound))
        self.nvec = slot_layout.nvec

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `(N, B, D)` to logits of all choices, flat `(B, S)`."""
        return self.flat_logits(features, self.weight, self.bias)

    def slot_logits(self, i: int, features: torch.Tensor) -> torch.Tensor:
        """Maps features `(B, D)` to the logits of slot i, `(B, m_i)`."""
        m = self.nvec[i]
        weight, bias = self.weight[i, :, :m], self.bias[i, :, :m]
        return in_float32(lambda x: torch.addmm(bias, x, weight), features)


class AutoregressivePolicy(SlotOrderPolicy):
    r"""An LSTM over slots: `pi(a|s) = prod_i pi_i(a_i | s, a_1 .. a_{i-1})` (AR-, SPIN section 5).

    A step's input is the embedded state and the embedded choice of the previous slot; one embedding
    table serves all slots, its last row is the start token. Log-probabilities use teacher forcing,
    all slots in one pass; acting goes slot by slot. `greedy` takes each slot's best choice, which
    need not be the joint mode.
    """

    def __init__(
        self, observation_size: int, nvec: Sequence[int], config: AutoregressiveConfig
    ) -> None:
        super().__init__(SlotLayout(nvec))
        self.state_encoder = behind_images(
            observation_size,
            lambda size: nn.Sequential(nn.Linear(size, config.state_width), nn.ReLU()),
        )
        self.start = self.slot_layout.max_choices  # the start token's row
        self.embedding = nn.Embedding(self.slot_layout.max_choices + 1, config.action_width)
        self.lstm = nn.LSTM(
            config.state_width + config.action_width,
            config.lstm_width,
            config.n_layers,
        )
        self.heads = SlotLinear(self.slot_layout, config.lstm_width)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns each slot's logits `(B, S)` given the previous choices in actions `(B, N)`."""
        previous = torch.cat(
            [torch.full_like(actions[:, :1], self.start), actions[:, :-1]], dim=1
        ).long()
        state = self.state_encoder(observations).expand(self.slot_layout.n_slots, -1, -1)
        tokens = torch.cat([state, self.embedding(previous.T)], dim=-1)  # (N, B, ...)
        logits: torch.Tensor = self.heads(_without_half(self.lstm, tokens)[0])
        return logits

    def conditionals(self, observations: torch.Tensor) -> SlotsOfLSTM:
        return SlotsOfLSTM(self, observations)


class SlotsOfLSTM:
    """Logits of one slot after the other; see `spin_d3rlpy.asm.decoding.OrderedConditionals`.

    Each slot's are asked for once, in the slots' order.
    """

    def __init__(self, policy: AutoregressivePolicy, observations: torch.Tensor) -> None:
        self._policy, self.slot_layout = policy, policy.slot_layout
        self._state = state = policy.state_encoder(observations)
        self._previous = torch.full_like(observations[:, 0], policy.start).long()
        on_cpu = state.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        # Exports contain the LSTM as one operation.
        by_cells = on_cpu and not is_exporting() and len(state) < MANY_ROWS
        self._step = self._step_by_cells if by_cells else self._step_at_once
        self._memory: Any = None

    def all_open(self) -> torch.Tensor:
        """Returns actions `(B, N)` without a choice, -1."""
        return torch.full_like(self._previous, OPEN)[:, None].expand(-1, self.slot_layout.n_slots)

    def logits(self, slot: int) -> torch.Tensor:
        """Returns the next slot's logits, `(B, m_i)`."""
        token = torch.cat([self._state, self._policy.embedding(self._previous)], dim=-1)
        hidden, self._memory = self._step(token, self._memory)
        return self._policy.heads.slot_logits(slot, hidden)

    def choose(self, slot: int, choice: torch.Tensor) -> None:
        """Takes over its choices `(B,)`."""
        self._previous = choice

    def _step_at_once(self, token: torch.Tensor, memory: Any) -> tuple[torch.Tensor, Any]:
        """One LSTM step: tokens `(B, ...)` to hidden states `(B, D)`, and the new memory."""
        hidden, updated = _without_half(self._policy.lstm, token[None], memory)
        return hidden[0], updated

    def _step_by_cells(
        self, token: torch.Tensor, memory: Memory | None
    ) -> tuple[torch.Tensor, Any]:
        """The same layer by layer, for few rows."""
        lstm = self._policy.lstm
        if memory is None:
            zeros = token.new_zeros(len(token), lstm.hidden_size)
            memory = [(zeros, zeros)] * lstm.num_layers
        updated: Memory = []
        for state, weights in zip(memory, lstm.all_weights, strict=True):
            token, cell = torch.lstm_cell(token, state, *weights)
            updated.append((token, cell))
        return token, updated


def _without_half(
    lstm: Callable[..., Any], tokens: torch.Tensor, *arguments: Any
) -> tuple[torch.Tensor, Any]:
    """Applies an LSTM, within autocast in bfloat16 only where that is supported.

    cuDNN would use float16, and oneDNN has none for CPUs without bfloat16 units.
    """
    kind = tokens.device.type
    bfloat16 = kind == "cpu" and cpu_multiplies_bfloat16()
    if bfloat16 or not torch.is_autocast_enabled(kind):
        outputs: tuple[torch.Tensor, Any] = lstm(tokens, *arguments)
        return outputs
    with torch.autocast(kind, enabled=False):
        outputs = lstm(tokens.float(), *arguments)
    return outputs
