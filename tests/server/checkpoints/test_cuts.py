"""Checkpoints of a table that is never stopped: one cut whatever the interleaving, bounded copies, no asker lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shards import ASYNC, MINIBATCH, Shard, code, leased, push, report, rounds_of, span
from shards import shard as without_sessions
from strategies import quick

from glovewire.common.endings import Ending
from glovewire.common.errors import OutputError
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.checkpoints import cuts
from glovewire.server.checkpoints.cuts import WriteResult
from glovewire.server.checkpoints.writer import CheckpointWriter


def shard(of: Dataset, **options: Any) -> Shard:
    """A shard with a session of `eye`, which asks for checkpoints."""
    one = without_sessions(of, **options)
    one.hello("eye", role="observer")
    return one


class Rounds:
    """Pushes that take every partition through its rounds, in any order that the rounds allow."""

    def __init__(self, of: Shard) -> None:
        self.shard, self.sequence = of, 0
        self.order = rounds_of(of)
        self.version = [self.order.next_visit(p, 0) for p in range(self.order.partitions)]
        of.hello()

    def open(self) -> list[int]:
        return [p for p, version in enumerate(self.version) if version < self.order.total]

    def push(self, partition: int) -> None:
        """The next visit of a partition: its rows become a number that names partition and round."""
        first, last = span(self.shard, partition)
        version = self.version[partition]
        if first < last:
            self.sequence += 1
            width = self.shard.state.table.values.shape[1]
            values = np.full((last - first, width), value(partition, version + 1), np.float32)
            assigned = push("assign", values, first, last, sequence=self.sequence, version=version)
            assert isinstance(self.shard.ask(b"w0", leased(assigned)), m.Applied)
        self.version[partition] = self.order.next_visit(partition, version + 1)

    def push_before(self, round: int) -> None:
        """All visits of the rounds before `round`."""
        for partition in range(self.order.partitions):
            while self.version[partition] < round:
                self.push(partition)


def value(partition: int, round: int) -> float:
    return 100.0 * partition + round


def expected(of: Shard, round: int) -> np.ndarray:
    """The rows that a shard has at the start of a round: as the last visit before it has left them."""
    order, initial = rounds_of(of), of.state.options
    rows = RowLayout.of(initial).initial(of.state.table.first, of.state.table.last, initial)[:, 0]
    for partition in range(order.partitions):
        visits = [earlier for earlier in range(round) if partition in order.visits(earlier)]
        if visits:
            first, last = span(of, partition)
            rows[first - of.state.table.first : last - of.state.table.first] = value(partition, visits[-1] + 1)
    return rows


@quick(40)
@given(st.integers(0, 1), st.lists(st.integers(0, 99), max_size=30), st.integers(1, 5), st.integers(0, 4))
def test_a_cut_is_the_table_after_exactly_so_many_rounds(
    dataset: Dataset, number: int, order: list[int], round: int, before: int
) -> None:
    """On every shard, whatever the interleaving and whenever it was asked for, if not too late."""
    one = shard(dataset, number=number, shards=2)
    rounds = Rounds(one)
    asked, snapshots = None, []
    for step, choice in enumerate([*order, *range(100)]):
        if step == before:
            asked = one.send(b"eye", m.Checkpoint(round))
        if rounds.open():
            rounds.push(rounds.open()[choice % len(rounds.open())])
        snapshots += one.take_snapshots()
    assert asked is not None
    if code(one.reply(b"eye", asked)) == "not-ready":
        assert snapshots == []
        return
    assert [snapshot.label for snapshot in snapshots] == [f"round-{round:08d}"]
    assert snapshots[0].facts["round"] == round
    assert snapshots[0].facts["rows"][0] == one.state.table.first
    np.testing.assert_array_equal(snapshots[0].rows[:, 0], expected(one, round))


def test_a_cut_that_is_behind_is_refused_and_does_not_wait(dataset: Dataset) -> None:
    one = shard(dataset)
    Rounds(one).push_before(2)
    assert code(one.ask(b"eye", m.Checkpoint(1))) == "not-ready"
    assert one.ask(b"eye", m.Checkpoint(2)) is None
    assert one.ask(b"eye", m.Checkpoint(-1)) is None


def test_the_answer_comes_when_it_is_on_disk(dataset: Dataset) -> None:
    one = shard(dataset)
    rounds = Rounds(one)
    numbers = [one.send(b"eye", m.Checkpoint(1)) for _ in range(2)]
    one.send(b"eye", m.Checkpoint(1), numbers[0])  # the client repeats what is not answered
    rounds.push_before(1)
    (snapshot,) = one.take_snapshots()
    assert all(one.reply(b"eye", number) is None for number in numbers)
    one.carry_out(one.core.checkpointed(WriteResult(snapshot.label), 1.0))
    assert one.events("checkpoint") == [snapshot.label]
    for number in numbers:
        assert one.inbox[b"eye", number] == [m.Checkpointed("round-00000001")]
    assert one.ask(b"eye", m.Checkpoint(1)) == m.Checkpointed("round-00000001")


def test_what_is_no_longer_on_disk_is_not_said_to_be_there(dataset: Dataset, tmp_path: Path) -> None:
    one = shard(dataset, checkpoint_every=1, epochs=4)
    rounds, writer = Rounds(one), CheckpointWriter(tmp_path, 1, lambda: None)
    while rounds.open():
        rounds.push(min(rounds.open(), key=lambda partition: rounds.version[partition]))
        for snapshot in one.take_snapshots():
            writer.begin(snapshot)
            for written in writer.finish():
                one.core.checkpointed(written, 1.0)
    writer.close()
    assert [path.name for path in (tmp_path / "checkpoints").glob("[!.]*")] == ["round-00000009.shard-0-of-1"]
    assert one.ask(b"eye", m.Checkpoint(9)) == m.Checkpointed("round-00000009")
    assert code(one.ask(b"eye", m.Checkpoint(3))) == "not-ready"


def test_a_disk_that_refuses_is_told_to_those_who_asked_and_the_run_goes_on(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    number = one.send(b"eye", m.Checkpoint(1))
    (snapshot,) = one.take_snapshots()
    one.carry_out(one.core.checkpointed(WriteResult(snapshot.label, error=OutputError("no space left")), 1.0))
    assert code(one.reply(b"eye", number)) == "output"
    assert one.events("failed") == []
    assert one.state.over is None


@pytest.mark.parametrize("options", [MINIBATCH, ASYNC, {}])
def test_requests_for_checkpoints_do_not_fill_the_memory(dataset: Dataset, options: dict[str, Any]) -> None:
    one = shard(dataset, epochs=100, **options)
    replies = []
    for round in range(10, 60):
        replies.append(one.ask(b"eye", m.Checkpoint(round)))
        one.now += cuts.REQUEST_EVERY_S
    assert replies[: cuts.MAX_REQUESTED] == [None] * cuts.MAX_REQUESTED
    assert {code(reply) for reply in replies[cuts.MAX_REQUESTED :]} == {"not-ready"}
    for snapshot in one.take_snapshots():
        one.core.checkpointed(WriteResult(snapshot.label), 1.0)
        assert one.ask(b"eye", m.Checkpoint(70)) is None


def test_a_checkpoint_needs_a_session(dataset: Dataset) -> None:
    one = without_sessions(dataset)
    assert code(one.ask(b"eye", m.Checkpoint(2))) == "unknown-session"
    assert one.take_snapshots() == []


@pytest.mark.parametrize("options", [MINIBATCH, {}])
def test_a_storm_of_requests_writes_one_checkpoint_a_second(dataset: Dataset, options: dict[str, Any]) -> None:
    """8 s of such requests wrote 343 MB."""
    one = shard(dataset, epochs=100, **options)
    storm = Rounds(one) if not options else None
    labels = set()
    for number in range(100):
        one.send(b"eye", m.Checkpoint(number if options else -1))
        one.now += cuts.REQUEST_EVERY_S / 20
        if storm is not None:
            storm.push_before(number + 1)
        for snapshot in one.take_snapshots():
            labels.add(snapshot.label)
            one.carry_out(one.core.checkpointed(WriteResult(snapshot.label), one.now))
    assert len(labels) == 5
    codes = {code(replies[-1]) for (peer, _), replies in one.inbox.items() if peer == b"eye"}
    assert codes == ({"", "limit"} if options else {""}), "requests for any soon one share the newest"


def test_requests_do_not_keep_automatic_checkpoints_from_being_written(dataset: Dataset) -> None:
    one = shard(dataset, checkpoint_every=1, epochs=10)
    rounds = Rounds(one)
    for last in (29, 30, 28):
        one.send(b"eye", m.Checkpoint(last))
        one.now += cuts.REQUEST_EVERY_S
    rounds.push_before(4)
    assert [snapshot.label for snapshot in one.take_snapshots()] == ["round-00000003"]


def test_those_who_ask_for_the_same_cut_are_many_but_not_endless(dataset: Dataset) -> None:
    one = shard(dataset)
    replies = [one.ask(b"eye", m.Checkpoint(2)) for _ in range(cuts.MAX_REQUESTS + 10)]
    assert [code(reply) for reply in replies[-10:]] == ["not-ready"] * 10


def test_no_client_waits_for_a_cut_that_will_not_come(dataset: Dataset) -> None:
    one = shard(dataset)
    number = one.send(b"eye", m.Checkpoint(3))
    one.ask(b"eye", m.Finish(Ending.ASKED))
    assert code(one.reply(b"eye", number)) == "finishing"
    assert code(one.ask(b"eye", m.Checkpoint(3))) == "finishing"


@quick(30)
@given(st.lists(st.integers(0, 99), min_size=0, max_size=60))
@example([0] * 60)  # one partition goes through all its rounds before the next begins
def test_automatic_cuts_are_the_same_on_every_shard(dataset: Dataset, order: list[int]) -> None:
    """Each shard sees another interleaving; all must plan the same rounds, or a checkpoint misses parts."""
    found = []
    for number in range(2):
        one = shard(dataset, number=number, shards=2, epochs=4, checkpoint_every=1)
        rounds, snapshots = Rounds(one), []
        for choice in [*order[number * 7 :], *range(200)]:
            if rounds.open():
                rounds.push(rounds.open()[choice % len(rounds.open())])
            for snapshot in one.take_snapshots():
                snapshots.append(snapshot.label)
                np.testing.assert_array_equal(snapshot.rows[:, 0], expected(one, snapshot.facts["round"]))
        found.append(sorted(snapshots))
    assert found == [["round-00000003", "round-00000006", "round-00000009"]] * 2


def test_minibatches_are_kept_after_every_so_many_epochs_of_gradients_on_every_shard(dataset: Dataset) -> None:
    """Gradients come in another order to each shard, and one that goes on from a checkpoint keeps to the numbers."""
    every = -(-dataset.total_entries // 8)
    for number in range(2):
        one = shard(dataset, number=number, shards=2, epochs=100, batch_size=8, checkpoint_every=1, **MINIBATCH)
        labels = []
        for worker in (0, 1):
            one.hello(f"w{worker}", worker=worker)
        for step in range(3 * every):
            worker, sequence = (step + number) % 2, step // 2 + 1
            none = np.zeros((0, one.state.table.parameters))
            reply = one.ask(f"w{worker}".encode(), push("gradient", none, rows=[], sequence=sequence, rate=0.1))
            assert isinstance(reply, m.Applied)
            for snapshot in one.take_snapshots():
                labels.append((snapshot.label, snapshot.facts["gradients"]))
                one.core.checkpointed(WriteResult(snapshot.label), 1.0)
        assert labels == [(f"update-{count:08d}", count) for count in (every, 2 * every, 3 * every)]


def test_after_a_disk_was_too_slow_checkpoints_are_taken_again(dataset: Dataset) -> None:
    """Seen to fail: after the first that was skipped, none was taken to the end of the run."""
    one = shard(dataset, epochs=60, checkpoint_every=1)
    rounds, found = Rounds(one), []
    for epoch in range(1, 60):
        rounds.push_before(epoch * rounds.order.partitions + 1)
        if epoch >= 20:  # before, nothing is written
            for snapshot in one.take_snapshots():
                one.core.checkpointed(WriteResult(snapshot.label), 1.0)
                found.append(snapshot.facts["round"] // rounds.order.partitions)
    assert found[: cuts.MAX_UNWRITTEN] == [1, 2, 3, 4]
    assert found[-20:] == list(range(40, 60)), "it is in time again"


PERIODS, HICCUPS = 4000, (17, 4)


@pytest.mark.parametrize("slow", [(1, 1), (3, 5), (7, 7), (30, 20), (100, 1), (90, 200)])
def test_shards_that_cannot_keep_up_skip_the_same_checkpoints(dataset: Dataset, slow: tuple[int, int]) -> None:
    """A write takes `slow` periods. Seen to fail: of two shards that took 7, none had a checkpoint of the other's."""
    both = [without_sessions(dataset, number=number, shards=2, checkpoint_every=1, **MINIBATCH) for number in range(2)]
    every = both[0].state.identity.checkpoint_rounds
    queues: list[list[str]] = [[], []]
    taken: list[set[str]] = [set(), set()]
    free_at, common = list(HICCUPS), [0]
    for period in range(1, PERIODS):
        for number, one in enumerate(both):
            if queues[number] and period >= free_at[number]:
                one.state.cuts.mark_written(WriteResult(queues[number].pop(0)))
                free_at[number] = period + slow[number]
            one.state.cuts.updates_applied(period * every)
            labels = [snapshot.label for snapshot in one.state.cuts.take_ready()]
            queues[number] += labels
            taken[number].update(labels)
        if f"update-{period * every:08d}" in taken[0] & taken[1]:
            common.append(period)
    assert max(np.diff([*common, PERIODS])) <= 8 * max(*slow, *HICCUPS), "periods without a checkpoint of both"
    if slow == (1, 1):
        assert common[-100:] == list(range(PERIODS - 100, PERIODS)), "both are in time, and skip none any more"


