"""Networks of flat rows with images in them: what encodes the images, and where it comes in.

A network is built for the length of its rows. Where there are images that is a `RowSize`, which
knows them, and `behind_images` puts an encoder before the network's first layer.

Axes: `B` rows, `n` observations of a row, `v` numbers and `p` pixels of an observation, `C`
channels.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from d3rlpy.models.encoders import (
    EncoderFactory,
    PixelEncoderFactory,
    make_encoder_field,
    register_encoder_factory,
)
from d3rlpy.serializable_config import SerializableConfig
from torch import nn

from spin_envs import ObservationLayout

Transform: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass()
class ImageEncoderFactory(EncoderFactory):
    """d3rlpy's encoder of images, with convolutions that fit images of any size.

    The first one moves by four pixels where an image has 20 rows and columns or more, the others by
    two, until fewer than five rows or columns are left. Activations are smooth (swish): with ReLUs,
    d3rlpy's default, most features are 0 for all images after a while of fast learning, and stay.

    Args:
        feature_size: numbers that an image becomes.
        channels: of the first convolution; the second has twice as many, all others four times.
    """

    feature_size: int = 64
    channels: int = 16

    def create(self, observation_shape: Any) -> Any:
        """Returns an encoder of images `(B, C, H, W)`, of this shape `(C, H, W)`."""
        side = min(observation_shape[1:])
        filters: list[list[int]] = []
        while side >= 5:
            kernel, stride = (8, 4) if side >= 20 and not filters else (3, 2)
            filters.append([self.channels * 2 ** min(len(filters), 2), kernel, stride])
            side = (side - kernel) // stride + 1
        own = PixelEncoderFactory(filters, self.feature_size, activation="swish")
        return own.create(observation_shape)

    @staticmethod
    def get_type() -> str:
        return "spin_image"


register_encoder_factory(ImageEncoderFactory)


class RowSize(int):
    """Length of rows in which there are images.

    A row holds an observation as `ObservationLayout` has it, or several, and then other numbers,
    as `spin_d3rlpy.histories` has them.

    Attributes:
        layout: of one observation.
        n_observations: of a row (n).
        n_others: numbers of a row after its observations.
        factory: makes the images' encoders, networks from `(B, C, H, W)` to `(B, features)`.
    """

    layout: ObservationLayout
    n_observations: int
    n_others: int
    factory: EncoderFactory

    @classmethod
    def of(
        cls,
        layout: ObservationLayout,
        factory: EncoderFactory,
        n_observations: int = 1,
        n_others: int = 0,
    ) -> RowSize:
        """Returns the length of such rows."""
        size = cls(n_observations * layout.size + n_others)
        size.layout, size.factory = layout, factory
        size.n_observations, size.n_others = n_observations, n_others
        return size

    def to_dict(self) -> dict[str, Any]:
        """Returns what is known of the rows as JSON values."""
        return {
            "layout": self.layout.to_dict(),
            "factory": json.loads(_FactoryHolder(self.factory).serialize())["factory"],
            "n_observations": self.n_observations,
            "n_others": self.n_others,
        }

    @classmethod
    def from_dict(cls, content: Any, length: int) -> RowSize:
        """Inverse of `to_dict`, of rows of a length; ValueError or KeyError if it is none."""
        layout = ObservationLayout.from_dict(content["layout"])
        factory = _FactoryHolder.deserialize(json.dumps({"factory": content["factory"]})).factory
        numbers = content["n_observations"], content["n_others"]
        if not all(type(n) is int for n in numbers) or numbers[0] < 1 or numbers[1] < 0:
            raise ValueError(f"expected numbers of observations and of others, got {numbers}")
        size = cls.of(layout, factory, *numbers)
        if size != length:
            raise ValueError(f"expected rows of {length} numbers, their images say {size}")
        return size

    @property
    def n_numbers(self) -> int:
        """Numbers of a row that are no pixels."""
        return self.n_observations * self.layout.n_numbers + self.n_others

    def numbers(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the numbers of rows `(B, row)` that are no pixels, `(B, n * v + others)`."""
        if self.n_observations == 1:
            return rows[:, : self.layout.n_numbers]
        seen, others = self._observations(rows)
        return torch.cat([seen[:, :, : self.layout.n_numbers].flatten(1), others], dim=1)

    def with_numbers(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Returns rows `(B, row)` with other numbers, in the order of `numbers`."""
        v = self.layout.n_numbers
        if self.n_observations == 1:
            return torch.cat([numbers, rows[:, v:]], dim=1)
        seen, _ = self._observations(rows)
        ends = self.n_observations * v
        changed = numbers[:, :ends].unflatten(1, (self.n_observations, v))
        changed = torch.cat([changed, seen[:, :, v:]], dim=2)
        return torch.cat([changed.flatten(1), numbers[:, ends:]], dim=1)

    def images(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Returns the images of rows, from 0 to 255, `(B, n * C, H, W)` each."""
        seen, _ = self._observations(rows)
        pixels = seen[:, :, self.layout.n_numbers :]
        images = []
        for flat, part in zip(
            pixels.split([part.size for part in self.layout.images], dim=2),
            self.layout.images,
            strict=True,
        ):
            image = flat.unflatten(2, part.stack_shape)
            if part.has_channels_last:
                image = image.movedim(5, 3)
            images.append(image.flatten(1, 3))
        return images

    @property
    def part_names(self) -> list[str]:
        """Names of what `parts` returns."""
        if self.n_observations > 1:
            return ["observations"]
        numbers = ["numbers"] if self.layout.n_numbers else []
        images = ["/".join(map(str, part.path)) or "observations" for part in self.layout.images]
        return numbers + images

    def parts(self, rows: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Returns rows `(B, row)` as exported files take observations.

        That is an image `(B, ...)` uint8 of the space's shape, or a tuple of the numbers `(B, v)`,
        if there are some, and of each image. Rows of a history stay rows.
        """
        if self.n_observations > 1:
            return rows
        images = self.layout.images
        pixels = rows[:, self.layout.n_numbers :].split([part.size for part in images], dim=1)
        parts = [rows[:, : self.layout.n_numbers]] if self.layout.n_numbers else []
        for flat, part in zip(pixels, images, strict=True):
            parts.append(flat.unflatten(1, part.shape).to(torch.uint8))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def rows(self, parts: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Inverse of `parts`."""
        listed = (parts,) if isinstance(parts, torch.Tensor) else parts
        return torch.cat([part.flatten(1).float() for part in listed], dim=1)

    def _observations(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a row's observations `(B, n, v + p)` and its other numbers `(B, others)`."""
        end = self.n_observations * self.layout.size
        seen = rows[:, :end].unflatten(1, (self.n_observations, self.layout.size))
        return seen, rows[:, end:]


@dataclasses.dataclass()
class _FactoryHolder(SerializableConfig):
    """Holds a factory, which d3rlpy encodes only as a field of a config."""

    factory: EncoderFactory = make_encoder_field()


class RowEncoder(nn.Module):
    """Maps rows `(..., row)` to their numbers and the features of their images, `(..., encoded)`.

    Pixels become numbers from 0 to 1 first. Rows that are encoded already stay as they are, so that
    whoever looks at the same rows several times can encode them once (`encode_images`).

    Args:
        size: of the rows.

    Raises:
        ValueError: the factory makes no encoder of an image's shape.
    """

    def __init__(self, size: RowSize) -> None:
        super().__init__()
        self.size = size
        encoders, self.encoded_size = [], size.n_numbers
        for part in size.layout.images:
            channels, height, width = part.image_shape
            shape = (size.n_observations * channels, height, width)
            encoder, n_features = _create(size.factory, shape, part.where)
            encoders.append(encoder)
            self.encoded_size += n_features
        self.encoders = nn.ModuleList(encoders)
        if self.encoded_size == size:
            raise ValueError(
                f"Expected rows to become shorter or longer by encoding, got {size} numbers before "
                "and after. Give image_encoder_factory another feature_size."
            )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns encoded rows."""
        if rows.shape[-1] != self.size:
            return rows
        flat = rows if rows.dim() == 2 else rows.flatten(0, -2)
        images = zip(self.encoders, self.size.images(flat), strict=True)
        features = [encoder(image / 255.0) for encoder, image in images]
        encoded = torch.cat([self.size.numbers(flat), *features], dim=1)
        return encoded if rows.dim() == 2 else encoded.unflatten(0, rows.shape[:-1])


def _create(
    factory: EncoderFactory, shape: tuple[int, int, int], where: str
) -> tuple[nn.Module, int]:
    """Returns the encoder of an image and how many features it has."""
    try:
        encoder = factory.create(shape)
        parameter = next(encoder.parameters(), torch.empty(0))
        was_training = encoder.training
        with torch.no_grad():
            features = encoder.eval()(torch.zeros(2, *shape, device=parameter.device))
        encoder.train(was_training)
    except (RuntimeError, AssertionError, IndexError) as error:  # of layers that do not fit
        raise ValueError(
            f"Expected an image_encoder_factory for {where} of shape {shape} (channels first), "
            f"{factory} makes none ({error}). Pass e.g. PixelEncoderFactory(filters=[[16, 3, 2]]): "
            "[channels, kernel, stride] of each layer, with kernels that fit into the image."
        ) from error
    if features.dim() != 2:
        raise ValueError(
            f"Expected {factory} to make encoders from images to (B, features), got shape "
            f"{tuple(features.shape)} of 2 images of {where}."
        )
    return encoder, int(features.shape[1])


def image_encoder(size: int) -> tuple[nn.Module, int]:
    """Returns what encodes rows before a network sees them, and how long they are then.

    Without images it does nothing.
    """
    if not isinstance(size, RowSize):
        return nn.Identity(), size
    encoder = RowEncoder(size)
    return encoder, encoder.encoded_size


def behind_images(size: int, create: Callable[[int], nn.Module]) -> Any:
    """Returns a network of rows, behind an encoder of their images if there are any.

    Args:
        size: of the rows.
        create: makes the network of encoded rows, whose length it gets.
    """
    encoder, encoded_size = image_encoder(size)
    network = create(encoded_size)
    return nn.Sequential(encoder, network) if isinstance(encoder, RowEncoder) else network


def encode_images(network: object, rows: torch.Tensor) -> torch.Tensor:
    """Returns rows with their images encoded by a network's encoder, if it has one.

    A network that sees the same rows several times, such as slot after slot, encodes them once.
    Cached features of slots, `(B, N, D)`, stay as they are.
    """
    encoder = encoder_of(network)
    return rows if encoder is None or rows.dim() != 2 else encoder(rows)


def encoder_of(network: object) -> RowEncoder | None:
    """Returns a network's encoder of images, the first one; None if it has none."""
    if not isinstance(network, nn.Module):
        return None
    if network not in _encoders:
        found = (part for part in network.modules() if isinstance(part, RowEncoder))
        _encoders[network] = next(found, None)
    return _encoders[network]


_encoders: WeakKeyDictionary[nn.Module, RowEncoder | None] = WeakKeyDictionary()


def n_numbers(size: int) -> int:
    """Returns how many numbers of rows are no pixels, which are all that scalers see."""
    return size.n_numbers if isinstance(size, RowSize) else size


def of_numbers(size: int, transform: Transform) -> Transform:
    """Returns a scaling of rows that leaves the pixels of their images as they are."""
    if not isinstance(size, RowSize):
        return transform

    def scaled(rows: torch.Tensor) -> torch.Tensor:
        numbers = size.numbers(rows)
        return size.with_numbers(rows, transform(numbers)) if numbers.shape[1] else rows

    return scaled
