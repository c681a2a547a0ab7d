"""Fields of configs: types, ranges and lengths, when one is made and when a file has one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spin_d3rlpy
from spin_d3rlpy import SPINIDQL, IDQLConfig, load_policy, save_policy
from spin_d3rlpy.algos.config import MultiDiscreteConfig
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.asm.entities import EntityConfig
from spin_d3rlpy.asm.model import MLPConfig
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.errors import InvalidCheckpointError
from spin_d3rlpy.evaluation.fqe import MultiDiscreteFQEConfig
from spin_d3rlpy.files.fields import OTHERS, RANGES, Interval
from spin_d3rlpy.files.yaml_settings import create
from spin_d3rlpy.policies.autoregressive import AutoregressiveConfig
from spin_d3rlpy.policies.factories import (
    SPIN,
    SPINDistill,
    SPINJoint,
)
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig
from spin_d3rlpy.runs.settings import TrainSettings
from tests.algos.problems import ALGORITHMS, NVEC, new_algorithm, tiny_fields
from tests.saved_files import read_saved, write_saved

PARTS = [
    PretrainingConfig,
    TransformerConfig,
    MLPConfig,
    EntityConfig,
    DistillationConfig,
    TrajectoryWeights,
    AutoregressiveConfig,
    RePreMConfig,
    RePreMPretrainingConfig,
    SPIN,
    SPINJoint,
    SPINDistill,
    MultiDiscreteFQEConfig,
]
CONFIGS: list[Any] = [*(algo.config_class for algo in ALGORITHMS), *PARTS]
BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1e30, 10**400, 1e30]
WRONG = ["many", [1], {"a": 1}, object]


def fields_of(config: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        if field.name not in OTHERS:
            yield field.name, getattr(config, field.name)


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda c: c.__name__)
def test_every_field_of_every_config_is_checked(config_class: Any) -> None:
    config = config_class()
    for name, value in fields_of(config):
        bad: list[Any] = []
        if isinstance(value, int | float) or name in RANGES:
            bad = [[number] for number in BAD_NUMBERS] if isinstance(value, list) else BAD_NUMBERS
        if isinstance(value, bool | str):
            bad = [2, math.nan, 10**400, [], {}]
        if isinstance(value, list):
            bad = [*bad, list(value) * 10_000 or [0.5] * 10_000, "text", 3]
        for wrong in [*bad, [[[]]], {"a": 1}]:
            with pytest.raises(ValueError, match=f"Expected {name}") as caught:
                dataclasses.replace(config, **{name: wrong})
            assert len(str(caught.value)) < 600


def test_each_number_of_a_config_has_its_range() -> None:
    without = {
        f"{config_class.__name__}.{name}"
        for config_class in CONFIGS
        for name, value in fields_of(config_class())
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in RANGES
    }
    assert without == set()


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.5, np.float32(0.25)), (-1e-9, 1, 1.0, math.nan)),
        ("(0, 1]", (1, 1e-9), (0, 0.0, 2, -math.inf)),
        ("[1, ]", (1, 10**12), (0, 10**12 + 1, 10**400, math.inf)),
    ],
)
def test_an_interval_has_what_lies_between_its_ends(
    text: str, inside: tuple[Any, ...], outside: tuple[Any, ...]
) -> None:
    interval = Interval.parse(text)
    assert all(interval.holds(number) for number in inside)
    assert not any(interval.holds(number) for number in outside)


def test_numbers_of_numpy_and_tuples_are_taken() -> None:
    config = IDQLConfig(
        batch_size=np.int64(32),  # type: ignore[arg-type]
        gamma=np.float32(0.5),  # type: ignore[arg-type]
        short_gammas=(0.25, 0),  # type: ignore[arg-type]
    )
    assert config.batch_size == 32


def test_fields_of_another_packages_config_have_any_finite_number() -> None:
    @dataclasses.dataclass()
    class OtherConfig(MultiDiscreteConfig):
        alpha: float = -3.0

    assert OtherConfig(alpha=-5.0).alpha == -5.0
    with pytest.raises(ValueError, match=r"Expected alpha between -1e\+12 and 1e\+12, got nan"):
        OtherConfig(alpha=math.nan)
    with pytest.raises(ValueError, match="Expected gamma in"):
        OtherConfig(gamma=-1.0)


def test_settings_name_where_a_number_stands() -> None:
    with pytest.raises(ValueError, match=r"a\.yaml: Expected episodes of at least 1"):
        create(TrainSettings, {"dataset": "x", "episodes": -1}, "a.yaml")
    with pytest.raises(ValueError, match=r"a\.yaml: Expected seconds above 0"):
        create(TrainSettings, {"dataset": "x", "seconds": math.nan}, "a.yaml")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    algo = new_algorithm(SPINIDQL, nvec=NVEC, **tiny_fields(SPINIDQL))
    algo.create_impl((7,), 0)
    path = tmp_path_factory.mktemp("saved") / "policy.safetensors"
    save_policy(algo, path)
    return path


def changed(path: Path, folder: Path, *names: str, value: Any) -> Path:
    header, weights = read_saved(path)
    part = header["algorithm"]["config"]["params"]
    for name in names[:-1]:
        part = part[name]
    part[names[-1]] = value
    copy = folder / "changed.safetensors"
    write_saved(copy, header, weights)
    return copy


FACTORY = ("policy", "params")


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("gamma",), math.nan),
        (("batch_size",), -1),
        (("batch_size",), "32"),
        (("batch_size",), None),
        (("n_critics",), 2.5),
        (("joint_critic",), 1),
        (("short_gammas",), [0.5] * 2500),
        (("stricter_flexibilities",), [0.5] * 2500),
        (("search_sweeps",), 10**9),
        (("unknown",), 1),
        (("trajectory_weights", "unknown"), 1),
        (("trajectory_weights", "temperature"), -1.0),
        ((*FACTORY, "unknown"), 1),
        ((*FACTORY, "architecture"), "none"),
        ((*FACTORY, "pretraining", "unknown"), 1),
        ((*FACTORY, "pretraining", "batch_size"), 0),
        ((*FACTORY, "pretraining"), 5),
        ((*FACTORY, "transformer", "dropout"), math.nan),
        (("actor_optim_factory", "params", "weight_decay"), math.inf),
        (("actor_optim_factory", "params", "unknown"), 1),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else type(value).__name__,
)
def test_a_file_with_such_a_field_is_refused(
    names: tuple[str, ...], value: Any, saved: Path, tmp_path: Path
) -> None:
    assert load_policy(saved).config.batch_size > 0
    with pytest.raises(InvalidCheckpointError) as caught:
        load_policy(changed(saved, tmp_path, *names, value=value))
    assert "unknown" not in names or "unknown field 'unknown'" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_all_algorithms_have_a_config_that_is_checked() -> None:
    assert all(issubclass(a.config_class, MultiDiscreteConfig) for a in ALGORITHMS)
    with pytest.raises(ValueError, match="Expected gamma in"):
        spin_d3rlpy.FactoredBC(gamma=math.nan)
