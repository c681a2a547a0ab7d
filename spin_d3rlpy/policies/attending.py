from __future__ import annotations
import os
from collections.abc import Sequence
import torch
from torch import nn
from torch.nn.functional import relu
from spin_d3rlpy.asm.entities import EntityConfig, linear_of
from spin_d3rlpy.asm.model import SlotTransformer, TransformerConfig
from spin_d3rlpy.asm.scorers import create_scorer
from spin_d3rlpy.nvec import SlotLayout
from spin_d3rlpy.fast.precision import in_float32
from spin_d3rlpy.policies.base import IndependentPolicy

MODE = os.environ.get("MODE", "A")


class AttendingPolicy(IndependentPolicy):
    """experiment"""

    def __init__(self, observation_size: int, nvec: Sequence[int], config: EntityConfig, transformer: TransformerConfig) -> None:
        super().__init__(SlotLayout(nvec))
        self.config = config
        self.scorer = s = create_scorer(observation_size, nvec, config)
        self.features = s.features
        w, d = config.width, transformer.width
        self.token = nn.Linear(w, d)
        if MODE in "C":
            self.choice_token = nn.Linear(w, d)
            self.choice_back = nn.Linear(d, w, bias=False)
        self.trunk = SlotTransformer(w, transformer)
        self.back = nn.Linear(d, w, bias=False)
        self.norm = nn.LayerNorm(d)
        if MODE == "B":
            self.share = nn.Linear(w, 1)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        s, f = self.scorer, self.features
        slots, choices = f.slots(observations), f.choices(observations)
        xs, xc = s.slot(slots), s.choice(choices)
        pairs = s.pair(f.distances(slots[:, :, None], choices[:, None]))
        common = s.context(f.context(observations)) + s.all_slots(relu(xs).mean(1)) + s.all_choices(relu(xc).mean(1))
        b, n, _ = xs.shape
        x = relu(xc[:, None] + xs[:, :, None] + pairs + common[:, None, None])
        if MODE == "A":
            tokens = self.token(relu(xs))
        elif MODE == "B":
            p = self.share(x).softmax(2)
            tokens = self.token((p * x).sum(2))
        elif MODE == "C":
            tokens = torch.cat([self.token(relu(xs)), self.choice_token(relu(xc))], 1)
        ids = torch.arange(b * tokens.shape[1], device=tokens.device).view(b, -1)
        h = self.norm(self.trunk(relu(common), tokens.flatten(0, 1), ids))
        x = xc[:, None] + xs[:, :, None] + pairs + common[:, None, None] + self.back(h[:, :n])[:, :, None]
        if MODE == "C":
            x = x + self.choice_back(h[:, n:])[:, None]
        return in_float32(s.out, s.hidden(relu(x)))[..., 0].flatten(1)
