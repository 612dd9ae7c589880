"""Sums of sigmoid and softplus over the negatives, and their adjoint, by Taylor expansion about the cell centers.

Forward, each positive sums moments times derivatives over the cells of its group. Backward, the derivatives summed over
the positives are a cubic in each cell, evaluated at each negative: the transpose of the same matrix.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankwise.pairsums.engines.triton.distances import coordinate, log1p, pair_rank, sigmoid, softplus
from rankwise.pairsums.engines.triton.histogram import BINS, BINS_PER_CELL, CELLS, TOO_WIDE, USABLE, bin_layout, bins_of
from rankwise.pairsums.engines.triton.positives import INF, load_index_range


@triton.jit
def sums_over_cells(
    batch, positives, extremes, moments, overflow_totals, faults, sums, capacity, programs,
    C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, ERROR: tl.constexpr,
    BU: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """For each positive, the sum of S(x - p) over the negatives; with ERROR also of softplus(λ(x - p)) / λ."""
    pid = tl.program_id(0)
    total = tl.load(positives.counts)
    if pid == 0:
        tl.store(sums + 2 * capacity, tl.load(faults).to(tl.float64))
    for begin in range(pid * BU, total, programs * BU):
        u = begin + tl.arange(0, BU)
        mask_u = u < total
        p = tl.load(positives.logit + u, mask=mask_u, other=0.0)
        group = tl.zeros([BU], tl.int64)
        if GROUPS > 1:
            group = tl.load(positives.group + u, mask=mask_u, other=-1)
        has_bins = (group >= 0) & (group < GROUPS)
        table = tl.where(has_bins, group, 0)
        width, _inverse, first, state = bin_layout(extremes, table, WIDTH, SCALE)
        by_cells = mask_u & has_bins & (state == USABLE)
        rank = tl.zeros([BU], tl.float64)
        error = tl.zeros([BU], tl.float64)
        if tl.max(by_cells.to(tl.int32)) > 0:
            for start in range(0, CELLS, BC):
                cell = start + tl.arange(0, BC)
                at = moments + (table * 4 * CELLS)[:, None] + cell[None, :]
                mask = by_cells[:, None] & (cell < CELLS)[None, :]
                m0 = tl.load(at, mask=mask, other=0.0)
                m1 = tl.load(at + CELLS, mask=mask, other=0.0)
                m2 = tl.load(at + 2 * CELLS, mask=mask, other=0.0)
                m3 = tl.load(at + 3 * CELLS, mask=mask, other=0.0)
                center = (first[:, None] + (cell.to(tl.float32) + 0.5)[None, :]) * (width * BINS_PER_CELL)[:, None]
                z = SCALE * (center - p[:, None])
                s, t, e = sigmoid(z)
                d1 = s * t
                d2 = d1 * (t - s)
                d3 = d1 * (1.0 - 6.0 * d1)
                rank += tl.sum(m0 * s + (m1 * d1 + (m2 * d2 + m3 * d3)), 1).to(tl.float64)
                if ERROR:
                    zero = tl.maximum(z, 0.0) + log1p(e)
                    error += tl.sum(m0 * zero + (m1 * s + (m2 * d1 + m3 * d2)), 1).to(tl.float64) / SCALE
            number_above = tl.load(overflow_totals + 2 * table, mask=by_cells, other=0.0)
            excess = tl.load(overflow_totals + 2 * table + 1, mask=by_cells, other=0.0)
            top = ((first * BINS_PER_CELL + BINS) * width).to(tl.float64)
            rank += number_above
            error += excess + number_above * (top - p.to(tl.float64))
        by_pairs = mask_u & ~by_cells
        if tl.max(by_pairs.to(tl.int32)) > 0:
            for start in range(0, batch.size, BC):
                at = start + tl.arange(0, BC)
                mask = at < batch.size
                row = at // C
                label = tl.load(batch.labels + row, mask=mask, other=-1)
                x = tl.load(batch.logits + at, mask=mask, other=0.0).to(tl.float32)
                x = tl.where(tl.abs(x) < INF, x, 0.0)
                counted = mask & (label >= 0) & (label != at - row * C)
                pairs = by_pairs[:, None] & counted[None, :]
                if GROUPS > 1:
                    image = tl.load(batch.image + row, mask=mask, other=-1)
                    pairs = pairs & (image[None, :] == group[:, None])
                d = x.to(tl.float64)[None, :] - p.to(tl.float64)[:, None]
                rank += tl.sum(tl.where(pairs, pair_rank(d, SCALE, False), 0.0), 1)
                if ERROR:
                    error += tl.sum(tl.where(pairs, softplus(d, SCALE), 0.0), 1)
        tl.store(sums + u, rank, mask=mask_u)
        tl.store(sums + capacity + u, error, mask=mask_u)


@triton.jit
def cell_cubics(
    upstream, positives, extremes, weights, cubics, world_size,
    WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Σ_u weight_u · S(x - p_u) as a cubic of the offset in each cell.

    The entry before the first cell is 0, the one after the last cell is the sum of all weights.
    """
    group = tl.program_id(1)
    width, _inverse, origin, state = bin_layout(extremes, group, WIDTH, SCALE)
    if state == USABLE:
        first, last = load_index_range(extremes, group)
        factor = tl.load(upstream).to(tl.float32) * world_size
        cell = tl.program_id(0) * BC + tl.arange(0, BC) - 1
        center = (origin + cell.to(tl.float32) + 0.5) * (width * BINS_PER_CELL)
        a0 = tl.zeros([BC], tl.float32)
        a1 = tl.zeros([BC], tl.float32)
        a2 = tl.zeros([BC], tl.float32)
        a3 = tl.zeros([BC], tl.float32)
        total_weight = tl.zeros([BV], tl.float32)
        for start in range(first, last, BV):
            u = start + tl.arange(0, BV)
            mask = u < last
            if GROUPS > 1:
                mask = mask & (tl.load(positives.group + u, mask=mask, other=-1) == group)
            w = tl.load(weights.negatives + u, mask=mask, other=0.0)
            p = tl.load(positives.logit + u, mask=mask, other=0.0)
            total_weight += w
            s, t, _ = sigmoid(SCALE * (center[:, None] - p[None, :]))
            d1 = w[None, :] * (s * t)
            a0 += tl.sum(w[None, :] * s, 1)
            a1 += tl.sum(d1, 1)
            a2 += tl.sum(d1 * (t - s), 1)
            a3 += tl.sum(d1 * (1.0 - 6.0 * (s * t)), 1)
        k = SCALE * width * BINS_PER_CELL
        inside = (cell >= 0) & (cell < CELLS)
        a0 = tl.where(inside, a0, tl.where(cell < 0, 0.0, tl.sum(total_weight)))
        out = cubics + (group * (CELLS + 2) + cell + 1) * 4
        mask = cell <= CELLS
        tl.store(out, factor * a0, mask=mask)
        tl.store(out + 1, tl.where(inside, factor * a1 * k, 0.0), mask=mask)
        tl.store(out + 2, tl.where(inside, factor * a2 * (k * k / 2), 0.0), mask=mask)
        tl.store(out + 3, tl.where(inside, factor * a3 * (k * k * k / 6), 0.0), mask=mask)


