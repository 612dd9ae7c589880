"""Sums of the sigmoid and of softplus over the negatives, and their adjoint, by a Taylor expansion about each cell.

Forward, a positive sums moments times derivatives over the cells of its group. Backward, the derivatives summed over
the positives make a cubic in each cell, which is evaluated at each negative: the transpose of the same matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.distances import coordinate, log1p, pair_rank, sigmoid, softplus
from rankwise.pairsums.engines.triton.histogram import APART, BINS, CELLS, PARTS, USABLE, bins_of, lattice
from rankwise.pairsums.engines.triton.positives import INF, load_span


@triton.jit
def sums_over_cells(
    batch, positives, extremes, moments, tails, faults, sums, capacity, programs,
    C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, ERROR: tl.constexpr,
    BU: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Per positive, the sum over the negatives of S(x - p), and with ERROR of softplus(λ(x - p)) / λ."""
    pid = tl.program_id(0)
    total = tl.load(positives.counts)
    if pid == 0:
        tl.store(sums + 2 * capacity, tl.load(faults).to(tl.float64))
    for begin in range(pid * BU, total, programs * BU):
        u = begin + tl.arange(0, BU)
        mine = u < total
        p = tl.load(positives.logit + u, mask=mine, other=0.0)
        group = tl.zeros([BU], tl.int64)
        if GROUPS > 1:
            group = tl.load(positives.group + u, mask=mine, other=-1)
        known = (group >= 0) & (group < GROUPS)
        slot = tl.where(known, group, 0)
        width, _inverse, first, state = lattice(extremes, slot, WIDTH, SCALE)
        by_cells = mine & known & (state == USABLE)
        rank = tl.zeros([BU], tl.float64)
        error = tl.zeros([BU], tl.float64)
        if tl.max(by_cells.to(tl.int32)) > 0:
            for start in range(0, CELLS, BC):
                cell = start + tl.arange(0, BC)
                at = moments + (slot * 4 * CELLS)[:, None] + cell[None, :]
                there = by_cells[:, None] & (cell < CELLS)[None, :]
                m0 = tl.load(at, mask=there, other=0.0)
                m1 = tl.load(at + CELLS, mask=there, other=0.0)
                m2 = tl.load(at + 2 * CELLS, mask=there, other=0.0)
                m3 = tl.load(at + 3 * CELLS, mask=there, other=0.0)
                center = (first[:, None] + (cell.to(tl.float32) + 0.5)[None, :]) * (width * PARTS)[:, None]
                z = SCALE * (center - p[:, None])
                s, t, e = sigmoid(z)
                d1 = s * t
                d2 = d1 * (t - s)
                d3 = d1 * (1.0 - 6.0 * d1)
                rank += tl.sum(m0 * s + (m1 * d1 + (m2 * d2 + m3 * d3)), 1).to(tl.float64)
                if ERROR:
                    zero = tl.maximum(z, 0.0) + log1p(e)
                    error += tl.sum(m0 * zero + (m1 * s + (m2 * d1 + m3 * d2)), 1).to(tl.float64) / SCALE
            passed = tl.load(tails + 2 * slot, mask=by_cells, other=0.0)
            beyond = tl.load(tails + 2 * slot + 1, mask=by_cells, other=0.0)
            top = ((first * PARTS + BINS) * width).to(tl.float64)
            rank += passed
            error += beyond + passed * (top - p.to(tl.float64))
        by_pairs = mine & ~by_cells
        if tl.max(by_pairs.to(tl.int32)) > 0:
            for start in range(0, batch.size, BC):
                at = start + tl.arange(0, BC)
                there = at < batch.size
                row = at // C
                label = tl.load(batch.labels + row, mask=there, other=-1)
                x = tl.load(batch.logits + at, mask=there, other=0.0).to(tl.float32)
                x = tl.where(tl.abs(x) < INF, x, 0.0)
                counted = there & (label >= 0) & (label != at - row * C)
                pairs = by_pairs[:, None] & counted[None, :]
                if GROUPS > 1:
                    image = tl.load(batch.image + row, mask=there, other=-1)
                    pairs = pairs & (image[None, :] == group[:, None])
                d = x.to(tl.float64)[None, :] - p.to(tl.float64)[:, None]
                rank += tl.sum(tl.where(pairs, pair_rank(d, SCALE, False), 0.0), 1)
                if ERROR:
                    error += tl.sum(tl.where(pairs, softplus(d, SCALE), 0.0), 1)
        tl.store(sums + u, rank, mask=mine)
        tl.store(sums + capacity + u, error, mask=mine)


