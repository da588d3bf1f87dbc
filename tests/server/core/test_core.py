"""The core without sockets: who may do what, pushes that repeat, pulls that wait."""

from __future__ import annotations

import numpy as np
import pytest
from shards import MINIBATCH, add, applied, assign, code, pull, report, rounds_of, shard, statistics

from glovewire.common.protocol import messages as m
from glovewire.common.protocol.schema import Message
from glovewire.common.storage.dataset import Dataset
from glovewire.server.table import table


def test_a_hello_is_answered_with_all_that_a_worker_needs(dataset: Dataset) -> None:
    one = shard(dataset, number=1, shards=3)
    welcome = one.hello()
    assert isinstance(welcome, m.Welcome)
    assert (welcome.run, welcome.shard, welcome.shards, welcome.worker) == ("run", 1, 3, 0)
    assert welcome.options == one.state.options.as_message()


def test_a_core_shows_nothing_but_its_interface(dataset: Dataset) -> None:
    """Messages and time go in, effects come out; its state is only for those that built it."""
    core = shard(dataset).core
    assert [name for name in vars(core) if not name.startswith("_")] == []
    assert {name for name in vars(type(core)) if not name.startswith("_")} == {
        "receive", "reject", "tick", "disconnected", "checkpointed", "finish", "revoke",
        "announce", "farewell", "final", "summary", "free_table", "session_at",
    }  # fmt: skip


def test_another_dataset_is_refused_in_words(dataset: Dataset) -> None:
    one = shard(dataset)
    for checksum in ("", "0" * 64):
        reply = one.ask(b"w", m.Hello("worker", "w", 1, checksum))
        assert code(reply) == "dataset-mismatch"
    assert isinstance(one.hello("eye", role="observer"), m.Welcome)


def test_who_has_another_dataset_is_not_among_the_workers_that_have_come(dataset: Dataset) -> None:
    """Otherwise the only worker might be taken for the last one, and end the run."""
    one = shard(dataset)
    one.ask(b"w", m.Hello("worker", "w", 1, "0" * 64))
    assert not one.state.sessions.all_came
    one.hello()
    assert one.state.sessions.all_came


def test_joining_is_said_once_however_often_hello_is(dataset: Dataset) -> None:
    one = shard(dataset)
    one.hello()
    one.hello()
    one.hello(peer=b"elsewhere")
    assert one.events("joined") == ["w0"]


@pytest.mark.parametrize(
    "message", [m.Lease(1), pull(0, 2), m.Heartbeat(), report(1)], ids=lambda x: type(x).__name__
)  # fmt: skip
def test_strangers_are_told_to_say_hello(dataset: Dataset, message: Message) -> None:
    one = shard(dataset, **MINIBATCH)
    assert code(one.ask(b"stranger", message)) == "unknown-session"
    assert code(one.ask(b"stranger", add(one, 1))) == "unknown-session"
    assert not np.array_equal(one.state.table.values, 0)


