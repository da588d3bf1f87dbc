"""Waiting requests are looked at only when their condition was woken, in order, bounded; replies wait for rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import MINIBATCH, Shard, applied, assign, pull, push, rounds_of, shard, trained
from strategies import quick

from glovewire.common.endings import Ending
from glovewire.common.errors import LimitExceeded
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.core import waiting
from glovewire.server.core.state import NetworkCounts
from glovewire.server.core.waiting import Condition, Outgoing, Replies, Round, WaitingRequest, WaitingRequests
from glovewire.server.sessions import Session

PEER, OTHER = b"w0", b"w1"
ROWS = m.Rows(1, np.zeros((1, 4), np.float32))
FINISHING = m.Refused("finishing", "complete")
IN = applied(1, 1)
DONE = m.Done(Ending.COMPLETE)


def session(peer: bytes = PEER) -> Session:
    return Session(peer.decode(), 1, "worker", 0, peer, 0.0, 0.0)


def lease(number: int, of: Session, condition: Condition | Round = Condition.LEASE) -> WaitingRequest:
    return WaitingRequest(of.peer, number, of, m.Lease(number), condition)


def looked_at(requests: WaitingRequests, *, answered: tuple[int, ...] = ()) -> list[int]:
    """Numbers of the requests that are looked at now, in their order."""
    seen: list[int] = []

    def answer(request: WaitingRequest) -> m.Message | None:
        seen.append(request.number)
        return DONE if request.number in answered else None

    assert [request.number for request, _ in requests.retry(answer)] == [n for n in seen if n in answered]
    return seen


def test_a_repeat_waits_once_and_answers_come_in_the_order_of_arrival() -> None:
    requests, one = WaitingRequests(), session()
    for number in (3, 1, 3, 2, 1):
        requests.add(lease(number, one))
    assert len(requests) == 3
    requests.wake_all()
    assert looked_at(requests, answered=(2, 3)) == [3, 1, 2]
    assert len(requests) == 1


def test_only_requests_of_a_woken_condition_are_looked_at_and_once() -> None:
    requests, one = WaitingRequests(), session()
    for number, condition in enumerate((Condition.ROWS, Round(0, 1), Condition.LEASE, Round(1, 1), Condition.ROWS)):
        requests.add(lease(number, one, condition))
    assert looked_at(requests) == []
    requests.wake(Round(1, 1))
    requests.wake(Round(1, 2))
    requests.wake(Condition.ROWS)
    requests.wake(Condition.ROWS)
    requests.add(lease(9, one, Condition.ROWS))  # it was looked at when it came
    assert looked_at(requests) == [0, 3, 4]
    assert looked_at(requests) == []
    requests.add(lease(10, one, Condition.VALUES), woken=True)
    assert looked_at(requests) == [10]
    assert requests.looks == 4


def test_what_an_answer_wakes_is_looked_at_too() -> None:
    requests, one = WaitingRequests(), session()
    requests.add(lease(1, one, Condition.ROWS))
    requests.add(lease(2, one, Condition.LEASE))

    def answer(request: WaitingRequest) -> m.Message:
        requests.wake(Condition.LEASE)
        return DONE

    requests.wake(Condition.ROWS)
    assert [request.number for request, _ in requests.retry(answer)] == [1, 2]


def test_requests_go_with_their_session_or_connection() -> None:
    requests, one, other = WaitingRequests(), session(), session(OTHER)
    requests.add(lease(1, one))
    requests.add(lease(2, other))
    one.peer = b"again"
    requests.add(lease(1, one))
    requests.drop(one, kept=b"again")
    assert len(requests) == 2
    requests.drop(one)
    requests.remove(b"absent", 7)
    requests.wake_all()
    assert looked_at(requests) == [2]


def rows_pull(number: int, of: Session, rows: int, version: int = 0) -> WaitingRequest:
    return WaitingRequest(of.peer, number, of, pull(rows=[0] * rows, version=version), Condition.ROWS)


def test_no_session_takes_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING_PER_SESSION", 4)
    requests, greedy = WaitingRequests(), session(b"g")
    for number in range(4):
        requests.add(lease(number, greedy))
    with pytest.raises(LimitExceeded, match="4 of your requests"):
        requests.add(lease(4, greedy))
    for number in range(6):
        requests.add(lease(number, session(b"%d" % number)))
    requests.remove(b"g", 2)
    requests.add(lease(4, greedy))


def test_requests_that_wait_hold_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single one is always taken: an honest worker needs no more in the modes that pull rows by number."""
    monkeypatch.setattr(waiting, "SESSION_BYTES", 80)
    monkeypatch.setattr(waiting, "TOTAL_BYTES", 200)
    requests, greedy = WaitingRequests(), session(b"g")
    requests.add(rows_pull(1, greedy, 5))
    requests.add(rows_pull(2, greedy, 5))
    requests.add(rows_pull(2, greedy, 5))
    with pytest.raises(LimitExceeded, match="already hold 0 MiB"):
        requests.add(rows_pull(3, greedy, 1))
    big = session(b"big")
    requests.add(lease(7, big))
    requests.add(rows_pull(1, big, 100))
    requests.add(lease(8, big))
    more = session(b"more")
    requests.add(rows_pull(1, more, 1))
    with pytest.raises(LimitExceeded):
        requests.add(rows_pull(2, more, 1))
    requests.add(lease(3, more))
    requests.drop(greedy)
    requests.remove(b"big", 1)
    requests.add(rows_pull(4, more, 1))
    declared = m.Create(np.zeros(200, np.uint8))
    requests.add(WaitingRequest(big.peer, 1, big, declared, Condition.VALUES))
    with pytest.raises(LimitExceeded):
        requests.add(WaitingRequest(big.peer, 2, big, declared, Condition.VALUES))


