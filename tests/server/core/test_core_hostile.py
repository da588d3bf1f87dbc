"""The core without sockets under any message, and under those that are nearly right: replies, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shards import ASYNC, MINIBATCH, pull, push, shard, statistics
from strategies import any_message, messages, quick

from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.schema import Message
from glovewire.common.storage.dataset import Dataset


@quick(60)
@given(st.lists(st.tuples(st.sampled_from([b"w0", b"w1", b"eye", b"?"]), any_message()), max_size=12), st.booleans())
def test_no_message_brings_it_down(dataset: Dataset, sent: list[tuple[bytes, Message]], blocks: bool) -> None:
    one = shard(dataset, **({} if blocks else MINIBATCH))
    one.hello("w0")
    one.hello("w1")
    one.hello("eye", role="observer")
    for peer, message in sent:
        one.send(peer, message)
        one.tick(0.1)
    for replies in one.inbox.values():
        for reply in replies:
            wire.encode(0, reply)
    for sample in one.samples:
        wire.decode_sample(wire.encode_sample("run", 1, sample))
    assert np.isfinite(one.state.table.values).all()
    statistics(one)


SMALL = st.sampled_from([-1, 0, 1, 2, 3, 8, 16, 24, 25, 26, 1 << 40])


@quick(200)
@given(
    st.lists(
        st.builds(pull, SMALL, SMALL, SMALL)
        | st.builds(
            push, st.sampled_from(["assign", "add", "gradient", "?"]),
            st.integers(0, 9).map(lambda n: np.ones((n, 32), np.float32)), SMALL, SMALL, sequence=st.integers(0, 4),
            version=SMALL, lease=SMALL, rate=st.floats(0, 1),
        )
        | messages(m.Report) | st.builds(m.Lease, SMALL) | st.builds(m.Checkpoint, SMALL),
        max_size=8,
    ),
    st.sampled_from([{}, ASYNC, MINIBATCH]),
)  # fmt: skip
def test_nearly_right_requests_do_no_harm(dataset: Dataset, sent: list[Message], options: dict[str, Any]) -> None:
    one = shard(dataset, number=0, shards=2, **options)
    one.hello()
    for message in sent:
        one.send(b"w0", message)
    for replies in one.inbox.values():
        for reply in replies:
            wire.encode(0, reply)