@triton.jit
def gradient_of_cubics(
    upstream, batch, positives, extremes, weights, cubics, positive_of_row, grad_positives, nan_if_faults, grad,
    world_size, C: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of each logit: from the cubic of its cell, or from ``grad_positives`` for a positive."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < batch.size
    row = index // C
    label = tl.load(batch.labels + row, mask=mask, other=-1)
    x = tl.load(batch.logits + index, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(tl.abs(x) < INF, x, 0.0)
    counted = mask & (label >= 0)
    positive = counted & (label == index - row * C)
    image = tl.zeros([BLOCK], tl.int64)
    if GROUPS > 1:
        image = tl.load(batch.image + row, mask=mask, other=-1)
    has_bins = counted & (image >= 0) & (image < GROUPS)
    group = tl.where(has_bins, image, 0)
    if GROUPS > 1:
        _width, inverse, first, state = bin_layout(extremes, group, WIDTH, SCALE)
    else:
        _width, inverse, first, state = bin_layout(extremes, 0, WIDTH, SCALE)
    state = tl.where(has_bins, state, TOO_WIDE)
    bin, offset = bins_of(x, inverse, first)
    cell = tl.minimum(tl.maximum((bin + BINS_PER_CELL) // BINS_PER_CELL - 1, -1), CELLS)
    f = ((bin - cell * BINS_PER_CELL).to(tl.float32) + offset) * (1.0 / BINS_PER_CELL) - 0.5
    f = tl.where((cell >= 0) & (cell < CELLS), f, 0.0)
    by_cells = counted & ~positive & (state == USABLE)
    entry = cubics + (group * (CELLS + 2) + cell + 1) * 4
    a0 = tl.load(entry, mask=by_cells, other=0.0)
    a1 = tl.load(entry + 1, mask=by_cells, other=0.0)
    a2 = tl.load(entry + 2, mask=by_cells, other=0.0)
    a3 = tl.load(entry + 3, mask=by_cells, other=0.0)
    value = a0 + f * (a1 + f * (a2 + f * a3))
    total = tl.load(positives.counts)
    by_pairs = counted & ~positive & (state == TOO_WIDE)
    if tl.max(by_pairs.to(tl.int32)) > 0:
        pushed = tl.zeros([BLOCK], tl.float64)
        for u in range(0, total):
            p = tl.load(positives.logit + u)
            pairs = by_pairs
            if GROUPS > 1:
                pairs = pairs & (image == tl.load(positives.group + u))
            rank = pair_rank(x.to(tl.float64) - coordinate(p, SCALE, False), SCALE, False)
            pushed += tl.where(pairs, tl.load(weights.negatives + u) * rank, 0.0)
        value = tl.where(by_pairs, (tl.load(upstream).to(tl.float32) * world_size * pushed).to(tl.float32), value)
    own = grad_positives + tl.load(positive_of_row + row, mask=positive, other=0)
    value = tl.where(positive, tl.load(own, mask=positive, other=0.0), value)
    value = tl.where(counted, value + tl.load(nan_if_faults), 0.0)
    tl.store(grad + index, value.to(grad.dtype.element_ty), mask=mask)
