"""Conditions on samples as users give them, checked and turned into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import torch

from spin_d3rlpy.asm.decoding import OrderName
from spin_d3rlpy.asm.rules import (
    OPEN,
    AnyRule,
    NamedRule,
    Rule,
    both_rules,
    every,
    in_states,
    sees_state,
)
from spin_d3rlpy.errors import (
    InvalidActionSpaceError,
    NoAllowedChoiceError,
    NvecMismatchError,
    shown,
)
from spin_d3rlpy.nvec import SlotLayout

# Nested lists may be given in place of an array.
ArrayLike: TypeAlias = torch.Tensor | np.ndarray[Any, Any] | Sequence[Any]
Order: TypeAlias = OrderName | Literal["random"] | ArrayLike
Shape = tuple[int, ...]


def as_tensor(value: Any) -> torch.Tensor | None:
    """Returns a tensor of an array's or nested list's own type; None if it is no such thing."""
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, np.ndarray | list | tuple):
        return None
    try:
        return torch.from_numpy(np.array(value))  # a copy: PyTorch warns of read-only arrays
    except (TypeError, ValueError):  # rows of different lengths, or no numbers
        return None


def _described(value: Any) -> str:
    tensor = as_tensor(value)
    if tensor is not None:
        return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} whose rows are no numbers or not of the same length"
    return repr(value)


def as_conditions(
    observations: torch.Tensor,
    slot_layout: SlotLayout,
    given: ArrayLike | None,
    allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None,
    rule: AnyRule | None,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, AnyRule | None]:
    """Returns choices that are given `(B, N)`, a mask `(B, N, K)` if any, and a rule if any.

    Arguments and errors are those of `spin_d3rlpy.asm.sampling.sample`. The rule that is returned
    may see states.
    """
    n_rows, device = len(observations), observations.device
    if given is None:
        given = torch.full((n_rows, slot_layout.n_slots), OPEN, device=device)
    given = as_choices_of(slot_layout, observations, given, least=OPEN)
    mask, other = as_mask_or_rule(allowed, n_rows, slot_layout, device)
    both = both_rules(cast(Rule | None, rule), cast(Rule | None, other))
    bound = None if both is None else in_states(both, observations if states is None else states)
    require_given_allowed(given, mask, bound)
    return given, mask, both


def as_choices_of(
    slot_layout: SlotLayout, observations: torch.Tensor, actions: ArrayLike, least: int = 0
) -> torch.Tensor:
    """Returns `(B, N)` choices of at least `least`, int64; else an InvalidActionSpaceError."""
    shape = (len(observations), slot_layout.n_slots)
    tensor = as_actions(actions, shape, observations.device)
    sizes = torch.tensor(slot_layout.nvec, device=tensor.device)
    wrong = ((tensor < least) | (tensor >= sizes)).nonzero()
    if len(wrong):
        row, slot = wrong[0].tolist()
        raise InvalidActionSpaceError(
            f"Slot {slot} of row {row} is {int(tensor[row, slot])}; expected {least} to "
            f"{slot_layout.nvec[slot] - 1}" + (" (-1: open)." if least < 0 else ".")
        )
    return tensor


def as_actions(actions: ArrayLike, shape: Shape, device: torch.device) -> torch.Tensor:
    """Returns integer actions, int64, of `shape` (B, N); else an InvalidActionSpaceError."""
    tensor = as_tensor(actions)
    is_integer = tensor is not None and not (
        tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    )
    if tensor is None or not is_integer or tuple(tensor.shape) != shape:
        raise InvalidActionSpaceError(
            f"Expected integer actions of shape {shape} for {shape[0]} observations, got "
            f"{_described(actions)}."
        )
    return tensor.to(device, torch.int64)


def as_mask_or_rule(
    allowed: ArrayLike | AnyRule | Sequence[AnyRule] | None,
    n_rows: int,
    slot_layout: SlotLayout,
    device: torch.device,
) -> tuple[torch.Tensor | None, AnyRule | None]:
    """Returns a bool mask `(B, N, K)` of B rows or a rule, whichever `allowed` is.

    Several rules are a list of them.

    Raises:
        ValueError: it is neither, or a mask of another type or shape.
    """
    if allowed is None:
        return None, None
    if callable(allowed) or (
        isinstance(allowed, list | tuple) and len(allowed) and all(map(callable, allowed))
    ):
        return None, as_rule(allowed, slot_layout.max_choices)
    if as_tensor(allowed) is None and not isinstance(allowed, list | tuple):
        raise ValueError(f"Expected allowed to be a mask or a rule (a function), got {allowed!r}.")
    return as_mask(allowed, n_rows, slot_layout, device), None


def as_mask(
    mask: ArrayLike, n_rows: int, slot_layout: SlotLayout, device: torch.device
) -> torch.Tensor:
    """Returns a bool mask `(B, N, K)` of B rows.

    Args:
        mask: bool, or 0 and 1: `(B, N, K)`, or flat `(B, S)` with slot after slot's choices, as
            other libraries have it; or one of these for all rows, `(N, K)` or `(S,)`.
        n_rows: B.
        slot_layout: of the actions.
        device: of the result.

    Raises:
        ValueError: it is of another type or shape.
    """
    shape = (n_rows, slot_layout.n_slots, slot_layout.max_choices)
    flat = (n_rows, slot_layout.total)
    tensor = as_tensor(mask)
    fits = tensor is not None and tuple(tensor.shape) in (shape, shape[1:], flat, flat[1:])
    if tensor is None or not fits or not _is_of_bools(tensor):
        raise ValueError(
            f"Expected a bool mask of shape {shape} or {shape[1:]}, or flat {flat} or {flat[1:]}, "
            f"got {_described(mask)}."
        )
    tensor = tensor.to(device, torch.bool)
    if tuple(tensor.shape) not in (shape, shape[1:]):
        padded = tensor.new_zeros((*tensor.shape[:-1], *shape[1:]))
        padded[..., ~slot_layout.padding.to(device)] = tensor
        tensor = padded
    return tensor.expand(shape)


def _is_of_bools(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return True
    is_integer = not (tensor.is_floating_point() or tensor.is_complex())
    return is_integer and bool(((tensor == 0) | (tensor == 1)).all())


def require_a_choice(mask: torch.Tensor) -> None:
    """Raises NoAllowedChoiceError if a mask `(B, N, K)` allows a slot nothing."""
    stuck = (~mask.any(-1)).nonzero()
    if len(stuck):
        row, slot = stuck[0].tolist()
        raise NoAllowedChoiceError(
            f"No choice is allowed for slot {slot} of row {row}. Expected masks with at least one "
            "choice for each slot."
        )


def as_rule(rules: AnyRule | Sequence[Any] | None, n_choices: int) -> AnyRule | None:
    """Returns a rule, or several as one that all of them hold, with checks of `checked_rule`.

    Raises:
        ValueError: one of them is no function, or takes neither `(partial)` nor `(partial, state)`.
    """
    given = [rules] if callable(rules) else list(rules or [])
    if wrong := [one for one in given if not callable(one)]:
        raise ValueError(f"Expected a rule, a function, or a list of them, got {shown(wrong[0])}.")
    checked = [checked_rule(one, n_choices) for one in given]
    return every(*checked) if len(checked) > 1 else next(iter(checked), None)


def checked_rule(rule: AnyRule, n_choices: int | None = None) -> AnyRule:
    """Returns a rule whose masks are bool tensors.

    Args:
        rule: see `spin_d3rlpy.asm.rules`.
        n_choices: most choices of a slot (K) of the actions that it is for; None if it is checked
            elsewhere.

    The returned rule sees states if this one does. It raises NvecMismatchError where masks are of
    another action space, and ValueError where they are no bool masks.

    Raises:
        ValueError: the rule takes neither `(partial)` nor `(partial, state)`.
    """

    def ask(partial: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        shape = *partial.shape, n_choices or "K"
        try:
            mask = cast(Any, rule)(partial, *states)
        except (RuntimeError, IndexError) as error:
            if not isinstance(rule, NamedRule):  # a mistake in a user's function is shown as it is
                raise
            raise NvecMismatchError(f"The rule {rule} is not for actions {shape}.") from error
        tensor = as_tensor(mask)
        if tensor is None or tensor.dtype != torch.bool or tensor.dim() != 3:
            raise ValueError(
                f"Expected a rule that returns a bool mask (R, N, K) = {shape}, got "
                f"{_described(mask)}."
            )
        if tensor.shape[:2] != partial.shape or n_choices not in (None, tensor.shape[2]):
            raise NvecMismatchError(
                f"Expected a rule with masks (R, N, K) = {shape}, got {tuple(tensor.shape)}. K is "
                "the most choices of a slot."
            )
        return tensor.to(partial.device)

    def ask_in_states(partial: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return ask(partial, state)

    def ask_alone(partial: torch.Tensor) -> torch.Tensor:
        return ask(partial)

    return ask_in_states if sees_state(rule) else ask_alone


def require_given_allowed(
    given: torch.Tensor, mask: torch.Tensor | None, rule: Rule | None
) -> None:
    """Checks choices that are made already, each in view of all others.

    Args:
        given: actions `(B, N)`, -1 where open.
        mask: `(B, N, K)` of allowed choices.
        rule: see `spin_d3rlpy.asm.rules`.

    Raises:
        NoAllowedChoiceError: one of them is not allowed.
    """
    for slot in range(given.shape[1]):
        is_given = given[:, slot] != OPEN
        if (mask is None and rule is None) or not bool(is_given.any()):
            continue
        choice = given[:, slot].clamp(min=0)[:, None]
        allowed = torch.ones_like(is_given)
        if mask is not None:
            allowed &= mask[:, slot].gather(1, choice)[:, 0]
        if rule is not None:
            opened = given.clone()
            opened[:, slot] = OPEN
            allowed &= rule(opened)[:, slot].gather(1, choice)[:, 0]
        wrong = (is_given & ~allowed).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise NoAllowedChoiceError(
                f"The given choice {int(given[row, slot])} of slot {slot} in row {row} is not "
                f"allowed in view of the other given choices {given[row].tolist()} (-1: open). "
                "Leave the slot open, or loosen the mask or rule."
            )


def as_order(order: Order, n_slots: int) -> OrderName | Literal["random"] | list[int]:
    """Returns an order by name or as numbers; a ValueError unless each slot is in it once."""
    if isinstance(order, str) and order in ("random", *get_args(OrderName)):
        return cast(OrderName | Literal["random"], order)
    tensor = as_tensor(list(order) if isinstance(order, range) else order)
    if tensor is not None and tensor.dim() == 1 and not tensor.is_floating_point():
        slots = [int(slot) for slot in tensor.tolist()]
        if sorted(slots) == list(range(n_slots)):
            return slots
    raise ValueError(
        f"Expected order 'random', 'slots', 'confidence', 'margin', 'regret' or each of {n_slots} "
        f"slots once, got {order!r}."
    )


def as_noise(noise: ArrayLike, shape: Shape, device: torch.device) -> torch.Tensor:
    """Returns floating-point noise of `shape` (n, B, S); else a ValueError."""
    tensor = as_tensor(noise)
    if tensor is None or tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise ValueError(
            f"Expected floating-point noise of shape {shape}: samples, observations and all "
            f"slots' choices. Got {_described(noise)}."
        )
    return tensor.to(device)
