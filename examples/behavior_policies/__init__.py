"""Training of the policies that datasets are made with, one recipe per policy."""

from __future__ import annotations

from pathlib import Path

from examples.behavior_policies.decqn import DecQNTrainer
from examples.behavior_policies.ppo import PPOTrainer
from examples.behavior_policies.recipes import DecQNRecipe, PPORecipe, Recipe
from examples.behavior_policies.trainer import BehaviorTrainer


def make_trainer(recipe: Recipe, folder: Path) -> BehaviorTrainer:
    """Returns the trainer of a recipe's algorithm; see `BehaviorTrainer`."""
    if isinstance(recipe, PPORecipe):
        return PPOTrainer(recipe, folder)
    assert isinstance(recipe, DecQNRecipe)
    return DecQNTrainer(recipe, folder)
