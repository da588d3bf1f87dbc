"""A wake-up call for whoever polls: from a signal handler, or from another thread. No ZeroMQ."""

from __future__ import annotations

import socket as plain


class Wakeup:
    """A byte in a socketpair: wakes a poller from a signal handler or another thread, at once."""

    def __init__(self) -> None:
        self.reader, self._writer = plain.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def set(self) -> None:
        """Wake whoever polls `reader`; harmless when it is set already."""
        try:
            self._writer.send(b"\0")
        except OSError:  # full (already set) or closed: either way nobody needs waking
            return

    def clear(self) -> None:
        """Take back every `set` so far."""
        try:
            self.reader.recv(4096)
        except OSError:  # nothing there
            return

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self._writer.close()
