"""Answers to whoever asks, without a session: what the server does and has said, and what its rows mean.

Looks at the core and changes nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from common import messages as m
from common.errors import BadRequest, LimitExceeded, ProtocolError

from .status import statistics

if TYPE_CHECKING:
    from .core import Core

MAX_WORDS = 1 << 16


def answer(core: Core, question: m.Message, now: float) -> m.Message:
    """The reply to a question."""
    match question:
        case m.Stats():
            return m.Statistics(np.frombuffer(json.dumps(statistics(core, now)).encode(), np.uint8))
        case m.History():
            return core.stream.history(question.after)
        case m.Vocabulary():
            return m.Words(_words(core, question.first, question.last))
    raise ProtocolError(f"{type(question).__name__} is not a question")


def _words(core: Core, first: int, last: int) -> npt.NDArray[np.uint8]:
    table = core.table
    if not table.first <= first <= last <= table.last:
        raise BadRequest(f"rows {first}..{last} are not on this shard, which has {table.first}..{table.last}")
    if last - first > MAX_WORDS:
        raise LimitExceeded(f"ask for at most {MAX_WORDS} words at a time")
    words = core.words[first - table.first : last - table.first]
    return np.frombuffer("".join(f"{word}\n" for word in words).encode(), np.uint8)
