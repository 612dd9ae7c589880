"""Sums of the step over the negatives, and their adjoint, by the intervals between the edges p ± δ of all ramps.

Between two adjacent edges, the step of every positive is linear. Each negative finds its interval by bisection and adds
1 and its offset from the lower edge, in fixed point, with 64-bit integer atomics: the sums do not depend on the order.
In the backward pass, the linear functions are summed over the positives and evaluated at each negative. Edges are
sorted by group, then coordinate, so that one bisection finds the interval in any image.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.distances import coordinate, pair_rank
from rankwise.pairsums.engines.triton.positives import INF

#: Offsets are summed in units of 2δ / 2^34.
FIXED_POINT = tl.constexpr(float(1 << 34))
#: Tables of up to this many intervals are replicated, so that fewer atomics contend for one address.
MAX_REPLICATED = tl.constexpr(4096)


@triton.jit
def sort_edges(
    positives, edges, groups, begins, ends, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The ends of all ramps sorted by group and coordinate: the index of an edge is the number of edges before it."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        mask_u = u < total
        c_u = coordinate(tl.load(positives.logit + u, mask=mask_u, other=0.0), SCALE, True)
        begin = c_u - SCALE
        end = c_u + SCALE
        before_begin = tl.zeros([BU], tl.int32)
        before_end = tl.zeros([BU], tl.int32)
        group_u = tl.zeros([BU], tl.int64)
        if GROUPED:
            group_u = tl.load(positives.group + u, mask=mask_u, other=0)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            mask_v = v < total
            c_v = coordinate(tl.load(positives.logit + v, mask=mask_v, other=0.0), SCALE, True)
            first_of_two = v[None, :] < u[:, None]
            b = (c_v - SCALE)[None, :]
            e = (c_v + SCALE)[None, :]
            # Among equal coordinates, beginnings come before ends, then the order of the list decides.
            begun = (b < begin[:, None]) | ((b == begin[:, None]) & first_of_two)
            ended = e < begin[:, None]
            begun_at_end = b <= end[:, None]
            ended_at_end = (e < end[:, None]) | ((e == end[:, None]) & first_of_two)
            at_begin = begun.to(tl.int32) + ended.to(tl.int32)
            at_end = begun_at_end.to(tl.int32) + ended_at_end.to(tl.int32)
            if GROUPED:
                group_v = tl.load(positives.group + v, mask=mask_v, other=0)[None, :]
                earlier = tl.where(group_v < group_u[:, None], 2, 0)
                at_begin = tl.where(group_v == group_u[:, None], at_begin, earlier)
                at_end = tl.where(group_v == group_u[:, None], at_end, earlier)
            before_begin += tl.sum(tl.where(mask_v[None, :], at_begin, 0), 1)
            before_end += tl.sum(tl.where(mask_v[None, :], at_end, 0), 1)
        tl.store(edges + before_begin, begin, mask=mask_u)
        tl.store(edges + before_end, end, mask=mask_u)
        tl.store(begins + u, before_begin, mask=mask_u)
        tl.store(ends + u, before_end, mask=mask_u)
        if GROUPED:
            tl.store(groups + before_begin, group_u, mask=mask_u)
            tl.store(groups + before_end, group_u, mask=mask_u)


@triton.jit
def interval_of(edges, groups, c, group, number, mask, GROUPED: tl.constexpr, BLOCK: tl.constexpr):
    """Interval of each sample: the index of the last edge of its group at or below it; -1 if there is none."""
    bits = tl.sum(((tl.full([32], 1, tl.int64) << tl.arange(0, 32).to(tl.int64)) <= number).to(tl.int32))
    edges_below = tl.zeros([BLOCK], tl.int32)
    for bit in range(0, bits):
        probe = edges_below + (1 << (bits - 1 - bit))
        valid = mask & (probe <= number)
        edge = tl.load(edges + probe - 1, mask=valid, other=INF)
        below = edge <= c
        if GROUPED:
            edge_group = tl.load(groups + probe - 1, mask=valid, other=0)
            below = (edge_group < group) | ((edge_group == group) & below)
        edges_below = tl.where(valid & below, probe, edges_below)
    interval = edges_below - 1
    if GROUPED:
        edge_group = tl.load(groups + interval, mask=mask & (interval >= 0), other=0)
        interval = tl.where(edge_group == group, interval, -1)
    return interval


@triton.jit
def scatter(
    batch, positives, edges, groups, table, faults, copies, programs,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scatter the negatives into the intervals. NaN and infinite logits are faults, unless their row is ignored."""
    pid = tl.program_id(0)
    number = 2 * tl.load(positives.counts)
    narrow = number <= MAX_REPLICATED
    table += tl.where(narrow, (pid % copies) * (2 * MAX_REPLICATED), copies * (2 * MAX_REPLICATED))
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(pid * BLOCK, batch.size, programs * BLOCK):
        index = start + tl.arange(0, BLOCK)
        mask = index < batch.size
        row = index // C
        label = tl.load(batch.labels + row, mask=mask, other=-1)
        x = tl.load(batch.logits + index, mask=mask, other=0.0).to(tl.float32)
        finite = tl.abs(x) < INF
        bad += ((label >= 0) & ~finite).to(tl.int32)
        counted = mask & finite & (label >= 0) & (label != index - row * C)
        c = coordinate(tl.where(finite, x, 0.0), SCALE, True)
        group = tl.zeros([BLOCK], tl.int64)
        if GROUPED:
            group = tl.load(batch.image + row, mask=mask, other=0)
        else:  # below all ramps, as most negatives are
            counted = counted & (c >= tl.load(edges, mask=number > 0, other=INF))
        if tl.max(counted.to(tl.int32)) > 0:
            interval = interval_of(edges, groups, c, group, number, counted, GROUPED, BLOCK)
            inside = counted & (interval >= 0)
            offset = (c - tl.load(edges + interval, mask=inside, other=0.0)) * (0.5 / SCALE)
            fixed = (tl.minimum(offset, 1.0) * FIXED_POINT + 0.5).to(tl.int64)
            low = tl.min(tl.where(inside, interval, 1 << 30))
            high = tl.max(tl.where(inside, interval, -1))
            if low == high:
                tl.atomic_add(table + 2 * low, tl.sum(inside.to(tl.int64)), sem="relaxed")
                tl.atomic_add(table + 2 * low + 1, tl.sum(tl.where(inside, fixed, 0)), sem="relaxed")
            elif low < high:
                tl.atomic_add(table + 2 * interval, tl.full([BLOCK], 1, tl.int64), mask=inside, sem="relaxed")
                tl.atomic_add(table + 2 * interval + 1, fixed, mask=inside, sem="relaxed")
    tl.atomic_add(faults, tl.sum(bad).to(tl.int64), sem="relaxed")


