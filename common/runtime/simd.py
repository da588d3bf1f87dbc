"""Give compiled loops a type for SIMD vectors of float32, with arithmetic, loads and stores.

Numba has no such type, and LLVM does not vectorise loops over rows that might overlap. A `SimdVector` is held in a
vector register; + - * take two vectors of the same length, or a vector and a float32. No bounds are checked.
"""

import operator
from typing import Any, Final

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

FAST_MATH: Final = ("contract", "reassoc", "nsz", "arcp")
FLOAT: Final = ir.FloatType()
INT: Final = ir.IntType(64)
_SLOT = ir.IntType(32)
Builder = Any
Value = Any
intrinsic: Final[Any] = extending.intrinsic  # numba's own types take the typing context for an argument
intrinsic_of_literals: Final[Any] = extending.intrinsic(prefer_literal=True)


class SimdVector(types.Type):
    """Numba's type of a vector of `count` float32."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"SimdVector({count})")


@register_model(SimdVector)
class _SimdVectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: SimdVector) -> None:
        super().__init__(manager, kind, vector_type(kind.count))


def vector_type(count: int) -> Any:
    """Return LLVM's type of a vector of `count` float32."""
    return ir.VectorType(FLOAT, count)


def splat(builder: Builder, scalar: Value, count: int) -> Value:
    """Return a vector with `scalar` in all `count` elements."""
    nothing = ir.Constant(vector_type(count), ir.Undefined)
    first = builder.insert_element(nothing, scalar, _SLOT(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_SLOT, count), [0] * count))


def vector_of(builder: Builder, scalars: list[Value]) -> Value:
    """Return the vector of the given numbers."""
    vector: Value = ir.Constant(vector_type(len(scalars)), ir.Undefined)
    for k, scalar in enumerate(scalars):
        vector = builder.insert_element(vector, scalar, _SLOT(k))
    return vector


def elements_of(builder: Builder, vector: Value) -> list[Value]:
    """Return the elements of a vector."""
    return [builder.extract_element(vector, _SLOT(k)) for k in range(vector.type.count)]


def reduce_add(builder: Builder, vector: Value) -> Value:
    """Return the sum of the elements of a vector."""
    kind = ir.FunctionType(FLOAT, [FLOAT, vector.type])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{vector.type.count}f32")
    return builder.call(reduce, [ir.Constant(FLOAT, -0.0), vector], fastmath=("reassoc",))


def address_of(context: Any, builder: Builder, kind: Any, array: Value, at: Value) -> Value:
    """Return the address of element `at` of a contiguous array of any rank."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def load_vector(builder: Builder, address: Value, count: int) -> Value:
    """Load a vector of `count` floats, starting at `address`."""
    value = builder.load(builder.bitcast(address, vector_type(count).as_pointer()))
    value.align = 4
    return value


def store_vector(builder: Builder, value: Value, address: Value) -> None:
    """Store a vector, starting at `address`."""
    builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = 4


def _register_operator(symbol: Any, instruction: str) -> None:
    """Define an operator between a SIMD vector and a SIMD vector or float32, on either side."""

    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            vectors = [kind for kind in args if isinstance(kind, SimdVector)]
            if len(args) == 2 and vectors and all(kind in (vectors[0], types.float32) for kind in args):
                return signature(vectors[0], *args)
            return None

    def lowered(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        x, y = (
            value if isinstance(kind, SimdVector) else splat(builder, value, sig.return_type.count)
            for value, kind in zip(args, sig.args, strict=True)
        )
        return getattr(builder, instruction)(x, y, flags=FAST_MATH)

    for left, right in ((SimdVector, SimdVector), (SimdVector, types.Float), (types.Float, SimdVector)):
        lower_builtin(symbol, left, right)(lowered)


for _symbol, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _register_operator(_symbol, _instruction)


@intrinsic
def lane_sum(typing: Any, vector: Any) -> Any:
    """Return the sum of the elements of a vector."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return reduce_add(builder, args[0])

    return types.float32(vector), codegen


