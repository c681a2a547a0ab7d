from __future__ import annotations

from typing import Any

import pytest
import torch

from spin_d3rlpy import SPINIQL, precision
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.precision import autocast, in_float32
from tests.algos.problems import ALGORITHMS, NVEC, random_buffer, tiny_fields


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
    with pytest.raises(ValueError, match="'float32', 'bfloat16', 'auto'; got 'fp16'"):
        SPINIQL(precision="fp16")


def test_output_layers_compute_in_float32() -> None:
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4).bfloat16()
    with autocast("cpu", "bfloat16"):
        outputs = in_float32(layer, x)
    assert torch.equal(outputs, layer(x.float()))


def test_weights_that_an_update_changes_are_rounded_anew() -> None:
    layer, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    with autocast("cpu", "bfloat16"):
        before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1.0)
        after = layer(x)  # torch by itself would still use the old ones here
    assert (after != before).all()


@pytest.mark.parametrize("algo_class", ALGORITHMS)
def test_losses_in_bfloat16_are_those_in_float32_within_two_percent(algo_class: Any) -> None:
    losses = []
    for name in ("float32", "bfloat16"):
        torch.manual_seed(0)
        algo = algo_class(nvec=NVEC, precision=name, **tiny_fields(algo_class))
        algo.build_with_dataset(random_buffer())
        torch.manual_seed(1)
        batch = random_buffer().sample_transition_batch(200)
        algo.update(batch)  # so that online and target networks differ
        torch.manual_seed(2)
        losses.append(algo.update(batch))
    assert losses[0] != losses[1]
    for key, value in losses[0].items():
        assert losses[1][key] == pytest.approx(value, rel=0.02, abs=0.002), key
