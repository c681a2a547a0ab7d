"""Settings of trainings and pre-trainings as plain values for YAML files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from d3rlpy.serializable_config import DynamicConfig

from spin_d3rlpy import algos
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.algos.recipes import recipe_policy
from spin_d3rlpy.evaluation.metrics import ActionMode
from spin_d3rlpy.files.yaml_settings import check_name, check_values, create, merge
from spin_d3rlpy.training.budget import Clock


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """All settings of a training that its numbers depend on, except versions and machine.

    Args:
        dataset: name or path, as in `load_dataset`.
        algorithm: class in `spin_d3rlpy`, e.g. `"SPINIQL"`.
        recipe: name in `spin_d3rlpy.algos.recipes.RECIPES`, for fields not in `fields`.
        fields: config fields, nested ones (`transformer`, `pretraining`, `distillation`, `sizes`)
            as mappings, d3rlpy's factories and scalers as d3rlpy saves them.
        asm: file of a pre-trained model, for algorithms that take one.
        size: transitions of the dataset; the usual size if None.
        bins: of continuous actions, as the option `--bins` has them: `["5"]`, or one text for each,
            `["stick=quantiles:5", "force=-10,-1,1,10"]`; see `spin_d3rlpy.data.bins_texts`.
        n_steps: gradient steps; the recipe's if None.
        n_steps_per_epoch: gradient steps between evaluations; a tenth of the run's if None.
        seconds: training time, pre-training included, instead of `n_steps`.
        clock: of `seconds`, as in `fit`: `"wall"`, `"cpu"` or `"ops"`.
        n_epochs: evaluations of a timed training after its first stages.
        episodes: per evaluation.
        evaluation_seed: of an evaluation's first episode.
        mode: evaluate greedy or sampled actions.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        checkpoint_interval: steps between checkpoints.
    """

    dataset: str
    algorithm: str = "SPINIDQL"
    recipe: str = "published"
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    asm: str | None = None
    size: int | None = None
    bins: list[str] = dataclasses.field(default_factory=list)
    n_steps: int | None = None
    n_steps_per_epoch: int | None = None
    seconds: float | None = None
    clock: Clock = "wall"
    n_epochs: int = 10
    episodes: int = 10
    evaluation_seed: int = 100
    mode: ActionMode = "greedy"
    seed: int = 0
    device: str = "cpu:0"
    checkpoint_interval: int = 1_000


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Settings of an ASM's pre-training.

    Args:
        dataset: name or path, as in `load_dataset`.
        recipe: name in `spin_d3rlpy.algos.recipes.RECIPES`, for fields that are empty here.
        architecture: `"transformer"` or `"mlp"`.
        transformer: fields of `TransformerConfig`.
        mlp: fields of `MLPConfig`.
        pretraining: fields of `PretrainingConfig`.
        trajectory_weights: fields of `TrajectoryWeights`.
        observation_scaler: as d3rlpy saves it.
        size: transitions of the dataset; the usual size if None.
        bins: of continuous actions, as the option `--bins` has them: `["5"]`, or one text for each,
            `["stick=quantiles:5", "force=-10,-1,1,10"]`; see `spin_d3rlpy.data.bins_texts`.
        seed: of the network and mini-batches.
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
    bins: list[str] = dataclasses.field(default_factory=list)
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
    classes = {name: value for name, value in vars(algos).items() if isinstance(value, type)}
    return sorted(
        name
        for name, value in classes.items()
        if issubclass(value, MultiDiscreteAlgo)
        and ("default_policy" if issubclass(value, PolicyAlgo) else "config_class") in vars(value)
        and value is not PolicyAlgo
    )


def train_settings(values: Mapping[str, Any], source: str) -> TrainSettings:
    """Completes settings with the recipe's values, then the classes' defaults.

    Raises ValueError, which names the values' `source`, for unknown names and other types.
    """
    settings = create(TrainSettings, values, source)
    from_asm = {*ASM_FIELDS[:4]} if settings.asm is not None else set()
    if given := sorted(from_asm & settings.fields.keys()):
        raise ValueError(f"{source}: {' and '.join(given)} are determined by the ASM; omit them.")
    known = _known_fields(_config(settings.algorithm))
    recipe = _known_fields(_config(settings.algorithm, settings.recipe))
    plain = {name: _to_plain(value, known[name].codec) for name, (_, value, _) in recipe.items()}
    algo = create_algorithm(settings.algorithm, merge(plain, settings.fields))
    known = _known_fields(algo.config)
    complete = {name: _to_plain(field.value, field.codec) for name, field in known.items()}
    left_out = {"n_steps", "nvec", *from_asm}
    steps = settings.n_steps or algo.config.n_steps
    return dataclasses.replace(
        settings,
        fields={k: v for k, v in complete.items() if k not in left_out and v is not None},
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
    """Creates an algorithm by its name in `spin_d3rlpy` and `fields` as in `TrainSettings`.

    Raises ValueError for unknown names and values of other types.
    """
    source = f"fields of {name}"
    known = _known_fields(_config(name))
    built = {}
    for field, value in fields.items():
        check_name(field, sorted(known), source)
        owner, default, codec = known[field]
        if isinstance(value, Mapping) and _is_part(default):
            value = create(type(default), value, field)
        elif isinstance(value, Mapping) and "decoder" in codec:
            value = _decode(codec["decoder"], value, f"{source}: {field}")
        check_values(owner, {field: value}, source)
        built[field] = value
    algo_class = getattr(algos, name)
    return algo_class(device=device, **split_fields(algo_class, built))


def split_fields(
    algo_class: type[Any], fields: Mapping[str, Any], recipe: str = "published"
) -> dict[str, Any]:
    """Returns an algorithm's fields from its config's and its policy's in one mapping.

    Args:
        algo_class: of the algorithm.
        fields: as files and the command line have them.
        recipe: of the policy's fields that are not given.
    """
    fields = dict(fields)
    if not issubclass(algo_class, PolicyAlgo):
        return fields
    policy: Any = fields.get("policy")
    if policy is None:
        policy = recipe_policy(recipe, algo_class.config_class, algo_class.default_policy())
    names = fields.keys() & {field.name for field in dataclasses.fields(policy)}
    of_policy = {name: fields.pop(name) for name in names}
    return {**fields, "policy": dataclasses.replace(policy, **of_policy)}


def _decode(decode: Callable[[Any], Any], value: Mapping[str, Any], source: str) -> Any:
    """Reads a factory or scaler that d3rlpy saved, or an action's layout."""
    try:
        return decode({"params": {}, **value} if "type" in value else value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{source}: expected what is saved for it (of d3rlpy `type` and `params`), got "
            f"{dict(value)!r}: {error}"
        ) from error


