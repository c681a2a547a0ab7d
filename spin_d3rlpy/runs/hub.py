"""Policies to and from the Hugging Face hub, with a card."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from d3rlpy.base import DeviceArg

from spin_d3rlpy.algos.base import MultiDiscreteAlgo
from spin_d3rlpy.algos.config import SCALERS
from spin_d3rlpy.algos.saving import load_policy, save_policy
from spin_d3rlpy.errors import InvalidCheckpointError, shown
from spin_d3rlpy.files.atomic import write_text
from spin_d3rlpy.files.hub import hub_errors, require_token
from spin_d3rlpy.files.results import read_json
from spin_d3rlpy.files.untrusted import MAX_BYTES
from spin_d3rlpy.files.yaml_settings import read_settings
from spin_d3rlpy.runs.card import policy_card
from spin_d3rlpy.runs.training import CONFIG, POLICY, RESULT

CARD = "README.md"
HUB = "hf://"  # begins the name of a policy that is there
# As the hub has it: names do not begin or end with a dash or a dot, nor have two of them in a row.
_NAME = r"(?=.{1,96}(?:/|$))[A-Za-z0-9_](?:[A-Za-z0-9_]|[-.](?![-.]|/|$))*"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")


def save_for_hub(
    policy: MultiDiscreteAlgo[Any, Any] | str | Path,
    folder: str | Path,
    repo_id: str,
    license: str | None = None,  # noqa: A002
    trust: bool = False,
) -> Path:
    """Writes a policy and its card to a folder, as `push_to_hub` uploads them.

    The folder gets `policy.safetensors` and `README.md`, which replace files of these names. The
    card has the algorithm's config and, of the folder of a training, its dataset, settings and
    returns. Read it before you publish: it names your columns if a rule or a config does.

    Args:
        policy: a built algorithm, a file of `save_policy` or the folder of a finished training.
        folder: created if missing.
        repo_id: `"<user or organization>/<name>"`, which the card shows.
        license: identifier for the card, e.g. `"mit"`; the owners of the data decide it.
        trust: see `load_policy`; for policies with functions as rules.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: there is no such policy.
        InvalidCheckpointError: the file is not from `save_policy`.
        UntrustedRuleError: the policy has functions as rules, without `trust`.
        ValueError: `repo_id` is not of this form.
    """
    require_repository(repo_id)
    settings: dict[str, Any] = {}
    result: dict[str, Any] = {}
    if isinstance(policy, MultiDiscreteAlgo):
        algo = policy
    else:
        path = Path(policy)
        if path.is_dir():
            settings, result = _known_of_run(path)
            path = path / POLICY
        if not path.exists():
            raise FileNotFoundError(
                f"No policy {str(path)!r}. Expected a file of save_policy or the folder of a "
                "finished training."
            )
        algo = load_policy(path, trust=trust)
    folder = Path(folder)
    algo.require_built(SCALERS)  # before anything is written
    card = policy_card(algo, repo_id, license, settings, result)
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(algo, folder / POLICY)
    write_text(folder / CARD, card)
    return folder


def push_to_hub(
    policy: MultiDiscreteAlgo[Any, Any] | str | Path,
    repo_id: str,
    license: str | None = None,  # noqa: A002
    private: bool = False,
    revision: str | None = None,
    trust: bool = False,
) -> str:
    """Uploads a policy and its card to the Hugging Face hub in one commit.

    The repository is created if missing. Its earlier policy and card are replaced, and stay in its
    history. `policy`, `license` and `trust` are those of `save_for_hub`.

    Args:
        policy: a built algorithm, a file of `save_policy` or the folder of a finished training.
        repo_id: `"<user or organization>/<name>"`.
        license: identifier for the card.
        private: if the repository is created, only its owners may read it.
        revision: a branch that exists; the main one if None.
        trust: for policies with functions as rules.

    Returns:
        The location, `hf://<repo_id>`, which the command line takes as a policy.

    Raises:
        RemoteError: there is no token, or the upload failed.
        MissingDependencyError: `huggingface_hub` is not installed.
        ValueError: see `save_for_hub`, whose other errors are raised, too.
    """
    require_repository(repo_id)
    token = require_token(_repository(repo_id))
    import huggingface_hub

    with tempfile.TemporaryDirectory() as folder:
        save_for_hub(policy, folder, repo_id, license, trust)
        with hub_errors(_repository(repo_id)):
            api = huggingface_hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            message = "A policy of spin-d3rlpy"
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=revision, commit_message=message
            )
    return f"{HUB}{repo_id}"


def load_from_hub(
    repo_id: str | Path,
    revision: str | None = None,
    device: DeviceArg = False,
    max_bytes: int = MAX_BYTES,
    trust: bool = False,
) -> Any:
    """Reads a policy from the Hugging Face hub, or from a local folder of `save_for_hub`.

    It may be untrusted, as in `load_policy`: nothing in it is executed without `trust`. Of the
    repository only `policy.safetensors` is downloaded, into the hub's own cache.

    Args:
        repo_id: `"<user or organization>/<name>"`, or a folder, which is looked for first.
        revision: branch, tag or commit; the newest commit of the main branch if None. A commit
            always gives the same policy.
        device: where the algorithm is built.
        max_bytes: larger files are neither downloaded nor read.
        trust: import the functions that the policy has as rules.

    Raises:
        FileNotFoundError: the repository, revision or folder has no policy, or does not exist.
        InvalidCheckpointError: see `load_policy`.
        UntrustedRuleError: see `load_policy`.
        RemoteError: the hub is unusable.
        MissingDependencyError: `huggingface_hub` is not installed.
        ValueError: `repo_id` has another form, or a folder was given with a revision.
    """
    folder = Path(repo_id)
    if not folder.is_dir():
        require_repository(str(repo_id))
        file = _download(str(repo_id), revision, max_bytes)
        return load_policy(file, device, max_bytes, trust=trust)
    if revision is not None:
        raise ValueError(f"{folder} is a local folder, which has no {revision=}. Leave it out.")
    if not (folder / POLICY).exists():
        raise FileNotFoundError(
            f"The folder {folder} has no {POLICY}. Write one with save_for_hub, or with "
            f"save_policy under this name."
        )
    return load_policy(folder / POLICY, device, max_bytes, trust=trust)


def _known_of_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and result of a training, as far as its folder has them."""
    config, result = folder / CONFIG, folder / RESULT
    return (
        read_settings(config) if config.exists() else {},
        read_json(result) if result.exists() else {},
    )


