"""What a training or pre-training is, as plain values that a YAML file can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from d3rlpy.serializable_config import DynamicConfig

from spin_d3rlpy import algos
from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.asm import PretrainingConfig, TransformerConfig
from spin_d3rlpy.metrics import ActionMode
from spin_d3rlpy.policies import PolicyFactory
from spin_d3rlpy.presets import Preset, get_preset
from spin_d3rlpy.settings import check_name, check_values, create, merge


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What a training is; all that its numbers depend on except versions and machine.

    Args:
        dataset: name or path, as in `load_dataset`.
        algorithm: class in `spin_d3rlpy`, e.g. `"SPINIQL"`.
        fields: its config fields, nested ones (`transformer`, `pretraining`, `distillation`,
            `sizes`) as mappings. What is missing has the class's default, the published value.
        asm: file of a pre-trained model for algorithms that can take one over.
        size: transitions of the dataset; the usual size if None.
        n_steps: gradient steps.
        n_steps_per_epoch: gradient steps between evaluations.
        episodes: of an evaluation.
        evaluation_seed: of an evaluation's first episode.
        mode: whether evaluations act greedily or sample.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        checkpoint_interval: steps between checkpoints.
    """

    dataset: str
    algorithm: str = "SPINIQL"
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    asm: str | None = None
    size: int | None = None
    n_steps: int = 1_000_000
    n_steps_per_epoch: int = 5_000
    episodes: int = 10
    evaluation_seed: int = 100
    mode: ActionMode = "greedy"
    seed: int = 0
    device: str = "cpu:0"
    checkpoint_interval: int = 1_000


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """What a pre-training of an Action Structure Model is.

    Args:
        dataset: name or path, as in `load_dataset`.
        transformer: fields of `TransformerConfig`.
        pretraining: fields of `PretrainingConfig`.
        size: transitions of the dataset; the usual size if None.
        seed: of networks and mini-batches.
        device: as in d3rlpy.
        checkpoint_interval: updates between checkpoints.
    """

    dataset: str
    transformer: dict[str, Any] = dataclasses.field(default_factory=dict)
    pretraining: dict[str, Any] = dataclasses.field(default_factory=dict)
    size: int | None = None
    seed: int = 0
    device: str = "cpu:0"
    checkpoint_interval: int = 1_000


def algorithm_names() -> list[str]:
    """Names of the algorithms that can be trained."""
    return sorted(
        name
        for name, value in vars(algos).items()
        if isinstance(value, type)
        and issubclass(value, MultiDiscreteAlgo)
        and "config_class" in vars(value)
    )


def train_settings(values: Mapping[str, Any], preset: str, source: str) -> TrainSettings:
    """Completes settings: the preset's sizes under `values`, the classes' defaults under both.

    Args:
        values: fields of `TrainSettings`.
        preset: name in `spin_d3rlpy.presets.PRESETS`.
        source: what the values are, for messages.

    Raises:
        ValueError: unknown names, values of other types, no dataset.
    """
    sizes = get_preset(preset)
    base = {"n_steps": sizes.n_steps, "n_steps_per_epoch": sizes.n_steps_per_epoch}
    settings = create(TrainSettings, {**base, **values}, source)
    of_asm = {"transformer", "pretraining"} if settings.asm is not None else set()
    if given := sorted(of_asm & settings.fields.keys()):
        raise ValueError(f"{source}: {' and '.join(given)} come with the ASM, leave them out.")
    fields = merge(_preset_fields(settings.algorithm, sizes), settings.fields)
    complete = _complete_fields(create_algorithm(settings.algorithm, fields))
    kept = {name: value for name, value in complete.items() if name not in of_asm}
    return dataclasses.replace(settings, fields=kept)


def pretrain_settings(values: Mapping[str, Any], preset: str, source: str) -> PretrainSettings:
    """The same for a pre-training."""
    sizes = get_preset(preset)
    settings = create(PretrainSettings, values, source)
    of_preset = (dataclasses.asdict(part) for part in (sizes.transformer, sizes.pretraining))
    transformer, pretraining = (
        merge(base, changes)
        for base, changes in zip(
            of_preset, (settings.transformer, settings.pretraining), strict=True
        )
    )
    create(TransformerConfig, transformer, "transformer")
    create(PretrainingConfig, pretraining, "pretraining")
    return dataclasses.replace(settings, transformer=transformer, pretraining=pretraining)


def create_algorithm(name: str, fields: Mapping[str, Any], device: str = "cpu:0") -> Any:
    """Creates an algorithm from plain values.

    Args:
        name: its class in `spin_d3rlpy`.
        fields: config fields and those of the policy's encoder factory, as in `TrainSettings`.
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
        if field in nested and isinstance(value, Mapping):
            value = create(nested[field], value, field)
        check_values(type(config if field in own else encoder), {field: value}, source)
        built[field] = value
    return getattr(algos, name)(device=device, **built)


def _default_parts(algorithm: str) -> tuple[Any, Any]:
    """Returns an algorithm's default config and, if it has fields a file can hold, its encoder."""
    check_name(algorithm, algorithm_names(), "algorithm")
    return _parts(getattr(algos, algorithm).config_class())


def _parts(config: Any) -> tuple[Any, Any]:
    encoder = getattr(config, "actor_encoder_factory", None)
    return config, encoder if isinstance(encoder, PolicyFactory) else None


def _nested_configs(config: Any, encoder: Any) -> dict[str, type[Any]]:
    """Returns the classes of the fields that are mappings in a file."""
    values = {**(vars(encoder) if encoder else {}), **vars(config)}
    return {
        name: type(value)
        for name, value in values.items()
        if dataclasses.is_dataclass(value) and not isinstance(value, DynamicConfig)
    }


def _preset_fields(algorithm: str, sizes: Preset) -> dict[str, Any]:
    """Returns a preset in terms of an algorithm's fields."""
    config, encoder = _default_parts(algorithm)
    nested = _nested_configs(config, encoder)
    fields: dict[str, Any] = {"batch_size": sizes.batch_size, "precision": sizes.precision}
    transformer = dataclasses.asdict(sizes.transformer)
    pretraining = dataclasses.asdict(sizes.pretraining)
    if "transformer" in nested:
        fields["transformer"] = transformer
    if "sizes" in nested:  # of another network than ours: names that they share
        shared = {field.name for field in dataclasses.fields(nested["sizes"])}
        fields["sizes"] = {k: v for k, v in transformer.items() if k in shared}
    if "pretraining" in nested:
        same = nested["pretraining"] is type(sizes.pretraining)
        fields["pretraining"] = (
            pretraining if same else {k: pretraining[k] for k in ("max_updates", "precision")}
        )
    if "distillation" in nested and sizes.pretraining.max_updates is not None:
        fields["distillation"] = {"n_updates": sizes.pretraining.max_updates}
    return fields


def _complete_fields(algo: Any) -> dict[str, Any]:
    """Returns an algorithm's fields as a file holds them: what is plain or a mapping of such."""
    config, encoder = _parts(algo.config)
    nested = _nested_configs(config, encoder)
    fields: dict[str, Any] = {}
    for name, value in {**(vars(encoder) if encoder else {}), **vars(config)}.items():
        if name in nested:
            fields[name] = dataclasses.asdict(value)
        elif isinstance(value, bool | int | float | str | list) and name != "n_steps":
            fields[name] = value
    return fields
