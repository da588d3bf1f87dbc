"""Log events on stderr, one line of `key=value` pairs each; at level info, nothing is logged per training step."""

import logging
import sys


def configure(level: str, role: str) -> None:
    """Send this process's log, from `level` on, to stderr; `role` (server 0, worker w1, ...) is in each line."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s role={_show(role.replace(' ', '-')).replace('%', '%%')} %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def line(event: str, **facts: object) -> str:
    """Return `event=... key=value ...`: text with blanks or quotes is quoted, floats have 4 digits, "" is omitted."""
    return " ".join([f"event={event}", *(f"{key}={_show(value)}" for key, value in facts.items() if value != "")])


def _show(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return repr(text) if any(character in text for character in " \"'=\n\r\t") or not text.isprintable() else text
