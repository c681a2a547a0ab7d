"""Dataset names: what they mean, and what an unknown one is answered with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from minari.dataset.minari_dataset import parse_dataset_id

from spin_d3rlpy.data import DatasetSpec, buildable_datasets, parse_name
from spin_d3rlpy.errors import DatasetNotFoundError

ROOT = "spin/cheetah-run-b3"
MAZE = "spin/maze-a3"


def _counts(spec: DatasetSpec) -> dict[str, int | None]:
    return {part.kind: part.n_episodes for part in spec.parts}


@pytest.mark.parametrize(
    ("level", "size", "counts"),
    [
        ("random", 1_000_000, {"random": 1000}),
        ("medium", 1_000_000, {"medium": 1000}),
        ("expert", 1_000_000, {"expert": 1000}),
        ("medium-expert", 2_000_000, {"medium": 1000, "expert": 1000}),
        ("random-medium-expert", 200_000, {"random": 90, "medium": 90, "expert": 20}),
    ],
)
def test_levels_have_their_size_and_composition(
    level: str, size: int, counts: dict[str, int]
) -> None:
    spec = parse_name(f"{ROOT}/{level}-v0")
    assert (spec.size, _counts(spec)) == (size, counts)
    assert list(_counts(spec)) == list(counts)
    assert (spec.task.env_id, spec.task.env_kwargs) == ("spin/cheetah-run-v0", {"bins": 3})


@pytest.mark.parametrize(
    ("level", "size", "transitions"),
    [
        ("medium", 100_000, {"medium": 100_000}),
        ("medium-expert", 200_000, {"medium": 100_000, "expert": 100_000}),
        ("random-medium-expert", 20_000, {"random": 9_000, "medium": 9_000, "expert": 2_000}),
    ],
)
def test_the_maze_has_actuators_and_parts_in_transitions(
    level: str, size: int, transitions: dict[str, int]
) -> None:
    spec = parse_name(f"{MAZE}/{level}-v0")
    assert (spec.task.env_id, spec.task.env_kwargs) == ("spin/maze-v0", {"actuators": 3})
    assert (spec.size, spec.name) == (size, f"{MAZE}/{level}-v0")
    assert {part.kind: part.n_transitions for part in spec.parts} == transitions
    assert {part.n_episodes for part in spec.parts} == {None}


def test_a_maze_dataset_of_the_suites_size_has_it_in_its_name() -> None:
    spec = parse_name(f"{MAZE}/expert-v0", 1_000_000)
    assert spec.name == f"{MAZE}/expert-1000k-v0"
    assert parse_name(spec.name) == spec


@pytest.mark.parametrize(
    ("level", "size", "counts"),
    [
        ("random-medium-expert", 20_000, {"random": 9, "medium": 9, "expert": 2}),
        ("random-medium-expert", 5_000, {"random": 2, "medium": 2, "expert": 1}),
        ("random-medium-expert", 4_000, {"random": 2, "medium": 1, "expert": 1}),
        ("random-medium-expert", 3_000, {"random": 1, "medium": 1, "expert": 1}),
        ("random-medium-expert", 1_000, {"random": 1}),
        ("medium-expert", 7_000, {"medium": 4, "expert": 3}),
        ("medium-expert", 1_000, {"medium": 1}),
    ],
)
def test_smaller_sizes_keep_the_proportions(level: str, size: int, counts: dict[str, int]) -> None:
    assert _counts(parse_name(f"{ROOT}/{level}-v0", size)) == counts


@pytest.mark.parametrize(
    ("size", "shares"),
    [
        (1_000, [450, 450, 100]),
        (3_000, [1_350, 1_350, 300]),
        (5_000, [2_250, 2_250, 500]),
        (20_000, [9_000, 9_000, 2_000]),
    ],
)
def test_small_datasets_of_the_maze_have_shorter_shares(size: int, shares: list[int]) -> None:
    parts = parse_name(f"{MAZE}/random-medium-expert-v0", size).parts
    assert [part.n_transitions for part in parts] == shares


def test_a_size_becomes_part_of_the_name_and_is_read_back() -> None:
    sizes = [1_000, 7_000, 20_000, 123_000, 1_000_000, 1_999_000]
    specs = [parse_name(f"{ROOT}/medium-expert-v0", size) for size in sizes]
    names = [spec.name for spec in specs]
    assert names[2] == f"{ROOT}/medium-expert-20k-v0"
    assert len(set(names)) == len(names)
    for name, spec in zip(names, specs, strict=True):
        assert parse_name(name) == spec
        assert parse_dataset_id(name)[0] == ROOT


@pytest.mark.parametrize(
    ("name", "arguments", "first_seed"),
    [
        ("cone-d8-p50", {"dimensions": 8, "pits": 0.5, "placement": 0}, 4_000_000),
        ("cone-d4-n5-s2", {"dimensions": 4, "pits": 5, "placement": 2}, 24_000_000),
    ],
)
def test_cones_data_have_exactly_their_size_and_seeds_by_placement(
    name: str, arguments: dict[str, Any], first_seed: int
) -> None:
    spec = parse_name(f"spin/{name}/mixed-v0")
    assert (spec.task.env_id, spec.task.env_kwargs) == ("spin/cone-v0", arguments)
    assert (spec.name, spec.size) == (f"spin/{name}/mixed-v0", 10_000)
    assert spec.policy_names() == {"mixed": f"{name}-mixed"}
    (part,) = spec.parts
    assert (part.n_transitions, part.is_cut, part.first_seed) == (10_000, True, first_seed)
    assert parse_name(spec.name, 3_000).name == f"spin/{name}/mixed-3k-v0"
    assert not parse_name(f"spin/{name}/random-v0").parts[0].is_cut


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spin/cone-d8-p50/medium-v0", "no behavior policy cone-d8-p50-medium. Cone has .*mixed"),
        ("spin/slate-n5/mixed-v0", "Slate has random, expert, medium"),
        ("spin/cheetah-run-b3/mixed-v0", "no behavior policy cheetah-run-b3-mixed"),
        ("spin/cone-d8/mixed-v0", "cone-d<dimensions>-p<per cent of pits>/mixed"),
        ("spin/cone-d2-n10/mixed-v0", "cone-d<dimensions>-n<pits>"),
        ("spin/cone-d12-p50/mixed-v0", "cone-d<dimensions>-p<per cent of pits>"),
    ],
)
def test_levels_and_tasks_that_do_not_exist(name: str, reason: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=reason):
        parse_name(name)


def test_the_published_size_has_one_name_however_it_is_asked_for() -> None:
    name = f"{ROOT}/medium-v0"
    assert parse_name(name, 1_000_000).name == name
    assert parse_name(f"{ROOT}/medium-1000k-v0").name == name


def test_levels_share_the_seeds_of_a_policy_and_no_seed_is_used_by_two() -> None:
    medium, expert = (parse_name(f"{ROOT}/{x}-v0").parts[0] for x in ("medium", "expert"))
    assert parse_name(f"{ROOT}/medium-expert-v0").parts == [medium, expert]
    mix = parse_name(f"{ROOT}/random-medium-expert-v0").parts
    assert mix[1].seeds == medium.seeds[:90]
    seeds = [s for part in (mix[0], medium, expert) for s in part.seeds]
    assert len(set(seeds)) == len(seeds)


def test_what_can_be_built_follows_from_the_policies() -> None:
    levels = ["random", "medium", "expert", "medium-expert", "random-medium-expert"]
    assert buildable_datasets() == [
        *(f"{ROOT}/{level}-v0" for level in levels),
        "spin/finger-spin-b3/random-v0",
        "spin/finger-spin-b3/expert-v0",
        *(f"{MAZE}/{level}-v0" for level in levels),
    ]


def test_random_actions_need_no_policy() -> None:
    spec = parse_name("spin/dog-trot-b100/random-v0", 2_000)
    assert (spec.name, spec.policy_names()) == ("spin/dog-trot-b100/random-2k-v0", {})
    assert _counts(spec) == {"random": 2}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        (f"{ROOT}/medium-experts-v0", f"{ROOT}/medium-expert-v0"),
        (f"{ROOT}/medium-expert", f"{ROOT}/medium-expert-v0"),
        ("spin/cheetah-run-b5/expert-v0", f"{ROOT}/expert-v0"),
        ("spin/chetah-run-b3/medium-v0", f"{ROOT}/medium-v0"),
        ("spin/finger-spin-b3/medium-v0", "spin/finger-spin-b3/expert-v0"),
        ("spin/chetah-run-b3/random-v0", f"{ROOT}/random-v0"),
        ("spin/utter nonsense", f"{ROOT}/medium-v0"),
        ("spin/maze-b3/medium-v0", f"{MAZE}/medium-v0"),
        ("spin/maze-a4/medium-v0", f"{MAZE}/medium-v0"),
    ],
)
def test_unknown_names_are_answered_with_near_matches(name: str, near: str) -> None:
    with pytest.raises(DatasetNotFoundError) as error:
        parse_name(name)
    assert name in str(error.value)
    assert near in str(error.value)


@pytest.mark.parametrize("size", [0, -1000, 500, 1500, 2_001_000])
def test_sizes_that_are_no_number_of_episodes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 1000.*got {size}"):
        parse_name(f"{ROOT}/medium-expert-v0", size)


def test_two_sizes_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="contradicts"):
        parse_name(f"{ROOT}/medium-20k-v0", 10_000)


@pytest.mark.parametrize("size", [2000.0, 1500, 0, "2000"])
def test_a_size_that_is_no_number_of_thousands_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=f"multiple of 1000 up to 1000000.*got {size!r}"):
        parse_name(f"{ROOT}/medium-v0", size)
    assert parse_name(f"{ROOT}/medium-v0", np.int64(2000)).size == 2000  # type: ignore[arg-type]
