"""Define every message of the protocol as a dataclass; docs/protocol.md explains each in a section of its own.

    who sends              message      what answers it
    worker, observer       Hello        Welcome
    worker (to shard 0)    Lease        Granted, or Done; waits while other workers hold the remaining blocks
    worker, observer       Pull         Rows; waits until the rows have the version asked for
    worker                 Push         Applied; with `then_pull` also Rows, or Rows alone
    worker, observer       Create       Created; waits while another worker brings the first values
    worker (to shard 0)    Report       Recorded
    worker, observer       Heartbeat    HeartbeatAck
    observer               Score        Recorded
    worker, observer       Leave        Left
    anyone                 GetStatus    Status
    anyone                 GetHistory   History
    anyone                 GetWords     Words
    anyone                 Checkpoint   Checkpointed, when it is on disk
    anyone                 Finish       Finishing
    (server, to anything)  Refused
    server (PUB)           LossSample, WorkerSample, ServerSample, QualitySample, Event

"Anyone" needs no session. The classes follow in this order, each request before its answers; the samples of the stream
are in `samples`. Fields are of the types that `schema` knows and `wire` checks. Messages have no behaviour.
"""

from ..array_types import Array
from .samples import STREAM as STREAM
from .samples import TOPICS as TOPICS
from .samples import Event as Event
from .samples import LossSample as LossSample
from .samples import QualitySample as QualitySample
from .samples import ServerSample as ServerSample
from .samples import WorkerSample as WorkerSample
from .schema import Message as Message
from .schema import Scalar, array, message

NO_VERSION = -1
"""In Pull: answer at once, whatever the version of the rows. In Push: the version is not known."""
WORKERS_PER_GENERATION = 1 << 20
"""Worker numbers of one generation of a run; those of the next begin after them."""


# ---- sessions


@message
class Hello(Message):
    """Open a session, or resume that of the same name and incarnation; `dataset` is a checksum, "" for observers.

    `worker` is -1 for shard 0, which numbers the workers; the other shards are told that number.
    """

    role: str
    name: str
    incarnation: int
    dataset: str
    worker: int = -1


@message
class Welcome(Message):
    """The session is open: which run and shard this is, and how to train.

    `steps` of minibatches are over: no worker has made more. `credit` is as in Applied.
    """

    run: str
    shard: int
    shards: int
    worker: int
    options: dict[str, Scalar]
    steps: int = 0
    credit: int = 0

    @property
    def rank(self) -> int:
        """The worker's number within its generation, from 0: it chooses the same random streams in each."""
        return self.worker % WORKERS_PER_GENERATION


@message
class Heartbeat(Message):
    """Show that a client that has nothing else to send is alive."""


@message
class HeartbeatAck(Message):
    """The session is alive; `stop` is as in Recorded."""

    stop: bool


@message
class Leave(Message):
    """Close the session; `pushes` is how many this client has sent to this shard, repeats included.

    `ending` is a value of common.endings.Ending, `text` more about it for people.
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
    """Ask for the next block to train; `ticket` numbers a worker's requests from 1, so that a repeat is recognised."""

    ticket: int


@message
class Granted(Message):
    """A block to train: partitions a and b, which both must be at version `round` when they are pulled.

    Every block of the rounds before `low_water` has been trained and reported.
    """

    lease: int
    epoch: int
    round: int
    a: int
    b: int
    low_water: int


@message
class Done(Message):
    """There is nothing left to train; `ending` and `text` are as in Finish."""

    ending: str
    text: str = ""


@message
class Pull(Message):
    """Ask for rows [first, last), or for `rows` where given, of a table.

    `version` is the round that the rows must have reached before the answer; NO_VERSION asks for them as they are.
    `low_water` repeats what shard 0 said in its last Granted.
    """

    table: str
    first: int
    last: int
    version: int
    low_water: int
    rows: Array | None = array("<i8", rank=1, optional=True)


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
class Push(Message):
    """Change rows [first, last), or `rows` where given; `sequence` numbers a worker's pushes to one shard from 1.

    `operation`: `assign` (the rows become `values`), `add` (differences) or `gradient` (the server's optimizer
    steps with `rate`). `version` is that of the rows it was computed from, `versions` that of each row; `lease` the
    lease it was computed under, or -1. `low_water` is as in Pull. Gradients of tensors may come as bfloat16 (`<u2`).
    With `then_pull` the same request asks for the rows afterwards, or for those in `wanted`: `Applied` at once, `Rows`
    when a `Pull` would get them; if both are ready together, `Rows` alone.
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
    low_water: int = 0
    then_pull: bool = False
    wanted: Array | None = array("<i8", rank=1, optional=True)

    @property
    def pull(self) -> Pull:
        """The pull that the same request is, with `then_pull`."""
        rows = self.rows if self.wanted is None else self.wanted
        return Pull(self.table, self.first, self.last, NO_VERSION, self.low_water, rows)


@message
class Applied(Message):
    """The push is in the table, or waits to be applied with others; `repeated` if it was before, `late` if dropped.

    From now on the worker may have `credit` bytes of unanswered pushes, or a single larger one.
    """

    sequence: int
    version: int
    repeated: bool
    late: bool = False
    credit: int = 0


@message
class Report(Message):
    """Report losses: of the block of `lease`, which ends with it, or, of minibatches (-1), since the last report.

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
class Score(Message):
    """Put a score of the vectors so far on a test set, in percent, on the stream."""

    test: str
    score: float


@message
class Recorded(Message):
    """The report or score is counted; `stop` tells a worker that the run is over."""

    stop: bool
    epoch: int
    entries: int


# ---- dense models


@message
class Create(Message):
    """Declare which tensors a dense model has, or, without `spec`, ask for them; `tensor_layout` defines `spec`."""

    spec: Array | None = array("u1", rank=1, optional=True)


@message
class Created(Message):
    """The server's tensors. With `fill` they have no values yet, and this worker must assign all of them."""

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
    """Ask for the samples of the stream with a number above `after`, as far as they fit in one answer."""

    after: int


@message
class History(Message):
    """Samples of `run` above `after` up to number `last`; `newest` is the last one that was sent.

    `samples` are their headers as they were on the stream, one after the other. `counts` says how many samples each
    one stands for: old ones were merged, each into the next of its kind.
    """

    run: str
    last: int
    newest: int
    counts: Array = array("<i8", rank=1)
    samples: Array = array("u1", rank=1)


@message
class GetWords(Message):
    """Ask which words rows [first, last) stand for, numbered over all shards; at most 65,536 of them."""

    first: int
    last: int


@message
class Words(Message):
    """Words in the order of their rows, in UTF-8, a newline after each."""

    words: Array = array("u1", rank=1)


@message
class Checkpoint(Message):
    """Ask for a checkpoint: of blocks in exclusive order, the cut when every row has been through `round` rounds.

    Of minibatches it is the rows as they are, and `round` a number, the same for every shard, that identifies it.
    """

    round: int


@message
class Checkpointed(Message):
    """The checkpoint is on disk under this name (relative to the run folder)."""

    name: str


@message
class Finish(Message):
    """End the run and keep what was learned, unless it failed; `ending` is `complete`, `asked`, `stopped` or `failed`.

    `text` tells people more about it.
    """

    ending: str
    text: str = ""


@message
class Finishing(Message):
    """The server is ending the run; `workers` had a session."""

    workers: int


@message
class Refused(Message):
    """The request was not carried out; `code` names the fault (common.errors), `text` explains it to people.

    With the code `finishing`, `ending` says why the run ends, as in Finish; otherwise it is empty.
    """

    code: str
    text: str
    ending: str = ""


MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}
