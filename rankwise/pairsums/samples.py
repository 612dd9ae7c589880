"""The samples a sum runs over: a stretch of flat logits with places left out, or a picked set of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A logit is NaN or infinite."""


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
        world: Whether they are one process's share: sums over them are those over the shares of all processes.
        columns: Columns of the logits before they were flattened, to say where a bad number is.
    """

    values: Tensor
    start: int = 0
    index: Tensor | None = None
    skip: Tensor | None = None
    world: bool = False
    columns: int = 1

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
        return replace(self, skip=None).at(kept.nonzero().squeeze(1))

    def at(self, which: Tensor) -> Negatives:
        """Only the values at some places, int64."""
        index = which + self.start if self.index is None else self.index[which]
        return replace(self, values=self.values[which], start=0, index=index)

    @cached_property
    def extent(self) -> tuple[float, float]:
        """The lowest and the highest of the values, skipped ones included; NaN if one of them is."""
        if self.values.numel() == 0:
            return 0.0, 0.0
        lowest, highest = torch.stack(self.values.aminmax()).tolist()
        return lowest, highest

    def check_finite(self) -> None:
        """Raise a `NotFiniteError` that says where, if one of the values is NaN or infinite, skipped ones included."""
        if not all(map(math.isfinite, self.extent)):
            bad = (~self.values.isfinite()).nonzero().squeeze(1)
            first = int(bad[0]) + self.start if self.index is None else int(self.index[bad[0]])
            raise NotFiniteError(
                f"logits: {len(bad)} of {self.values.numel()} values are NaN or infinite, the first at index "
                f"{list(divmod(first, self.columns))}. Lower the learning rate, clip the gradients or look for the "
                "layer that overflows"
            )

    def write(self, gradient: Tensor, out: Tensor, where: slice | None = None) -> None:
        """Put the gradients of ``values``, or of those at ``where``, into the flat gradient of the batch."""
        where = where or slice(0, self.values.numel())
        if self.index is None:
            self.target(out, where).copy_(gradient)
        else:
            out[self.index[where]] = gradient.to(out.dtype)

    def target(self, out: Tensor, where: slice) -> Tensor:
        """The part of the flat gradient of the batch that is that of the values at ``where``, if they are a stretch."""
        return out[self.start + where.start : self.start + where.stop]
