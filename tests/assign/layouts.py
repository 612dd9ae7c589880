"""Small random layouts of anchors and objects, with ties if requested."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.types import Predictions, Target


def grid(side: int, strides: tuple[int, ...], scales: tuple[float, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Square anchors on the grids of a square image, finest level first, with the number of anchors on each level."""
    levels = []
    for stride in strides:
        line = (torch.arange(-(-side // stride)) + 0.5) * stride
        y, x = torch.meshgrid(line, line, indexing="ij")
        centre = torch.stack([x, y], -1).reshape(-1, 1, 2)
        half = torch.tensor(scales)[:, None] * stride / 2
        levels.append(torch.cat([centre - half, centre + half], -1).reshape(-1, 4))
    return torch.cat(levels), tuple(len(level) for level in levels)


def target(generator: torch.Generator, count: int, side: int, classes: int, whole: bool, crowds: bool) -> Target:
    """Random objects; whole pixels, sizes in steps of the stride, make ties; some objects are there twice."""
    size = torch.rand(count, 2, generator=generator).square() * side * 0.9 + 1
    corner = torch.rand(count, 2, generator=generator) * side - size / 4
    if whole:
        size, corner = (size / 4).ceil() * 4, (corner / 4).floor() * 4
    boxes = torch.cat([corner, corner + size], 1)
    if count > 2 and whole:
        boxes[-1] = boxes[0]
    found: Target = {"boxes": boxes, "labels": torch.randint(0, classes, (count,), generator=generator)}
    if crowds:
        found["iscrowd"] = torch.rand(count, generator=generator) < 0.2
    return found


def layout(seed: int, images: int = 3, classes: int = 4) -> tuple[Predictions, list[Target]]:
    """A batch: random objects on one of several grids, with predictions around the anchors."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high: int) -> int:
        return int(torch.randint(0, high, (), generator=generator))

    side = 32 + 16 * pick(3)
    strides = [(8,), (8, 16), (8, 16, 32), (16, 32, 64)][pick(4)]
    scales = [(4.0,), (2.0, 3.0), (1.0,)][pick(3)]
    anchors, sizes = grid(side, strides, scales)
    targets = [target(generator, pick(7), side, classes, pick(2) > 0, pick(2) > 0) for _ in range(images)]
    shape = (images, len(anchors))
    logits = torch.randn(*shape, classes, generator=generator) * 2 - 2
    boxes = anchors + torch.randn(*shape, 4, generator=generator) * 3
    return Predictions(logits, boxes, anchors, sizes), targets
