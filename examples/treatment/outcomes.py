"""What a policy that learned from the ward's table does to new patients, by simulation."""

from itertools import compress
from typing import Any

import numpy as np
from doctors import HABITS, LABS, STATE, probabilities, treat
from ward import (
    ACTIONS,
    DRUGS,
    Array,
    at_admission,
    harmful_pairs,
    optimum,
    policy_values,
)

from spin_d3rlpy import DeviceReplayBuffer, from_table
from spin_d3rlpy.data.tables.from_table import read_states


def read_log(table: Any) -> DeviceReplayBuffer:
    """The ward's table, a file or columns, as a dataset."""
    return from_table(
        table,
        observations=STATE,
        actions=list(DRUGS),
        choices=DRUGS,
        reward="outcome",
        episode="patient",
        time="date",
        terminal="status",
        terminal_values=["discharged", "died"],
        missing="forward",
    )


class PolicyAtWork:
    """Chooses from what the table says, with each patient's last laboratory values."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.last: dict[str, dict[int, Any]] = {name: {} for name in LABS}

    def __call__(self, alive: Array, states: Array, seen: dict[str, list[Any]]) -> Array:
        # Two rows a patient: yesterday's, of which only labs matter, and today's.
        both = {name: cells * 2 for name, cells in seen.items()}
        for name, known in self.last.items():
            both[name] = [known.get(i, "") for i in alive] + seen[name]
            known.update((i, x) for i, x in zip(alive, seen[name], strict=True) if x != "")
        both["patient"] = alive.tolist() * 2
        rows = read_states(both, self.policy.preparation)[len(alive) :]
        return np.asarray(self.policy.predict(rows))


def chosen_doses(table: dict[str, list[Any]]) -> Array:
    """Numbers of doses `(rows, 6)` in a table."""
    slots = [[doses.index(x) for x in table[drug]] for drug, doses in DRUGS.items()]
    return np.array(slots).T


def share_of_harmful(table: dict[str, list[Any]]) -> float:
    """Share of a table's decisions that have a harmful pair."""
    return float((harmful_pairs(chosen_doses(table)) > 0).mean())


def value(table: dict[str, list[Any]]) -> tuple[float, float]:
    """Mean return of a table's patients, and its standard error."""
    patients = np.unique(table["patient"], return_inverse=True)[1]
    returns = np.bincount(patients, weights=table["outcome"])
    return float(returns.mean()), float(returns.std() / len(returns) ** 0.5)


def treated_by(policy: Any, patients: int, seed: int) -> dict[str, float]:
    """What a policy's patients have: value, its standard error, share of harmful decisions."""
    table = treat(PolicyAtWork(policy), patients, seed)
    mean, error = value(table)
    return {"value": mean, "standard_error": error, "harmful": share_of_harmful(table)}


def known_rows(log: dict[str, list[Any]], patients: int) -> list[dict[str, Any]]:
    """Exact values of the doctors, of all together and of the best policy."""
    rows = []
    for name in HABITS:
        is_own = [doctor == name for doctor in log["doctor"]]
        own = {column: list(compress(cells, is_own)) for column, cells in log.items()}
        exact = at_admission(policy_values(probabilities(name)))
        rows.append({"treated by": name, "value": exact, "harmful": share_of_harmful(own)})
    mean = float(np.mean([row["value"] for row in rows]))
    rows.append({"treated by": "all five", "value": mean, "harmful": share_of_harmful(log)})
    values, best = optimum()
    table = treat(lambda _, s, __: ACTIONS[best[s[:, 0], s[:, 1], s[:, 2] - 1]], patients, seed=1)
    harmful = share_of_harmful(table)
    return [*rows, {"treated by": "optimum", "value": at_admission(values), "harmful": harmful}]
