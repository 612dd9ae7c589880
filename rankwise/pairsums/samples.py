"""The samples a sum runs over: a stretch of flat logits with places left out, or a picked set of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A sample is NaN or infinite."""


class Sums(NamedTuple):
    """Per positive u, the sums over its pairs: their number, of the distance's rank, of its error; float64 [P] each."""

    number: Tensor
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

    def skipped(self) -> Tensor:
        """The places of ``values`` that are no negatives, one by one, sorted int64."""
        if self.skip is None or len(self.skip) == 0:
            return torch.zeros(0, dtype=torch.long, device=self.values.device)
        first, lengths = self.skip[:, 0], self.skip[:, 1] - self.skip[:, 0]
        before = lengths.cumsum(0) - lengths
        return (first - before).repeat_interleave(lengths) + torch.arange(int(lengths.sum()), device=first.device)

    def picked(self) -> Negatives:
        """The same negatives without anything between them to skip."""
        skipped = self.skipped()
        if skipped.numel() == 0:
            return self
        kept = torch.ones_like(self.values, dtype=torch.bool)
        kept[skipped] = False
        where = kept.nonzero().squeeze(1)
        return Negatives(self.values[where], index=where + self.start if self.index is None else self.index[where])

    @property
    def number(self) -> int:
        """How many negatives there are."""
        skipped = 0 if self.skip is None else int((self.skip[:, 1] - self.skip[:, 0]).sum())
        return self.values.numel() - skipped

    def highest(self, number: int) -> Negatives:
        """The ``number`` negatives with the highest logits; all of them if there are no more than that."""
        all_of_them = self.picked()
        if all_of_them.values.numel() <= number:
            return self
        values, which = all_of_them.values.topk(number, sorted=False)
        index = which + self.start if all_of_them.index is None else all_of_them.index[which]
        return Negatives(values, index=index)

    def write(self, gradient: Tensor, out: Tensor, where: slice | None = None) -> None:
        """Put the gradients of ``values``, or of those at ``where``, into the flat gradient of the batch."""
        where = where or slice(0, self.values.numel())
        if self.index is None:
            out[self.start + where.start : self.start + where.stop] = gradient
        else:
            out[self.index[where]] = gradient.to(out.dtype)
