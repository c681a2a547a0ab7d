"""Bins of continuous actions as texts, which the command line and files of settings have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spin_envs import Bins

QUANTILES = "quantiles:"


def bins_of_text(text: str) -> int | Bins | list[float]:
    """Returns what a text says of one dimension, see `spin_envs.Bins`.

    Args:
        text: `"5"` bins of the same width, `"quantiles:5"`, or edges, `"-10,-1,1,10"`.

    Raises:
        ValueError: it says none of them.
    """
    is_by_quantiles = text.startswith(QUANTILES)
    try:
        if is_by_quantiles or "," not in text:
            count = int(text.removeprefix(QUANTILES))
            return Bins(count, by="quantiles") if is_by_quantiles else count
        edges = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            "Expected bins as how many (5), by quantiles of the log (quantiles:5) or as edges "
            f"(-10,-1,1,10), got {text!r}."
        ) from error
    if not all(map(math.isfinite, edges)):
        raise ValueError(f"Expected finite edges of bins, got {text!r}.")
    return edges


def bins_of_texts(texts: Sequence[str]) -> Any:
    """Returns the `bins` of `load_dataset`, None of no texts.

    Args:
        texts: one for all continuous dimensions, or `"<name>=<bins>"` of each slot or part.

    Raises:
        ValueError: a text that says no bins, or a name twice; texts with and without names.
    """
    if not texts:
        return None
    named = [text.rpartition("=") for text in texts]
    if not named[0][1] and len(texts) == 1:
        bins = bins_of_text(texts[0])
        return Bins.of(bins) if isinstance(bins, list) else bins
    by_name = {name: bins_of_text(text) for name, equals, text in named if equals}
    if len(by_name) < len(texts):
        raise ValueError(
            "Expected bins once for all continuous numbers, or as <name>=<bins> once for each of "
            f"them, got {' and '.join(map(repr, texts))}."
        )
    return by_name
