"""Watching a run: samples from the feed into the history, to every sink and view, one step at a time.

`glovewire monitor` and `glovewire train` both drive it; it has no loop and no thread of its own, so that the caller
stays in charge. It must never raise away a run's records: what has been heard is written when it closes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self, TextIO

from glovewire.common.protocol.messages import Message

from .history.history import History
from .history.records import Recorder
from .sinks.plot import check_path, plot
from .stream.feed import Feed, Received
from .terminal.view import View, view


class Sink(Protocol):
    """Something that samples are written to."""

    def add(self, message: Message) -> None:
        """Take one sample."""

    def close(self) -> None:
        """Finish; twice is fine."""


class Watch:
    """Follows the servers that publish at `addresses`; call `step` until `over`, then `close`.

    `records` gets the losses (`metrics.jsonl`), `log` every sample, `picture` a plot of the losses when it closes,
    `stream` the live view or plain lines. `timeout_s` is the deadline for the first sample of each address, `silence_s`
    how long they may all say nothing later on; `keys` is what `--keys` says.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        name: str = "",
        records: Path | None = None,
        log: Path | None = None,
        picture: Path | None = None,
        stream: TextIO | None = None,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        keys: Path | None = None,
    ) -> None:
        if picture is not None:
            check_path(picture)
        self.history = History(name)
        self.sinks: list[Sink] = []
        self._picture = picture
        self._closed = False
        self._view: View | None = None
        self.feed = Feed(addresses, timeout_s=timeout_s, silence_s=silence_s, keys=keys)
        try:
            if records is not None:
                self.sinks.append(Recorder(records))
            if log is not None:
                self.sinks.append(Recorder(log, everything=True))
        except BaseException:
            self._close_all()
            raise
        if stream is not None:
            self._view = view(stream)

    @property
    def over(self) -> bool:
        """Whether the run has finished or failed."""
        return self.feed.over

    def step(self, wait_s: float = 0.0) -> None:
        """Take in what has arrived, waiting at most `wait_s` seconds for it, and bring the views up to date."""
        for received in self.feed.poll(wait_s):
            self._take(received)
        self.history.lost = self.feed.lost
        if self._view is not None:
            self._view.show(self.history, time.monotonic(), self.feed.silent)

    def close(self) -> None:
        """Take in what is still there, end the views, write the picture; twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            for received in self.feed.poll():
                self._take(received)
        finally:
            self._close_all()
        if self._picture is not None and self.history.overall.last is not None:
            plot(self.history, self._picture)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, received: Received) -> None:
        self.history.begin(received.run, anew=received.restarted)
        if received.restarted:
            self.history.note("restarted", received.address, "the server has started anew")
        self.history.add(received.message, time.monotonic())
        for sink in self.sinks:
            sink.add(received.message)

    def _close_all(self) -> None:
        if self._view is not None:
            self._view.close(self.history, time.monotonic())
        for sink in self.sinks:
            sink.close()
        self.feed.close()
