from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spin_d3rlpy import SPINIQL, DecQN, FactoredIQL
from spin_d3rlpy.asm import PretrainingConfig
from spin_d3rlpy.fast import cpu, precision
from spin_d3rlpy.fast.precision import autocast, backward, in_float32
from tests.algos.problems import (
    NVEC,
    OBSERVATION_SIZE,
    each_algorithm,
    new_algorithm,
    random_buffer,
    tiny_fields,
)


def product_type(name: precision.Precision) -> torch.dtype:
    with autocast("cpu", name):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_named_precisions_are_what_is_computed_in() -> None:
    assert product_type("float32") == torch.float32
    assert product_type("bfloat16") == torch.bfloat16


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets whether this CPU has units for bfloat16, and seconds of a product in both formats."""

    def measure(has_units: bool, float32: float, bfloat16: float) -> None:
        seconds = {torch.float32: float32, torch.bfloat16: bfloat16}
        monkeypatch.setattr(cpu, "cpu_multiplies_bfloat16", lambda: has_units)
        monkeypatch.setattr(cpu, "_seconds_of_products", lambda: seconds)
        cpu.multiplies_faster_in_bfloat16.cache_clear()

    yield measure
    cpu.multiplies_faster_in_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("has_units", "bfloat16", "expected"),
    [
        (True, 0.5, torch.bfloat16),
        (True, 1.5, torch.float32),  # as on Intel's processors without AMX
        (True, 0.9, torch.float32),  # rounding costs more than is gained
        (False, 0.5, torch.float32),
    ],
)
def test_auto_is_what_the_processor_multiplies_faster_in(
    measured: Callable[..., None], has_units: bool, bfloat16: float, expected: torch.dtype
) -> None:
    measured(has_units, 1.0, bfloat16)
    assert product_type("auto") == expected


def test_products_are_measured_in_both_formats_also_within_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        seconds = cpu._seconds_of_products()
    assert set(seconds) == {torch.float32, torch.bfloat16}
    assert all(0.0 < one < 10.0 for one in seconds.values())


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="'bfloat16' or 'tf32' or 'auto' or null, got 'fp16'"):
        PretrainingConfig(precision="fp16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'bfloat16' or 'tf32' or 'auto', got 'fp16'"):
        SPINIQL(precision="fp16")  # type: ignore[arg-type]


def test_tf32_is_a_gpus_and_of_the_context_only() -> None:
    users, name, value = precision.tf32_settings()

    def found() -> list[Any]:
        return [getattr(user, name) for user in users]

    before = found()
    with autocast("cpu", "tf32"):
        assert found() == before
    with precision._tf32_products():
        assert found() == [value, value]
    assert found() == before


def test_output_layers_compute_in_float32() -> None:
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4).bfloat16()
    with autocast("cpu", "bfloat16"):
        outputs = in_float32(layer, x)
    assert torch.equal(outputs, layer(x.float()))


def test_output_layers_on_float32_features_do_too() -> None:
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    with autocast("cpu", "bfloat16"):
        outputs = in_float32(layer, x)
    assert torch.equal(outputs, layer(x))


def test_gradients_of_output_layers_are_computed_in_float32() -> None:
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4).bfloat16()
    with autocast("cpu", "bfloat16"):
        outputs = in_float32(layer, x)
        weights = torch.randn(2, 3)
        backward((outputs * weights).sum())
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, weights.T @ x.float(), rtol=1e-6, atol=1e-6)


@pytest.fixture
def _forget() -> Iterator[None]:
    cpu.onednn_multiplies_float32.cache_clear()
    yield
    cpu.onednn_multiplies_float32.cache_clear()


def test_float32_products_are_float32_products_whoever_computes_them() -> None:
    a, b = torch.rand(301, 257), torch.rand(257, 129)
    exact = a.double() @ b.double()
    with autocast("cpu", "float32"):
        found = a @ b
    torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=0)
    if (setting := cpu.products_setting()) is not None:
        assert setting.fp32_precision == "none"


@pytest.mark.usefixtures("_forget")
def test_a_torch_without_the_setting_multiplies_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "products_setting", lambda: None)
    a, b = torch.rand(301, 257), torch.rand(257, 129)
    expected = a @ b
    with autocast("cpu", "float32"):
        assert torch.equal(a @ b, expected)


def test_a_torch_without_the_new_name_of_the_setting_allows_tf32_by_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = types.SimpleNamespace(
        cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=False)),
        cudnn=types.SimpleNamespace(allow_tf32=True),
    )
    monkeypatch.setattr(torch, "backends", old)
    with precision._tf32_products():
        assert old.cuda.matmul.allow_tf32
    assert not old.cuda.matmul.allow_tf32


@pytest.mark.usefixtures("_forget")
def test_only_amds_processors_leave_float32_products_to_onednn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "products_setting", lambda: "a torch that has it")
    for vendor, is_asked in (("GenuineIntel", False), ("AuthenticAMD", True)):
        cpu.onednn_multiplies_float32.cache_clear()
        text = f"vendor_id : {vendor}"
        monkeypatch.setattr(Path, "read_text", lambda _path, text=text: text)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        asked: list[bool] = []

        @contextlib.contextmanager
        def choosing(asked: list[bool] = asked) -> Iterator[None]:
            asked.append(True)
            yield

        monkeypatch.setattr(cpu, "float32_products_by_onednn", choosing)
        assert cpu.onednn_multiplies_float32() == is_asked == bool(asked)


@pytest.mark.usefixtures("_forget")
def test_products_that_lose_digits_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "products_setting", lambda: "a torch that has it")
    monkeypatch.setattr(Path, "read_text", lambda _path: "AuthenticAMD")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(
        cpu, "float32_products_by_onednn", lambda: torch.autocast("cpu", torch.bfloat16)
    )
    assert not cpu.onednn_multiplies_float32()


def test_weights_that_an_update_changes_are_rounded_anew() -> None:
    layer, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    with autocast("cpu", "bfloat16"):
        before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1.0)
        after = layer(x)  # torch by itself would still use the old ones here
    assert (after != before).all()


@each_algorithm
def test_losses_in_bfloat16_are_those_in_float32_within_two_percent(algo_class: Any) -> None:
    losses = []
    for name in ("float32", "bfloat16"):
        torch.manual_seed(0)
        algo = new_algorithm(algo_class, nvec=NVEC, precision=name, **tiny_fields(algo_class))
        algo.build_with_dataset(random_buffer())
        torch.manual_seed(1)
        batch = random_buffer().sample_transition_batch(200)
        algo.update(batch)  # so that online and target networks differ
        torch.manual_seed(2)
        losses.append(algo.update(batch))
    assert losses[0] != losses[1]
    for key, value in losses[0].items():
        assert losses[1][key] == pytest.approx(value, rel=0.02, abs=0.002), key


@pytest.mark.parametrize(
    ("algo_class", "n_tokens"), [(SPINIQL, 1 + len(NVEC)), (FactoredIQL, 1), (DecQN, 1)]
)
def test_rows_of_products_are_counted_not_observations(
    monkeypatch: pytest.MonkeyPatch, algo_class: Any, n_tokens: int
) -> None:
    counted: list[int | None] = []

    def products(_: Any, n_rows: int | None = None) -> contextlib.nullcontext[None]:
        counted.append(n_rows)
        return contextlib.nullcontext()

    algo = new_algorithm(algo_class, **tiny_fields(algo_class))
    algo.build_with_dataset(random_buffer())
    monkeypatch.setattr("spin_d3rlpy.algos.base.fast_products", products)
    observations = np.zeros((5, OBSERVATION_SIZE), np.float32)
    actions = algo.predict(observations)
    algo.sample_action(observations)
    algo.predict_value(observations, actions)  # of a critic, which has no tokens
    assert counted == [5 * n_tokens, 5 * n_tokens, 5]


def test_values_of_many_rows_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    algo = new_algorithm(SPINIQL, **tiny_fields(SPINIQL))
    algo.build_with_dataset(random_buffer())
    n = 2 * precision.MANY_ROWS
    observations = np.random.default_rng(0).normal(size=(n, OBSERVATION_SIZE)).astype(np.float32)
    few = np.split(observations, n // 8)
    chosen: list[bool] = []

    @contextlib.contextmanager
    def choosing() -> Iterator[None]:
        chosen.append(True)
        with cpu.float32_products_by_onednn():
            yield

    chooses = cpu.onednn_multiplies_float32()
    if chooses:  # elsewhere it would round to bfloat16
        monkeypatch.setattr(precision, "float32_products_by_onednn", choosing)
    actions = algo.predict(observations)
    values = algo.predict_value(observations, actions)
    assert len(chosen) == 2 * chooses
    chosen.clear()
    np.testing.assert_array_equal(actions, np.concatenate([algo.predict(x) for x in few]))
    expected = [algo.predict_value(x, algo.predict(x)) for x in few]
    np.testing.assert_allclose(values, np.concatenate(expected), rtol=1e-5, atol=1e-6)
    assert not chosen
