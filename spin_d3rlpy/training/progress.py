"""Progress bars: one line in a terminal, few lines in a log file."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from tqdm.auto import tqdm

SECONDS_IN_A_LOG = 30.0


def warn_of_interrupt(kept: str) -> None:
    """Warns that Ctrl-C ended work early, and says what is kept of it."""
    warnings.warn(
        f"Interrupted: {kept} are kept. The program continues; press Ctrl-C again to stop it.",
        UserWarning,
        stacklevel=3,
    )


def progress_bar(label: str, unit: str, show: bool = True, **options: Any) -> Any:
    """Returns a tqdm bar that updates rarely in a log file; `options` are tqdm's."""
    in_log = {} if sys.stderr.isatty() else {"mininterval": SECONDS_IN_A_LOG, "miniters": 1}
    return tqdm(desc=label, unit=unit, disable=not show, **in_log, **options)
