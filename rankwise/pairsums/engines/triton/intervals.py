"""Sums of the step over the negatives, and their adjoint, on the intervals between the ends of the positives' ramps.

The step is piecewise linear: between two neighboring ends of the 2P ramps p ± δ it is a line for every positive. Each
negative finds its interval by bisection and adds 1 and its offset from the interval's lower end, in fixed point, by
64-bit integer atomics: exact, and the same in any order. Backward, the lines summed over the positives are evaluated at
each negative. Ends are sorted by group first, so that bisection by (image, logit) finds the interval of any image.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.distances import coordinate, pair_rank
from rankwise.pairsums.engines.triton.positives import INF

#: Offsets are summed in units of 2δ / 2^34.
FIXED = tl.constexpr(float(1 << 34))
#: Tables of up to so many intervals have copies, so that fewer atomics meet on one address.
NARROW = tl.constexpr(4096)


@triton.jit
def sort_edges(
    positives, edges, groups, begins, ends, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The ends of all ramps sorted by group and coordinate, by counting how many come before each."""
    total = tl.load(positives.counts)
    for first in range(tl.program_id(0) * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        mine = u < total
        c = coordinate(tl.load(positives.logit + u, mask=mine, other=0.0), SCALE, True)
        begin = c - SCALE
        end = c + SCALE
        before_begin = tl.zeros([BU], tl.int32)
        before_end = tl.zeros([BU], tl.int32)
        group = tl.zeros([BU], tl.int64)
        if GROUPED:
            group = tl.load(positives.group + u, mask=mine, other=0)
        for start in range(0, total, BV):
            v = start + tl.arange(0, BV)
            there = v < total
            other = coordinate(tl.load(positives.logit + v, mask=there, other=0.0), SCALE, True)
            first_of_two = v[None, :] < u[:, None]
            b = (other - SCALE)[None, :]
            e = (other + SCALE)[None, :]
            # Of equal coordinates a beginning is before an end.
            begun = (b < begin[:, None]) | ((b == begin[:, None]) & first_of_two)
            ended = e < begin[:, None]
            begun_at_end = b <= end[:, None]
            ended_at_end = (e < end[:, None]) | ((e == end[:, None]) & first_of_two)
            at_begin = begun.to(tl.int32) + ended.to(tl.int32)
            at_end = begun_at_end.to(tl.int32) + ended_at_end.to(tl.int32)
            if GROUPED:
                theirs = tl.load(positives.group + v, mask=there, other=0)[None, :]
                earlier = tl.where(theirs < group[:, None], 2, 0)
                at_begin = tl.where(theirs == group[:, None], at_begin, earlier)
                at_end = tl.where(theirs == group[:, None], at_end, earlier)
            before_begin += tl.sum(tl.where(there[None, :], at_begin, 0), 1)
            before_end += tl.sum(tl.where(there[None, :], at_end, 0), 1)
        tl.store(edges + before_begin, begin, mask=mine)
        tl.store(edges + before_end, end, mask=mine)
        tl.store(begins + u, before_begin, mask=mine)
        tl.store(ends + u, before_end, mask=mine)
        if GROUPED:
            tl.store(groups + before_begin, group, mask=mine)
            tl.store(groups + before_end, group, mask=mine)


@triton.jit
def interval_of(edges, groups, c, group, number, there, GROUPED: tl.constexpr, BLOCK: tl.constexpr):
    """The interval of each sample: the position of the last edge at or below it; -1 before its group's first."""
    bits = tl.sum(((tl.full([32], 1, tl.int64) << tl.arange(0, 32).to(tl.int64)) <= number).to(tl.int32))
    position = tl.zeros([BLOCK], tl.int32)
    for bit in range(0, bits):
        probe = position + (1 << (bits - 1 - bit))
        valid = there & (probe <= number)
        edge = tl.load(edges + probe - 1, mask=valid, other=INF)
        below = edge <= c
        if GROUPED:
            of = tl.load(groups + probe - 1, mask=valid, other=0)
            below = (of < group) | ((of == group) & below)
        position = tl.where(valid & below, probe, position)
    index = position - 1
    if GROUPED:
        of = tl.load(groups + index, mask=there & (index >= 0), other=0)
        index = tl.where(of == group, index, -1)
    return index


@triton.jit
def scatter(
    batch, positives, edges, groups, table, faults, copies, programs,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Number and summed offsets of the negatives in each interval. NaN and infinity in rows that count are faults."""
    pid = tl.program_id(0)
    number = 2 * tl.load(positives.counts)
    narrow = number <= NARROW
    table += tl.where(narrow, (pid % copies) * (2 * NARROW), copies * (2 * NARROW))
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(pid * BLOCK, batch.size, programs * BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < batch.size
        row = at // C
        label = tl.load(batch.labels + row, mask=there, other=-1)
        x = tl.load(batch.logits + at, mask=there, other=0.0).to(tl.float32)
        finite = tl.abs(x) < INF
        bad += ((label >= 0) & ~finite).to(tl.int32)
        counted = there & finite & (label >= 0) & (label != at - row * C)
        c = coordinate(tl.where(finite, x, 0.0), SCALE, True)
        group = tl.zeros([BLOCK], tl.int64)
        if GROUPED:
            group = tl.load(batch.image + row, mask=there, other=0)
        else:  # most negatives are below all ramps
            counted = counted & (c >= tl.load(edges, mask=number > 0, other=INF))
        if tl.max(counted.to(tl.int32)) > 0:
            index = interval_of(edges, groups, c, group, number, counted, GROUPED, BLOCK)
            inside = counted & (index >= 0)
            offset = (c - tl.load(edges + index, mask=inside, other=0.0)) * (0.5 / SCALE)
            fixed = (tl.minimum(offset, 1.0) * FIXED + 0.5).to(tl.int64)
            low = tl.min(tl.where(inside, index, 1 << 30))
            high = tl.max(tl.where(inside, index, -1))
            if low == high:
                tl.atomic_add(table + 2 * low, tl.sum(inside.to(tl.int64)), sem="relaxed")
                tl.atomic_add(table + 2 * low + 1, tl.sum(tl.where(inside, fixed, 0)), sem="relaxed")
            elif low < high:
                tl.atomic_add(table + 2 * index, tl.full([BLOCK], 1, tl.int64), mask=inside, sem="relaxed")
                tl.atomic_add(table + 2 * index + 1, fixed, mask=inside, sem="relaxed")
    tl.atomic_add(faults, tl.sum(bad).to(tl.int64), sem="relaxed")


@triton.jit
def merge_copies(positives, table, moments, capacity, copies, programs, BLOCK: tl.constexpr):
    """Moments 0 and 1 of the intervals, the first in units of 2δ, from all copies of the table."""
    number = 2 * tl.load(positives.counts)
    narrow = number <= NARROW
    table += tl.where(narrow, 0, copies * (2 * NARROW))
    for first in range(tl.program_id(0) * BLOCK, number, programs * BLOCK):
        at = first + tl.arange(0, BLOCK)
        there = at < number
        count = tl.zeros([BLOCK], tl.int64)
        offset = tl.zeros([BLOCK], tl.int64)
        for copy in range(0, tl.where(narrow, copies, 1)):
            count += tl.load(table + copy * (2 * NARROW) + 2 * at, mask=there, other=0)
            offset += tl.load(table + copy * (2 * NARROW) + 2 * at + 1, mask=there, other=0)
        tl.store(moments + at, count.to(tl.float64), mask=there)
        tl.store(moments + 2 * capacity + at, offset.to(tl.float64) / FIXED, mask=there)


@triton.jit
def sums_over_intervals(
    positives, edges, groups, begins, ends, moments, faults, sums, capacity, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BU: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Per positive, the sum over the negatives of H(x - p)."""
    pid = tl.program_id(0)
    total = tl.load(positives.counts)
    if pid == 0:
        tl.store(sums + 2 * capacity, tl.load(faults).to(tl.float64))
    for first in range(pid * BU, total, programs * BU):
        u = first + tl.arange(0, BU)
        mine = u < total
        begin_at = tl.load(begins + u, mask=mine, other=2 * total)
        end_at = tl.load(ends + u, mask=mine, other=2 * total)
        begin = coordinate(tl.load(positives.logit + u, mask=mine, other=0.0), SCALE, True) - SCALE
        rank = tl.zeros([BU], tl.float64)
        for start in range(tl.min(begin_at), 2 * total, BV):
            i = start + tl.arange(0, BV)
            there = i < 2 * total
            count = tl.load(moments + i, mask=there, other=0.0)[None, :]
            offset = tl.load(moments + 2 * capacity + i, mask=there, other=0.0)[None, :]
            edge = tl.load(edges + i, mask=there, other=0.0)[None, :]
            ramp = count * ((edge - begin[:, None]) * (0.5 / SCALE)) + offset
            term = tl.where(i[None, :] >= end_at[:, None], count, ramp)
            counted = i[None, :] >= begin_at[:, None]
            if GROUPED:
                group = tl.load(positives.group + u, mask=mine, other=0)[:, None]
                counted = counted & (tl.load(groups + i, mask=there, other=0)[None, :] == group)
            rank += tl.sum(tl.where(counted, term, 0.0), 1)
        tl.store(sums + u, rank, mask=mine)


@triton.jit
def interval_lines(
    upstream, positives, edges, groups, begins, ends, weights, lines, copies, programs,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, BI: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The sum over the positives of weight · H(x - p) as a line in each interval: its value at the lower end, slope."""
    total = tl.load(positives.counts)
    outer = tl.load(upstream).to(tl.float64) * copies
    for first in range(tl.program_id(0) * BI, 2 * total, programs * BI):
        i = first + tl.arange(0, BI)
        mine = i < 2 * total
        edge = tl.load(edges + i, mask=mine, other=0.0)
        value = tl.zeros([BI], tl.float64)
        slope = tl.zeros([BI], tl.float64)
        for start in range(0, total, BV):
            u = start + tl.arange(0, BV)
            there = u < total
            w = tl.load(weights.negatives + u, mask=there, other=0.0).to(tl.float64)[None, :]
            c = coordinate(tl.load(positives.logit + u, mask=there, other=0.0), SCALE, True)
            begin_at = tl.load(begins + u, mask=there, other=2 * total)[None, :]
            end_at = tl.load(ends + u, mask=there, other=2 * total)[None, :]
            if GROUPED:
                group = tl.load(groups + i, mask=mine, other=0)[:, None]
                same = tl.load(positives.group + u, mask=there, other=0)[None, :] == group
                w = tl.where(same, w, 0.0)
            value += tl.sum(w * pair_rank(edge[:, None] - c[None, :], SCALE, True), 1)
            rising = (begin_at <= i[:, None]) & (i[:, None] < end_at)
            slope += tl.sum(tl.where(rising, w, 0.0), 1) * (0.5 / SCALE)
        tl.store(lines + 2 * i, (outer * value).to(tl.float32), mask=mine)
        tl.store(lines + 2 * i + 1, (outer * slope).to(tl.float32), mask=mine)


@triton.jit
def gradient_of_lines(
    batch, positives, edges, groups, lines, slots, own, poison, out,
    C: tl.constexpr, SCALE: tl.constexpr, GROUPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of each logit: a negative's from the line of its interval, a positive's as given in ``own``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < batch.size
    row = at // C
    label = tl.load(batch.labels + row, mask=there, other=-1)
    x = tl.load(batch.logits + at, mask=there, other=0.0).to(tl.float32)
    x = tl.where(tl.abs(x) < INF, x, 0.0)
    counted = there & (label >= 0)
    positive = counted & (label == at - row * C)
    number = 2 * tl.load(positives.counts)
    group = tl.zeros([BLOCK], tl.int64)
    c = coordinate(x, SCALE, True)
    negative = counted & ~positive
    if GROUPED:
        group = tl.load(batch.image + row, mask=there, other=0)
    else:
        negative = negative & (c >= tl.load(edges, mask=number > 0, other=INF))
    value = tl.zeros([BLOCK], tl.float32)
    if tl.max(negative.to(tl.int32)) > 0:
        index = interval_of(edges, groups, c, group, number, negative, GROUPED, BLOCK)
        inside = negative & (index >= 0)
        base = tl.load(lines + 2 * index, mask=inside, other=0.0)
        slope = tl.load(lines + 2 * index + 1, mask=inside, other=0.0)
        value = base + slope * (c - tl.load(edges + index, mask=inside, other=0.0)).to(tl.float32)
    slot = tl.load(slots + row, mask=positive, other=0)
    value = tl.where(positive, tl.load(own + slot, mask=positive, other=0.0), value)
    value = tl.where(counted, value + tl.load(poison), 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)
