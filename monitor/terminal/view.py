"""The terminal view: progress, losses as a curve, workers, shards and events; plain lines where there is no terminal.

`view(stream)` chooses. Both kinds have `show(history, now)`, to be called as often as one likes, and `close`. They
only read the History, and names off the wire are text to them: never markup, never control characters.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from glovewire.common.log import line

from ..history import formatting as units
from ..history.history import History

if TYPE_CHECKING:
    from rich.live import Live

REFRESH_S = 0.2
LINE_EVERY_S = 5.0
QUIET_AFTER_S = 3.0


class View(Protocol):
    """What shows a History while it grows."""

    def show(self, history: History, now: float, silent: Sequence[str] = ()) -> None:
        """Bring the view up to date; `silent` are addresses that have not been heard yet."""

    def close(self, history: History, now: float) -> None:
        """Show the last state and leave the terminal as it was."""


def view(stream: TextIO) -> View:
    """A live view when `stream` is a terminal, a line every few seconds otherwise."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a name that this terminal cannot write is no reason to stop
    if stream.isatty() and os.environ.get("TERM", "") != "dumb":
        return LiveView(stream)
    return LineView(stream)


class LiveView:
    """Redraws in place, a few times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._shown: float | None = None

    def show(self, history: History, now: float, silent: Sequence[str] = ()) -> None:
        """Redraw, unless that was done a moment ago."""
        if self._shown is None or now - self._shown >= REFRESH_S:
            self._draw(history, now, silent)

    def close(self, history: History, now: float) -> None:
        """Leave the last picture on the screen and give the cursor back; twice is fine."""
        if self._live is not None:
            self._draw(history, now, ())
            self._live.stop()
            self._live = None

    def _draw(self, history: History, now: float, silent: Sequence[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        from .screen import screen

        if self._live is None:
            console = Console(file=self._stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        console = self._live.console
        size = console.size
        simple = not console.encoding.lower().startswith("utf")
        drawn = screen(history, now, size.width, size.height - 1, silent, ascii_only=simple)
        self._live.update(drawn, refresh=True)
        self._shown = now


class LineView:
    """Writes a line of key=value every few seconds, and each event as it comes."""

    def __init__(self, stream: TextIO, every_s: float = LINE_EVERY_S) -> None:
        self._stream = stream
        self._every_s = every_s
        self._written: float | None = None
        self._events = 0
        self._said = ""

    def show(self, history: History, now: float, silent: Sequence[str] = ()) -> None:
        """Write what is due."""
        self._write_events(history)
        if self._written is None:
            self._written = now - self._every_s + min(1.0, self._every_s)  # let the first samples come
        if now - self._written >= self._every_s:
            self._written = now
            text = status_line(history, now, silent)
            if not (history.finished and text == self._said):
                self._write(text)

    def close(self, history: History, now: float) -> None:
        """Write where it ended."""
        self._write_events(history)
        if history.loss is not None and self._said != (last := status_line(history, now)):
            self._write(last)

    def _write_events(self, history: History) -> None:
        new = min(len(history.events), history.noted - self._events)
        self._events = history.noted
        for event in list(history.events)[len(history.events) - new :] if new > 0 else ():
            self._write(line(event.kind, subject=event.subject, text=event.text))

    def _write(self, text: str) -> None:
        self._said = text
        self._stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._stream.flush()


def status_line(history: History, now: float, silent: Sequence[str] = ()) -> str:
    """Where the run stands, in one line of key=value."""
    quiet = history.silence_s(now)
    if quiet is None:
        return line("waiting", address=",".join(silent))
    if quiet > QUIET_AFTER_S and not history.finished:
        return line("silence", no_data_for=f"{quiet:.0f}s")
    sample = history.loss
    if sample is None:
        note = {} if history.active else {"note": units.NOBODY_YET}
        return line("connected", workers=history.active, shards=len(history.shards), **note)
    eta = history.eta_s
    return line(
        "progress",
        epoch=f"{min(sample.epoch + 1, sample.epochs)}/{sample.epochs}" if sample.epochs else sample.epoch,
        entries=sample.entries,
        loss=units.loss(history.mean.loss),
        bias_only_loss=units.loss(history.mean.bias_only_loss),
        norm=sample.norm,
        entries_per_second=round(history.entries_per_second),
        workers=history.active,
        eta=units.duration(eta) if eta is not None else "unknown",
        **({"lost_samples": history.lost} if history.lost else {}),
    )
