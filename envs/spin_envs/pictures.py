"""Frames that are drawn cell by cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]


def colored(size: int, color: Color) -> NDArray[np.uint8]:
    """Returns a frame `(size, size, 3)` of one color."""
    return np.full((size, size, 3), color, np.uint8)


def fill_cell(
    frame: NDArray[np.uint8], cells: int, x: int, y: int, share: float, color: Color
) -> None:
    """Fills the middle of a cell.

    Args:
        frame: `(size, size, 3)`.
        cells: in a row of the frame.
        x: column, from the left.
        y: row, from the bottom.
        share: of the cell's width and height.
        color: red, green, blue.
    """
    width = len(frame) / cells
    left = (x + (1 - share) / 2) * width
    top = (cells - 1 - y + (1 - share) / 2) * width
    # At least a pixel, also where cells are smaller than that.
    right, bottom = (max(round(a + share * width), round(a) + 1) for a in (left, top))
    frame[round(top) : bottom, round(left) : right] = color
