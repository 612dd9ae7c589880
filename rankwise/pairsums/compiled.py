"""The two passes over the negatives, compiled by numba for the CPU: a block at a time, on all of torch's threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwise.pairsums import compiled_by_quality
from rankwise.pairsums.cells import FAR, Cells
from rankwise.pairsums.compiled_sigmoid import CompiledSigmoidCells
from rankwise.pairsums.compiled_step import CompiledStepCells
from rankwise.pairsums.jit import compiled
from rankwise.pairsums.samples import Negatives
from rankwise.pairsums.threads import in_parts

#: Samples whose cell and place are computed at once, as vectors, before they are added one by one: they stay in cache.
BLOCK = 2048

#: A thread gets at least so many samples.
SHARE = 1 << 16

#: Tables of all threads together hold no more numbers than this, if need be with fewer threads.
TABLES = 1 << 23

FAR32 = np.float32(FAR)
FLOAT32_INFINITY = np.int32(0x7F800000)
FLOAT32_MAGNITUDE = np.int32(0x7FFFFFFF)

__all__ = ["CompiledSigmoidCells", "CompiledStepCells", "compiled_by_quality", "evaluate", "moments"]


def moments(negatives: Negatives, cells: Cells) -> Tensor:
    """Per cell the sum over its negatives of each power of their place, float64 [cells, degree + 1]."""
    values, skip = negatives.values.numpy(), _skip(negatives)
    shape = cells.size, cells.degree + 1
    plan = _plan(cells)

    def work(begin: int, end: int) -> tuple[np.ndarray, bool]:
        table = np.zeros(shape)
        if _is_cubic(cells, values):
            low, high = np.float32(cells.low[0]), np.float32(cells.high[0])
            fine = _cubic_moments(values, begin, end, skip, np.float32(cells.scale), low, high, table)
        else:
            fine = _moments(values, begin, end, skip, *plan, table)
        return table, fine

    share = max(SHARE, values.size * shape[0] * shape[1] // TABLES)
    parts = in_parts(work, values.size, share)
    if not all(fine for _, fine in parts):
        negatives.check_finite()
    total = parts[0][0]
    for table, _ in parts[1:]:
        total += table
    return torch.from_numpy(total)


def evaluate(negatives: Negatives, cells: Cells, coefficients: Tensor, out: Tensor) -> None:
    """Write the value of its cell's polynomial at each negative to its place in ``out``, 0 to the places skipped."""
    values, skip = negatives.values.numpy(), _skip(negatives)
    result = (
        out[negatives.start : negatives.start + values.size] if negatives.index is None else out.new_empty(values.size)
    )
    target = result.numpy()
    table = (coefficients.float() if _is_cubic(cells, values) else coefficients).contiguous().numpy()
    plan = _plan(cells)

    def work(begin: int, end: int) -> None:
        if _is_cubic(cells, values):
            low, high = np.float32(cells.low[0]), np.float32(cells.high[0])
            _cubic_values(values, begin, end, skip, np.float32(cells.scale), low, high, table, target)
        else:
            _values(values, begin, end, skip, *plan, table, target)

    in_parts(work, values.size, SHARE)
    if negatives.index is not None:
        negatives.write(result, out)


def _is_cubic(cells: Cells, values: np.ndarray) -> bool:
    """Whether the quickest passes will do: cubics on one stretch of lattice, float32."""
    return cells.degree == 3 and len(cells.low) == 1 and cells.edges is None and values.dtype == np.float32


def _skip(negatives: Negatives) -> np.ndarray:
    return np.zeros((0, 2), np.int64) if negatives.skip is None else negatives.skip.numpy()


def _plan(cells: Cells) -> tuple[Any, ...]:
    """The cells as plain arrays."""
    lattice = np.array([cells.low, cells.high, cells.base], np.float64)
    if cells.edges is None or cells.edges.numel() == 0:
        return cells.scale, lattice, *cells.bounds, np.zeros(0), 0.0, 0.0, np.zeros(1, np.int64)
    boxes = cells.boxes
    edges = boxes.edges.numpy(), boxes.first, boxes.per_unit, boxes.start.numpy()
    return cells.scale, lattice, *cells.bounds, *edges


@compiled
def _all_finite(x: Any) -> Any:
    fine = True
    for k in range(x.size):
        fine &= abs(x[k]) < np.inf
    return fine


@compiled
def _cubic_places(x: Any, scale: Any, low: Any, high: Any, index: Any, place: Any) -> Any:
    """Cell and place of each of a block's samples; whether all samples are finite."""
    bits = x.view(np.int32)
    largest = np.int32(0)
    for k in range(x.size):
        largest = max(largest, bits[k] & FLOAT32_MAGNITUDE)
        v = x[k] * scale
        v = v if v > -FAR32 else -FAR32  # in this order NaN becomes a number: no index is ever out of range
        v = v if v < FAR32 else FAR32
        held = v if v > low else low
        held = held if held < high else high
        cell = np.floor(held)
        index[k] = np.uint32(np.int32(cell - low))
        place[k] = v - cell - np.float32(0.5)
    return largest < FLOAT32_INFINITY


@compiled
def _cubic_moments(values: Any, begin: Any, end: Any, skip: Any, scale: Any, low: Any, high: Any, table: Any) -> Any:
    index, place = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    fine = True
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x = values[first : min(first + BLOCK, stop)]
            fine &= _cubic_places(x, scale, low, high, index, place)
            for k in range(x.size):
                i, f = index[k], np.float64(place[k])
                table[i, 0] += 1.0
                table[i, 1] += f
                table[i, 2] += f * f
                table[i, 3] += f * f * f
        begin = end if following >= skip.shape[0] else skip[following, 1]
        fine &= _all_finite(values[stop : min(begin, end)])
        following += 1
    return fine