def test_replies_are_made_a_few_mebibytes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """255 pulls of one session took 680 MB at once."""
    monkeypatch.setattr(waiting, "REPLY_BYTES", 2 * ROWS.values.nbytes)
    requests, one = WaitingRequests(), session()
    for number in range(5):
        requests.add(rows_pull(number, one, 1))
    requests.wake_all()
    rounds = []
    while requests.has_woken:
        rounds.append([request.number for request, _ in requests.retry(lambda _: ROWS)])
    assert rounds == [[0, 1], [2, 3], [4]]


def test_of_equal_pulls_of_a_session_that_must_wait_one_is_tried() -> None:
    requests, one, other = WaitingRequests(), session(), session(OTHER)
    for number in range(20):
        requests.add(rows_pull(number, one, 1, version=number // 10))
    requests.add(rows_pull(20, other, 1))
    requests.wake(Condition.ROWS)
    assert looked_at(requests) == [0, 10, 20]
    requests.wake(Condition.ROWS)
    assert looked_at(requests, answered=(*range(5), 20)) == [0, 1, 2, 3, 4, 5, 10, 20]


# ---- what the core looks at, and when


def looks(of: Shard, peer: bytes, message: m.Message) -> int:
    """How often waiting requests were looked at because of a message."""
    before = of.state.waiting.looks
    of.send(peer, message)
    return of.state.waiting.looks - before


def test_a_pull_of_a_later_round_is_looked_at_when_its_own_partition_changes(dataset: Dataset) -> None:
    one = shard(dataset)
    one.hello("a")
    one.hello("b")
    visit = rounds_of(one).next_visit(1, 0)
    bounds = dataset.layout.bounds
    waits = [one.send(b"b", pull(first, last, visit + 1)) for first, last in pairwise(bounds[:3])]
    for _ in range(5):
        assert looks(one, b"a", m.Heartbeat()) == 0
        assert looks(one, b"eye", m.GetStatus()) == 0
    one.tick(1.0)
    assert one.state.waiting.looks == 0
    assert looks(one, b"a", assign(one, 1, 1, visit, 5.0)) == 1
    assert [one.reply(b"b", number) is not None for number in waits] == [False, True]
    assert looks(one, b"a", assign(one, 1, 1, visit, 5.0)) == 0, "a repeat changes nothing"


def test_pulls_of_later_rounds_cost_a_push_nothing(dataset: Dataset) -> None:
    """4,096 of them made a run ten times as slow, because every push tried those of its partition."""
    one = shard(dataset)
    one.hello("a")
    first, last = dataset.layout.span(0)
    for name in ("b", "c", "d"):
        one.hello(name)
        for version in range(2, waiting.MAX_WAITING_PER_SESSION + 2):
            one.send(name.encode(), pull(first, last, version))
    assert looks(one, b"a", assign(one, 1, 0, 0, 5.0)) == 0
    assert looks(one, b"a", assign(one, 2, 0, 1, 5.0)) == 3
    assert looks(one, b"a", assign(one, 3, 0, 2, 5.0)) == 3


def test_a_lease_is_looked_at_when_a_strip_is_reported_or_given_back(dataset: Dataset) -> None:
    one = shard(dataset)
    for name in ("a", "b"):
        one.hello(name)
        one.state.progress.patience.reported(name)
    first, other, last = one.ask(b"a", m.Lease(1)), one.ask(b"b", m.Lease(1)), one.ask(b"a", m.Lease(2))
    assert isinstance(first, m.Granted)
    assert isinstance(other, m.Granted)
    assert isinstance(last, m.Granted)
    waits = one.send(b"a", m.Lease(3))
    assert one.reply(b"a", waits) is None
    assert one.state.waiting.looks == 0
    for sequence, partition in enumerate(rounds_of(one).visits(first.round), 1):
        done = assign(one, sequence, partition, 0, 1.0, lease=first.lease)
        assert looks(one, b"a", done) == 0, "a push frees no strip"
    assert looks(one, b"a", trained(1, first, one)) == 1
    assert isinstance(one.reply(b"a", waits), m.Granted)
    again = one.send(b"a", m.Lease(4))
    assert one.reply(b"a", again) is None
    assert looks(one, b"b", m.Leave(Ending.LEFT)) == 1
    freed = one.reply(b"a", again)
    assert isinstance(freed, m.Granted)
    assert freed.round == other.round


def test_workers_in_step_are_looked_at_once_a_step(dataset: Dataset) -> None:
    """Not after each of their pushes: none of them is free before the last one has come."""
    workers = 8
    one = shard(dataset, workers=workers, epochs=100, **{**MINIBATCH, "consistency": "sync"})
    names = [f"w{n}" for n in range(workers)]
    for name in names:
        one.hello(name)
    for step in range(3):
        before = one.state.waiting.looks
        for name in names:
            gradient = push("gradient", np.zeros((0, one.state.table.parameters)), rows=[], sequence=step + 1,
                            version=step, then_pull=True, rate=0.1)  # fmt: skip
            number = one.send(name.encode(), gradient)
        assert isinstance(one.reply(names[-1].encode(), number), m.Rows)
        assert one.state.waiting.looks - before == workers - 1
        assert len(one.state.waiting) == 0


class Crowd:
    """Three workers that do any of what they may do next."""

    def __init__(self, of: Shard) -> None:
        self.shard, self.incarnation = of, 0
        self.of: dict[int, dict[str, Any]] = {}

    def act(self, worker: int, choice: int) -> None:
        if (own := self.of.get(worker)) is None:
            self.incarnation += 1
            own = self.of[worker] = {"pushed": 0, "ticket": 0, "reported": 0, "held": [], "asked": None}
            welcome = self.shard.hello(f"w{worker}", incarnation=self.incarnation)
            assert isinstance(welcome, m.Welcome)
            own["number"] = welcome.worker
            return
        peer = f"w{worker}".encode()
        if own["asked"] is not None and isinstance(reply := self.shard.reply(peer, own["asked"]), m.Granted):
            own["asked"] = own["held"].append(reply)
        (self.block if self.shard.state.cuts.in_order else self.step)(own, peer, choice)
        if choice == 9:
            self.shard.ask(peer, m.Leave(Ending.LEFT))
            del self.of[worker]

    def block(self, own: dict[str, Any], peer: bytes, choice: int) -> None:
        bounds, rounds = self.shard.dataset.layout.bounds, self.shard.state.consistency.rounds  # type: ignore[attr-defined]
        partition = choice % 3
        if choice < 3:
            self.shard.send(peer, pull(bounds[partition], bounds[partition + 1], int(rounds[partition]) + 1))
        elif choice < 5 and own["asked"] is None:
            own["ticket"] += 1
            own["asked"] = self.shard.send(peer, m.Lease(own["ticket"]))
        elif choice < 7 and own["held"]:
            own["reported"] += 1
            self.shard.ask(peer, trained(own["reported"], own["held"].pop(), self.shard, 1))
        elif choice < 9:
            done = assign(self.shard, own["pushed"] + 1, partition, int(rounds[partition]), 1.0, worker=own["number"])
            own["pushed"] += isinstance(self.shard.ask(peer, done), m.Applied)  # unless the round is complete

    def step(self, own: dict[str, Any], peer: bytes, choice: int) -> None:
        if choice < 4:
            self.shard.send(peer, pull(rows=[choice]))
            return
        version = self.shard.state.consistency.version(0) - (choice == 4)
        gradient = push("gradient", np.zeros((0, self.shard.state.table.parameters)), rows=[], rate=0.1,
                        sequence=own["pushed"] + 1, version=version, then_pull=choice % 2)  # fmt: skip
        self.shard.send(peer, gradient)
        own["pushed"] = next(s.pushed for s in self.shard.state.sessions.workers if s.peer == peer)


@pytest.mark.parametrize("consistency", ["exclusive", "async", "sync", "ssp:1", "softsync:2"])
@quick(40)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=10, max_size=60))
def test_nothing_waits_that_could_be_answered(dataset: Dataset, consistency: str, steps: list[tuple[int, int]]) -> None:
    """Every request is looked at after every message here, as if all conditions had been woken: none has an answer."""
    options = {"consistency": consistency} if consistency == "exclusive" else {**MINIBATCH, "consistency": consistency}
    one = shard(dataset, epochs=50, workers=3, lease_s=1e6, **options)
    crowd = Crowd(one)
    for worker, choice in steps:
        crowd.act(worker, choice)
        one.tick(0.001)  # what is held back is sent
        waiting = len(one.state.waiting)
        one.state.waiting.wake_all()
        assert one.core.tick(one.now, NetworkCounts()).replies == []
        assert len(one.state.waiting) == waiting


