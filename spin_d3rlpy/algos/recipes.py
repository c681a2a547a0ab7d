"""Recipes: named sets of field values; `"tuned"`'s were chosen on cheetah-run and finger-spin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.serializable_config import DynamicConfig

from spin_d3rlpy.asm import MLPConfig, PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.critics.return_bins import RETURN_BINS
from spin_d3rlpy.data.buffer.weights import TrajectoryWeights
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler
from spin_d3rlpy.policies import AutoregressiveConfig, PolicyFactory
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig

TPolicy = TypeVar("TPolicy", bound=PolicyFactory)


def _layers(width: int) -> VectorEncoderFactory:
    return VectorEncoderFactory(hidden_units=[width, width], use_layer_norm=True)


def _pretraining(**changes: Any) -> PretrainingConfig:
    settings: dict[str, Any] = {
        "masking": "any_order",
        "full_mask_share": 0.5,
        "batch_size": 1024,
        "learning_rate": 4e-3,
        "lr_schedule": "linear",
        "lr_warmup": 0.05,
        "ema_decay": 0.999,
        "budget_share": 0.85,
        "max_updates": 20_000,
        "precision": "auto",
    }
    return PretrainingConfig(**settings | changes)


def _search_changes(policy: str) -> dict[str, Any]:
    """Values of objectives that act by a search (IDQL).

    Its critics decide alone, so they get most of the seconds. Candidates are samples of the data's
    distribution; the search makes them better.
    """
    # What an autoregressive policy gives a choice depends on the slots before it alone.
    knows_conditionals = policy != "autoregressive"
    return {
        "short_gammas": [0.0, 0.9],
        "stricter_flexibilities": [0.1],
        "joint_critic": True,
        "search_sweeps": 1 if knows_conditionals else 0,
        "held_out_share": 0.1,
        "return_bins": RETURN_BINS,
        "overfitting_dropout": 0.5,
        "state_model_updates": 1500,
        "afterstates": "auto",
        "find_own_columns": True,
        "batch_size": 512,
        "critic_encoder_factory": VectorEncoderFactory(hidden_units=[256], use_layer_norm=True),
        "expectile": 0.5,
        "monte_carlo_share": 0.0,
        "candidate_temperature": 1.0,
    }


def _policy_changes(policy: str) -> dict[str, Any]:
    """Values in place of those for MLPs, measured at equal seconds.

    Heads that start from a pre-trained model's are moved less; a policy that chooses slot after
    slot is rarely fully masked. Networks with an expensive step see smaller batches, more often.
    """
    if policy == "spin":
        return {"actor_learning_rate": 5e-5}
    if policy in ("saint", "autoregressive"):
        return {"imitation_batch_size": 256}
    return {}


def _tuned_policy(kind: str, objective: type[Any]) -> dict[str, Any]:
    pretraining = _pretraining()
    if _acts_by_search(objective):
        pretraining = _pretraining(budget_share=0.4, unweighted_share=0.5, overfitting_dropout=0.5)
    mlp = MLPConfig(value_codes=_acts_by_search(objective))
    sizes = AutoregressiveConfig(state_width=128, action_width=16, lstm_width=128, n_layers=1)
    return {
        "encoder_factory": _layers(256),
        "transformer": TransformerConfig(
            width=64, n_blocks=2, head_hidden=64, dropout=0.0, attention_dropout=0.0
        ),
        "mlp": mlp,
        "sizes": sizes,
        "pretraining": (
            pretraining,
            RePreMPretrainingConfig(max_updates=5_000, precision="auto"),
        ),
        "distillation": DistillationConfig(n_updates=10_000, precision="auto"),
        "architecture": "mlp",
        "query_init": "mask",
        "head_init": "asm",
        "train_queries": False,
        "frozen_dropout": False,
        "cache_features": True,
    }


def _tuned(policy: str, objective: type[Any]) -> dict[str, Any]:
    return {
        "observation_scaler": ClippedStandardObservationScaler(eps=1e-3),
        "batch_size": 256,
        "imitation_batch_size": 1024,
        "n_steps": 25_000,
        "learning_rate": 1e-3,
        "actor_learning_rate": 2e-3,
        "critic_learning_rate": 1e-3,
        "lr_schedule": "linear",
        "lr_warmup": 0.05,
        "ema_decay": 0.999,
        "trajectory_weights": TrajectoryWeights(temperature=0.05, least_persistence=0.3),
        "monte_carlo_share": 0.2,
        "weight_ess": 0.99,
        "encoder_factory": _layers(256),
        "critic_encoder_factory": _layers(128),
        "value_encoder_factory": _layers(128),
        "precision": "auto",
        **_policy_changes(policy),
        **(_search_changes(policy) if _acts_by_search(objective) else {}),
    }


def _acts_by_search(objective: type[Any]) -> bool:
    return hasattr(objective, "search_sweeps")


def _smoke_policy(kind: str, objective: type[Any]) -> dict[str, Any]:
    return {
        "transformer": TransformerConfig(width=16, n_blocks=1, head_hidden=16),
        "sizes": RePreMConfig(width=16, n_blocks=1, head_hidden=16),
        "pretraining": (
            PretrainingConfig(batch_size=256, max_updates=20),
            RePreMPretrainingConfig(max_updates=20),
        ),
        "distillation": DistillationConfig(n_updates=20),
    }


Values = Callable[[str, type[Any]], dict[str, Any]]


class Recipe(NamedTuple):
    """Values of fields, by the policy's type and the objective's config class.

    A recipe is for all objectives and policies: names that one of them does not have are left out.
    Where several classes have a field of one name, there is a tuple: one value of each type.
    """

    objective: Values
    policy: Values


RECIPES = {
    "published": Recipe(lambda kind, objective: {}, lambda kind, objective: {}),
    "tuned": Recipe(_tuned, _tuned_policy),
    # Settings for trying out a script in seconds; not for results.
    "smoke": Recipe(lambda kind, objective: {"batch_size": 64, "n_steps": 40}, _smoke_policy),
}


def recipe_fields(
    name: str, config_class: type[Any], policy: PolicyFactory | None = None
) -> dict[str, Any]:
    """Returns a recipe's values for the fields of an objective's config, without its policy's.

    Args:
        name: of the recipe.
        config_class: of the objective.
        policy: the one that it gets, if the objective has one.

    Raises:
        ValueError: there is no such recipe.
    """
    kind = "" if policy is None else policy.get_type()
    return _fitting(_recipe(name).objective(kind, config_class), config_class())


def recipe_policy(name: str, config_class: type[Any], policy: TPolicy) -> TPolicy:
    """Returns a policy of this kind with a recipe's values; arguments are `recipe_fields`'.

    Raises:
        ValueError: there is no such recipe.
    """
    values = _recipe(name).policy(policy.get_type(), config_class)
    changed: TPolicy = dataclasses.replace(cast(Any, policy), **_fitting(values, policy))
    return changed


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"Expected a recipe of {', '.join(RECIPES)}; got {name!r}.")
    return RECIPES[name]


def _fitting(recipe: dict[str, Any], owner: object) -> dict[str, Any]:
    """The values for fields that the owner has, of that field's type where there are several.

    All are new objects, so that changing those of one algorithm changes no other.
    """
    known = {field.name for field in dataclasses.fields(cast(Any, owner))}
    fitting = {}
    for name, value in recipe.items():
        if name not in known:
            continue
        now = getattr(owner, name)
        # d3rlpy's factories and scalers stand for each other; parts of this package do not.
        is_part = dataclasses.is_dataclass(now) and not isinstance(now, DynamicConfig)
        for option in value if isinstance(value, tuple) else (value,):
            if not is_part or type(option) is type(now):
                fitting[name] = option
    return fitting
