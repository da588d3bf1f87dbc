"""Messages to frames and back: every message, every optional array, misaligned frames, the limits of what is sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_message, messages, quick, same

from glovewire.common.errors import LimitExceeded, ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.schema import Message


@pytest.mark.parametrize("kind", [k for k in m.MESSAGES.values() if k not in m.STREAM], ids=lambda k: k.__name__)
def test_every_message_comes_back_as_it_was_sent(kind: type[Message]) -> None:
    @quick(20)
    @given(messages(kind), st.integers(0, (1 << 63) - 1))
    def check(message: Message, number: int) -> None:
        frames = [bytes(frame) for frame in wire.encode(number, message)]
        found = wire.decode(frames)
        assert found.number == number
        assert same(found.message, message)

    check()


@pytest.mark.parametrize("kind", m.STREAM, ids=lambda k: k.__name__)
def test_every_sample_comes_back_as_it_was_published(kind: type[Message]) -> None:
    @quick(20)
    @given(messages(kind), st.integers(0, (1 << 63) - 1), st.text("0123456789abcdef", max_size=8))
    def check(sample: Message, number: int, run: str) -> None:
        frames = wire.encode_sample(run, number, sample)
        assert frames[0] == kind.topic.encode()
        assert wire.decode_sample(frames) == wire.Numbered(number, sample, run)

    check()


@quick(40)
@given(any_message())
def test_frames_may_be_misaligned_and_memoryviews(message: Message) -> None:
    shifted = [memoryview(b"x" + bytes(frame))[1:] for frame in wire.encode(7, message)]
    assert same(wire.decode(shifted).message, message)


def test_a_message_is_sent_as_it_lies_in_memory_and_received_read_only() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    frames = wire.encode(1, m.Rows(5, values))
    assert np.shares_memory(np.frombuffer(frames[2], np.uint8), values)
    copied = wire.decode([bytes(frame) for frame in frames]).message
    assert isinstance(copied, m.Rows)
    assert not copied.values.flags.writeable


def test_parts_of_larger_arrays_and_other_orders_are_sent_in_row_order() -> None:
    table = np.arange(40, dtype=np.float32).reshape(8, 5)
    for values in (table[2:5], table[::2], table.T, table[:, 1:3]):
        received = wire.decode([bytes(frame) for frame in wire.encode(0, m.Rows(0, values))]).message
        assert isinstance(received, m.Rows)
        np.testing.assert_array_equal(received.values, values)


def test_a_header_that_no_peer_would_accept_is_not_sent() -> None:
    fits = m.Leave("x" * 1000)
    assert len(wire.encode(0, fits)[1]) < wire.MAX_HEADER_BYTES
    with pytest.raises(LimitExceeded, match=r"header of \d+ bytes, at most 4096"):
        wire.encode(0, m.Leave("x" * 5000))
    with pytest.raises(LimitExceeded, match="header"):
        wire.encode_sample("run", 0, m.Event(0.0, "joined", "w0", "x" * 5000))


def test_sizes_are_counted_over_all_frames() -> None:
    assert wire.bytes_of([b"abc", memoryview(b"de"), b""]) == 5


def test_a_sample_under_another_topic_or_with_another_number_of_frames_is_none() -> None:
    frames = wire.encode_sample("run", 1, m.Event(0.0, "joined", "w0", ""))
    with pytest.raises(ProtocolError, match="does not belong to this topic"):
        wire.decode_sample([b"loss", *frames[1:]])
    with pytest.raises(ProtocolError, match="3 frames"):
        wire.decode_sample(frames[:2])
    with pytest.raises(ProtocolError, match="3 frames"):
        wire.decode_sample([*frames, b""])
    with pytest.raises(LimitExceeded, match="header"):
        wire.decode_sample([*frames[:2], bytes(wire.MAX_HEADER_BYTES + 1)])
    request = wire.encode(1, m.Heartbeat())
    with pytest.raises(ProtocolError, match="no sample"):
        wire.decode_sample([b"", *request])
