"""A worker keeps to one core while it trains, and has all of them again afterwards."""

from __future__ import annotations

import os
import threading

import pytest

from glovewire.worker.dense.affinity import own_core


def test_ranks_go_round_the_cores_that_may_be_used() -> None:
    before = os.sched_getaffinity(0)
    found = []
    for rank in range(2 * len(before)):
        with own_core(rank) as core:
            found.append(core)
            assert os.sched_getaffinity(0) == {core}
        assert os.sched_getaffinity(0) == before
    assert found == [*sorted(before), *sorted(before)]


def test_threads_that_are_started_meanwhile_keep_to_it_too() -> None:
    seen = []
    with own_core(1) as core:
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]


def test_what_goes_wrong_inside_gives_the_cores_back() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="broken"), own_core(0):
        raise ValueError("broken")
    assert os.sched_getaffinity(0) == before


def test_only_cores_that_were_given_are_used() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    os.sched_setaffinity(0, {last})
    try:
        with own_core(5) as core:
            assert core == last
    finally:
        os.sched_setaffinity(0, before)


def test_where_it_cannot_be_had_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with own_core(0) as core:
        assert core is None
