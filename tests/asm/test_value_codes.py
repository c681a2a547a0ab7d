"""Codes of columns' values, which a structure model's first layer sees."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import SPINIDQL, SPINIQL, FactoredIDQL, from_table
from spin_d3rlpy.asm import (
    ActionStructureModel,
    MLPConfig,
    PretrainingConfig,
    load_asm,
    pretrain,
    save_asm,
)
from spin_d3rlpy.asm.pretraining import Pretraining
from spin_d3rlpy.asm.value_codes import NO_BOUND, ValueCodes
from spin_d3rlpy.training.loop import Run
from tests.exported_files import exported_actions

NVEC = [3, 3]
WITH_CODES = MLPConfig(width=32, value_codes=True)
CONFIG = PretrainingConfig(masking="any_order", batch_size=128, learning_rate=4e-3, max_updates=150)


class Levels:
    """Choices that are another one at each of eight levels; another column has many values."""

    transition_count = 2000

    def __init__(self, has_levels: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        level = torch.randint(8, (2000,), generator=generator)
        noise = torch.randn(2000, generator=generator)
        self._x = torch.stack([(level if has_levels else noise).float() / 4.0 - 1.0, noise], 1)
        choice = torch.tensor([0, 2, 1, 0, 1, 2, 0, 1])[level]
        self._actions = torch.stack([choice, 2 - choice], 1)

    def sample_observations_and_actions(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(self.transition_count, (batch_size,))
        return self._x[rows], self._actions[rows]


def trained(config: MLPConfig, source: Levels) -> tuple[ActionStructureModel, float]:
    torch.manual_seed(0)
    asm = ActionStructureModel(2, NVEC, config)
    rows = pretrain(asm, source, CONFIG, Run(show_progress=False))
    return asm, rows[-1]["accuracy"]


def fitted(x: torch.Tensor, width: int = 5) -> ValueCodes:
    codes = ValueCodes(x.shape[1], width)
    codes.fit(x)
    assert codes.is_used is bool(len(codes.columns) or len(codes.ramped))
    with torch.no_grad():
        codes.weight.normal_(generator=torch.Generator().manual_seed(0))
        codes.ramp_weight.normal_(generator=torch.Generator().manual_seed(1))
    return codes


def of_values(codes: ValueCodes, x: torch.Tensor) -> torch.Tensor:
    """Returns what codes of values add, without ramps."""
    with torch.no_grad():
        codes.ramp_weight.zero_()
    added: torch.Tensor = codes(x)
    return added


def test_each_value_of_columns_with_three_to_nine_adds_its_weights() -> None:
    columns = [torch.arange(2520.0) % n / 2.0 for n in (1, 2, 3, 9, 24)]
    codes = fitted(torch.stack(columns, 1))
    assert codes.is_used
    assert (codes.columns.tolist(), codes.ramped.tolist()) == ([2, 3], [4])
    # A number in between counts as the nearest value, as of what a model of states predicts.
    x = torch.tensor([[0.0, 0.5, 1.0, 3.5, 9.0], [7.0, 7.0, 0.6, -9.0, 0.0]])
    weight = codes.weight.detach()
    expected = torch.stack([weight[2, 2] + weight[3, 7], weight[2, 1] + weight[3, 0]])
    assert torch.allclose(of_values(codes, x), expected)


def test_of_more_values_the_ends_have_weights_if_they_recur() -> None:
    """As what is dead, empty or at a limit, among numbers of which no two are the same."""
    generator = torch.Generator().manual_seed(0)
    health, full = torch.rand(2, 1000, generator=generator)
    health[:90], health[90:490], health[490:520] = 0.0, 0.5, 1.0
    full[:450] = 1.0
    codes = fitted(torch.stack([health, full, torch.rand(1000, generator=generator)], 1))
    assert codes.is_used
    assert codes.columns.tolist() == [0, 1]
    (lower, upper), none = codes.bounds, torch.full((8,), NO_BOUND)
    # Neither what 3 % of the rows hold, nor what is no end.
    assert torch.equal(lower[0, 1:], none)
    assert lower[0, 0] == -NO_BOUND
    assert 0.0 < upper[0, 0] < 1e-4  # who is nearly dead is not dead
    assert torch.equal(lower[1, 1:], none)
    assert upper[1, 0] == NO_BOUND
    assert 1.0 - 1e-4 < lower[1, 0] < 1.0
    x = torch.tensor([[0.0, 1.0, 0.3], [-0.1, 0.5, 0.3], [0.5, 1.0, 0.3], [0.001, 0.999, 0.3]])
    dead, limit = codes.weight[0, 0], codes.weight[1, 0]
    expected = torch.stack([dead + limit, dead, limit, torch.zeros(5)])
    assert torch.allclose(of_values(codes, x), expected)


def test_numbers_with_many_values_rise_along_ramps_between_eighths_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    skewed = torch.rand(8001, generator=generator) ** 3
    codes = fitted(torch.stack([skewed, torch.arange(8001.0) % 8], 1))
    assert (codes.columns.tolist(), codes.ramped.tolist()) == ([1], [0])
    edges = torch.linspace(0.0, 1.0, 9) ** 3
    begin, end = codes.ramps[:, 0]
    assert torch.allclose(begin, edges[:-1], atol=0.02)
    assert torch.equal(begin[1:], end[:-1])
    with torch.no_grad():
        codes.weight.zero_()
    weight, third = codes.ramp_weight[0].detach(), (begin[2] + (end[2] - begin[2]) / 4.0).item()
    x = torch.tensor([[-9.0, 0.0], [third, 0.0], [9.0, 0.0]])
    expected = torch.stack([torch.zeros(5), weight[:2].sum(0) + weight[2] / 4.0, weight.sum(0)])
    assert torch.allclose(codes(x), expected, atol=1e-5)


def test_a_value_that_many_rows_hold_is_no_ramp() -> None:
    x = torch.cat([torch.zeros(500), torch.linspace(0.0, 1.0, 500)])
    codes = fitted(x[:, None])
    begin, end = codes.ramps[:, 0]
    assert (begin[:4] < end[:4]).all()
    assert torch.allclose(end[:4], torch.tensor([0.25, 0.5, 0.75, 1.0]), atol=0.01)
    assert (begin[4:] == NO_BOUND).all()
    assert torch.isfinite(codes(x[:, None])).all()


@pytest.mark.parametrize(("n_columns", "n_ramped"), [(128, 128), (129, 0)])
def test_of_very_many_columns_none_has_ramps(n_columns: int, n_ramped: int) -> None:
    codes = fitted(torch.rand(100, n_columns))
    assert codes.is_used is (n_ramped > 0)
    assert len(codes.ramped) == n_ramped


def test_they_are_learned_and_tell_levels_apart_sooner() -> None:
    source = Levels()
    (asm, accuracy), (_, without) = trained(WITH_CODES, source), trained(MLPConfig(32), source)
    codes: Any = asm.value_codes
    assert (codes.columns.tolist(), codes.ramped.tolist()) == ([0], [1])
    assert codes.weight[0].abs().amax() > 0.01
    assert codes.ramp_weight[1].abs().amax() > 0.01
    assert (codes.weight[1] == 0.0).all()
    assert (codes.ramp_weight[0] == 0.0).all()
    assert accuracy > without + 0.05


class Switches(Levels):
    """Columns of two values."""

    def __init__(self) -> None:
        super().__init__()
        self._x = (self._x > 0.0).float()


def test_where_columns_have_two_values_nothing_changes() -> None:
    source = Switches()
    (asm, _), (other, _) = trained(WITH_CODES, source), trained(MLPConfig(32), source)
    codes: Any = asm.value_codes
    assert codes.fitted
    assert not codes.is_used
    assert not codes.weight.requires_grad  # processes that train together would wait for it
    assert not codes.ramp_weight.requires_grad
    x, tokens = torch.randn(5, 2), torch.full((5, 2), 3)
    assert torch.equal(asm(x, tokens), other(x, tokens))


def test_what_is_in_no_step_is_not_trained() -> None:
    for source, expected in ((Levels(), (True, True)), (Levels(has_levels=False), (False, True))):
        asm = ActionStructureModel(2, NVEC, WITH_CODES)
        Pretraining(asm, source, CONFIG, Run(show_progress=False))
        codes: Any = asm.value_codes
        assert (codes.weight.requires_grad, codes.ramp_weight.requires_grad) == expected


class Threshold(Levels):
    """Choices that change where one column passes another, by small steps."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        one, other = torch.rand(2, 2000, generator=generator)
        self._x = torch.stack([one**4, other**4], 1)
        choice = 1 + (one > other + 0.1).long() - (one < other - 0.1).long()
        self._actions = torch.stack([choice, 2 - choice], 1)


