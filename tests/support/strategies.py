"""Hypothesis strategies for everything that crosses the wire, made from the messages' own declarations.

`quick` is how the project's property tests run: the same examples every time, no deadline, nothing kept on disk.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from glovewire.common.endings import Ending
from glovewire.common.protocol.messages import MESSAGES, STREAM
from glovewire.common.protocol.schema import ArraySchema, Message, Scalar, arrays_of

TEXT = st.text("aZ09 _-.%é߀łλ漢🙂\n\t\0\"'\\\x7f", max_size=12)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    float: FLOATS,
    str: TEXT,
    bool: st.booleans(),
    dict[str, Scalar]: st.dictionaries(TEXT, st.one_of(INTEGERS, FLOATS, TEXT, st.booleans()), max_size=6),
}

NAMED = {"ending": st.sampled_from([ending.value for ending in Ending]) | TEXT}
"""Fields with only a few meaningful values."""


def quick(examples: int = 60) -> settings:
    """Settings for a property test: bounded, reproducible and without a database."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def arrays(schema: ArraySchema) -> st.SearchStrategy[Any]:
    """Small arrays of the declared dtypes and rank, any finite or infinite values; None where that is allowed."""
    shapes = st.lists(st.integers(0, 5), min_size=schema.rank, max_size=schema.rank)

    def make(drawn: tuple[np.dtype[Any], list[int], int]) -> np.ndarray[Any, Any]:
        dtype, shape, seed = drawn
        raw = np.random.default_rng(seed).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
        return raw.view(dtype).reshape(shape)

    values = st.tuples(st.sampled_from([*schema.dtypes.values()]), shapes, st.integers(0, 1 << 30)).map(make)
    return st.none() | values if schema.optional else values


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any valid message of a kind."""
    hints = get_type_hints(kind)
    specs = {spec.name: spec for spec in arrays_of(kind)}
    scalars = {name: NAMED.get(name, SCALARS[hint]) for name, hint in hints.items() if hint in SCALARS}
    fields = {
        field.name: arrays(specs[field.name]) if field.name in specs else scalars[field.name]
        for field in dataclasses.fields(kind)
    }
    return st.builds(kind, **fields)


def any_message() -> st.SearchStrategy[Message]:
    """Any valid message but the samples of the stream."""
    return st.one_of([messages(kind) for kind in MESSAGES.values() if kind not in STREAM])


def same(left: Message, right: Message) -> bool:
    """Whether two messages are equal, arrays byte by byte."""
    if type(left) is not type(right):
        return False
    for field in dataclasses.fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
                return False
        elif a != b or type(a) is not type(b):
            return False
    return True