@compiled
def _cubic_values(
    values: Any, begin: Any, end: Any, skip: Any, scale: Any, low: Any, high: Any, table: Any, out: Any
) -> None:
    index, place = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for first in range(begin, stop, BLOCK):
            x, target = values[first : min(first + BLOCK, stop)], out[first : min(first + BLOCK, stop)]
            _cubic_places(x, scale, low, high, index, place)
            for k in range(x.size):
                i, f = index[k], place[k]
                target[k] = table[i, 0] + f * (table[i, 1] + f * (table[i, 2] + f * table[i, 3]))
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1


@compiled
def _places(
    x: Any, scale: Any, lattice: Any, least: Any, most: Any, edges: Any, first: Any, per_box: Any, start: Any,
    index: Any, place: Any,
) -> Any:  # fmt: skip
    """Cell and place of each of a block's samples, as `Cells.locate` has them; whether all samples are finite."""
    fine = True
    if lattice.shape[1] == 1:
        low, high = lattice[0, 0], lattice[1, 0]
        for k in range(x.size):
            v = np.float64(x[k]) * scale
            fine &= abs(v) < np.inf
            held = v if v > low else low  # in this order NaN becomes low: no index is ever out of range
            held = held if held < high else high
            cell = np.floor(held)
            index[k] = np.uint64(np.int64(cell - low))
            place[k] = min(max(v, least), most) - cell - 0.5
    else:
        for k in range(x.size):
            v = np.float64(x[k]) * scale
            fine &= abs(v) < np.inf
            stretch, end = 0, lattice.shape[1]
            while end - stretch > 1:
                middle = (stretch + end) // 2
                stretch, end = (middle, end) if lattice[0, middle] <= v else (stretch, middle)
            low, high = lattice[0, stretch], lattice[1, stretch]
            held = v if v > low else low
            held = held if held < high else high
            cell = np.floor(held)
            index[k] = np.uint64(np.int64(cell - low + lattice[2, stretch]))
            place[k] = min(max(v, least), most) - cell - 0.5
    if edges.size:
        last = np.float64(start.size - 2)
        for k in range(x.size):
            box = (np.float64(x[k]) - first) * per_box
            box = box if box > 0.0 else 0.0
            box = box if box < last else last
            at = np.uint64(np.int64(box))
            below, end = np.uint64(start[at]), np.uint64(start[at + np.uint64(1)])
            if end - below <= np.uint64(1):
                below += np.uint64(edges[below] < x[k])  # with no edge in the box it is the next one, above x
            else:
                while below < end:
                    middle = (below + end) >> np.uint64(1)
                    if edges[middle] < x[k]:
                        below = middle + np.uint64(1)
                    else:
                        end = middle
            index[k] += below
    return fine


@compiled
def _moments(
    values: Any, begin: Any, end: Any, skip: Any, scale: Any, lattice: Any, least: Any, most: Any, edges: Any,
    first: Any, per_box: Any, start: Any, table: Any,
) -> Any:  # fmt: skip
    index, place = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.float64)
    other = (
        np.zeros_like(table) if table.shape[1] == 2 else table[:0]
    )  # in turn with the first: many samples in one cell would wait for each other
    fine = True
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for at in range(begin, stop, BLOCK):
            x = values[at : min(at + BLOCK, stop)]
            fine &= _places(x, scale, lattice, least, most, edges, first, per_box, start, index, place)
            if table.shape[1] == 2:
                for k in range(0, x.size - 1, 2):
                    table[index[k], 0] += 1.0
                    table[index[k], 1] += place[k]
                    other[index[k + 1], 0] += 1.0
                    other[index[k + 1], 1] += place[k + 1]
                if x.size % 2:
                    table[index[x.size - 1], 0] += 1.0
                    table[index[x.size - 1], 1] += place[x.size - 1]
            else:
                for k in range(x.size):
                    power = 1.0
                    for degree in range(table.shape[1]):
                        table[index[k], degree] += power
                        power *= place[k]
        begin = end if following >= skip.shape[0] else skip[following, 1]
        fine &= _all_finite(values[stop : min(begin, end)])
        following += 1
    if table.shape[1] == 2:
        table += other
    return fine


@compiled
def _values(
    values: Any, begin: Any, end: Any, skip: Any, scale: Any, lattice: Any, least: Any, most: Any, edges: Any,
    first: Any, per_box: Any, start: Any, table: Any, out: Any,
) -> None:  # fmt: skip
    index, place = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.float64)
    following = np.searchsorted(skip[:, 1], begin, side="right")
    while begin < end:
        stop = end if following >= skip.shape[0] else min(end, skip[following, 0])
        for at in range(begin, stop, BLOCK):
            x, target = values[at : min(at + BLOCK, stop)], out[at : min(at + BLOCK, stop)]
            _places(x, scale, lattice, least, most, edges, first, per_box, start, index, place)
            if table.shape[1] == 2:
                for k in range(x.size):
                    target[k] = table[index[k], 0] + place[k] * table[index[k], 1]
            else:
                for k in range(x.size):
                    value = 0.0
                    for degree in range(table.shape[1] - 1, -1, -1):
                        value = value * place[k] + table[index[k], degree]
                    target[k] = value
        begin = stop
        if following < skip.shape[0]:
            begin = min(end, skip[following, 1])
            out[stop:begin] = 0
        following += 1
