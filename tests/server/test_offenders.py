"""The budget of nonsense: so much for each peer, and a bounded memory of all of them."""

from __future__ import annotations

from glovewire.server.limits import MAX_ERRORS, MAX_PEERS, Offenders


def test_a_peer_has_a_budget_and_leaves_once() -> None:
    offenders = Offenders()
    for _ in range(MAX_ERRORS - 1):
        offenders.note(b"a")
        offenders.note(b"b")
    assert b"a" not in offenders
    offenders.note(b"a")
    assert b"a" in offenders
    assert b"b" not in offenders
    assert [offenders.leaves(b"a") for _ in range(3)] == [True, False, False]


def test_any_number_of_peers_takes_bounded_memory() -> None:
    offenders = Offenders()
    for number in range(MAX_PEERS + 10):
        for _ in range(MAX_ERRORS):
            offenders.note(b"out%d" % number)
        offenders.note(b"in%d" % number)
    assert len(offenders._errors) == len(offenders._out) == MAX_PEERS
    assert b"out0" not in offenders
    assert b"out%d" % (MAX_PEERS + 9) in offenders
