"""A policy's choices for a table's rows, by the table's names (`spin-d3rlpy predict`)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from d3rlpy.dataset import cast_flat_shape
from numpy.typing import NDArray

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.policy import PolicyAlgo
from spin_d3rlpy.asm.conditions import checked_rule
from spin_d3rlpy.asm.rules import OPEN, AnyRule, in_states
from spin_d3rlpy.data.tables.from_table import read_states
from spin_d3rlpy.errors import InvalidDatasetError, NvecMismatchError

SUPPORT = "support"
VALUE = "value"
_ROWS_AT_ONCE = 4096


def decide_table(
    algo: MultiDiscreteAlgo[Any, Any], table: Path, rule: AnyRule | None = None
) -> list[dict[str, Any]]:
    """Returns greedy choices for a table's rows, with how usual they are and their value.

    Args:
        algo: trained on a log that `from_table` read.
        table: a `.csv` or `.parquet` file with the columns of that log's state.
        rule: what choices keep in addition to the policy's own rules.

    Returns:
        One mapping per row, in the table's order: the action columns, then `support`, the
        probability in the log of the least usual of the row's choices in view of the others (of
        policies with a structure model), and `value`, their estimated discounted return (of
        algorithms with critics). A name that an action column has already gets `policy_` in front.

    Raises:
        ValueError: the policy's log was not read by `from_table`.
        InvalidDatasetError: the table has no rows, a column is missing or a cell invalid; the text
            names file, row and column.
        FileNotFoundError: there is no such file.
        NvecMismatchError: the rule is of another action space.
        NoAllowedChoiceError: the rule leaves a slot without a choice.
    """
    preparation = algo.preparation
    if preparation is None:
        raise ValueError(
            f"This {type(algo).__name__} does not know how a table's columns become states: its "
            "log was not read by from_table. Train it on one that was."
        )
    if rule is not None:
        _require_fitting(rule, algo)
    states = read_states(table, preparation)
    if not len(states):
        raise InvalidDatasetError(f"{table} has no rows.")
    parts = [states[i : i + _ROWS_AT_ONCE] for i in range(0, len(states), _ROWS_AT_ONCE)]
    rows: list[dict[str, Any]] = []
    for part in parts:
        chosen = algo.act(part, rule)
        named = preparation.named(chosen)
        for name, values in _judged(algo, part, chosen).items():
            free = name if name not in preparation.actions else f"policy_{name}"
            for row, value in zip(named, values.tolist(), strict=True):
                row[free] = value
        rows += named
    return rows


def _require_fitting(rule: AnyRule, algo: MultiDiscreteAlgo[Any, Any]) -> None:
    """Asks a rule about an action of which nothing is decided."""
    nvec, (state_size,) = algo.config.nvec, cast_flat_shape(algo.require_built().observation_shape)
    shape = (1, len(nvec), max(nvec))
    try:
        asked = in_states(checked_rule(rule), torch.zeros(1, state_size))
        mask = asked(torch.full(shape[:2], OPEN))
    except (RuntimeError, IndexError) as error:  # it names a slot that is not there
        raise NvecMismatchError(f"The rule does not fit nvec={list(nvec)}: {error}") from error
    if tuple(mask.shape) != shape:
        raise NvecMismatchError(
            f"Expected a rule with masks (R, N, K) = (R, {shape[1]}, {shape[2]}) for "
            f"nvec={list(nvec)}, got shape {tuple(mask.shape)}. K is the most choices of a slot."
        )


def _judged(
    algo: MultiDiscreteAlgo[Any, Any], states: NDArray[np.float32], chosen: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Returns what an algorithm knows of choices `(B, N)`, `(B,)` each."""
    judged: dict[str, NDArray[Any]] = {}
    if isinstance(algo, PolicyAlgo) and algo.asm is not None:
        judged[SUPPORT] = np.exp(algo.support(states, chosen).min(1))
    with contextlib.suppress(NotImplementedError):  # behavior cloning learns no values
        judged[VALUE] = algo.predict_value(states, chosen)
    return judged
