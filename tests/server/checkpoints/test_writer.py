"""A checkpoint is written at ease while nobody waits, with short rests for who asks, without any at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from processes import until
from shards import MINIBATCH, Shard, in_memory, served, shard

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints import writer as pace
from glovewire.server.checkpoints.writer import Pace
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"


def test_it_rests_as_many_times_as_long_as_it_has_worked() -> None:
    one = Pace()
    one.begin()
    while time.thread_time() - one._since < 2e-3:
        pass
    worked_s, began = time.thread_time() - one._since, time.monotonic()
    one.rest()
    assert time.monotonic() - began >= pace.RESTS * worked_s


class Watched(threading.Event):
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


@pytest.mark.parametrize("quicker", [Pace.step_out, Pace.hurry])
def test_a_rest_ends_when_somebody_comes_to_wait(
    quicker: Callable[[Pace], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "RESTS", 1e9)
    one, wake = Pace(), Watched()
    one._wake = wake

    def work() -> None:
        one.begin()
        for _ in range(3):  # of the rests only the first is a long one
            sum(range(10_000))
            one.rest()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert wake.awaited.wait(30)
    quicker(one)
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shard]:
    """Makes a shard whose rests take minutes."""
    monkeypatch.setattr(pace, "RESTS", 1e6)
    return partial(shard, in_memory(tmp_path / "d"), out=tmp_path, now=time.monotonic(), batch_size=8)


@contextmanager
def looked_at(one: Shard, run: Path) -> Iterator[RequestClient]:
    """Somebody who looks at the shard."""
    daemon = Daemon(one.core, run, LOCAL, LOCAL)
    with served(daemon), RequestClient([daemon.address], "eye") as client:
        yield client


def await_writing(run: Path) -> None:
    until(lambda: any((run / "checkpoints").glob(".*.partial/rows.npy")), "a checkpoint is being written")


def written(run: Path) -> int:
    return len(list((run / "checkpoints").glob("[!.]*")))


def test_a_server_that_ends_waits_for_no_rest(make: Callable[..., Shard], tmp_path: Path) -> None:
    one = make(checkpoint_every=1, **MINIBATCH)
    one.state.cuts.after(one.state.identity.checkpoint_rounds)
    with looked_at(one, tmp_path) as client:
        await_writing(tmp_path)
        assert isinstance(client.ask(0, m.GetStatus()), m.Status)
        assert written(tmp_path) == 0
        client.ask(0, m.Finish(Ending.ASKED))
    assert written(tmp_path) == 1


def test_a_checkpoint_that_waits_for_another_makes_it_hurry(make: Callable[..., Shard], tmp_path: Path) -> None:
    one = make(checkpoint_every=1, **MINIBATCH)
    for number in (1, 2):
        one.state.cuts.after(number * one.state.identity.checkpoint_rounds)
    with looked_at(one, tmp_path):
        until(lambda: written(tmp_path) == 2, "both are written")


def test_who_asks_for_a_checkpoint_waits_for_short_rests_only(make: Callable[..., Shard], tmp_path: Path) -> None:
    with looked_at(make(**MINIBATCH), tmp_path) as client:
        assert client.ask(0, m.Checkpoint(7)) == m.Checkpointed("asked-000000-0000000007")


def test_who_asks_for_what_is_being_written_already_waits_for_short_rests_only(
    make: Callable[..., Shard], tmp_path: Path
) -> None:
    one = make()
    one.state.cuts._cut_at(0)
    with looked_at(one, tmp_path) as client:
        await_writing(tmp_path)
        assert client.ask(0, m.Checkpoint(0)) == m.Checkpointed("round-00000000")
