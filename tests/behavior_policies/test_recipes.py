from __future__ import annotations

import pytest

from examples.behavior_policies.recipes import RECIPES, get_recipe
from spin_d3rlpy.errors import DatasetNotFoundError


def test_maze_targets_follow_the_published_expert() -> None:
    assert RECIPES["maze-a10-expert"].target == 99.37
    for actuators in (3, 5, 7, 10, 12, 15):
        expert = RECIPES[f"maze-a{actuators}-expert"].target
        assert 0.33 < RECIPES[f"maze-a{actuators}-medium"].target / expert < 0.45


def test_unknown_recipe_lists_those_that_exist() -> None:
    with pytest.raises(DatasetNotFoundError, match="cheetah-run-b3"):
        get_recipe("cheetah-fly-b3")
