"""A few float32 that are computed together, as a value of compiled loops: `Pack`, its arithmetic, loads and stores.

Numba has no such type, and LLVM does not find these instructions by itself where rows might overlap. A pack lives in a
vector register; + - * work between packs of one length and with single numbers. Nothing is checked.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

FAST: Final = ("contract", "reassoc", "nsz", "arcp")
FLOAT: Final = ir.FloatType()
INT: Final = ir.IntType(64)
_SLOT = ir.IntType(32)
Builder = Any
Value = Any
intrinsic: Final[Any] = extending.intrinsic  # numba's own types take the typing context for an argument
of_constants: Final[Any] = extending.intrinsic(prefer_literal=True)


class Pack(types.Type):
    """The type of `count` float32."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"Pack({count})")


@register_model(Pack)
class _Model(models.PrimitiveModel):
    """A pack is an LLVM vector."""

    def __init__(self, manager: Any, kind: Pack) -> None:
        super().__init__(manager, kind, vector_type(kind.count))


def vector_type(count: int) -> Any:
    """LLVM's type for a pack of `count`."""
    return ir.VectorType(FLOAT, count)


def splat(builder: Builder, scalar: Value, count: int) -> Value:
    """A vector of `count` times the same number."""
    nothing = ir.Constant(vector_type(count), ir.Undefined)
    first = builder.insert_element(nothing, scalar, _SLOT(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_SLOT, count), [0] * count))


def gathered(builder: Builder, scalars: list[Value]) -> Value:
    """The vector of some numbers."""
    vector: Value = ir.Constant(vector_type(len(scalars)), ir.Undefined)
    for k, scalar in enumerate(scalars):
        vector = builder.insert_element(vector, scalar, _SLOT(k))
    return vector


def spread(builder: Builder, vector: Value) -> list[Value]:
    """The numbers of a vector."""
    return [builder.extract_element(vector, _SLOT(k)) for k in range(vector.type.count)]


def summed(builder: Builder, vector: Value) -> Value:
    """The sum of a vector."""
    kind = ir.FunctionType(FLOAT, [FLOAT, vector.type])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{vector.type.count}f32")
    return builder.call(reduce, [ir.Constant(FLOAT, -0.0), vector], fastmath=("reassoc",))


def address_of(context: Any, builder: Builder, kind: Any, array: Value, at: Value) -> Value:
    """Where element `at` of a contiguous array is, whatever its rank."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def load_vector(builder: Builder, address: Value, count: int) -> Value:
    """`count` floats from an address on."""
    value = builder.load(builder.bitcast(address, vector_type(count).as_pointer()))
    value.align = 4
    return value


def store_vector(builder: Builder, value: Value, address: Value) -> None:
    """Store a vector at an address."""
    builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = 4


def _let_packs(symbol: Any, instruction: str) -> None:
    """Let a pack stand on either side of an operator, with a pack or a float32 on the other."""

    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            packs = [kind for kind in args if isinstance(kind, Pack)]
            if len(args) == 2 and packs and all(kind in (packs[0], types.float32) for kind in args):
                return signature(packs[0], *args)
            return None

    def lowered(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        x, y = (
            value if isinstance(kind, Pack) else splat(builder, value, sig.return_type.count)
            for value, kind in zip(args, sig.args, strict=True)
        )
        return getattr(builder, instruction)(x, y, flags=FAST)

    for left, right in ((Pack, Pack), (Pack, types.Float), (types.Float, Pack)):
        lower_builtin(symbol, left, right)(lowered)


for _symbol, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _let_packs(_symbol, _instruction)


@intrinsic
def total(typing: Any, pack: Any) -> Any:
    """The sum of a pack."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return summed(builder, args[0])

    return types.float32(pack), codegen


@intrinsic
def inverse_root(typing: Any, pack: Any) -> Any:
    """1 / sqrt of each number."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        kind = args[0].type
        name = f"llvm.sqrt.v{kind.count}f32"
        root = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        one = ir.Constant(kind, [1.0] * kind.count)
        return builder.fdiv(one, builder.call(root, [args[0]], fastmath=FAST), flags=FAST)

    return pack(pack), codegen


@intrinsic
def at_least_zero(typing: Any, pack: Any) -> Any:
    """Each number, or zero where it is less."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        zero = ir.Constant(args[0].type, [0.0] * pack.count)
        return builder.select(builder.fcmp_ordered("<", args[0], zero), zero, args[0])

    return pack(pack), codegen


@of_constants
def load(typing: Any, array: Any, at: Any, count: Any) -> Any:
    """`count` numbers of a contiguous float32 array from element `at` on; a constant, or a tuple of as many."""
    size = count.literal_value if isinstance(count, types.IntegerLiteral) else count.count

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return load_vector(builder, address_of(context, builder, sig.args[0], args[0], args[1]), size)

    return Pack(size)(array, types.int64, count), codegen


@intrinsic
def store(typing: Any, array: Any, at: Any, pack: Any) -> Any:
    """Store a pack in a contiguous float32 array from element `at` on."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        store_vector(builder, args[2], address_of(context, builder, sig.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, pack), codegen


def places(context: Any, builder: Builder, sig: Any, args: Any) -> list[Value]:
    """Addresses in a contiguous array at index * width + column; arguments (array, tuple of indices, width, column)."""
    found = []
    for k in range(sig.args[1].count):
        at = builder.add(builder.mul(builder.extract_value(args[1], k), args[2]), args[3])
        found.append(address_of(context, builder, sig.args[0], args[0], at))
    return found


@intrinsic
def gather(typing: Any, array: Any, indices: Any, width: Any, column: Any) -> Any:
    """The numbers at index * width + column of a contiguous float32 array, for each index of a tuple."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return gathered(builder, [builder.load(place) for place in places(context, builder, sig, args)])

    i = types.int64
    return Pack(indices.count)(array, types.UniTuple(i, indices.count), i, i), codegen


@intrinsic
def scatter(typing: Any, array: Any, indices: Any, width: Any, column: Any, pack: Any) -> Any:
    """Store a pack where `gather` would read it."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        for value, place in zip(spread(builder, args[4]), places(context, builder, sig, args), strict=True):
            builder.store(value, place)
        return context.get_dummy_value()

    i = types.int64
    return types.void(array, types.UniTuple(i, indices.count), i, i, pack), codegen


@of_constants
def partners(typing: Any, pairs: Any, first: Any, count: Any) -> Any:
    """pairs[first:first + count, 1] as a tuple of int64; `pairs` is uint16 of shape (n, 4), `count` a constant."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        found = []
        for k in range(sig.return_type.count):
            at = builder.add(builder.mul(args[1], INT(4)), INT(4 * k + 1))
            found.append(builder.zext(builder.load(address_of(context, builder, sig.args[0], args[0], at)), INT))
        return cgutils.pack_array(builder, found)

    return types.UniTuple(types.int64, count.literal_value)(pairs, types.int64, count), codegen