@pytest.mark.parametrize(("every", "local_epochs", "sweeps"), [(1, 1, 1), (3, 1, 3), (1, 2, 1), (3, 2, 2), (4, 2, 2)])
def test_automatic_checkpoints_come_after_whole_sweeps(
    dataset: Dataset, every: int, local_epochs: int, sweeps: int
) -> None:
    """In the middle of a sweep a partition may be past the round, and a checkpoint would be skipped."""
    one = without_sessions(dataset, checkpoint_every=every, epochs=12, local_epochs=local_epochs)
    assert one.state.identity.checkpoint_rounds == sweeps * dataset.layout.partitions


@quick(20)
@given(st.lists(st.integers(0, 99), max_size=40))
def test_blocks_in_any_order_are_cut_when_the_rounds_before_are_in_every_table(
    dataset: Dataset, order: list[int]
) -> None:
    """Shard 0 knows it from the reports, the other one from the next push; blocks done in any order."""
    options = {"epochs": 4, "checkpoint_every": 1, **ASYNC}
    both = [shard(dataset, number=number, shards=2, **options) for number in range(2)]
    tables = [one.state.table.values for one in both]
    for table in tables:
        table[:] = 0
    for one in both:
        one.hello("w0", worker=0)
    tickets, held, reports, low_water, found = 0, [], 0, 0, [[], []]
    pushed, waits = [0, 0], None
    for choice in [*order, *range(400)]:
        hungry = not held or (choice % 2 and len(held) < 3)
        if hungry and waits is None:
            tickets += 1
            waits = both[0].send(b"w0", m.Lease(tickets))
        asked = None if waits is None else both[0].reply(b"w0", waits)
        if isinstance(asked, m.Granted):
            waits = None
            held.append(asked)
            low_water = asked.low_water
        elif held:
            done = held.pop(choice % len(held))
            reports += 1
            receipt = 0
            for number, one in enumerate(both):
                pushed[number], given = add_rounds(one, done, pushed[number], low_water)
                receipt ^= given
            assert isinstance(both[0].ask(b"w0", report(reports, done.lease, receipt=receipt)), m.Recorded)
        for one, mine in zip(both, found, strict=True):
            for snapshot in one.take_snapshots():
                mine.append(snapshot.label)
                np.testing.assert_array_less(visits_before(one, snapshot.facts["round"]) - 1, snapshot.rows[:, 0])
                one.core.checkpointed(WriteResult(snapshot.label), 1.0)
    assert found == [["round-00000003", "round-00000006", "round-00000009"]] * 2
    assert both[0].core.final().facts["round"] == 12
    for one, table in zip(both, tables, strict=True):
        np.testing.assert_array_equal(table[:, 0], visits_before(one, 12))


