"""The samples of the stream: what a server publishes for whoever watches. Shapes only, as common.messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .fields import Message


@dataclass(frozen=True)
class LossSample(Message):
    """Progress of one worker, or of `all`: means over the entries since its last sample."""

    topic: ClassVar[str] = "loss"
    t: float
    worker: str
    epoch: int
    epochs: int
    entries: int
    total: int
    loss: float
    bias_only_loss: float
    norm: float
    entries_per_second: float


@dataclass(frozen=True)
class WorkerSample(Message):
    """One worker's state: `training` or `late`."""

    topic: ClassVar[str] = "worker"
    t: float
    worker: str
    state: str
    entries: int
    entries_per_second: float
    bytes_sent: int
    age_s: float


@dataclass(frozen=True)
class ServerSample(Message):
    """One shard's counters since its start."""

    topic: ClassVar[str] = "server"
    t: float
    shard: int
    shards: int
    rows: int
    workers: int
    pulls: int
    pushes: int
    repeated: int
    refused: int
    parked: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class QualitySample(Message):
    """A similarity or analogy score of the vectors so far, in percent."""

    topic: ClassVar[str] = "quality"
    t: float
    entries: int
    test: str
    score: float


@dataclass(frozen=True)
class Event(Message):
    """Something happened: `joined`, `late`, `left`, `lost`, `epoch`, `checkpoint`, `finished`, `failed`."""

    topic: ClassVar[str] = "event"
    t: float
    kind: str
    subject: str
    text: str
