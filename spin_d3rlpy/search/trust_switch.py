"""Trust as part of an algorithm's networks: what searches, or whether the policy imitates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search

SearchMode = Literal["auto", "always", "never"]
# What `TrustSwitch` keeps of it; types are strings here, as annotations are not evaluated.
_BY_SEARCH = [field for field in dataclasses.fields(Trust) if field.type == "tuple[float, ...]"]
_OF_POLICY = [
    field for field in dataclasses.fields(Trust) if field.type in ("int", "float", "bool")
]


class TrustSwitch(nn.Module):
    """Trust as part of an algorithm's networks, so that whatever saves them keeps it.

    Args:
        searches: as in `Trust`.
        is_tested: whether critics are tested before they are trusted. Until then the policy acts
            alone; critics that are never tested are trusted.
    """

    figures: torch.Tensor  # (., S): gammas, flexibilities, then what `Trust` has by search
    of_policy: torch.Tensor  # (.,): its other numbers
    is_measured: torch.Tensor  # (1,)

    def __init__(self, searches: Sequence[Search], is_tested: bool = True) -> None:
        super().__init__()
        self._is_tested = is_tested
        figures = torch.zeros(2 + len(_BY_SEARCH), len(searches), dtype=torch.float64)
        figures[:2] = torch.tensor(searches, dtype=torch.float64).T
        self.register_buffer("figures", figures)
        self.register_buffer("of_policy", torch.zeros(len(_OF_POLICY), dtype=torch.float64))
        self.register_buffer("is_measured", torch.zeros(1, dtype=torch.bool))

    @property
    def trust(self) -> Trust | None:
        """What was measured last."""
        if not self.is_measured:
            return None
        gammas, flexibilities, *by_search = map(tuple, self.figures.tolist())
        fields: dict[str, Any] = {"searches": tuple(map(Search, gammas, flexibilities))}
        fields |= zip([field.name for field in _BY_SEARCH], by_search, strict=True)
        types = {"int": int, "float": float, "bool": bool}
        for field, number in zip(_OF_POLICY, self.of_policy.tolist(), strict=True):
            fields[field.name] = types[str(field.type)](number)
        return Trust(**fields)

    @trust.setter
    def trust(self, trust: Trust) -> None:
        rows = [*zip(*trust.searches, strict=True)]
        rows += [getattr(trust, field.name) for field in _BY_SEARCH]
        self.figures.copy_(torch.tensor(rows, dtype=torch.float64))
        numbers = [float(getattr(trust, field.name)) for field in _OF_POLICY]
        self.of_policy.copy_(torch.tensor(numbers, dtype=torch.float64))
        self.is_measured.fill_(True)

    def decide(self, mode: SearchMode = "auto") -> Search | None:
        """Returns how to search, or None to imitate.

        Args:
            mode: `"auto"` as was measured; `"always"` by the best search, or the first one if
                nothing was measured; `"never"` imitates.
        """
        trust = self.trust
        first = Search(*self.figures[:2, 0].tolist())
        if mode == "never":
            return None
        if mode == "always":
            return first if trust is None else trust.best
        if trust is None:
            return None if self._is_tested else first
        return trust.best if trust.acts_by == "search" else None
