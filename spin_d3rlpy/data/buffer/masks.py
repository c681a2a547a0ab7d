"""Masks of states: which choices of each slot may be made there, as bits.

A mask `(N, K)` is True where a choice may be made; entries past a slot's last choice are not read.
Eight choices of the flat vector of all slots' choices take a byte.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.nvec import SlotLayout

INFO = "action_mask"  # what environments call the masks in `info`
BITS_KEY = "action_mask_bits"  # infos of an episode in Minari's format

Bits = NDArray[np.uint8]


def bytes_of(nvec: Sequence[int]) -> int:
    """Returns the bytes of a state's bits."""
    return (sum(nvec) + 7) // 8


def pack(masks: NDArray[Any], nvec: Sequence[int], what: str = "masks") -> Bits:
    """Returns masks `(R, N, K)`, or flat ones `(R, S)`, as bits `(R, bytes)`.

    Raises:
        InvalidDatasetError: another shape or type; `what` says whose masks they are.
    """
    masks = np.asarray(masks)
    expected = (len(nvec), max(nvec))
    is_flat = masks.ndim == 2 and masks.shape[1] == sum(nvec)
    if not is_flat and (masks.ndim != 3 or masks.shape[1:] != expected):
        raise InvalidDatasetError(
            f"Expected {what} of shape (rows, N, K) = (rows, {expected[0]}, {expected[1]}), one "
            f"entry for each choice, or flat (rows, {sum(nvec)}), got shape {masks.shape}."
        )
    if masks.dtype.kind not in "biuf" or not np.isin(masks, (0, 1)).all():
        raise InvalidDatasetError(f"Expected {what} of True and False, or 1 and 0.")
    flat = masks if is_flat else masks[:, is_choice(nvec)]
    return np.packbits(flat.astype(bool), axis=1)


def unpack(bits: torch.Tensor, nvec: Sequence[int]) -> torch.Tensor:
    """Returns masks `(R, N, K)` bool of bits `(R, bytes)`; False past a slot's last choice."""
    return Unpacking(nvec).to(bits.device)(bits)


class Unpacking:
    """`unpack` with its tables on a device, so that no call brings any there."""

    def __init__(self, nvec: Sequence[int]) -> None:
        slot_layout = SlotLayout(nvec)
        self._place = slot_layout.padded_index // 8  # (N, K)
        self._shift = (7 - slot_layout.padded_index % 8).to(torch.uint8)
        self._is_choice = ~slot_layout.padding

    def to(self, device: torch.device) -> Unpacking:
        """Returns the same on a device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            setattr(moved, name, value.to(device))
        return moved

    def __call__(self, bits: torch.Tensor) -> torch.Tensor:
        """Returns masks `(R, N, K)` of bits `(R, bytes)`."""
        return ((bits[:, self._place] >> self._shift) & 1).bool() & self._is_choice


def is_choice(nvec: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which entries of a mask are choices of this action space, `(N, K)`."""
    return np.asarray(np.arange(max(nvec)) < np.asarray(nvec)[:, None])


def first_forbidden(
    bits: Bits, actions: NDArray[np.integer[Any]], nvec: Sequence[int]
) -> tuple[int, int, int] | None:
    """Returns row and slot of the first action `(R, N)` that its mask forbids, and how many do.

    None if all are allowed.
    """
    places = actions.astype(np.int64) + np.cumsum([0, *nvec[:-1]])  # (R, N)
    allowed = np.take_along_axis(bits, places // 8, axis=1) >> (7 - places % 8) & 1
    wrong = np.argwhere(allowed == 0)
    if not len(wrong):
        return None
    return int(wrong[0, 0]), int(wrong[0, 1]), len(np.unique(wrong[:, 0]))


def forbidden_choices(
    masks: NDArray[np.bool_], actions: NDArray[np.integer[Any]]
) -> NDArray[np.bool_]:
    """Returns which choices of actions `(B, N)` their masks `(B, N, K)` forbid, `(B, N)`."""
    allowed = np.take_along_axis(masks, actions.astype(np.int64)[..., None], axis=2)
    return np.asarray(~allowed[..., 0])


def check_logged(
    bits: Bits, actions: NDArray[np.integer[Any]], nvec: Sequence[int], name: str
) -> None:
    """Checks an episode's T actions by the masks of its states.

    Raises:
        InvalidDatasetError: an action is forbidden; the text names step and slot.
    """
    forbidden = first_forbidden(bits[: len(actions)], actions, nvec)
    if forbidden is not None:
        step, slot, count = forbidden
        raise InvalidDatasetError(
            f"Slot {slot} at step {step} of {name} is {actions[step, slot]}, which the mask "
            f"of its state forbids ({count} such steps in this episode). Expected masks that allow "
            "what was done: look whether they belong to the state before the action, and correct "
            "them or leave out the episode."
        )


def open_where_empty(bits: Bits, nvec: Sequence[int]) -> Bits:
    """Returns bits in which slots without any allowed choice allow all of theirs.

    Environments give such masks after the last action, where nothing is chosen.
    """
    masks = unpack(torch.from_numpy(bits), nvec).numpy()
    empty = ~masks.any(2, keepdims=True)
    return pack(masks | empty, nvec) if empty.any() else bits


def mask_of_info(info: Mapping[str, Any], nvec: Sequence[int]) -> NDArray[np.bool_] | None:
    """Returns the mask `(N, K)` that an environment gives with a state; None if it gives none.

    It may be an array `(N, K)`, or as Gymnasium's spaces take it, one array for each slot, or flat
    `(S,)`, slot after slot's choices, as other libraries have it.

    Raises:
        InvalidDatasetError: another shape or other values.
    """
    given = info.get(INFO)
    if given is None:
        return None
    mask = np.zeros((len(nvec), max(nvec)), np.int64)
    rows = list(given)
    if len(rows) == sum(nvec) and all(np.ndim(entry) == 0 for entry in rows):
        rows = np.split(np.asarray(given), np.cumsum(nvec)[:-1])
    lengths = [len(np.atleast_1d(row)) for row in rows]
    if len(rows) != len(nvec) or any(
        n not in (m, max(nvec)) for n, m in zip(lengths, nvec, strict=True)
    ):
        raise InvalidDatasetError(
            f"Expected info[{INFO!r}] of shape (N, K) = {mask.shape}, or one array for each slot's "
            f"choices, or flat ({sum(nvec)},), nvec={list(nvec)}; got {given!r:.200}."
        )
    for slot, row in enumerate(rows):
        mask[slot, : lengths[slot]] = row
    checked = pack(mask[None], nvec, f"info[{INFO!r}]")
    return np.asarray(unpack(torch.from_numpy(checked), nvec)[0].numpy())
