"""What messages are made of: the base class, the field types, and arrays that declare their dtype and rank."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

PROTOCOL_VERSION = 7
MAGIC = b"GLWR"
NO_VERSION = -1
"""In Pull: answer at once, whatever the version of the rows."""
A_LIFE = 1 << 20
"""Numbers of workers in one life of a run: whoever has a number of the life before is nobody of this one."""

MAX_NAME = 64
NAME_RULE = f"a worker's name must be 1 to {MAX_NAME} printable characters"

Scalar = int | float | str | bool


Kind = TypeVar("Kind")


def is_name(text: str) -> bool:
    """Whether a worker may be called so: NAME_RULE."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


@dataclass_transform(frozen_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """A dataclass that nobody changes: the type checker sees to it.

    One that is frozen takes four times as long to make, and making messages is a good part of what a server does.
    """
    return dataclass(unsafe_hash=True)(kind)


@message
class Message:
    """Base of everything that crosses the wire."""

    topic: ClassVar[str] = ""


def array(*dtypes: str, rank: int, optional: bool = False) -> Any:
    """A dataclass field that travels as one raw frame: its allowed little-endian dtypes and its rank."""
    metadata = {"dtypes": tuple(np.dtype(d) for d in dtypes), "rank": rank, "optional": optional}
    if optional:
        return field(default=None, metadata=metadata)
    return field(metadata=metadata)


def arrays_of(kind: type[Message]) -> tuple[dataclasses.Field[Any], ...]:
    """The array fields of a message, in the order of their frames: optional ones first.

    What a message always has are its values, the bulk of it. libzmq sends and reads what is small in one go with the
    beginning of the next big frame, but needs another one for what is small and comes after it.
    """
    arrays = (f for f in dataclasses.fields(kind) if f.metadata)
    return tuple(sorted(arrays, key=lambda f: not f.metadata["optional"]))
