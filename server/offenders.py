"""Who has sent too much that is no message: from then on unheard. Memory is bounded; no sockets, no clock, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from .sessions import Peer

MAX_ERRORS = 64
MAX_PEERS = 4096


@dataclass
class Offenders:
    """Counts unreadable messages by peer; a peer has MAX_ERRORS of them, each with an answer, and then is out.

    A peer is one connection: who connects anew begins anew. Of more than MAX_PEERS the oldest are forgotten.
    """

    _errors: OrderedDict[Peer, int] = field(default_factory=OrderedDict)
    _out: OrderedDict[Peer, bool] = field(default_factory=OrderedDict)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._out

    def note(self, peer: Peer) -> None:
        """One more message of `peer` could not be read."""
        count = self._errors.pop(peer, 0) + 1
        if count < MAX_ERRORS:
            self._errors[peer] = count
        else:
            self._out[peer] = False
        for kept in (self._errors, self._out):
            while len(kept) > MAX_PEERS:
                kept.popitem(last=False)

    def leaves(self, peer: Peer) -> bool:
        """Whether this is the first time that `peer` is heard of after it was put out; its connection ends once."""
        before, self._out[peer] = self._out[peer], True
        return not before
