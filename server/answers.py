"""Answers to whoever asks, without a session: what the server is doing. Looks at the core and changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from common import messages as m
from common.errors import ProtocolError

from .status import statistics

if TYPE_CHECKING:
    from .core import Core


def answer(core: Core, question: m.Message, now: float) -> m.Message:
    """The reply to a question."""
    match question:
        case m.Stats():
            return m.Statistics(np.frombuffer(json.dumps(statistics(core, now)).encode(), np.uint8))
    raise ProtocolError(f"{type(question).__name__} is not a question")
