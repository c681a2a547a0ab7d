"""Frames that are drawn rectangle by rectangle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
Color = tuple[int, int, int]


def fill(frame: NDArray[np.uint8], box: Box, color: Color) -> None:
    """Fills a rectangle (x from, x to, y from, y to) of the unit square, y up; at least a pixel."""
    left, right = (round(len(frame) * x) for x in box[:2])
    bottom, top = (round(len(frame) * (1 - y)) for y in box[2:])
    frame[max(top, 0) : max(bottom, top + 1), max(left, 0) : max(right, left + 1)] = color


def fill_cell(
    frame: NDArray[np.uint8], cells: int, x: int, y: int, share: float, color: Color
) -> None:
    """Fills the middle share of a cell in column `x` and row `y` (from the bottom) of `cells`."""
    low, high = (1 - share) / 2, (1 + share) / 2
    fill(
        frame, ((x + low) / cells, (x + high) / cells, (y + low) / cells, (y + high) / cells), color
    )
