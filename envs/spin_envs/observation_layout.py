"""Observations with images in them as flat rows: numbers first, then the pixels of all images.

Axes: `B` observations, `v` numbers, `p` pixels of all images, `obs = v + p`, `C` channels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray

from spin_envs.action_numbers import Path, place
from spin_envs.errors import ObservationShapeError

Pixels: TypeAlias = NDArray[np.uint8]

MAX_NUMBERS = 2**28  # of an observation


@dataclasses.dataclass(frozen=True)
class ObservationPart:
    """An array in an observation.

    Args:
        path: keys and positions that lead to it; none if it is the whole observation.
        shape: of the array.
        is_image: whether it is an image of uint8, `(C, H, W)`, `(H, W, C)` or `(H, W)`, or a stack
            of the last ones, such as `(n, H, W, C)`.
        starts: of whole numbers that become one-hot, the least value of each.
        sizes: likewise, how many values each has.
    """

    path: Path
    shape: tuple[int, ...]
    is_image: bool = False
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """How Python reaches it, such as `observation["camera"]`."""
        return place(self.path, "observation")

    @property
    def size(self) -> int:
        """Its columns in a row."""
        return sum(self.sizes) if self.sizes else math.prod(self.shape)

    @property
    def stack_shape(self) -> tuple[int, int, int, int]:
        """Shape of an image with four axes: one that is not stacked is a stack of one."""
        ones = (1,) * (4 - len(self.shape))
        n, first, second, third = ones + self.shape
        return n, first, second, third

    @property
    def has_channels_last(self) -> bool:
        """Whether an image's channels are its last axis: it is shorter than the one of the first.

        An image without channels has none.
        """
        _, first, _, third = self.stack_shape
        return third < first

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an image with channels first, `(C, H, W)`; a stack's channels are together."""
        n, first, second, third = self.stack_shape
        if self.has_channels_last:
            return n * third, first, second
        return n * first, second, third

    @property
    def space(self) -> Space[Any]:
        """A space of its values."""
        if self.is_image:
            return Box(0, 255, self.shape, np.uint8)
        if not self.sizes:
            return Box(-np.inf, np.inf, self.shape, np.float32)
        if not self.shape:
            return Discrete(self.sizes[0], start=self.starts[0])
        sizes, starts = (np.reshape(x, self.shape) for x in (self.sizes, self.starts))
        return MultiDiscrete(sizes, start=starts)

    def array(self, rows: NDArray[Any], n: int) -> NDArray[Any]:
        """Returns B rows `(B, size)` as its values `(B, ...)`; inverse of `rows`."""
        if self.sizes:
            one_hot = np.split(rows, np.cumsum(self.sizes)[:-1], axis=1)
            rows = np.stack([x.argmax(1) for x in one_hot], axis=1) + np.asarray(self.starts)
        return rows.reshape(n, *self.shape)

    def values(self, observations: Any) -> Any:
        """Returns this part of observations; an ObservationShapeError if they have none."""
        value = observations
        for key in self.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ObservationShapeError(
                    f"Expected observations with {self.where}, got {type(observations).__name__} "
                    "without it."
                ) from error
        return value

    def rows(self, observations: Any, n: int) -> NDArray[Any]:
        """Returns it for B observations as `(B, size)`: uint8 if it is an image, else float32.

        Raises:
            ObservationShapeError: it is of another shape or type.
        """
        try:
            array = np.asarray(self.values(observations))
        except ValueError:  # of several shapes
            array = np.empty(0, object)
        if array.shape != (n, *self.shape) or array.dtype.kind not in "biuf":
            wanted = "an image of uint8" if self.is_image else "numbers"
            raise ObservationShapeError(
                f"Expected {self.where} to be {wanted} of shape {self.shape}, as the space has it, "
                f"got shape {array.shape[1:]} and dtype {array.dtype}."
            )
        flat = array.reshape(n, -1)
        if self.is_image:
            return _as_pixels(flat, self.where)
        if not self.sizes:
            with np.errstate(over="ignore"):  # infinite, which is checked where it is kept
                return flat.astype(np.float32)
        columns = flat.astype(np.int64) - np.asarray(self.starts)
        if ((columns < 0) | (columns >= np.asarray(self.sizes))).any():
            raise ObservationShapeError(f"{self.where} has a value that its space does not have.")
        one_hot = [
            np.eye(m, dtype=np.float32)[c] for c, m in zip(columns.T, self.sizes, strict=True)
        ]
        return np.concatenate(one_hot, axis=1)


