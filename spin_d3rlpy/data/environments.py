"""Making a dataset's environment, which untrusted metadata may name, without executing their code.

Only what Gymnasium has registered in this process is made, unless the user trusts the author.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from minari import MinariDataset
from minari.dataset.minari_storage import MinariStorage

from spin_d3rlpy.errors import InvalidDatasetError

_ADVICE = (
    "If you trust whoever made the dataset, pass trust=True (on the command line: --trust). For "
    "the data alone, use DeviceReplayBuffer.from_minari."
)


def make_environment(dataset: MinariDataset, trust: bool = False) -> gymnasium.Env[Any, Any]:
    """Makes a dataset's environment, or raises InvalidDatasetError."""
    if dataset.env_spec is None:
        raise InvalidDatasetError(
            f"Dataset {dataset.id} does not name its environment. For the data "
            "alone, use DeviceReplayBuffer.from_minari(minari.load_dataset(...))."
        )
    if not trust:
        _check_spec(dataset.env_spec, dataset.id)
    env: gymnasium.Env[Any, Any] = dataset.recover_environment()
    return env


def open_minari(data: Path, trust: bool = False) -> MinariDataset:
    """Opens the dataset in a folder `data`, or raises InvalidDatasetError.

    Without spaces in the metadata, Minari would make the environment to get them.
    """
    try:
        metadata = MinariStorage.read_raw_metadata(data)
        if not trust and not {"observation_space", "action_space"} <= metadata.keys():
            raise InvalidDatasetError(
                f"The dataset in {data} has no spaces in its metadata, so that opening it would "
                f"make its environment. {_ADVICE}"
            )
        return MinariDataset(data)
    except InvalidDatasetError:
        raise
    except Exception as error:  # untrusted metadata can cause any error
        raise InvalidDatasetError(
            f"The dataset in {data} cannot be read ({error!r}). Delete the folder to have it built "
            "or downloaded again."
        ) from error


def _check_spec(spec: EnvSpec, source: str) -> None:
    known = gymnasium.registry.get(spec.id)
    wanted: list[Any] = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    wanted = [entry for entry in wanted if not _is_gymnasiums_wrapper(entry)]
    if known is None or spec.entry_point != known.entry_point:
        wanted.append(spec.entry_point)
    elif spec.vector_entry_point not in (None, known.vector_entry_point):
        wanted.append(spec.vector_entry_point)
    # gymnasium.make imports what stands before a colon.
    inner = str(spec.kwargs.get("env_id", ""))
    if ":" in inner and inner.partition(":")[0] not in sys.modules:
        wanted.append(inner)
    if wanted:
        raise InvalidDatasetError(
            f"Dataset {source} wants {wanted[0]!r} called for its environment {spec.id!r}, which "
            "Gymnasium does not have registered for it here. Import the package that registers it "
            f"first. {_ADVICE}"
        )


def _is_gymnasiums_wrapper(entry_point: str) -> bool:
    module, _, name = entry_point.partition(":")
    inside = f"{module}.".startswith("gymnasium.wrappers.")
    return inside and name in gymnasium.wrappers.__all__ and name != "RecordVideo"