@triton.jit
def merge_copies(positives, table, moments, capacity, copies, programs, BLOCK: tl.constexpr):
    """Moments 0 and 1 of the intervals, summed over the copies of the table; moment 1 in units of 2δ."""
    number = 2 * tl.load(positives.counts)
    narrow = number <= MAX_REPLICATED
    table += tl.where(narrow, 0, copies * (2 * MAX_REPLICATED))
    for first in range(tl.program_id(0) * BLOCK, number, programs * BLOCK):
        interval = first + tl.arange(0, BLOCK)
        mask = interval < number
        count = tl.zeros([BLOCK], tl.int64)
        offset = tl.zeros([BLOCK], tl.int64)
        for copy in range(0, tl.where(narrow, copies, 1)):
            count += tl.load(table + copy * (2 * MAX_REPLICATED) + 2 * interval, mask=mask, other=0)
            offset += tl.load(table + copy * (2 * MAX_REPLICATED) + 2 * interval + 1, mask=mask, other=0)
        tl.store(moments + interval, count.to(tl.float64), mask=mask)
        tl.store(moments + 2 * capacity + interval, offset.to(tl.float64) / FIXED_POINT, mask=mask)


@triton.jit
def sums_over_intervals(
    positives, edges, groups, begins, ends, moments, faults, sums, capacity, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """For each positive, the sum of H(x - p) over the negatives."""
    pid = tl.program_id(0)
    total = tl.load(positives.counts)
    if pid == 0:
        tl.store(sums + 2 * capacity, tl.load(faults).to(tl.float64))
    for first in range(pid * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        mask_u = u < total
        begin_at = tl.load(begins + u, mask=mask_u, other=2 * total)
        end_at = tl.load(ends + u, mask=mask_u, other=2 * total)
        begin = coordinate(tl.load(positives.logit + u, mask=mask_u, other=0.0), SCALE, True) - SCALE
        rank = tl.zeros([BU], tl.float64)
        for start in range(tl.min(begin_at), 2 * total, BV):
            i = start + tl.arange(0, BV)
            mask_i = i < 2 * total
            count = tl.load(moments + i, mask=mask_i, other=0.0)[None, :]
            offset = tl.load(moments + 2 * capacity + i, mask=mask_i, other=0.0)[None, :]
            edge = tl.load(edges + i, mask=mask_i, other=0.0)[None, :]
            ramp = count * ((edge - begin[:, None]) * (0.5 / SCALE)) + offset
            term = tl.where(i[None, :] >= end_at[:, None], count, ramp)
            counted = i[None, :] >= begin_at[:, None]
            if GROUPED:
                group = tl.load(positives.group + u, mask=mask_u, other=0)[:, None]
                counted = counted & (tl.load(groups + i, mask=mask_i, other=0)[None, :] == group)
            rank += tl.sum(tl.where(counted, term, 0.0), 1)
        tl.store(sums + u, rank, mask=mask_u)


@triton.jit
def interval_lines(
    upstream, positives, edges, groups, begins, ends, weights, lines, world_size, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BI: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Σ_u weight_u · H(x - p_u) in each interval: its value at the lower edge, and its slope."""
    total = tl.load(positives.counts)
    factor = tl.load(upstream).to(tl.float64) * world_size
    for first in range(tl.program_id(0) * BI, 2 * total, programs * BI):
        i = first + tl.arange(0, BI)
        mask_i = i < 2 * total
        edge = tl.load(edges + i, mask=mask_i, other=0.0)
        value = tl.zeros([BI], tl.float64)
        slope = tl.zeros([BI], tl.float64)
        for start in range(0, total, BV):
            u = start + tl.arange(0, BV)
            mask_u = u < total
            w = tl.load(weights.negatives + u, mask=mask_u, other=0.0).to(tl.float64)[None, :]
            c = coordinate(tl.load(positives.logit + u, mask=mask_u, other=0.0), SCALE, True)
            begin_at = tl.load(begins + u, mask=mask_u, other=2 * total)[None, :]
            end_at = tl.load(ends + u, mask=mask_u, other=2 * total)[None, :]
            if GROUPED:
                group = tl.load(groups + i, mask=mask_i, other=0)[:, None]
                same = tl.load(positives.group + u, mask=mask_u, other=0)[None, :] == group
                w = tl.where(same, w, 0.0)
            value += tl.sum(w * pair_rank(edge[:, None] - c[None, :], SCALE, True), 1)
            rising = (begin_at <= i[:, None]) & (i[:, None] < end_at)
            slope += tl.sum(tl.where(rising, w, 0.0), 1) * (0.5 / SCALE)
        tl.store(lines + 2 * i, (factor * value).to(tl.float32), mask=mask_i)
        tl.store(lines + 2 * i + 1, (factor * slope).to(tl.float32), mask=mask_i)


@triton.jit
def gradient_of_lines(
    batch, positives, edges, groups, lines, positive_of_row, grad_positives, nan_if_faults, grad,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of each logit: from the line of its interval, or from ``grad_positives`` for a positive."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < batch.size
    row = index // C
    label = tl.load(batch.labels + row, mask=mask, other=-1)
    x = tl.load(batch.logits + index, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(tl.abs(x) < INF, x, 0.0)
    counted = mask & (label >= 0)
    positive = counted & (label == index - row * C)
    number = 2 * tl.load(positives.counts)
    group = tl.zeros([BLOCK], tl.int64)
    c = coordinate(x, SCALE, True)
    negative = counted & ~positive
    if GROUPED:
        group = tl.load(batch.image + row, mask=mask, other=0)
    else:
        negative = negative & (c >= tl.load(edges, mask=number > 0, other=INF))
    value = tl.zeros([BLOCK], tl.float32)
    if tl.max(negative.to(tl.int32)) > 0:
        interval = interval_of(edges, groups, c, group, number, negative, GROUPED, BLOCK)
        inside = negative & (interval >= 0)
        base = tl.load(lines + 2 * interval, mask=inside, other=0.0)
        slope = tl.load(lines + 2 * interval + 1, mask=inside, other=0.0)
        value = base + slope * (c - tl.load(edges + interval, mask=inside, other=0.0)).to(tl.float32)
    own = grad_positives + tl.load(positive_of_row + row, mask=positive, other=0)
    value = tl.where(positive, tl.load(own, mask=positive, other=0.0), value)
    value = tl.where(counted, value + tl.load(nan_if_faults), 0.0)
    tl.store(grad + index, value.to(grad.dtype.element_ty), mask=mask)
