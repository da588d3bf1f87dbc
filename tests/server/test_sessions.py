"""Sessions by name and peer: resumed, replaced, late, lost and forgotten."""

from __future__ import annotations

import dataclasses

import pytest
from shards import TOKENS

from glovewire.common.errors import BadRequest, LimitExceeded, NotReady, UnknownSession, UsageError
from glovewire.common.protocol import messages as m
from glovewire.server import sessions
from glovewire.server.sessions import MAX_OBSERVERS, Session, Sessions


def hello(name: str = "w0", incarnation: int = 1, role: str = "worker", worker: int = -1) -> m.Hello:
    return m.Hello(role, name, incarnation, "", worker, TOKENS.worker(worker, name, incarnation))


def opened(all_: Sessions, hello: m.Hello, peer: bytes, now: float) -> tuple[Session, Session | None]:
    """Open a session as the core does; NameError if the name stays with its holder."""
    all_.require_valid(hello)
    if all_.holder(hello) is not None:
        raise NameError(hello.name)
    return all_.open(hello, peer, now)


def test_a_session_is_found_by_its_peer_and_marked_as_heard() -> None:
    all_ = Sessions()
    session, replaced = opened(all_, hello(), b"p", 1.0)
    assert replaced is None
    assert all_.of(b"p", 5.0) is session
    assert session.seen == 5.0
    assert all_.workers == [session]
    with pytest.raises(UnknownSession):
        all_.of(b"q", 5.0)


def test_who_never_came_is_missed_once_a_worker_has_come() -> None:
    """A run that was complete when it was taken up again has no worker to wait for."""
    all_ = Sessions(expected=3)
    assert all_.absent == 0
    for name, absent in (("w0", 2), ("w0", 2), ("w1", 1), ("w2", 0), ("w3", 0)):
        all_.note(hello(name))
        assert all_.absent == absent
    all_.note(hello("eye", role="observer"))
    assert all_.absent == 0


def test_only_shard_0_waits_for_workers_that_have_not_come() -> None:
    for shard, absent in ((0, 3), (1, 0)):
        all_ = Sessions(expected=4, shard=shard, shards=2)
        all_.note(hello("w0"))
        assert all_.absent == absent


def test_the_same_incarnation_resumes_from_another_address() -> None:
    """A TCP connection that was cut: the sequences of what was applied must not be lost."""
    all_ = Sessions()
    session, _ = opened(all_, hello(), b"p", 1.0)
    session.pushed = 7
    again, replaced = opened(all_, hello(), b"q", 2.0)
    assert again is session
    assert replaced is None
    assert again.pushed == 7
    assert all_.of(b"q", 3.0) is session
    with pytest.raises(UnknownSession):
        all_.of(b"p", 3.0)


def test_another_incarnation_takes_the_name_and_the_old_one_does_not_get_it_back() -> None:
    """Two processes of one name would otherwise throw each other out for ever."""
    all_ = Sessions()
    old, _ = opened(all_, hello(incarnation=1), b"p", 1.0)
    all_.disconnected(b"p")
    new, replaced = opened(all_, hello(incarnation=2), b"q", 2.0)
    assert replaced is old
    assert new is not old
    assert new.pushed == 0
    assert new.index != old.index
    with pytest.raises(BadRequest, match="another process took the name 'w0'"):
        opened(all_, hello(incarnation=1), b"p", 3.0)
    assert all_.of(b"q", 3.0) is new


def test_a_shard_that_is_not_the_first_takes_numbers_from_shard_0_only() -> None:
    """A stranger who says hello to the shards in the wrong order got a number of its own, and left with a worker's."""
    all_ = Sessions(shard=1, shards=2, tokens=TOKENS)
    one, _ = opened(all_, hello("a", worker=7), b"a", 1.0)
    with pytest.raises(UsageError, match="give every shard's address once, in order; the first is shard 1/2"):
        opened(all_, hello("stray", incarnation=2), b"s", 2.0)
    for lie in (m.Hello("worker", "b", 1, "", 8), dataclasses.replace(hello("a", worker=7), name="b")):
        with pytest.raises(NotReady, match="shard 0 has not given 'b' number"):
            opened(all_, lie, b"b", 2.0)
    assert all_.workers == [one]
    assert all_.of(b"a", 3.0) is one
    assert opened(all_, hello("eye", role="observer", worker=7), b"e", 4.0)[0].index == -1


def test_a_shard_that_is_not_the_first_leaves_names_to_shard_0() -> None:
    """Which gave the later process a higher number, and would have refused it if the earlier one were at work."""
    all_ = Sessions(shard=1, shards=2, tokens=TOKENS)
    one, _ = opened(all_, hello("a", worker=7), b"a", 1.0)
    for other in (
        hello("a", incarnation=2, worker=6),
        m.Hello("worker", "a", 2, "", 8, 1234),
        hello("a", incarnation=2, role="observer"),
    ):
        with pytest.raises(NameError):
            opened(all_, other, b"b", 2.0)
    again, replaced = opened(all_, hello("a", incarnation=3, worker=8), b"c", 4.0)
    assert (again.index, replaced) == (8, one)


@pytest.mark.parametrize("role", ["worker", "observer"])
def test_the_name_of_a_process_at_work_is_not_given_to_another(role: str) -> None:
    """It is free once that process is late or its connection is gone, so that a worker may be started again."""
    all_ = Sessions()
    one, _ = opened(all_, hello("a"), b"a", 1.0)
    with pytest.raises(NameError):
        opened(all_, hello("a", incarnation=2, role=role), b"b", 1.5)
    assert all_.of(b"a", 2.0) is one
    all_.disconnected(b"a")
    opened(all_, hello("a"), b"c", 2.0)  # it was only the connection
    with pytest.raises(NameError):
        opened(all_, hello("a", incarnation=2, role=role), b"b", 2.5)
    watch(all_, 2.0, 5.0)
    if role == "observer":  # seen to fail: it took the name of a worker that was late on a busy machine, and ended it
        with pytest.raises(NameError):
            opened(all_, hello("a", incarnation=2, role=role), b"b", 5.0)
    else:
        assert opened(all_, hello("a", incarnation=2, role=role), b"b", 5.0)[1] is one


