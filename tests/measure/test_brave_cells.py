"""Trainings that take turns do the steps of `fit`."""

from __future__ import annotations

import functools
from typing import Any

import d3rlpy
import pytest
import torch
from d3rlpy.logging import NoopAdapterFactory

from spin_d3rlpy import BraVE, load_dataset
from tests.measure import brave_cells
from tests.measure.brave_cells import Cells, dataset_of, played

CELL = (100, 0)
load_once = functools.cache(load_dataset)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of 3 dimensions, whose log is read once."""
    monkeypatch.setattr(brave_cells, "dataset_of", lambda _cell: "spin/cone-d3-p100/mixed-v0")
    monkeypatch.setattr(brave_cells, "load_dataset", load_once)
    brave_cells._player.cache_clear()


def test_names_of_datasets() -> None:
    assert dataset_of((5, 0)) == "spin/cone-d8-p5/mixed-v0"
    assert dataset_of((75, 3)) == "spin/cone-d8-p75-s3/mixed-v0"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("corrected", [False, True])
def test_steps_are_those_of_fit(corrected: bool, tmp_path: Any) -> None:
    cells = Cells([CELL], "cpu:0", corrected)
    cells.train(3)
    (path,) = cells.write(tmp_path, 3)

    buffer, _ = load_once("spin/cone-d3-p100/mixed-v0", progress=False)
    d3rlpy.seed(0)
    fields: dict[str, Any] = brave_cells.CORRECTED if corrected else {}
    algo = BraVE(precision="float32", **fields)
    quiet: dict[str, Any] = {"logger_adapter": NoopAdapterFactory()}
    algo.fit(buffer, n_steps=3, show_progress=False, **quiet)
    expected = brave_cells._network(algo).state_dict()
    found = torch.load(path, weights_only=True)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, dict(expected))
    assert -400.0 * 3**0.5 <= played(CELL, path) <= 10.0
