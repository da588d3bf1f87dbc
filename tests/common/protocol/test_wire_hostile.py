"""What strangers send: every malformation gives the right ProtocolError and nothing else, whatever the bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_message, quick

from glovewire.common.errors import LimitExceeded, NotFinite, ProtocolError, VersionMismatch
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.schema import PROTOCOL_VERSION, Message

BAD = (ProtocolError, NotFinite)
"""VersionMismatch and LimitExceeded are ProtocolErrors."""

PUSH: dict[str, Any] = {
    field.name: {"table": "rows", "operation": "add", "rate": 0.5, "then_pull": False}.get(field.name, 1)
    for field in dataclasses.fields(m.Push)
    if not field.metadata
}
WELCOME = {**dict.fromkeys(("shard", "shards", "worker", "steps", "credit", "token"), 0), "run": ""}
VALUES = np.zeros((2, 3), "<f4")
ARRAYS = (VALUES.tobytes(),)


def push(
    *,
    fields: Any = PUSH,
    shapes: Any = (None, None, None, ["<f4", [2, 3]]),
    arrays: Any = ARRAYS,
    name: Any = "Push",
    number: Any = 1,
) -> list[bytes]:
    """Frames of a push, with any part of it replaced."""
    return [wire.GREETING, msgpack.packb([name, number, fields, list(shapes)]), *arrays]


def changed(**fields: Any) -> dict[str, Any]:
    return {**PUSH, **fields}


def test_the_push_that_the_others_are_made_from_is_fine() -> None:
    assert wire.decode(push()).number == 1


MALFORMED: dict[str, list[bytes]] = {
    "unknown name": push(name="Obey"),
    "name of another type": push(name=7),
    "huge name": push(name="x" * 3000),
    "number is negative": push(number=-1),
    "number is a bool": push(number=True),
    "number is text": push(number="1"),
    "number over 63 bits": push(number=1 << 63),
    "fields is a list": push(fields=list(PUSH.values())),
    "field missing": push(fields={k: v for k, v in PUSH.items() if k != "rate"}),
    "field unknown": push(fields=changed(shell="rm")),
    "field name of bytes": push(fields={**PUSH, b"x": 1}),
    "field name is a number": push(fields={**PUSH, 7: 1}),
    "array among the fields": push(fields=changed(values=[1.0])),
    "int is text": push(fields=changed(first="0")),
    "int is a float": push(fields=changed(first=0.0)),
    "int is a bool": push(fields=changed(first=True)),
    "int is nil": push(fields=changed(first=None)),
    "int over 63 bits": push(fields=changed(first=1 << 63)),
    "float is text": push(fields=changed(rate="0.1")),
    "float is a bool": push(fields=changed(rate=True)),
    "text is bytes": push(fields=changed(table=b"rows")),
    "text is a number": push(fields=changed(table=1)),
    "text too long": push(fields=changed(table="x" * 1025)),
    "text is no UTF-8": [f.replace(b"rows", b"r\xffws") for f in push()],
    "ext type": push(fields=changed(table=msgpack.ExtType(5, b"rows"))),
    "empty ext type": push(fields=changed(table=msgpack.ExtType(5, b""))),
    "timestamp": push(fields=changed(rate=msgpack.Timestamp(1, 2))),
    "deep nesting": [wire.GREETING, b"\x91" * 4000 + b"\xc0"],
    "deep nesting of maps": [wire.GREETING, b"\x81\xa1a" * 1300 + b"\xc0"],
    "list of a billion": [wire.GREETING, b"\xdd\x3b\x9a\xca\x00"],
    "map of a billion": [wire.GREETING, b"\xdf\x3b\x9a\xca\x00"],
    "text of a billion": [wire.GREETING, b"\xdb\x3b\x9a\xca\x00"],
    "bytes of a billion": [wire.GREETING, b"\xc6\x3b\x9a\xca\x00"],
    "more after the header": [wire.GREETING, push()[1] + b"\x00", VALUES.tobytes()],
    "empty header": [wire.GREETING, b""],
    "header is a number": [wire.GREETING, b"\x07"],
    "header of three": [wire.GREETING, msgpack.packb(["Heartbeat", 1, {}])],
    "header of five": [wire.GREETING, msgpack.packb(["Heartbeat", 1, {}, [], 0])],
    "header is a text of four": [wire.GREETING, msgpack.packb("Heartbeat")],
    "header is a map of four": [wire.GREETING, msgpack.packb({"Heartbeat": 1, "b": 2, "c": 3, "d": 4})],
    "shapes is a map": [wire.GREETING, msgpack.packb(["Push", 1, PUSH, {}]), VALUES.tobytes()],
    "array missing": push(arrays=()),
    "array too many": push(arrays=(VALUES.tobytes(), b"")),
    "shape missing": push(shapes=(["<f4", [2, 3]],)),
    "shape too many": push(shapes=(None, None, None, ["<f4", [2, 3]], None)),
    "array that must be there is nil": push(shapes=(["<i8", [1]], None, None, None), arrays=(bytes(8),)),
    "dtype not allowed": push(shapes=(None, None, None, ["<f2", [2, 3]]), arrays=(bytes(12),)),
    "dtype big-endian": push(shapes=(None, None, None, [">f4", [2, 3]])),
    "dtype object": push(shapes=(None, None, None, ["|O", [2, 3]]), arrays=(bytes(48),)),
    "dtype a structure": push(shapes=(None, None, None, [[["f0", "<f4"]], [2, 3]])),
    "dtype a number": push(shapes=(None, None, None, [4, [2, 3]])),
    "rank too small": push(shapes=(None, None, None, ["<f4", [6]])),
    "rank too large": push(shapes=(None, None, None, ["<f4", [1, 2, 3]])),
    "shape negative": push(shapes=(None, None, None, ["<f4", [-2, -3]])),
    "shape half negative": push(shapes=(None, None, None, ["<f4", [-1, 6]])),
    "shape huge": push(shapes=(None, None, None, ["<f4", [1 << 40, 1 << 40]])),
    "shape wraps around": push(shapes=(None, None, None, ["<f4", [1 << 32, 1 << 32]]), arrays=(b"",)),
    "shape of floats": push(shapes=(None, None, None, ["<f4", [2.0, 3.0]])),
    "shape of bools": push(shapes=(None, None, None, ["<f4", [True, True]]), arrays=(bytes(4),)),
    "shape of text": push(shapes=(None, None, None, ["<f4", "23"])),
    "shape too large for its bytes": push(shapes=(None, None, None, ["<f4", [2, 4]])),
    "shape too small for its bytes": push(shapes=(None, None, None, ["<f4", [2, 2]])),
    "description is text": push(shapes=(None, None, None, "<f4")),
    "description of three": push(shapes=(None, None, None, ["<f4", [2, 3], 0])),
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_a_protocol_error_and_nothing_else(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.decode(frames)
    assert type(caught.value) is ProtocolError
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused_wherever_it_stands(value: float) -> None:
    with pytest.raises(NotFinite, match="field rate"):
        wire.decode(push(fields=changed(rate=value)))
    fields = {**WELCOME, "options": {"x": value}}
    with pytest.raises(NotFinite, match=r"options\.x"):
        wire.decode([wire.GREETING, msgpack.packb(["Welcome", 1, fields, []])])


@pytest.mark.parametrize("options", [[], {"a": [1]}, {"a": {"b": 1}}, {"a": None}, {b"a": 1}, {"a": 1 << 63}])
def test_options_are_flat(options: Any) -> None:
    fields = {**WELCOME, "options": options}
    with pytest.raises(ProtocolError, match="options"):
        wire.decode([wire.GREETING, msgpack.packb(["Welcome", 1, fields, []])])


@pytest.mark.parametrize(
    "greeting", [b"", b"GLW", b"GLWR", b"GET / HTTP/1.1", b"glwr\x01", b"GLWR\x01\x01", b"\x16\x03\x01"]
)
def test_another_protocol_is_said_to_be_one(greeting: bytes) -> None:
    with pytest.raises(ProtocolError, match="not the Glovewire protocol") as caught:
        wire.decode([greeting, push()[1]])
    assert type(caught.value) is ProtocolError


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 255])
def test_another_version_is_said_to_be_one(version: int) -> None:
    with pytest.raises(VersionMismatch, match=f"protocol version {version}, this program version {PROTOCOL_VERSION}"):
        wire.decode([wire.MAGIC + bytes([version]), b"whatever"])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [wire.GREETING],
        [wire.GREETING, b"x"] + [b""] * 7,
        [wire.GREETING, bytes(wire.MAX_HEADER_BYTES + 1)],
        [b"stranger", bytes(wire.MAX_HEADER_BYTES + 1)],
    ],
    ids=["no frame", "one frame", "nine frames", "long header", "long header of a stranger"],
)
def test_what_is_too_large_is_refused_before_it_is_read(frames: list[bytes]) -> None:
    with pytest.raises(LimitExceeded):
        wire.decode(frames)


def test_one_frame_and_all_of_them_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1500)
    with pytest.raises(LimitExceeded, match="message of"):
        wire.decode([wire.GREETING, b"x", bytes(1001)])
    with pytest.raises(LimitExceeded, match="message of"):
        wire.decode([wire.GREETING, b"x", bytes(800), bytes(800)])


@quick(300)
@given(st.lists(st.binary(max_size=200), max_size=9))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(BAD):
        wire.decode(frames)


@quick(300)
@given(st.binary(max_size=300), st.lists(st.binary(max_size=30), max_size=3))
def test_a_random_header_is_refused(header: bytes, arrays: list[bytes]) -> None:
    with pytest.raises(BAD):
        wire.decode([wire.GREETING, header, *arrays])


LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
OBJECTS = st.recursive(
    LEAVES | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=5),
    max_leaves=12,
)


@quick(200)
@given(st.sampled_from(sorted(m.MESSAGES)), OBJECTS, OBJECTS, OBJECTS, st.lists(st.binary(max_size=20), max_size=3))
def test_any_object_in_a_header_is_read_or_refused(
    name: str, number: Any, fields: Any, shapes: Any, arrays: list[bytes]
) -> None:
    try:
        wire.decode([wire.GREETING, msgpack.packb([name, number, fields, shapes]), *arrays])
    except BAD:
        return


@quick(300)
@given(any_message(), st.data())
def test_a_damaged_message_is_read_or_refused(message: Message, data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in wire.encode(3, message)]
    frame = frames[data.draw(st.integers(0, len(frames) - 1))]
    damage = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    place = data.draw(st.integers(0, max(len(frame) - 1, 0)))
    if damage == "flip" and frame:
        frame[place] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "cut":
        del frame[place:]
    else:
        frame[place:place] = data.draw(st.binary(min_size=1, max_size=4))
    try:
        wire.decode([bytes(frame) for frame in frames])
    except BAD:
        return


@quick(100)
@given(any_message(), st.data())
def test_a_truncated_header_is_refused(message: Message, data: st.DataObject) -> None:
    greeting, header, *rest = [bytes(frame) for frame in wire.encode(3, message)]
    with pytest.raises(ProtocolError):
        wire.decode([greeting, header[: data.draw(st.integers(0, len(header) - 1))], *rest])
