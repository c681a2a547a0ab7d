from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from spin_d3rlpy.behavior import recipes
from spin_d3rlpy.behavior.recipes import RECIPES, PPORecipe, get_recipe, lineage
from spin_d3rlpy.behavior.transfer import interpolation
from spin_d3rlpy.errors import DatasetNotFoundError


def test_initial_recipes_exist_and_have_networks_of_the_same_size() -> None:
    beginning = [r for r in RECIPES.values() if isinstance(r, PPORecipe) and r.initial]
    assert beginning
    for recipe in beginning:
        assert recipe.initial is not None
        other = RECIPES[recipe.initial]
        assert isinstance(other, PPORecipe)
        assert other.width == recipe.width


def test_recipes_are_trained_whose_policies_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "shipped_policies", lambda: ["cheetah-run-b3-expert"])
    base = RECIPES["dog-trot-b3-expert"]
    assert isinstance(base, PPORecipe)
    missing = dataclasses.replace(base, initial="dog-trot-b30-expert", number=4)
    names = [recipe.name for recipe in lineage(missing)]
    assert names == ["dog-trot-b3-expert", "dog-trot-b30-expert", "dog-trot-b4-expert"]
    shipped = dataclasses.replace(base, initial="cheetah-run-b3-expert")
    assert lineage(shipped) == [shipped]


def test_maze_targets_follow_the_published_expert() -> None:
    assert RECIPES["maze-a10-expert"].target == 99.37
    for actuators in (3, 5, 7, 10, 12, 15):
        expert = RECIPES[f"maze-a{actuators}-expert"].target
        assert 0.33 < RECIPES[f"maze-a{actuators}-medium"].target / expert < 0.45


def test_unknown_recipe_lists_those_that_exist() -> None:
    with pytest.raises(DatasetNotFoundError, match="cheetah-run-b3"):
        get_recipe("cheetah-fly-b3")


def test_interpolation_is_by_places_in_the_range() -> None:
    matrix = interpolation((3, 2), (5, 2))
    utilities = np.array([0.0, 3.0, 9.0, 5.0, 7.0], np.float32)
    # 0, 1.5, 3, 6, 9 and twice that: as many steps more, each as high.
    np.testing.assert_allclose(matrix @ utilities, [0, 3, 6, 12, 18, 5, 7], rtol=1e-6)
    with pytest.raises(ValueError, match=r"\(2\); got 1"):
        interpolation((3, 2), (4,))
