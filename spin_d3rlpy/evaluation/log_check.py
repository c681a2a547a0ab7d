"""Whether an evaluation from a log has converged."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LogCheck:
    """Whether an evaluation has converged: by the log's own returns, and by its Bellman equation.

    The logging policy is evaluated by the same networks and steps as the policy: if the log's own
    returns are missed, they cannot represent the values, or there were too few steps. The policy's
    values start from the log's, so that they must also have settled.

    Attributes:
        estimated: mean estimated value of the logged actions in the episodes' first states.
        observed: mean discounted return of the episodes; a mean return follows the end of those
            that were cut off.
        unsettled: how far the policy's values would still move: the mean temporal-difference error
            of logged transitions, divided by `1 - gamma`.
        tolerance: how large `estimated - observed` and `unsettled` may be: two standard errors of
            `observed`, and a tenth of the values' size or of the returns' standard deviation,
            whichever is larger.
    """

    estimated: float
    observed: float
    unsettled: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the evaluation has converged, as far as this can tell."""
        apart = max(abs(self.estimated - self.observed), abs(self.unsettled))
        return apart <= self.tolerance  # False if not a number

    def __str__(self) -> str:
        return (
            f"the logging policy is evaluated at {self.estimated:.4g}, its episodes returned "
            f"{self.observed:.4g}, and the policy's values are {abs(self.unsettled):.2g} away from "
            f"where they settle (tolerance {self.tolerance:.2g})"
        )