def _download(repo_id: str, revision: str | None, max_bytes: int) -> Path:
    """Returns the policy's file in the hub's cache."""
    with hub_errors(_repository(repo_id)):
        import huggingface_hub
        from huggingface_hub import errors

        where: dict[str, Any] = {"repo_id": repo_id, "filename": POLICY, "revision": revision}
        try:
            on_hub: Any = huggingface_hub.hf_hub_download(**where, dry_run=True)
            if on_hub.file_size is not None and on_hub.file_size > max_bytes:
                raise InvalidCheckpointError(
                    f"{POLICY} of {repo_id} has {on_hub.file_size:,} bytes, more than "
                    f"{max_bytes=:,}. If you trust it, pass a larger max_bytes."
                )
            return Path(huggingface_hub.hf_hub_download(**where))
        except errors.LocalEntryNotFoundError:
            raise  # no network, and not in the cache
        except errors.EntryNotFoundError as error:
            raise FileNotFoundError(
                f"The repository {repo_id!r} has no {POLICY} at revision {revision or 'main'!r}. "
                "push_to_hub writes it."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise FileNotFoundError(
                f"The repository {repo_id!r} has no revision {revision!r}. Expected a branch, tag "
                "or commit of it."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FileNotFoundError(
                f"No repository or folder {repo_id!r} that you may read. Check its name, or, if it "
                "is private, your token (HF_TOKEN)."
            ) from error


def _repository(repo_id: str) -> str:
    return f"The hub's repository {repo_id!r}"


def require_repository(repo_id: str) -> None:
    """Raises ValueError unless this is the name of a repository of the hub."""
    if not _REPOSITORY.fullmatch(repo_id):
        raise ValueError(
            f"Expected a repository as <user or organization>/<name>, got {shown(repo_id)}. Names "
            "are of letters and digits, with single '-', '_' and '.' between them."
        )
