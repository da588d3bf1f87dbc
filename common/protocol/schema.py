"""Derive a schema from each message class, and check received fields and arrays against it.

Messages are dataclasses of integers, floats, texts, booleans, flat maps of those, and arrays with a declared dtype and
rank. `wire` defines the order of frames.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

import numpy as np

from ..array_types import Array
from ..errors import NotFinite, ProtocolError

PROTOCOL_VERSION = 12
MAGIC = b"GLWR"

MAX_NAME = 64
NAME_RULE = f"a worker's name must be 1 to {MAX_NAME} printable characters"
MAX_TEXT = 1024
MAX_DIMENSION = 64 << 20
MAX_INT = (1 << 63) - 1

Scalar = int | float | str | bool
Kind = TypeVar("Kind")


def is_name(text: str) -> bool:
    """Return whether a worker may have the name `text`, by NAME_RULE."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


# ---- declaring messages


@dataclass_transform(frozen_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """Make a message class a dataclass that is frozen for the type checker but not at run time.

    A frozen dataclass takes four times as long to construct, and a server constructs one for every message.
    """
    return dataclass(unsafe_hash=True)(kind)


@message
class Message:
    """Base of all messages; `topic` is the stream topic of a sample, "" for requests and replies."""

    topic: ClassVar[str] = ""


@dataclass(frozen=True)
class ArraySchema:
    """Declaration of an array field; `dtypes` maps the names on the wire (`<f4`) to dtypes, `texts` maps them back."""

    name: str
    rank: int
    optional: bool
    dtypes: dict[str, np.dtype[Any]]
    texts: dict[np.dtype[Any], str]


def array(*dtypes: str, rank: int, optional: bool = False) -> Any:
    """Declare an array field, sent as a raw frame: its allowed little-endian dtypes and its rank.

    An `optional` array may be None. Use the result as the field's default, like that of `dataclasses.field`.
    """
    known = tuple(np.dtype(each) for each in dtypes)
    schema = ArraySchema("", rank, optional, {each.str: each for each in known}, {each: each.str for each in known})
    metadata = {"array": schema}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def arrays_of(kind: type[Message]) -> tuple[ArraySchema, ...]:
    """Return the array fields of a message in the order of their frames: optional ones first.

    The mandatory array is the big one. libzmq sends and reads small frames in one system call with the beginning of
    the big frame that follows; small frames after a big one would cost another call.
    """
    arrays = [replace(f.metadata["array"], name=f.name) for f in dataclasses.fields(kind) if f.metadata]
    return tuple(sorted(arrays, key=lambda spec: not spec.optional))


# ---- schemas


@dataclass(frozen=True)
class MessageSchema:
    """Fields of a message class: its arrays in the order of their frames, and the names of its plain fields.

    `integers` are the names checked inline, for speed; `others` pairs each other name with its check function.
    """

    kind: str
    arrays: tuple[ArraySchema, ...]
    names: frozenset[str]
    integers: tuple[str, ...]
    others: tuple[tuple[str, Callable[[str, Any], Any]], ...]


_schemas: dict[type[Message], MessageSchema] = {}


def schema_of(kind: type[Message]) -> MessageSchema:
    """Return the schema of a message class; it is derived at the first call and cached."""
    if (schema := _schemas.get(kind)) is None:
        hints, arrays = get_type_hints(kind), arrays_of(kind)
        names = {spec.name for spec in arrays}
        checks = {f.name: _CHECKS[hints[f.name]] for f in dataclasses.fields(kind) if f.name not in names}
        integers = tuple(name for name, check in checks.items() if check is _as_int)
        others = tuple((name, check) for name, check in checks.items() if check is not _as_int)
        schema = _schemas[kind] = MessageSchema(kind.__name__, arrays, frozenset(checks), integers, others)
    return schema


# ---- checks


def check_fields(schema: MessageSchema, fields: dict[str, Any]) -> None:
    """Raise ProtocolError or NotFinite unless `fields` fit the schema; convert integers in float fields in place."""
    if fields.keys() != schema.names:
        wrong = sorted(map(str, fields.keys() ^ schema.names))
        raise ProtocolError(f"{schema.kind} has missing or unknown fields: {', '.join(wrong)[:200]}")
    for name in schema.integers:
        if type(value := fields[name]) is not int or value > MAX_INT:
            _as_int(name, value)
    for name, check in schema.others:
        fields[name] = check(name, fields[name])


def _as_int(name: str, value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value <= MAX_INT:
        raise ProtocolError(f"field {name} must be an integer of 64 bits")
    return value


def _as_float(name: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise ProtocolError(f"field {name} must be a number")
    if not math.isfinite(value):
        raise NotFinite(f"field {name} is {value}")
    return float(value)


def _as_text(name: str, value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ProtocolError(f"field {name} must be text of at most {MAX_TEXT} characters")
    return value


def _as_bool(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ProtocolError(f"field {name} must be true or false")
    return value


def _as_map(name: str, value: Any) -> dict[str, Scalar]:
    if type(value) is not dict:
        raise ProtocolError(f"field {name} must be a map")
    found: dict[str, Scalar] = {}
    for key, item in value.items():
        if type(key) is not str or type(item) not in _CHECKS:
            raise ProtocolError(f"field {name} must map names to plain values")
        found[key] = _CHECKS[type(item)](f"{name}.{key[:40]}", item)
    return found


_CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    bool: _as_bool, int: _as_int, float: _as_float, str: _as_text, dict[str, Scalar]: _as_map,
}  # fmt: skip


def array_of(spec: ArraySchema, described: Any, frame: bytes | memoryview) -> Array:
    """Return `frame` as an array (a view) of the dtype and shape `described`; ProtocolError if `spec` forbids them."""
    good = isinstance(described, list) and len(described) == 2 and isinstance(described[1], list)
    if not good or len(described[1]) != spec.rank:
        raise ProtocolError(f"array {spec.name} must have rank {spec.rank}")
    text, shape = described
    dtype = spec.dtypes.get(text) if isinstance(text, str) else None
    if dtype is None:
        raise ProtocolError(f"array {spec.name} must have dtype {' or '.join(spec.dtypes)}")
    size = dtype.itemsize
    for n in shape:
        if type(n) is not int or not 0 <= n <= MAX_DIMENSION:
            raise ProtocolError(f"array {spec.name} has an impossible shape")
        size *= n
    if size != len(frame):
        raise ProtocolError(f"array {spec.name} has {len(frame)} bytes, but its shape needs {size}")
    return np.ndarray(shape, dtype, frame)
