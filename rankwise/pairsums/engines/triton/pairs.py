"""The formulas of the losses: what each positive weighs, from its sums over the negatives and over all positives.

Positives are compared pair by pair: there are hundreds, seldom thousands. Every kernel sums in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.distances import coordinate, pair_rank, softplus
from rankwise.pairsums.engines.triton.positives import INF

#: Positives with fewer missorted ones above them have no sorting gradient, those with fewer negatives above them no
#: gradient in aLRP: there is nothing to share it among.
FEW_MISSORTED = tl.constexpr(1e-9)
FEW_ABOVE = tl.constexpr(1e-5)


@triton.jit
def load_positives(positives, u, total, SCALE: tl.constexpr, STEP: tl.constexpr, QUALITY: tl.constexpr,
                   GROUPED: tl.constexpr):  # fmt: skip
    """Coordinate, quality and group of some positives, and which of them there are."""
    there = u < total
    c = coordinate(tl.load(positives.logit + u, mask=there, other=0.0), SCALE, STEP)
    q = tl.zeros(u.shape, tl.float32)
    group = tl.zeros(u.shape, tl.int64)
    if QUALITY:
        q = tl.load(positives.quality + u, mask=there, other=0.0)
    if GROUPED:
        group = tl.load(positives.group + u, mask=there, other=0)
    return c, q, group, there


@triton.jit
def weigh_pairwise(
    positives, sums, weights, errors, mistakes, capacity, programs,
    SCALE: tl.constexpr, STEP: tl.constexpr, CROSS_ENTROPY: tl.constexpr, OWN: tl.constexpr, ADAPTIVE: tl.constexpr,
    WEIGHTED: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Pairwise error: each positive's error over its rank, and its weights."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c, q, group, mine = load_positives(positives, u, total, SCALE, STEP, ADAPTIVE or WEIGHTED, GROUPED)
        among = tl.zeros([BU], tl.float64)  # u itself is in it, with 1/2
        lower_rank = tl.zeros([BU], tl.float64)
        lower_error = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            x, quality, theirs, there = load_positives(positives, v, total, SCALE, STEP, ADAPTIVE, GROUPED)
            pairs = mine[:, None] & there[None, :]
            if GROUPED:
                pairs = pairs & (theirs[None, :] == group[:, None])
            d = x[None, :] - c[:, None]
            rank = pair_rank(d, SCALE, STEP)
            among += tl.sum(tl.where(pairs, rank, 0.0), 1)
            if ADAPTIVE:
                lower = pairs & (quality[None, :] < q[:, None])
                lower_rank += tl.sum(tl.where(lower, rank, 0.0), 1)
                if CROSS_ENTROPY:
                    lower_error += tl.sum(tl.where(lower, softplus(d, SCALE), 0.0), 1)
        over_negatives = tl.load(sums + u, mask=mine, other=0.0)
        balance = over_negatives + (among - 0.5) + OWN
        rank = over_negatives + lower_rank
        error = rank
        if CROSS_ENTROPY:
            error = tl.load(sums + capacity + u, mask=mine, other=0.0) + lower_error
        weight = tl.full([BU], 1.0, tl.float64)
        if WEIGHTED:
            weight = q.to(tl.float64)
        share = weight / balance / total
        tl.store(weights.negatives + u, share.to(tl.float32), mask=mine)
        tl.store(weights.lower + u, share, mask=mine)
        tl.store(weights.pull + u, share * rank, mask=mine)
        tl.store(errors + u, weight * error / balance, mask=mine)
        tl.store(mistakes + u, rank / balance, mask=mine)


@triton.jit
def interpolate_precision(
    positives, mistakes, weights, errors, programs,
    GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Scale each positive's error to the least error of any positive that is not above it."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        p, _, group, mine = load_positives(positives, u, total, 1.0, False, False, GROUPED)
        own = tl.load(mistakes + u, mask=mine, other=0.0)
        best = own
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            x, _unread, theirs, there = load_positives(positives, v, total, 1.0, False, False, GROUPED)
            pairs = there[None, :] & (x[None, :] <= p[:, None])
            if GROUPED:
                pairs = pairs & (theirs[None, :] == group[:, None])
            theirs_error = tl.load(mistakes + v, mask=there, other=INF)[None, :]
            best = tl.minimum(best, tl.min(tl.where(pairs, theirs_error, INF), 1))
        factor = tl.where(own > 0, best / tl.where(own > 0, own, 1.0), 1.0)
        share = tl.load(weights.negatives + u, mask=mine, other=0.0)
        tl.store(weights.negatives + u, (share * factor).to(tl.float32), mask=mine)
        tl.store(weights.pull + u, tl.load(weights.pull + u, mask=mine, other=0.0) * factor, mask=mine)
        tl.store(errors + u, tl.load(errors + u, mask=mine, other=0.0) * factor, mask=mine)


@triton.jit
def weigh_ranksort(
    positives, sums, weights, ranking, sorting, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """RankSort: each positive's ranking and sorting error, and its weights."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c, q, group, mine = load_positives(positives, u, total, SCALE, True, True, GROUPED)
        among = tl.zeros([BU], tl.float64)  # over all positives, u itself with 1/2
        lacking = tl.zeros([BU], tl.float64)
        worse = tl.zeros([BU], tl.float64)  # over those of lower quality
        worse_lacking = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            x, quality, theirs, there = load_positives(positives, v, total, SCALE, True, True, GROUPED)
            pairs = mine[:, None] & there[None, :]
            if GROUPED:
                pairs = pairs & (theirs[None, :] == group[:, None])
            rank = tl.where(pairs, pair_rank(x[None, :] - c[:, None], SCALE, True), 0.0)
            lower = quality[None, :] < q[:, None]
            lack = rank * (1.0 - quality.to(tl.float64))[None, :]
            among += tl.sum(rank, 1)
            lacking += tl.sum(lack, 1)
            worse += tl.sum(tl.where(lower, rank, 0.0), 1)
            worse_lacking += tl.sum(tl.where(lower, lack, 0.0), 1)
        above = tl.load(sums + u, mask=mine, other=0.0)
        among = tl.where(mine, among, 1.0)
        # The mean lack of quality above u less that of those with at least u's quality.
        error = (worse_lacking - worse * lacking / among) / (among - worse)
        share = tl.where(worse > FEW_MISSORTED, error / tl.maximum(worse, FEW_MISSORTED), 0.0)
        wrong = above / (among + above)
        tl.store(weights.negatives + u, (1.0 / (among + above) / total).to(tl.float32), mask=mine)
        tl.store(weights.lower + u, share / total, mask=mine)
        tl.store(weights.pull + u, (share * worse + wrong) / total, mask=mine)
        tl.store(ranking + u, wrong, mask=mine)
        tl.store(sorting + u, error, mask=mine)


