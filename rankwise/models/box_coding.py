"""How boxes are coded as numbers for the head to predict. Decoding is in float32 and lets gradients through."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.boxes import centres_and_sizes, distances
from rankwise.models.settings import HeadSettings


class BoxCoder(ABC):
    """Codes boxes against anchors. Boxes and anchors are xyxy, [..., 4]; strides are those of the anchors, [...].

    Attributes:
        size: How many numbers code one box.
    """

    size = 4

    @abstractmethod
    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        """Codes [..., size] which ``decode`` turns into the boxes."""

    @abstractmethod
    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        """Boxes [..., 4] of codes [..., size]; in float32 at least, whatever the precision of the codes."""


class DeltaCoder(BoxCoder):
    """Shift of the centre in anchor sizes, and logarithm of the size over the anchor's; code 0 is the anchor.

    Args:
        std: What the four codes (x, y, width, height) are divided by.
    """

    #: A box is at most so many times its anchor: keeps the exponential from overflowing early in training.
    LARGEST = 1000 / 16

    def __init__(self, std: Sequence[float] = (0.1, 0.1, 0.2, 0.2)) -> None:
        self.std = tuple(std)

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        anchor_centres, anchor_sizes = centres_and_sizes(anchors)
        centres, sizes = centres_and_sizes(boxes)
        shift = (centres - anchor_centres) / anchor_sizes
        growth = (sizes.clamp(min=1e-6) / anchor_sizes).log()
        return torch.cat([shift, growth], dim=-1) / boxes.new_tensor(self.std)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        codes = _at_least_float32(codes)
        codes = codes * codes.new_tensor(self.std)
        centres, sizes = centres_and_sizes(anchors)
        centres = centres + codes[..., :2] * sizes
        half = 0.5 * sizes * codes[..., 2:].clamp(max=math.log(self.LARGEST)).exp()
        return torch.cat([centres - half, centres + half], dim=-1)


class DistanceCoder(BoxCoder):
    """Logarithms of the distances from the anchor's centre to left, top, right and bottom, in strides.

    Decoded by the exponential, which has a gradient everywhere and keeps the centre inside. A box that does
    not hold the centre cannot be coded: its distance there is taken as a thousandth of a stride.
    """

    #: No side is further than so many strides.
    LARGEST = 1024.0

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return distances(boxes, anchors, strides).clamp(min=1e-3).log()

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        lengths = _at_least_float32(codes).clamp(max=math.log(self.LARGEST)).exp()
        return _boxes_from_distances(lengths, anchors, strides)


class ReluDistanceCoder(DistanceCoder):
    """The distances themselves, in strides; a code below 0 is a distance of 0 and has no gradient."""

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return distances(boxes, anchors, strides).clamp(min=0)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return _boxes_from_distances(_at_least_float32(codes).relu(), anchors, strides)


class IntegralCoder(BoxCoder):
    """Each distance is the mean of a distribution over 0 to ``bins`` strides, coded by the logits of its bins.

    Args:
        bins: The furthest distance in strides.
    """

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.size = 4 * (bins + 1)

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        away = distances(boxes, anchors, strides).clamp(0, self.bins)[..., None]  # [..., 4, 1]
        positions = torch.arange(self.bins + 1, device=boxes.device, dtype=boxes.dtype)
        share = (1 - (away - positions).abs()).clamp(min=1e-9)  # the two bins around the distance share it
        return share.log().flatten(-2)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        probabilities = _at_least_float32(codes).unflatten(-1, (4, self.bins + 1)).softmax(dim=-1)
        positions = torch.arange(self.bins + 1, device=codes.device, dtype=probabilities.dtype)
        return _boxes_from_distances(probabilities @ positions, anchors, strides)


def box_coder(settings: HeadSettings) -> BoxCoder:
    """The coder that the head's settings ask for."""
    if settings.bins:
        return IntegralCoder(settings.bins)
    if settings.coding == "delta":
        return DeltaCoder(settings.delta_std)
    return DistanceCoder() if settings.coding == "ltrb" else ReluDistanceCoder()


def _boxes_from_distances(lengths: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
    centres, _ = centres_and_sizes(anchors)
    lengths = lengths * strides[..., None]
    return torch.cat([centres - lengths[..., :2], centres + lengths[..., 2:]], dim=-1)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
