"""Wake, from a signal handler or another thread, a thread that polls sockets. No ZeroMQ."""

import contextlib
import socket as plain


class Wakeup:
    """Wakes a poller through a socketpair: `set` makes `reader`, which the poller polls, readable."""

    def __init__(self) -> None:
        self.reader, self._writer = plain.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def set(self) -> None:
        """Wake the poller of `reader`; no effect if it is set already or closed."""
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Undo every `set` so far."""
        with contextlib.suppress(OSError):
            self.reader.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self._writer.close()