@dataclasses.dataclass(frozen=True)
class ObservationLayout:
    """Where the parts of an observation lie in a flat row, and which of them are images.

    Numbers come first, in the parts' order, then the pixels of the images: numbers from 0 to 255 in
    the order of the image's own axes.

    Args:
        parts: all of them; at least one is an image.
    """

    parts: tuple[ObservationPart, ...]

    @classmethod
    def of_space(cls, space: Space[Any]) -> ObservationLayout | None:
        """Returns that of a space; None if there is no image in it.

        Raises:
            ObservationShapeError: next to images there is a part that is neither an image nor
                numbers.
        """
        spaces = list(parts_of(space))
        if not any(_is_image(inner) for _, inner in spaces):
            return None
        return cls(tuple(_part(path, inner) for path, inner in spaces))

    @property
    def images(self) -> list[ObservationPart]:
        """The parts that are images."""
        return [part for part in self.parts if part.is_image]

    @property
    def numbers(self) -> list[ObservationPart]:
        """The other parts."""
        return [part for part in self.parts if not part.is_image]

    @functools.cached_property
    def n_numbers(self) -> int:
        """Columns of numbers (v)."""
        return sum(part.size for part in self.numbers)

    @functools.cached_property
    def n_pixels(self) -> int:
        """Columns of pixels (p)."""
        return sum(part.size for part in self.images)

    @property
    def size(self) -> int:
        """Length of a row (obs)."""
        return self.n_numbers + self.n_pixels

    @property
    def is_one_image(self) -> bool:
        """Whether an observation is an image and nothing else."""
        return len(self.parts) == 1 and not self.parts[0].path

    def split(self, observations: Any, n: int) -> tuple[NDArray[np.float32], Pixels]:
        """Returns B observations as numbers `(B, v)` float32 and pixels `(B, p)` uint8.

        Args:
            observations: as the space has them, in arrays of B rows; or rows `(B, obs)`.
            n: how many (B).

        Raises:
            ObservationShapeError: a part is missing, or of another shape or type.
        """
        if self._is_row(observations, n):
            numbers, pixels = np.split(observations, [self.n_numbers], axis=1)
            return numbers.astype(np.float32), _as_pixels(pixels, self.images[0].where)
        nothing: NDArray[Any] = np.empty((n, 0), np.float32)
        of_numbers = [part.rows(observations, n) for part in self.numbers]
        of_images = [part.rows(observations, n) for part in self.images]
        return np.concatenate([nothing, *of_numbers], axis=1), np.concatenate(of_images, axis=1)

    def rows(self, observations: Any, n: int) -> NDArray[np.float32]:
        """Returns B observations as rows `(B, obs)` float32; arguments as of `split`."""
        numbers, pixels = self.split(observations, n)
        rows: NDArray[np.float32] = np.concatenate([numbers, pixels.astype(np.float32)], axis=1)
        return rows

    def joined(self, numbers: NDArray[np.float32], pixels: Pixels) -> Any:
        """Returns B observations as the space has them, in arrays of B rows; inverse of `split`."""
        values, taken = {}, {True: 0, False: 0}
        for part in self.parts:
            columns = slice(taken[part.is_image], taken[part.is_image] + part.size)
            taken[part.is_image] = columns.stop
            rows: NDArray[Any] = (pixels if part.is_image else numbers)[:, columns]
            values[part.path] = part.array(rows, len(numbers))
        return self._nested(values)

    @property
    def space(self) -> Space[Any]:
        """A space of such observations; bounds of numbers are not known."""
        space: Space[Any] = self._nested(
            {part.path: part.space for part in self.parts}, Dict, Tuple
        )
        return space

    def _nested(self, parts: Mapping[Path, Any], *kinds: Any) -> Any:
        """Puts parts where their paths lead; keys are of dicts, positions of tuples."""
        if () in parts:
            return parts[()]
        of_dict, of_tuple = kinds or (dict, tuple)
        inside: dict[Any, dict[Path, Any]] = {}
        for (first, *rest), part in parts.items():
            inside.setdefault(first, {})[tuple(rest)] = part
        values = {key: self._nested(inner, *kinds) for key, inner in inside.items()}
        is_tuple = all(isinstance(key, int) for key in values)
        return of_tuple([values[i] for i in sorted(values)]) if is_tuple else of_dict(values)

    def row(self, observation: Any) -> NDArray[np.float32]:
        """Returns one observation as a row `(obs,)`; errors as of `split`."""
        row: NDArray[np.float32] = self.rows(self.stacked([observation]), 1)[0]
        return row

    def stacked(self, observations: Sequence[Any]) -> Any:
        """Returns observations with all their parts in arrays of a row each, for `split`.

        Raises:
            ObservationShapeError: a part is missing, or of another shape in one of them.
        """
        if all(self._is_row(observation) for observation in observations):
            rows: NDArray[np.float32] = np.stack(observations)
            return rows
        if not self.parts[0].path:
            return _stack(self.parts[0], observations)
        tree: dict[Any, Any] = {}
        for part in self.parts:
            *above, last = part.path
            inside = tree
            for key in above:
                inside = inside.setdefault(key, {})
            inside[last] = _stack(part, observations)
        return tree

    def count(self, observations: Any) -> int:
        """Returns how many observations there are in arrays of a row each (B).

        Raises:
            ObservationShapeError: there is no array of images.
        """
        if isinstance(observations, np.ndarray):
            return len(observations) if observations.ndim else 0
        shape = np.shape(self.images[0].values(observations))
        return shape[0] if shape else 0

    def is_single(self, observation: Any) -> bool:
        """Whether it is one observation, as the space has it or as a row, not several."""
        first = self.images[0]
        if isinstance(observation, np.ndarray) and not self.is_one_image:
            return observation.ndim == 1
        if self._is_row(observation):
            return True
        shape = np.shape(first.values(observation))
        return len(shape) == len(first.shape) and shape[1:] != (self.size,)

    def _is_row(self, observations: Any, *n: int) -> bool:
        return isinstance(observations, np.ndarray) and observations.shape == (*n, self.size)

    def in_order_of(self, other: ObservationLayout) -> ObservationLayout:
        """Returns another layout with the same parts, for observations of these spaces.

        Raises:
            ObservationShapeError: it has other parts, or a part of another shape.
        """
        mine = {part.path: part for part in self.parts}
        for part in other.parts:
            own = mine.pop(part.path, None)
            if own != part:
                raise ObservationShapeError(
                    f"Expected {part.where} to be {_described(part)}, got "
                    f"{'no such part' if own is None else _described(own)}."
                )
        for part in mine.values():
            raise ObservationShapeError(f"Expected no {part.where}, got {_described(part)}.")
        return other

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"parts": [dataclasses.asdict(part) for part in self.parts]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ObservationLayout:
        """Inverse of `to_dict`; ValueError if it is none."""
        try:
            parts = tuple(_part_from(given) for given in content["parts"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Expected the parts of an observation, got {content!r:.100}."
            ) from error
        if not any(part.is_image for part in parts) or sum(p.size for p in parts) > MAX_NUMBERS:
            raise ValueError(f"Expected an observation with images, got {content!r:.100}.")
        return cls(parts)


def _stack(part: ObservationPart, observations: Sequence[Any]) -> NDArray[Any]:
    values = [np.asarray(part.values(observation)) for observation in observations]
    for value in values:
        if value.shape != part.shape:
            part.rows(_nested(part.path, value[None]), 1)  # says what is wrong
    return np.stack(values)


def _as_pixels(flat: NDArray[Any], where: str) -> Pixels:
    if flat.dtype == np.uint8:
        return flat
    pixels: Pixels = np.clip(np.nan_to_num(flat), 0, 255).astype(np.uint8)
    if (pixels != flat).any():
        raise ObservationShapeError(
            f"Expected the pixels of {where} to be whole numbers from 0 to 255, got "
            f"{np.min(flat):g} to {np.max(flat):g}, of {flat.dtype}."
        )
    return pixels


def _nested(path: Path, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _described(part: ObservationPart) -> str:
    return f"{'an image' if part.is_image else 'numbers'} of shape {part.shape}"


def parts_of(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Yields the parts of nested `Dict` and `Tuple` spaces, with the keys that lead to them."""
    if isinstance(space, Dict | Tuple):
        inside = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, inner in inside:
            yield from parts_of(inner, (*path, key))
    else:
        yield path, space


def _is_image(space: Space[Any]) -> bool:
    return isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) > 1


def _part(path: Path, space: Space[Any]) -> ObservationPart:
    shape = tuple(int(length) for length in space.shape or ())
    part = ObservationPart(path, shape, _is_image(space))
    if part.is_image and len(shape) > 4:
        raise ObservationShapeError(
            f"Expected {part.where} to be an image of two or three axes, or a stack of them, got "
            f"shape {shape}."
        )
    if isinstance(space, Box | MultiBinary):
        return part
    if isinstance(space, Discrete | MultiDiscrete):
        sizes: Any = space.n if isinstance(space, Discrete) else space.nvec
        starts, sizes = (tuple(np.ravel(x).tolist()) for x in (space.start, sizes))
        return dataclasses.replace(part, starts=starts, sizes=sizes)
    raise ObservationShapeError(
        f"Expected {part.where} to be an image, or numbers (Box, Discrete, MultiBinary or "
        f"MultiDiscrete), got {space}. Leave it out or convert it in a wrapper."
    )


def _part_from(given: Mapping[str, Any]) -> ObservationPart:
    path, numbers = tuple(given["path"]), []
    for name in ("shape", "starts", "sizes"):
        values = tuple(given[name])
        if not all(type(x) is int and abs(x) <= MAX_NUMBERS for x in values):
            raise ValueError(f"Expected whole numbers as {name}, got {values!r:.100}.")
        numbers.append(values)
    shape, starts, sizes = numbers
    is_image = given["is_image"]
    axes = (2, 3, 4) if is_image else range(20)
    if (
        not all(type(key) in (str, int) for key in path)
        or type(is_image) is not bool
        or len(shape) not in axes
        or min((*shape, *sizes), default=1) < (1 if is_image else 0)
        or len(starts) != len(sizes)
        or len(sizes) not in (0, math.prod(shape))
    ):
        raise ValueError(f"Expected a part of an observation, got {given!r:.100}.")
    return ObservationPart(path, shape, is_image, starts, sizes)
