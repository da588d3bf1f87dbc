"""The messages that only block training needs: who trains which block. Shapes only, as common.messages."""

from __future__ import annotations

from .fields import Message, message


@message
class Lease(Message):
    """Asks for the next block to train. `ticket` numbers a worker's requests from 1, so that a repeat is recognised."""

    ticket: int


@message
class Granted(Message):
    """A block to train: partitions a and b, which both must be at version `round` when they are pulled.

    Every block of the rounds before `floor` has been trained and reported.
    """

    lease: int
    epoch: int
    round: int
    a: int
    b: int
    floor: int


@message
class Done(Message):
    """There is nothing left to train."""

    reason: str
