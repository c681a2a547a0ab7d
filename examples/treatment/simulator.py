"""A tumor under chemotherapy, IL-2 and transferred immune cells: a simulator of treatments.

Equations and parameters (patient 10) are those of de Pillis, Gu and Radunskaya, Mixed immunotherapy
and chemotherapy of tumors, Journal of Theoretical Biology 238 (2006) 841-862. Doses, two-day
rhythm, rewards and the treating doctor are invented: the results are not medicine.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

STATES = ["tumor", "killer_cells", "t_cells", "lymphocytes", "drug", "il2"]  # log10(1 + amount)
DOSES: dict[str, list[float]] = {
    "chemo": [0.0, 1.0, 2.5, 5.0],  # v_M, per day
    "il2_dose": [0.0, 1e6, 5e6],  # v_I, per day
    "cell_transfer": [0.0, 2e8, 1e9],  # v_L, per day
}
N_STEPS, DAYS, SUBSTEPS = 30, 2.0, 40  # a course of 60 days, a decision every other day
COST = np.array([0.06, 0.02, 0.05])  # of a dose level, for its side effects
CURED, LOST = 0.5, 8.7  # log10 of tumor cells
LEAST_LYMPHOCYTES = 3e9

GAMMA = 0.99  # discount of a decision

Array = np.ndarray[Any, Any]


def advance(x: Array, doses: Array) -> Array:
    """Two days of the model for `(n, 6)` amounts, by positive (Patankar) Euler steps."""
    tumor, nk, t_cells, c, drug, il2 = x.T
    dt = DAYS / SUBSTEPS
    for _ in range(SUBSTEPS):
        ratio = (t_cells / np.maximum(tumor, 1e-9)) ** 1.81
        kill = 1.88 * ratio / (0.512 + ratio)  # D
        toxic = 1 - np.exp(-drug)
        lysed = (kill * tumor) ** 2
        new = (  # (x + dt * gain) / (1 + dt * loss rate)
            _step(
                tumor,
                0.431 * tumor,
                0.431 * 1.02e-9 * tumor + 6.41e-11 * nk + kill + 0.9 * toxic,
                dt,
            ),
            _step(
                nk,
                2.08e-7 * c + 1.25e-2 * tumor**2 / (2.02e7 + tumor**2) * nk,
                4.12e-2 + 3.59e-6 * tumor + 0.6 * toxic,
                dt,
            ),
            _step(
                t_cells,
                2.49e-2 * lysed / (5.66e7 + lysed) * t_cells
                + (1.1e-7 * nk + 6.5e-11 * c) * tumor
                + 0.125 * t_cells * il2 / (2e7 + il2)
                + doses[:, 2],
                9.12 + 1.59e-6 * tumor + 3e-10 * nk * t_cells + 0.6 * toxic,
                dt,
            ),
            _step(c, 5e8, 8e-3 + 0.6 * toxic, dt),
            _step(drug, doses[:, 0], 0.9, dt),
            _step(il2, doses[:, 1], 10.0, dt),
        )
        tumor, nk, t_cells, c, drug, il2 = new
    return np.stack([tumor, nk, t_cells, c, drug, il2], axis=1)


def _step(x: Array, gain: Array | float, loss: Array | float, dt: float) -> Array:
    return np.asarray((x + dt * gain) / (1 + dt * loss))


def simulate(act: Callable[[Array], Array], n_patients: int, seed: int) -> dict[str, list[Any]]:
    """Treats patients with `act`, which maps states `(n, 6)` to choices `(n, 3)`.

    Returns the log: columns `patient`, `day`, states, doses, `reward` and `ended`, one row per
    decision and one final row.
    """
    rng = np.random.default_rng(seed)
    start = np.array([2e7, 1e4, 100.0, 3e10, 0.0, 0.0])
    x = start * np.exp(rng.normal(0, [0.8, 0.5, 0.5, 0.3, 0, 0], (n_patients, 6)))
    alive = np.arange(n_patients)
    rows: list[list[Any]] = []
    for t in range(N_STEPS + 1):
        seen = np.log10(1 + x[alive]).astype(np.float32)
        if t == N_STEPS:
            rows += [
                [i, DAYS * t, *s, "", "", "", "", ""] for i, s in zip(alive, seen, strict=True)
            ]
            break
        chosen = np.asarray(act(seen))
        doses = np.stack([np.take(v, chosen[:, j]) for j, v in enumerate(DOSES.values())], 1)
        x[alive] = advance(x[alive], doses)
        tumor = np.log10(1 + x[alive, 0])
        reward = seen[:, 0] - tumor - chosen @ COST
        cured = tumor < CURED
        lost = (tumor > LOST) | (x[alive, 3] < LEAST_LYMPHOCYTES)
        reward += 5.0 * cured - 5.0 * lost
        ended = cured | lost
        columns = zip(alive, seen, doses, reward, ended, strict=True)
        rows += [[i, DAYS * t, *s, *d, float(r), int(e)] for i, s, d, r, e in columns]
        alive = alive[~ended]
        if not len(alive):
            break
    header = ["patient", "day", *STATES, *DOSES, "reward", "ended"]
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def doctor(states: Array, rng: np.random.Generator) -> Array:
    """The logged habits: chemotherapy, or transferred cells with IL-2, but never both at once."""
    choices = np.zeros((len(states), 3), np.int64)
    chemo = (states[:, 3] > 10.1) & (rng.random(len(states)) < 0.5)
    level = rng.integers(0, 3, len(states))
    choices[:, 0] = np.where(chemo, level + 1, 0)
    choices[:, 1] = choices[:, 2] = np.where(chemo, 0, level)
    return choices


def value(log: dict[str, list[Any]]) -> float:
    """Mean discounted return of a log's patients."""
    steps = [t for t, reward in enumerate(log["reward"]) if reward != ""]
    discounts = [GAMMA ** (log["day"][t] / 2) * log["reward"][t] for t in steps]
    patients = len(set(log["patient"]))
    return float(np.sum(discounts)) / patients
