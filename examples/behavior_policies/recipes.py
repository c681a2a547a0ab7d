"""Training recipes: one row per task, with its levels' target returns."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from d3rlpy.models.encoders import SimBaEncoderFactory
from d3rlpy.optimizers import AdamWFactory

from spin_d3rlpy.algos.decqn import DecQNConfig
from spin_d3rlpy.errors import DatasetNotFoundError
from spin_envs.behavior import policy_name
from spin_envs.scores import PUBLISHED_SCORES
from spin_envs.tasks import BenchmarkTask


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Common settings of recipes.

    Args:
        task: the suite's `<domain>-<task>`, or `"maze"`.
        number: choices of each actuator, or the maze's actuators.
        level: `"medium"` or `"expert"`.
        target: desired mean return; the closest snapshot is shipped.
        env_steps: environment steps of training, all environments together.
        evaluation_interval: environment steps between snapshots.
        seed: of networks, exploration and environments.
        episode_steps: length of training episodes (not of evaluations), for more starts; None for
            the environment's own limit.
    """

    task: str
    number: int
    level: str
    target: float
    env_steps: int
    evaluation_interval: int = 16_000
    seed: int = 0
    episode_steps: int | None = None

    algorithm: ClassVar[str]

    @property
    def benchmark_task(self) -> BenchmarkTask:
        """The environment and its arguments."""
        return BenchmarkTask(self.task, self.number)

    @property
    def name(self) -> str:
        """Name of the policy, unique among recipes."""
        return policy_name(self.benchmark_task, self.level)


@dataclasses.dataclass(frozen=True)
class DecQNRecipe(Recipe):
    """Training with DecQN.

    Args:
        width: width of the Q networks; hidden layers are twice as wide.
        steps_per_update: environment steps between gradient steps.
        n_explorers: environments that only explore, with uniformly random actions held for random
            times; for tasks whose reward other exploration never meets.
        persistence: mean number of steps (geometric) that they hold an action.
        averaged: use the target networks' policy instead of the online networks'. On quadruped-walk
            it returned more in nine of twelve evaluations.
    """

    width: int = 128
    steps_per_update: int = 2
    n_explorers: int = 0
    persistence: float = 4.0
    averaged: bool = False

    algorithm: ClassVar[str] = "DecQN"

    def config(self) -> DecQNConfig:
        """The algorithm's config (training fills in nvec and the observation scaler)."""
        return DecQNConfig(
            learning_rate=3e-4,
            optim_factory=AdamWFactory(weight_decay=1e-3, clip_grad_norm=40.0),
            encoder_factory=_encoder_factory(self.width),
            batch_size=256,
            gamma=0.99,
            tau=0.005,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPORecipe(Recipe):
    """Training with PPO, see `examples.behavior_policies.ppo`.

    Args:
        fall_reward: end a training episode, as in a fall, when rewards stay below this, because
            otherwise most steps show the robot lying.
        learned_bins: choices of each actuator in training, if not the task's; the policy then acts
            by its mean, see `spin_envs.behavior.BehaviorPolicy`.
        width: width of policy and value function; hidden layers are twice as wide.
    """

    fall_reward: float
    learned_bins: int | None = None
    width: int = 256

    algorithm: ClassVar[str] = "PPO"

    def encoder_factory(self) -> SimBaEncoderFactory:
        """Hidden layers of the policy and of the value function."""
        return _encoder_factory(self.width)


def _encoder_factory(width: int) -> SimBaEncoderFactory:
    return SimBaEncoderFactory(feature_size=width, hidden_size=2 * width, n_blocks=1)


MAZE_ACTUATORS = (3, 5, 7, 10, 12, 15)


def _maze(actuators: int, level: str) -> DecQNRecipe:
    """A maze's recipe: an episode without the goal returns -7.45, one with it about 99.

    A medium policy returns 40: it reaches the goal in 45 of 100 episodes. Snapshots are frequent,
    because few lie between never and always. With 10 actuators, random actions never reached the
    goal in 800 episodes; random actions held for 4 steps on average did in 15.
    """
    expert = PUBLISHED_SCORES[f"spin/maze-a{actuators}"][1]
    medium = level == "medium"
    return DecQNRecipe(
        task="maze",
        number=actuators,
        level=level,
        target=0.4 * expert if medium else expert,
        env_steps=60_000 if medium else 100_000,
        evaluation_interval=250 if medium else 2_000,
        seed=int(medium and actuators not in (7, 15)),  # these found the goal too suddenly or not
        n_explorers=4,
    )


def _dog_trot(bins: int, level: str) -> PPORecipe:
    """Recipes for dog-trot, all snapshots of one training with three choices.

    Policies for more choices, started from an interpolation of it and trained with PPO, hardly ever
    take the added choices.
    """
    expert = PUBLISHED_SCORES[f"spin/dog-trot-b{bins}"][1]
    medium = level == "medium"
    return PPORecipe(
        task="dog-trot",
        number=bins,
        level=level,
        target=0.4 * expert if medium else expert,
        env_steps=4_000_000 if medium else 10_000_000,
        evaluation_interval=250_000,
        episode_steps=400,
        fall_reward=0.06,
        learned_bins=None if bins == 3 else 3,
    )


# Expert targets are the published expert scores, medium targets the published returns on the
# medium datasets. A medium policy is an early one: short runs with narrow steps between snapshots.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        DecQNRecipe("cheetah-run", 3, "medium", 290.0, 56_000, evaluation_interval=4_000, seed=1),
        DecQNRecipe("cheetah-run", 3, "expert", 664.57, 400_000, evaluation_interval=8_000, seed=2),
        DecQNRecipe("finger-spin", 3, "medium", 388.0, 56_000, evaluation_interval=1_000),
        DecQNRecipe("finger-spin", 3, "expert", 853.62, 56_000, evaluation_interval=1_000),
        DecQNRecipe("fish-swim", 3, "medium", 167.0, 200_000, evaluation_interval=8_000),
        DecQNRecipe("fish-swim", 3, "expert", 418.58, 600_000, evaluation_interval=8_000),
        DecQNRecipe("quadruped-walk", 3, "medium", 351.0, 200_000, evaluation_interval=8_000),
        # It starts in any orientation. Whole episodes did not teach it to get up from its side.
        DecQNRecipe(
            "quadruped-walk", 3, "expert", 781.19, 240_000, episode_steps=150, averaged=True
        ),
        # An update costs as much as 20 environment steps, fresh ones are cheap.
        DecQNRecipe("humanoid-stand", 3, "medium", 331.0, 1_200_000, steps_per_update=4),
        DecQNRecipe("humanoid-stand", 3, "expert", 711.9, 4_000_000, steps_per_update=4),
        *(_dog_trot(bins, level) for bins in (3, 10, 30) for level in ("medium", "expert")),
        *(_maze(n, level) for n in MAZE_ACTUATORS for level in ("medium", "expert")),
    )
}


def get_recipe(name: str) -> Recipe:
    """Returns a recipe by name, e.g. `cheetah-run-b3-expert`.

    Raises:
        DatasetNotFoundError: there is none; the message lists all.
    """
    if name not in RECIPES:
        raise DatasetNotFoundError(f"No recipe named {name!r}. There are: {', '.join(RECIPES)}.")
    return RECIPES[name]
