"""The formulas of the losses: weights and error of each positive, from its sums over negatives and positives.

Pairs of positives are computed one by one: there are hundreds of positives, rarely thousands. Every kernel sums in a
fixed order.
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
    """Coordinate, quality and group of the positives u, and the mask u < total."""
    mask = u < total
    c = coordinate(tl.load(positives.logit + u, mask=mask, other=0.0), SCALE, STEP)
    q = tl.zeros(u.shape, tl.float32)
    group = tl.zeros(u.shape, tl.int64)
    if QUALITY:
        q = tl.load(positives.quality + u, mask=mask, other=0.0)
    if GROUPED:
        group = tl.load(positives.group + u, mask=mask, other=0)
    return c, q, group, mask


@triton.jit
def weigh_pairwise(
    positives, sums, weights, errors, mistakes, capacity, programs,
    SCALE: tl.constexpr, STEP: tl.constexpr, CROSS_ENTROPY: tl.constexpr, OWN: tl.constexpr, ADAPTIVE: tl.constexpr,
    WEIGHTED: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Pairwise error: error of each positive divided by its rank, and its weights."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c_u, q_u, group_u, mask_u = load_positives(positives, u, total, SCALE, STEP, ADAPTIVE or WEIGHTED, GROUPED)
        among = tl.zeros([BU], tl.float64)  # over all positives, u itself with 1/2
        lower_rank = tl.zeros([BU], tl.float64)
        lower_error = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            c_v, q_v, group_v, mask_v = load_positives(positives, v, total, SCALE, STEP, ADAPTIVE, GROUPED)
            pairs = mask_u[:, None] & mask_v[None, :]
            if GROUPED:
                pairs = pairs & (group_v[None, :] == group_u[:, None])
            d = c_v[None, :] - c_u[:, None]
            rank = pair_rank(d, SCALE, STEP)
            among += tl.sum(tl.where(pairs, rank, 0.0), 1)
            if ADAPTIVE:
                lower = pairs & (q_v[None, :] < q_u[:, None])
                lower_rank += tl.sum(tl.where(lower, rank, 0.0), 1)
                if CROSS_ENTROPY:
                    lower_error += tl.sum(tl.where(lower, softplus(d, SCALE), 0.0), 1)
        over_negatives = tl.load(sums + u, mask=mask_u, other=0.0)
        balance = over_negatives + (among - 0.5) + OWN
        rank = over_negatives + lower_rank
        error = rank
        if CROSS_ENTROPY:
            error = tl.load(sums + capacity + u, mask=mask_u, other=0.0) + lower_error
        weight = tl.full([BU], 1.0, tl.float64)
        if WEIGHTED:
            weight = q_u.to(tl.float64)
        share = weight / balance / total
        tl.store(weights.negatives + u, share.to(tl.float32), mask=mask_u)
        tl.store(weights.lower + u, share, mask=mask_u)
        tl.store(weights.pull + u, share * rank, mask=mask_u)
        tl.store(errors + u, weight * error / balance, mask=mask_u)
        tl.store(mistakes + u, rank / balance, mask=mask_u)


@triton.jit
def interpolate_precision(
    positives, mistakes, weights, errors, programs,
    GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Scale the error of each positive down to the least error of the positives that are not above it."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        p, _, group_u, mask_u = load_positives(positives, u, total, 1.0, False, False, GROUPED)
        own = tl.load(mistakes + u, mask=mask_u, other=0.0)
        best = own
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            x, _unread, group_v, mask_v = load_positives(positives, v, total, 1.0, False, False, GROUPED)
            pairs = mask_v[None, :] & (x[None, :] <= p[:, None])
            if GROUPED:
                pairs = pairs & (group_v[None, :] == group_u[:, None])
            error_v = tl.load(mistakes + v, mask=mask_v, other=INF)[None, :]
            best = tl.minimum(best, tl.min(tl.where(pairs, error_v, INF), 1))
        factor = tl.where(own > 0, best / tl.where(own > 0, own, 1.0), 1.0)
        share = tl.load(weights.negatives + u, mask=mask_u, other=0.0)
        tl.store(weights.negatives + u, (share * factor).to(tl.float32), mask=mask_u)
        tl.store(weights.pull + u, tl.load(weights.pull + u, mask=mask_u, other=0.0) * factor, mask=mask_u)
        tl.store(errors + u, tl.load(errors + u, mask=mask_u, other=0.0) * factor, mask=mask_u)


@triton.jit
def weigh_ranksort(
    positives, sums, weights, ranking, sorting, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """RankSort: each positive's ranking and sorting error, and its weights."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c_u, q_u, group_u, mask_u = load_positives(positives, u, total, SCALE, True, True, GROUPED)
        among = tl.zeros([BU], tl.float64)  # over all positives, u itself with 1/2
        lacking = tl.zeros([BU], tl.float64)
        worse = tl.zeros([BU], tl.float64)  # over those of lower quality
        worse_lacking = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            c_v, q_v, group_v, mask_v = load_positives(positives, v, total, SCALE, True, True, GROUPED)
            pairs = mask_u[:, None] & mask_v[None, :]
            if GROUPED:
                pairs = pairs & (group_v[None, :] == group_u[:, None])
            rank = tl.where(pairs, pair_rank(c_v[None, :] - c_u[:, None], SCALE, True), 0.0)
            lower = q_v[None, :] < q_u[:, None]
            lack = rank * (1.0 - q_v.to(tl.float64))[None, :]
            among += tl.sum(rank, 1)
            lacking += tl.sum(lack, 1)
            worse += tl.sum(tl.where(lower, rank, 0.0), 1)
            worse_lacking += tl.sum(tl.where(lower, lack, 0.0), 1)
        above = tl.load(sums + u, mask=mask_u, other=0.0)
        among = tl.where(mask_u, among, 1.0)
        # The mean of 1 - quality over the positives above u, minus the same over those of at least the quality of u.
        error = (worse_lacking - worse * lacking / among) / (among - worse)
        share = tl.where(worse > FEW_MISSORTED, error / tl.maximum(worse, FEW_MISSORTED), 0.0)
        wrong = above / (among + above)
        tl.store(weights.negatives + u, (1.0 / (among + above) / total).to(tl.float32), mask=mask_u)
        tl.store(weights.lower + u, share / total, mask=mask_u)
        tl.store(weights.pull + u, (share * worse + wrong) / total, mask=mask_u)
        tl.store(ranking + u, wrong, mask=mask_u)
        tl.store(sorting + u, error, mask=mask_u)


