"""The two passes over the negatives: powers summed into cells, polynomials read back from them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from rankwise.pairsums.cells import Cells, Room
from rankwise.pairsums.samples import Negatives

#: So many samples are worked on at once in plain torch: on a CPU the temporaries then stay in its cache.
BLOCK_CPU, BLOCK_GPU = 1 << 17, 1 << 22

#: On a CPU a table is summed up in so many copies in turn: many samples in one cell would wait for each other.
COPIES = 4

#: Set to False to do without compiled passes where numba is there.
use_compiled = True


def moments(negatives: Negatives, cells: Cells) -> Tensor:
    """Per cell the sum over its negatives of each power of their place, float64 [cells, degree + 1].

    Raises:
        NotFiniteError: If a negative is NaN or infinite.
    """
    if compiled := compiled_for(negatives.values):
        return compiled.moments(negatives, cells)
    negatives.check_finite()
    values, working = negatives.values, _working(negatives, cells)
    step, copies = (BLOCK_CPU, COPIES) if values.device.type == "cpu" else (BLOCK_GPU, 1)
    size, number = cells.size + 1, cells.degree + 1  # one cell more, for what is skipped
    table = torch.zeros(number, copies * size, dtype=torch.float64, device=values.device)
    room = Room(min(step, values.numel()), values.device)
    copy = torch.arange(0, copies * size, size, dtype=torch.int32, device=values.device)
    copy = copy.repeat(-(-room.longest // copies))
    all_powers = torch.empty(number, room.longest, dtype=torch.float64, device=values.device)
    all_powers[0] = 1
    for x, _, skipped in _blocks(negatives, step):
        cell, f = cells.find(x, working, room, negatives.extent)
        index = room.take("index", x.numel(), torch.int64).copy_(cell.add_(copy[: x.numel()]))
        index[skipped] = cells.size
        powers = all_powers[:, : x.numel()]
        powers[1].copy_(f)
        for power in range(2, number):
            torch.mul(powers[power - 1], powers[1], out=powers[power])
        table.scatter_add_(1, index.expand(number, -1), powers)
    return table.view(number, copies, size).sum(1)[:, :-1].T


def evaluate(negatives: Negatives, cells: Cells, coefficients: Tensor, out: Tensor) -> None:
    """Write the value of its cell's polynomial at each negative to its place in ``out``, and 0 to the places skipped.

    Args:
        negatives: The negatives.
        cells: The cells.
        coefficients: Of the powers of the place in each cell, float64 [cells, degree + 1]. Those of cells that
            reach beyond ±1/2 must be constant or linear.
        out: Flat gradient of the logits, float32 or float64.
    """
    if compiled := compiled_for(negatives.values):
        compiled.evaluate(negatives, cells, coefficients, out)
        return
    working, values = _working(negatives, cells), negatives.values
    step = BLOCK_CPU if values.device.type == "cpu" else BLOCK_GPU
    room = Room(min(step, values.numel()), values.device)
    straight = negatives.index is None and out.dtype == working
    highest, *lower = coefficients.T.flip(0).to(working).contiguous()
    for x, where, skipped in _blocks(negatives, step):
        index, f = cells.find(x, working, room, negatives.extent)
        column = room.take("column", x.numel(), working)
        value = negatives.target(out, where) if straight else room.take("value", x.numel(), working)
        torch.index_select(highest, 0, index, out=value)
        for coefficient in lower:
            torch.addcmul(torch.index_select(coefficient, 0, index, out=column), value, f, out=value)
        value[skipped] = 0
        if not straight:
            negatives.write(value, out, where)


def _working(negatives: Negatives, cells: Cells) -> torch.dtype:
    """The type to compute places in: long where cells are cut, since they may be wide."""
    return negatives.values.dtype if cells.edges is None else torch.float64


def _blocks(negatives: Negatives, step: int) -> Iterator[tuple[Tensor, slice, Tensor]]:
    """Stretches of the values, where they are, and which of their places are no negatives."""
    values, skipped = negatives.values, negatives.skipped()
    starts = range(0, values.numel(), step)
    bounds = torch.searchsorted(skipped, torch.tensor([*starts, values.numel()], device=values.device)).tolist()
    for number, start in enumerate(starts):
        where = slice(start, min(start + step, values.numel()))
        yield values[where], where, skipped[bounds[number] : bounds[number + 1]] - start


def compiled_for(values: Tensor) -> ModuleType | None:
    """The compiled code, if there is any for these values; numba is only imported when first needed."""
    if not use_compiled or values.device.type != "cpu":
        return None
    try:
        from rankwise.pairsums import compiled
    except ImportError:
        return None
    return compiled
