"""Making a dataset's environment without executing code named in untrusted metadata.

Metadata can name any function of any installed package. Only environments registered with Gymnasium
in this process are made, unless the user trusts the dataset's author.
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


def check_spaces(data: Path, trust: bool = False) -> None:
    """Raises InvalidDatasetError if Minari, to get spaces, would make the environment."""
    metadata = MinariStorage.read_raw_metadata(data)
    if not trust and not {"observation_space", "action_space"} <= metadata.keys():
        raise InvalidDatasetError(
            f"The dataset in {data} has no spaces in its metadata, so that opening it would "
            f"make its environment. {_ADVICE}"
        )


def _check_spec(spec: EnvSpec, source: str) -> None:
    known = gymnasium.registry.get(spec.id)
    if (
        known is None
        or spec.entry_point != known.entry_point
        or spec.vector_entry_point not in (None, known.vector_entry_point)
    ):
        raise InvalidDatasetError(
            f"Dataset {source} wants {spec.entry_point!r} called for its environment {spec.id!r}, "
            "which is not what Gymnasium has registered under this name here. Import the package "
            f"that registers it first. {_ADVICE}"
        )
    for wrapper in spec.additional_wrappers:
        module, _, name = wrapper.entry_point.partition(":")
        inside = f"{module}.".startswith("gymnasium.wrappers.")
        if not inside or name not in gymnasium.wrappers.__all__ or name == "RecordVideo":
            raise InvalidDatasetError(
                f"Dataset {source} wants {wrapper.entry_point!r} called around its environment. "
                f"{_ADVICE}"
            )
    # gymnasium.make imports what stands before a colon.
    inner = str(spec.kwargs.get("env_id", ""))
    if ":" in inner and inner.partition(":")[0] not in sys.modules:
        raise InvalidDatasetError(
            f"Dataset {source} needs the module of {inner!r} imported. Import it first. {_ADVICE}"
        )
