"""Explicit vector instructions for the kernels: dot products and updates of one row against a few others.

LLVM does not vectorise loops over two rows that might overlap, so these spell out 16-lane operations. Offsets are in
floats from the start of a contiguous float32 array; `n` floats are processed, a multiple of 16. Nothing is checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .simd import FAST as _FAST
from .simd import INT as _INT
from .simd import (
    Builder,
    Pack,
    Value,
    address_of,
    gathered,
    intrinsic,
    load_vector,
    places,
    splat,
    spread,
    store_vector,
    summed,
    vector_type,
)

LANES = 16


def _load(builder: Builder, address: Value) -> Value:
    return load_vector(builder, address, LANES)


_store = store_vector
_sum = summed


def _multiply_add(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    return builder.fadd(builder.fmul(x, y, flags=_FAST), z, flags=_FAST)


def _splat(builder: Builder, scalar: Value) -> Value:
    return splat(builder, scalar, LANES)


def _steps(builder: Builder, n: Value) -> Any:
    return cgutils.for_range(builder, builder.udiv(n, _INT(LANES)))


def _accumulators(builder: Builder, count: int) -> list[Value]:
    return [cgutils.alloca_once_value(builder, vector_type(LANES)([0.0] * LANES)) for _ in range(count)]


def _at(builder: Builder, address: Value, step: Value) -> Value:
    return builder.gep(address, [builder.mul(step, _INT(LANES))])


def _rows(context: Any, builder: Builder, sig: Any, args: Any) -> tuple[Value, list[Value]]:
    """Addresses of the one row and of the others; arguments (one, at, others, tuple of rows, width, column, ...)."""
    kinds = types.void(*sig.args[2:6])
    one = address_of(context, builder, sig.args[0], args[0], args[1])
    return one, places(context, builder, kinds, args[2:6])


@intrinsic
def dots(typing: Any, one: Any, at: Any, others: Any, rows: Any, width: Any, column: Any, n: Any) -> Any:
    """(pack of one . other, one . one): `one` begins at `at`, the others at row * width + column for each of `rows`."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        at_one, at_others = _rows(context, builder, sig, args)
        sums = _accumulators(builder, rows.count + 1)
        with _steps(builder, args[6]) as loop:
            u = _load(builder, _at(builder, at_one, loop.index))
            loaded = [_load(builder, _at(builder, other, loop.index)) for other in at_others]
            for total, v in zip(sums, [*loaded, u], strict=True):
                builder.store(_multiply_add(builder, u, v, builder.load(total)), total)
        *found, squares = (summed(builder, builder.load(total)) for total in sums)
        return context.make_tuple(builder, sig.return_type, [gathered(builder, found), squares])

    i, result = types.int64, types.Tuple([Pack(rows.count), types.float32])
    return result(one, i, others, types.UniTuple(i, rows.count), i, i, i), codegen


@intrinsic
def update(
    typing: Any, one: Any, at: Any, others: Any, rows: Any, width: Any, column: Any, n: Any, s: Any, t: Any
) -> Any:
    """one -= sum of s_k * other_k and other_k -= t_k * one, all from the old values; the new one . one."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        at_one, at_others = _rows(context, builder, sig, args)
        to_one, to_others = ([_splat(builder, builder.fneg(x)) for x in spread(builder, pack)] for pack in args[7:])
        (squares,) = _accumulators(builder, 1)
        with _steps(builder, args[6]) as loop:
            here = _at(builder, at_one, loop.index)
            u = new = _load(builder, here)
            for other, scale, step in zip(at_others, to_one, to_others, strict=True):
                there = _at(builder, other, loop.index)
                v = _load(builder, there)
                new = _multiply_add(builder, scale, v, new)
                _store(builder, _multiply_add(builder, step, u, v), there)
            _store(builder, new, here)
            builder.store(_multiply_add(builder, new, new, builder.load(squares)), squares)
        return summed(builder, builder.load(squares))

    i, f = types.int64, types.float32
    return f(one, i, others, types.UniTuple(i, rows.count), i, i, i, s, t), codegen


@intrinsic
def prefetch(typing: Any, rows: Any, at: Any, n: Any) -> Any:
    """Ask for `n` floats from offset `at` on, so that they are near when they are needed."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        start = address_of(context, builder, sig.args[0], args[0], args[1])
        with _steps(builder, args[2]) as loop:
            address = builder.bitcast(_at(builder, start, loop.index), pointer)
            builder.call(ask, [address, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.int64), codegen
