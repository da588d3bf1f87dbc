"""What workers may have on their way: together never more than the whole, an even share once all have heard of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import MINIBATCH, Shard, add, in_memory, push, shard
from strategies import quick

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.server.limits import TOTAL_CREDIT_BYTES, WORKER_CREDIT_BYTES, Credit

MANY = 50


@quick(100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, MANY)), min_size=40))
def test_promises_never_come_to_more_than_the_whole(steps: list[tuple[bool, int]]) -> None:
    credit = Credit()
    told: dict[int, int] = {}
    for leaves, worker in steps:
        if leaves:
            credit.take_back(worker)
            told.pop(worker, None)
        else:
            told[worker] = credit.grant(worker)
        assert all(0 <= each <= WORKER_CREDIT_BYTES for each in told.values())
        assert sum(told.values()) <= TOTAL_CREDIT_BYTES
    for _ in range(2):
        told = {worker: credit.grant(worker) for worker in told}
    assert set(told.values()) <= {min(WORKER_CREDIT_BYTES, TOTAL_CREDIT_BYTES // max(len(told), 1))}


def test_who_looks_on_has_no_share() -> None:
    credit = Credit()
    assert credit.grant(-1) == 0
    assert [credit.grant(worker) for worker in range(16)] == [WORKER_CREDIT_BYTES] * 16


@pytest.fixture
def crowd(tmp_path: Path) -> tuple[Shard, dict[str, int]]:
    """A shard with many workers, and the credit that each was welcomed with."""
    one = shard(in_memory(tmp_path / "d"), **MINIBATCH)
    return one, {f"w{n}": credit_of(one.hello(f"w{n}")) for n in range(MANY)}


def credit_of(reply: m.Message | None) -> int:
    assert isinstance(reply, m.Welcome | m.Applied), reply
    return reply.credit


def test_workers_hear_of_their_share_when_they_join_and_with_every_push(crowd: tuple[Shard, dict[str, int]]) -> None:
    one, told = crowd
    for sequence in (1, 2):
        for name in told:
            told[name] = credit_of(one.ask(name.encode(), add(one, sequence)))
            assert sum(told.values()) <= TOTAL_CREDIT_BYTES
    assert set(told.values()) == {TOTAL_CREDIT_BYTES // MANY}


def test_what_those_who_left_had_goes_to_the_others(crowd: tuple[Shard, dict[str, int]]) -> None:
    one, told = crowd
    for name in list(told)[4:]:
        one.ask(name.encode(), m.Leave(Ending.LEFT))
    assert [credit_of(one.ask(name.encode(), add(one, 1))) for name in list(told)[:4]] == [WORKER_CREDIT_BYTES] * 4


def test_a_push_that_was_there_before_or_may_be_answered_by_rows_alone_promises_nothing_that_is_not_told(
    crowd: tuple[Shard, dict[str, int]],
) -> None:
    one, told = crowd
    both = push("add", add(one, 1).values, 0, 2, sequence=1, then_pull=True)
    number = one.send(b"w0", both)
    assert told["w0"] == one.state.pull_push.credit.of(0) == WORKER_CREDIT_BYTES
    assert isinstance(one.reply(b"w0", number), m.Rows)
    assert credit_of(one.ask(b"w0", add(one, 1))) == TOTAL_CREDIT_BYTES // MANY, "a repeat"
