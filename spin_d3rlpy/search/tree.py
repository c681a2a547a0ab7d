"""The tree of complete actions that BraVE searches (Landers et al., NeurIPS 2025, section 4)."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spin_d3rlpy.nvec import SlotLayout, as_choices, check_nvec


@dataclasses.dataclass(frozen=True)
class LoggedActions:
    """Distinct actions, e.g. all of a dataset, in as many bits as their choices need.

    Attributes:
        nvec: number of choices of each of the N slots.
        packed: the actions' bits, each action in whole bytes.
    """

    nvec: tuple[int, ...]
    packed: bytes

    @classmethod
    def of(cls, actions: object, nvec: Sequence[int]) -> LoggedActions:
        """Returns the distinct ones of actions `(n, N)`.

        Raises:
            InvalidActionSpaceError: they are not in the action space.
        """
        sizes = check_nvec(nvec)
        rows = np.asarray(actions)
        unique = np.unique(as_choices(rows, (len(rows), len(sizes)), "you", sizes), axis=0)
        is_used, powers = _bits(sizes)
        bits = (unique[:, :, None] & powers) > 0
        return cls(tuple(sizes), np.packbits(bits[:, is_used], axis=1).tobytes())

    def unpack(self) -> NDArray[np.int64]:
        """Returns the actions, `(n, N)`, sorted.

        Raises:
            ValueError: the bits are not those of actions.
        """
        is_used, powers = _bits(self.nvec)
        width = -(-int(is_used.sum()) // 8)
        if width == 0:  # no slot has a choice
            return np.zeros((1, len(self.nvec)), dtype=np.int64)
        if len(self.packed) == 0 or len(self.packed) % width:
            raise ValueError(f"Expected {width} bytes an action, got {len(self.packed)} in all.")
        rows = np.frombuffer(self.packed, dtype=np.uint8).reshape(-1, width)
        bits = np.zeros((len(rows), *is_used.shape), dtype=np.bool_)
        bits[:, is_used] = np.unpackbits(rows, axis=1, count=int(is_used.sum())).astype(np.bool_)
        actions: NDArray[np.int64] = (bits * powers).sum(2)
        if (actions >= self.nvec).any():
            raise ValueError("Expected actions of the action space, got choices beyond it.")
        return actions

    def to_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold, for `from_dict`."""
        return {"nvec": list(self.nvec), "packed": base64.b64encode(self.packed).decode()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LoggedActions:
        """Inverse of `to_dict`.

        Raises:
            ValueError: it is something else.
        """
        try:
            actions = cls(
                tuple(check_nvec(content["nvec"])),
                base64.b64decode(content["packed"], validate=True),
            )
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"Expected logged actions as they are saved, got {error}.") from error
        actions.unpack()
        return actions


