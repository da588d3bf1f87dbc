"""How far each phase is: a bar with rate and time left on a terminal, otherwise one log line every few seconds.

Draws from the caller's thread only (no thread of its own: the workers are forked).
"""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from glovewire.common import log

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LOG_EVERY_S = 5.0
_DRAW_EVERY_S = 0.2
_logger = logging.getLogger(__name__)


class Phase:
    """One phase of the work: `advance` as units are done, `tick` while waiting; its time goes to `seconds[name]`."""

    def __init__(self, name: str, unit: str, total: int | None, seconds: dict[str, float]) -> None:
        self.name, self.unit, self.total = name, unit, total
        self.done, self._seconds = 0, seconds
        self._begun = self._shown = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Phase:
        if sys.stderr.isatty():
            self._bar = _bar(self.unit)
            self._bar.start()
            self._task = self._bar.add_task(self.name, total=self.total)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        seconds = time.monotonic() - self._begun
        self._seconds[self.name] = round(seconds, 3)
        if self._bar is not None:
            self._draw()
            self._bar.stop()
        elif kind is None:
            _logger.info(log.line("done", phase=self.name, **{self.unit: self.done}, seconds=seconds))

    def advance(self, amount: int) -> None:
        """`amount` more units are done."""
        self.done += amount
        self.tick()

    def tick(self) -> None:
        """Show where things stand, if it is time."""
        now = time.monotonic()
        if now - self._shown < (_LOG_EVERY_S if self._bar is None else _DRAW_EVERY_S):
            return
        self._shown = now
        if self._bar is not None:
            self._draw()
        else:
            _logger.info(log.line("progress", phase=self.name, **self._facts(now - self._begun)))

    def _draw(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)
            self._bar.refresh()

    def _facts(self, seconds: float) -> dict[str, object]:
        rate = self.done / seconds if seconds else 0.0
        facts: dict[str, object] = {self.unit: self.done, "per_second": round(rate)}
        if self.total:
            left = max(0, self.total - self.done)
            facts |= {"percent": round(100 * self.done / self.total), "eta_s": round(left / rate) if rate else "?"}
        return facts


def _bar(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit))
    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        *amounts,
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        auto_refresh=False,
    )
