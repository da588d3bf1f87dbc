"""The block schedule under random interleavings: no conflict, nothing lost or twice, always in order, no deadlock."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.model.rounds import epoch_rounds
from glovewire.server.leases.schedule import LEASES_PER_WORKER, Block, Schedule


class Training:
    """Workers that lease, finish and vanish as they are told, and every promise checked on the way."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.held: dict[int, tuple[Block, str]] = {}
        self.trained: list[Block] = []
        self.granted: set[Block] = set()
        self.returned: list[Block] = []
        self.version = [schedule.start] * schedule.partitions

    def grant(self, worker: str) -> bool:
        mine = sum(holder == worker for _, holder in self.held.values())
        found = self.schedule.grant(worker)
        if found is None:
            assert not self.returned
            return False
        lease, block = found
        if self.returned:
            assert block == min(self.returned)
            self.returned.remove(block)
        else:
            assert block not in self.granted
            assert mine < LEASES_PER_WORKER
        assert lease not in self.held
        assert self.schedule.holder(lease) == worker
        for other, _ in self.held.values():
            assert other.round != block.round or not {other.a, other.b} & {block.a, block.b}
        self.granted.add(block)
        self.held[lease] = (block, worker)
        return True

    def ready(self) -> list[int]:
        """Leases whose rows have the version that they need: those a worker could train now."""
        return [lease for lease, (block, _) in self.held.items() if self._reached(block)]

    def _reached(self, block: Block) -> bool:
        return all(self.version[p] == block.round for p in (block.a, block.b))

    def finish(self, lease: int) -> None:
        block, _ = self.held.pop(lease)
        assert self.schedule.finish(lease) == block
        assert self.schedule.holder(lease) is None
        for partition in {block.a, block.b}:
            self.version[partition] += 1
        self.trained.append(block)

    def release(self, worker: str) -> None:
        mine = {lease for lease, (_, holder) in self.held.items() if holder == worker}
        lost = [self.held.pop(lease)[0] for lease in mine]
        assert sorted(self.schedule.release(worker)) == sorted(lost)
        self.returned += lost

    def to_the_end(self, worker: str) -> None:
        """One worker alone must be able to train all that is left: whatever waits, somebody can go on."""
        for _ in range(10_000):
            if self.schedule.complete:
                return
            granted = self.grant(worker)
            ready = self.ready()
            assert granted or ready, "deadlock"
            if ready:
                self.finish(ready[0])
        raise AssertionError("no end")


def expected(schedule: Schedule) -> list[Block]:
    """Every visit from the schedule's start, in rounds."""
    visits = []
    for epoch in range(schedule.epochs):
        for offset, pairs in enumerate(epoch_rounds(schedule.partitions, schedule.seed, epoch)):
            number = epoch * schedule.partitions + offset
            visits += [Block(number, a, b) for a, b in pairs if number >= schedule.start]
    return visits


def check_trained(training: Training) -> None:
    """Every block exactly once, and on each partition in the order of the rounds."""
    schedule = training.schedule
    assert schedule.complete
    assert Counter(training.trained) == Counter(expected(schedule))
    assert schedule.completed == len(training.trained)
    for partition in range(schedule.partitions):
        rounds = [block.round for block in training.trained if partition in (block.a, block.b)]
        assert rounds == sorted(rounds)
        assert len(rounds) == len(set(rounds))


@quick(80)
@given(st.integers(1, 7), st.integers(1, 2), st.integers(0, 99), st.integers(0, 10), st.data())
def test_any_interleaving_of_any_workers_trains_everything_once(
    partitions: int, epochs: int, seed: int, start: int, data: st.DataObject
) -> None:
    training = Training(Schedule(partitions, epochs, seed, min(start, partitions * epochs)))
    for _ in range(data.draw(st.integers(0, 60), label="steps")):
        action = data.draw(st.sampled_from(["grant", "grant", "finish", "finish", "release"]))
        worker = data.draw(st.sampled_from("abcd"))
        if action == "grant":
            training.grant(worker)
        elif action == "finish" and (ready := training.ready()):
            training.finish(data.draw(st.sampled_from(ready)))
        elif action == "release":
            training.release(worker)
    for worker in "abcd":  # all but one vanish, the last one ends it
        training.release(worker)
    training.to_the_end("e")
    check_trained(training)


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("workers", [1, 2, 4, 12])
def test_workers_in_turn_never_all_wait(partitions: int, workers: int) -> None:
    """Also more workers than blocks in a round, each holding as many leases as it may."""
    training = Training(Schedule(partitions, 3, 5))
    while not training.schedule.complete:
        for worker in range(workers):
            while training.grant(str(worker)):
                pass
        ready = training.ready()
        assert ready, "deadlock"
        training.finish(ready[-1])
    check_trained(training)


@pytest.mark.parametrize("anna_is_done", [False, True])
def test_blocks_that_wait_for_nobody_come_first_and_then_early_ones(anna_is_done: bool) -> None:
    """Anna has one block of round 0, Bert has done the others, and of round 1 all that do not touch Anna's."""
    schedule = Schedule(9, 2, 1)
    hers = schedule.grant("anna")
    assert hers is not None
    for _ in range(4 + 4):
        his = schedule.grant("bert")
        assert his is not None
        assert not {his[1].a, his[1].b} & {hers[1].a, hers[1].b}
        schedule.finish(his[0])
    if anna_is_done:
        schedule.finish(hers[0])
    following = schedule.grant("bert")
    assert following is not None
    assert following[1].round == (1 if anna_is_done else 2)


def test_what_a_lost_worker_held_comes_back_first_and_earliest_round_first() -> None:
    schedule = Schedule(5, 2, 1)
    first, second = schedule.grant("a"), schedule.grant("a")
    other = schedule.grant("b")
    assert first is not None
    assert second is not None
    assert other is not None
    assert sorted(schedule.release("a")) == sorted([first[1], second[1]])
    assert schedule.release("a") == []
    again = [schedule.grant("b"), schedule.grant("b")]
    assert [lease and lease[1] for lease in again] == sorted([first[1], second[1]])
    assert {lease[0] for lease in again if lease} & {first[0], second[0], other[0]} == set()


def test_a_returned_block_is_granted_even_to_who_holds_enough() -> None:
    """Everything that a full worker holds may wait for just this block."""
    schedule = Schedule(5, 2, 1)
    for _ in range(LEASES_PER_WORKER):
        assert schedule.grant("b") is not None
    assert schedule.grant("b") is None
    lost = schedule.grant("a")
    assert lost is not None
    schedule.release("a")
    granted = schedule.grant("b")
    assert granted is not None
    assert granted[1] == lost[1]


def test_the_order_of_training_is_the_same_for_any_number_of_workers() -> None:
    """What decides the result is the order on each partition."""
    orders = []
    for workers in ("a", "abc"):
        training = Training(Schedule(6, 2, 3))
        while not training.schedule.complete:
            for worker in workers:
                training.grant(worker)
            training.finish(training.ready()[0])
        orders.append([[b for b in training.trained if p in (b.a, b.b)] for p in range(6)])
    assert orders[0] == orders[1]


def test_an_epoch_is_told_by_its_rounds() -> None:
    schedule = Schedule(4, 3, 0)
    assert [schedule.epoch_of(Block(round, 0, 0)) for round in (0, 3, 4, 11)] == [0, 0, 1, 2]


def test_a_schedule_may_begin_at_its_end() -> None:
    schedule = Schedule(4, 2, 0, start=8)
    assert schedule.complete
    assert schedule.grant("a") is None
