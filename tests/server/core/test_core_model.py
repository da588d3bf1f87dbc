"""The core against a simple model: random workers that push, repeat, lose their connection, vanish and come back.

The server, too, may be gone at any moment, and begins again with the rows that were saved last and nothing else.

The model is a plain array and a dict of what each worker has been told. Whatever the interleaving, the table is the
sum of the pushes that were acknowledged as new, and the counters reconcile.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from shards import MINIBATCH, Shard, add, code, pull, shard
from strategies import quick

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset

LEASE_S = 10.0
NAMES = ("a", "b", "c")


class Model(RuleBasedStateMachine):
    """Three workers of one shard in asynchronous mode, without blocks: those are in test_core_liars."""

    dataset: Dataset

    @initialize()
    def start(self) -> None:
        self.begin(0.0)
        self.table = self.shard.state.table.values.astype(np.float64)
        self.save()

    def begin(self, now: float) -> None:
        """A server without sessions, and a model of it."""
        self.shard: Shard = shard(self.dataset, lease_s=LEASE_S, epochs=1000, batch_size=1, now=now, **MINIBATCH)
        self.peer: dict[str, bytes] = {}  # who has a session, and from where it speaks
        self.pushed = dict.fromkeys(NAMES, 0)
        self.heard: dict[str, float] = {}
        self.incarnation = dict.fromkeys(NAMES, 1)
        self.ended = dict.fromkeys(NAMES, False)
        self.connections = self.applied = self.repeated = self.refused = self.pulls = 0
        self.over = False

    # ---- coming and going

    @rule()
    def save(self) -> None:
        """What a checkpoint keeps."""
        self.saved = self.shard.state.table.values.copy()

    @precondition(lambda self: self.peer and not self.over)
    @rule(chance=st.integers(0, 4))
    def the_server_begins_again(self, chance: int) -> None:
        if chance:
            return
        gone = dict(self.peer)
        self.begin(self.shard.now)
        self.shard.state.table.values[:] = self.saved
        self.table = self.saved.astype(np.float64)
        for peer in gone.values():
            assert code(self.shard.ask(peer, m.Heartbeat())) == "unknown-session"

    @rule(name=st.sampled_from(NAMES), restarted=st.booleans())
    def hello(self, name: str, restarted: bool) -> None:
        """A first hello, one after a cut connection, or one of a new process."""
        self.connections += 1
        peer = b"%s-%d" % (name.encode(), self.connections)
        if (name in self.peer and restarted) or self.ended[name]:
            if self.ended[name] and not self.over:
                assert code(self.shard.hello(name, peer=peer, incarnation=self.incarnation[name])) == "unknown-session"
            self.incarnation[name] += 1
            if name in self.peer:
                self.shard.core.disconnected(self.peer[name])
        reply = self.shard.hello(name, peer=peer, incarnation=self.incarnation[name])
        if self.over:
            assert code(reply) == "finishing"
            return
        assert isinstance(reply, m.Welcome)
        if name not in self.peer or restarted:
            self.forget(name)
        self.ended[name] = False
        self.peer[name], self.heard[name] = peer, self.shard.now

    @precondition(lambda self: self.peer)
    @rule(data=st.data())
    def bye(self, data: st.DataObject) -> None:
        name = self.any_name(data)
        assert self.shard.ask(self.peer[name], m.Leave(Ending.LEFT)) == m.Left()
        self.forget(name)
        self.ended[name] = True
        del self.peer[name]

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.shard.tick(seconds)
        for name in [name for name in self.peer if self.heard[name] < self.shard.now - LEASE_S]:
            peer = self.peer.pop(name)
            self.forget(name)
            self.ended[name] = True
            assert code(self.shard.ask(peer, m.Heartbeat())) == "unknown-session"

    # ---- pushing and pulling

    @precondition(lambda self: self.peer)
    @rule(
        data=st.data(), ahead=st.sampled_from([1, 1, 1, 0, -1, 2, 5]), first=st.integers(0, 20), rows=st.integers(1, 5),
        then_pull=st.booleans(),
    )  # fmt: skip
    def push(self, data: st.DataObject, ahead: int, first: int, rows: int, then_pull: bool) -> None:
        """The next push, a repeat of an earlier one, or one that overtook others; perhaps it asks for rows."""
        name = self.any_name(data)
        sequence = self.pushed[name] + ahead
        if sequence < 1:
            return
        push = dataclasses.replace(add(self.shard, sequence, 1.0, first, first + rows), then_pull=then_pull)
        replies = self.shard.inbox[self.peer[name], self.shard.send(self.peer[name], push)]
        if ahead > 1:
            assert [code(reply) for reply in replies] == ["out-of-order"]
            self.refused += 1
            return
        if ahead == 1:
            self.table[first : first + rows] += 1.0
            self.pushed[name] += 1
            self.applied += 1
        else:
            self.repeated += 1
        if then_pull:
            self.has_pulled(replies.pop(), first, rows)
        for reply in replies:
            assert isinstance(reply, m.Applied)
            assert (reply.sequence, reply.repeated) == (sequence, ahead < 1)
        assert len(replies) == (self.over or not then_pull)

    @precondition(lambda self: self.peer)
    @rule(data=st.data(), first=st.integers(0, 20), rows=st.integers(0, 5))
    def pull(self, data: st.DataObject, first: int, rows: int) -> None:
        name = self.any_name(data)
        self.has_pulled(self.shard.ask(self.peer[name], pull(first, first + rows)), first, rows)

    def has_pulled(self, reply: m.Message | None, first: int, rows: int) -> None:
        if self.over:
            assert code(reply) == "finishing"
        else:
            assert isinstance(reply, m.Rows)
            self.pulls += 1
            assert reply.version == self.applied
            np.testing.assert_allclose(reply.values, self.table[first : first + rows], rtol=1e-5)

    @precondition(lambda self: not self.over)
    @rule(chance=st.integers(0, 9))
    def finish(self, chance: int) -> None:
        if chance == 0:
            assert isinstance(self.shard.ask(b"anyone", m.Finish(Ending.ASKED)), m.Finishing)
            self.over = True

    # ---- what always holds

    @invariant()
    def the_table_is_the_sum_of_what_was_acknowledged(self) -> None:
        np.testing.assert_allclose(self.shard.state.table.values, self.table, rtol=1e-5)

    @invariant()
    def counters_reconcile(self) -> None:
        total = self.shard.state.push_counts.total
        assert (total["applied"], total["repeated"], total["refused"]) == (self.applied, self.repeated, self.refused)
        assert total["heard"] == self.applied + self.repeated + self.refused
        assert self.shard.state.counters["pulls"] == self.pulls
        assert sorted(session.name for session in self.shard.state.sessions.workers) == sorted(self.peer)

    @invariant()
    def nothing_waits_that_could_be_answered(self) -> None:
        assert len(self.shard.state.waiting) == 0

    def any_name(self, data: st.DataObject) -> str:
        name: str = data.draw(st.sampled_from(sorted(self.peer)))
        self.heard[name] = self.shard.now
        return name

    def forget(self, name: str) -> None:
        """A session that ended takes its numbers with it."""
        self.pushed[name] = 0


def test_the_core_is_the_model(dataset: Dataset) -> None:
    kind: Any = type("OfThisDataset", (Model,), {"dataset": dataset})
    run_state_machine_as_test(kind, settings=quick(60))
