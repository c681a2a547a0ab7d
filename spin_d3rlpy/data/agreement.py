"""Whether an environment's observations are made as a dataset's are.

Both can be a vector of the right length and yet differ: in the order of features, in scaling, by a
wrapper with running means. A policy then sees in the environment what it never saw in the data.
"""

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Space, Tuple
from gymnasium.spaces.utils import flatten, flatten_space
from gymnasium.wrappers import FlattenObservation, TransformObservation
from numpy.typing import NDArray

from spin_d3rlpy.data.buffer.device_buffer import DeviceReplayBuffer
from spin_d3rlpy.data.buffer.masks import INFO
from spin_d3rlpy.data.observation_spaces import is_vector
from spin_d3rlpy.errors import InvalidDatasetError
from spin_envs.copies import as_it_was

AnyEnv = gymnasium.Env[Any, Any]
RESETS = 16  # first observations of as many episodes are compared
SECONDS = 2.0  # that they may take; simulators differ
_FEWEST = 4  # that tell how a feature varies
_ROWS = 20_000  # of the data, that tell a feature's range
_NAMED = 10  # features in a message
_MARGIN = 0.5  # of a feature's range in the data, that an environment may leave it by
_RATIO = 5.0  # of how much two samples of one distribution vary
_CHANCE = 1e-6  # that a feature is named although nothing differs
_ROUNDING = 1e-4  # of a feature's size, by which computing in another type may move it


def flattened(env: AnyEnv, space: Space[Any]) -> AnyEnv:
    """Returns an environment whose observations are flattened as those of a dataset's space are.

    Raises:
        InvalidDatasetError: its observations have other parts than the dataset's.
    """
    own = env.observation_space
    if is_vector(own):
        return env
    if not isinstance(space, Dict | Tuple) or _parts(own) == _parts(space):
        return FlattenObservation(env)
    if sorted(_parts(own)) != sorted(_parts(space)):
        raise InvalidDatasetError(
            f"Expected an environment whose observations have the dataset's parts "
            f"{', '.join(_parts(space))}, got {', '.join(_parts(own))}."
        )
    # Their order is the data's.
    return TransformObservation(env, functools.partial(flatten, space), flatten_space(space))


def _parts(space: Space[Any], name: str = "") -> list[str]:
    """Names of a space's flat parts, in order."""
    if not isinstance(space, Dict | Tuple):
        return [name]
    inside = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
    return [part for key, inner in inside for part in _parts(inner, f"{name}.{key}".strip("."))]


def check_observations(env: AnyEnv, buffer: DeviceReplayBuffer, what: str, given: bool) -> None:
    """Warns if first observations of episodes are none that the dataset could have.

    The environment is reset a few times, and left with the random numbers and wrappers that it had.

    Raises:
        InvalidDatasetError: an environment that a user gave returns observations of another shape;
            of one that the dataset names, that is a warning.
    """
    first, has_masks = _first_observations(env)
    size, n_numbers = buffer.observation_size, buffer.observations.shape[1]
    for observation in first:
        if observation.shape != (size,) or observation.dtype.kind not in "biuf":
            text = (
                f"Expected observations of shape {(size,)} of the environment, as {what} has them, "
                f"got shape {observation.shape} and dtype {observation.dtype}."
            )
            if given:
                raise InvalidDatasetError(text)
            warnings.warn(text, UserWarning, stacklevel=3)
            return
    if not first:
        return
    # Of images the shape is all that is compared.
    problems = _differing(np.stack(first)[:, :n_numbers].astype(np.float64), buffer)
    if problems:
        named = "; ".join(problems[:_NAMED])
        more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        warnings.warn(
            f"The environment's observations do not look like those of {what}, at an episode's "
            f"start: {named}{more}. Expected the same order of features, scaling and wrappers, and "
            "what wrappers have learned, such as running means. What a policy does there says "
            "little until they agree.",
            UserWarning,
            stacklevel=3,
        )
    if buffer.masks is not None and not has_masks:
        warnings.warn(
            f"The states of {what} have masks, those of the environment have none in "
            f"info[{INFO!r}]: policies may do there what no mask allowed.",
            UserWarning,
            stacklevel=3,
        )


def _first_observations(env: AnyEnv) -> tuple[list[NDArray[Any]], bool]:
    """Returns first observations of a few episodes, and whether masks come with them."""
    first: list[NDArray[Any]] = []
    has_masks = True
    began = time.monotonic()
    with as_it_was(env):
        while len(first) < RESETS and time.monotonic() - began < SECONDS:
            try:
                observation, info = env.reset(seed=len(first))
            except Exception:  # its data are of use without it
                break
            first.append(np.array(observation))
            has_masks &= info.get(INFO) is not None
    return first, has_masks


def _differing(first: NDArray[np.float64], buffer: DeviceReplayBuffer) -> list[str]:
    """Says how features of first observations `(n, obs)` differ from the data's."""
    n = len(buffer.observations)
    rows = buffer.observations[:: max(1, n // _ROWS)].cpu().numpy()
    low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    starts = buffer.episode_starts[:-1].cpu().numpy()
    # Episode i's T + 1 observations begin i rows after its first transition's number.
    begin = (starts + np.arange(len(starts)))[: 16 * RESETS]
    data = buffer.observations[begin.tolist()].cpu().numpy().astype(np.float64)
    margin = _MARGIN * (high - low) + 1e-6 * (np.abs(low) + np.abs(high)) + 1e-9
    outside = (first < low - margin).all(0) | (first > high + margin).all(0)
    problems = []
    for i in range(first.shape[1]):
        text = f"feature {i} is {_range(first[:, i])}, in the data {_range(data[:, i])}"
        if outside[i] or (
            min(len(first), len(data)) >= _FEWEST and _varies_otherwise(first[:, i], data[:, i])
        ):
            problems.append(text)
    return problems


def _range(values: NDArray[np.float64]) -> str:
    low, high = values.min(), values.max()
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _varies_otherwise(first: NDArray[np.float64], data: NDArray[np.float64]) -> bool:
    """Whether two samples of a feature cannot be of one distribution."""
    one, other = _spread(first), _spread(data)
    # Few different values, such as flags, vary by chance.
    few = min(len(np.unique(first)), len(np.unique(data))) <= min(len(first), len(data)) // 2
    if not few and max(one, other) > _RATIO * min(one, other):
        return True
    apart = abs(float(np.median(first) - np.median(data)))
    if apart <= _ROUNDING * max(np.abs(first).max(), np.abs(data).max()):
        return False
    # Kolmogorov and Smirnov's test, by its asymptotic distribution.
    points = np.sort(np.concatenate([first, data]))
    below = [np.searchsorted(np.sort(x), points, "right") / len(x) for x in (first, data)]
    distance = float(np.abs(below[0] - below[1]).max())
    n = len(first) * len(data) / (len(first) + len(data))
    return bool(2.0 * np.exp(-2.0 * n * distance**2) < _CHANCE)


def _spread(values: NDArray[np.float64]) -> float:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(high - low)