def visits_before(of: Shard, round: int) -> np.ndarray:
    """How many of the rounds before `round` change each row of a shard."""
    bounds = np.array(of.dataset.layout.bounds)
    partitions = np.searchsorted(bounds, np.arange(of.state.table.first, of.state.table.last), "right") - 1
    strips = np.array([rounds_of(of).strip(earlier) for earlier in range(round)])
    return (strips[:, None] >= partitions).sum(axis=0)


def add_rounds(of: Shard, done: m.Granted, sequence: int, low_water: int) -> tuple[int, int]:
    """Add one to every row of a strip that this shard has, two at a time; the last sequence, and the receipts."""
    table, receipt = of.state.table, 0
    for partition in rounds_of(of).visits(done.round):
        first, last = span(of, partition)
        for low in range(first, last, 2):
            high, sequence = min(low + 2, last), sequence + 1
            values = np.ones((high - low, table.values.shape[1]), np.float32)
            added = push("add", values, low, high, sequence=sequence, version=done.round, low_water=low_water)
            reply = of.ask(b"w0", leased(added, lease=done.lease))
            assert isinstance(reply, m.Applied)
            assert bool(reply.receipt) == (high == last)
            receipt ^= reply.receipt
    return sequence, receipt


def test_of_minibatches_every_shard_calls_a_checkpoint_by_the_number_that_it_is_asked_with(dataset: Dataset) -> None:
    """A client that asks again hears of what was done: it may have been answered on one shard and not on the other."""
    both = [shard(dataset, number=number, shards=2, **MINIBATCH) for number in range(2)]

    def taken(one: Shard) -> list[str]:
        labels = [snapshot.label for snapshot in one.take_snapshots()]
        for label in labels:
            one.carry_out(one.core.checkpointed(WriteResult(label), 1.0))
        return labels

    for asked in ((70, 70), (5,)):
        for round in asked:
            for one in both:
                one.now += cuts.REQUEST_EVERY_S
                one.send(b"eye", m.Checkpoint(round), round)
        both[0].send(b"eye", m.Checkpoint(asked[0]), asked[0] + 2)
        assert [taken(one) for one in both] == [[f"asked-000000-{asked[0]:010d}"]] * 2
    both[0].send(b"eye", m.Checkpoint(70), 70)  # its answer was lost
    for asked in (70, 72):
        assert both[0].reply(b"eye", asked) == m.Checkpointed("asked-000000-0000000070")
    assert taken(both[0]) == []
    assert code(both[0].ask(b"eye", m.Checkpoint(-1))) == "bad-request"
    again = shard(dataset, generation=1, **MINIBATCH)
    again.send(b"eye", m.Checkpoint(70))
    assert taken(again) == ["asked-000001-0000000070"]


def test_of_minibatches_a_checkpoint_is_the_rows_as_they_are(dataset: Dataset) -> None:
    one = shard(dataset, **MINIBATCH)
    one.send(b"eye", m.Checkpoint(1))
    (snapshot,) = one.take_snapshots()
    before = one.state.table.values.copy()
    one.state.table.values[:] = 0
    np.testing.assert_array_equal(snapshot.rows, before)
    assert snapshot.facts["round"] == -1
    assert snapshot.facts["rows"] == [0, 25]
