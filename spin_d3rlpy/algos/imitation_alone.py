"""The rest of a run in which critics are known not to act: training of the policy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spin_d3rlpy.policies.further_pretraining import FurtherPretraining


class ImitationAlone:
    """Whether a run's steps train the policy alone, and what is trained then.

    Args:
        pretraining: further pre-training of a policy that is a structure model; None for a policy
            that the objective itself trains.
        is_possible: False if the policy's model was given, and is to stay what it is.

    Attributes:
        may_give_up: whether critics may still be given up: until a search is found that may act.
        has_begun: whether critics are given up, or have learned all that they are to learn.
    """

    def __init__(self, pretraining: FurtherPretraining | None, is_possible: bool) -> None:
        self.pretraining, self.is_possible = pretraining, is_possible
        self.may_give_up, self.has_begun = is_possible, False

    def state_dict(self) -> dict[str, Any]:
        """Returns what was decided and trained."""
        return {
            "is_possible": self.is_possible,
            "may_give_up": self.may_give_up,
            "has_begun": self.has_begun,
            "pretraining": None if self.pretraining is None else self.pretraining.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.is_possible, self.may_give_up = state["is_possible"], state["may_give_up"]
        self.has_begun = state["has_begun"]
        if self.pretraining is not None:
            self.pretraining.load_state_dict(state["pretraining"])
