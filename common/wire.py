"""Messages <-> frames, with every check that bytes from a stranger need. No sockets, no clock, no files.

A request or reply is `[magic + version, header, array, array, ...]`; the header is msgpack, at most 4 KiB:
`[name, number, fields, [[dtype, shape] or nil, ...]]`. A sample of the stream is `[topic, magic + version, header]`
with the publisher's counter as number and the run's id in front of the fields. Arrays are raw little-endian frames.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgpack
import numpy as np

from .errors import LimitExceeded, NotFinite, ProtocolError, VersionMismatch
from .fields import MAGIC, PROTOCOL_VERSION, Message, Scalar, arrays_of
from .messages import MESSAGES

MAX_HEADER_BYTES = 4096
MAX_FRAMES = 8
MAX_FRAME_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 128 << 20
MAX_TEXT = 1024
GREETING = MAGIC + bytes([PROTOCOL_VERSION])

Frame = bytes | memoryview


@dataclass(frozen=True)
class Numbered:
    """A message with the number that pairs a reply with its request, or counts samples on a stream."""

    number: int
    message: Message
    run: str = ""


def encode(number: int, message: Message) -> list[Frame]:
    """Frames of a request or reply. Arrays are sent as they lie in memory: do not change them afterwards."""
    shapes: list[list[Any] | None] = []
    frames: list[Frame] = [GREETING, b""]
    for spec in _form(type(message)).arrays:
        value = getattr(message, spec.name)
        if value is None:
            shapes.append(None)
            continue
        data = np.ascontiguousarray(value)
        shapes.append([data.dtype.str, data.shape])
        frames.append(data.reshape(-1).view(np.uint8).data)
    frames[1] = _packed(message, number, _scalars(message), shapes)
    return frames


def decode(frames: Sequence[Frame]) -> Numbered:
    """The message in `frames`; arrays are read-only views of the frames, and may be misaligned.

    Raises ProtocolError, VersionMismatch, LimitExceeded or NotFinite; nothing else, whatever the bytes.
    """
    _check_sizes(frames, header=1)
    _check_greeting(bytes(frames[0]))
    name, number, fields, shapes = _header(frames[1])
    kind = MESSAGES.get(name)
    if kind is None:
        raise ProtocolError(f"no message is called {name[:40]!r}")
    values = _check_fields(kind, fields)
    values.update(_arrays(kind, shapes, frames[2:]))
    return Numbered(number, kind(**values))


def encode_sample(run: str, number: int, sample: Message) -> list[bytes]:
    """Frames of one sample of the stream: its topic first, so that subscribers can filter."""
    header = _packed(sample, number, {"run": run, **_scalars(sample)}, [])
    return [sample.topic.encode(), GREETING, header]


def decode_sample(frames: Sequence[Frame]) -> Numbered:
    """A sample from the stream; raises ProtocolError as `decode` does."""
    if len(frames) != 3:
        raise ProtocolError(f"a sample has 3 frames, not {len(frames)}")
    _check_sizes(frames, header=2)
    _check_greeting(bytes(frames[1]))
    sample = decode_header(frames[2])
    if sample.message.topic.encode() != bytes(frames[0]):
        raise ProtocolError(f"no sample called {type(sample.message).__name__} under this topic")
    return sample


def decode_header(header: Frame) -> Numbered:
    """The sample whose header this is; raises ProtocolError as `decode` does."""
    name, number, fields, _ = _header(header)
    kind = MESSAGES.get(name)
    if kind is None or not kind.topic:
        raise ProtocolError(f"no sample is called {name[:40]!r}")
    run = fields.pop("run", None)
    if not isinstance(run, str):
        raise ProtocolError("a sample must name its run")
    return Numbered(number, kind(**_check_fields(kind, fields)), run)


def split_headers(joined: Frame) -> Iterator[bytes]:
    """Headers that were put one after the other, each of at most 4 KiB; ProtocolError when they are something else."""
    data, start = bytes(joined), 0
    unpacker = msgpack.Unpacker(max_ext_len=0, strict_map_key=True, max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    while start < len(data):
        try:
            unpacker.skip()
        except Exception as error:  # msgpack raises many kinds for hostile bytes; each means the same here
            raise ProtocolError(f"these are no headers one after the other ({type(error).__name__})") from error
        end = unpacker.tell()
        if end - start > MAX_HEADER_BYTES:
            raise LimitExceeded(f"header of {end - start} bytes, at most {MAX_HEADER_BYTES}")
        yield data[start:end]
        start = end


def message_of(kind: type[Message], fields: dict[str, Any]) -> Message:
    """The message without arrays that has these fields, each checked; ProtocolError or NotFinite."""
    return kind(**_check_fields(kind, fields))


def bytes_of(frames: Sequence[Frame]) -> int:
    """Bytes of payload in `frames`."""
    return sum(map(len, frames))


def _packed(message: Message, number: int, fields: dict[str, Any], shapes: list[list[Any] | None]) -> bytes:
    header: bytes = msgpack.packb([type(message).__name__, number, fields, shapes])
    if len(header) > MAX_HEADER_BYTES:
        raise LimitExceeded(f"{type(message).__name__} has a header of {len(header)} bytes, at most {MAX_HEADER_BYTES}")
    return header


def _scalars(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in _form(type(message)).checks}


def _check_sizes(frames: Sequence[Frame], header: int) -> None:
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise LimitExceeded(f"too {'few' if len(frames) < 2 else 'many'} frames: a message has 2 to {MAX_FRAMES}")
    sizes = list(map(len, frames))
    if sizes[header] > MAX_HEADER_BYTES:
        raise LimitExceeded(f"header of {sizes[header]} bytes, at most {MAX_HEADER_BYTES}")
    if max(sizes) > MAX_FRAME_BYTES or sum(sizes) > MAX_MESSAGE_BYTES:
        raise LimitExceeded(f"message of {sum(sizes)} bytes, at most {MAX_MESSAGE_BYTES}")


def _check_greeting(greeting: bytes) -> None:
    if len(greeting) != len(GREETING) or not greeting.startswith(MAGIC):
        raise ProtocolError("these bytes are not the Glovewire protocol")
    if greeting != GREETING:
        raise VersionMismatch(f"peer speaks protocol version {greeting[-1]}, this program version {PROTOCOL_VERSION}")


def _header(frame: Frame) -> tuple[str, int, dict[str, Any], list[Any]]:
    try:
        header = msgpack.unpackb(bytes(frame), strict_map_key=True, max_ext_len=0)
        name, number, fields, shapes = header
    except Exception as error:  # msgpack raises many kinds for hostile bytes; each means the same here
        raise ProtocolError(f"header is not msgpack of the right form ({type(error).__name__})") from error
    if not (isinstance(name, str) and isinstance(fields, dict) and isinstance(shapes, list)):
        raise ProtocolError("header has fields of the wrong types")
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ProtocolError("header has no valid number")
    return name, number, fields, shapes


@dataclass(frozen=True)
class _ArraySpec:
    """What an array field declares; `dtypes` by the name that crosses the wire."""

    name: str
    rank: int
    optional: bool
    dtypes: dict[str, np.dtype[Any]]


@dataclass(frozen=True)
class _Form:
    """What a kind of message is made of: its arrays in the order of their frames, a check for each other field."""

    arrays: tuple[_ArraySpec, ...]
    checks: dict[str, Callable[[str, Any], Any]]


_forms: dict[type[Message], _Form] = {}


def _form(kind: type[Message]) -> _Form:
    """The form of `kind`, worked out once."""
    if (form := _forms.get(kind)) is None:
        form = _forms[kind] = _worked_out(kind)
    return form


def _worked_out(kind: type[Message]) -> _Form:
    by_type: dict[Any, Callable[[str, Any], Any]] = {
        int: _as_int,
        float: _as_float,
        str: _as_text,
        bool: _as_bool,
        dict[str, Scalar]: _as_options,
    }
    hints = get_type_hints(kind)
    arrays = tuple(
        _ArraySpec(
            spec.name,
            spec.metadata["rank"],
            spec.metadata["optional"],
            {dtype.str: dtype for dtype in spec.metadata["dtypes"]},
        )
        for spec in arrays_of(kind)
    )
    names = {spec.name for spec in arrays}
    checks = {f.name: by_type[hints[f.name]] for f in dataclasses.fields(kind) if f.name not in names}
    return _Form(arrays, checks)


def _check_fields(kind: type[Message], fields: dict[str, Any]) -> dict[str, Any]:
    checks = _form(kind).checks
    if fields.keys() != checks.keys():
        wrong = sorted(map(str, fields.keys() ^ checks.keys()))
        raise ProtocolError(f"{kind.__name__} has missing or unknown fields: {', '.join(wrong)[:200]}")
    return {name: check(name, fields[name]) for name, check in checks.items()}


def _as_int(name: str, value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
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


def _arrays(kind: type[Message], shapes: list[Any], frames: Sequence[Frame]) -> dict[str, Any]:
    specs = _form(kind).arrays
    if len(shapes) != len(specs) or len(frames) != sum(shape is not None for shape in shapes):
        raise ProtocolError(f"{kind.__name__} has the wrong number of arrays")
    remaining, values = iter(frames), {}
    for spec, shape in zip(specs, shapes, strict=True):
        if shape is None and not spec.optional:
            raise ProtocolError(f"{kind.__name__} lacks the array {spec.name}")
        values[spec.name] = None if shape is None else _array(spec, shape, next(remaining))
    return values


def _array(spec: _ArraySpec, described: Any, frame: Frame) -> np.ndarray[Any, Any]:
    good = isinstance(described, list) and len(described) == 2 and isinstance(described[1], list)
    if not good or len(described[1]) != spec.rank:
        raise ProtocolError(f"array {spec.name} must have rank {spec.rank}")
    text, shape = described
    dtype = spec.dtypes.get(text) if isinstance(text, str) else None
    if dtype is None:
        raise ProtocolError(f"array {spec.name} must have dtype {' or '.join(spec.dtypes)}")
    if any(type(n) is not int or not 0 <= n <= MAX_FRAME_BYTES for n in shape):
        raise ProtocolError(f"array {spec.name} has an impossible shape")
    if math.prod(shape) * dtype.itemsize != len(frame):
        raise ProtocolError(f"array {spec.name} has {len(frame)} bytes, its shape needs another number")
    return np.frombuffer(frame, dtype).reshape(shape)
