"""Format durations and names for people, and remove control characters from names."""

import re

MAX_NAME = 48
NO_WORKER_YET = "no worker yet: at their first start they compile their loops"


def duration(seconds: float) -> str:
    """Return a duration as `0:42`, `12:03` or `1:02:03`; from 24 hours on, as `2 d 1:02:03`."""
    days, rest = divmod(max(0, round(seconds)), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} d {clock}" if days else clock


def age(seconds: float) -> str:
    """Return an age as `now`, `3 s`, `2 min` or `5 h`."""
    if seconds < 1:
        return "now"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.0f} h"


def sanitize(text: str, limit: int = MAX_NAME) -> str:
    """Return `text`, which came from the network, with control characters replaced, cut to `limit` characters."""
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `w2` before `w10`."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part) if number % 2 else 0, part) for number, part in enumerate(parts)]