@triton.jit
def weigh_alrp(
    positives, sums, weights, ranks, errors, programs,
    SCALE: tl.constexpr, TAU: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """aLRP: the share of negatives in the rank of each positive, and its weights, which include the box errors."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        c_u, _q, group_u, mask_u = load_positives(positives, u, total, SCALE, True, True, GROUPED)
        among = tl.zeros([BU], tl.float64)
        boxes = tl.zeros([BU], tl.float64)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            c_v, q_v, group_v, mask_v = load_positives(positives, v, total, SCALE, True, True, GROUPED)
            pairs = mask_v[None, :] & (u[:, None] != v[None, :])
            if GROUPED:
                pairs = pairs & (group_v[None, :] == group_u[:, None])
            rank = tl.where(pairs, pair_rank(c_v[None, :] - c_u[:, None], SCALE, True), 0.0)
            among += tl.sum(rank, 1)
            boxes += tl.sum(rank * ((1.0 - q_v.to(tl.float64)) * (0.5 / (1.0 - TAU)))[None, :], 1)
        above = tl.load(sums + u, mask=mask_u, other=0.0)
        rank = above + among + 1.0
        pull = tl.where(above > FEW_ABOVE, (above + boxes) / rank, 0.0) / total
        tl.store(weights.negatives + u, (pull / tl.maximum(above, FEW_ABOVE)).to(tl.float32), mask=mask_u)
        tl.store(weights.pull + u, pull, mask=mask_u)
        tl.store(ranks + u, rank, mask=mask_u)
        tl.store(errors + u, above / rank, mask=mask_u)


@triton.jit
def box_weights(
    positives, ranks, positive_of_row, batch, out, world_size,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """aLRP: weight of the box error of each row: Σ_u H(p_v - p_u) / rank_u for a positive v, else 0."""
    total = tl.load(positives.counts)
    row = tl.program_id(0) * BU + tl.arange(0, BU)
    label = tl.load(batch.labels + row, mask=row < batch.rows, other=C)
    positive = (label >= 0) & (label < C)
    weight = tl.zeros([BU], tl.float64)
    if tl.max(positive.to(tl.int32)) > 0:
        v = tl.load(positives.counts + 1) + tl.load(positive_of_row + row, mask=positive, other=0)
        v = tl.where(positive, v, total)
        c_v, _, group_v, mask_v = load_positives(positives, v, total, SCALE, True, False, GROUPED)
        for start in range(0, total, BV):
            u = start + tl.arange(0, BV)
            c_u, _unread, group_u, mask_u = load_positives(positives, u, total, SCALE, True, False, GROUPED)
            rank = tl.where(u[None, :] == v[:, None], 1.0, pair_rank(c_v[:, None] - c_u[None, :], SCALE, True))
            pairs = mask_v[:, None] & mask_u[None, :]
            if GROUPED:
                pairs = pairs & (group_u[None, :] == group_v[:, None])
            inverse = 1.0 / tl.load(ranks + u, mask=mask_u, other=1.0)
            weight += tl.sum(tl.where(pairs, rank * inverse[None, :], 0.0), 1)
        weight = weight * world_size / tl.maximum(total, 1)
    tl.store(out + row, weight.to(tl.float32), mask=row < batch.rows)


@triton.jit
def reduce_loss(
    positives, first, second, sums, loss, log, nan_if_faults, capacity, BOTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Loss and numbers for the log, by one program: means over the positives. With faults the loss is NaN."""
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
    tl.store(nan_if_faults, bad.to(tl.float32))
    tl.store(log, total.to(tl.float64))
    tl.store(log + 1, faults)
    if BOTH:
        tl.store(log + 2, mean)
        tl.store(log + 3, other)
    else:
        tl.store(log + 2, other)


@triton.jit
def positive_gradients(
    upstream, positives, weights, grad_positives, world_size, programs,
    SCALE: tl.constexpr, STEP: tl.constexpr, LOWER: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """The gradient of this process's positives: -pull, with LOWER plus the push by positives of higher quality."""
    total = tl.load(positives.counts)
    offset = tl.load(positives.counts + 1)
    factor = tl.load(upstream).to(tl.float64) * world_size
    end = offset + tl.load(positives.counts + 2)
    for first in range(offset + tl.program_id(0) * BU, end, programs * BU):
        v = first + tl.arange(0, BU)
        c_v, q_v, group_v, mask_v = load_positives(positives, v, end, SCALE, STEP, LOWER, GROUPED)
        pushed = tl.zeros([BU], tl.float64)
        if LOWER:
            for start in range(0, total, BV):
                u = start + tl.arange(0, BV)
                c_u, q_u, group_u, mask_u = load_positives(positives, u, total, SCALE, STEP, True, GROUPED)
                pairs = mask_u[None, :] & (q_u[None, :] > q_v[:, None])
                if GROUPED:
                    pairs = pairs & (group_u[None, :] == group_v[:, None])
                w = tl.load(weights.lower + u, mask=mask_u, other=0.0)[None, :]
                pushed += tl.sum(tl.where(pairs, w * pair_rank(c_v[:, None] - c_u[None, :], SCALE, STEP), 0.0), 1)
        pull = tl.load(weights.pull + v, mask=mask_v, other=0.0)
        tl.store(grad_positives + v - offset, (factor * (pushed - pull)).to(tl.float32), mask=mask_v)