def test_the_end_of_the_run_frees_everything(tmp_path: Path, dataset: Dataset) -> None:
    one = shard(dataset)
    one.hello("a")
    one.hello("b")
    numbers = [one.send(b"b", pull(0, 8, version)) for version in (1, 2, 3)]
    one.ask(b"a", m.Finish(Ending.FAILED, "the loss became nan"))
    replies: list[Any] = [one.reply(b"b", number) for number in numbers]
    assert {(reply.code, reply.ending, reply.text) for reply in replies} == {
        ("finishing", Ending.FAILED, "the loss became nan")
    }
    assert len(one.state.waiting) == 0


# ---- replies


def held() -> Replies:
    """Replies after the push of PEER, under number 7, whose rows are still to come."""
    replies = Replies()
    replies.hold(Outgoing(PEER, 7, IN))
    return replies


def kinds(replies: Replies) -> list[type[m.Message]]:
    return [type(each.message) for each in replies.take()]


def test_rows_that_come_soon_are_the_only_answer() -> None:
    replies = held()
    assert kinds(replies) == []
    replies.send(Outgoing(PEER, 7, ROWS))
    replies.release()
    assert kinds(replies) == [m.Rows]


def test_who_would_wait_longer_is_told_once_that_the_push_is_in() -> None:
    replies = held()
    replies.release()
    assert kinds(replies) == [m.Applied]
    replies.release()
    replies.send(Outgoing(PEER, 7, ROWS))
    assert kinds(replies) == [m.Rows]


def test_what_refuses_the_rows_comes_behind_the_word_that_the_push_is_in() -> None:
    """A client takes the first answer for what became of its push."""
    replies = held()
    replies.send(Outgoing(PEER, 7, FINISHING))
    assert kinds(replies) == [m.Applied, m.Refused]


@pytest.mark.parametrize(("peer", "number"), [(OTHER, 7), (PEER, 8)])
def test_rows_for_another_request_say_nothing_of_this_one(peer: bytes, number: int) -> None:
    replies = held()
    replies.send(Outgoing(peer, number, ROWS))
    assert kinds(replies) == [m.Rows]
    replies.release()
    assert kinds(replies) == [m.Applied]
