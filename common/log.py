"""Log one line of `key=value` per event on stderr, for people and machines; nothing per training step at info."""

import logging
import sys

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, role: str) -> None:
    """Send the log of this process to stderr, with its `role` (server 0, worker w1, ...) in each line."""
    logging.basicConfig(
        level=_LEVELS[level],
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s role={_show(role.replace(' ', '-')).replace('%', '%%')} %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )


def line(event: str, **facts: object) -> str:
    """Return `event=... key=value ...`; blanks and quotes are quoted, floats get four digits, "" is left out."""
    return " ".join([f"event={event}", *(f"{key}={_show(value)}" for key, value in facts.items() if value != "")])


def _show(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return repr(text) if any(character in text for character in " \"'=\n\r\t") or not text.isprintable() else text
