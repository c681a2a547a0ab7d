"""Loading datasets by name, with their environment."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import minari
from d3rlpy.dataset import ReplayBufferBase
from minari import MinariDataset
from minari.storage import get_dataset_path

from spin_d3rlpy.data.action_spaces import with_flat_actions
from spin_d3rlpy.data.agreement import check_observations, flattened
from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.named_rewards import RewardFunction, Weights
from spin_d3rlpy.data.layouts import layout_of
from spin_d3rlpy.data.minari.builder import build_dataset
from spin_d3rlpy.data.minari.environments import make_environment, open_minari
from spin_d3rlpy.data.minari.info_rewards import RewardSource
from spin_d3rlpy.data.minari.remote import pull_dataset
from spin_d3rlpy.data.minari.sources import largest_choices
from spin_d3rlpy.data.minari.specs import NAMESPACE, is_dataset_name, parse_name
from spin_d3rlpy.data.minari.staging import is_complete
from spin_d3rlpy.data.observation_spaces import with_flat_observations
from spin_d3rlpy.data.v1_files import is_v1_file, read_v1
from spin_d3rlpy.errors import (
    DatasetNotFoundError,
    InvalidDatasetError,
    SpinError,
)
from spin_d3rlpy.nvec import nvec_from_space, require_same_nvec
from spin_envs import FlatActions, MissingDependencyError, ObservationLayout
from spin_envs.flat_actions import BinsOf

DatasetLike: TypeAlias = str | Path | MinariDataset


def load_dataset(
    dataset: DatasetLike,
    *,
    size: int | None = None,
    jobs: int | None = None,
    progress: bool = True,
    max_episodes: int | None = None,
    bins: BinsOf | FlatActions | None = None,
    memory_map: bool | str | Path = False,
    trust: bool = False,
    env: gymnasium.Env[Any, Any] | str | None = None,
    rewards: Mapping[str, RewardSource] | None = None,
    weights: Weights | RewardFunction | None = None,
) -> tuple[DeviceReplayBuffer, gymnasium.Env[Any, Any]]:
    """Loads a dataset and its environment, building the dataset on first use.

    A name is looked up in Minari's local folder, then in `MINARI_REMOTE` if set; a `spin/...`
    dataset found in neither is built. Names of other namespaces are downloaded if needed, by
    default from Minari's remote (extra `hf`: `pip install "spin-d3rlpy[hf]"`).

    Args:
        dataset: a name like `"spin/cheetah-run-b3/medium-expert-v0"`, a `minari.MinariDataset`, or
            the path of a dataset's folder (a `Path`, or text that begins with `/`, `.`, `~`).
        size: number of transitions (a multiple of 1,000) of a smaller `spin/...` dataset with the
            same composition, stored under its own name.
        jobs: number of processes for building; all CPU cores if None.
        progress: draw a progress bar while building.
        max_episodes: read only the first ones.
        bins: for continuous actions (`Box`), the number of values per dimension (one for all, or
            one each), rounded to the nearest; or `Bins`, or all of these by name, see
            `spin_envs.FlatActions`, which act the mean of the dataset's values. Continuous parts of
            a `Dict` or `Tuple` need them, too, where a number means equal bins. The `flat_actions`
            of another dataset or of a policy give the same bins again. The environment is
            discretized alike.
        memory_map: keep observations in a file, in the dataset's folder (True) or the given one,
            for datasets larger than memory. It takes disk space until the process ends.
        trust: make the environment with any function that the metadata name. Otherwise it must be
            registered with Gymnasium: first import the package that registers it.
        env: the environment, or its id for `gymnasium.make`, instead of the one that the dataset
            names, if any.
        rewards: several rewards of each step by name: keys of the data's infos, or functions of an
            episode's observations `(T + 1, obs)`, actions `(T, N)` and rewards `(T,)` that return
            `(T,)`. A dataset that `save_dataset` wrote with several has them without being told.
        weights: of these rewards in the one that is trained by, or a function from a dictionary of
            arrays `(n,)`, the rewards by name, to the trained reward `(n,)`.

    Returns:
        The dataset in main memory (algorithms move it to their device) and the environment, both
        with flat observations, whose parts have the data's order (with images, numbers come first,
        see `spin_envs.FlattenImages`). Where the environment's actions
        are others than slots of choices, it comes in a `spin_envs.FlattenAction`, and the dataset
        keeps how they are converted as `flat_actions`. A warning names features whose first values
        in an episode are not the data's, such as of another scale; for that the environment is
        reset a few times, unless it is one of `spin/...`.

    Raises:
        DatasetNotFoundError: no such dataset; near matches are listed.
        InvalidDatasetError: it is damaged, unusable for MultiDiscrete offline RL, or its
            environment is unknown or not registered, or `env` has observations of another size.
        NvecMismatchError: `env` has other actions than the dataset.
        InvalidActionSpaceError: likewise, of an environment whose actions are converted.
        InvalidObservationError: `env` has other images than the dataset.
        RemoteError: it could not be downloaded.
        MissingDependencyError: the environment's simulator is not installed.
        ValueError: `size`, `jobs` or `bins` is out of range, or `rewards` and `weights` do not fit.
    """
    minari_dataset = open_dataset(dataset, size, jobs, progress, trust)
    map_in = None
    if memory_map is not False:
        map_in = Path(minari_dataset.storage.data_path if memory_map is True else memory_map)
    buffer = DeviceReplayBuffer.from_minari(
        minari_dataset, max_episodes, bins, map_in, rewards, weights
    )
    if env is None:
        made = make_environment(minari_dataset, trust)
    else:
        made = gymnasium.make(env) if isinstance(env, str) else env
    if buffer.layout is None and bins is None:
        buffer.layout = layout_of(made)
    if buffer.observation_layout is not None:
        made = with_flat_observations(made, buffer.observation_layout)
    made = flattened(made, minari_dataset.observation_space)
    made = with_flat_actions(made, buffer.flat_actions)
    if env is not None:
        _check_fit(made, buffer)
    if env is not None or not minari_dataset.id.startswith(NAMESPACE):
        check_observations(made, buffer, f"dataset {minari_dataset.id}", given=env is not None)
    return buffer, made


def _check_fit(env: gymnasium.Env[Any, Any], buffer: DeviceReplayBuffer) -> None:
    """Raises if an environment's spaces are not the dataset's."""
    nvec = nvec_from_space(env.action_space)
    require_same_nvec(nvec, buffer.nvec, "The environment", "the dataset")
    size = buffer.observation_size
    if env.observation_space.shape != (size,):
        raise InvalidDatasetError(
            f"Expected an environment with observations of shape {(size,)}, as the dataset has "
            f"them, got {env.observation_space}."
        )


def as_device_buffer(
    dataset: Any,
    nvec: Sequence[int] | None = None,
    observation_layout: ObservationLayout | None = None,
    flat_actions: FlatActions | None = None,
) -> DeviceReplayBuffer:
    """Converts anything that `fit` accepts; raises InvalidDatasetError for the rest.

    `nvec` are the numbers of choices, which a d3rlpy buffer lacks; without it the largest choices
    seen are used, with a warning. `observation_layout` says where a d3rlpy buffer's rows have
    images, `flat_actions` how a stored dataset's actions are read that are no choices yet, where
    its space is the same. Raises NvecMismatchError if the dataset has others.
    """
    if is_v1_file(dataset):
        dataset = read_v1(dataset)
    if isinstance(dataset, ReplayBufferBase) and not isinstance(dataset, DeviceReplayBuffer):
        if nvec is None:
            nvec = largest_choices(dataset)
            warnings.warn(
                f"A d3rlpy ReplayBuffer lacks the number of choices. Using nvec={nvec} from the "
                "largest ones seen. Pass nvec=[...] to the algorithm, env= to save_dataset.",
                UserWarning,
                stacklevel=2,
            )
        return DeviceReplayBuffer.from_replay_buffer(dataset, nvec, observation_layout)
    if isinstance(dataset, DatasetLike):
        dataset = read_as(open_dataset(dataset), flat_actions)
    if not isinstance(dataset, DeviceReplayBuffer):
        raise InvalidDatasetError(
            "Expected a dataset's name, a minari.MinariDataset, a d3rlpy ReplayBuffer or a "
            f"DeviceReplayBuffer, got {type(dataset).__name__}."
        )
    if nvec is not None:
        require_same_nvec(nvec, dataset.nvec, "The algorithm", "the dataset")
    return dataset


def read_as(dataset: MinariDataset, flat_actions: FlatActions | None) -> DeviceReplayBuffer:
    """Reads a dataset, continuous actions by the bins that a policy or another dataset has."""
    if flat_actions is None or flat_actions.is_exact or flat_actions.space != dataset.action_space:
        flat_actions = None
    return DeviceReplayBuffer.from_minari(dataset, bins=flat_actions)


def open_dataset(
    dataset: DatasetLike,
    size: int | None = None,
    jobs: int | None = None,
    progress: bool = True,
    trust: bool = False,
) -> MinariDataset:
    """Opens a dataset without reading it; see `load_dataset`.

    Raises:
        ValueError: `size` for a dataset that is not built by name.
        DatasetNotFoundError: there is no such dataset.
    """
    by_name = isinstance(dataset, str) and _folder(dataset) is None
    if size is not None and not (by_name and str(dataset).startswith(NAMESPACE)):
        raise ValueError("size= is for datasets that are built by name, spin/...")
    if isinstance(dataset, MinariDataset):
        return dataset
    if by_name:
        dataset = _provide(str(dataset), size, jobs, progress, trust)
    return open_local(dataset, trust)


def open_local(dataset: str | Path, trust: bool = False) -> MinariDataset:
    """Opens a local dataset by name or path; builds and downloads nothing.

    Raises:
        DatasetNotFoundError: there is no such dataset on this machine.
    """
    folder, name = _folder(dataset), str(dataset)
    if folder is None:
        if not is_dataset_name(name) or not is_complete(name):
            raise DatasetNotFoundError(
                f"There is no dataset {name!r} on this machine. Local datasets: "
                f"{', '.join(minari.list_local_datasets()) or 'none'}."
            )
        folder = get_dataset_path(name)
    data = folder if (folder / "metadata.json").exists() else folder / "data"
    if not (data / "metadata.json").exists():
        raise DatasetNotFoundError(f"There is no Minari dataset in {folder}.")
    return open_minari(data, trust)


def _provide(name: str, size: int | None, jobs: int | None, progress: bool, trust: bool) -> str:
    """Makes the named dataset available locally and returns its full name."""
    if size is None and is_dataset_name(name) and is_complete(name):
        return name
    if not name.startswith(NAMESPACE):
        pull_dataset(name, trust)
        return name
    spec = parse_name(name, size)
    if not is_complete(spec.name) and not _pull(spec.name):
        build_dataset(spec, jobs=jobs, progress=progress)
    return spec.name


def _folder(dataset: str | Path) -> Path | None:
    """Returns the folder that a path names; None for a dataset's name."""
    if isinstance(dataset, str) and not dataset.startswith(("/", ".", "~")):
        return None
    if "\0" in str(dataset):
        raise DatasetNotFoundError(f"There is no dataset {str(dataset)!r}.")
    return Path(os.path.expanduser(dataset))  # unlike Path's, leaves unknown users alone


def _pull(name: str) -> bool:
    """Downloads a dataset from MINARI_REMOTE, if that is set and has it."""
    try:
        return bool(os.environ.get("MINARI_REMOTE")) and pull_dataset(name)
    except DatasetNotFoundError:
        return False
    except (SpinError, MissingDependencyError) as error:
        warnings.warn(f"{error} Building {name} instead.", UserWarning, stacklevel=2)
        return False
