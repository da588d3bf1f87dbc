"""Every message, as a frozen dataclass. One message lives here, in one row of the table and in docs/protocol.md.

What anybody may ask, and the answers, are in `questions`; the samples of the stream in `samples`.

    who sends              message      what answers it
    worker, observer       Hello        Welcome
    worker (to shard 0)    Lease        Granted, or Done; waits while other workers hold what is left
    worker, observer       Pull         Rows; waits until the rows have the version asked for
    worker                 Push         Applied; with `then_pull` then, or instead, Rows
    worker, observer       Create       Created; waits while another worker brings the first values
    worker (to shard 0)    Report       Recorded
    worker                 Heartbeat    HeartbeatAck
    anyone                 GetStatus    Status
    anyone                 GetHistory   History
    anyone                 GetWords     Words
    anyone                 Checkpoint   Checkpointed, when it is on disk
    anyone                 Finish       Finishing
    observer               Score        Recorded
    worker                 Leave        Left
    (server, to anything)  Refused
    server (PUB)           LossSample, WorkerSample, ServerSample, QualitySample, Event

Fields are int, float, str, bool, a flat dict of those, or an array with a declared dtype and rank; `wire` checks them.
An array that is optional defaults to None. No message does anything: this module holds shapes, nothing else.
"""

from __future__ import annotations

from ..array_types import Array
from .samples import Event, LossSample, QualitySample, ServerSample, WorkerSample
from .schema import MAGIC, NO_VERSION, PROTOCOL_VERSION, WORKERS_PER_GENERATION, Message, Scalar, array, message

__all__ = [
    "MAGIC",
    "MESSAGES",
    "NO_VERSION",
    "PROTOCOL_VERSION",
    "STREAM",
    "TOPICS",
    "WORKERS_PER_GENERATION",
    "Create",
    "Created",
    "Done",
    "Event",
    "GetHistory",
    "GetStatus",
    "GetWords",
    "Granted",
    "History",
    "Lease",
    "LossSample",
    "Message",
    "QualitySample",
    "Scalar",
    "ServerSample",
    "Status",
    "Words",
    "WorkerSample",
]  # fmt: skip


# ---- requests


@message
class Hello(Message):
    """Opens a session. The same name and incarnation resume it; `dataset` is a checksum, "" for observers.

    `worker` is -1 for shard 0, which gives every worker its number; the others are told that number.
    """

    role: str
    name: str
    incarnation: int
    dataset: str
    worker: int = -1


@message
class Pull(Message):
    """Asks for rows [first, last), or for `rows` where given, of a table.

    `version` is the round that the rows must have reached before the answer; NO_VERSION asks for them as they are.
    `floor`: every block of the rounds before it is in the table, as shard 0 said in its last Granted.
    """

    table: str
    first: int
    last: int
    version: int
    floor: int
    rows: Array | None = array("<i8", rank=1, optional=True)


