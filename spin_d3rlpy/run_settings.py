"""Settings of trainings and pre-trainings as plain values for YAML files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from d3rlpy.serializable_config import DynamicConfig

from spin_d3rlpy import algos
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.metrics import ActionMode
from spin_d3rlpy.policies import PolicyFactory
from spin_d3rlpy.recipes import recipe_fields
from spin_d3rlpy.settings import check_name, check_values, create, merge


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """All settings of a training that its numbers depend on, except versions and machine.

    Args:
        dataset: name or path, as in `load_dataset`.
        algorithm: class in `spin_d3rlpy`, e.g. `"SPINIQL"`.
        recipe: name in `spin_d3rlpy.recipes.RECIPES`, for fields not in `fields`.
        fields: config fields, nested ones (`transformer`, `pretraining`, `distillation`, `sizes`)
            as mappings, d3rlpy's factories and scalers as d3rlpy saves them.
        asm: file of a pre-trained model, for algorithms that take one.
        size: transitions of the dataset; the usual size if None.
        n_steps: gradient steps; the recipe's if None.
        n_steps_per_epoch: gradient steps between evaluations; a tenth of the run's if None.
        seconds: training time, pre-training included, instead of `n_steps`.
        n_epochs: evaluations of a timed training after its first stages.
        episodes: per evaluation.
        evaluation_seed: of an evaluation's first episode.
        mode: evaluate greedy or sampled actions.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        checkpoint_interval: steps between checkpoints.
    """

    dataset: str
    algorithm: str = "SPINIQL"
    recipe: str = "published"
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    asm: str | None = None
    size: int | None = None
    n_steps: int | None = None
    n_steps_per_epoch: int | None = None
    seconds: float | None = None
    n_epochs: int = 10
    episodes: int = 10
    evaluation_seed: int = 100
    mode: ActionMode = "greedy"
    seed: int = 0
    device: str = "cpu:0"
    checkpoint_interval: int = 1_000


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Settings of an Action Structure Model's pre-training.

    Args:
        dataset: name or path, as in `load_dataset`.
        recipe: name in `spin_d3rlpy.recipes.RECIPES`, for fields not given here.
        architecture: `"transformer"` or `"mlp"`.
        transformer: fields of `TransformerConfig`.
        mlp: fields of `MLPConfig`.
        pretraining: fields of `PretrainingConfig`.
        trajectory_weights: fields of `TrajectoryWeights`.
        observation_scaler: as d3rlpy saves it.
        size: transitions of the dataset; the usual size if None.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        checkpoint_interval: updates between checkpoints.
    """

    dataset: str
    recipe: str = "published"
    architecture: str | None = None
    transformer: dict[str, Any] = dataclasses.field(default_factory=dict)
    mlp: dict[str, Any] = dataclasses.field(default_factory=dict)
    pretraining: dict[str, Any] = dataclasses.field(default_factory=dict)
    trajectory_weights: dict[str, Any] = dataclasses.field(default_factory=dict)
    observation_scaler: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int | None = None
    seed: int = 0
    device: str = "cpu:0"
    checkpoint_interval: int = 1_000


PRETRAINED = "SPINBC"  # an algorithm with nothing but a policy made from an ASM
ASM_FIELDS = (
    "architecture",
    "transformer",
    "mlp",
    "pretraining",
    "trajectory_weights",
    "observation_scaler",
)


def algorithm_names() -> list[str]:
    """Names of the trainable algorithms."""
    return sorted(
        name
        for name, value in vars(algos).items()
        if isinstance(value, type)
        and issubclass(value, MultiDiscreteAlgo)
        and "config_class" in vars(value)
    )