def test_observers_change_nothing(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello("eye", role="observer")
    before = one.state.table.values.copy()
    for message in (m.Lease(1), add(one, 1), report(1)):
        assert code(one.ask(b"eye", message)) == "bad-request"
    assert isinstance(one.ask(b"eye", pull(0, 2)), m.Rows)
    np.testing.assert_array_equal(one.state.table.values, before)
    assert statistics(one)["entries"] == 0


def test_one_connection_is_one_worker(dataset: Dataset) -> None:
    """One peer with a thousand names would leave no room for others."""
    one = shard(dataset)
    for n in range(20):
        one.hello(f"w{n}", peer=b"p")
    assert [session.name for session in one.state.sessions.workers] == ["w19"]


# ---- pushes and pulls


def test_a_push_counts_once_however_often_it_comes(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello()
    before = one.state.table.values[:2].copy()
    assert one.ask(b"w0", add(one, 1)) == applied(1, 1, False)
    for _ in range(3):
        assert one.ask(b"w0", add(one, 1)) == applied(1, 1, True)
    one.hello(peer=b"after a cut connection")
    assert one.ask(b"after a cut connection", add(one, 1)) == applied(1, 1, True)
    np.testing.assert_array_equal(one.state.table.values[:2], before + 1)
    assert one.state.push_counts.total["applied"] == 1
    assert one.state.push_counts.total["repeated"] == 4


def test_a_push_out_of_order_is_refused_and_changes_nothing(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello()
    before = one.state.table.values.copy()
    assert code(one.ask(b"w0", add(one, 2))) == "out-of-order"
    np.testing.assert_array_equal(one.state.table.values, before)
    assert one.ask(b"w0", add(one, 1)) == applied(1, 1, False)


def test_a_refused_push_does_not_use_up_its_number(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello()
    assert code(one.ask(b"w0", add(one, 1, float("nan")))) == "not-finite"
    assert one.ask(b"w0", add(one, 1)) == applied(1, 1, False)


def test_workers_number_their_pushes_by_themselves(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    for name in ("a", "b"):
        one.hello(name)
    assert one.ask(b"a", add(one, 1)) == applied(1, 1, False)
    assert one.ask(b"b", add(one, 1)) == applied(1, 2, False)


def test_a_pull_for_a_later_round_is_answered_after_the_push(dataset: Dataset) -> None:
    one = shard(dataset)
    one.hello("a")
    one.hello("b")
    first, last = dataset.layout.span(0)
    waits = one.send(b"b", pull(first, last, 1))  # every round changes the first partition
    one.send(b"b", pull(first, last, 1), waits)
    assert one.reply(b"b", waits) is None
    assert len(one.state.waiting) == 1
    visit = rounds_of(one).next_visit(1, 0)
    assert code(one.ask(b"a", assign(one, 1, 1, visit, 5.0))) == ""
    assert one.reply(b"b", waits) is None
    one.ask(b"a", assign(one, 2, 0, 0, 7.0))
    (rows,) = one.inbox[b"b", waits]
    assert isinstance(rows, m.Rows)
    assert rows.version == 1
    assert (rows.values == 7.0).all()
    assert len(one.state.waiting) == 0


def test_a_late_push_of_a_round_that_is_over_changes_nothing(dataset: Dataset) -> None:
    one = shard(dataset)
    one.hello("a")
    one.hello("b")
    one.ask(b"a", assign(one, 1, 0, 0, 7.0))
    reply = one.ask(b"b", assign(one, 1, 0, 0, 8.0, worker=1, lease=2))
    assert isinstance(reply, m.Applied)
    assert reply.repeated
    assert (one.state.table.values[: dataset.layout.bounds[1]] == 7.0).all()
    assert code(one.ask(b"b", assign(one, 2, 0, 5, 8.0, worker=1))) == "lease-lost"


NOT_HERE = [(25, 25), (25, 26), (10**9, 10**9 + 1), (-5, -3), (9, 3), (-(1 << 63), (1 << 63) - 1)]


@pytest.mark.parametrize("version", [m.NO_VERSION, 0, 3])
@pytest.mark.parametrize(("first", "last"), NOT_HERE)
def test_rows_that_are_not_here_are_never_parked(dataset: Dataset, first: int, last: int, version: int) -> None:
    one = shard(dataset)
    one.hello()
    reply = one.ask(b"w0", pull(first, last, version))
    assert code(reply) == "bad-request" or (isinstance(reply, m.Rows) and len(reply.values) == 0)
    assert len(one.state.waiting) == 0


@pytest.mark.parametrize("rows", [None, [0] * 9])
def test_more_rows_than_fit_in_a_message_are_refused(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, rows: list[int] | None
) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello()
    monkeypatch.setattr(table, "MAX_FRAME_BYTES", 8 * one.state.table.values.shape[1] * 4)
    assert isinstance(one.ask(b"w0", pull(0, 8)), m.Rows)
    assert code(one.ask(b"w0", pull(0, 9, rows=rows))) == "limit"


def test_a_pull_names_no_more_rows_than_there_are(dataset: Dataset) -> None:
    """Seen to fail: a request of half a megabyte for one row, 60,000 times, was answered with 64 MiB."""
    one = shard(dataset)
    one.hello("w0")
    rows = one.dataset.layout.rows
    assert isinstance(one.ask(b"w0", pull(rows=[0] * rows)), m.Rows)
    assert code(one.ask(b"w0", pull(rows=[0] * (rows + 1)))) == "limit"


def test_another_table_is_refused_by_name(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.hello()
    assert code(one.ask(b"w0", pull(0, 1, table="weights"))) == "bad-request"
