"""A window that shows frames, for `render_mode="human"`."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

_DISPLAYS = {"DISPLAY", "WAYLAND_DISPLAY"}


class FrameWindow:
    """A pygame window that is as large as the frames it shows.

    Args:
        title: text in the window's title bar.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is not installed.
    """

    def __init__(self, title: str) -> None:
        try:
            import pygame
        except ImportError as error:
            raise DependencyNotInstalled(
                "render_mode='human' shows frames with pygame, which is not installed. "
                "Install it with `pip install pygame`, or use render_mode='rgb_array'."
            ) from error
        self._pygame = pygame
        self._title = title
        self._screen: Any = None
        self._clock: Any = None

    def show(self, frame: NDArray[np.uint8], fps: int) -> None:
        """Shows a frame `(height, width, 3)` and waits so that there are `fps` a second."""
        pygame = self._pygame
        height, width = frame.shape[:2]
        if self._screen is None:
            if sys.platform == "linux" and not _DISPLAYS.intersection(os.environ):
                # SDL would take EGL by itself, and close it for MuJoCo, too, with the window.
                os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode((width, height))
            self._clock = pygame.time.Clock()
        surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self._screen.blit(surface, (0, 0))
        pygame.event.pump()
        self._clock.tick(fps)
        pygame.display.flip()

    def close(self) -> None:
        """Closes the window."""
        if self._screen is not None:
            self._pygame.display.quit()
            self._screen = None
