"""Who said hello, what was last applied of theirs, when they were last heard. No clock: `now` is an argument."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from glovewire.common.errors import BadRequest, LimitExceeded, OutOfOrder, UnknownSession, UsageError
from glovewire.common.protocol.messages import Granted, Hello
from glovewire.common.protocol.schema import NAME_RULE, is_name

MAX_SESSIONS = 1024
MAX_ENDED = 4096
LATE_FRACTION = 0.25
"""A worker that has been silent for this part of its lease is late; after all of it, lost."""
STALL_S = 1.0
"""When nobody looked for so long, the silence is ours and not the workers'."""
ALL = "all"
Peer = bytes


@dataclass
class Session:
    """One worker, or observer, from hello to bye."""

    name: str
    incarnation: int
    role: str
    index: int
    peer: Peer
    seen: float
    joined: float
    state: str = "training"
    pushed: int = 0
    staleness: int = 0
    reported: int = 0
    ticket: int = 0
    grant: Granted | None = None
    entries: int = 0
    bytes_sent: int = 0


@dataclass
class Sessions:
    """Every session of one of `shards`, by name, and by the address of its last hello.

    At shard 0 the first worker gets `next_number`; so many are `expected`.
    """

    next_number: int = 0
    expected: int = 0
    shard: int = 0
    shards: int = 1
    by_name: dict[str, Session] = field(default_factory=dict)
    _by_peer: dict[Peer, Session] = field(default_factory=dict)
    _ended: OrderedDict[tuple[str, int], bool] = field(default_factory=OrderedDict)
    _watched: float | None = None
    _came: set[str] = field(default_factory=set)

    def open(self, hello: Hello, peer: Peer, now: float) -> tuple[Session, Session | None]:
        """The session of a hello, and the one that it replaces (same name, other incarnation), if any."""
        if hello.role not in ("worker", "observer"):
            raise BadRequest(f"role must be worker or observer, not {hello.role[:40]!r}")
        if not is_name(hello.name):
            raise BadRequest(NAME_RULE)
        if hello.name == ALL:
            raise BadRequest(f"a worker cannot be called {ALL!r}: the stream calls the sum of them so")
        self._require_alive(hello)
        known = self.by_name.get(hello.name)
        if known is not None and (known.incarnation, known.role) == (hello.incarnation, hello.role):
            self._by_peer.pop(known.peer, None)
            known.peer, known.seen, known.state = peer, now, "training"
            self._by_peer[peer] = known
            return known, None
        if known is None and len(self.by_name) >= MAX_SESSIONS:
            raise LimitExceeded(f"the server has {MAX_SESSIONS} sessions already")
        number = self._number(hello)
        if known is not None:
            self.close(known, replaced=True)
        session = Session(hello.name, hello.incarnation, hello.role, number, peer, now, now)
        self.by_name[hello.name] = self._by_peer[peer] = session
        return session, known

    def _number(self, hello: Hello) -> int:
        """The number that shard 0 gave a worker; the next one if that is what this shard is. Observers have none."""
        if hello.role != "worker":
            return -1
        if self.shard == 0:
            self.next_number += 1
            return self.next_number - 1
        if hello.worker < 0:
            where = f"{self.shard}/{self.shards}"
            raise UsageError(f"give every shard's address once, in order; the first is shard {where}")
        if holder := next((w.name for w in self.workers if w.index == hello.worker and w.name != hello.name), ""):
            raise BadRequest(f"{holder!r} has the number {hello.worker}, which shard 0 gave it")
        return hello.worker

    def note(self, hello: Hello) -> None:
        """Somebody has come, be it too late."""
        if hello.role == "worker" and len(self._came) < self.expected:
            self._came.add(hello.name[:64])

    @property
    def absent(self) -> int:
        """How many of the `expected` workers have never come, once any has: a complete run may begin for nobody."""
        return self.expected - len(self._came) if self._came else 0

    def of(self, peer: Peer, now: float) -> Session:
        """The session that speaks from `peer`, marked as heard; UnknownSession if there is none."""
        session = self._by_peer.get(peer)
        if session is None:
            raise UnknownSession("say hello first: this server does not know you (any more)")
        session.seen, session.state = now, "training"
        return session

    def worker(self, peer: Peer, now: float) -> Session:
        """The same for what only workers may do; BadRequest for an observer."""
        session = self.of(peer, now)
        if session.role != "worker":
            raise BadRequest("observers may only look: say hello as a worker")
        return session

    def other(self, peer: Peer, name: str) -> Session | None:
        """The session that speaks from `peer` under another name, if any."""
        session = self._by_peer.get(peer)
        return session if session is not None and session.name != name else None

    def name_at(self, peer: Peer) -> str | None:
        """The name of whoever speaks from `peer`, None without a session."""
        session = self._by_peer.get(peer)
        return None if session is None else session.name

    def close(self, session: Session, *, replaced: bool = False) -> None:
        """End a session. Its incarnation does not come back: what it had belongs to others now."""
        self._ended[session.name, session.incarnation] = replaced
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        if self.by_name.get(session.name) is session:
            del self.by_name[session.name]
        if self._by_peer.get(session.peer) is session:
            del self._by_peer[session.peer]

    def is_open(self, session: Session, peer: Peer) -> bool:
        """Whether a session still stands and still speaks from `peer`."""
        return self.by_name.get(session.name) is session and session.peer == peer

    @property
    def workers(self) -> list[Session]:
        """The sessions that train."""
        return [session for session in self.by_name.values() if session.role == "worker"]

    def watch(self, now: float, lease_s: float) -> tuple[list[Session], list[Session]]:
        """Sessions that have become late since the last look, and those whose lease is over.

        The time of a stall, in which this server did not look, is nobody's silence.
        """
        stall = now - self._watched if self._watched is not None else 0.0
        self._watched = now
        if stall > STALL_S:
            for session in self.by_name.values():
                session.seen = min(session.seen + stall, now)
        lost = [session for session in self.by_name.values() if now - session.seen > lease_s]
        quiet = (s for s in self.by_name.values() if now - s.seen > lease_s * LATE_FRACTION and s.state != "late")
        late = [session for session in quiet if session not in lost]
        for session in late:
            session.state = "late"
        return late, lost

    def _require_alive(self, hello: Hello) -> None:
        replaced = self._ended.get((hello.name, hello.incarnation))
        if replaced:
            raise BadRequest(f"another process took the name {hello.name!r} since: give every worker its own")
        if replaced is not None:
            raise UnknownSession(f"the session of {hello.name!r} is over: begin a new one")


def is_new(what: str, sequence: int, last: int) -> bool:
    """Whether a numbered push or report is the next one, not a repeat; OutOfOrder when one between is missing."""
    if sequence > last + 1:
        raise OutOfOrder(f"{what} {sequence} came before {what} {last + 1}")
    return sequence > last
