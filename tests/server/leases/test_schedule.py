"""The schedule under random interleavings: no conflict, nothing lost or twice, always in order, no deadlock."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.rounds import Rounds
from glovewire.server.leases.schedule import LEASES_PER_WORKER, Schedule


class Training:
    """Workers that lease, train, finish and vanish as they are told, and every promise checked on the way.

    `has` are the strips whose entries a worker has: with `fetching`, those that it was granted before.
    """

    def __init__(self, schedule: Schedule, start: int = 0, *, fetching: bool = False) -> None:
        self.fetching, self.has = fetching, defaultdict[str, set[int]](set)
        self.schedule, self.rounds = schedule, schedule.rounds
        self.held: dict[int, tuple[int, str]] = {}
        self.left: dict[int, list[int]] = {}
        self.trained: list[int] = []
        self.granted: set[int] = set()
        self.returned: list[int] = []
        self.version = [self.rounds.next_visit(p, start) for p in range(self.rounds.partitions)]

    def grant(self, worker: str) -> bool:
        mine = [round for round, holder in self.held.values() if holder == worker]
        found = self.schedule.grant(worker, has=frozenset(self.has[worker]))
        if found is None:
            assert not self.returned
            return False
        lease, round = found
        if self.returned:
            assert round == min(self.returned)
            self.returned.remove(round)
        else:
            assert round not in self.granted
            assert len(mine) < LEASES_PER_WORKER or max(mine) > round
            assert round < self.schedule.low_water + self.rounds.partitions
        assert lease not in self.held
        assert self.schedule.held[lease] == (round, worker)
        self.granted.add(round)
        if self.fetching:
            self.has[worker].add(self.rounds.strip(round))
        self.held[lease] = (round, worker)
        self.left[lease] = self.rounds.visits(round)
        return True

    def ready(self) -> list[int]:
        """Leases of which the next visit could be trained now: its partition, and the own one, are at their version."""
        return [lease for lease, (round, _) in self.held.items() if self._is_ready(lease, round)]

    def _is_ready(self, lease: int, round: int) -> bool:
        own = self.rounds.strip(round)
        return self.version[own] >= round and self.version[self.left[lease][0]] >= round

    def visit(self, lease: int) -> None:
        """Train the next visit; the last one finishes the strip. What a lost worker had trained is trained again."""
        round, _ = self.held[lease]
        partition = self.left[lease].pop(0)
        if partition != self.rounds.strip(round) and self.version[partition] == round:
            self.version[partition] = self.rounds.next_visit(partition, round + 1)
        if self.left[lease]:
            return
        del self.held[lease], self.left[lease]
        assert self.schedule.finish(lease) == round
        assert lease not in self.schedule.held
        own = self.rounds.strip(round)
        self.version[own] = max(self.version[own], self.rounds.next_visit(own, round + 1))
        self.trained.append(round)

    def release(self, worker: str) -> None:
        mine = {lease for lease, (_, holder) in self.held.items() if holder == worker}
        lost = [self.held.pop(lease)[0] for lease in mine]
        assert sorted(self.schedule.release(worker)) == sorted(lost)
        self.returned += lost

    def to_the_end(self, worker: str) -> None:
        """One worker alone must be able to train all that is left: whatever waits, one worker can go on."""
        for _ in range(10_000):
            if self.schedule.complete:
                return
            granted = self.grant(worker)
            ready = self.ready()
            assert granted or ready, "deadlock"
            if ready:
                self.visit(ready[0])
        raise AssertionError("no end")


def check_trained(training: Training, start: int = 0) -> None:
    """Every round exactly once."""
    assert training.schedule.complete
    assert sorted(training.trained) == list(range(start, training.rounds.total))
    assert training.schedule.completed == len(training.trained)
    assert training.version == [training.rounds.total] * training.rounds.partitions


@quick(80)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 10), st.booleans(), st.data())
def test_any_interleaving_of_any_workers_trains_everything_once(
    partitions: int, epochs: int, start: int, fetching: bool, data: st.DataObject
) -> None:
    start = min(start, partitions * epochs)
    training = Training(Schedule(Rounds(partitions, epochs), start), start, fetching=fetching)
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        action = data.draw(st.sampled_from(["grant", "grant", "visit", "visit", "visit", "release"]))
        worker = data.draw(st.sampled_from("abcd"))
        if action == "grant":
            training.grant(worker)
        elif action == "visit" and (ready := training.ready()):
            training.visit(data.draw(st.sampled_from(ready)))
        elif action == "release":
            training.release(worker)
    for worker in "abcd":  # all but one vanish, the last one ends it
        training.release(worker)
    training.to_the_end("e")
    check_trained(training, start)


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("workers", [1, 2, 4, 12])
@pytest.mark.parametrize("fetching", [False, True])
def test_workers_in_turn_never_all_wait(partitions: int, workers: int, fetching: bool) -> None:
    """Also more workers than strips in an epoch, each holding as many leases as it may."""
    training = Training(Schedule(Rounds(partitions, 3)), fetching=fetching)
    while not training.schedule.complete:
        for worker in range(workers):
            while training.grant(str(worker)):
                pass
        ready = training.ready()
        assert ready, "deadlock"
        training.visit(ready[-1])
    check_trained(training)


def rounds_granted(schedule: Schedule, workers: str, has: dict[str, set[int]], most: int = 1) -> list[int | None]:
    """The rounds that workers get who ask in this order; each trains its strip at once."""
    granted = []
    for worker in workers:
        found = schedule.grant(worker, most, frozenset(has[worker]))
        granted.append(found and found[1])
        if found is not None:
            schedule.finish(found[0])
    return granted


def test_of_the_next_strips_a_worker_gets_one_that_it_has() -> None:
    schedule = Schedule(Rounds(4, 5))
    strips = schedule.rounds.order
    has = {"a": {strips[0], strips[2]}, "b": {strips[1], strips[3]}}
    assert rounds_granted(schedule, "abab", has) == [0, 1, 2, 3]
    assert rounds_granted(schedule, "baba", has) == [5, 4, 7, 6]


def test_a_strip_that_nobody_has_is_not_skipped() -> None:
    schedule = Schedule(Rounds(4, 5))
    strips = schedule.rounds.order
    has = {"a": {strips[0], strips[1]}, "b": {strips[3]}}
    assert rounds_granted(schedule, "abb", has) == [0, 1, 2]


def test_the_strip_of_a_worker_that_does_not_ask_is_not_skipped_for_long() -> None:
    schedule = Schedule(Rounds(6, 5))
    has = {"a": set(range(0, 6, 2)), "b": set(range(1, 6, 2)), "c": set[int](), "d": set[int]()}
    todo = set(range(30)) - set(rounds_granted(schedule, "bacd", has))
    while todo:
        (round,) = rounds_granted(schedule, "a", has)
        assert round is not None
        assert round <= min(todo) + 2
        todo.remove(round)


def test_a_worker_that_waits_for_a_skipped_strip_gets_it_though_it_holds_enough() -> None:
    """Seen to fail: the only worker left waited for ever, because it may hold one strip until it has brought one."""
    schedule = Schedule(Rounds(4, 5))
    strips = schedule.rounds.order
    schedule.grant("b", 1, frozenset({strips[1]}))
    schedule.grant("a", 1, frozenset({strips[2]}))
    assert schedule.round == 3, "one was skipped"
    assert schedule.low_water == 0
    schedule.release("b")
    granted = [schedule.grant("a", 1, frozenset({strips[2]})) for _ in range(3)]
    assert [each and each[1] for each in granted] == [0, 1, None]


def test_a_run_that_stops_trains_what_was_skipped() -> None:
    schedule = Schedule(Rounds(3, 9))
    strips = schedule.rounds.order
    schedule.grant("b", 1, frozenset({strips[0]}))
    schedule.release("b")
    has = {"a": {strips[1]}, "b": {strips[2]}}
    assert rounds_granted(schedule, "ab", has) == [0, 2]
    schedule.stop()
    assert not schedule.complete
    assert rounds_granted(schedule, "ab", has) == [1, None]
    assert schedule.complete


def test_what_a_lost_worker_held_comes_back_first_and_earliest_round_first() -> None:
    schedule = Schedule(Rounds(5, 2))
    first, second, other = schedule.grant("a"), schedule.grant("a"), schedule.grant("b")
    assert first is not None
    assert second is not None
    assert other is not None
    assert sorted(schedule.release("a")) == [0, 1]
    assert schedule.release("a") == []
    again = [schedule.grant("b"), schedule.grant("b")]
    assert [lease and lease[1] for lease in again] == [0, 1]
    assert {lease[0] for lease in again if lease} & {first[0], second[0], other[0]} == set()


def test_a_returned_strip_is_granted_even_to_who_holds_enough() -> None:
    """Everything that a full worker holds may wait for just this strip."""
    schedule = Schedule(Rounds(9, 2))
    lost = schedule.grant("a")
    assert lost is not None
    for _ in range(LEASES_PER_WORKER):
        assert schedule.grant("b") is not None
    assert schedule.grant("b") is None
    schedule.release("a")
    granted = schedule.grant("b")
    assert granted is not None
    assert granted[1] == lost[1]


def test_no_round_is_granted_an_epoch_after_one_that_is_not_complete() -> None:
    """What may have to be undone is bounded."""
    schedule = Schedule(Rounds(3, 9))
    granted = [schedule.grant(worker) for worker in "abcdef"]
    assert [each and each[1] for each in granted] == [0, 1, 2, None, None, None]
    assert granted[1] is not None
    schedule.finish(granted[1][0])
    assert schedule.grant("d") is None
    assert granted[0] is not None
    schedule.finish(granted[0][0])
    assert schedule.low_water == 2
    assert [each and each[1] for each in map(schedule.grant, "def")] == [3, 4, None]


def test_a_run_that_stops_ends_with_the_strips_that_were_granted() -> None:
    schedule = Schedule(Rounds(3, 9))
    granted = schedule.grant("a")
    assert granted is not None
    schedule.stop()
    assert schedule.grant("b") is None
    assert not schedule.complete
    schedule.finish(granted[0])
    assert schedule.complete
    assert schedule.round == 1


def test_a_schedule_may_begin_at_its_end() -> None:
    schedule = Schedule(Rounds(4, 2), start=8)
    assert schedule.complete
    assert schedule.grant("a") is None