@message
class Push(Message):
    """Changes rows [first, last), or `rows` where given. `sequence` numbers a worker's pushes to one shard from 1.

    `operation`: `assign` (the rows become `values`), `add` (differences) or `gradient` (the server's optimizer
    steps with `rate`). `version` is that of the rows it was computed from, `versions` that of each row; `lease` the
    lease it was computed under, or -1. `floor` is as in a pull. Gradients of tensors may come as bfloat16 (`<u2`).
    With `then_pull` the same request asks for the rows afterwards, or for those in `wanted`: `Applied` at once, `Rows`
    when a `Pull` would get them; where both are there together, `Rows` alone.
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
    floor: int = 0
    then_pull: bool = False
    wanted: Array | None = array("<i8", rank=1, optional=True)

    @property
    def pull(self) -> Pull:
        """The pull that the same request is, with `then_pull`."""
        rows = self.rows if self.wanted is None else self.wanted
        return Pull(self.table, self.first, self.last, NO_VERSION, self.floor, rows)


@message
class Report(Message):
    """Tells what training brought: under `lease`, which ends with it, or since the last report (-1: minibatches).

    `sequence` numbers a worker's reports from 1. The losses are sums over `entries` of the full matrix, `norm` the
    mean Euclidean norm of the vectors trained, `bytes_sent` what the worker has sent to all shards so far.
    """

    sequence: int
    lease: int
    entries: int
    loss: float
    bias_only_loss: float
    norm: float
    seconds: float
    bytes_sent: int


@message
class Heartbeat(Message):
    """A sign of life from a worker that has nothing else to say."""


@message
class Checkpoint(Message):
    """Asks for a checkpoint: of blocks in exclusive order the cut when every row has been through `round` rounds.

    Of minibatches it is the rows as they are, and `round` a number, the same for every shard, that tells this one from
    others. The answer comes when it is on disk.
    """

    round: int


@message
class Finish(Message):
    """Ends the run and keeps what was learned; `reason` is `complete`, `asked` or `failed: ...`."""

    reason: str


@message
class Score(Message):
    """A score of the vectors so far on a test set, in percent: for the stream."""

    test: str
    score: float


@message
class Leave(Message):
    """The worker leaves; `reason` as in Finish. `pushes` is how many it has sent to this shard, repeats included."""

    reason: str
    pushes: int = 0


# ---- replies


@message
class Welcome(Message):
    """The session is open: which run and shard this is, how to train, and the last sequence applied.

    `steps` of minibatches are over: no worker has made more. `credit` is as in Applied.
    """

    run: str
    shard: int
    shards: int
    worker: int
    sequence: int
    lease_s: float
    options: dict[str, Scalar]
    steps: int = 0
    credit: int = 0

    @property
    def rank(self) -> int:
        """Which worker of this life it is, from 0: in each life the same random streams go on."""
        return self.worker % WORKERS_PER_GENERATION


@message
class Rows(Message):
    """Rows of a table in the order asked for, the version they had, and in minibatch training the gradients in it.

    `versions` are those of each row, where ages go by row.
    """

    version: int
    values: Array = array("<f4", "<f8", rank=2)
    gradients: int = 0
    versions: Array | None = array("<i8", rank=1, optional=True)


@message
class Applied(Message):
    """The push is in the table, or will be with others; `repeated` when it was before, `late` when it was dropped.

    The worker may have `credit` bytes of pushes without an answer from now on, or a single one that has more.
    """

    sequence: int
    version: int
    repeated: bool
    late: bool = False
    credit: int = 0


@message
class Recorded(Message):
    """The report is counted; `stop` tells a worker that the run is complete."""

    stop: bool
    epoch: int
    entries: int


@message
class HeartbeatAck(Message):
    """The session stands; `stop` as in Recorded."""

    stop: bool


@message
class Checkpointed(Message):
    """The checkpoint is on disk under this name (relative to the run folder)."""

    name: str


@message
class Finishing(Message):
    """The server is ending the run."""

    workers: int


@message
class Left(Message):
    """The session is closed."""


@message
class Refused(Message):
    """The request was not carried out; `code` names the fault (common.errors), `text` says it to a person."""

    code: str
    text: str


# ---- The messages that only block training needs: who trains which block. Shapes only, as common.protocol.messages.


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


# ---- The messages that only dense models need: which tensors there are. Shapes only, as common.protocol.messages.


@message
class Create(Message):
    """Says which tensors a dense model has, or, without `spec`, asks; `tensor_layout` says what `spec` holds."""

    spec: Array | None = array("u1", rank=1, optional=True)


@message
class Created(Message):
    """The server's tensors. `fill`: nobody has brought their values yet, assign all of them; else they are here."""

    fill: bool
    spec: Array = array("u1", rank=1)


# ---- What anybody may ask a server, without a session, and what it answers. Shapes only, as common.protocol.messages.


@message
class GetStatus(Message):
    """Asks what the server is doing."""


@message
class GetHistory(Message):
    """Asks for the samples of the stream with a number above `after`, as far as they fit in one answer."""

    after: int


@message
class GetWords(Message):
    """Asks what rows [first, last) stand for, numbered over all shards; at most 65,536 of them."""

    first: int
    last: int


@message
class Status(Message):
    """The server's counters and states: a JSON object in UTF-8."""

    body: Array = array("u1", rank=1)


@message
class History(Message):
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


STREAM: tuple[type[Message], ...] = (LossSample, WorkerSample, ServerSample, QualitySample, Event)
TOPICS: tuple[str, ...] = tuple(kind.topic for kind in STREAM)
MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}
