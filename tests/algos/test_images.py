"""Algorithms on observations of images, alone and next to numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spin_d3rlpy import SPINIDQL, AutoregressiveBCQ, FactoredIQL
from spin_d3rlpy.runs.settings import split_fields
from tests.algos.conformance import CHECKS, Case
from tests.algos.pictures import SMALL, PictureEnv, pictures
from tests.algos.problems import ALGORITHMS, tiny_fields

_ALWAYS = {a.__name__ for a in (FactoredIQL, SPINIDQL, AutoregressiveBCQ)}


def case(algo_class: Any, folder: Path, **changes: Any) -> Case:
    def make_config(**fields: Any) -> Any:
        own = {"image_encoder_factory": SMALL, **tiny_fields(algo_class), **changes, **fields}
        return algo_class.config_class(**split_fields(algo_class, own))

    return Case(make_config, pictures(), PictureEnv, folder)


@pytest.mark.parametrize(
    "algo_class",
    [pytest.param(a, marks=() if a.__name__ in _ALWAYS else pytest.mark.slow) for a in ALGORITHMS],
    ids=lambda a: a.__name__,
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms_with_images(check: Any, algo_class: Any, tmp_path: Path) -> None:
    check(case(algo_class, tmp_path))
