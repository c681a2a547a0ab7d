"""Progress bars: one line each in a terminal, few lines in a log."""

from __future__ import annotations

import sys
from typing import Any

from tqdm.auto import tqdm

SECONDS_IN_A_LOG = 30.0


def progress_bar(label: str, unit: str, show: bool = True, **options: Any) -> Any:
    """Returns a bar of tqdm, which says in a log file only now and then how far it is.

    Args:
        label: what is done.
        unit: of what is counted.
        show: draw it.
        **options: of tqdm, e.g. `total` or `iterable`.
    """
    in_log = {} if sys.stderr.isatty() else {"mininterval": SECONDS_IN_A_LOG, "miniters": 1}
    return tqdm(desc=label, unit=unit, disable=not show, **in_log, **options)
