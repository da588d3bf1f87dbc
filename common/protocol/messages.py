"""Define every message of the protocol as a dataclass; docs/protocol.md explains each in a section of its own.

    who sends              message      what answers it
    worker, observer       Hello        Welcome
    worker (to shard 0)    Lease        Granted, or Done; waits while other workers hold the remaining blocks
    worker, observer       Pull         Rows; waits until the rows have the version asked for
    worker                 Push         Applied; with `then_pull` also Rows, or Rows alone
    worker, observer       Create       Created; waits while another worker sends the initial values
    worker (to shard 0)    Report       Recorded
    worker, observer       Heartbeat    HeartbeatAck
    worker, observer       Score        Recorded
    worker, observer       Proceed      Recorded
    worker, observer       Leave        Left
    anyone                 GetStatus    Status
    anyone                 GetHistory   History
    anyone                 GetWords     Words
    anyone, shard          GetData      Data
    shard (to a shard)     GetFolder    Folder
    shard (to shard 0)     Begin        Begun
    worker, observer       Checkpoint   Checkpointed, when it is on disk
    anyone                 Finish       Finishing
    (server, to anything)  Refused
    server (PUB)           RunSample, LossSample, WorkerSample, ServerSample, QualitySample, Event

"Anyone" needs no session. The classes follow by topic, each request before its replies. `schema` defines the types
that a field may have, and `wire` checks received messages against them.
"""

import dataclasses
import json
from typing import ClassVar

from ..array_types import Array
from .schema import Message as Message
from .schema import Scalar, array, message

NO_VERSION = -1
"""In Pull: do not wait for a version. In Push: the version of the rows used is unknown."""
MAX_EXPLANATION = 500
"""Characters of the text of a refusal or an event."""
MAX_DATA_BYTES = 1 << 20
"""Bytes of a dataset's file in one Data."""
WORKERS_PER_GENERATION = 1 << 20
"""Worker numbers reserved for one generation of a run: generation g numbers its workers from g times this."""


# ---- sessions


@message
class Hello(Message):
    """Open a session, or resume the one with the same `name` and `incarnation` (drawn when the process starts).

    `role` is `worker` or `observer`, `dataset` the dataset's checksum ("" for observers). `worker` is -1 for shard 0,
    which numbers the workers, and for the other shards the number that shard 0 gave, with its `token`.
    """

    role: str
    name: str
    incarnation: int
    dataset: str
    worker: int = -1
    token: int = 0


@message
class Welcome(Message):
    """The session is open; `run` identifies the run's generation, `options` are the training options.

    `steps` is an upper bound of the minibatch steps that any worker has made: this worker draws its batches from that
    step on. `credit` is as in Applied. `token` proves to the other shards that shard 0 gave this client its number.
    """

    run: str
    shard: int
    shards: int
    worker: int
    options: dict[str, Scalar]
    steps: int = 0
    credit: int = 0
    token: int = 0

    @property
    def rank(self) -> int:
        """Return the worker's number within its generation, from 0; it selects the worker's random streams."""
        return self.worker % WORKERS_PER_GENERATION


@message
class Heartbeat(Message):
    """Tell the server that an otherwise silent client is alive."""


@message
class HeartbeatAck(Message):
    """The session is alive; `stop` is as in Recorded."""

    stop: bool


@message
class Leave(Message):
    """Close the session; `pushes` is how many pushes this client has sent to this shard, retransmissions included.

    `ending`, a value of common.endings.Ending, says why the client leaves; `text` explains it to people.
    """

    ending: str
    text: str = ""
    pushes: int = 0


@message
class Left(Message):
    """The session is closed."""


# ---- work


@message
class Lease(Message):
    """Ask for the next strip to train; `ticket` numbers a worker's leases from 1, so that repeats are recognised.

    `worker` is the number in the worker's Welcome, -1 if it is not given. `has` is 1 for each partition whose strip the
    worker has the entries of, 0 for the others; None if it has all.
    """

    ticket: int
    worker: int = -1
    has: Array | None = array("u1", rank=1, optional=True)


@message
class Granted(Message):
    """Lease the strip of round `round` to the worker, which pulls the rows of its partitions at that version.

    Every round before `low_water` has been trained and reported; `low_water_token` proves it to other shards. `token`
    proves that this worker may push the partitions of the strip.
    """

    lease: int
    round: int
    low_water: int
    low_water_token: int = 0
    token: int = 0


@message
class Done(Message):
    """There is nothing left to train; `ending` and `text` are as in Finish."""

    ending: str
    text: str = ""


@message
class Pull(Message):
    """Ask for rows [first, last) of a table, or for the row numbers in `rows` if given.

    `version`: in exclusive order, wait until the partition of [first, last), which contains `rows`, may take part in
    this round, and answer with the rows as they were at its start; of dense models, wait for at least this many
    updates; otherwise ignored. NO_VERSION never waits for a version. With `bfloat16` the values come as bfloat16.
    """

    table: str
    first: int
    last: int
    version: int
    rows: Array | None = array("<i8", rank=1, optional=True)
    bfloat16: bool = False


