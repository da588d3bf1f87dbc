"""Ways to train that carry a number, written as one word: `sync`, `ssp:3`, `hyperbolic:4`. Pure, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from .errors import UsageError

BLOCK_MODES: Mapping[str, str] = {"exclusive": "", "async": ""}
BATCH_MODES: Mapping[str, str] = {"async": "", "sync": "", "ssp": "S", "softsync": "N"}
POLICIES: Mapping[str, str] = {"none": "", "inverse": "", "hyperbolic": "B", "gap": "", "dc": "L"}
CLOCKS = ("row", "table")
WHOLE: Mapping[str, int] = {"ssp": 0, "softsync": 1}
"""Kinds whose number counts something, and the least that it can be; others take any number above 0."""


@dataclass(frozen=True)
class Mode:
    """One of several ways, with its number where it has one (0 otherwise)."""

    kind: str
    number: float = 0.0

    @classmethod
    def parse(cls, text: str, known: Mapping[str, str]) -> Self:
        """`KIND` or `KIND:NUMBER`, as `known` has it (kind -> name of the number, or ""); UsageError otherwise."""
        kind, colon, number = text.partition(":")
        if kind not in known or bool(known[kind]) != bool(colon):
            raise UsageError(f"must be one of {spelled(known)}, not {text!r}")
        return cls(kind, _number(kind, known[kind], number)) if colon else cls(kind)


def spelled(known: Mapping[str, str]) -> str:
    """The ways to write `known`, for people."""
    return ", ".join(f"{kind}:{number}" if number else kind for kind, number in known.items())


def _number(kind: str, name: str, text: str) -> float:
    try:
        value = float(int(text) if kind in WHOLE else text)
    except ValueError as error:
        raise UsageError(f"must have a {'whole ' * (kind in WHOLE)}number after {kind}:, not {text!r}") from error
    if not math.isfinite(value) or (value < WHOLE[kind] if kind in WHOLE else value <= 0):
        least = f"at least {WHOLE[kind]}" if kind in WHOLE else "above 0"
        raise UsageError(f"must have {name} {least} in {kind}:{name}, not {text}")
    return value
