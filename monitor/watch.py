"""Drive a monitor: pass samples from the feed to the history, every sink and the view, one step at a time.

`glovewire monitor` and `glovewire train` call `step` from their own loops; this module starts no thread.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TextIO

from glovewire.common.errors import GlovewireError
from glovewire.common.protocol.messages import Message

from .history.history import RunHistory
from .history.records import Recorder
from .sinks.plot import check_path, plot
from .stream.feed import Feed
from .terminal.view import View, open_view


class Sink(Protocol):
    """Destination of samples."""

    def add(self, message: Message) -> None:
        """Process one sample."""

    def close(self) -> None:
        """Finish writing; may be called twice."""


class Watcher(AbstractContextManager["Watcher"]):
    """Follows the servers that publish at `addresses`; call `step` until `feed.over`, then `close`.

    Writes every sample to `log`, a plot of the losses to `picture` on `close`, and the view or lines to `stream`.
    `timeout_s`, `silence_s` and `keys` are those of `Feed`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        name: str = "",
        log: Path | None = None,
        picture: Path | None = None,
        stream: TextIO | None = None,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        keys: Path | None = None,
    ) -> None:
        if picture is not None:
            check_path(picture)
        self.history = RunHistory(name)
        self.sinks: list[Sink] = []
        self._picture = picture
        self._closed = False
        self._view: View | None = None
        self.feed = Feed(addresses, timeout_s=timeout_s, silence_s=silence_s, keys=keys)
        try:
            if log is not None:
                self.sinks.append(Recorder(log))
        except BaseException:
            self._close_all()
            raise
        if stream is not None:
            self._view = open_view(stream)

    def step(self, wait_s: float = 0.0) -> None:
        """Wait at most `wait_s` seconds for samples, process those that have arrived, and refresh the view."""
        self._receive(wait_s)
        self.history.lost = self.feed.lost
        if self._view is not None:
            self._view.show(self.history, time.monotonic(), self.feed.silent)

    def close(self) -> None:
        """Process the remaining samples, close the view and the sinks, write the picture; may be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._receive(0.0)
        finally:
            self._close_all()
        if self._picture is not None and self.history.overall.last is not None:
            plot(self.history, self._picture)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close; if the block and the picture have both failed, raise an error of the block's type that names both.

        The stream is read once more, and may fail as it did in the block.
        """
        try:
            self.close()
        except GlovewireError as last:
            if error is None:
                raise
            if isinstance(error, GlovewireError) and str(last) != str(error):
                raise type(error)(f"{error}; {last}") from error

    def _receive(self, wait_s: float) -> None:
        for received in self.feed.poll(wait_s):
            self.history.begin(received.run, restarted=received.restarted)
            if received.restarted:
                self.history.note("restarted", received.address, "the server was started again")
            self.history.add(received.message, time.monotonic())
            for sink in self.sinks:
                sink.add(received.message)

    def _close_all(self) -> None:
        if self._view is not None:
            self._view.close(self.history, time.monotonic())
        for sink in self.sinks:
            sink.close()
        self.feed.close()