@triton.jit
def cell_cubics(
    upstream, positives, extremes, weights, cubics, copies,
    WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The sum over the positives of weight · S(x - p) as a cubic of x in each cell.

    Before the first cell it is 0, after the last the sum of the weights: both have an entry of their own.
    """
    group = tl.program_id(1)
    width, _inverse, origin, state = lattice(extremes, group, WIDTH, SCALE)
    if state == USABLE:
        first, last = load_span(extremes, group)
        outer = tl.load(upstream).to(tl.float32) * copies
        cell = tl.program_id(0) * BC + tl.arange(0, BC) - 1
        center = (origin + cell.to(tl.float32) + 0.5) * (width * PARTS)
        a0 = tl.zeros([BC], tl.float32)
        a1 = tl.zeros([BC], tl.float32)
        a2 = tl.zeros([BC], tl.float32)
        a3 = tl.zeros([BC], tl.float32)
        everything = tl.zeros([BV], tl.float32)
        for start in range(first, last, BV):
            u = start + tl.arange(0, BV)
            there = u < last
            if GROUPS > 1:
                there = there & (tl.load(positives.group + u, mask=there, other=-1) == group)
            w = tl.load(weights.negatives + u, mask=there, other=0.0)
            p = tl.load(positives.logit + u, mask=there, other=0.0)
            everything += w
            s, t, _ = sigmoid(SCALE * (center[:, None] - p[None, :]))
            d1 = w[None, :] * (s * t)
            a0 += tl.sum(w[None, :] * s, 1)
            a1 += tl.sum(d1, 1)
            a2 += tl.sum(d1 * (t - s), 1)
            a3 += tl.sum(d1 * (1.0 - 6.0 * (s * t)), 1)
        k = SCALE * width * PARTS
        inside = (cell >= 0) & (cell < CELLS)
        a0 = tl.where(inside, a0, tl.where(cell < 0, 0.0, tl.sum(everything)))
        out = cubics + (group * (CELLS + 2) + cell + 1) * 4
        there = cell <= CELLS
        tl.store(out, outer * a0, mask=there)
        tl.store(out + 1, tl.where(inside, outer * a1 * k, 0.0), mask=there)
        tl.store(out + 2, tl.where(inside, outer * a2 * (k * k / 2), 0.0), mask=there)
        tl.store(out + 3, tl.where(inside, outer * a3 * (k * k * k / 6), 0.0), mask=there)


@triton.jit
def gradient_of_cubics(
    upstream, batch, positives, extremes, weights, cubics, slots, own, poison, out, copies,
    C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of each logit: a negative's from the cubic of its cell, a positive's as given in ``own``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < batch.size
    row = at // C
    label = tl.load(batch.labels + row, mask=there, other=-1)
    x = tl.load(batch.logits + at, mask=there, other=0.0).to(tl.float32)
    x = tl.where(tl.abs(x) < INF, x, 0.0)
    counted = there & (label >= 0)
    positive = counted & (label == at - row * C)
    image = tl.zeros([BLOCK], tl.int64)
    if GROUPS > 1:
        image = tl.load(batch.image + row, mask=there, other=-1)
    known = counted & (image >= 0) & (image < GROUPS)
    group = tl.where(known, image, 0)
    if GROUPS > 1:
        _width, inverse, first, state = lattice(extremes, group, WIDTH, SCALE)
    else:
        _width, inverse, first, state = lattice(extremes, 0, WIDTH, SCALE)
    state = tl.where(known, state, APART)
    bin, offset = bins_of(x, inverse, first)
    cell = tl.minimum(tl.maximum((bin + PARTS) // PARTS - 1, -1), CELLS)
    f = ((bin - cell * PARTS).to(tl.float32) + offset) * (1.0 / PARTS) - 0.5
    f = tl.where((cell >= 0) & (cell < CELLS), f, 0.0)
    by_cells = counted & ~positive & (state == USABLE)
    entry = cubics + (group * (CELLS + 2) + cell + 1) * 4
    a0 = tl.load(entry, mask=by_cells, other=0.0)
    a1 = tl.load(entry + 1, mask=by_cells, other=0.0)
    a2 = tl.load(entry + 2, mask=by_cells, other=0.0)
    a3 = tl.load(entry + 3, mask=by_cells, other=0.0)
    value = a0 + f * (a1 + f * (a2 + f * a3))
    total = tl.load(positives.counts)
    by_pairs = counted & ~positive & (state == APART)
    if tl.max(by_pairs.to(tl.int32)) > 0:
        pushed = tl.zeros([BLOCK], tl.float64)
        for u in range(0, total):
            p = tl.load(positives.logit + u)
            pairs = by_pairs
            if GROUPS > 1:
                pairs = pairs & (image == tl.load(positives.group + u))
            rank = pair_rank(x.to(tl.float64) - coordinate(p, SCALE, False), SCALE, False)
            pushed += tl.where(pairs, tl.load(weights.negatives + u) * rank, 0.0)
        value = tl.where(by_pairs, (tl.load(upstream).to(tl.float32) * copies * pushed).to(tl.float32), value)
    slot = tl.load(slots + row, mask=positive, other=0)
    value = tl.where(positive, tl.load(own + slot, mask=positive, other=0.0), value)
    value = tl.where(counted, value + tl.load(poison), 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=there)
