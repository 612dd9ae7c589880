"""Scenes for the tests of pairwise losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankwise.losses import PairwiseError


@dataclass
class Scene:
    """What a loss is called with."""

    logits: Tensor
    labels: Tensor
    quality: Tensor
    image: Tensor

    def run(self, loss: PairwiseError, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Value and gradient."""
        logits = self.logits.to(dtype).requires_grad_()
        value = loss(logits, self.labels, self.quality, self.image)
        return value.detach(), torch.autograd.grad(value, logits)[0]


def make_scene(
    rows: int,
    classes: int,
    positives: int,
    spread: float = 1.0,
    gap: float = 1.0,
    ignored: int = 0,
    ties: bool = False,
    images: int = 1,
    seed: int = 0,
) -> Scene:
    """Negatives around 0, positives around ``gap``, all float32 numbers; with ``ties``, on a coarse grid."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator)
    labels = torch.full((rows,), classes)
    order = torch.randperm(rows, generator=generator)
    chosen = order[:positives]
    labels[chosen] = torch.randint(0, classes, (len(chosen),), generator=generator)
    labels[order[positives : positives + ignored]] = -1
    logits[chosen, labels[chosen]] += gap
    logits *= spread
    quality = torch.rand(rows, generator=generator)
    if ties:
        logits, quality = (logits * 4).round() / 4, (quality * 5).round() / 5
    image = torch.randint(0, images, (rows,), generator=generator)
    return Scene(logits, labels, quality, image)
