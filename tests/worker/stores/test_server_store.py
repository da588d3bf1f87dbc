"""The store on a real shard: a push by rows that asks for the next rows in the same message, in every kind of order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until
from shards import Shard, in_memory, served, shard, statistics

from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import BadRequest, RunOver
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import RequestClient
from glovewire.server import limits as credit
from glovewire.server.core import waiting
from glovewire.server.daemon import Daemon
from glovewire.worker.stores import server_store as remote
from glovewire.worker.stores.interface import Change
from glovewire.worker.stores.memory_store import MemoryStore
from glovewire.worker.stores.server_store import NO_LEASE, ServerStore
from glovewire.worker.training.block_trainer import train

HERE, NEXT = np.array([0, 2, 5]), np.array([1, 2])


@dataclass
class Pair:
    """Two workers of one shard, each with a store; both have pulled the rows HERE."""

    stores: list[ServerStore]
    facts: Any
    shard: Shard

    def pull(self, worker: int) -> Any:
        """The rows HERE."""
        return self.done(self.stores[worker].pull_rows(HERE)).get()

    def push(self, worker: int, pulled: Any, rows: Any = HERE) -> tuple[Pending[bool], Pending[Any]]:
        """A gradient of ones, which wants the rows NEXT."""
        width = RowLayout.of(self.stores[worker].options).parameters
        gradient = np.ones((len(rows), width), np.float32)
        return self.stores[worker].push_rows("gradient", rows, gradient, 0.5, pulled, NEXT)

    def done(self, reply: Pending[Any]) -> Pending[Any]:
        """The reply, once it is here."""

        def came() -> bool:
            for store in self.stores:
                store.poll()
            return reply.done

        until(came, "a reply")
        return reply


@contextmanager
def workers(path: Path, **options: Any) -> Iterator[Pair]:
    (path / "run").mkdir()
    usual = {"schedule": "minibatch", "optimizer": "sgd", "workers": 2, "out": path / "run"}
    one = shard(in_memory(path / "d"), now=time.monotonic(), **{**usual, **options})
    daemon = Daemon(one.core, path / "run", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with ExitStack() as stack:
        stack.enter_context(served(daemon))
        clients = [
            stack.enter_context(RequestClient([daemon.address], name, one.dataset.checksum)) for name in ("a", "b")
        ]
        for client in clients:
            client.connect()
            stack.callback(client.part, RunEnd(Ending.LEFT))  # or the shard waits for them when it is to stop
        stores = [ServerStore(client, one.state.options, one.dataset.layout.rows) for client in clients]
        yield Pair(stores, lambda: statistics(one)["pushes"], one)


def test_rows_come_with_the_word_that_the_gradient_is_in(tmp_path: Path) -> None:
    with workers(tmp_path, consistency="async") as pair:
        before = pair.pull(0)
        push, rows = pair.push(0, before)
        after = pair.done(rows).get()
        assert push.done
        assert push.get()
        assert after.gradients == before.gradients + 1
        assert (after.values[1] != before.values[1]).any()  # row 2 is in both
        assert after.clocks == {0: 1}
        assert pair.facts()["applied"] == 1


def test_in_step_the_rows_wait_for_the_other_worker_and_a_flush_does_not(tmp_path: Path) -> None:
    with workers(tmp_path, consistency="sync") as pair:
        pulled = [pair.pull(worker) for worker in (0, 1)]
        push, rows = pair.push(0, pulled[0])
        pair.stores[0].flush()
        assert push.done
        assert not rows.done
        other, others = pair.push(1, pulled[1])
        mine, theirs = (pair.done(each).get() for each in (rows, others))
        assert other.get()
        assert mine.clocks == theirs.clocks == {0: 1}
        np.testing.assert_array_equal(mine.values, theirs.values)
        assert pair.facts()["applied"] == 2


def test_who_comes_too_late_for_its_step_hears_so_and_gets_the_rows(tmp_path: Path) -> None:
    with workers(tmp_path, consistency="sync", backup=1) as pair:
        pulled = [pair.pull(worker) for worker in (0, 1)]
        first, rows = pair.push(0, pulled[0])
        pair.done(rows)
        assert first.get()
        late, rows = pair.push(1, pulled[1])
        assert pair.done(rows).get().clocks == {0: 1}
        assert late.done
        assert late.get() is False


def test_what_is_refused_fails_the_push_and_the_rows(tmp_path: Path) -> None:
    """Rows that are nowhere, in one or the other: nothing is applied."""
    nowhere = np.array([0, 10_000])
    with workers(tmp_path, consistency="async") as pair:
        pulled = pair.pull(0)
        for store, rows, wanted in zip(pair.stores, (nowhere, NEXT), (NEXT, nowhere), strict=True):
            gradient = np.ones((2, RowLayout.of(store.options).parameters), np.float32)
            for reply in store.push_rows("gradient", rows, gradient, 0.5, wanted=wanted):
                with pytest.raises(BadRequest, match="not on this shard"):
                    pair.done(reply).get()
        assert pair.facts() | {"sent": 2} == {"sent": 2, "heard": 2, "applied": 0, "repeated": 0, "refused": 2}
        assert (pair.pull(0).values == pulled.values).all()


def test_errors_of_rows_alone_leave_the_push_as_it_is(tmp_path: Path) -> None:
    """In step, and the run ends before the other worker comes: the gradient is in, its rows are refused."""
    with workers(tmp_path, consistency="sync") as pair:
        pulled = pair.pull(0)
        pair.pull(1)
        push, rows = pair.push(0, pulled)
        pair.done(push)
        pair.stores[1].client.ask(0, m.Finish(Ending.ASKED))
        with pytest.raises(RunOver):
            pair.done(rows).get()
        assert push.get()


def test_a_store_keeps_to_its_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are read while a block is pushed only to make room."""
    with workers(tmp_path, consistency="async") as pair:
        store = pair.stores[0]
        (channel,) = store.client.channels
        values = np.zeros((store.rows, store.width), np.float32)
        row = values[:1].nbytes
        monkeypatch.setattr(remote, "ADDED_BYTES", row)
        monkeypatch.setattr(credit, "WORKER_CREDIT_BYTES", 3 * row)
        channel.credit = 3 * row
        reply = store.push_range("add", NO_LEASE, Change(0, store.rows, values))
        assert 0 < channel.in_flight <= 3 * row < values.nbytes
        assert pair.done(reply).error is None


