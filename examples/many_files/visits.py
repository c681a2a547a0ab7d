"""Made-up visits to clinics, in CSV files as a day's work leaves them."""

from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv

DAYS = 20


def write_visits(folder: Path, patients: int, files: int) -> None:
    """Writes files of some days of all patients each; some temperatures are in Fahrenheit."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number, days in enumerate(np.array_split(np.arange(DAYS), files)):
        day, patient = (grid.ravel() for grid in np.meshgrid(days, np.arange(patients)))
        celsius = rng.normal(37.5, 0.8, len(day))
        is_fahrenheit = rng.random(len(day)) < 0.3
        dose, drug = rng.integers(0, 3, len(day)), rng.integers(0, 2, len(day))
        visits = {
            "patient": patient,
            "day": day,
            "temperature": np.where(is_fahrenheit, celsius * 1.8 + 32.0, celsius),
            "unit": np.where(is_fahrenheit, "F", "C"),
            "pulse": rng.normal(80, 9, len(day)),
            "dose": dose,
            "drug": drug,
            "outcome": -abs(celsius - 37.0) + 0.3 * ((dose == 2) == (drug == 1)),
        }
        order = rng.permutation(len(day))
        table = pyarrow.table({name: column[order] for name, column in visits.items()})
        csv.write_csv(table, folder / f"visits-{number}.csv")