def test_ramps_tell_small_steps_apart_sooner() -> None:
    source = Threshold()
    (_, accuracy), (_, without) = trained(WITH_CODES, source), trained(MLPConfig(32), source)
    assert accuracy > without + 0.02


def test_they_are_saved_loaded_and_copied(tmp_path: Path) -> None:
    asm, _ = trained(WITH_CODES, Levels())
    x, tokens = Levels().sample_observations_and_actions(9)
    expected = asm(x, tokens)
    path = tmp_path / "asm.safetensors"
    save_asm(asm, path)
    copied = ActionStructureModel(2, NVEC, WITH_CODES)
    copied.load_state_dict(asm.state_dict())
    of_copy = copy.deepcopy(ActionStructureModel(2, NVEC, WITH_CODES))
    of_copy.load_state_dict(asm.state_dict())
    for other in (load_asm(path), copied, copy.deepcopy(asm), of_copy):
        assert torch.equal(other.eval()(x, tokens), expected)


def test_a_model_that_is_trained_further_keeps_its_codes() -> None:
    asm, _ = trained(WITH_CODES, Levels())
    codes: Any = asm.value_codes
    bounds, ramps = codes.bounds.clone(), codes.ramps.clone()
    again = copy.deepcopy(asm).requires_grad_(True)
    Pretraining(again, Levels(has_levels=False), CONFIG, Run(show_progress=False))
    codes = again.value_codes
    assert torch.equal(codes.bounds, bounds)
    assert torch.equal(codes.ramps, ramps)
    assert codes.weight.requires_grad


