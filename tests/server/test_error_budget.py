"""Each peer may send some unreadable messages before it is banned; the memory for all peers is bounded."""

from __future__ import annotations

from glovewire.server.limits import MAX_ERRORS, MAX_PEERS, ErrorBudget


def test_a_peer_has_a_budget_and_leaves_once() -> None:
    budget = ErrorBudget()
    for _ in range(MAX_ERRORS - 1):
        budget.record(b"a")
        budget.record(b"b")
    assert not budget.is_banned(b"a")
    budget.record(b"a")
    assert budget.is_banned(b"a")
    assert not budget.is_banned(b"b")
    assert [budget.must_disconnect(b"a") for _ in range(3)] == [True, False, False]


def test_any_number_of_peers_takes_bounded_memory() -> None:
    budget = ErrorBudget()
    for number in range(MAX_PEERS + 10):
        for _ in range(MAX_ERRORS):
            budget.record(b"out%d" % number)
        budget.record(b"in%d" % number)
    budget.record(b"in0")  # forgotten, so it begins again
    budget.record(b"in%d" % (MAX_PEERS + 9))
    for _ in range(MAX_ERRORS - 2):
        budget.record(b"in0")
        budget.record(b"in%d" % (MAX_PEERS + 9))
    assert not budget.is_banned(b"in0")
    assert budget.is_banned(b"in%d" % (MAX_PEERS + 9))
    assert not budget.is_banned(b"out0")
    assert budget.is_banned(b"out%d" % (MAX_PEERS + 9))
