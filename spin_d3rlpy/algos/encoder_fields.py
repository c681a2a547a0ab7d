"""Config fields for encoder factories with other defaults than d3rlpy's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from d3rlpy.models.encoders import EncoderFactory, make_encoder_field


def encoder_field(default_factory: Callable[[], EncoderFactory]) -> Any:
    """Returns a dataclass field that d3rlpy serializes like its own encoder fields."""
    template: Any = make_encoder_field()
    return dataclasses.field(default_factory=default_factory, metadata=template.metadata)
