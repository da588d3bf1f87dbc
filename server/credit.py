"""How many bytes of pushes each worker may have on their way: so much each, and so much together. Pure.

A promise counts from when it is made until another one is told, or its worker leaves. So a newcomer gets what others
have left of the whole, be it nothing, and its even share once they have heard of theirs. Whoever has nothing may still
send one message at a time.
"""

from __future__ import annotations

EACH_BYTES = 64 << 20
CREDIT_IN_ALL_BYTES = 1 << 30


class Credit:
    """What each worker was told last, by its number."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        self._promised = 0

    def grant(self, worker: int) -> int:
        """What to tell `worker` now; nothing to who is none (-1)."""
        if worker < 0:
            return 0
        others = self._promised - self._of.setdefault(worker, 0)
        self._of[worker] = min(EACH_BYTES, CREDIT_IN_ALL_BYTES // len(self._of), CREDIT_IN_ALL_BYTES - others)
        self._promised = others + self._of[worker]
        return self._of[worker]

    def of(self, worker: int) -> int:
        """What `worker` was told last."""
        return self._of.get(worker, 0)

    def take_back(self, worker: int) -> None:
        """A worker has left."""
        self._promised -= self._of.pop(worker, 0)
