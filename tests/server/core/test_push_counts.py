"""What became of every push, in numbers that reconcile: by worker, in all, and with what workers say they have sent."""

from __future__ import annotations

import pytest
from shards import MINIBATCH, Shard, add, code, shard, statistics

from glovewire.common.endings import Ending
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.core import push_counts
from glovewire.server.core.push_counts import PushCounts


@pytest.fixture
def one(dataset: Dataset) -> Shard:
    one = shard(dataset, lease_s=10.0, **MINIBATCH)
    for name in ("a", "b"):
        one.hello(name)
    return one


def test_every_push_that_was_heard_is_applied_repeated_or_refused(one: Shard) -> None:
    for sequence in (1, 2, 2, 1, 5, 3):
        one.ask(b"a", add(one, sequence))
    one.ask(b"b", add(one, 1))
    one.ask(b"stranger", add(one, 1))
    said = statistics(one)
    assert said["pushes_of"]["a"] == {"sent": 6, "heard": 6, "applied": 3, "repeated": 2, "refused": 1}
    assert said["pushes_of"]["b"] == {"sent": 1, "heard": 1, "applied": 1, "repeated": 0, "refused": 0}
    assert said["pushes"] == {"sent": 8, "heard": 8, "applied": 4, "repeated": 2, "refused": 2}


def test_what_was_lost_on_the_way_shows_when_a_worker_says_goodbye(one: Shard) -> None:
    one.ask(b"a", add(one, 1))
    one.ask(b"a", m.Leave(Ending.COMPLETE, pushes=4))
    assert statistics(one)["pushes_of"]["a"] == {"sent": 4, "heard": 1, "applied": 1, "repeated": 0, "refused": 0}


@pytest.mark.parametrize("said", [-5, -(1 << 62)])
def test_a_negative_number_of_pushes_counts_as_not_said(one: Shard, said: int) -> None:
    one.ask(b"a", add(one, 1))
    one.ask(b"a", m.Leave(Ending.COMPLETE, pushes=said))
    assert statistics(one)["pushes_of"]["a"]["sent"] == 1
    assert statistics(one)["pushes"]["sent"] == 1


def test_a_worker_that_comes_back_is_added_up(one: Shard) -> None:
    one.ask(b"a", add(one, 1))
    one.tick(11.0)
    assert code(one.ask(b"a", add(one, 2))) == "unknown-session"  # what it had to do belongs to others now
    one.hello("a", incarnation=2)
    one.ask(b"a", add(one, 1))
    one.ask(b"a", m.Leave(Ending.COMPLETE, pushes=1))
    said = statistics(one)
    assert said["pushes_of"]["a"] == {"sent": 2, "heard": 2, "applied": 2, "repeated": 0, "refused": 0}
    assert said["pushes"] == {"sent": 3, "heard": 3, "applied": 2, "repeated": 0, "refused": 1}


def test_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_counts, "MAX_NAMES", 3)
    counts = PushCounts()
    for n in range(20):
        counts.answered(f"w{n}", m.Applied(1, 1, False))
        counts.left(f"w{n}", 1)
    assert len(counts.of) == 3
    assert counts.summary() == {"sent": 20, "heard": 20, "applied": 20, "repeated": 0, "refused": 0}
