"""Training of the policies that datasets are made with: a recipe a policy."""

from __future__ import annotations

from pathlib import Path

from spin_d3rlpy.behavior.decqn import DecQNTrainer
from spin_d3rlpy.behavior.ppo import PPOTrainer
from spin_d3rlpy.behavior.recipes import DecQNRecipe, PPORecipe, Recipe
from spin_d3rlpy.behavior.trainer import BehaviorTrainer


def make_trainer(recipe: Recipe, folder: Path) -> BehaviorTrainer:
    """Returns the trainer of a recipe's algorithm; see `BehaviorTrainer`."""
    if isinstance(recipe, PPORecipe):
        return PPOTrainer(recipe, folder)
    assert isinstance(recipe, DecQNRecipe)
    return DecQNTrainer(recipe, folder)