def test_an_observer_gives_its_name_to_a_worker() -> None:
    """Which would otherwise be kept out by a stranger that has taken all names before."""
    all_ = Sessions()
    eye, _ = opened(all_, hello("a", role="observer"), b"e", 1.0)
    assert opened(all_, hello("a", incarnation=2), b"a", 1.0)[1] is eye


def test_observers_leave_sessions_to_workers() -> None:
    """Seen to fail: a stranger took all sessions, and a worker that came later ended."""
    all_ = Sessions()
    for number in range(MAX_OBSERVERS):
        opened(all_, hello(f"e{number}", role="observer"), b"%d" % number, 1.0)
    with pytest.raises(LimitExceeded):
        opened(all_, hello("eye", role="observer"), b"eye", 1.0)
    opened(all_, hello("w"), b"w", 1.0)


def test_shard_0_gives_numbers_and_takes_none() -> None:
    all_ = Sessions()
    assert [opened(all_, hello(name, worker=5), name.encode(), 1.0)[0].index for name in "ab"] == [0, 1]


def test_numbers_of_workers_are_never_given_twice() -> None:
    """They choose the random stream."""
    all_ = Sessions()
    seen = []
    for n in range(5):
        session, _ = opened(all_, hello(f"w{n % 2}", incarnation=n), b"p%d" % n, 0.0)
        all_.disconnected(b"p%d" % n)
        seen.append(session.index)
        if n % 2:
            all_.close(session)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "a\x1b[0m", "a\0", "all"])
def test_a_name_that_would_spoil_the_stream_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        opened(Sessions(), hello(name), b"p", 0.0)


@pytest.mark.parametrize("role", ["", "admin", "Worker"])
def test_there_are_two_roles(role: str) -> None:
    with pytest.raises(BadRequest, match="role must be worker or observer"):
        opened(Sessions(), hello(role=role), b"p", 0.0)


def test_observers_do_not_train() -> None:
    all_ = Sessions()
    opened(all_, hello("eye", role="observer"), b"o", 0.0)
    opened(all_, hello(), b"w", 0.0)
    assert [session.name for session in all_.workers] == ["w0"]
    assert all_.worker(b"w", -1, 0.0).name == "w0"
    with pytest.raises(BadRequest, match="observers may only look"):
        all_.worker(b"o", -1, 0.0)


def test_there_is_room_for_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    all_ = Sessions()
    for n in range(3):
        opened(all_, hello(f"w{n}"), b"%d" % n, 0.0)
    with pytest.raises(LimitExceeded, match="3 sessions"):
        opened(all_, hello("w3"), b"3", 0.0)
    all_.disconnected(b"1")
    opened(all_, hello("w1", incarnation=9), b"4", 0.0)


def watch(all_: Sessions, since: float, until: float, lease_s: float = 10.0) -> tuple[list[str], list[str]]:
    """Look every half second; who became late, who was lost."""
    late, lost = [], []
    for step in range(int((until - since) * 2) + 1):
        found = all_.watch(since + step / 2, lease_s)
        late += [session.name for session in found[0]]
        lost += [session.name for session in found[1] if session.name not in lost]
    return late, lost


def test_the_silent_are_late_first_and_lost_later() -> None:
    all_ = Sessions()
    for n in range(3):
        opened(all_, hello(f"w{n}"), b"%d" % n, float(n))
    assert watch(all_, 0.0, 2.5) == ([], [])
    assert watch(all_, 2.5, 4.5) == (["w0", "w1"], [])
    all_.of(b"0", 4.5)
    assert all_.by_name["w0"].state == "training"
    assert watch(all_, 4.5, 11.5) == (["w2", "w0"], ["w1"])


def test_a_server_that_did_not_look_blames_no_client() -> None:
    """It was stopped, or busy, for 100 s; what the workers said meanwhile lies unread in its socket."""
    all_ = Sessions()
    opened(all_, hello("w0"), b"0", 0.0)
    assert watch(all_, 0.0, 1.0) == ([], [])
    assert watch(all_, 101.0, 102.0) == ([], [])
    assert watch(all_, 102.0, 109.0) == (["w0"], [])
    assert watch(all_, 109.0, 111.0) == ([], ["w0"])


def test_a_session_that_ended_does_not_come_back() -> None:
    """What it had leased belongs to others: its process must begin a new one."""
    all_ = Sessions()
    session, _ = opened(all_, hello("w0"), b"0", 0.0)
    all_.close(session)
    with pytest.raises(UnknownSession, match="is over"):
        opened(all_, hello("w0"), b"1", 1.0)
    opened(all_, hello("w0", incarnation=2), b"1", 1.0)
    assert [one.incarnation for one in all_.workers] == [2]


def test_ended_sessions_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_ENDED", 5)
    all_ = Sessions()
    for n in range(50):
        all_.close(opened(all_, hello("w0", incarnation=n), b"0", 0.0)[0])
    for n in range(45, 50):
        with pytest.raises(UnknownSession):
            opened(all_, hello("w0", incarnation=n), b"0", 0.0)
    opened(all_, hello("w0", incarnation=44), b"0", 0.0)  # forgotten
