"""The client of the Hugging Face hub: its token, and its errors as this package's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spin_d3rlpy.errors import RemoteError, SpinError
from spin_envs import MissingDependencyError


@contextmanager
def hub_errors(where: str) -> Iterator[None]:
    """Context that turns the client's errors into those of this package.

    Args:
        where: what the client uses, for messages, e.g. a repository.

    Raises:
        MissingDependencyError: `huggingface_hub` is not installed.
        RemoteError: `where` is unusable.
    """
    try:
        yield
    except SpinError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            "The Hugging Face hub needs huggingface_hub: `pip install 'spin-d3rlpy[hf]'`."
        ) from error
    except Exception as error:
        # The client's errors may be FileNotFoundErrors, too; those of this package are just that.
        if type(error) is FileNotFoundError:
            raise
        raise RemoteError(
            f"{where} could not be used: {error} Check the network, that the user or organization "
            "exists, and your token's permissions."
        ) from error


def require_token(where: str) -> str:
    """Returns the user's token; raises RemoteError without one, and what `hub_errors` raises."""
    with hub_errors(where):
        import huggingface_hub

        token: str | None = huggingface_hub.get_token()
    if token is None:
        raise RemoteError("Pushing needs a Hugging Face token: set HF_TOKEN, or `hf auth login`.")
    return token
