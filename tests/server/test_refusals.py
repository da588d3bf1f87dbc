"""No reply ends a daemon: refusals and events of any text become messages that fit and can be printed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import MINIBATCH, Shard, code, pull, push, served, shard
from strategies import quick

from glovewire.common import errors
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.protocol.schema import Message
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.core.core import Core
from glovewire.server.daemon import Daemon
from glovewire.server.service import prepare

HOSTILE = (
    st.sampled_from(["\ud800", "\udfff\udc00" * 300, "a\0b", "\u202eabc\u2066", "\x1b[2J", "\r\n", "x" * 1_000_000,
                     "\ud800" * 1_000_000, "\U0001f642" * 2000, ""])
    | st.text(st.characters(), max_size=40) | st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zl"]), max_size=700)
)  # fmt: skip
"""Text as a peer may send it, inside JSON also with lone surrogates."""
BAD_SPEC = np.frombuffer(rb'[["a",[4],"\ud800",true]]', np.uint8)


def dense(dataset: Dataset, out: Path = Path("run")) -> Shard:
    """A shard that serves tensors."""
    config = ServerConfig(out=out, options=TrainingOptions.of_tensors(optimizer="sgd"))
    state = prepare(config, None, Generation(0, "run"), time.monotonic())
    return Shard(state, dataset, time.monotonic())


def require_sendable(reply: Message) -> None:
    """It fits, arrives as it was sent, and moves no cursor."""
    assert wire.decode(wire.encode(1, reply)).message == reply
    if isinstance(reply, m.Refused):
        assert reply.text.isprintable()
        assert len(reply.text) <= 500


@quick(50)
@given(st.sampled_from(sorted(errors.leaves())), HOSTILE)
def test_every_refusal_can_be_sent_whatever_it_says(dataset: Dataset, fault: str, text: str) -> None:
    one = shard(dataset)
    effects = one.core.reject(b"w0", errors.from_wire(fault, text))
    [(_, number, reply)] = effects.replies
    assert (number, code(reply)) == (0, fault)
    require_sendable(reply)


@quick(50)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_requests_of_hostile_text_get_replies_that_can_be_sent(dataset: Dataset, a: str, b: str, c: str) -> None:
    spec = np.frombuffer(json.dumps([[a, [4], b, True], [c, [1], "<f4", True]]).encode(), np.uint8)
    for one in (shard(dataset), shard(dataset, **MINIBATCH), dense(dataset)):
        requests: list[Message] = [
            m.Hello(a, b, 1, c, -1), m.Hello("worker", a, 1, b, -1), m.Hello("observer", a, 1, "", -1),
            m.Create(spec), pull(0, 2, table=a), push("add", np.ones((2, 8)), 0, 2, table=b), m.Score(a, 1.0),
            push(c, np.ones((2, 8)), 0, 2), m.Leave(a, b, 0), m.Checkpoint(-1), m.Finish(a, b), m.Finish("asked", c),
        ]  # fmt: skip
        one.hello("w0", role="observer")
        for number, request in enumerate(requests):
            one.send(b"w0", request, number)
        one.tick(1.0)
        for replies in one.inbox.values():
            for reply in replies:
                if reply.__class__ in (m.Refused, m.Done):
                    require_sendable(reply)
        for sample in one.samples:
            wire.encode_sample("run", 1, sample)


@quick(30)
@given(HOSTILE)
def test_an_event_of_any_text_is_published(dataset: Dataset, text: str) -> None:
    one = shard(dataset)
    effects = one.core.announce(1.0, "failed", text)
    [event] = [each.sample for each in effects.published if isinstance(each.sample, m.Event)]
    assert event.text.isprintable()
    assert event.kind == "failed"


def test_a_reply_that_cannot_be_encoded_becomes_a_refusal(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: here a number of more than 64 bits, and then a header that is too long."""
    (tmp_path / "run").mkdir()
    one = shard(dataset, out=tmp_path / "run", now=time.monotonic())
    bad: list[Message] = [m.Recorded(False, 1 << 70, 0), m.Checkpointed("x" * 5000), m.Checkpointed("\ud800")]
    monkeypatch.setattr(Core, "_heartbeat", lambda *_: bad.pop())
    daemon = Daemon(Core(one.state), tmp_path / "run", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with served(daemon), RequestClient([daemon.address], "eye") as client:
        client.connect("observer")
        for _ in range(3):
            with pytest.raises(errors.GlovewireError, match="cannot be sent"):
                client.ask(0, m.Heartbeat(), timeout_s=20)
        assert isinstance(client.ask(0, m.GetStatus(), timeout_s=20), m.Status)


def test_a_surrogate_in_a_declared_model_does_not_end_the_daemon(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    daemon = Daemon(dense(dataset).core, tmp_path / "run", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with served(daemon), RequestClient([daemon.address], "w0") as client:
        client.connect()
        with pytest.raises(errors.BadRequest, match=r"dtype that cannot be kept: \\ud800"):
            client.ask(0, m.Create(BAD_SPEC), timeout_s=20)
        assert isinstance(client.ask(0, m.Heartbeat(), timeout_s=20), m.HeartbeatAck)
        client.part(RunEnd(Ending.LEFT))
