"""Encode messages as frames and decode frames with every check that untrusted bytes need. No I/O.

A request or reply is `[magic + version, header, array, array, ...]`; the header is msgpack, at most 4 KiB:
`[name, number, fields, [[dtype, shape] or nil, ...]]`. A sample of the stream is `[topic, magic + version, header]`
with the publisher's counter as number and the run's id as the first field. Arrays are raw little-endian frames.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from ..array_types import Array
from ..errors import LimitExceeded, ProtocolError, VersionMismatch
from .messages import MESSAGES
from .schema import MAGIC, PROTOCOL_VERSION, Message, MessageSchema, array_of, check_fields, schema_of

MAX_HEADER_BYTES = 4096
MAX_FRAMES = 8
MAX_FRAME_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 128 << 20
GREETING = MAGIC + bytes([PROTOCOL_VERSION])

Frame = bytes | memoryview


class Numbered(NamedTuple):
    """A message and its number, which pairs a reply with its request; of a sample, its place in the stream of `run`."""

    number: int
    message: Message
    run: str = ""


def encode(number: int, message: Message) -> list[Frame]:
    """Return the frames of a request or reply. Array frames are views: do not change the arrays afterwards.

    Raises ProtocolError or LimitExceeded if a field or the header cannot be encoded.
    """
    fields = vars(message).copy()
    shapes: list[tuple[str, tuple[int, ...]] | None] = []
    frames: list[Frame] = [GREETING, b""]
    for spec in schema_of(type(message)).arrays:
        value = fields.pop(spec.name)
        if value is None:
            shapes.append(None)
            continue
        data: Array = value if value.flags.c_contiguous else np.ascontiguousarray(value)
        shapes.append((spec.texts.get(data.dtype) or data.dtype.str, data.shape))
        frames.append(data.data.cast("B") if data.size else b"")
    frames[1] = _packed(message, number, fields, shapes)
    return frames


def decode(frames: Sequence[Frame]) -> Numbered:
    """Return the message in `frames`; its arrays are read-only views of the frames and may be misaligned.

    Raises ProtocolError, VersionMismatch, LimitExceeded or NotFinite; nothing else, whatever the bytes.
    """
    _check_sizes(frames, header=1)
    _check_greeting(frames[0])
    name, number, fields, shapes = _header(frames[1])
    kind = MESSAGES.get(name)
    if kind is None:
        raise ProtocolError(f"no message is called {name[:40]!r}")
    schema = schema_of(kind)
    check_fields(schema, fields)
    _add_arrays(schema, shapes, frames, fields)
    return Numbered(number, kind(**fields))


def encode_sample(run: str, number: int, sample: Message) -> list[bytes]:
    """Return the frames of a stream sample: its topic first, so that subscribers can filter."""
    header = _packed(sample, number, {"run": run, **vars(sample)}, [])
    return [sample.topic.encode(), GREETING, header]


def decode_sample(frames: Sequence[Frame]) -> Numbered:
    """Return a sample of the stream; raises as `decode` does."""
    if len(frames) != 3:
        raise ProtocolError(f"a sample has 3 frames, not {len(frames)}")
    _check_sizes(frames, header=2)
    _check_greeting(frames[1])
    sample = decode_header(frames[2])
    if sample.message.topic.encode() != bytes(frames[0]):
        raise ProtocolError(f"a sample {type(sample.message).__name__} does not belong to this topic")
    return sample


def decode_header(header: Frame) -> Numbered:
    """Return the sample encoded in a header frame; raises as `decode` does."""
    name, number, fields, _ = _header(header)
    kind = MESSAGES.get(name)
    if kind is None or not kind.topic:
        raise ProtocolError(f"no sample is called {name[:40]!r}")
    run = fields.pop("run", None)
    if not isinstance(run, str):
        raise ProtocolError("a sample must name its run")
    return Numbered(number, message_of(kind, fields), run)


def split_headers(joined: Frame) -> Iterator[bytes]:
    """Yield each of the concatenated headers in `joined`; ProtocolError for other bytes or a header over 4 KiB."""
    data, start = bytes(joined), 0
    unpacker = msgpack.Unpacker(max_ext_len=0, strict_map_key=True, max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    while start < len(data):
        try:
            unpacker.skip()
        except Exception as error:  # msgpack raises many kinds for hostile bytes
            raise ProtocolError(f"these are not headers one after the other ({type(error).__name__})") from error
        end = unpacker.tell()
        if end - start > MAX_HEADER_BYTES:
            raise LimitExceeded(f"header of {end - start} bytes, at most {MAX_HEADER_BYTES}")
        yield data[start:end]
        start = end


def message_of(kind: type[Message], fields: dict[str, Any]) -> Message:
    """Check `fields` and return the message (without arrays) made of them; ProtocolError or NotFinite if invalid."""
    check_fields(schema_of(kind), fields)
    return kind(**fields)


def bytes_of(frames: Sequence[Frame]) -> int:
    """Return the total size of `frames` in bytes."""
    return sum(map(len, frames))


def _packed(message: Message, number: int, fields: dict[str, Any], shapes: Sequence[Any]) -> bytes:
    try:
        header: bytes = msgpack.packb([type(message).__name__, number, fields, shapes])
    except (ValueError, OverflowError, TypeError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot be sent ({type(error).__name__})") from error
    if len(header) > MAX_HEADER_BYTES:
        raise LimitExceeded(
            f"{type(message).__name__} cannot be sent: header of {len(header)} bytes, at most {MAX_HEADER_BYTES}"
        )
    return header


def _check_sizes(frames: Sequence[Frame], header: int) -> None:
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise LimitExceeded(f"too {'few' if len(frames) < 2 else 'many'} frames: a message has 2 to {MAX_FRAMES}")
    if len(frames[header]) > MAX_HEADER_BYTES:
        raise LimitExceeded(f"header of {len(frames[header])} bytes, at most {MAX_HEADER_BYTES}")
    size = bytes_of(frames)
    if size > MAX_FRAME_BYTES and (size > MAX_MESSAGE_BYTES or max(map(len, frames)) > MAX_FRAME_BYTES):
        raise LimitExceeded(f"message of {size} bytes, at most {MAX_MESSAGE_BYTES}")


def _check_greeting(greeting: Frame) -> None:
    if greeting == GREETING:
        return
    if len(greeting) != len(GREETING) or bytes(greeting[: len(MAGIC)]) != MAGIC:
        raise ProtocolError("these bytes are not the Glovewire protocol")
    raise VersionMismatch(f"peer speaks protocol version {greeting[-1]}, this program version {PROTOCOL_VERSION}")


def _header(frame: Frame) -> tuple[str, int, dict[str, Any], list[Any]]:
    try:
        header = msgpack.unpackb(bytes(frame), strict_map_key=True, max_ext_len=0)
        name, number, fields, shapes = header
    except Exception as error:  # msgpack raises many kinds for hostile bytes
        raise ProtocolError(f"header is not msgpack of the right shape ({type(error).__name__})") from error
    if not (isinstance(name, str) and isinstance(fields, dict) and isinstance(shapes, list)):
        raise ProtocolError("header has fields of the wrong types")
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ProtocolError("header has no valid number")
    return name, number, fields, shapes


def _add_arrays(schema: MessageSchema, shapes: list[Any], frames: Sequence[Frame], fields: dict[str, Any]) -> None:
    """Add to `fields` the arrays of a message, which follow the header in `frames`."""
    if len(shapes) != len(schema.arrays) or len(frames) - 2 != len(shapes) - shapes.count(None):
        raise ProtocolError(f"{schema.kind} has the wrong number of arrays")
    place = 2
    for spec, shape in zip(schema.arrays, shapes, strict=True):
        if shape is not None:
            fields[spec.name] = array_of(spec, shape, frames[place])
            place += 1
        elif spec.optional:
            fields[spec.name] = None
        else:
            raise ProtocolError(f"{schema.kind} lacks the array {spec.name}")
