from __future__ import annotations

import pytest
import torch

from spin_d3rlpy import precision
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.precision import autocast


def product_type(name: precision.Precision) -> torch.dtype:
    with autocast("cpu", name):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_named_precisions_are_what_is_computed_in() -> None:
    assert product_type("float32") == torch.float32
    assert product_type("bfloat16") == torch.bfloat16


@pytest.mark.parametrize("supported", [True, False])
def test_auto_follows_the_processor(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    monkeypatch.setattr(precision, "cpu_multiplies_bfloat16", lambda: supported)
    assert product_type("auto") == (torch.bfloat16 if supported else torch.float32)


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="'float32', 'bfloat16', 'auto'; got 'fp16'"):
        PretrainingConfig(precision="fp16")  # type: ignore[arg-type]
