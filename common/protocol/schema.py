"""What messages are made of: the base class, the field types, and arrays that declare their dtype and rank."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

import numpy as np

from ..array_types import Array
from ..errors import NotFinite, ProtocolError

PROTOCOL_VERSION = 8
MAGIC = b"GLWR"
NO_VERSION = -1
"""In Pull: answer at once, whatever the version of the rows."""
WORKERS_PER_GENERATION = 1 << 20
"""Numbers of workers in one life of a run: whoever has a number of the life before is nobody of this one."""

MAX_NAME = 64
NAME_RULE = f"a worker's name must be 1 to {MAX_NAME} printable characters"

Scalar = int | float | str | bool


Kind = TypeVar("Kind")


def is_name(text: str) -> bool:
    """Whether a worker may be called so: NAME_RULE."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


@dataclass_transform(frozen_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """A dataclass that nobody changes: the type checker sees to it.

    One that is frozen takes four times as long to make, and making messages is a good part of what a server does.
    """
    return dataclass(unsafe_hash=True)(kind)


@message
class Message:
    """Base of everything that crosses the wire."""

    topic: ClassVar[str] = ""


def array(*dtypes: str, rank: int, optional: bool = False) -> Any:
    """A dataclass field that travels as one raw frame: its allowed little-endian dtypes and its rank."""
    metadata = {"dtypes": tuple(np.dtype(d) for d in dtypes), "rank": rank, "optional": optional}
    if optional:
        return field(default=None, metadata=metadata)
    return field(metadata=metadata)


def arrays_of(kind: type[Message]) -> tuple[dataclasses.Field[Any], ...]:
    """The array fields of a message, in the order of their frames: optional ones first.

    What a message always has are its values, the bulk of it. libzmq sends and reads what is small in one go with the
    beginning of the next big frame, but needs another one for what is small and comes after it.
    """
    arrays = (f for f in dataclasses.fields(kind) if f.metadata)
    return tuple(sorted(arrays, key=lambda f: not f.metadata["optional"]))


# ---- What each kind of message is made of, worked out once, and the checks of what has arrived as its fields and
# arrays.
#
# Knows nothing of sockets, nor of the order of frames: that is `wire`.
#

MAX_DIMENSION = 64 << 20
MAX_TEXT = 1024
MAX_INT = (1 << 63) - 1


@dataclass(frozen=True)
class ArraySpec:
    """What an array field declares; `dtypes` by the text that crosses the wire, and the other way round `texts`."""

    name: str
    rank: int
    optional: bool
    dtypes: dict[str, np.dtype[Any]]
    texts: dict[np.dtype[Any], str]


@dataclass(frozen=True)
class Form:
    """What a kind of message is made of: its arrays in the order of their frames, a check for each other field.

    Most are integers: these are the fields that are `whole`, which are looked at without a call, and the `others`.
    """

    kind: str
    arrays: tuple[ArraySpec, ...]
    names: frozenset[str]
    whole: tuple[str, ...]
    others: tuple[tuple[str, Callable[[str, Any], Any]], ...]


_forms: dict[type[Message], Form] = {}


def form_of(kind: type[Message]) -> Form:
    """The form of `kind`, worked out once."""
    if (form := _forms.get(kind)) is None:
        form = _forms[kind] = _worked_out(kind)
    return form


def _worked_out(kind: type[Message]) -> Form:
    by_type: dict[Any, Callable[[str, Any], Any]] = {
        int: _as_int,
        float: _as_float,
        str: _as_text,
        bool: _as_bool,
        dict[str, Scalar]: _as_options,
    }
    hints = get_type_hints(kind)
    arrays = tuple(
        ArraySpec(
            spec.name,
            spec.metadata["rank"],
            spec.metadata["optional"],
            {dtype.str: dtype for dtype in spec.metadata["dtypes"]},
            {dtype: dtype.str for dtype in spec.metadata["dtypes"]},
        )
        for spec in arrays_of(kind)
    )
    names = {spec.name for spec in arrays}
    checks = {f.name: by_type[hints[f.name]] for f in dataclasses.fields(kind) if f.name not in names}
    whole = tuple(name for name, check in checks.items() if check is _as_int)
    others = tuple((name, check) for name, check in checks.items() if check is not _as_int)
    return Form(kind.__name__, arrays, frozenset(checks), whole, others)


def check_fields(form: Form, fields: dict[str, Any]) -> None:
    """Raise unless these are the fields of a message, arrays aside, and of its types; floats may come as integers."""
    if fields.keys() != form.names:
        wrong = sorted(map(str, fields.keys() ^ form.names))
        raise ProtocolError(f"{form.kind} has missing or unknown fields: {', '.join(wrong)[:200]}")
    for name in form.whole:
        if type(value := fields[name]) is not int or value > MAX_INT:
            _as_int(name, value)
    for name, check in form.others:
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


def _as_options(name: str, value: Any) -> dict[str, Scalar]:
    if type(value) is not dict:
        raise ProtocolError(f"field {name} must be a map")
    checks: dict[type, Callable[[str, Any], Scalar]] = {bool: _as_bool, int: _as_int, float: _as_float, str: _as_text}
    options: dict[str, Scalar] = {}
    for key, item in value.items():
        if type(key) is not str or type(item) not in checks:
            raise ProtocolError(f"field {name} must map names to plain values")
        options[key] = checks[type(item)](f"{name}.{key[:40]}", item)
    return options


def array_of(spec: ArraySpec, described: Any, frame: bytes | memoryview) -> Array:
    """The array that a header describes, as a view of its frame; ProtocolError unless it is what the field declares."""
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
        raise ProtocolError(f"array {spec.name} has {len(frame)} bytes, its shape needs another number")
    return np.ndarray(shape, dtype, frame)
