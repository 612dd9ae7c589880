"""The samples a sum runs over: a stretch of flat logits with places left out, or a picked set of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """Per positive u, the sums over its pairs: how many, of the distance's rank, of its error; float64 [P] each."""

    count: Tensor
    rank: Tensor
    error: Tensor

    def __add__(self, other: tuple[Tensor, ...]) -> Sums:  # type: ignore[override]
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Negatives:
    """The negatives among flat logits, named without copying them where possible.

    Attributes:
        values: Logits, contiguous [n], float32 or float64, detached. All of them are negatives but those in ``skip``.
        start: Where ``values`` begins in the flat logits of the batch, if they are a stretch of it.
        index: The place of each value in the flat logits, int64 [n], if they are picked from it.
        skip: Places of ``values`` that are no negatives, int64 [k, 2]: sorted, disjoint (first, one past the last).
    """

    values: Tensor
    start: int = 0
    index: Tensor | None = None
    skip: Tensor | None = None

    def picked(self) -> Negatives:
        """The same negatives without anything between them to skip."""
        if self.skip is None or self.skip.numel() == 0:
            return self
        edges = torch.zeros(self.values.numel() + 1, dtype=torch.int8, device=self.values.device)
        edges.index_add_(0, self.skip.flatten(), edges.new_tensor([1, -1]).repeat(len(self.skip)))
        kept = (edges[:-1].cumsum(0, dtype=torch.int8) == 0).nonzero().squeeze(1)
        index = kept + self.start if self.index is None else self.index[kept]
        return Negatives(self.values[kept], index=index)

    def highest(self, number: int) -> Negatives:
        """The ``number`` negatives with the highest logits; all of them if there are no more than that."""
        all_of_them = self.picked()
        if all_of_them.values.numel() <= number:
            return self
        values, which = all_of_them.values.topk(number, sorted=False)
        index = which + self.start if all_of_them.index is None else all_of_them.index[which]
        return Negatives(values, index=index)

    def write(self, gradient: Tensor, out: Tensor) -> None:
        """Put the gradients of ``values`` into the flat gradient of the batch."""
        if self.index is None:
            out[self.start : self.start + self.values.numel()] = gradient
        else:
            out[self.index] = gradient.to(out.dtype)
