"""What anybody may ask a server, without a session, and what it answers. Shapes only, as common.messages."""

from __future__ import annotations

from common.array_types import Array

from .fields import Message, array, message


@message
class Stats(Message):
    """Asks what the server is doing."""


@message
class History(Message):
    """Asks for the samples of the stream with a number above `after`, as far as they fit in one answer."""

    after: int


@message
class Vocabulary(Message):
    """Asks what rows [first, last) stand for, numbered over all shards; at most 65,536 of them."""

    first: int
    last: int


@message
class Statistics(Message):
    """The server's counters and states: a JSON object in UTF-8."""

    body: Array = array("u1", rank=1)


@message
class Past(Message):
    """Samples of `run` above `after` up to number `last`; `newest` is the last one that was sent.

    `samples` are their headers as they were on the stream, one after the other. `counts` says for how many samples
    each stands: the old ones were merged, each into the next of its kind.
    """

    run: str
    last: int
    newest: int
    counts: Array = array("<i8", rank=1)
    samples: Array = array("u1", rank=1)


@message
class Words(Message):
    """Words in the order of their rows, in UTF-8, a newline after each."""

    words: Array = array("u1", rank=1)
