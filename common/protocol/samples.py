"""The samples of the stream: what a server publishes for whoever watches. Shapes only, as common.protocol.messages."""

from __future__ import annotations

import dataclasses
import json
from typing import ClassVar

from .schema import Message, Scalar, message


@message
class LossSample(Message):
    """Progress of one worker, or of `all`: means over the entries since its last sample.

    `mean_loss` and `mean_bias_only_loss` of `all` are over the last visit to every part of the matrix, so that they
    do not jump from block to block; a worker's are its `loss` and `bias_only_loss`.
    """

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
    mean_loss: float
    mean_bias_only_loss: float


@message
class WorkerSample(Message):
    """One worker's state: `training`, `late`, `lost` or `left`; `staleness` is that of its last push to this shard."""

    topic: ClassVar[str] = "worker"
    t: float
    worker: str
    state: str
    entries: int
    entries_per_second: float
    bytes_sent: int
    age_s: float
    staleness: int


@message
class ServerSample(Message):
    """One shard's counters since its start, and what it is.

    `port` is that of its requests on the same machine, 0 where it has none. `staleness` maps bins (`0`, `1`, `2-3`)
    to pushes, `hottest` rows (`17`, `0-4095`) to pushes. `checkpoint_s` is what the last checkpoint took, -1 for none.
    """

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
    undelivered: int
    table_bytes: int
    checkpoints: int
    checkpoint_s: float
    port: int
    staleness: dict[str, Scalar]
    hottest: dict[str, Scalar]


@message
class QualitySample(Message):
    """A similarity or analogy score of the vectors so far, in percent."""

    topic: ClassVar[str] = "quality"
    t: float
    entries: int
    test: str
    score: float


@message
class Event(Message):
    """Something happened: `joined`, `late`, `left`, `lost`, `epoch`, `checkpoint`, `finished`, `failed`."""

    topic: ClassVar[str] = "event"
    t: float
    kind: str
    subject: str
    text: str


# ---- One line of `metrics.jsonl`: what a loss sample leaves on disk for plots and replays.

FIELDS = (
    "t", "entries", "loss", "epoch", "worker", "bias_only_loss", "norm", "entries_per_second", "mean_loss",
    "mean_bias_only_loss",
)  # fmt: skip


def as_line(sample: LossSample | QualitySample) -> str:
    """The sample as a JSON object and a newline; a score is marked by its topic."""
    if isinstance(sample, QualitySample):
        return json.dumps({"topic": sample.topic, **dataclasses.asdict(sample)}) + "\n"
    return json.dumps({name: getattr(sample, name) for name in FIELDS}) + "\n"