def _bits(nvec: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Returns which bits each slot's choices need, `(N, bits)`, and all bits' values, `(bits,)`."""
    sizes = np.array([(m - 1).bit_length() for m in nvec])
    places = np.arange(sizes.max())
    return places < sizes[:, None], 1 << places


@dataclasses.dataclass(frozen=True, eq=False)
class ActionTree:
    """All nodes on the way from the default action to logged ones; M of them.

    A node is a complete action. The root's choices are all 0, the default. A node's child makes one
    choice more that is not 0, in a slot after its last such choice; only children on the way to a
    logged action exist. With binary slots this is a tree of subsets.

    Nodes are numbered by levels and, within a level, by their parent and then by slot and choice,
    so that a node's children follow each other.

    Attributes:
        slot_layout: of the action space.
        depth: most choices of a logged action that are not 0.
        actions: of nodes, `(M, N)`, in the smallest integer type.
        is_logged: `(M,)`, whether a node is itself a logged action.
        parents: `(M,)`; the root is its own.
        ranks: `(M,)`, each node's place among its parent's children, from 0.
        first_children: `(M,)`, number of each node's first child.
        n_children: `(M,)`.
        keys: `(M - 1,)`, ascending: of each node but the root its parent's number times S plus the
            flat position of the choice that it adds.
    """

    slot_layout: SlotLayout
    depth: int
    actions: torch.Tensor
    is_logged: torch.Tensor
    parents: torch.Tensor
    ranks: torch.Tensor
    first_children: torch.Tensor
    n_children: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, logged: LoggedActions) -> ActionTree:
        """Returns the tree of these actions, on the CPU."""
        with torch.device("cpu"):  # also where networks are made on the meta device
            return cls._of(logged)

    @classmethod
    def _of(cls, logged: LoggedActions) -> ActionTree:
        slot_layout = SlotLayout(logged.nvec)
        steps = _steps(slot_layout, torch.from_numpy(logged.unpack()))
        nodes = torch.zeros(len(steps), dtype=torch.int64)  # where each action's path has come to
        levels, n_nodes = [], 1
        for step in steps.unbind(1):
            goes_on = step >= 0
            keys = nodes[goes_on] * slot_layout.total + step[goes_on]
            if len(keys) == 0:
                break
            level, places = keys.unique(return_inverse=True)
            nodes[goes_on] = n_nodes + places
            levels.append(level)
            n_nodes += len(level)
        keys = torch.cat(levels) if levels else nodes.new_empty(0)
        parents = torch.cat([keys.new_zeros(1), keys // slot_layout.total])
        n_children = parents[1:].bincount(minlength=n_nodes)
        first_children = 1 + n_children.cumsum(0) - n_children
        ranks = torch.arange(n_nodes) - first_children[parents]
        ranks[0] = 0
        is_logged = torch.zeros(n_nodes, dtype=torch.bool)
        is_logged[nodes] = True
        return cls(
            slot_layout,
            len(levels),
            _actions(slot_layout, levels),
            is_logged,
            parents,
            ranks,
            first_children,
            n_children,
            keys,
        )

    def to(self, device: str | torch.device) -> ActionTree:
        """Returns the tree on a device."""
        parts = {
            field.name: getattr(self, field.name).to(device)
            for field in dataclasses.fields(self)
            if field.name != "depth"
        }
        return dataclasses.replace(self, **parts)

    def nodes_of(self, actions: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of actions `(B, N)`, `(B,)`; -1 of those that are no nodes."""
        steps = _steps(self.slot_layout, actions)
        nodes, is_node = torch.zeros_like(steps[:, 0]), (steps[:, self.depth :] < 0).all(1)
        for step in steps[:, : self.depth].unbind(1):
            key = nodes * self.slot_layout.total + step
            place = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
            goes_on = step >= 0
            is_node = is_node & (~goes_on | (self.keys[place] == key))
            nodes = torch.where(goes_on, place + 1, nodes)
        return torch.where(is_node, nodes, -1)

    def ancestors(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the ways from nodes `(B,)` to the root, in D = `depth` places.

        Returns:
            The ancestors `(B, D)`, the parent first; the place of the step before among each one's
            children `(B, D)`; and which places are used `(B, D)`: none of the root and of -1.
        """
        found, ranks, is_used = [], [], []
        nodes = nodes.clamp(min=0)
        for _ in range(self.depth):
            ranks.append(self.ranks[nodes])
            is_used.append(nodes > 0)
            nodes = self.parents[nodes]
            found.append(nodes)
        if not found:
            nothing = nodes[:, None][:, :0]
            return nothing, nothing, nothing.bool()
        return torch.stack(found, 1), torch.stack(ranks, 1), torch.stack(is_used, 1)

    def branch_values(self, nodes: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Returns values of children `(..., C)` of nodes `(...)`: `-inf` past the last child.

        Args:
            nodes: numbers.
            outputs: `(..., 1 + C)`, the nodes' own values first.
        """
        values = outputs[..., 1:]
        place = torch.arange(values.shape[-1], device=values.device)
        return values.masked_fill(place >= self.n_children[nodes][..., None], -torch.inf)


def _steps(slot_layout: SlotLayout, actions: torch.Tensor) -> torch.Tensor:
    """Returns the flat positions `(B, N)` of choices that are not 0, in order; then -1."""
    actions = actions.long()
    order = (actions == 0).to(torch.uint8).argsort(dim=1, stable=True)
    steps = torch.where(actions > 0, slot_layout.positions(actions), -1)
    return steps.gather(1, order)


def _actions(slot_layout: SlotLayout, levels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the actions of all nodes, given each level's keys."""
    small = torch.int8 if slot_layout.max_choices <= 128 else torch.int16
    dtype = small if slot_layout.max_choices <= 2**15 else torch.int64
    above = torch.zeros(1, slot_layout.n_slots, dtype=dtype)
    found, first = [above], 0  # number of the level's first node
    for keys in levels:
        position = keys % slot_layout.total
        slot = slot_layout.slot_of[position]
        choice = (position - slot_layout.offsets[slot]).to(dtype)
        actions = above[keys // slot_layout.total - first]
        actions.scatter_(1, slot[:, None], choice[:, None])
        first, above = first + len(above), actions
        found.append(actions)
    return torch.cat(found)
