"""Rows of a table as vectors of the processor: what numba's own loops leave to single numbers.

A cell's moments, or the coefficients of its polynomial, lie side by side in memory. To add to such a row, or to
read it, is one instruction instead of one per number. Indices are not checked here: `passes.locate` clamps them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Samples whose polynomials are evaluated at once.
LANES = 8

#: Moments, or coefficients, of each cell by the kind of cells.
MOMENTS = {"Lattice": 4, "Edges": 2}

_inline: Any = intrinsic

_LANE = ir.IntType(32)


@_inline
def add_powers(typing: Any, cells: Any, table: Any, row: Any, f: Any) -> Any:
    """Adds 1, f, f², … to a row of a contiguous float64 table with as many columns as ``cells`` has moments."""
    number = MOMENTS[cells.instance_class.__name__]

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.DoubleType(), number)
        value = context.cast(builder, arguments[3], signature.args[3], types.float64)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _LANE(0))
        each = builder.shuffle_vector(first, first, _mask([0] * number))
        powers = ones = ir.Constant(vector, [1.0] * number)
        for power in range(1, number):  # [1, f, f, f] · [1, 1, f, f] · [1, 1, 1, f]
            chosen = [lane if lane < power else number + lane for lane in range(number)]
            powers = builder.fmul(powers, builder.shuffle_vector(ones, each, _mask(chosen)))
        row = context.cast(builder, arguments[2], signature.args[2], types.intp)
        pointer = builder.gep(_pointer(context, builder, signature, arguments, 1, vector), [row])
        builder.store(builder.fadd(builder.load(pointer, align=8), powers), pointer, align=8)
        return context.get_dummy_value()

    return types.void(cells, table, row, f), build


@_inline
def evaluate_polynomials(typing: Any, cells: Any, table: Any, index: Any, f: Any, k: Any, out: Any) -> Any:
    """Writes the values of `LANES` samples' polynomials to out[k : k + LANES].

    The coefficients by powers of f[k], … are the rows index[k], … of a contiguous table of f's dtype.
    """
    number = MOMENTS[cells.instance_class.__name__]

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, target = (context.get_value_type(signature.args[n].dtype) for n in (1, 5))
        size, target_size = (signature.args[n].dtype.bitwidth // 8 for n in (1, 5))
        start = context.cast(builder, arguments[4], signature.args[4], types.intp)
        table = _pointer(context, builder, signature, arguments, 1, ir.VectorType(kind, number))
        at = builder.gep(_pointer(context, builder, signature, arguments, 2), [start])
        rows = []
        for lane in range(LANES):
            row = builder.zext(builder.load(builder.gep(at, [_LANE(lane)])), ir.IntType(64))
            rows.append(builder.load(builder.gep(table, [row]), align=size))
        while len(rows) > 1:
            both = _mask(list(range(2 * rows[0].type.count)))
            rows = [builder.shuffle_vector(*pair, both) for pair in zip(rows[::2], rows[1::2], strict=True)]
        coefficients = [
            builder.shuffle_vector(rows[0], rows[0], _mask([number * lane + power for lane in range(LANES)]))
            for power in range(number)
        ]
        at = builder.gep(_pointer(context, builder, signature, arguments, 3), [start])
        offset = builder.load(builder.bitcast(at, ir.VectorType(kind, LANES).as_pointer()), align=size)
        value = coefficients.pop()
        while coefficients:
            product = builder.fmul(value, offset, flags=("contract",))
            value = builder.fadd(product, coefficients.pop(), flags=("contract",))
        vector = ir.VectorType(target, LANES)
        value = value if target == kind else builder.fptrunc(value, vector)
        at = builder.gep(_pointer(context, builder, signature, arguments, 5), [start])
        builder.store(value, builder.bitcast(at, vector.as_pointer()), align=target_size)
        return context.get_dummy_value()

    return types.void(cells, table, index, f, k, out), build


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, which: int, vector: Any = None) -> Any:
    """Where the data of an array among the arguments begins, as single numbers or as vectors."""
    array = context.make_array(signature.args[which])(context, builder, arguments[which])
    return array.data if vector is None else builder.bitcast(array.data, vector.as_pointer())


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_LANE, len(lanes)), lanes)
