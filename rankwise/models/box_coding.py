"""Encoding of boxes as regression targets. Decoding is in float32 and differentiable."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.boxes import at_least_float32, centers_and_sizes, distances
from rankwise.models.settings import HeadSettings


class BoxCoder(ABC):
    """Encodes boxes relative to anchors as ``size`` values each.

    Boxes and anchors are xyxy, [..., 4]; strides are those of the anchors, [...].
    """

    size = 4

    @abstractmethod
    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        """Encodes boxes as [..., size]; the inverse of ``decode``."""

    @abstractmethod
    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        """Decodes [..., size] to boxes [..., 4], at least in float32 for codes of any precision."""


class DeltaCoder(BoxCoder):
    """Offset of the center in anchor sizes, and logarithm of the relative size, each divided by ``std``; code 0 is the
    anchor."""

    #: Maximum size of a box relative to its anchor, so that the exponential does not overflow early in training.
    LARGEST = 1000 / 16

    def __init__(self, std: Sequence[float] = (0.1, 0.1, 0.2, 0.2)) -> None:
        self.std = tuple(std)

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        anchor_centers, anchor_sizes = centers_and_sizes(anchors)
        centers, sizes = centers_and_sizes(boxes)
        shift = (centers - anchor_centers) / anchor_sizes
        growth = (sizes.clamp(min=1e-6) / anchor_sizes).log()
        return torch.cat([shift, growth], dim=-1) / boxes.new_tensor(self.std)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        codes = at_least_float32(codes)
        codes = codes * codes.new_tensor(self.std)
        centers, sizes = centers_and_sizes(anchors)
        centers = centers + codes[..., :2] * sizes
        half = 0.5 * sizes * codes[..., 2:].clamp(max=math.log(self.LARGEST)).exp()
        return torch.cat([centers - half, centers + half], dim=-1)


class DistanceCoder(BoxCoder):
    """Logarithms of the distances from the anchor center to left, top, right and bottom, in strides.

    Decoding uses the exponential, which has a gradient everywhere and keeps the center inside. A box that does not
    contain the center cannot be encoded: its distance is set to a thousandth of a stride.
    """

    #: Maximum distance of a side in strides.
    LARGEST = 1024.0

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return distances(boxes, anchors, strides).clamp(min=1e-3).log()

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        lengths = at_least_float32(codes).clamp(max=math.log(self.LARGEST)).exp()
        return _boxes_from_distances(lengths, anchors, strides)


class ReluDistanceCoder(DistanceCoder):
    """The distances themselves, in strides; a code below 0 is a distance of 0 and has no gradient."""

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return distances(boxes, anchors, strides).clamp(min=0)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        return _boxes_from_distances(at_least_float32(codes).relu(), anchors, strides)


class IntegralCoder(BoxCoder):
    """Each distance is the mean of a distribution over 0 to ``bins`` strides, given by the logits of its bins."""

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.size = 4 * (bins + 1)

    def encode(self, boxes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        away = distances(boxes, anchors, strides).clamp(0, self.bins)[..., None]  # [..., 4, 1]
        positions = torch.arange(self.bins + 1, device=boxes.device, dtype=boxes.dtype)
        share = (1 - (away - positions).abs()).clamp(min=1e-9)  # the two bins around the distance share it
        return share.log().flatten(-2)

    def decode(self, codes: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
        probabilities = at_least_float32(codes).unflatten(-1, (4, self.bins + 1)).softmax(dim=-1)
        positions = torch.arange(self.bins + 1, device=codes.device, dtype=probabilities.dtype)
        return _boxes_from_distances(probabilities @ positions, anchors, strides)


def box_coder(settings: HeadSettings) -> BoxCoder:
    """The coder for the settings of a head."""
    if settings.bins:
        return IntegralCoder(settings.bins)
    if settings.coding == "delta":
        return DeltaCoder(settings.delta_std)
    return DistanceCoder() if settings.coding == "ltrb" else ReluDistanceCoder()


def _boxes_from_distances(lengths: Tensor, anchors: Tensor, strides: Tensor) -> Tensor:
    centers, _ = centers_and_sizes(anchors)
    lengths = lengths * strides[..., None]
    return torch.cat([centers - lengths[..., :2], centers + lengths[..., 2:]], dim=-1)
