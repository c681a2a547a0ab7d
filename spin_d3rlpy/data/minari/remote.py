"""Sharing datasets through the Hugging Face organization in `MINARI_REMOTE`."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

import minari
from minari import MinariDataset
from minari.namespace import create_namespace, list_local_namespaces, namespace_hierarchy
from minari.storage.remotes import get_cloud_storage

from spin_d3rlpy.data.minari.check import check_dataset
from spin_d3rlpy.data.minari.environments import open_minari
from spin_d3rlpy.data.minari.specs import is_dataset_name
from spin_d3rlpy.data.minari.staging import explained_full_disk, staged_dataset
from spin_d3rlpy.errors import DatasetNotFoundError, InvalidDatasetError, RemoteError
from spin_d3rlpy.files.hub import hub_errors, require_token

LICENSE = "mit"
_CARD = "README.md"
_TAGS = ("reinforcement-learning", "offline-rl", "minari", "multidiscrete-actions")


def push_dataset(dataset: MinariDataset, license: str | None = None) -> str:  # noqa: A002
    """Uploads a local dataset and its card to `MINARI_REMOTE` and returns its location.

    Minari keeps a namespace in one repository: `spin/cheetah-run-b3/medium-v0` is a folder of the
    repository `<organization>/spin`.

    Args:
        dataset: in Minari's local folder; checked before it is sent.
        license: identifier for the card, e.g. `"cc-by-4.0"`; required for imported data, whose
            authors decide it. Datasets built here have this package's.

    Raises:
        RemoteError: `MINARI_REMOTE` is not `hf://<organization>`, there is no token, the name is
            taken, or the upload failed.
        InvalidDatasetError: the dataset is damaged.
        MissingDependencyError: `huggingface_hub` is not installed.
        ValueError: no license for data that was not built by this package.
    """
    name = dataset.id
    if not re.fullmatch("hf://[^/]+", _remote()):
        raise RemoteError(
            "Expected the environment variable MINARI_REMOTE to be hf://<your user or "
            f"organization>, got {os.environ.get('MINARI_REMOTE')!r}."
        )
    organization = _remote().removeprefix("hf://")
    if license is None and "provenance" not in dataset.storage.metadata:
        raise ValueError(f"Expected a license: {name} was not built by spin-d3rlpy.")
    license = license or LICENSE  # noqa: A001
    token = require_token(_remote())
    report = check_dataset(dataset, replay_episodes=0)
    if report.problems:
        raise InvalidDatasetError(f"{name} cannot be shared. {report.problems[0]}")
    with hub_errors(_remote()):
        if name in minari.list_remote_datasets(prefix=name):
            raise RemoteError(
                f"hf://{organization} already has a dataset {name!r}. Remove it there first."
            )
        namespace = name.rpartition("/")[0]
        for parent in namespace_hierarchy(namespace):
            if parent not in list_local_namespaces():
                create_namespace(parent)
        minari.upload_dataset(name, token)
        card = dataset_card(dataset, license, report.summary())
        _upload_cards(name, card, organization, token, license)
    return f"hf://{organization}/{name}"


def pull_dataset(name: str, trust: bool = False) -> bool:
    """Atomically downloads a dataset from `MINARI_REMOTE`, by default Minari's.

    `trust` is that of `load_dataset`.

    Returns:
        False if it exists locally.

    Raises:
        DatasetNotFoundError: the remote does not have it; the message lists its datasets.
        InvalidDatasetError: the download is damaged.
        RemoteError: the remote is unusable.
        MissingDependencyError: `huggingface_hub` is not installed.
    """
    if not is_dataset_name(name):
        raise DatasetNotFoundError(
            f"Expected a dataset's name, <namespace>/<name>-v0, got {name!r}."
        )
    with staged_dataset(name) as staging:
        if staging is None:
            return False
        namespace = name.rpartition("/")[0]
        download = staging.data.with_name("download")
        with hub_errors(_remote()):
            there = minari.list_remote_datasets(prefix=namespace or name)
            if name not in there:
                raise DatasetNotFoundError(
                    f"{_remote()} has no dataset {name!r}. In {namespace} it has "
                    f"{', '.join(sorted(there)) or 'none'}. MINARI_REMOTE names another remote."
                )
            with explained_full_disk(staging.data.parent):
                get_cloud_storage().download_dataset(name, download)
            os.replace(download / name / "data", staging.data)
        shutil.rmtree(download)
        dataset = open_minari(staging.data, trust)
        if "checksum" in dataset.storage.metadata:
            problems = check_dataset(dataset, replay_episodes=0).problems
            if problems:
                raise InvalidDatasetError(
                    f"What {name} came as is not what was pushed. {problems[0]}"
                )
    return True


def dataset_card(dataset: MinariDataset, license: str, summary: str) -> str:  # noqa: A002
    """Returns a dataset's card for the Hugging Face hub, as Markdown."""
    metadata = dataset.storage.metadata
    paragraphs = [
        _front_matter(license),
        f"# {dataset.id}",
        metadata.get("description", ""),
        f"{metadata['dataset_size']} MB. Actions: `{dataset.action_space}`.",
        "```python\nfrom spin_d3rlpy import load_dataset\n\n"
        f'dataset, env = load_dataset("{dataset.id}")\n```',
        f"```text\n{summary}\n```",
    ]
    if "ref_max_score" in metadata:
        paragraphs.append(
            f"Normalized returns: {metadata['ref_min_score']} is 0 (random), "
            f"{metadata['ref_max_score']} is 100 (expert)."
        )
    if "provenance" in metadata:
        versions = metadata["provenance"]["versions"]
        paragraphs.append(f"Built with {', '.join(f'{k} {v}' for k, v in versions.items())}.")
    if "checksum" in metadata:
        paragraphs.append(f"Checksum of the episodes: `{metadata['checksum']}`.")
    return "\n\n".join([*paragraphs, f"License: {license}.\n"])


def _front_matter(license: str) -> str:  # noqa: A002
    return "\n".join(["---", f"license: {license}", "tags:", *(f"- {tag}" for tag in _TAGS), "---"])


def _upload_cards(name: str, card: str, organization: str, token: str, license: str) -> None:  # noqa: A002
    import huggingface_hub

    api = huggingface_hub.HfApi(token=token)
    repository, _, folder = name.partition("/")
    where: dict[str, Any] = {"repo_id": f"{organization}/{repository}", "repo_type": "dataset"}
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo=f"{folder}/{_CARD}", **where)
    if not api.file_exists(filename=_CARD, **where):  # where the hub looks for the license
        overview = f"{_front_matter(license)}\n\n# {repository}\n\nEach folder has a card.\n"
        api.upload_file(path_or_fileobj=overview.encode(), path_in_repo=_CARD, **where)


def _remote() -> str:
    return os.environ.get("MINARI_REMOTE") or "Minari's remote"
