"""Log events on stderr, one line of `key=value` pairs each; at level info, nothing is logged per training step.

Floods are rate-limited: each WINDOW_S has at most PER_KIND lines of one kind of event, and PER_ADDRESS of one kind from
one address (`where`). Then one line says how many more there were.
"""

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

WINDOW_S = 10.0
PER_KIND, PER_ADDRESS = 50, 10
MAX_KEYS = 1024
_OURS = __name__.partition(".")[0]
_EVENT = re.compile(r"event=(\S+)(?:.*? where=(\S+))?")


def configure(level: str, role: str) -> None:
    """Send this process's log, from `level` upwards, to stderr; `role` (server 0, worker w1, ...) is in each line."""
    logging.basicConfig(
        level=level.upper(),
        handlers=[LimitedHandler()],
        format=f"%(asctime)s %(levelname)s role={_show(role.replace(' ', '-')).replace('%', '%%')} %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def line(event: str, **facts: object) -> str:
    """Return `event=... key=value ...`: text with blanks or quotes is quoted, floats have 4 digits, "" is omitted."""
    return " ".join([f"event={event}", *(f"{key}={_show(value)}" for key, value in facts.items() if value != "")])


class Flood:
    """Decides which lines to leave out, and counts them. No I/O."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._shown: Counter[tuple[str, str]] = Counter()
        self._left_out: Counter[tuple[str, str]] = Counter()

    def admits(self, text: str) -> bool:
        """Return whether to show a line; one that names no event is always shown."""
        if (found := _EVENT.match(text)) is None:
            return True
        kind, address = found[1], found[2] or ""
        if len(self._shown) + len(self._left_out) > MAX_KEYS:
            address = ""
        if self._shown[kind, ""] < PER_KIND and self._shown[kind, address] < (PER_ADDRESS if address else PER_KIND):
            self._shown.update({(kind, ""), (kind, address)})
            return True
        self._left_out[kind, address] += 1
        return False

    def ended(self, now: float, *, anyway: bool = False) -> Iterator[str]:
        """Yield a line for each kind and address that was cut short, if the window is over at `now` (or `anyway`)."""
        if now - self._since < WINDOW_S and not anyway:
            return
        left_out, self._since = self._left_out, now
        self._shown, self._left_out = Counter(), Counter()
        most = left_out.most_common(PER_ADDRESS)
        for (kind, address), count in most:
            yield line(kind, where=address, text=f"and {count:,} more")
        if rest := left_out.total() - sum(count for _, count in most):
            yield line("more", text=f"and {rest:,} more of other kinds or addresses")


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to stderr, rate-limited; from other libraries, only warnings and errors.

    Below that level, libraries log requests, which may contain credentials.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._flood = Flood()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, preceded by the counts of what the last window left out."""
        if record.levelno < logging.WARNING and not record.name.startswith(_OURS):
            return
        now = time.monotonic()
        for text in self._flood.ended(now):
            self._write(text)
        if self._flood.admits(record.getMessage()):
            super().emit(record)

    def close(self) -> None:
        """Write the counts of what the current window has left out."""
        for text in self._flood.ended(time.monotonic(), anyway=True):
            self._write(text)
        super().close()

    def _write(self, text: str) -> None:
        super().emit(logging.makeLogRecord({"levelname": "WARNING", "levelno": logging.WARNING, "msg": text}))


def _show(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return repr(text) if any(character in text for character in " \"'=\n\r\t") or not text.isprintable() else text
