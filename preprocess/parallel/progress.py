"""Show the progress of each phase: a bar with rate and time left on a terminal, otherwise a log line every 5 seconds.

Everything is drawn from the caller's thread, because no other thread may run while workers are forked.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from glovewire.common import log

if TYPE_CHECKING:
    from rich.progress import Progress

_LOG_EVERY_S = 5.0
_DRAW_EVERY_S = 0.2
_logger = logging.getLogger(__name__)


class Phase:
    """Context manager of one phase: call `advance` as units are done and `tick` while waiting.

    On exit, `seconds[name]` is set to the duration of the phase.
    """

    def __init__(self, name: str, unit: str, total: int | None, seconds: dict[str, float]) -> None:
        self.name, self.unit, self.total = name, unit, total
        self.done, self._seconds = 0, seconds
        self._begun = self._shown = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Phase:
        if sys.stderr.isatty():
            self._bar = _bar(self.unit, self.total)
            self._bar.start()
            self._bar.add_task(self.name, total=self.total)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        seconds = time.monotonic() - self._begun
        self._seconds[self.name] = round(seconds, 3)
        if self._bar is not None:
            self._draw(self._bar)
            self._bar.stop()
        elif kind is None:
            _logger.info(log.line("done", phase=self.name, **{self.unit: self.done}, seconds=seconds))

    def advance(self, amount: int) -> None:
        """Count `amount` more units as done."""
        self.done += amount
        self.tick()

    def tick(self) -> None:
        """Update the display if its interval has passed: 0.2 s for a bar, 5 s for log lines."""
        now = time.monotonic()
        if now - self._shown < (_LOG_EVERY_S if self._bar is None else _DRAW_EVERY_S):
            return
        self._shown = now
        if self._bar is not None:
            self._draw(self._bar)
        else:
            _logger.info(log.line("progress", phase=self.name, **self._facts(now - self._begun)))

    def _draw(self, bar: Progress) -> None:
        bar.update(bar.task_ids[0], completed=self.done)
        bar.refresh()

    def _facts(self, seconds: float) -> dict[str, object]:
        rate = self.done / seconds if seconds else 0.0
        facts: dict[str, object] = {self.unit: self.done, "per_second": round(rate)}
        if self.total:
            left = max(0, self.total - self.done)
            facts |= {"percent": round(100 * self.done / self.total), "eta_s": round(left / rate) if rate else "?"}
        return facts


def _bar(unit: str, total: int | None) -> Progress:
    """Return a bar of rich, not yet started; without a known total, it shows the amount done and the time elapsed."""
    from rich import progress as columns
    from rich.console import Console
    from rich.text import Text

    class Speed(columns.TransferSpeedColumn):
        """The rate in bytes per second; nothing, instead of a question mark, while it is unknown."""

        def render(self, task: columns.Task) -> Text:
            return super().render(task) if task.finished_speed or task.speed else Text()

    if unit == "bytes":
        done = columns.FileSizeColumn() if total is None else columns.DownloadColumn()
        amount: tuple[columns.ProgressColumn, ...] = (done, Speed())
    elif total is None:
        amount = (columns.TextColumn(f"{{task.completed:,}} {unit}"),)
    else:
        amount = (columns.MofNCompleteColumn(), columns.TextColumn(unit))
    left = columns.TimeElapsedColumn() if total is None else columns.TimeRemainingColumn(elapsed_when_finished=True)
    return columns.Progress(
        columns.TextColumn("{task.description:<12}"),
        columns.BarColumn(),
        *amount,
        left,
        console=Console(stderr=True),
        auto_refresh=False,
    )
