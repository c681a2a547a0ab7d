"""Recipes: named sets of field values; `"tuned"`'s were chosen on cheetah-run and finger-spin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from d3rlpy.base import LearnableConfig
from d3rlpy.models.encoders import VectorEncoderFactory

from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.asm.distillation import DistillationConfig
from spin_d3rlpy.data.scalers import ClippedStandardObservationScaler
from spin_d3rlpy.data.weights import TrajectoryWeights
from spin_d3rlpy.policies import AutoregressiveConfig, PolicyFactory
from spin_d3rlpy.policies.reprem import RePreMConfig, RePreMPretrainingConfig


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
        "stricter_supports": [0.1],
        "joint_critic": True,
        "search_sweeps": 1 if knows_conditionals else 0,
        "held_out_share": 0.1,
        "batch_size": 512,
        "critic_encoder_factory": VectorEncoderFactory(hidden_units=[256], use_layer_norm=True),
        "expectile": 0.5,
        "monte_carlo_share": 0.0,
        "candidate_temperature": 1.0,
        "pretraining": _pretraining(full_mask_share=0.0, budget_share=0.4),
    }


def _policy_changes(policy: str) -> dict[str, Any]:
    """Values in place of those for MLPs, measured at equal seconds.

    Heads that start from a pre-trained model's are moved less; a policy that chooses slot after
    slot is rarely fully masked. Networks with an expensive step see smaller batches, more often.
    """
    if policy == "spin":
        return {"actor_learning_rate": 5e-5}
    if policy == "saint":
        return {"imitation_batch_size": 256}
    if policy == "autoregressive":
        sizes = AutoregressiveConfig(state_width=128, action_width=16, lstm_width=128, n_layers=1)
        return {"imitation_batch_size": 256, "sizes": sizes}
    return {}


def _tuned(policy: str, objective: type[Any]) -> dict[str, Any]:
    acts_by_search = hasattr(objective, "search_sweeps")
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
        "actor_encoder_factory": _layers(256),
        "critic_encoder_factory": _layers(128),
        "value_encoder_factory": _layers(128),
        "transformer": TransformerConfig(
            width=64, n_blocks=2, head_hidden=64, dropout=0.0, attention_dropout=0.0
        ),
        "pretraining": (
            _pretraining(),
            RePreMPretrainingConfig(max_updates=5_000, precision="auto"),
        ),
        "distillation": DistillationConfig(n_updates=10_000, precision="auto"),
        "precision": "auto",
        "architecture": "mlp",
        "query_init": "mask",
        "head_init": "asm",
        "train_queries": False,
        "frozen_dropout": False,
        "cache_features": True,
        **_policy_changes(policy),
        **(_search_changes(policy) if acts_by_search else {}),
    }


def _smoke(policy: str, objective: type[Any]) -> dict[str, Any]:
    """Settings for trying out a script in seconds; not for results."""
    return {
        "batch_size": 64,
        "n_steps": 40,
        "transformer": TransformerConfig(width=16, n_blocks=1, head_hidden=16),
        "sizes": RePreMConfig(width=16, n_blocks=1, head_hidden=16),
        "pretraining": (
            PretrainingConfig(batch_size=256, max_updates=20),
            RePreMPretrainingConfig(max_updates=20),
        ),
        "distillation": DistillationConfig(n_updates=20),
    }


# By name: from the type of a policy's factory and the objective's config class to fields.
RECIPES: dict[str, Callable[[str, type[Any]], dict[str, Any]]] = {
    "published": lambda policy, objective: {},
    "tuned": _tuned,
    "smoke": _smoke,
}


def recipe_fields(
    name: str, config_class: type[Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns a recipe's values for the fields of a config and its policy's factory.

    Fields that are `given` by the user win. All values are new objects, so that changing those of
    one algorithm changes no other.

    Raises:
        ValueError: there is no such recipe, or it has a field that no algorithm has.
    """
    if name not in RECIPES:
        raise ValueError(f"Expected a recipe of {', '.join(RECIPES)}; got {name!r}.")
    given = dict(given or {})
    default = config_class()
    factory = given.get("actor_encoder_factory", getattr(default, "actor_encoder_factory", None))
    values = dict(vars(default))
    if isinstance(factory, PolicyFactory):
        values |= vars(factory)
        values.pop("actor_encoder_factory")
    chosen = {}
    policy = "" if factory is None else factory.get_type()
    recipe = RECIPES[name](policy, config_class)
    if unknown := recipe.keys() - _known_fields(LearnableConfig) - _known_fields(PolicyFactory):
        raise ValueError(
            f"The recipe {name!r} sets {', '.join(sorted(unknown))}, which no algorithm has."
        )
    for field, value in recipe.items():
        if field not in values:
            continue
        # Policies have different parts by the same name: the one of the field's type.
        options = value if isinstance(value, tuple) else (value,)
        named = field in ("transformer", "sizes", "pretraining", "distillation")
        fitting = [v for v in options if not named or type(v) is type(values[field])]
        if fitting:
            chosen[field] = fitting[0]
    return chosen | given


def _known_fields(base: type[Any]) -> set[str]:
    """Names of the fields of all dataclasses below `base`."""
    names: set[str] = set()
    for part in base.__subclasses__():
        if dataclasses.is_dataclass(part):
            names |= {field.name for field in dataclasses.fields(part)}
        names |= _known_fields(part)
    return names
