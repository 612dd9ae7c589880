"""Pairwise losses per positive, with weighted negatives: every pair by itself, as in the dense engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankwise.losses.dense import DenseTargets
from rankwise.losses.inputs import without_bad_numbers
from rankwise.pairsums import RankingSpec
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.groups import Group
from rankwise.pairsums.formula import FORMULAS, Over, Positives, values_of


def per_positive(read: DenseTargets, spec: RankingSpec) -> Tensor:
    """The term of each positive, [P], in the order of rows and classes; their mean is the loss without weights.

    The weight of a negative multiplies all its pairs, in the error and in the rank. Weights of positives are not
    applied.

    Args:
        read: The samples.
        spec: A loss of the family "pairwise", of the scope "batch" or "image", without ``max_negatives``.
    """
    logits = without_bad_numbers(read.logits, read.ignored)
    terms: Tensor = _PerPositive.apply(logits, read, spec)
    return terms


class _Group(NamedTuple):
    """Samples that rank together: indices into the flat logits and into the positives, with what backward needs."""

    negatives: Tensor
    positives: Tensor
    sums: DenseSums
    weight: Tensor
    share: Tensor
    rank: Tensor


class _PerPositive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, read: DenseTargets, spec: RankingSpec) -> Tensor:
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
            group = _group(values, index, weight[index].double(), where[ours], read.quality[ours].double(), spec)
            terms[ours] = group[1]
            groups.append(group[0]._replace(positives=ours))
        ctx.groups, ctx.where, ctx.shape, ctx.adaptive = groups, where, logits.shape, spec.adaptive
        return terms.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        gradient = upstream.new_zeros(ctx.shape.numel())
        for group in ctx.groups:
            share = group.share * upstream[group.positives].double()
            push = group.sums.adjoint(group.sums.group.values.double(), share, None) * group.weight
            pull = -share * group.rank
            if ctx.adaptive:
                pull = pull + group.sums.push(share, True)
            gradient[group.negatives] = push.to(gradient.dtype)
            gradient[ctx.where[group.positives]] = pull.to(gradient.dtype)
        return gradient.view(ctx.shape), None, None


def _group(
    values: Tensor, negatives: Tensor, weight: Tensor, where: Tensor, quality: Tensor, spec: RankingSpec
) -> tuple[_Group, Tensor]:
    """A group with the terms of its positives."""
    positives = values[where].double()
    sums = DenseSums(Group(values[negatives], where.new_zeros(0, dtype=torch.bool), positives, quality), spec)
    over = Over(
        sums.sums_over(values[negatives].double(), weight),
        *sums.among(values_of(spec, quality), spec.by_quality),
        positives.new_zeros(()),
    )
    terms = FORMULAS["pairwise"](spec, Positives(positives, quality, 1), over, sums.push)
    rank, error = over.negatives.rank, over.negatives.error
    if over.lower is not None:
        rank, error = rank + over.lower.rank[0], error + over.lower.error
    return _Group(negatives, where, sums, weight, terms.weights, rank), error * terms.weights
