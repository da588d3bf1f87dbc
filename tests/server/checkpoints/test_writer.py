"""A checkpoint is written with long pauses, with shorter ones for a client that waits, without any at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from processes import until
from shards import ASYNC, MINIBATCH, Shard, in_memory, served, shard

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints import writer as writer
from glovewire.server.checkpoints.writer import Throttle
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"


def test_it_pauses_as_many_times_as_long_as_it_has_worked() -> None:
    one = Throttle()
    one.begin()
    since = time.thread_time()
    while time.thread_time() - since < 2e-3:
        pass
    worked_s, began = time.thread_time() - since, time.monotonic()
    one.pause()
    assert time.monotonic() - began >= writer.PAUSE_RATIO * worked_s


class Watched(threading.Event):
    """Tells when a thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


@pytest.mark.parametrize("ratio", [writer.PAUSE_RATIO_AWAITED, 0])
def test_a_pause_ends_when_a_client_comes_to_wait(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAUSE_RATIO", 1e9)
    wake = Watched()
    one = Throttle(wake)

    def work() -> None:
        one.begin()
        for _ in range(3):  # only the first pause is a long one
            sum(range(10_000))
            one.pause()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert wake.awaited.wait(30)
    one.at_most(ratio)
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shard]:
    """Makes a shard whose pauses take minutes."""
    monkeypatch.setattr(writer, "PAUSE_RATIO", 1e6)
    return partial(shard, in_memory(tmp_path / "d"), out=tmp_path, now=time.monotonic(), batch_size=8)


@contextmanager
def looked_at(one: Shard, run: Path) -> Iterator[RequestClient]:
    """An observer of the shard."""
    daemon = Daemon(one.core, run, LOCAL, LOCAL)
    with served(daemon), RequestClient([daemon.address], "eye") as client:
        client.connect("observer")
        yield client


def await_writing(run: Path) -> None:
    until(lambda: any((run / "checkpoints").glob(".*.partial/rows.npy")), "a checkpoint is being written")


def written(run: Path) -> int:
    return len(list((run / "checkpoints").glob("[!.]*")))


def test_a_server_that_ends_waits_for_no_pause(make: Callable[..., Shard], tmp_path: Path) -> None:
    one = make(checkpoint_every=1, **MINIBATCH)
    one.state.cuts.updates_applied(one.state.identity.checkpoint_rounds)
    with looked_at(one, tmp_path) as client:
        await_writing(tmp_path)
        assert isinstance(client.ask(0, m.GetStatus()), m.Status)
        assert written(tmp_path) == 0
        client.ask(0, m.Finish(Ending.ASKED))
    assert written(tmp_path) == 1


def test_a_checkpoint_that_waits_for_another_ends_the_pauses(make: Callable[..., Shard], tmp_path: Path) -> None:
    one = make(checkpoint_every=1, **MINIBATCH)
    for number in (1, 2):
        one.state.cuts.updates_applied(number * one.state.identity.checkpoint_rounds)
    with looked_at(one, tmp_path):
        until(lambda: written(tmp_path) == 2, "both are written")


def test_who_asks_for_a_checkpoint_waits_for_short_pauses_only(make: Callable[..., Shard], tmp_path: Path) -> None:
    with looked_at(make(**MINIBATCH), tmp_path) as client:
        assert client.ask(0, m.Checkpoint(7)) == m.Checkpointed("asked-000000-0000000007")


def test_who_asks_for_what_is_being_written_already_waits_for_short_pauses_only(
    make: Callable[..., Shard], tmp_path: Path
) -> None:
    one = make(checkpoint_every=1, **ASYNC)
    one.state.cuts.advance_low_water(3)
    with looked_at(one, tmp_path) as client:
        await_writing(tmp_path)
        assert client.ask(0, m.Checkpoint(3)) == m.Checkpointed("round-00000003")
