"""The daemon on a real socket: serves, publishes, records, writes checkpoints, ends at once when it is told to."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import until
from shards import MINIBATCH, Shard, add, applied, in_memory, pull, report, served, shard

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import BindError, GlovewireError, NotReady, RunOver
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport import sockets
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints import files as checkpoint
from glovewire.server.daemon import Daemon

LOCAL = "tcp://127.0.0.1:0"


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return in_memory(tmp_path / "d")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def one(dataset: Dataset, run: Path) -> Shard:
    return shard(dataset, out=run, now=time.monotonic(), **MINIBATCH)


@pytest.fixture
def daemon(one: Shard, run: Path) -> Iterator[Daemon]:
    daemon = Daemon(one.core, run, LOCAL, LOCAL)
    with served(daemon):
        yield daemon


def test_a_worker_is_served(daemon: Daemon, one: Shard) -> None:
    with RequestClient([daemon.address], "w0", one.dataset.checksum) as client:
        assert client.connect().run == "run"
        before = client.ask(0, pull(0, 2))
        assert client.ask(0, add(one, 1)) == applied(1, 1)
        after = client.ask(0, pull(0, 2))
        assert isinstance(before, m.Rows)
        assert isinstance(after, m.Rows)
        assert (after.values == before.values + 1).all()
        client.ask(0, m.Leave(Ending.LEFT))


def test_the_stream_is_numbered_and_says_who_came(daemon: Daemon, one: Shard) -> None:
    with sockets.Context() as context, RequestClient([daemon.address], "w0", one.dataset.checksum) as client:
        subscriber = context.subscriber(daemon.stream_address)
        found: list[wire.Numbered] = []

        def receive() -> bool:
            while subscriber.poll(0):
                found.append(wire.decode_sample(sockets.receive(subscriber)))
            return any(isinstance(one.message, m.Event) for one in found) and len(found) > 3

        until(lambda: subscriber.poll(0) != 0, "the stream is there")
        client.connect()
        until(receive, "who came, and more")
        numbers = [one.number for one in found]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {one.run for one in found} == {"run"}
        events = [one.message for one in found if isinstance(one.message, m.Event)]
        assert (events[0].kind, events[0].subject) == ("joined", "w0")
        client.ask(0, m.Leave(Ending.LEFT))


def test_losses_are_recorded_line_by_line(daemon: Daemon, one: Shard, run: Path) -> None:
    with RequestClient([daemon.address], "w0", one.dataset.checksum) as client:
        client.connect()
        client.ask(0, report(1))
        log = run / "metrics.jsonl"
        until(lambda: log.exists() and log.read_text().count("\n") == 3, "what is trained, and two losses")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert lines[0]["topic"] == "run"
        assert {line["worker"] for line in lines[1:]} == {"w0", "all"}
        client.ask(0, m.Leave(Ending.LEFT))


def test_a_checkpoint_is_answered_when_it_is_on_disk_and_serving_goes_on(daemon: Daemon, run: Path) -> None:
    with RequestClient([daemon.address], "eye") as client:
        client.connect("observer")
        done = client.ask(0, m.Checkpoint(0))
        assert isinstance(done, m.Checkpointed)
        rows, facts = checkpoint.read(run, done.name, 1)
        assert rows.shape[0] == facts["rows"][1] == 25
        assert isinstance(client.ask(0, m.GetStatus()), m.Status)


def test_a_checkpoint_that_cannot_be_written_costs_an_answer_only(daemon: Daemon, run: Path) -> None:
    (run / "checkpoints").write_text("in the way")
    with RequestClient([daemon.address], "eye") as client:
        client.connect("observer")
        with pytest.raises(GlovewireError, match="cannot be written") as caught:
            client.ask(0, m.Checkpoint(0))
        assert caught.value.code == "output"
        assert isinstance(client.ask(0, m.GetStatus()), m.Status)


def test_finish_ends_it_and_returns_why(dataset: Dataset, run: Path) -> None:
    daemon = Daemon(shard(dataset, out=run, now=time.monotonic(), **MINIBATCH).core, run, LOCAL, LOCAL)
    with served(daemon) as ended, RequestClient([daemon.address], "eye") as client:
        assert client.ask(0, m.Finish(Ending.ASKED)) == m.Finishing(0)
        until(lambda: bool(ended), "the end")
        assert ended == [RunEnd(Ending.ASKED)]


def test_nobody_is_welcomed_once_another_shard_has_said_that_the_run_ends(
    one: Shard, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: a worker joined this shard alone, and each waited for another (simulation, seed 3721)."""
    monkeypatch.setattr("glovewire.server.daemon.CHECK_EVERY_S", 3600.0)
    told: list[RunEnd] = []
    daemon = Daemon(one.core, run, LOCAL, LOCAL)
    with (
        served(daemon, lambda ending: next(iter(told), None) if ending is None else None),
        RequestClient([daemon.address], "eye") as client,
    ):
        client.ask(0, m.GetStatus())  # it has looked once
        told.append(RunEnd(Ending.COMPLETE))
        with pytest.raises(RunOver):
            client.connect("observer")


def test_a_signal_stops_it_at_once(dataset: Dataset, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the poll would wait for long: the handler wakes it."""
    monkeypatch.setattr("glovewire.server.daemon.POLL_MS", 60_000)
    daemon = Daemon(shard(dataset, out=run, now=time.monotonic(), **MINIBATCH).core, run, LOCAL, LOCAL)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        daemon.install_signals()
        kill = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        began = time.monotonic()
        kill.start()
        assert daemon.serve() == RunEnd(Ending.STOPPED)
        assert time.monotonic() - began < 50
        kill.join()
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
        daemon.close()


def test_a_port_in_use_is_said_and_nothing_is_left(daemon: Daemon, one: Shard, run: Path) -> None:
    for bind, publish in ((daemon.address, LOCAL), (LOCAL, daemon.stream_address)):
        with pytest.raises(BindError, match="the port is in use"):
            Daemon(one.core, run, bind, publish)


def test_closing_twice_is_fine(one: Shard, run: Path) -> None:
    daemon = Daemon(one.core, run, LOCAL, LOCAL)
    daemon.close()
    daemon.close()


def test_a_second_process_of_a_name_waits_until_the_first_is_gone(daemon: Daemon, one: Shard) -> None:
    """And says so if it has waited in vain; the first one notices nothing."""
    checksum = one.dataset.checksum
    with RequestClient([daemon.address], "w0", checksum) as first:
        first.connect()
        with (
            RequestClient([daemon.address], "w0", checksum) as second,
            pytest.raises(NotReady, match="another process is at work under the name 'w0'"),
        ):
            second.connect(timeout_s=1.0)
        assert first.ask(0, add(one, 1)) == applied(1, 1)
    with RequestClient([daemon.address], "w0", checksum) as again:  # the first one ended without a word
        assert again.connect(timeout_s=one.state.identity.lease_s / 5).worker == 1
        assert again.ask(0, add(one, 1)) == applied(1, 2)
        again.ask(0, m.Leave(Ending.LEFT))
