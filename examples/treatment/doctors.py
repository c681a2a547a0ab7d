"""Five doctors with habits of their own, and the table that their ward keeps."""

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import numpy as np
from ward import (
    ACTIONS,
    DIAGNOSES,
    DRUGS,
    KINDS,
    N_RESPONSES,
    N_SEVERITIES,
    NVEC,
    Array,
    admit,
    next_day,
    reward,
)

# What each gives for a diagnosis. Some is right; much is a partner without the other one, a dose
# that is wrong for some patients, or a pair that harms.
HABITS = {
    "Adams": {
        "pneumonia": "antibiotic medium, steroid low",
        "sepsis": "antibiotic high",
        "heart failure": "diuretic high, antibiotic medium",
        "embolism": "anticoagulant high",
    },
    "Baker": {
        "pneumonia": "antibiotic high",
        "sepsis": "antibiotic high, vasopressor medium, sedative low",
        "heart failure": "diuretic medium, vasopressor low",
        "embolism": "anticoagulant low",
    },
    "Clark": {
        "pneumonia": "steroid low, sedative low",
        "sepsis": "antibiotic high, vasopressor medium",
        "heart failure": "diuretic medium",
        "embolism": "anticoagulant high, steroid low",
    },
    "Davis": {
        "pneumonia": "antibiotic medium, anticoagulant low",
        "sepsis": "vasopressor high, steroid low",
        "heart failure": "diuretic medium, sedative low",
        "embolism": "anticoagulant high, sedative low",
    },
    "Evans": {
        "pneumonia": "antibiotic medium, diuretic medium, steroid low",
        "sepsis": "antibiotic high, vasopressor medium, steroid low",
        "heart failure": "diuretic low",
        "embolism": "anticoagulant low, sedative low",
    },
}
LOOKS_AT_KIDNEYS = {"Clark", "Davis", "Evans"}  # less antibiotic where they are poor
GIVES_STEROIDS_WHEN_SEVERE = {"Baker", "Evans"}
DEVIATION = 0.08  # probability that a dose is any dose

LABS = {"creatinine": [(50, 90), (140, 220)], "crp": [(120, 200), (60, 100), (10, 40)]}
STATE = ["diagnosis", "severity", "heart", "allergic", "age", *LABS]


def prescription(text: str) -> Array:
    """Numbers of doses `(6,)` from words such as "antibiotic low, steroid high"."""
    given = dict(part.split(" ") for part in text.split(", "))
    return np.array([doses.index(given.get(drug, "none")) for drug, doses in DRUGS.items()])


def habit(doctor: str) -> Array:
    """What a doctor means to give in every state, `(32, 3, 5, 6)`."""
    means = np.array([prescription(HABITS[doctor][name]) for name in DIAGNOSES])
    usual = np.zeros((len(KINDS), N_RESPONSES, N_SEVERITIES, len(DRUGS)), np.int64)
    usual[:] = means[KINDS[:, 0]][:, None, None]
    if doctor in LOOKS_AT_KIDNEYS:
        poor = KINDS[:, 1] == 1
        usual[poor, ..., 0] = np.where(usual[poor, ..., 0] > 1, usual[poor, ..., 0] - 1, 1)
    if doctor in GIVES_STEROIDS_WHEN_SEVERE:
        usual[:, :, 4:, 1] = 2
    return usual


def probabilities(doctor: str) -> Array:
    """Of all actions in every state, `(32, 3, 5, 1728)`."""
    usual, result = habit(doctor), np.ones((1,))
    for slot, n in enumerate(NVEC):
        same = usual[..., slot, None] == ACTIONS[:, slot]
        result = result * ((1 - DEVIATION) * same + DEVIATION / n)
    return result


def draw(usual: Array, rng: np.random.Generator) -> Array:
    """Actions `(n, 6)` near the usual ones."""
    deviates = rng.random(usual.shape) < DEVIATION
    return np.where(deviates, rng.integers(0, NVEC, usual.shape), usual)


class Chart:
    """What the ward's table says of patients; laboratory values are measured when needed."""

    def __init__(self, states: Array, rng: np.random.Generator) -> None:
        self.rng = rng
        self.age = rng.integers(20, 95, len(states))
        self.is_new = np.ones(len(states), bool)

    def rows(self, patients: Array, states: Array) -> dict[str, list[Any]]:
        """Columns of the state; labs of steady patients are left out every other day."""
        kind, response, severity = states.T
        diagnosis, poor_kidneys, weak_heart, allergic = KINDS[kind].T
        columns: dict[str, list[Any]] = {
            "diagnosis": [DIAGNOSES[i] for i in diagnosis],
            "severity": severity.tolist(),
            "heart": np.where(weak_heart, "weak", "strong").tolist(),
            "allergic": np.where(allergic, "yes", "no").tolist(),
            "age": self.age[patients].tolist(),
        }
        skipped = (response == 1) & (self.rng.random(len(states)) < 0.5)
        for name, level in (("creatinine", poor_kidneys), ("crp", response)):
            measured = self.rng.uniform(*np.array(LABS[name])[level].T).round().astype(int)
            left_out = skipped & ~(self.is_new[patients] & (name == "creatinine"))
            columns[name] = ["" if no else int(x) for no, x in zip(left_out, measured, strict=True)]
        self.is_new[patients] = False
        return columns


# Chooses actions `(n, 6)` for patients by number, states and columns of the table.
Act = Callable[[Array, Array, dict[str, list[Any]]], Array]


def treat(act: Act, n: int, seed: int, most_days: int = 90) -> dict[str, list[Any]]:
    """Treats patients until the end; returns the table, one row per patient and day."""
    rng = np.random.default_rng(seed)
    states, alive = admit(n, rng), np.arange(n)
    chart = Chart(states, rng)
    admitted = rng.integers(0, 365, n)
    table: dict[str, list[Any]] = {}
    for day in range(most_days):
        seen = chart.rows(alive, states[alive])
        actions = np.asarray(act(alive, states[alive], seen))
        states[alive] = next_day(states[alive], actions, rng)
        severity = states[alive, 2]
        dates = [date(2023, 1, 1) + timedelta(int(admitted[i]) + day) for i in alive]
        columns = {
            "patient": (alive + 1).tolist(),
            "date": [d.isoformat() for d in dates],
            **seen,
            **{
                drug: [doses[i] for i in actions[:, slot]]
                for slot, (drug, doses) in enumerate(DRUGS.items())
            },
            "outcome": reward(actions, severity).round(2).tolist(),
            "status": np.select(
                [severity == 0, severity == 6], ["discharged", "died"], "on ward"
            ).tolist(),
        }
        for name, cells in columns.items():
            table.setdefault(name, []).extend(cells)
        alive = alive[(severity > 0) & (severity < 6)]
        if not len(alive):
            break
    return table