@message
class Rows(Message):
    """Rows of a table in the order asked for; `version` is their round (exclusive order) or counts the shard's updates.

    In minibatch training, `gradients` is the number of gradients in the table, `versions` the changes to each row.
    """

    version: int
    values: Array = array("<f4", "<f8", "<u2", rank=2)
    gradients: int = 0
    versions: Array | None = array("<i8", rank=1, optional=True)


@message
class Push(Message):
    """Change rows [first, last), or those in `rows` if given; `sequence` numbers a worker's pushes to a shard from 1.

    In block training the push covers [first, last); if `rows` is given, only those have changed. `operation`:
    `assign` (the rows become `values`), `add` (`values` are added) or `gradient` (the server's optimizer makes a step
    at learning rate `rate`). `values` were computed from rows at `version`, or `versions` row by row, and under
    `lease`, or -1; `token` is the lease's. `low_water` and its token are those of the last Granted. Differences, and
    gradients of tensors, may be bfloat16 (`<u2`). With `then_pull` the push is also a pull of the same rows, or of
    those in `wanted`. `worker` is as in Lease.
    Replies: `Applied` at once, `Rows` when a `Pull` would get them; if both are ready together, `Rows` alone.
    """

    table: str
    sequence: int
    operation: str
    first: int
    last: int
    version: int
    lease: int
    rate: float
    values: Array = array("<f4", "<f8", "<u2", rank=2)
    rows: Array | None = array("<i8", rank=1, optional=True)
    versions: Array | None = array("<i8", rank=1, optional=True)
    token: int = 0
    low_water: int = 0
    low_water_token: int = 0
    then_pull: bool = False
    wanted: Array | None = array("<i8", rank=1, optional=True)
    worker: int = -1

    @property
    def pull(self) -> Pull:
        """Return the pull that a push with `then_pull` stands for."""
        rows = self.rows if self.wanted is None else self.wanted
        return Pull(self.table, self.first, self.last, NO_VERSION, rows)


@message
class Applied(Message):
    """The push is in the table, or waits to be applied together with others.

    `repeated`: the table had this change already. `late`: it was a gradient for a past step, dropped. From now on the
    worker may have `credit` bytes of unanswered pushes, or a single larger one. `receipt` is not 0 once this shard has
    all its rows of the partition that was pushed under a lease: Report adds up the receipts of a block.
    """

    sequence: int
    version: int
    repeated: bool
    late: bool = False
    credit: int = 0
    receipt: int = 0


@message
class Report(Message):
    """Report losses: those of a block, and end its `lease`; or (`lease` -1) of minibatches since the last report.

    `sequence` numbers a worker's reports from 1. The losses are sums over `entries` entries of the full matrix, `norm`
    is the mean Euclidean norm of the vectors trained, `bytes_sent` what the worker has sent to all shards so far.
    `receipt` is the exclusive or of all receipts of the block's pushes. `worker` is as in Lease.
    """

    sequence: int
    lease: int
    entries: int
    loss: float
    bias_only_loss: float
    norm: float
    seconds: float
    bytes_sent: int
    receipt: int = 0
    worker: int = -1


@message
class Score(Message):
    """Publish the score, in percent, that the current vectors reach on a test set, as a QualitySample."""

    test: str
    score: float


@message
class Proceed(Message):
    """Allow a run that waits after every sweep to grant the strips of its first `epochs` epochs; more let it end."""

    epochs: int


@message
class Recorded(Message):
    """The report, score or permission is recorded; `stop` tells a worker that the run is over."""

    stop: bool
    epoch: int
    entries: int


# ---- dense models


@message
class Create(Message):
    """Declare the tensors of a dense model, or ask for them (no `spec`); `spec` is the JSON of `ModelSpec.to_json`."""

    spec: Array | None = array("u1", rank=1, optional=True)


@message
class Created(Message):
    """The server's tensors (`spec`). `fill`: they have no values yet, and this worker must assign all of them."""

    fill: bool
    spec: Array = array("u1", rank=1)


# ---- queries and commands


@message
class GetStatus(Message):
    """Ask what the server is doing."""


@message
class Status(Message):
    """The server's counters and states: a JSON object in UTF-8."""

    body: Array = array("u1", rank=1)


@message
class GetHistory(Message):
    """Ask for the samples of the stream with a number above `after`; the reply holds as many as fit."""

    after: int


@message
class History(Message):
    """Samples of `run` with numbers above `after`, up to `last`; `newest` is the last number published.

    `samples` are their headers as published, concatenated. `counts[i]` says how many samples the i-th of them stands
    for, because old samples are merged into the next of their kind.
    """

    run: str
    last: int
    newest: int
    counts: Array = array("<i8", rank=1)
    samples: Array = array("u1", rank=1)


