"""Explicit vector instructions for the kernels: dot products and updates of one row against one or four others.

LLVM does not vectorise loops over two rows that might overlap, so these spell out 16-lane operations. Offsets are in
floats from the start of a contiguous float32 array; `n` floats are processed, a multiple of 16. Nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types

LANES = 16
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INT = ir.IntType(64)
_FAST = ("contract", "reassoc", "nsz")
intrinsic: Final[Any] = extending.intrinsic  # numba's own types take the typing context for an argument
Builder = Any
Value = Any


def _pointers(context: Any, builder: Builder, kinds: Any, args: Any, rows: int) -> tuple[Value, list[Value]]:
    """Addresses of the one row and of the others: arguments are (one, at, others, at_0, ... at_rows-1, ...)."""
    one = context.make_array(kinds[0])(context, builder, args[0]).data
    others = context.make_array(kinds[2])(context, builder, args[2]).data
    return builder.gep(one, [args[1]]), [builder.gep(others, [args[3 + k]]) for k in range(rows)]


def _load(builder: Builder, address: Value) -> Value:
    value = builder.load(builder.bitcast(address, _VECTOR.as_pointer()))
    value.align = 4
    return value


def _store(builder: Builder, value: Value, address: Value) -> None:
    builder.store(value, builder.bitcast(address, _VECTOR.as_pointer())).align = 4


def _multiply_add(builder: Builder, x: Value, y: Value, z: Value) -> Value:
    return builder.fadd(builder.fmul(x, y, flags=_FAST), z, flags=_FAST)


def _splat(builder: Builder, scalar: Value) -> Value:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _sum(builder: Builder, vector: Value) -> Value:
    signature = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
    reduce = cgutils.get_or_insert_function(builder.module, signature, f"llvm.vector.reduce.fadd.v{LANES}f32")
    return builder.call(reduce, [ir.Constant(_FLOAT, -0.0), vector], fastmath=("reassoc",))


def _steps(builder: Builder, n: Value) -> Any:
    return cgutils.for_range(builder, builder.udiv(n, ir.Constant(_INT, LANES)))


def _accumulators(builder: Builder, count: int) -> list[Value]:
    return [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES)) for _ in range(count)]


def _at(builder: Builder, address: Value, step: Value) -> Value:
    return builder.gep(address, [builder.mul(step, ir.Constant(_INT, LANES))])


def _dots(rows: int) -> Callable[..., Any]:
    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        one, others = _pointers(context, builder, signature.args, args, rows)
        sums = _accumulators(builder, rows + 1)
        with _steps(builder, args[3 + rows]) as loop:
            u = _load(builder, _at(builder, one, loop.index))
            loaded = [_load(builder, _at(builder, other, loop.index)) for other in others]
            for total, v in zip(sums, [*loaded, u], strict=True):
                builder.store(_multiply_add(builder, u, v, builder.load(total)), total)
        return cgutils.pack_array(builder, [_sum(builder, builder.load(total)) for total in sums])

    return codegen


def _update(rows: int) -> Callable[..., Any]:
    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        one, others = _pointers(context, builder, signature.args, args, rows)
        scales = [_splat(builder, builder.fneg(scale)) for scale in args[4 + rows :]]
        to_one, to_others = scales[:rows], scales[rows:]
        (squares,) = _accumulators(builder, 1)
        with _steps(builder, args[3 + rows]) as loop:
            at_one = _at(builder, one, loop.index)
            u = new = _load(builder, at_one)
            for other, s, t in zip(others, to_one, to_others, strict=True):
                at_other = _at(builder, other, loop.index)
                v = _load(builder, at_other)
                new = _multiply_add(builder, s, v, new)
                _store(builder, _multiply_add(builder, t, u, v), at_other)
            _store(builder, new, at_one)
            builder.store(_multiply_add(builder, new, new, builder.load(squares)), squares)
        return _sum(builder, builder.load(squares))

    return codegen


@intrinsic
def dots_1(typing: Any, one: Any, at: Any, other: Any, at_0: Any, n: Any) -> Any:
    """(one . other, one . one)."""
    i, pair = types.int64, types.UniTuple(types.float32, 2)
    return pair(one, i, other, i, i), _dots(1)


@intrinsic
def dots_4(typing: Any, one: Any, at: Any, others: Any, at_0: Any, at_1: Any, at_2: Any, at_3: Any, n: Any) -> Any:
    """(one . other_0, ..., one . other_3, one . one)."""
    i, five = types.int64, types.UniTuple(types.float32, 5)
    return five(one, i, others, i, i, i, i, i), _dots(4)


@intrinsic
def update_1(typing: Any, one: Any, at: Any, other: Any, at_0: Any, n: Any, s: Any, t: Any) -> Any:
    """one -= s * other and other -= t * one, both from the old values; the new one . one."""
    i, f = types.int64, types.float32
    return f(one, i, other, i, i, f, f), _update(1)


@intrinsic
def update_4(
    typing: Any, one: Any, at: Any, others: Any, at_0: Any, at_1: Any, at_2: Any, at_3: Any, n: Any,
    s_0: Any, s_1: Any, s_2: Any, s_3: Any, t_0: Any, t_1: Any, t_2: Any, t_3: Any,
) -> Any:  # fmt: skip
    """one -= sum of s_k * other_k and other_k -= t_k * one, all from the old values; the new one . one."""
    i, f = types.int64, types.float32
    return f(one, i, others, i, i, i, i, i, *([f] * 8)), _update(4)
