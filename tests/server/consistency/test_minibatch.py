"""The modes of minibatch training, without a server: which pulls wait and which gradients make one update."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import shards
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from glovewire.common.errors import BadRequest, LimitExceeded
from glovewire.common.protocol import messages as m
from glovewire.server.consistency import minibatch
from glovewire.server.consistency.minibatch import (
    Admission,
    Asynchronous,
    SoftSynchronous,
    StaleSynchronous,
    Synchronous,
)

PULL = shards.pull(rows=[0])
OBSERVER = -1


def gradient(version: int = 0, sequence: int = 1, operation: str = "gradient") -> m.Push:
    return shards.push(operation, np.zeros((1, 4)), rows=[0], version=version, sequence=sequence)


def of(mode: Asynchronous, workers: int) -> Asynchronous:
    for worker in range(workers):
        mode.joined(worker)
    return mode


def carried_out(mode: Asynchronous) -> list[list[int]]:
    """Whose gradients are due now, change by change."""
    groups = []
    while group := mode.next_update():
        groups.append([each.worker for each in group])
    return groups


class Crowd:
    """Workers that pull, compute and push at random moments, against a mode and nothing else."""

    def __init__(self, mode: Asynchronous, workers: int, seed: int) -> None:
        self.mode, self.draw = of(mode, workers), random.Random(seed)
        self.computing: dict[int, tuple[int, int]] = {}  # worker -> (version pulled, steps it had made)
        self.steps = dict.fromkeys(range(workers), 0)
        self.staleness: list[int] = []

    def move(self, worker: int) -> bool:
        """Let a worker do the next thing that it can; whether it could."""
        if worker not in self.computing:
            if self.mode.may_pull(PULL, worker):
                self.computing[worker] = (self.mode.version(0), self.steps[worker])
            return worker in self.computing
        version, step = self.computing.pop(worker)
        self.steps[worker] = step + 1
        self.staleness.append(self.mode.version(0) - version)
        assert self.mode.admit(gradient(version, step + 1), worker) is Admission.NEW
        carried_out(self.mode)
        return True

    def leave(self, worker: int, *, lost: bool) -> None:
        self.computing.pop(worker, None)
        del self.steps[worker]
        self.mode.left(worker, lost=lost)
        carried_out(self.mode)


# ---- synchronous


def test_a_step_is_one_gradient_of_every_worker_in_their_order_however_they_arrive() -> None:
    mode = of(Synchronous(), 3)
    for worker in (2, 0):
        assert mode.admit(gradient(), worker) is Admission.NEW
        assert carried_out(mode) == []
    assert [mode.may_pull(PULL, worker) for worker in range(3)] == [False, True, False]
    mode.admit(gradient(), 1)
    assert carried_out(mode) == [[0, 1, 2]]
    assert (mode.version(0), mode.gradients) == (1, 3)
    assert all(mode.may_pull(PULL, worker) for worker in range(3))


def test_whoever_only_looks_never_waits() -> None:
    mode = of(Synchronous(expected=5), 2)
    assert not mode.may_pull(PULL, 0)
    assert mode.may_pull(PULL, OBSERVER)


IN_STEP: list[Callable[..., Asynchronous]] = [
    Synchronous, lambda **more: StaleSynchronous(1, **more), lambda **more: SoftSynchronous(1, **more),
]  # fmt: skip


@pytest.mark.parametrize("make", IN_STEP)
def test_nobody_begins_before_all_have_joined(make: Callable[..., Asynchronous]) -> None:
    mode = of(make(expected=3), 2)
    assert mode.missing == 1
    assert not mode.may_pull(PULL, 0)
    mode.joined(2)
    assert mode.missing == 0
    assert mode.may_pull(PULL, 0)
    mode.left(2, lost=True)
    assert mode.may_pull(PULL, 0), "a run that has begun does not stop again"


def test_after_a_while_it_begins_without_those_who_have_not_come() -> None:
    mode = of(Synchronous(expected=3), 1)
    mode.begin()
    assert mode.may_pull(PULL, 0)
    mode.admit(gradient(), 0)
    assert carried_out(mode) == [[0]]


def test_who_has_left_is_not_waited_for_and_what_it_gave_counts() -> None:
    mode = of(Synchronous(), 3)
    mode.admit(gradient(), 0)
    mode.admit(gradient(), 1)
    mode.left(0, lost=False)
    mode.left(2, lost=True)
    assert carried_out(mode) == [[0, 1]]


def test_what_waits_of_a_lost_worker_is_dropped_as_other_shards_may_never_have_got_it() -> None:
    mode = of(Synchronous(), 3)
    mode.admit(gradient(), 0)
    mode.admit(gradient(), 2)
    mode.left(0, lost=True)
    assert carried_out(mode) == []
    mode.admit(gradient(), 1)
    assert carried_out(mode) == [[1, 2]]


def test_the_backup_workers_gradients_come_too_late() -> None:
    mode = of(Synchronous(1), 3)
    mode.admit(gradient(), 2)
    mode.admit(gradient(), 0)
    assert carried_out(mode) == [[0, 2]]
    assert mode.admit(gradient(0), 1) is Admission.LATE
    assert carried_out(mode) == []
    assert (mode.version(0), mode.gradients) == (1, 2)
    assert mode.may_pull(PULL, 1)


@pytest.mark.parametrize("version", [m.NO_VERSION, 1, 7])
def test_a_gradient_of_a_step_that_is_not_is_refused(version: int) -> None:
    with pytest.raises(BadRequest, match="names the version of its rows"):
        of(Synchronous(), 2).admit(gradient(version), 0)


def test_a_worker_has_one_gradient_a_step() -> None:
    mode = of(Synchronous(), 2)
    mode.admit(gradient(), 0)
    with pytest.raises(BadRequest, match="one gradient per worker and step"):
        mode.admit(gradient(), 0)


@pytest.mark.parametrize("mode", [Synchronous(), StaleSynchronous(0), SoftSynchronous(1)])
def test_in_step_there_are_only_gradients(mode: Asynchronous) -> None:
    with pytest.raises(BadRequest, match="one of gradient"):
        mode.admit(gradient(operation="add"), 0)


def test_gradients_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minibatch, "MAX_WAITING_BYTES", 2 * gradient().values.nbytes)
    mode = of(Synchronous(), 4)
    mode.admit(gradient(), 0)
    mode.admit(gradient(), 1)
    with pytest.raises(LimitExceeded, match="gradients wait"):
        mode.admit(gradient(), 2)


@pytest.mark.parametrize(("mode", "steps"), [(Synchronous(), 1), (Asynchronous(), 3), (SoftSynchronous(1), 3)])
def test_whoever_joins_goes_on_behind_every_step_that_any_worker_has_made(mode: Asynchronous, steps: int) -> None:
    """In step it is the steps of all; else one worker may have made them all."""
    assert of(mode, 3).steps == 0
    for worker in range(3):
        mode.admit(gradient(), worker)
        carried_out(mode)
    assert mode.steps == steps


# ---- stale-synchronous

EVENTS = st.lists(
    st.tuples(st.sampled_from(["move"] * 12 + ["leave", "lose", "join"]), st.integers(0, 30)), max_size=200
)


@quick(150)
@given(bound=st.integers(0, 4), workers=st.integers(1, 6), events=EVENTS)
def test_nobody_is_ever_more_than_the_bound_ahead(bound: int, workers: int, events: list[tuple[str, int]]) -> None:
    """Random schedules, with workers that come, leave and are lost; and somebody can always go on."""
    crowd, born = Crowd(StaleSynchronous(bound), workers, 0), workers
    for what, which in events:
        here = sorted(crowd.steps)
        if what == "join":
            crowd.mode.joined(born)
            crowd.steps[born] = min(crowd.steps.values(), default=0)
            born += 1
        elif here and what == "move":
            crowd.move(here[which % len(here)])
        elif here:
            crowd.leave(here[which % len(here)], lost=what == "lose")
        at = [step for _, step in crowd.computing.values()]
        assert not at or max(at) - min(crowd.steps.values()) <= bound
        assert not crowd.steps or any(
            worker in crowd.computing or crowd.mode.may_pull(PULL, worker) for worker in crowd.steps
        )


def test_a_bound_of_0_is_the_order_of_sync_and_a_bound_of_2_lets_two_steps_pass() -> None:
    """With ssp:0 nobody has the rows of step n + 1 before every gradient of step n is in the table."""
    for bound, goes in ((0, 1), (2, 3)):
        crowd = Crowd(StaleSynchronous(bound), 2, 0)
        while crowd.move(0):
            pass
        assert crowd.steps == {0: goes, 1: 0}
        crowd.move(1)
        crowd.move(1)
        assert crowd.move(0)


def test_whoever_joins_late_stands_beside_the_slowest_and_holds_nobody_up_for_what_it_missed() -> None:
    crowd = Crowd(StaleSynchronous(1), 2, 0)
    for worker in (0, 1, 0, 1, 0, 1, 0, 1):
        assert crowd.move(worker)
    crowd.mode.joined(2)
    assert crowd.mode.may_pull(PULL, 0)


@quick(40)
@given(seed=st.integers(0, 1 << 30), workers=st.integers(1, 5))
def test_with_a_bound_of_0_every_gradient_knows_all_of_the_steps_before(seed: int, workers: int) -> None:
    crowd = Crowd(StaleSynchronous(0), workers, seed)
    for _ in range(100):
        worker = crowd.draw.randrange(workers)
        crowd.move(worker)
        for version, step in crowd.computing.values():
            assert version >= step * workers


# ---- n-softsync


@pytest.mark.parametrize("splits", [1, 2, 5, 15, 30])
def test_the_staleness_of_n_softsync_averages_n(splits: int) -> None:
    """Zhang et al., section 3: with as many workers as pull right after they pushed, it is n (1 - 1 / workers) here."""
    workers = 30
    crowd = Crowd(SoftSynchronous(splits), workers, 1)
    for worker in range(workers):
        crowd.move(worker)
    for _ in range(200):
        order = list(range(workers))
        crowd.draw.shuffle(order)
        for worker in order:
            crowd.move(worker)
            crowd.move(worker)
    mean = np.mean(crowd.staleness[20 * workers :])
    assert mean == pytest.approx(splits, rel=0.1)
    assert max(crowd.staleness) <= 2 * splits


def test_a_change_takes_the_gradients_of_any_workers() -> None:
    mode = of(SoftSynchronous(2), 5)
    for n in (1, 2, 3):
        mode.admit(gradient(0, n), 4)
    assert carried_out(mode) == [[4, 4]]
    mode.admit(gradient(0, 1), 0)
    assert carried_out(mode) == [[0, 4]]
    assert (mode.version(0), mode.gradients) == (2, 4)


def test_what_waits_is_carried_out_when_there_are_too_few_left_to_fill_a_change() -> None:
    mode = of(SoftSynchronous(1), 3)
    mode.admit(gradient(), 0)
    mode.admit(gradient(), 1)
    mode.left(2, lost=True)
    assert carried_out(mode) == [[0, 1]]
    mode.admit(gradient(0, 2), 0)
    mode.left(0, lost=False)
    mode.left(1, lost=False)
    assert carried_out(mode) == [[0]]
