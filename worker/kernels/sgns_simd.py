"""Compute skip-gram's steps in explicit SIMD instructions: one row against the BUNDLE of rows of its group.

Arrays are contiguous; `at` and `places` are offsets, in floats, at which the row's vector and the other vectors begin.
`n` floats of each vector are processed, a multiple of 16. No argument is checked.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from glovewire.common.runtime.simd import INT, Builder, Value, intrinsic, reduce_add, store_vector

from .simd_rows import accumulators, lane_address, lane_loop, load_lanes, multiply_add, splat_lanes

BUNDLE = 12


def _data(context: Any, builder: Builder, signature: Any, args: Any, which: int) -> Value:
    return context.make_array(signature.args[which])(context, builder, args[which]).data


def _items(builder: Builder, data: Value) -> list[Value]:
    return [builder.gep(data, [INT(k)]) for k in range(BUNDLE)]


def _vectors(context: Any, builder: Builder, signature: Any, args: Any) -> tuple[Value, list[Value]]:
    """Return the addresses of the row's vector and of the others; `args` is (one, at, others, places, ...)."""
    one, others, places = (_data(context, builder, signature, args, which) for which in (0, 2, 3))
    starts = [builder.load(place) for place in _items(builder, places)]
    return builder.gep(one, [args[1]]), [builder.gep(others, [start]) for start in starts]


@intrinsic
def bundle_dots(typing: Any, one: Any, at: Any, others: Any, places: Any, n: Any, out: Any) -> Any:
    """Store the dot product one . other_k in out[k]; return one . one."""

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        one, others = _vectors(context, builder, signature, args)
        sums = accumulators(builder, BUNDLE + 1)
        with lane_loop(builder, args[4]) as loop:
            u = load_lanes(builder, lane_address(builder, one, loop.index))
            loaded = [load_lanes(builder, lane_address(builder, other, loop.index)) for other in others]
            for total, v in zip(sums, [*loaded, u], strict=True):
                builder.store(multiply_add(builder, u, v, builder.load(total)), total)
        *products, squares = (reduce_add(builder, builder.load(total)) for total in sums)
        for product, item in zip(products, _items(builder, _data(context, builder, signature, args, 5)), strict=True):
            builder.store(product, item)
        return squares

    return types.float32(one, types.int64, others, places, types.int64, out), codegen


@intrinsic
def step_bundle(
    typing: Any, one: Any, at: Any, others: Any, places: Any, n: Any, into: Any, scales: Any, steps: Any
) -> Any:
    """Do into = sum of scales[k] * other_k, then other_k -= steps[k] * one; return into . into."""

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        one, others = _vectors(context, builder, signature, args)
        into, scales, steps = (_data(context, builder, signature, args, which) for which in (5, 6, 7))
        up = [splat_lanes(builder, builder.load(item)) for item in _items(builder, scales)]
        down = [splat_lanes(builder, builder.fneg(builder.load(item))) for item in _items(builder, steps)]
        (squares,) = accumulators(builder, 1)
        with lane_loop(builder, args[4]) as loop:
            u = load_lanes(builder, lane_address(builder, one, loop.index))
            total = ir.Constant(u.type, [0.0] * u.type.count)
            for other, s, t in zip(others, up, down, strict=True):
                at_other = lane_address(builder, other, loop.index)
                v = load_lanes(builder, at_other)
                total = multiply_add(builder, s, v, total)
                store_vector(builder, multiply_add(builder, t, u, v), at_other)
            store_vector(builder, total, lane_address(builder, into, loop.index))
            builder.store(multiply_add(builder, total, total, builder.load(squares)), squares)
        return reduce_add(builder, builder.load(squares))

    return types.float32(one, types.int64, others, places, types.int64, into, scales, steps), codegen


@intrinsic
def add_scaled(typing: Any, one: Any, at: Any, other: Any, n: Any, scale: Any) -> Any:
    """Do one += scale * other."""

    def codegen(context: Any, builder: Builder, signature: Any, args: Any) -> Value:
        one = builder.gep(_data(context, builder, signature, args, 0), [args[1]])
        other, scale = _data(context, builder, signature, args, 2), splat_lanes(builder, args[4])
        with lane_loop(builder, args[3]) as loop:
            at_one = lane_address(builder, one, loop.index)
            v = load_lanes(builder, lane_address(builder, other, loop.index))
            store_vector(builder, multiply_add(builder, scale, v, load_lanes(builder, at_one)), at_one)
        return context.get_dummy_value()

    return types.void(one, types.int64, other, types.int64, types.float32), codegen
