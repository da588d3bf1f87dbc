"""Compute dot products and updates of one row against a few other rows in explicit SIMD instructions of 16 lanes.

LLVM does not vectorise loops over rows that might overlap. Offsets are in floats from the start of a contiguous float32
array; `n` floats of each row are processed, a multiple of 16. No argument is checked.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from glovewire.common.runtime.simd import (
    FAST_MATH,
    INT,
    Builder,
    SimdVector,
    Value,
    address_of,
    element_addresses,
    elements_of,
    intrinsic,
    load_vector,
    reduce_add,
    splat,
    store_vector,
    vector_of,
    vector_type,
)

LANES = 16


def multiply_add(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    """Return x * y + z."""
    return builder.fadd(builder.fmul(x, y, flags=FAST_MATH), z, flags=FAST_MATH)


def lane_loop(builder: Builder, n: Value) -> Any:
    """Return a loop over `n` floats, LANES per step."""
    return cgutils.for_range(builder, builder.udiv(n, INT(LANES)))


def accumulators(builder: Builder, count: int) -> list[Value]:
    """Allocate `count` vectors of LANES zeros on the stack; return their addresses."""
    return [cgutils.alloca_once_value(builder, vector_type(LANES)([0.0] * LANES)) for _ in range(count)]


def lane_address(builder: Builder, address: Value, step: Value) -> Value:
    """Return the address of the floats that step number `step` of a `lane_loop` over `address` processes."""
    return builder.gep(address, [builder.mul(step, INT(LANES))])


def _rows(context: Any, builder: Builder, sig: Any, args: Any) -> tuple[Value, list[Value]]:
    """Return the addresses of row `one` and of the others; `args` is (one, at, others, rows, width, column, ...)."""
    kinds = types.void(*sig.args[2:6])
    one = address_of(context, builder, sig.args[0], args[0], args[1])
    return one, element_addresses(context, builder, kinds, args[2:6])


@intrinsic
def dots(typing: Any, one: Any, at: Any, others: Any, rows: Any, width: Any, column: Any, n: Any) -> Any:
    """Return the vector of dot products one . other, and one . one; others begin at row * width + column for `rows`."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        at_one, at_others = _rows(context, builder, sig, args)
        sums = accumulators(builder, rows.count + 1)
        with lane_loop(builder, args[6]) as loop:
            u = load_vector(builder, lane_address(builder, at_one, loop.index), LANES)
            loaded = [load_vector(builder, lane_address(builder, other, loop.index), LANES) for other in at_others]
            for total, v in zip(sums, [*loaded, u], strict=True):
                builder.store(multiply_add(builder, u, v, builder.load(total)), total)
        *found, squares = (reduce_add(builder, builder.load(total)) for total in sums)
        return context.make_tuple(builder, sig.return_type, [vector_of(builder, found), squares])

    i, result = types.int64, types.Tuple([SimdVector(rows.count), types.float32])
    return result(one, i, others, types.UniTuple(i, rows.count), i, i, i), codegen


@intrinsic
def update(
    typing: Any, one: Any, at: Any, others: Any, rows: Any, width: Any, column: Any, n: Any, s: Any, t: Any, into: Any
) -> Any:
    """Do other_k -= t_k * one, and one -= g, the sum of s_k * other_k, from old values; return the new one . one.

    If `into` is an array and not None, write g to it instead of subtracting it, and return g . g.
    """
    apart = not isinstance(into, types.NoneType)

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        at_one, at_others = _rows(context, builder, sig, args)
        target = address_of(context, builder, into, args[9], INT(0)) if apart else at_one
        scales, steps = (elements_of(builder, vector) for vector in args[7:9])
        to_one = [splat(builder, scale if apart else builder.fneg(scale), LANES) for scale in scales]
        to_others = [splat(builder, builder.fneg(step), LANES) for step in steps]
        (squares,) = accumulators(builder, 1)
        with lane_loop(builder, args[6]) as loop:
            u = load_vector(builder, lane_address(builder, at_one, loop.index), LANES)
            new = ir.Constant(u.type, [0.0] * LANES) if apart else u
            for other, scale, step in zip(at_others, to_one, to_others, strict=True):
                there = lane_address(builder, other, loop.index)
                v = load_vector(builder, there, LANES)
                new = multiply_add(builder, scale, v, new)
                store_vector(builder, multiply_add(builder, step, u, v), there)
            store_vector(builder, new, lane_address(builder, target, loop.index))
            builder.store(multiply_add(builder, new, new, builder.load(squares)), squares)
        return reduce_add(builder, builder.load(squares))

    i, f = types.int64, types.float32
    return f(one, i, others, types.UniTuple(i, rows.count), i, i, i, s, t, into), codegen


@intrinsic
def add_scaled(typing: Any, one: Any, at: Any, other: Any, n: Any, scale: Any) -> Any:
    """Do one += scale * other, where `other` begins at offset 0."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        ours = address_of(context, builder, one, args[0], args[1])
        theirs, scale = address_of(context, builder, other, args[2], INT(0)), splat(builder, args[4], LANES)
        with lane_loop(builder, args[3]) as loop:
            here = lane_address(builder, ours, loop.index)
            v = load_vector(builder, lane_address(builder, theirs, loop.index), LANES)
            store_vector(builder, multiply_add(builder, scale, v, load_vector(builder, here, LANES)), here)
        return context.get_dummy_value()

    return types.void(one, types.int64, other, types.int64, types.float32), codegen


@intrinsic
def prefetch_floats(typing: Any, rows: Any, at: Any, n: Any) -> Any:
    """Prefetch `n` floats, from offset `at` on, into the CPU cache."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        start = address_of(context, builder, sig.args[0], args[0], args[1])
        with lane_loop(builder, args[2]) as loop:
            address = builder.bitcast(lane_address(builder, start, loop.index), pointer)
            builder.call(ask, [address, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.int64), codegen
