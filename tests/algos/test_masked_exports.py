"""Exported files with masks as a second input: the actions of `predict_masked`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from d3rlpy.preprocessing import StandardObservationScaler
from numpy.typing import NDArray

from spin_d3rlpy import (
    SPINBC,
    SPINIDQL,
    AutoregressiveBC,
    AutoregressiveBCQ,
    DecQN,
    DecQNOneStep,
    FactoredAWAC,
    FactoredBC,
    FactoredBCQ,
    FactoredIDQL,
    MultiDiscreteFQE,
)
from spin_d3rlpy.asm.rules import all_different
from spin_d3rlpy.policies import SPINJoint
from spin_d3rlpy.policies.base import Policy
from spin_d3rlpy.search.trust import Trust
from spin_d3rlpy.search.trust_figures import Search
from tests.algos.problems import NVEC, TINY, random_buffer, tiny_fields
from tests.algos.test_masked_acting import (
    QUIET,
    STATES,
    fitted,
    forbidden,
    masked_buffer,
    possible_masks,
)
from tests.exported_files import load_exported

MASKS = possible_masks(len(STATES), NVEC)
WAYS = [
    *(FactoredBC, SPINBC, AutoregressiveBC, FactoredBCQ, AutoregressiveBCQ, FactoredAWAC),
    *(DecQN, DecQNOneStep, SPINIDQL, FactoredIDQL),
]
QUICK_ONNX = {FactoredBC}
# onnxruntime 1.31.1 divides by 0 where it transposes a tensor of no rows, and the process ends.
TRANSPOSE_ROWS = {SPINBC, AutoregressiveBC, AutoregressiveBCQ, SPINIDQL}


def exported(algo: Any, path: Path) -> Any:
    """Returns a function of observations and masks."""
    algo.save_policy(str(path), masks=True)
    act = load_exported(path)
    return lambda observations, masks: act(observations=observations, masks=masks)


@pytest.mark.parametrize(
    ("algo_class", "extension"),
    [
        *((a, "pt") for a in WAYS),
        *(pytest.param(a, "onnx", marks=() if a in QUICK_ONNX else pytest.mark.slow) for a in WAYS),
    ],
    ids=lambda p: getattr(p, "__name__", p),
)
def test_a_file_takes_masks(algo_class: Any, extension: str, tmp_path: Path) -> None:
    algo = fitted(algo_class, masked_buffer(), observation_scaler=StandardObservationScaler())
    act = exported(algo, tmp_path / f"policy.{extension}")
    expected = algo.predict_masked(STATES, MASKS)
    assert forbidden(MASKS, algo.predict(STATES)) > 0
    assert np.array_equal(act(STATES, MASKS), expected)
    assert np.array_equal(act(STATES[:1], MASKS[:1]), expected[:1])
    assert np.array_equal(act(STATES, np.ones_like(MASKS)), algo.predict(STATES))
    if extension == "pt" or algo_class not in TRANSPOSE_ROWS:
        assert act(STATES[:0], MASKS[:0]).shape == (0, len(NVEC))
    assert algo.impl.rule is None
    assert np.array_equal(algo.predict_masked(STATES, MASKS), expected)
    algo.fit(masked_buffer(), n_steps=1, **QUIET)  # still trains


@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(
    "algo_class", [FactoredBC, AutoregressiveBCQ, DecQN, SPINIDQL], ids=lambda a: a.__name__
)
def test_a_slot_without_a_choice_is_minus_one_and_spoils_no_other_row(
    algo_class: Any, slot: int, extension: str, tmp_path: Path
) -> None:
    algo = fitted(algo_class, masked_buffer())
    act = exported(algo, tmp_path / f"policy.{extension}")
    stuck = MASKS.copy()
    stuck[7, slot] = False
    found, expected = act(STATES, stuck), algo.predict_masked(STATES, MASKS)
    assert found[7, slot] == -1
    assert (np.delete(found[7], slot) >= 0).all()
    assert np.array_equal(np.delete(found, 7, 0), np.delete(expected, 7, 0))


@pytest.mark.parametrize("extension", ["pt", "onnx"])
def test_a_file_keeps_rules_and_masks_together(extension: str, tmp_path: Path) -> None:
    nvec = [4, 4, 4]
    algo = fitted(FactoredBC, random_buffer(nvec), rules=[all_different(4)])
    masks = np.ones((len(STATES), 3, 4), bool)
    masks[::2, 2, :3] = False
    masks[::2, :2, 3] = False
    found = exported(algo, tmp_path / f"policy.{extension}")(STATES, masks)
    assert np.array_equal(found, algo.predict_masked(STATES, masks))
    assert all(len(set(action)) == 3 for action in found.tolist())
    assert (found[::2, 2] == 3).all()


@pytest.mark.parametrize("extension", ["pt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_search_in_a_file_keeps_masks(extension: str, tmp_path: Path) -> None:
    fields = {
        "joint_critic": True,
        "search_sweeps": 2,
        "held_out_share": 0.25,
        "action_flexibility": 1e-6,
    }
    algo = fitted(SPINIDQL, masked_buffer(), **fields)
    algo.impl.modules.trust.trust = Trust((Search(0.99, 0.02),), (1.0,), (1.0,), (0.0,), 100)
    assert algo.impl.acting_search is not None
    act = exported(algo, tmp_path / f"policy.{extension}")
    expected = algo.predict_masked(STATES, MASKS)
    assert np.array_equal(act(STATES, MASKS), expected)
    stuck = MASKS.copy()
    stuck[7, 0] = False
    found = act(STATES, stuck)
    assert found[7, 0] == -1
    assert np.array_equal(np.delete(found, 7, 0), np.delete(expected, 7, 0))


@pytest.mark.parametrize("order", ["confidence", "margin"])
def test_a_structure_model_in_a_file_chooses_its_surest_allowed_slot_first(
    order: Any, tmp_path: Path
) -> None:
    fields = tiny_fields(SPINIDQL) | {"policy": SPINJoint(transformer=TINY, order=order)}
    algo = fitted(SPINIDQL, masked_buffer(), **fields)
    act = exported(algo, tmp_path / "policy.pt")
    assert np.array_equal(act(STATES, MASKS), algo.predict_masked(STATES, MASKS))


def test_without_masks_a_file_has_one_input(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    algo = fitted(FactoredBC, masked_buffer())
    for masks, names in ((False, ["observations"]), (True, ["observations", "masks"])):
        algo.save_policy(path := str(tmp_path / "policy.onnx"), masks)
        inputs = runtime.InferenceSession(path).get_inputs()
        assert [one.name for one in inputs] == names
    assert inputs[1].type == "tensor(bool)"
    assert inputs[1].shape[1:] == [len(NVEC), max(NVEC)]


def test_a_torch_that_fixes_the_number_of_observations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, export = fitted(FactoredBC, masked_buffer()), torch.onnx.export
    without = {"dynamic_shapes": None}
    monkeypatch.setattr(torch.onnx, "export", lambda *a, **b: export(*a, **{**b, **without}))
    with pytest.raises(ImportError, match=rf"any number of obs.*got {torch.__version__[:4]}.*to 2"):
        algo.save_policy(str(tmp_path / "policy.onnx"))
    assert not any(tmp_path.iterdir())


class Unruled(Policy):
    """A policy of another package, which knows no rules."""

    def log_prob(self, observations: Any, actions: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def decode(  # type: ignore[override]
        self, observations: torch.Tensor, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.zeros(len(observations), len(NVEC), dtype=torch.int64)


def test_where_masks_cannot_be_an_input_is_said(tmp_path: Path) -> None:
    algo = fitted(FactoredBC, masked_buffer())
    algo.impl.modules.policy.__class__ = Unruled
    for extension in ("pt", "onnx"):
        with pytest.raises(ValueError, match=r"Unruled chooses without rules.*decode takes rule="):
            algo.save_policy(str(tmp_path / f"policy.{extension}"), masks=True)
    with pytest.raises(ValueError, match=r"\.pt or \.onnx"):
        fitted(FactoredBC, masked_buffer()).save_policy(str(tmp_path / "policy.h5"), masks=True)

    def rule(observations: NDArray[Any]) -> NDArray[Any]:
        return np.zeros((len(observations), 3), np.int64)

    with pytest.raises(TypeError, match="a function"):
        MultiDiscreteFQE(rule).save_policy(str(tmp_path / "policy.pt"), masks=True)
    assert list(tmp_path.iterdir()) == []
