"""Loading datasets by name, as arrays ready for training, with their environment."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import minari
from d3rlpy.dataset import ReplayBufferBase
from gymnasium.spaces import Dict, Tuple
from gymnasium.wrappers import FlattenObservation
from minari import MinariDataset
from minari.storage import get_dataset_path

from spin_d3rlpy.data.buffer import DeviceReplayBuffer
from spin_d3rlpy.data.builder import build_dataset
from spin_d3rlpy.data.environments import check_spaces, make_environment
from spin_d3rlpy.data.remote import pull_dataset
from spin_d3rlpy.data.sources import largest_choices
from spin_d3rlpy.data.specs import NAMESPACE, is_dataset_name, parse_name
from spin_d3rlpy.data.staging import explained_full_disk, is_complete
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    DatasetWriteError,
    InvalidDatasetError,
    SpinError,
)
from spin_d3rlpy.locks import exclusive_folder
from spin_d3rlpy.nvec import require_same_nvec
from spin_envs import DiscretizeAction, MissingDependencyError

DatasetLike: TypeAlias = str | Path | MinariDataset


def load_dataset(
    dataset: DatasetLike,
    *,
    size: int | None = None,
    jobs: int | None = None,
    progress: bool = True,
    max_episodes: int | None = None,
    bins: int | Sequence[int] | None = None,
    memory_map: bool | str | Path = False,
    trust: bool = False,
) -> tuple[DeviceReplayBuffer, gymnasium.Env[Any, Any]]:
    """Loads a dataset and its environment, building the dataset on first use.

    A name is looked up in Minari's local folder, then in `MINARI_REMOTE` if set; a `spin/...`
    dataset found in neither is built. Names of other namespaces are downloaded by Minari if needed
    (extra `hf`: `pip install "spin-d3rlpy[hf]"`).

    Args:
        dataset: a name like `"spin/cheetah-run-b3/medium-expert-v0"`, a `minari.MinariDataset`, or
            the path of a dataset's folder (a `Path`, or text that begins with `/`, `.`, `~`).
        size: number of transitions (a multiple of 1,000) of a smaller `spin/...` dataset with the
            same composition, stored under its own name.
        jobs: number of processes for building; all CPU cores if None.
        progress: draw a progress bar while building.
        max_episodes: read only the first ones.
        bins: for continuous actions, the number of values per dimension (one for all, or one each),
            rounded to the nearest; the environment is discretized alike.
        memory_map: keep observations in a file, in the dataset's folder (True) or the given one,
            for datasets larger than memory. It takes disk space until the process ends.
        trust: make the environment with any function that the metadata name. Otherwise it must be
            registered with Gymnasium: first import the package that registers it.

    Returns:
        The dataset in main memory (algorithms move it to their device) and the environment, both
        with flat observations.

    Raises:
        DatasetNotFoundError: no such dataset; near matches are listed.
        InvalidDatasetError: it is damaged, unusable for MultiDiscrete offline RL, or its
            environment is unknown or not registered.
        MissingDependencyError: the environment's simulator is not installed.
        ValueError: `size` or `jobs` is out of range.
    """
    found = open_dataset(dataset, size, jobs, progress, trust)
    map_in = None
    if memory_map is not False:
        map_in = Path(found.storage.data_path if memory_map is True else memory_map)
    buffer = DeviceReplayBuffer.from_minari(found, max_episodes, bins, map_in)
    env = make_environment(found, trust)
    if isinstance(env.observation_space, Dict | Tuple):
        env = FlattenObservation(env)
    if bins is not None:
        env = DiscretizeAction(env, bins)
    return buffer, env


def as_device_buffer(dataset: Any, nvec: Sequence[int] | None = None) -> DeviceReplayBuffer:
    """Converts anything that `fit` accepts to a `DeviceReplayBuffer`.

    `nvec` are the numbers of choices, which a d3rlpy buffer lacks; without it the largest choices
    seen are used, with a warning.

    Raises:
        DatasetNotFoundError: no such dataset.
        InvalidDatasetError: it is none of these or unusable.
        NvecMismatchError: its action space is not `nvec`.
    """
    if isinstance(dataset, ReplayBufferBase) and not isinstance(dataset, DeviceReplayBuffer):
        if nvec is None:
            nvec = largest_choices(dataset)
            warnings.warn(
                f"A d3rlpy ReplayBuffer lacks the number of choices. Using nvec={nvec} from the "
                "largest ones seen. Pass nvec=[...] to the algorithm, env= to save_dataset.",
                UserWarning,
                stacklevel=2,
            )
        return DeviceReplayBuffer.from_replay_buffer(dataset, nvec)
    if isinstance(dataset, DatasetLike):
        dataset = DeviceReplayBuffer.from_minari(open_dataset(dataset))
    if not isinstance(dataset, DeviceReplayBuffer):
        raise InvalidDatasetError(
            "Expected a dataset's name, a minari.MinariDataset, a d3rlpy ReplayBuffer or a "
            f"DeviceReplayBuffer, got {type(dataset).__name__}."
        )
    if nvec is not None:
        require_same_nvec(nvec, dataset.nvec, "The algorithm", "the dataset")
    return dataset


def open_dataset(
    dataset: DatasetLike,
    size: int | None = None,
    jobs: int | None = None,
    progress: bool = True,
    trust: bool = False,
) -> MinariDataset:
    """Opens a dataset without reading it; see `load_dataset`."""
    folder = None if isinstance(dataset, MinariDataset) else _folder(dataset)
    by_name = isinstance(dataset, str) and folder is None
    if size is not None and not (by_name and str(dataset).startswith(NAMESPACE)):
        raise ValueError("size= is for datasets that are built by name, spin/...")
    if isinstance(dataset, MinariDataset):
        return dataset
    if folder is None:
        folder = get_dataset_path(_provide(str(dataset), size, jobs, progress))
    return _open(folder, trust)


def open_local(dataset: str | Path, trust: bool = False) -> MinariDataset:
    """Opens a local dataset by name or path; builds and downloads nothing."""
    folder = _folder(dataset)
    if folder is None:
        name = str(dataset)
        if not is_dataset_name(name) or not is_complete(name):
            raise DatasetNotFoundError(
                f"There is no dataset {name!r} on this machine. {_local_datasets()}"
            )
        folder = get_dataset_path(name)
    return _open(folder, trust)


def _provide(name: str, size: int | None, jobs: int | None, progress: bool) -> str:
    """Makes the named dataset available locally and returns its full name."""
    if size is None and is_dataset_name(name) and is_complete(name):
        return name
    if name.startswith(NAMESPACE):
        spec = parse_name(name, size)
        if not is_complete(spec.name) and not _pull(spec.name):
            build_dataset(spec, jobs=jobs, progress=progress)
        return spec.name
    if not is_dataset_name(name):
        raise DatasetNotFoundError(
            f"Expected a dataset's name like spin/cheetah-run-b3/medium-v0, got {name!r}."
        )
    root = Path(get_dataset_path(""))
    root.mkdir(parents=True, exist_ok=True)
    with exclusive_folder(root):  # one download at a time
        if not is_complete(name):  # another process may have been first
            _download_foreign(name)
    return name


def _folder(dataset: str | Path) -> Path | None:
    """Returns the folder that a path names; None for a dataset's name."""
    if isinstance(dataset, str) and not dataset.startswith(("/", ".", "~")):
        return None
    if "\0" in str(dataset):
        raise DatasetNotFoundError(f"There is no dataset {str(dataset)!r}.")
    return Path(os.path.expanduser(dataset))  # unlike Path's, leaves unknown users alone


