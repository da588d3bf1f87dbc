"""Show a run in a terminal: a screen that is redrawn in place, or plain lines if the output is not a terminal.

`open_view` chooses between them. Call `show` as often as you like, then `close`; `silent` are the addresses from which
nothing has arrived yet. Names from the network are shown as plain text, without markup or control characters.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from glovewire.common.log import line
from glovewire.common.text import shown_loss

from ..history import formatting
from ..history.history import QUIET_AFTER_S, RunHistory
from ..history.scores import newest_scores

if TYPE_CHECKING:
    from rich.live import Live

REFRESH_S = 0.2
LINE_EVERY_S = 5.0


class LiveView:
    """Redraws a screen in place, at most every REFRESH_S."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._drawn_at: float | None = None

    def show(self, history: RunHistory, now: float, silent: Sequence[str] = ()) -> None:
        """Redraw the screen, unless it was redrawn less than REFRESH_S ago."""
        if self._drawn_at is None or now - self._drawn_at >= REFRESH_S:
            self._draw(history, now, silent)

    def close(self, history: RunHistory, now: float) -> None:
        """Draw the last state, leave it on the screen and show the cursor again; may be called twice."""
        if self._live is not None:
            self._draw(history, now, ())
            self._live.stop()
            self._live = None

    def _draw(self, history: RunHistory, now: float, silent: Sequence[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        from .screen import render_screen

        if self._live is None:
            console = Console(file=self._stream, highlight=False)
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        console = self._live.console
        size = console.size
        ascii_only = not console.encoding.lower().startswith("utf")
        drawn = render_screen(history, now, size.width, size.height - 1, silent, ascii_only=ascii_only)
        self._live.update(drawn, refresh=True)
        self._drawn_at = now


class LineView:
    """Writes a line of key=value pairs every few seconds, and every event as it arrives."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._written_at: float | None = None
        self._events = 0
        self._last_line = ""

    def show(self, history: RunHistory, now: float, silent: Sequence[str] = ()) -> None:
        """Write new events, and the status line when it is due."""
        self._write_events(history)
        if self._written_at is None:
            self._written_at = now - LINE_EVERY_S + 1.0  # wait for the first samples
        if now - self._written_at >= LINE_EVERY_S:
            self._written_at = now
            text = status_line(history, now, silent)
            if not (history.finished and text == self._last_line):
                self._write(text)

    def close(self, history: RunHistory, now: float) -> None:
        """Write the last status line."""
        self._write_events(history)
        if history.loss is not None and self._last_line != (last := status_line(history, now)):
            self._write(last)

    def _write_events(self, history: RunHistory) -> None:
        new = min(len(history.events), history.event_count - self._events)
        self._events = history.event_count
        for event in list(history.events)[len(history.events) - new :] if new > 0 else ():
            self._write(line(event.kind, subject=event.subject, text=event.text))

    def _write(self, text: str) -> None:
        self._last_line = text
        self._stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._stream.flush()


View = LiveView | LineView


def open_view(stream: TextIO) -> View:
    """Return a LiveView when `stream` is a terminal, a LineView otherwise."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # the terminal's encoding may lack characters in a name
    if stream.isatty() and os.environ.get("TERM", "") != "dumb":
        return LiveView(stream)
    return LineView(stream)


def status_line(history: RunHistory, now: float, silent: Sequence[str] = ()) -> str:
    """Return the state of the run as one line of key=value pairs."""
    quiet = history.silence_s(now)
    if quiet is None:
        return line("waiting", address=",".join(silent))
    if history.is_writing_results:
        return line("writing", text="trained, writing the results", seconds=round(quiet))
    if quiet > QUIET_AFTER_S and not history.finished:
        return line("silence", no_data_for=f"{quiet:.0f}s")
    sample = history.loss
    if sample is None:
        note = {} if history.active_workers else {"note": formatting.NO_WORKER_YET}
        return line("connected", workers=history.active_workers, shards=len(history.shards), **note)
    eta = history.eta_s
    scores = {score.key: score.value for score in newest_scores(history)}
    if history.is_dense:
        facts: dict[str, object] = {
            "steps": history.epoch.replace(" of ", "/").replace(",", ""),
            "examples": sample.entries,
            "loss": shown_loss(sample.mean_loss),
            **scores,
            "gradient_norm": sample.norm,
            "steps_per_second": round(history.updates_per_second, 1),
            "examples_per_second": round(history.entries_per_second),
        }
    else:
        facts = {
            "epoch": history.epoch,
            "entries": sample.entries,
            "loss": shown_loss(sample.mean_loss),
            "bias_only_loss": shown_loss(sample.mean_bias_only_loss),
            **scores,
            "norm": sample.norm,
            "entries_per_second": round(history.entries_per_second),
        }
    return line(
        "progress",
        **facts,
        workers=history.active_workers,
        eta=formatting.duration(eta) if eta is not None else "unknown",
        **({"lost_samples": history.lost} if history.lost else {}),
    )
