"""Anchors: the same boxes around every location of a level."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.errors import ModelError
from rankwise.models.settings import AnchorSettings

Sizes = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AnchorGrid:
    """The anchors of an image size: finest level first, then by row, column, and scale.

    Attributes:
        boxes: xyxy in pixels, [A, 4].
        strides: The stride of each anchor, [A].
        level_sizes: Number of anchors per level.
    """

    boxes: Tensor
    strides: Tensor
    level_sizes: tuple[int, ...]


def cell_anchors(settings: AnchorSettings, level: int = 0, stride: float = 1.0) -> Tensor:
    """The anchors of one location of a level, xyxy around the origin, float64 [k, 4]."""
    if settings.levels:
        half = torch.tensor(settings.levels[level], dtype=torch.float64) / 2
        return torch.cat([-half, half], dim=1)
    scales = torch.tensor(settings.scales, dtype=torch.float64)[:, None]
    roots = torch.tensor(settings.ratios, dtype=torch.float64).sqrt()[None]
    half = torch.stack([scales / roots, scales * roots], dim=-1).flatten(0, 1) * (settings.base / 2 * stride)
    return torch.cat([-half, half], dim=1)


class Anchors:
    """Creates the anchors for feature maps of given sizes, finest first, with a cache.

    The center of location (i, j) of a level is ((j + offset) · stride, (i + offset) · stride).
    """

    # Multi-scale training uses a few dozen sizes; beyond that, the oldest entry is dropped.
    _CACHED = 64

    def __init__(self, settings: AnchorSettings, strides: Sequence[int]) -> None:
        if settings.levels and len(settings.levels) != len(strides):
            raise ModelError(f"anchors.levels has {len(settings.levels)} levels, but the pyramid has {len(strides)}")
        self.settings = settings
        self.strides = tuple(strides)
        self._made: OrderedDict[tuple[tuple[tuple[int, int], ...], torch.device], AnchorGrid] = OrderedDict()

    def __call__(self, sizes: Sizes, device: torch.device) -> AnchorGrid:
        """The anchors for levels of these (height, width)."""
        if torch.compiler.is_compiling():  # sizes are symbolic then and must not become keys
            return self.make(sizes, device)
        key = (tuple(sizes), device)
        if key not in self._made:
            with torch.inference_mode(False):  # anchors created during inference must also work in training
                self._made[key] = self.make(sizes, device)
            if len(self._made) > self._CACHED:
                self._made.popitem(last=False)
        return self._made[key]

    def make(self, sizes: Sizes, device: torch.device) -> AnchorGrid:
        """The same without the cache."""
        offset = self.settings.offset
        boxes, strides = [], []
        for index, (stride, (height, width)) in enumerate(zip(self.strides, sizes, strict=True)):
            cell = cell_anchors(self.settings, index, stride).to(device, torch.float32)
            ys = (torch.arange(height, device=device, dtype=torch.float32) + offset) * stride
            xs = (torch.arange(width, device=device, dtype=torch.float32) + offset) * stride
            grid_y, grid_x = torch.meshgrid(ys, xs, indexing="ij")
            centers = torch.stack([grid_x, grid_y, grid_x, grid_y], dim=-1).reshape(-1, 1, 4)
            level = (centers + cell).reshape(-1, 4)
            boxes.append(level)
            strides.append(torch.full_like(level[:, 0], stride))
        level_sizes = tuple(height * width * self.settings.per_location for height, width in sizes)
        return AnchorGrid(torch.cat(boxes), torch.cat(strides), level_sizes)

    def __getstate__(self) -> dict:  # a copied detector does not need the cache
        return {"settings": self.settings, "strides": self.strides, "_made": OrderedDict()}
