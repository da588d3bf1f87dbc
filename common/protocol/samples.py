"""Define the samples that a server publishes on its stream, and their lines in `metrics.jsonl`."""

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

    `waiting` counts requests that wait. `port` is that of the requests on the same machine, 0 without TCP. `staleness`
    maps bins (`0`, `1`, `2-3`) to pushes, `hot_rows` rows (`17`, `0-4095`) to pushes. `checkpoint_s` is how long the
    last checkpoint took, -1 for none.
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
    waiting: int
    bytes_in: int
    bytes_out: int
    undelivered: int
    table_bytes: int
    checkpoints: int
    checkpoint_s: float
    port: int
    staleness: dict[str, Scalar]
    hot_rows: dict[str, Scalar]


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
    """An event: `joined`, `late`, `left`, `lost`, `epoch`, `checkpoint`, `begun`, `finished` or `failed`."""

    topic: ClassVar[str] = "event"
    t: float
    kind: str
    subject: str
    text: str


STREAM: tuple[type[Message], ...] = (LossSample, WorkerSample, ServerSample, QualitySample, Event)
TOPICS: tuple[str, ...] = tuple(kind.topic for kind in STREAM)

LINE_FIELDS = (
    "t", "entries", "loss", "epoch", "worker", "bias_only_loss", "norm", "entries_per_second", "mean_loss",
    "mean_bias_only_loss",
)  # fmt: skip
"""What `metrics.jsonl` keeps of a loss sample, for plots and replays."""


def as_line(sample: LossSample | QualitySample) -> str:
    """Return the sample as a line of `metrics.jsonl`: a JSON object and a newline; a score names its topic."""
    if isinstance(sample, QualitySample):
        return json.dumps({"topic": sample.topic, **dataclasses.asdict(sample)}) + "\n"
    return json.dumps({name: getattr(sample, name) for name in LINE_FIELDS}) + "\n"
