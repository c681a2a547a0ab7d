"""Writes `spin_d3rlpy/algos/named.pyi`: `python -m tests.typing.stubs`.

Named algorithms and configs take the fields of their policy, too. A type checker cannot derive
that from the classes, so this stub lists them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections import defaultdict
from pathlib import Path
from typing import Any

from spin_d3rlpy.algos import named

STUB = Path(named.__file__).with_suffix(".pyi")
POLICY = "actor_encoder_factory"


class Source:
    """Python source of type annotations, and the imports that they need."""

    def __init__(self) -> None:
        self.imports: defaultdict[str, set[str]] = defaultdict(set)

    def name(self, value: Any) -> str:
        """The name of a class, imported."""
        if value.__module__ != "builtins":
            self.imports[value.__module__].add(value.__qualname__)
        return str(value.__qualname__)

    def annotation(self, hint: Any) -> str:
        """An annotation as source."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any:
            self.imports["typing"].add("Any")
            return "Any"
        if hint is type(None):
            return "None"
        if origin is None:
            return self.name(hint)
        if origin in (typing.Union, types.UnionType):
            return " | ".join(map(self.annotation, arguments))
        if origin is typing.Literal:
            self.imports["typing"].add("Literal")
            return f"Literal[{', '.join(map(repr, arguments))}]"
        if origin is collections.abc.Callable:
            self.imports["collections.abc"].add("Callable")
            parameters, result = arguments
            given = ", ".join(map(self.annotation, parameters))
            return f"Callable[[{given}], {self.annotation(result)}]"
        return f"{self.name(origin)}[{', '.join(map(self.annotation, arguments))}]"

    def fields(self, dataclass: Any) -> dict[str, str]:
        """The annotations of a dataclass's fields."""
        hints = typing.get_type_hints(dataclass)
        return {f.name: self.annotation(hints[f.name]) for f in dataclasses.fields(dataclass)}


def typed_dict(name: str, bases: list[str], fields: dict[str, str]) -> str:
    """The source of a dictionary type, none of whose keys is required."""
    body = [f"    {field}: {annotation}" for field, annotation in fields.items()] or ["    ..."]
    return "\n".join([f"class {name}({', '.join(bases)}, total=False):", *body])


def stub() -> str:
    """Returns the stub's source."""
    source = Source()
    source.imports["typing"] |= {"TypedDict", "Unpack"}
    source.imports["pathlib"].add("Path")
    source.imports["d3rlpy.base"].add("DeviceArg")
    source.imports["spin_d3rlpy.asm.model"].add("ActionStructureModel")
    parts: dict[str, str] = {}  # by name
    members: dict[str, Any] = dict(vars(named))
    for name, algorithm in members.items():
        if not inspect.isclass(algorithm) or algorithm.__module__ != named.__name__:
            continue
        if dataclasses.is_dataclass(algorithm):
            continue
        config: Any = vars(algorithm)["config_class"]
        objective, objective_config = algorithm.__mro__[1], config.__mro__[1]
        factory = type(config().actor_encoder_factory)
        # A factored policy is made of any encoder factory.
        declared = typing.get_type_hints(config)[POLICY]
        policy = factory.__name__.removesuffix("EncoderFactory")
        objective_fields, policy_fields = f"_{objective.__name__}Fields", f"_{policy}Fields"
        own = source.fields(objective_config)
        del own[POLICY]
        parts[objective_fields] = typed_dict(objective_fields, ["TypedDict"], own)
        of_policy = {POLICY: source.annotation(declared), **source.fields(factory)}
        parts[policy_fields] = typed_dict(policy_fields, ["TypedDict"], of_policy)
        parts[f"_{policy}"] = "\n".join(
            [f"class _{policy}:"]
            + [f"    {field}: {of}" for field, of in of_policy.items() if field != POLICY]
            + ["    ..."] * (len(of_policy) == 1)
        )
        both = f"_{name}Fields"
        parts[both] = typed_dict(both, [objective_fields, policy_fields], {})
        parts[config.__name__] = (
            f"class {config.__name__}(_{policy}, {source.name(objective_config)}):\n"
            f"    {POLICY}: {of_policy[POLICY]}\n"
            f"    def __init__(self, **fields: Unpack[{both}]) -> None: ..."
        )
        parts[name] = (
            f"class {name}({source.name(objective)}):\n"
            f"    config_class: type[{config.__name__}]\n"
            "    @property\n"
            f"    def config(self) -> {config.__name__}: ...\n"
            "    def __init__(\n"
            "        self,\n"
            f"        config: {config.__name__} | None = ...,\n"
            "        device: DeviceArg = ...,\n"
            "        enable_ddp: bool = ...,\n"
            "        asm: ActionStructureModel | str | Path | None = ...,\n"
            "        recipe: str = ...,\n"
            f"        **fields: Unpack[{both}],\n"
            "    ) -> None: ..."
        )
    for name in ("factored_encoder", "factored_encoder_of_bcq"):
        result = source.annotation(typing.get_type_hints(getattr(named, name))["return"])
        parts[name] = f"def {name}() -> {result}: ..."
    imports = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(source.imports.items())
    ]
    head = "# Written by `python -m tests.typing.stubs`; do not edit."
    return "\n".join([head, *imports, "", *parts.values(), ""])


if __name__ == "__main__":
    STUB.write_text(stub())