class _Known(NamedTuple):
    """A field of an algorithm's config or of its policy."""

    owner: type[Any]
    value: Any
    codec: Mapping[str, Any]  # d3rlpy's, empty for plain values


def _config(algorithm: str, recipe: str = "published") -> Any:
    check_name(algorithm, algorithm_names(), "algorithm")
    return getattr(algos, algorithm)(recipe=recipe).config


def _known_fields(config: Any) -> dict[str, _Known]:
    """Returns the fields of a config and of its policy by name."""
    owners = [config.policy, config] if hasattr(config, "policy") else [config]
    return {
        field.name: _Known(
            type(owner),
            getattr(owner, field.name),
            field.metadata.get("dataclasses_json") or {},
        )
        for owner in owners
        for field in dataclasses.fields(owner)
        if field.name != "policy"
    }


def _is_part(value: Any) -> bool:
    """Whether this is a mapping in a file, of fields of a class that is known."""
    return dataclasses.is_dataclass(value) and not isinstance(value, DynamicConfig | type)


def _to_plain(value: Any, codec: Mapping[str, Any]) -> Any:
    """Returns a value in its file form."""
    if encode := codec.get("encoder"):
        if getattr(value, "built", True):
            return encode(codec["decoder"](encode(value)))  # 0 is 0.0 where it is a float
        # d3rlpy cannot save a scaler whose numbers are not known yet.
        params = {k: v for k, v in vars(value).items() if v is not None}
        return {"type": value.get_type(), "params": params}
    return _as_lists(dataclasses.asdict(value)) if _is_part(value) else value


def _as_lists(value: object) -> Any:
    """Returns nested values as a file holds them: without tuples, which it would give as lists."""
    if isinstance(value, dict):
        return {name: _as_lists(part) for name, part in value.items()}
    return [_as_lists(part) for part in value] if isinstance(value, list | tuple) else value
