"""Making a dataset's environment, which untrusted metadata may name, without executing their code.

Only what Gymnasium has registered in this process is made, unless the user trusts the author.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from minari import MinariDataset
from minari.dataset.minari_storage import MinariStorage

from spin_d3rlpy.errors import InvalidDatasetError
from spin_d3rlpy.files.untrusted import require_memory

HDF5_FILE = "main_data.hdf5"
_MIN_EPISODE = 100  # bytes that an episode takes in a file, at the very least
_OWN_WRAPPERS = (
    "spin_envs.discretized:DiscretizeAction",
    "spin_envs.flatten_action:FlattenAction",
    "spin_envs.flatten_images:FlattenImages",
)
_ADVICE = (
    "If you trust whoever made the dataset, pass trust=True (on the command line: --trust). For "
    "the data alone, use DeviceReplayBuffer.from_minari."
)


def make_environment(dataset: MinariDataset, trust: bool = False) -> gymnasium.Env[Any, Any]:
    """Makes a dataset's environment, or raises InvalidDatasetError."""
    if dataset.env_spec is None:
        raise InvalidDatasetError(
            f"Dataset {dataset.id} does not name its environment. For the data "
            "alone, use DeviceReplayBuffer.from_minari(minari.load_dataset(...)). If you have the "
            "environment, pass it or its id to load_dataset as env=."
        )
    if dataset.env_spec.entry_point is None:
        return gymnasium.make(_registered(dataset.env_spec, dataset.id, trust))
    if not trust:
        check_spec(dataset.env_spec, dataset.id)
    env: gymnasium.Env[Any, Any] = dataset.recover_environment()
    return env


def storable_spec(env: gymnasium.Env[Any, Any]) -> EnvSpec | None:
    """Returns a specification of the environment that JSON can hold, or None with a UserWarning.

    A class or function that Gymnasium has registered under the id is left out: `make_environment`
    looks it up.
    """
    spec = copy.copy(env.spec)
    if spec is None:
        reason = "it was not made by gymnasium.make"
    else:
        known = gymnasium.registry.get(spec.id)
        if callable(spec.entry_point) and known and known.entry_point is spec.entry_point:
            spec.entry_point = spec.vector_entry_point = None
        try:
            spec.to_json()
            return spec
        except (TypeError, ValueError) as error:
            reason = f"its specification cannot be stored: {error}"
    warnings.warn(
        f"The dataset will not name its environment, because {reason}. Pass the environment or "
        "its id to load_dataset as env=.",
        UserWarning,
        stacklevel=3,
    )
    return None


def is_unregistered(spec: EnvSpec) -> bool:
    """Whether a specification by `storable_spec` lacks an entry point that this process has not."""
    return spec.entry_point is None and spec.id not in gymnasium.registry


def _registered(spec: EnvSpec, source: str, trust: bool) -> EnvSpec:
    """Returns a stored specification with the entry points that are registered for its id."""
    known = gymnasium.registry.get(spec.id)
    if known is None:
        raise InvalidDatasetError(
            f"Dataset {source} names its environment by the id {spec.id!r}, which Gymnasium does "
            "not have registered here. First import the module that registers it, or pass the "
            "environment to load_dataset as env=."
        )
    filled = copy.copy(spec)
    filled.entry_point, filled.vector_entry_point = known.entry_point, known.vector_entry_point
    if not trust:
        check_spec(filled, source)
    return filled


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
        if "total_episodes" in metadata:
            check_episode_count(data, int(metadata["total_episodes"]), f"in {data}")
        return MinariDataset(data)
    except InvalidDatasetError:
        raise
    except Exception as error:  # untrusted metadata can cause any error
        raise InvalidDatasetError(
            f"The dataset in {data} cannot be read ({error!r}). Delete the folder to have it built "
            "or downloaded again."
        ) from error


def check_episode_count(data: Path, count: int, name: str) -> None:
    """Compares a number of episodes with the file and with memory, before anything is made of it.

    Args:
        data: the dataset's folder `data`.
        count: of episodes. Minari keeps a number of 8 bytes for each.
        name: of the dataset, for the message.

    Raises:
        InvalidDatasetError: the file cannot hold so many, or memory their numbers.
    """
    path = data / HDF5_FILE
    if path.is_file() and count * _MIN_EPISODE > path.stat().st_size:
        raise InvalidDatasetError(
            f"Dataset {name} declares {count} episodes, which its file of "
            f"{path.stat().st_size} bytes cannot hold. Delete it to build or download it again."
        )
    what = f"The list of the {count} episodes that dataset {name} declares"
    require_memory(8 * count, what, "Delete it to build or download it again.", InvalidDatasetError)


def check_spec(spec: EnvSpec, source: str) -> None:
    """Raises InvalidDatasetError if making the environment may run or import what is unregistered.

    `source` is the dataset's name, for the message.
    """
    known = gymnasium.registry.get(spec.id)
    wanted: list[Any] = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    wanted = [entry for entry in wanted if not _is_known_wrapper(entry)]
    if known is None or spec.entry_point != known.entry_point:
        wanted.append(spec.entry_point)
    elif spec.vector_entry_point not in (None, known.vector_entry_point):
        wanted.append(spec.vector_entry_point)
    if wanted:
        raise InvalidDatasetError(
            f"Dataset {source} wants {wanted[0]!r} called for its environment {spec.id!r}, which "
            "Gymnasium does not have registered for it here. Import the package that registers it "
            f"first. {_ADVICE}"
        )
    arguments = [spec.kwargs, *(wrapper.kwargs for wrapper in spec.additional_wrappers)]
    for text in texts_with_colons(arguments):
        raise InvalidDatasetError(
            f"Dataset {source} names {text!r} in the arguments of its environment {spec.id!r}. "
            f"Gymnasium imports what stands before a colon. {_ADVICE}"
        )


def texts_with_colons(arguments: Any) -> Iterator[str]:
    """Finds the texts that gymnasium.make may take for a module and an environment.

    Args:
        arguments: values of any nesting. Which argument is an id is up to the environment, so that
            all texts are looked at, a mapping's keys included.

    Yields:
        Each text with a colon.
    """
    # A stack of its own, because metadata may be nested more deeply than Python recurses.
    remaining = [arguments]
    while remaining:
        value = remaining.pop()
        if isinstance(value, str) and ":" in value:
            yield value
        elif isinstance(value, Mapping):
            remaining += [*value.keys(), *value.values()]
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
            remaining += value


def _is_known_wrapper(entry_point: str) -> bool:
    """Whether it is Gymnasium's, or one of those here that read nothing but their arguments."""
    if entry_point in _OWN_WRAPPERS:
        return True
    module, _, name = entry_point.partition(":")
    inside = f"{module}.".startswith("gymnasium.wrappers.")
    return inside and name in gymnasium.wrappers.__all__ and name != "RecordVideo"
