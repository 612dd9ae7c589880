"""Ranking losses per positive, with weighted negatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.losses.dense import DenseTargets
from rankwise.losses.inputs import without_bad_numbers
from rankwise.pairsums import RankingSpec
from rankwise.pairsums.engines.dense import DenseEngine
from rankwise.pairsums.engines.groups import Group
from rankwise.pairsums.engines.torch import TorchEngine
from rankwise.pairsums.formula import FORMULAS, ByPositive, PairSums, Positives, values_of


def per_positive(read: DenseTargets, spec: RankingSpec, engine: TorchEngine | DenseEngine) -> Tensor:
    """The term of each positive, [P], in the order of rows and classes; their mean is the loss without weights.

    The weight of a negative multiplies all its pairs, in the error and in the rank. Weights of positives are not
    applied.

    Args:
        read: The samples.
        spec: A loss of the scope "batch" or "image", without ``max_negatives``.
        engine: What gives the sums.
    """
    logits = without_bad_numbers(read.logits, read.ignored)
    terms: Tensor = _PerPositive.apply(logits, read, spec, engine)
    return terms


class _Group(NamedTuple):
    """Samples that rank together: indices into the flat logits and into the positives, with what backward needs."""

    negatives: Tensor
    positives: Tensor
    sums: PairSums
    weight: Tensor
    found: ByPositive


class _PerPositive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, read: DenseTargets, spec: RankingSpec, engine: TorchEngine | DenseEngine
    ) -> Tensor:
        values, (count, classes) = logits.detach().flatten(), logits.shape
        where = read.rows * classes + read.classes
        negative = torch.ones_like(values, dtype=torch.bool).index_fill_(0, where, False)
        if read.ignored is not None:
            negative &= ~read.ignored.expand(count, classes).flatten()
        weight = torch.ones_like(values) if read.weight is None else read.weight.flatten()
        image = read.image if spec.scope == "image" else torch.zeros_like(read.image)
        terms, groups = values.new_zeros(len(where), dtype=torch.float64), []
        for number in image[read.rows].unique().tolist():
            rows = image == number
            ours = rows[read.rows].nonzero().squeeze(1)
            index = (negative & rows.repeat_interleave(classes)).nonzero().squeeze(1)
            positives, quality = values[where[ours]].double(), read.quality[ours].double()
            counted = Group(values[index], index[:0], positives, quality, weight=weight[index].double())
            sums = engine.sums(counted, spec)
            found = _by_positive(sums, counted, spec)
            terms[ours] = found.term
            groups.append(_Group(index, ours, sums, weight[index].double(), found))
        ctx.groups, ctx.where, ctx.shape = groups, where, logits.shape
        return terms.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = upstream.new_zeros(ctx.shape.numel())
        for group in ctx.groups:
            factor, (_, weights, lower, pull) = upstream[group.positives].double(), group.found
            push = upstream.new_empty(len(group.negatives))
            group.sums.gradient(weights * factor, push)
            own = -pull * factor if lower is None else group.sums.push(lower * factor, True) - pull * factor
            gradient[group.negatives] = (push * group.weight).to(gradient.dtype)
            gradient[ctx.where[group.positives]] = own.to(gradient.dtype)
        return gradient.view(ctx.shape), None, None, None


def _by_positive(sums: PairSums, group: Group, spec: RankingSpec) -> ByPositive:
    """What the formula makes of a group's sums for each positive, not divided by their number."""
    over = sums.over(values_of(spec, group.quality), spec.by_quality)
    terms = FORMULAS[spec.family](spec, Positives(group.positives, group.quality, 1), over, sums.push)
    assert terms.by_positive is not None
    return terms.by_positive()