@triton.jit
def weigh_alrp(
    positives, sums, weights, ranks, errors, programs,
    SCALE: tl.constexpr, TAU: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """aLRP: each positive's share of negatives in its rank, and its weights, which take the box errors in."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c, _q, group, mine = load_positives(positives, u, total, SCALE, True, True, GROUPED)
        among = tl.zeros([BU], tl.float64)
        boxes = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            x, quality, theirs, there = load_positives(positives, v, total, SCALE, True, True, GROUPED)
            pairs = there[None, :] & (u[:, None] != v[None, :])
            if GROUPED:
                pairs = pairs & (theirs[None, :] == group[:, None])
            rank = tl.where(pairs, pair_rank(x[None, :] - c[:, None], SCALE, True), 0.0)
            among += tl.sum(rank, 1)
            boxes += tl.sum(rank * ((1.0 - quality.to(tl.float64)) * (0.5 / (1.0 - TAU)))[None, :], 1)
        above = tl.load(sums + u, mask=mine, other=0.0)
        rank = above + among + 1.0
        pull = tl.where(above > FEW_ABOVE, (above + boxes) / rank, 0.0) / total
        tl.store(weights.negatives + u, (pull / tl.maximum(above, FEW_ABOVE)).to(tl.float32), mask=mine)
        tl.store(weights.pull + u, pull, mask=mine)
        tl.store(ranks + u, rank, mask=mine)
        tl.store(errors + u, above / rank, mask=mine)


@triton.jit
def box_weights(
    positives, ranks, slots, batch, out, copies,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """aLRP: how much each row's box error counts: one over the rank of every positive it is above; 0 if no positive."""
    total = tl.load(positives.counts)
    row = tl.program_id(0) * BU + tl.arange(0, BU)
    label = tl.load(batch.labels + row, mask=row < batch.rows, other=C)
    positive = (label >= 0) & (label < C)
    weight = tl.zeros([BU], tl.float64)
    if tl.max(positive.to(tl.int32)) > 0:
        v = tl.load(positives.counts + 1) + tl.load(slots + row, mask=positive, other=0)
        v = tl.where(positive, v, total)
        c, _, group, mine = load_positives(positives, v, total, SCALE, True, False, GROUPED)
        for start in range(0, total, BV):
            u = start + tl.arange(0, BV)
            x, _unread, theirs, there = load_positives(positives, u, total, SCALE, True, False, GROUPED)
            rank = tl.where(u[None, :] == v[:, None], 1.0, pair_rank(c[:, None] - x[None, :], SCALE, True))
            pairs = mine[:, None] & there[None, :]
            if GROUPED:
                pairs = pairs & (theirs[None, :] == group[:, None])
            inverse = 1.0 / tl.load(ranks + u, mask=there, other=1.0)
            weight += tl.sum(tl.where(pairs, rank * inverse[None, :], 0.0), 1)
        weight = weight * copies / tl.maximum(total, 1)
    tl.store(out + row, weight.to(tl.float32), mask=row < batch.rows)


@triton.jit
def reduce_loss(positives, first, second, sums, loss, log, poison, capacity, BOTH: tl.constexpr, BLOCK: tl.constexpr):
    """The loss and the numbers for the log, by one program: means over the positives. Faults make the loss NaN."""
    total = tl.load(positives.counts)
    one = tl.zeros([BLOCK], tl.float64)
    two = tl.zeros([BLOCK], tl.float64)
    for start in range(0, total, BLOCK):
        u = start + tl.arange(0, BLOCK)
        one += tl.load(first + u, mask=u < total, other=0.0)
        two += tl.load(second + u, mask=u < total, other=0.0)
    number = tl.maximum(total, 1).to(tl.float64)
    mean = tl.sum(one) / number
    other = tl.sum(two) / number
    faults = tl.load(sums + 2 * capacity)
    bad = tl.where(faults > 0, float("nan"), 0.0)
    value = mean + bad
    if BOTH:
        value += other
    tl.store(loss, value.to(tl.float32))
    tl.store(poison, bad.to(tl.float32))
    tl.store(log, total.to(tl.float64))
    tl.store(log + 1, faults)
    if BOTH:
        tl.store(log + 2, mean)
        tl.store(log + 3, other)
    else:
        tl.store(log + 2, other)


@triton.jit
def positive_gradients(
    upstream, positives, weights, own, copies, programs,
    SCALE: tl.constexpr, STEP: tl.constexpr, LOWER: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """The gradient of this process's positives: pulled up by errors, with LOWER pushed down by higher quality."""
    total = tl.load(positives.counts)
    shift = tl.load(positives.counts + 1)
    outer = tl.load(upstream).to(tl.float64) * copies
    end = shift + tl.load(positives.counts + 2)
    for first in range(shift + tl.program_id(0) * BU, end, programs * BU):
        v = first + tl.arange(0, BU)
        c, q, group, mine = load_positives(positives, v, end, SCALE, STEP, LOWER, GROUPED)
        pushed = tl.zeros([BU], tl.float64)
        if LOWER:
            for start in range(0, total, BV):
                u = start + tl.arange(0, BV)
                x, quality, theirs, there = load_positives(positives, u, total, SCALE, STEP, True, GROUPED)
                pairs = there[None, :] & (quality[None, :] > q[:, None])
                if GROUPED:
                    pairs = pairs & (theirs[None, :] == group[:, None])
                w = tl.load(weights.lower + u, mask=there, other=0.0)[None, :]
                pushed += tl.sum(tl.where(pairs, w * pair_rank(c[:, None] - x[None, :], SCALE, STEP), 0.0), 1)
        pull = tl.load(weights.pull + v, mask=mine, other=0.0)
        tl.store(own + v - shift, (outer * (pushed - pull)).to(tl.float32), mask=mine)
