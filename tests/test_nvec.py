from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from spin_d3rlpy.errors import InvalidActionSpaceError, NvecMismatchError
from spin_d3rlpy.nvec import (
    SlotLayout,
    actions_of,
    choices_of,
    nvec_from_space,
    require_same_nvec,
)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.MultiDiscrete([3, 5, 2]), [3, 5, 2]),
        (spaces.MultiBinary(4), [2, 2, 2, 2]),
        (spaces.Discrete(7), [7]),
        (spaces.Discrete(7, start=-2), [7]),
        (spaces.MultiDiscrete([3, 2], start=[1, 0]), [3, 2]),
    ],
)
def test_discrete_spaces_have_an_nvec(space: spaces.Space[object], expected: list[int]) -> None:
    assert nvec_from_space(space) == expected


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (3,)), "spin_envs.DiscretizeAction"),
        (spaces.MultiDiscrete(np.array([[3, 2]])), "spin_envs.FlattenAction"),
        (spaces.MultiBinary([2, 2]), "spin_envs.FlattenAction"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "spin_envs.FlattenAction"),
        (spaces.Tuple([spaces.Discrete(2)]), "spin_envs.FlattenAction"),
    ],
)
def test_other_spaces_are_refused(space: spaces.Space[object], message: str) -> None:
    with pytest.raises(InvalidActionSpaceError, match=message):
        nvec_from_space(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([3, 5], start=[2, -1]),
        spaces.MultiBinary(4),
        spaces.Discrete(7, start=3),
        spaces.Discrete(2),
    ],
    ids=str,
)
def test_actions_and_choices_are_each_others_inverse(space: spaces.Space[object]) -> None:
    nvec = np.array(nvec_from_space(space))
    assert space.contains(actions_of(space, nvec - 1))
    assert space.contains(actions_of(space, nvec * 0))
    assert (choices_of(space, actions_of(space, nvec - 1)) == nvec - 1).all()
    assert actions_of(space, np.stack([nvec - 1] * 5)).shape == (5, *(space.shape or ()))


@pytest.mark.parametrize("nvec", [[], [3, 0]])
def test_impossible_nvecs_are_refused(nvec: list[int]) -> None:
    with pytest.raises(InvalidActionSpaceError, match="nvec"):
        SlotLayout(nvec)


def test_disagreement_names_both_sides() -> None:
    with pytest.raises(NvecMismatchError, match=r"The ASM has nvec=\[3\].*the env has nvec=\[4\]"):
        require_same_nvec([3], [4], "The ASM", "the env")


@pytest.mark.parametrize("nvec", [[3, 5, 2], [4, 4], [1], [1000, 2], [2] * 64])
def test_layout_splits_gathers_and_finds_the_best(nvec: list[int]) -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(7, sum(nvec)))
    actions = rng.integers(nvec, size=(7, len(nvec)))
    by_slot = np.split(flat, np.cumsum(nvec)[:-1], axis=1)
    slot_layout = SlotLayout(nvec)
    tensor = torch.from_numpy(flat)
    split = slot_layout.split(tensor)
    assert split.shape == (7, len(nvec), max(nvec))
    for i, m in enumerate(nvec):
        assert np.array_equal(split[:, i, :m], by_slot[i])
        assert (split[:, i, m:] == -np.inf).all()
    chosen = slot_layout.gather(tensor, torch.from_numpy(actions)).numpy()
    best = slot_layout.argmax(tensor).numpy()
    for i in range(len(nvec)):
        assert np.array_equal(chosen[:, i], by_slot[i][np.arange(7), actions[:, i]])
        assert np.array_equal(best[:, i], by_slot[i].argmax(1))


def test_layout_is_not_saved_with_weights() -> None:
    assert SlotLayout([3, 5, 2]).state_dict() == {}