@intrinsic
def inverse_sqrt(typing: Any, vector: Any) -> Any:
    """Return the vector of 1 / sqrt(x) for each element x."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        kind = args[0].type
        name = f"llvm.sqrt.v{kind.count}f32"
        root = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        one = ir.Constant(kind, [1.0] * kind.count)
        return builder.fdiv(one, builder.call(root, [args[0]], fastmath=FAST_MATH), flags=FAST_MATH)

    return vector(vector), codegen


@intrinsic
def clamp_at_zero(typing: Any, vector: Any) -> Any:
    """Return the vector of max(x, 0) for each element x."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        zero = ir.Constant(args[0].type, [0.0] * vector.count)
        return builder.select(builder.fcmp_ordered("<", args[0], zero), zero, args[0])

    return vector(vector), codegen


@intrinsic_of_literals
def load(typing: Any, array: Any, at: Any, count: Any) -> Any:
    """Load `count` (a constant, or a tuple of that length) floats of a contiguous array, from element `at` on."""
    size = count.literal_value if isinstance(count, types.IntegerLiteral) else count.count

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return load_vector(builder, address_of(context, builder, sig.args[0], args[0], args[1]), size)

    return SimdVector(size)(array, types.int64, count), codegen


@intrinsic
def store(typing: Any, array: Any, at: Any, vector: Any) -> Any:
    """Store a vector in a contiguous float32 array, starting at element `at`."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        store_vector(builder, args[2], address_of(context, builder, sig.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), codegen


def element_addresses(context: Any, builder: Builder, sig: Any, args: Any) -> list[Value]:
    """Return the address of element index * width + column for each index; `args`: (array, indices, width, column)."""
    found = []
    for k in range(sig.args[1].count):
        at = builder.add(builder.mul(builder.extract_value(args[1], k), args[2]), args[3])
        found.append(address_of(context, builder, sig.args[0], args[0], at))
    return found


@intrinsic
def gather(typing: Any, array: Any, indices: Any, width: Any, column: Any) -> Any:
    """Load element index * width + column of a contiguous float32 array, for each index in a tuple."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        return vector_of(builder, [builder.load(place) for place in element_addresses(context, builder, sig, args)])

    i = types.int64
    return SimdVector(indices.count)(array, types.UniTuple(i, indices.count), i, i), codegen


@intrinsic
def scatter(typing: Any, array: Any, indices: Any, width: Any, column: Any, vector: Any) -> Any:
    """Store a vector in the elements from which `gather` would load one."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        for value, place in zip(
            elements_of(builder, args[4]), element_addresses(context, builder, sig, args), strict=True
        ):
            builder.store(value, place)
        return context.get_dummy_value()

    i = types.int64
    return types.void(array, types.UniTuple(i, indices.count), i, i, vector), codegen


@intrinsic_of_literals
def indices_of(typing: Any, array: Any, count: Any) -> Any:
    """Return the first `count` elements, a constant, of a contiguous int64 array as a tuple."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        places = [address_of(context, builder, sig.args[0], args[0], INT(k)) for k in range(sig.return_type.count)]
        return cgutils.pack_array(builder, [builder.load(place) for place in places])

    return types.UniTuple(types.int64, count.literal_value)(array, count), codegen


@intrinsic_of_literals
def context_rows(typing: Any, pairs: Any, first: Any, count: Any) -> Any:
    """Return pairs[first:first + count, 1] as a tuple of int64; `pairs` is uint16, shape (n, 4), `count` a constant."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Any) -> Value:
        found = []
        for k in range(sig.return_type.count):
            at = builder.add(builder.mul(args[1], INT(4)), INT(4 * k + 1))
            found.append(builder.zext(builder.load(address_of(context, builder, sig.args[0], args[0], at)), INT))
        return cgutils.pack_array(builder, found)

    return types.UniTuple(types.int64, count.literal_value)(pairs, types.int64, count), codegen