def _open(folder: Path, trust: bool) -> MinariDataset:
    data = folder if (folder / "metadata.json").exists() else folder / "data"
    if not (data / "metadata.json").exists():
        raise DatasetNotFoundError(f"There is no Minari dataset in {folder}.")
    try:
        check_spaces(data, trust)
        return MinariDataset(data)
    except SpinError:
        raise
    except Exception as error:  # untrusted metadata can cause any error
        raise InvalidDatasetError(
            f"The dataset in {folder} cannot be read ({error!r}). Delete the folder to have it "
            "built or downloaded again."
        ) from error


def _pull(name: str) -> bool:
    """Downloads a dataset from MINARI_REMOTE, if that is set and has it."""
    try:
        return bool(os.environ.get("MINARI_REMOTE")) and pull_dataset(name)
    except DatasetNotFoundError:
        return False
    except (SpinError, MissingDependencyError) as error:
        warnings.warn(f"{error} Building {name} instead.", UserWarning, stacklevel=2)
        return False


def _download_foreign(name: str) -> None:
    """Downloads a dataset with Minari; an interrupted download leaves nothing behind."""
    folder = get_dataset_path(name)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with explained_full_disk(Path(get_dataset_path(""))):
            minari.download_dataset(name)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, DatasetWriteError) or not isinstance(error, Exception):
            raise
        reason = str(error)
        if isinstance(error, ImportError):  # Minari's text names its own extra
            reason = "huggingface_hub is missing; install it with `pip install 'spin-d3rlpy[hf]'`."
        raise DatasetNotFoundError(
            f"Dataset {name!r} is not in Minari's local folder and could not be downloaded: "
            f"{reason} {_local_datasets()}"
        ) from error


def _local_datasets() -> str:
    return f"Local datasets: {', '.join(minari.list_local_datasets()) or 'none'}."