def trained_over(folder: Path, shards: int, *, workers: int = 1, share: float = 0.03) -> tuple[list[Shard], np.ndarray]:
    """The shards of a training, after its end, and the rows of all of them."""
    folder.mkdir()
    dataset, cluster, clock = in_memory(folder / "d", size=60, share=share), [], time.monotonic()
    with ExitStack() as stack:
        addresses = []
        for number in range(shards):
            out = folder / f"run-{number}"
            out.mkdir()
            cluster.append(shard(dataset, number=number, shards=shards, out=out, now=clock, tied=False))
            daemon = Daemon(cluster[-1].core, out, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
            stack.enter_context(served(daemon))
            addresses.append(daemon.address)
        tables = [one.state.table.values for one in cluster]  # changed in place, and released at the end
        options = cluster[0].state.options

        def work(name: str) -> RunEnd:
            with RequestClient(addresses, name, dataset.checksum) as client:
                client.connect()
                store = ServerStore(client, options, dataset.layout.rows)
                return train(store, dataset, options, 0)

        with ThreadPoolExecutor(workers) as pool:
            ends = list(pool.map(work, [f"w{number}" for number in range(workers)]))
        assert ends == [RunEnd(Ending.COMPLETE)] * workers
        return cluster, np.concatenate(tables)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_visit_of_no_rows_waits_for_its_turn_too(tmp_path: Path, shards: int) -> None:
    """The push that ends it came before its partition was at the round, and was refused: two workers stood still."""
    cluster, rows = trained_over(tmp_path / "two", shards, workers=2, share=0.0005)
    dataset = cluster[0].dataset
    pairs = itertools.combinations(range(dataset.layout.partitions), 2)
    assert any(not len(dataset.distinct(own, other)) for other, own in pairs)
    assert sum(one.state.push_counts.total["refused"] for one in cluster) == 0
    _, expected = trained_over(tmp_path / "one", 1, share=0.0005)
    np.testing.assert_array_equal(rows, expected)


def test_a_pull_of_no_rows_waits_for_its_version(tmp_path: Path) -> None:
    with workers(tmp_path, schedule="blocks", optimizer="adagrad-row") as pair:
        first, last = pair.shard.dataset.layout.span(0)
        store, none = pair.stores[0], np.zeros(0, np.int64)
        assert pair.done(store.pull_range(first, last, 0, none)).get().shape == (0, store.width)
        later = store.pull_range(first, last, 1, none)
        pair.done(store.pull_range(first, last, 0, none))
        assert not later.done
        leased = pair.done(store.lease()).get()
        values = np.ones((last - first, store.width), np.float32)
        assert pair.done(store.push_range("assign", leased, Change(first, last, values))).error is None
        assert pair.done(later).error is None


def test_pieces_of_a_partition_that_is_not_ready_take_the_place_of_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition of 65,536 large rows travels in hundreds of pieces, and a server lets 64 requests wait."""
    monkeypatch.setattr(waiting, "MAX_WAITING_PER_SESSION", 1)
    monkeypatch.setattr(remote, "PIECE_BYTES", (1, 1))
    with workers(tmp_path, schedule="blocks", optimizer="adagrad-row") as pair:
        first, last = pair.shard.dataset.layout.span(0)
        store, rows = pair.stores[0], np.arange(first, last)
        later = store.pull_range(first, last, 1, rows[1:])
        leased = pair.done(pair.stores[1].lease()).get()
        values = np.repeat(rows[:, None], store.width, axis=1).astype(np.float32)
        assert pair.done(pair.stores[1].push_range("assign", leased, Change(first, last, values))).error is None
        np.testing.assert_array_equal(pair.done(later).get(), values[1:])


def messages(cluster: list[Shard]) -> tuple[int, int]:
    """How many pulls and pushes the shards have had."""
    pulls = sum(one.state.counters["pulls"] for one in cluster)
    return pulls, sum(one.state.push_counts.total["applied"] for one in cluster)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_partition_too_large_for_one_message_travels_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """A shard with no row of a piece hears of it too; the vectors are those of a training in memory."""
    whole, rows = trained_over(tmp_path / "whole", shards)
    row = RowLayout.of(whole[0].state.options).width * 4
    monkeypatch.setattr(remote, "PIECE_BYTES", (3 * row, 3 * row))
    pieces, again = trained_over(tmp_path / "pieces", shards)
    np.testing.assert_array_equal(again, rows)
    for few, many in zip(*map(messages, (whole, pieces)), strict=True):
        assert many > 1.5 * few
    one = whole[0]
    in_memory_rows = RowLayout.of(one.state.options).initial(0, one.dataset.layout.rows, one.state.options)
    following = iter(range(1000)).__next__
    store = MemoryStore(
        in_memory_rows, 3, one.state.options, following, lambda *_: None, lambda count: count, lambda _: False
    )
    train(store, one.dataset, one.state.options, 0)
    np.testing.assert_array_equal(in_memory_rows, rows)
