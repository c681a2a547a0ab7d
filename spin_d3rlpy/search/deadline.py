"""A time to be done by: steps begin only if they should end before."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deadline:
    """When to be done, and how long a next step should take: as long as the longest before.

    Args:
        milliseconds: from now on; None has all the time.
    """

    def __init__(self, milliseconds: float | None = None) -> None:
        self._began, self._longest = time.monotonic(), 0.0
        self._end = math.inf if milliseconds is None else self._began + milliseconds / 1000.0
        self.guess = 0.0  # seconds of a step, before there was any

    @property
    def is_set(self) -> bool:
        """Whether time is limited."""
        return self._end < math.inf

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds to the end."""
        return self._end - time.monotonic()

    def allows(self, steps: int = 1) -> bool:
        """Whether so many steps should end in time."""
        return not self.is_set or steps * (self._longest or self.guess) <= self.left

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Context that is a step."""
        began = time.monotonic()
        yield
        self._longest = max(self._longest, time.monotonic() - began)

    def of_parts(self) -> Deadline:
        """Returns the same deadline for steps that are parts of one."""
        parts = Deadline()
        parts._began, parts._end = self._began, self._end
        return parts
