"""`PairwiseError` of few positives with a sigmoid, by one matrix whose columns are Chebyshev points and positives.

This takes fewer operations than sums and formula one after the other, and for small batches their number is the cost.
"""

from __future__ import annotations

import torch

from rankwise.pairsums.engines.torch.sigmoid import SigmoidSums
from rankwise.pairsums.formula import Terms

#: Most entries of the matrix.
MAX_ENTRIES = 1 << 20

#: The widest range of cells, in units of 1/λ: e^z does not overflow there.
MAX_RANGE = 700.0


def is_possible(sums: SigmoidSums) -> bool:
    """Whether the positives are few and the matrix is small, and the loss has no cutoff and no interpolation."""
    number = len(sums.group.positives)
    few = number * (number + len(sums.points)) <= MAX_ENTRIES and sums.grid.cells * sums.width <= MAX_RANGE
    return few and sums.many is None and sums.floors is None and not sums.spec.interpolated


def terms(sums: SigmoidSums, number: int) -> Terms:
    """What `rankwise.pairsums.formula.pairwise` makes of the sums, and the table of the backward pass.

    Args:
        sums: The sums of a group.
        number: Number of positives in all groups.
    """
    group, spec, points = sums.group, sums.spec, len(sums.points)
    p, quality, base = group.positives, group.quality, sums.grid.low / sums.grid.scale
    counts = p.new_ones(points + len(p))  # samples per column
    torch.sum(sums.coarsened(sums.moments()), 0, out=counts[:points].view(-1, sums.precision.points))
    down = torch.rsub(p, base * sums.lam, alpha=sums.lam)  # negated, in units
    matrix = p.new_empty(1 + sums.with_error, len(p), len(counts))
    z = torch.sub(down[:, None], torch.cat([sums.negated, down]), out=matrix[0])
    if sums.with_error:
        torch.exp(z, out=matrix[1]).log1p_()
    s = z.sigmoid_()
    balance = torch.addmv(down, s, counts, beta=0, alpha=number)  # over all samples, u itself with 1/2
    if spec.own != 0.5:
        balance += (spec.own - 0.5) * number
    if spec.adaptive:
        matrix[:, :, points:].mul_(quality < quality[:, None])
        found = matrix.flatten(0, 1).mv(counts).view(len(matrix), -1)
    else:
        found = matrix[:, :, :points] @ counts[:points]
    rank, error = found[0], found[-1]
    if sums.with_error and sums.grid.above:
        error += sums.excess() * sums.lam
    share = balance.reciprocal_()
    mistakes, *rest = (found @ share).unbind()
    loss = rest[0] if rest else mistakes
    if spec.weight_by_quality:
        share = share * quality
        loss = error @ share
    pushed, pull = s.T.mv(share), share * rank
    gradient = pushed[points:] - pull if spec.adaptive else -pull
    # The error was summed in units.
    loss = torch.div(loss, sums.lam if sums.with_error else 1.0, out=group.values.new_empty(()))
    table = sums.refined(pushed[:points]).flatten()
    return Terms(loss, (mistakes,), share, gradient, table=table, layout=sums.layout)