def train_settings(values: Mapping[str, Any], source: str) -> TrainSettings:
    """Completes settings with the recipe's values, then the classes' defaults.

    Args:
        values: fields of `TrainSettings`.
        source: origin of the values, for messages.

    Raises:
        ValueError: unknown names, values of other types, no dataset.
    """
    settings = create(TrainSettings, values, source)
    from_asm = {*ASM_FIELDS[:4]} if settings.asm is not None else set()
    if given := sorted(from_asm & settings.fields.keys()):
        raise ValueError(f"{source}: {' and '.join(given)} are determined by the ASM; omit them.")
    config, encoder = _default_parts(settings.algorithm)
    recipe = recipe_fields(settings.recipe, type(config))
    plain = {k: _to_plain(v, _field(config, encoder, k)) for k, v in recipe.items()}
    algo = create_algorithm(settings.algorithm, merge(plain, settings.fields))
    steps = settings.n_steps or algo.config.n_steps
    return dataclasses.replace(
        settings,
        fields={k: v for k, v in _complete_fields(algo).items() if k not in from_asm},
        n_steps=steps,
        n_steps_per_epoch=settings.n_steps_per_epoch or -(-steps // 10),
    )


def pretrain_settings(values: Mapping[str, Any], source: str) -> PretrainSettings:
    """Completes settings of a pre-training, as `train_settings` does."""
    settings = create(PretrainSettings, values, source)
    given = {k: v for k, v in pretraining_fields(settings).items() if v}
    fields = {"recipe": settings.recipe, "fields": given}
    complete = train_settings({"dataset": "", "algorithm": PRETRAINED, **fields}, source).fields
    return dataclasses.replace(settings, **{name: complete[name] for name in ASM_FIELDS})


def pretraining_fields(settings: PretrainSettings) -> dict[str, Any]:
    """Returns a pre-training's fields as an algorithm's."""
    return {name: getattr(settings, name) for name in ASM_FIELDS}


def create_algorithm(name: str, fields: Mapping[str, Any], device: str = "cpu:0") -> Any:
    """Creates an algorithm from plain values.

    Args:
        name: its class in `spin_d3rlpy`.
        fields: config and encoder factory fields, as in `TrainSettings`.
        device: as in d3rlpy.

    Raises:
        ValueError: unknown names or values of other types.
    """
    config, encoder = _default_parts(name)
    nested = _nested_configs(config, encoder)
    own, inner = vars(config).keys(), vars(encoder).keys() if encoder else set()
    source = f"fields of {name}"
    built = {}
    for field, value in fields.items():
        check_name(field, sorted(own | inner), source)
        decode = _codec(_field(config, encoder, field)).get("decoder")
        if field in nested and isinstance(value, Mapping):
            value = create(nested[field], value, field)
        elif decode and isinstance(value, Mapping):
            value = _decode(decode, value, f"{source}: {field}")
        check_values(type(config if field in own else encoder), {field: value}, source)
        built[field] = value
    return getattr(algos, name)(device=device, **built)


def _decode(decode: Callable[[Any], Any], value: Mapping[str, Any], source: str) -> Any:
    """Reads a factory or scaler that d3rlpy saved."""
    try:
        return decode({"params": {}, **value})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{source}: expected `type` and `params` as d3rlpy saves them, got {dict(value)!r}."
        ) from error


def _default_parts(algorithm: str) -> tuple[Any, Any]:
    """Returns an algorithm's default config and, if configurable, its encoder."""
    check_name(algorithm, algorithm_names(), "algorithm")
    return _parts(getattr(algos, algorithm).config_class())


def _parts(config: Any) -> tuple[Any, Any]:
    encoder = getattr(config, "actor_encoder_factory", None)
    return config, encoder if isinstance(encoder, PolicyFactory) else None


def _nested_configs(config: Any, encoder: Any) -> dict[str, type[Any]]:
    """Returns the classes of fields that are mappings in a file."""
    values = {**(vars(encoder) if encoder else {}), **vars(config)}
    return {
        name: type(value)
        for name, value in values.items()
        if dataclasses.is_dataclass(value) and not isinstance(value, DynamicConfig)
    }


def _field(config: Any, encoder: Any, name: str) -> dataclasses.Field[Any]:
    """Returns the dataclass field of an algorithm's config or its policy's factory."""
    owner = config if name in vars(config) else encoder
    return next(field for field in dataclasses.fields(owner) if field.name == name)


def _codec(field: dataclasses.Field[Any]) -> Mapping[str, Any]:
    """Returns d3rlpy's codec of a field; None for plain values."""
    codec: Mapping[str, Any] = field.metadata.get("dataclasses_json") or {}
    return codec


def _to_plain(value: Any, field: dataclasses.Field[Any]) -> Any:
    """Returns a value in its file form."""
    if encode := _codec(field).get("encoder"):
        if getattr(value, "built", True):
            return encode(_codec(field)["decoder"](encode(value)))  # 0 is 0.0 where it is a float
        # d3rlpy cannot save a scaler whose numbers are not known yet.
        params = {k: v for k, v in vars(value).items() if v is not None}
        return {"type": value.get_type(), "params": params}
    is_part = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_part else value


def _complete_fields(algo: Any) -> dict[str, Any]:
    """Returns an algorithm's fields in their file form."""
    config, encoder = _parts(algo.config)
    values = {**(vars(encoder) if encoder else {}), **vars(config)}
    left_out = {"n_steps", "nvec"} | ({"actor_encoder_factory"} if encoder else set())
    plain = {k: _to_plain(v, _field(config, encoder, k)) for k, v in values.items()}
    return {k: v for k, v in plain.items() if k not in left_out and v is not None}
