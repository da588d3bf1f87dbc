"""Keep the sessions of workers and observers: names, last push and report handled, time of the last message.

No I/O; `now` is an argument.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from glovewire.common.errors import BadRequest, LimitExceeded, NotReady, OutOfOrder, UnknownSession, UsageError
from glovewire.common.protocol.messages import Granted, Hello
from glovewire.common.protocol.schema import NAME_RULE, is_name
from glovewire.common.roles import Client

from .tokens import Tokens

MAX_SESSIONS = 1024
MAX_OBSERVERS = 768
"""Maximum number of observers; the other sessions are kept for workers."""
MAX_ENDED = 4096
LATE = "late"
LATE_FRACTION = 0.25
"""A worker that has been silent for this fraction of its lease is late; after the whole lease it is lost."""
STALL_S = 1.0
"""A gap between two calls of `watch` longer than this is a stall of the server, not silence of the clients."""
MAX_DECLARATIONS = 4
ALL = "all"
Peer = bytes


@dataclass
class Session:
    """One worker or observer, from Hello to Leave; `index` is a worker's number, -1 for observers.

    `pushed` and `reported` are the last sequence numbers handled, `pushed_late` whether that push was dropped as late;
    `grant` is the reply to the lease request `ticket`. `connected` is False once a reply could not be sent because the
    connection was gone.
    """

    name: str
    incarnation: int
    role: str
    index: int
    peer: Peer
    seen: float
    joined: float
    state: str = "training"
    pushed: int = 0
    pushed_late: bool = False
    staleness: int = 0
    reported: int = 0
    ticket: int = 0
    grant: Granted | None = None
    entries: int = 0
    bytes_sent: int = 0
    connected: bool = True
    declarations: int = 0

    @property
    def is_worker(self) -> bool:
        """Return whether this session trains."""
        return self.role == "worker"

    def hear(self, now: float) -> None:
        """Record that a message of this session arrived at `now`."""
        self.seen, self.state, self.connected = now, "training", True

    def declare(self) -> None:
        """Count a model that has to be parsed, which takes milliseconds; LimitExceeded after MAX_DECLARATIONS."""
        if self.declarations == MAX_DECLARATIONS:
            raise LimitExceeded(f"{self.name!r} has declared {MAX_DECLARATIONS} models that are not the server's")
        self.declarations += 1


def is_new(what: str, sequence: int, last: int) -> bool:
    """Return whether a push or report is the next one, not a repeat; OutOfOrder when one before it is missing."""
    if sequence > last + 1:
        raise OutOfOrder(f"{what} {sequence} came before {what} {last + 1}")
    return sequence > last


@dataclass
class Sessions:
    """The open sessions of shard `shard` of `shards`, by name and by the peer of their last Hello.

    Shard 0 numbers workers from `next_number` on; `expected` is how many workers the run expects.

    A name belongs to one session at a time, and shard 0 decides to which: `holder` has the rule. The other shards obey
    the number and the token that shard 0 gave.
    """

    next_number: int = 0
    expected: int = 0
    shard: int = 0
    shards: int = 1
    tokens: Tokens = field(default_factory=lambda: Tokens(b""))
    by_name: dict[str, Session] = field(default_factory=dict)
    _by_peer: dict[Peer, Session] = field(default_factory=dict)
    _ended: OrderedDict[tuple[str, int], bool] = field(default_factory=OrderedDict)
    _watched: float | None = None
    _came: set[str] = field(default_factory=set)

    def open(self, hello: Hello, peer: Peer, now: float) -> tuple[Session, Session | None]:
        """Return the session for a Hello, and the one that it replaces (same name, other incarnation), if any.

        Call `require_valid` and `holder` first.
        """
        known = self.by_name.get(hello.name)
        if known is not None and (known.incarnation, known.role) == (hello.incarnation, hello.role):
            self._by_peer.pop(known.peer, None)
            known.peer = peer
            known.hear(now)
            self._by_peer[peer] = known
            return known, None
        if known is None and len(self.by_name) >= MAX_SESSIONS:
            raise LimitExceeded(f"the server has {MAX_SESSIONS} sessions already")
        if known is None and hello.role != "worker" and len(self.by_name) - len(self.workers) >= MAX_OBSERVERS:
            raise LimitExceeded(f"the server has {MAX_OBSERVERS} observers already")
        number = self._number(hello)
        if known is not None:
            self.close(known, replaced=True)
        session = Session(hello.name, hello.incarnation, hello.role, number, peer, now, now)
        self.by_name[hello.name] = self._by_peer[peer] = session
        return session, known

    def require_valid(self, hello: Hello) -> None:
        """Raise BadRequest for an impossible role or name, UnknownSession for an incarnation whose session is over."""
        if hello.role not in ("worker", "observer"):
            raise BadRequest(f"role must be worker or observer, not {hello.role[:40]!r}")
        if not is_name(hello.name):
            raise BadRequest(NAME_RULE)
        if hello.name == ALL:
            raise BadRequest(f"a worker cannot have the name {ALL!r}: the stream uses it for the sum of all workers")
        replaced = self._ended.get((hello.name, hello.incarnation))
        if replaced:
            raise BadRequest(f"another process took the name {hello.name!r} since: give every worker its own")
        if replaced is not None:
            raise UnknownSession(f"the session of {hello.name!r} is over: begin a new one")

    def holder(self, hello: Hello) -> Session | None:
        """Return the session that has the name of a Hello and keeps it, None if the Hello may open or resume one.

        Another incarnation takes the name of a session that is late or whose connection is gone, except that an
        observer never takes a worker's. A worker also takes the name of any observer and, on shards other than 0, of a
        worker with a lower number.
        """
        known = self.by_name.get(hello.name)
        if known is None or known.incarnation == hello.incarnation:
            return None
        if hello.role != "worker" and known.is_worker:
            return known
        if known.state == LATE or not known.connected:
            return None
        if hello.role != "worker":
            return known
        older = self.shard > 0 and hello.worker > known.index and self._is_numbered(hello)
        return None if older or not known.is_worker else known

    def token(self, session: Session) -> int:
        """Return what proves a worker's number to the other shards, 0 for an observer."""
        if not session.is_worker:
            return 0
        return self.tokens.worker(session.index, session.name, session.incarnation)

    def _is_numbered(self, hello: Hello) -> bool:
        """Return whether shard 0 gave the worker of a Hello its number."""
        return not hello.token ^ self.tokens.worker(hello.worker, hello.name, hello.incarnation)

    def _number(self, hello: Hello) -> int:
        """Return a worker's number: on shard 0 the next one, elsewhere the one that shard 0 gave it."""
        if hello.role != "worker":
            return -1
        if self.shard == 0:
            self.next_number += 1
            return self.next_number - 1
        if hello.worker < 0:
            where = f"{self.shard}/{self.shards}"
            raise UsageError(f"give every shard's address once, in order; the first is shard {where}")
        if not self._is_numbered(hello):
            raise NotReady(f"in this generation of the run shard 0 has not given {hello.name!r} number {hello.worker}")
        return hello.worker

    def note(self, hello: Hello) -> None:
        """Record that an expected worker has connected, even if the run is already ending."""
        if hello.role == "worker" and len(self._came) < self.expected:
            self._came.add(hello.name[:64])

    @property
    def all_came(self) -> bool:
        """Return whether every expected worker has connected."""
        return len(self._came) >= self.expected

    @property
    def absent(self) -> int:
        """Return how many expected workers never connected; 0 before the first has, and on shards other than 0."""
        return self.expected - len(self._came) if self._came and self.shard == 0 else 0

    def of(self, peer: Peer, now: float) -> Session:
        """Return the session of `peer`, marked as heard; UnknownSession if there is none."""
        if (session := self.at(peer)) is None:
            raise UnknownSession("say hello first: this server has no session for this connection (any more)")
        session.hear(now)
        return session

    def worker(self, peer: Peer, number: int, now: float) -> Session:
        """Return the session of a worker, as `of` does; BadRequest for an observer.

        UnknownSession if the session's number is not `number`, which the client gave (-1: none): a late copy of a Hello
        from an earlier generation has opened the session, and the client does not know it.
        """
        session = self.of(peer, now)
        if not session.is_worker:
            raise BadRequest("observers may only look: say hello as a worker")
        if number not in (-1, session.index):
            raise UnknownSession(f"this session has the number {session.index}, not {number}: say hello again")
        return session

    def detach_others(self, peer: Peer, client: Client) -> None:
        """Take `peer` from the session of another client than `client`; the other must say hello again to continue.

        A peer is a routing id, and a client may choose that of another client whose connection was lost.
        """
        session = self._by_peer.get(peer)
        if session is not None and not client.owns(session.name):
            del self._by_peer[peer]

    def of_clients(self, clients: Collection[Client]) -> list[Session]:
        """Return the open sessions of `clients`."""
        return [each for each in self.by_name.values() if any(client.owns(each.name) for client in clients)]

    def disconnected(self, peer: Peer) -> None:
        """Record that the connection of `peer` is gone: its session may be resumed, and its name be taken."""
        if (session := self._by_peer.get(peer)) is not None:
            session.connected = False

    def at(self, peer: Peer) -> Session | None:
        """Return the session of `peer`, None if it has none; unlike `of`, do not count it as heard."""
        return self._by_peer.get(peer)

    def close(self, session: Session, *, replaced: bool = False) -> None:
        """End a session; the same incarnation cannot open it again, because its leases go to others."""
        self._ended[session.name, session.incarnation] = replaced
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        if self.by_name.get(session.name) is session:
            del self.by_name[session.name]
        if self._by_peer.get(session.peer) is session:
            del self._by_peer[session.peer]

    @property
    def workers(self) -> list[Session]:
        """Return the open sessions of workers."""
        return [session for session in self.by_name.values() if session.is_worker]

    def watch(self, now: float, lease_s: float) -> tuple[list[Session], list[Session]]:
        """Return the sessions that have become late since the last call, and those silent for longer than `lease_s`.

        A stall of the server, more than STALL_S since the last call, does not count as silence.
        """
        stall = now - self._watched if self._watched is not None else 0.0
        self._watched = now
        sessions = self.by_name.values()
        if stall > STALL_S:
            for session in sessions:
                session.seen = min(session.seen + stall, now)
        lost = [s for s in sessions if now - s.seen > lease_s]
        late = [s for s in sessions if lease_s * LATE_FRACTION < now - s.seen <= lease_s and s.state != LATE]
        for session in late:
            session.state = LATE
        return late, lost
