from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

import spin_d3rlpy.algos
from spin_d3rlpy.files.results import read_json
from spin_d3rlpy.files.yaml_settings import (
    check_values,
    create,
    format_settings,
    merge,
    nest,
    read_settings,
)
from spin_d3rlpy.runs.settings import (
    TrainSettings,
    algorithm_names,
    create_algorithm,
    train_settings,
)


@dataclasses.dataclass(frozen=True)
class Example:
    name: str
    rate: float = 0.5
    count: int | None = None
    mode: Literal["a", "b"] = "a"
    tasks: list[str] = dataclasses.field(default_factory=list)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_what_is_printed_can_be_read(tmp_path: Path) -> None:
    settings = Example("x", 1e-4, None, "b", ["t"], {"width": 3, "inner": {"p": 0.1}})
    path = tmp_path / "settings.yaml"
    path.write_text(format_settings(settings))
    assert create(Example, read_settings(path), "here") == settings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": "x", "naem": 1}, "no 'naem'. Near matches: name"),
        ({"name": 3}, "name to be a text, got 3"),
        ({"name": "x", "rate": "fast"}, "rate to be a number, got 'fast'"),
        ({"name": "x", "rate": True}, "rate to be a number"),
        ({"name": "x", "count": 1.5}, "count to be a whole number or null"),
        ({"name": "x", "mode": "c"}, "mode to be 'a' or 'b', got 'c'"),
        ({"name": "x", "tasks": "t"}, "tasks to be a list, each entry a text"),
        ({"name": "x", "tasks": [1]}, "tasks to be a list, each entry a text"),
        ({"name": "x", "fields": 1}, "fields to be a mapping"),
        ({}, "name must be given"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        create(Example, values, "bench.yaml")
    assert str(caught.value).startswith("bench.yaml: ")


def test_whole_numbers_are_numbers() -> None:
    check_values(Example, {"rate": 1}, "here")


@pytest.mark.parametrize("text", ["- 1\n", "a: [", "3: 4", "\x00"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"settings\.yaml"):
        read_settings(path)


def test_nothing_of_a_yaml_file_is_run(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"a: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]\n")
    with pytest.raises(ValueError, match=r"settings\.yaml"):
        read_settings(path)
    assert not (tmp_path / "made").exists()


def test_dotted_names_nest_and_merge() -> None:
    nested = nest({"a.b": 1, "a.c": 2, "d": 3})
    assert nested == {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge({"a": {"b": 0, "e": 4}, "d": {"x": 1}}, nested) == {
        "a": {"b": 1, "c": 2, "e": 4},
        "d": 3,
    }


@pytest.mark.parametrize(
    "recipe", ["tuned", *(pytest.param(r, marks=pytest.mark.slow) for r in ("published", "smoke"))]
)
@pytest.mark.parametrize("algorithm", algorithm_names())
def test_complete_settings_say_everything_a_recipe_does(algorithm: str, recipe: str) -> None:
    values = {"dataset": "x", "algorithm": algorithm, "recipe": recipe}
    settings = train_settings(values, "here")
    # What is complete needs no recipe; it goes through a file of text unchanged.
    written = yaml.safe_load(format_settings(settings))
    assert train_settings({**written, "recipe": "published"}, "here").fields == settings.fields
    built = create_algorithm(algorithm, settings.fields)
    expected = getattr(spin_d3rlpy.algos, algorithm)(recipe=recipe).config
    expected.n_steps = built.config.n_steps
    assert built.config == expected
    if recipe == "published":
        assert built.config == type(built)().config


def test_expected_values_are_said_in_words() -> None:
    @dataclasses.dataclass
    class Sizes:
        rows: int | None = None
        share: float = 1.0
        names: list[str] = dataclasses.field(default_factory=list)
        mode: Literal["greedy", "sample"] = "greedy"

    sentences = {
        "rows": "expected rows to be a whole number or null, got 'x'",
        "share": "expected share to be a number, got 'x'",
        "names": "expected names to be a list, each entry a text, got 'x'",
        "mode": "expected mode to be 'greedy' or 'sample', got 'x'",
    }
    for name, sentence in sentences.items():
        with pytest.raises(ValueError, match=re.escape(sentence)):
            check_values(Sizes, {name: "x"}, "a.yaml")


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_a_file_that_is_nested_too_deeply_says_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    depth = 3_000 if name == "a.yaml" else 200_000  # too deep for every version of Python
    path.write_text("[" * depth + "]" * depth)
    read = read_settings if name == "a.yaml" else read_json
    with pytest.raises(ValueError, match=rf"{name} is nested too deeply"):
        read(path)


@pytest.mark.parametrize("text", ["[1]", "{", "1" * 5_000, '"\\ud800'])
def test_a_file_that_is_no_json_object_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"a\.json"):
        read_json(path)


def test_a_long_value_is_cut_in_a_message(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("- " + "x" * 100_000)
    with pytest.raises(ValueError, match="lines of `name: value`") as caught:
        read_settings(path)
    assert len(str(caught.value)) < 600
    with pytest.raises(ValueError, match="Expected episodes of at least 1") as caught:
        create(TrainSettings, {"dataset": "x", "episodes": -(10**5000)}, "options")
    assert len(str(caught.value)) < 600
