"""The attention-free trunk of an Action Structure Model, whose slots share one feature vector."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn.functional import linear

from spin_d3rlpy.precision import in_float32


@dataclasses.dataclass()
class MLPConfig:
    """Sizes of an attention-free trunk: width and number of its hidden layers."""

    width: int = 256
    n_layers: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"Expected {name} to be a number of at least 1, got {value!r}.")

    def entries_a_row(self, n_slots: int) -> int:
        """Numbers in the largest array of one row of a batch."""
        return self.width


class SlotMLP(nn.Module):
    """Linear layers with LayerNorm and ReLU over the state and the visible choices.

    The input is `[state, one-hot of visible choices (zeros where masked), mask bits]`. The first
    layer's weights of choices and mask bits are the rows of the ASM's token table.
    """

    def __init__(self, observation_size: int, config: MLPConfig) -> None:
        super().__init__()
        d = config.width
        self.state_encoder = nn.Linear(observation_size, d)
        layers: list[nn.Module] = [nn.LayerNorm(d), nn.ReLU()]
        for _ in range(config.n_layers - 1):
            layers += [nn.Linear(d, d), nn.LayerNorm(d), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)

    def forward(
        self, observations: torch.Tensor, table: torch.Tensor, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns features of all slots, `(B, 1, D)`; arguments as in `SlotTransformer`."""
        return self.features(self.first_layer(observations, table, ids))

    def first_layer(
        self, observations: torch.Tensor, table: torch.Tensor, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the first layer's linear map `(B, D)`, to which each token adds its row."""
        state: torch.Tensor = self.state_encoder(observations)
        if ids is None:
            return state + table.sum(0)
        # Measured: for slots of few choices faster than looking up rows.
        chosen = torch.zeros(len(ids), len(table), dtype=state.dtype, device=ids.device)
        return torch.addmm(state, chosen.scatter(1, ids, 1.0), table.to(state.dtype))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features `(B, 1, D)` of what `first_layer` gives."""
        features: torch.Tensor = self.hidden(x)[:, None]
        return features


class LinearHeads(nn.Linear):
    """One linear head per slot: `(B, 1, D)` to logits of all choices `(B, S)`."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Returns logits, flat `(B, S)`."""
        return in_float32(super().forward, features[:, 0])

    def some(self, features: torch.Tensor, outputs: slice) -> torch.Tensor:
        """Returns some of the logits, `(B, outputs)`."""
        return linear(features[:, 0], self.weight[outputs], self.bias[outputs])
