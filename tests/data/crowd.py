"""What `test_dataset_crowd` has done in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

from spin_d3rlpy.data import load_dataset
from tests.measure.kills import digest

NAME, SIZE = "spin/maze-a5/medium-v0", 1000
FULL_NAME = "spin/maze-a5/medium-1k-v0"


def load(folder: Path, number: int) -> None:
    """Loads the dataset, building it if it is not there, and says what it was given."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "datasets")
    os.environ.pop("MINARI_REMOTE", None)
    buffer, env = load_dataset(NAME, size=SIZE, jobs=1, progress=False)
    env.close()
    content = digest([buffer.observations, buffer.actions, buffer.rewards, buffer.terminals])
    (folder / f"{number}.txt").write_text(content)