@message
class GetWords(Message):
    """Ask for the words of rows [first, last), numbered over all shards; at most 65,536 rows."""

    first: int
    last: int


@message
class Words(Message):
    """Words in the order of their rows, in UTF-8, a newline after each."""

    words: Array = array("u1", rank=1)


@message
class GetData(Message):
    """Ask for at most `most` bytes from `offset` on of a file of the run's dataset; `manifest.json` names all files.

    Shards ask each other for files of checkpoints, such as `LABEL.shard-0-of-2/rows.npy`.
    """

    file: str
    offset: int
    most: int = MAX_DATA_BYTES

    @property
    def allowed(self) -> int:
        """Return how many bytes the reply may have: `most`, within 0 and MAX_DATA_BYTES."""
        return max(0, min(self.most, MAX_DATA_BYTES))


@message
class Data(Message):
    """Bytes from `offset` on of a file that has `size` bytes; at most MAX_DATA_BYTES of them."""

    offset: int
    size: int
    body: Array = array("u1", rank=1)


@message
class Checkpoint(Message):
    """Ask for a checkpoint. With blocks, it is taken when every row has been through `round` rounds (-1: a round soon).

    With minibatches, the rows are saved at once, and `round`, equal on all shards, only identifies the checkpoint.
    """

    round: int


@message
class Checkpointed(Message):
    """The checkpoint is on disk; `name` is its label, with which the names of its parts begin."""

    name: str


@message
class Finish(Message):
    """End the run and, unless it failed, keep what was learned.

    `ending` is `complete`, `asked`, `stopped` or `failed`; `text` explains it to people.
    """

    ending: str
    text: str = ""


@message
class Finishing(Message):
    """The server is ending the run; `workers` is the number of workers with a session."""

    workers: int


@message
class Refused(Message):
    """The request was not carried out; `code` names the fault (common.errors), `text` (MAX_EXPLANATION) explains it.

    With the code `finishing`, `ending` says why the run ends, as in Finish; otherwise it is empty.
    """

    code: str
    text: str
    ending: str = ""


# ---- between shards that share no folder


@message
class GetFolder(Message):
    """Ask a shard what its run folder contains."""


@message
class Folder(Message):
    """Marks of shards, the newest generation and parts of checkpoints in a run folder: a JSON object in UTF-8."""

    body: Array = array("u1", rank=1)


@message
class Begin(Message):
    """Ask shard 0 to begin a generation of the run, a JSON object, unless one with the same number exists."""

    generation: str


@message
class Begun(Message):
    """The newest generation of the run: the one in `Begin`, or another."""

    generation: str


# ---- stream


@message
class RunSample(Message):
    """What is being trained: the names of the run folder and of the dataset ("" for a dense model), and the options.

    `total` is the number of entries of the whole training, 0 for a dense model.
    """

    topic: ClassVar[str] = "run"
    t: float
    name: str
    dataset: str
    total: int
    options: dict[str, Scalar]


@message
class LossSample(Message):
    """Progress of one worker, or of all (`worker` is "all"); losses are means over the entries since its last sample.

    `epoch` of `epochs` are done; for a dense model both count updates, and `epochs` is 0 if the run has no end.

    For "all", `mean_loss`, `mean_bias_only_loss` and `norm` are means over the latest report of every part of the
    matrix, so that they do not jump from block to block. For one worker they are means over the same entries as `loss`.
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
    """One shard's counters since its start, and its size and state.

    `waiting` is the number of requests that wait now. `port` is the TCP port of its request socket, 0 without TCP.
    `staleness` maps bins (`0`, `1`, `2-3`) to push counts, `hot_rows` rows (`17`, `0-4095`) to push counts.
    `checkpoint_s` is how long the last checkpoint took, -1 for none.
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
    """An event of kind `joined`, `late`, `left`, `lost`, `epoch`, `checkpoint`, `begun`, `finished` or `failed`."""

    topic: ClassVar[str] = "event"
    t: float
    kind: str
    subject: str
    text: str


MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}
STREAM: tuple[type[Message], ...] = (RunSample, LossSample, WorkerSample, ServerSample, QualitySample, Event)
TOPICS: tuple[str, ...] = tuple(kind.topic for kind in STREAM)

LINE_FIELDS = (
    "t", "entries", "loss", "epoch", "worker", "bias_only_loss", "norm", "entries_per_second", "mean_loss",
    "mean_bias_only_loss",
)  # fmt: skip
"""Fields of a LossSample that `metrics.jsonl` keeps, for plots and replays."""


def as_line(sample: Message) -> str:
    """Return a sample as a line of `metrics.jsonl`: a JSON object and a newline; all but losses have a `topic`."""
    if not isinstance(sample, LossSample):
        return json.dumps({"topic": sample.topic, **dataclasses.asdict(sample)}) + "\n"
    return json.dumps({name: getattr(sample, name) for name in LINE_FIELDS}) + "\n"
