"""Compiled loops over objects and anchors for the CPU: no table of objects × anchors, no temporary tensors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankwise.jit import compiled
from rankwise.threads import in_parts

#: Minimum number of (object, anchor) pairs per thread, so that the work outweighs starting it.
PAIRS_PER_THREAD = 1 << 17


def nearest(points: Tensor, anchors: Tensor, level_sizes: tuple[int, ...], k: int) -> Tensor:
    """See :func:`rankwise.assign.atss.nearest`."""
    x, y = anchors.T.contiguous().numpy()
    ends = np.cumsum(level_sizes)
    found = np.empty((len(points), sum(min(k, size) for size in level_sizes)), np.int64)
    where = points.contiguous().numpy()
    smallest = max(1, PAIRS_PER_THREAD // max(1, len(x)))
    in_parts(lambda begin, end: _nearest(where[begin:end], x, y, ends, k, found[begin:end]), len(points), smallest)
    return torch.from_numpy(found)


def overlaps(boxes: Tensor, ends: list[int], anchors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See :func:`rankwise.assign.overlap.best_overlaps`; ``ends`` is one past each image's last object."""
    found = (
        anchors.new_zeros(len(ends), len(anchors)),
        torch.zeros(len(ends), len(anchors), dtype=torch.int64),
        anchors.new_zeros(len(boxes)),
        torch.zeros(len(boxes), dtype=torch.int64),
    )
    iou, owner, best_iou, best_anchor = (one.numpy() for one in found)
    sides, columns = boxes.contiguous().numpy(), anchors.T.contiguous().numpy()
    bounds = np.array([0, *ends])
    smallest = max(1, PAIRS_PER_THREAD * len(ends) // max(1, len(boxes) * len(anchors)))

    def work(begin: int, end: int) -> None:
        _overlaps(sides, bounds[begin : end + 1], columns, iou[begin:end], owner[begin:end], best_iou, best_anchor)

    in_parts(work, len(ends), smallest)
    return found


def claim_best(boxes: Tensor, ends: list[int], anchors: Tensor, best_iou: Tensor, below: Tensor, owner: Tensor) -> None:
    """See :func:`rankwise.assign.overlap.owned_anchors`: objects below the threshold get their best anchors."""
    if bool(below.any()):
        bounds = np.array([0, *ends])
        _claim_best(
            boxes.contiguous().numpy(),
            bounds,
            anchors.T.contiguous().numpy(),
            best_iou.numpy(),
            below.numpy(),
            owner.numpy(),
        )


def fit(values: Tensor, valid: Tensor, tolerance: float, floor: float, iterations: int) -> tuple[Tensor, Tensor]:
    """See :func:`rankwise.assign.gmm.fit_mixtures`: weights, means and variances [3, 2, T], and what has converged."""
    parameters = torch.empty(3, 2, len(values), dtype=torch.float64)
    converged = torch.zeros(len(values), dtype=torch.bool)
    rows, present, out, done = values.contiguous().numpy(), valid.numpy(), parameters.numpy(), converged.numpy()

    def work(begin: int, end: int) -> None:
        part = slice(begin, end)
        _fit(rows[part], present[part], tolerance, floor, iterations, out[:, :, part], done[part])

    in_parts(work, len(values), 32)
    return parameters, converged


@compiled
def _nearest(points, x, y, ends, k, found):  # type: ignore[no-untyped-def]
    distance = np.empty(len(x), np.float32)
    best = np.empty(k, np.float32)
    for t in range(len(points)):
        px, py = points[t]
        for a in range(len(x)):
            distance[a] = (px - x[a]) * (px - x[a]) + (py - y[a]) * (py - y[a])
        start, column = 0, 0
        for end in ends:
            taken = min(k, end - start)
            held = 0
            for a in range(start, end):
                d = distance[a]
                if held == taken and not d < best[taken - 1]:
                    continue
                at = held if held < taken else taken - 1
                while at > 0 and d < best[at - 1]:
                    best[at] = best[at - 1]
                    found[t, column + at] = found[t, column + at - 1]
                    at -= 1
                best[at] = d
                found[t, column + at] = a
                held = min(held + 1, taken)
            start, column = end, column + taken


@compiled
def _iou_row(box, x1, y1, x2, y2, area, row):  # type: ignore[no-untyped-def]
    """IoUs of a box with all anchors, bit-identical to `rankwise.boxes.table_iou`."""
    zero, tiny = np.float32(0), np.float32(1e-12)
    left, top, right, bottom = box[0], box[1], box[2], box[3]
    own = max(max(right - left, zero) * max(bottom - top, zero), tiny)
    for a in range(len(row)):
        width = min(right, x2[a]) - max(left, x1[a])
        height = min(bottom, y2[a]) - max(top, y1[a])
        shared = (width if width > zero else zero) * (height if height > zero else zero)
        row[a] = shared / (own + area[a] - shared)


@compiled
def _areas(x1, y1, x2, y2):  # type: ignore[no-untyped-def]
    area = np.empty(len(x1), np.float32)
    zero, tiny = np.float32(0), np.float32(1e-12)
    for a in range(len(x1)):
        area[a] = max(max(x2[a] - x1[a], zero) * max(y2[a] - y1[a], zero), tiny)
    return area


@compiled
def _overlaps(boxes, bounds, anchors, iou, owner, best_iou, best_anchor):  # type: ignore[no-untyped-def]
    x1, y1, x2, y2 = anchors[0], anchors[1], anchors[2], anchors[3]
    area = _areas(x1, y1, x2, y2)
    row = np.empty(len(x1), np.float32)
    for image in range(len(bounds) - 1):
        best, who = iou[image], owner[image]
        for t in range(bounds[image], bounds[image + 1]):
            _iou_row(boxes[t], x1, y1, x2, y2, area, row)
            highest, at = np.float32(0), 0
            for a in range(len(row)):
                value = row[a]
                if value > 0:
                    if value > highest:
                        highest, at = value, a
                    if value > best[a]:
                        best[a] = value
                        who[a] = t
            best_iou[t] = highest
            best_anchor[t] = at


@compiled
def _claim_best(boxes, bounds, anchors, best_iou, below, owner):  # type: ignore[no-untyped-def]
    x1, y1, x2, y2 = anchors[0], anchors[1], anchors[2], anchors[3]
    area = _areas(x1, y1, x2, y2)
    row = np.empty(len(x1), np.float32)
    claim = np.empty(len(x1), np.float32)
    for image in range(len(bounds) - 1):
        claim[:] = 0  # the IoU of what was claimed here; what an object has by the threshold stays its own
        for t in range(bounds[image], bounds[image + 1]):
            if not below[t]:
                continue
            _iou_row(boxes[t], x1, y1, x2, y2, area, row)
            for a in range(len(row)):
                if row[a] == best_iou[t] and row[a] > claim[a] and (owner[image, a] < 0 or claim[a] > 0):
                    owner[image, a] = t
                    claim[a] = row[a]


@compiled
def _fit(values, valid, tolerance, floor, iterations, parameters, converged):  # type: ignore[no-untyped-def]
    rows, columns = values.shape
    share = np.empty(columns)
    other = np.empty(columns)
    x = np.empty(columns)
    for t in range(rows):
        count = 0
        for n in range(columns):
            if valid[t, n]:
                x[count] = values[t, n]
                count += 1
        w0 = w1 = 0.5
        v0 = v1 = 1.0
        m0 = x[:count].min() if count else 0.0
        m1 = x[:count].max() if count else 0.0
        bound = -math.inf
        for _ in range(iterations):
            c0 = math.log(w0 / math.sqrt(2 * math.pi * v0))
            c1 = math.log(w1 / math.sqrt(2 * math.pi * v1))
            s0 = s1 = 10 * 2.220446049250313e-16  # scikit-learn's guard against empty components
            sum0 = sum1 = likelihood = 0.0
            for n in range(count):
                log0 = c0 - 0.5 * (x[n] - m0) ** 2 / v0
                log1 = c1 - 0.5 * (x[n] - m1) ** 2 / v1
                e = math.exp(-abs(log0 - log1))
                likelihood += max(log0, log1) + math.log1p(e)
                large, small = 1 / (1 + e), e / (1 + e)
                share[n], other[n] = (large, small) if log0 >= log1 else (small, large)
                s0 += share[n]
                s1 += other[n]
                sum0 += share[n] * x[n]
                sum1 += other[n] * x[n]
            m0, m1 = sum0 / s0, sum1 / s1
            spread0 = spread1 = 0.0
            for n in range(count):
                spread0 += share[n] * (x[n] - m0) ** 2
                spread1 += other[n] * (x[n] - m1) ** 2
            v0, v1 = spread0 / s0 + floor, spread1 / s1 + floor
            w0, w1 = s0 / (s0 + s1), s1 / (s0 + s1)
            new = likelihood / max(count, 1)
            if abs(new - bound) < tolerance:
                converged[t] = True
                break
            bound = new
        parameters[0, 0, t], parameters[0, 1, t] = w0, w1
        parameters[1, 0, t], parameters[1, 1, t] = m0, m1
        parameters[2, 0, t], parameters[2, 1, t] = v0, v1