def test_random_numbers_do_not_depend_on_them() -> None:
    numbers = []
    for config in (WITH_CODES, dataclasses.replace(WITH_CODES, value_codes=False)):
        torch.manual_seed(0)
        asm = ActionStructureModel(2, NVEC, config)
        Pretraining(asm, Levels(), CONFIG, Run(show_progress=False))
        numbers.append(torch.rand(3))
    assert torch.equal(*numbers)


@pytest.mark.parametrize(("kind", "has_codes"), [(SPINIDQL, True), (SPINIQL, False)])
def test_the_recipe_has_them_where_a_structure_model_acts(kind: Any, has_codes: bool) -> None:
    assert kind(recipe="tuned").config.policy.mlp.value_codes == has_codes
    FactoredIDQL(recipe="tuned")  # has no structure model


@pytest.mark.usefixtures("few_states_in_tests_of_critics", "short_probes_of_states")
@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_exported_files_have_them(extension: str, tmp_path: Path) -> None:
    x, actions = Levels().sample_observations_and_actions(400)
    names = ["level", "noise", "one", "two"]
    table = dict(zip(names, torch.cat([x, actions], 1).numpy().T, strict=True))
    data = from_table(
        table | {"episode": np.arange(400) // 4, "reward": x[:, 0].numpy()},
        observations=names[:2],
        actions=names[2:],
        reward="reward",
        episode="episode",
        nvec=NVEC,
    )
    algo: Any = SPINIDQL(recipe="tuned", search="never", batch_size=32, state_model_updates=5)
    algo.config.policy.pretraining.max_updates = 60
    algo.fit(data, n_steps=1, logger_adapter=NoopAdapterFactory(), show_progress=False)
    assert algo.policy.asm.value_codes.columns.tolist() == [0]
    expected = algo.predict(x.numpy())
    path = str(tmp_path / f"policy.{extension}")
    algo.save_policy(path)
    assert (exported_actions(path, observations=x.numpy()) == expected).all()
