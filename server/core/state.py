"""Hold everything that one shard knows. The core alone changes it; telemetry reads it. No I/O."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glovewire.common.endings import RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import WORKERS_PER_GENERATION

from ..checkpoints.cuts import Cuts
from ..config import Identity
from ..consistency.blocks import Blocks
from ..consistency.interface import Consistency
from ..leases.progress import Progress
from ..leases.pushes import LeasedPushes
from ..sessions import Sessions
from ..table.table import Table
from ..telemetry.publisher import Publisher
from .pull_push import PullPush
from .push_counts import PushCounts
from .tensors import Tensors
from .waiting import WaitingRequests


@dataclass
class NetworkCounts:
    """The daemon's socket counts; `port` is the TCP port for requests, 0 without TCP."""

    port: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    undelivered: int = 0
    ignored: int = 0
    cut_off: int = 0
    turned_away: int = 0


class ShardState:
    """All state of one shard: the parts that it is built from, and those that the core updates.

    `started`: time in seconds at which the stream's `t` is 0; `words`: the word of each row of the table, in order.
    `read_data`: returns bytes of a file of the dataset, as Dataset.read does; None without a dataset. `ending` is set
    once the run begins to end, `over` once no more work is granted.
    """

    def __init__(
        self,
        identity: Identity,
        options: TrainingOptions,
        table: Table,
        consistency: Consistency,
        progress: Progress,
        started: float,
        words: Sequence[str] = (),
        tensors: Tensors | None = None,
        read_data: Callable[[str, int, int], tuple[bytes, int]] | None = None,
    ) -> None:
        self.identity, self.options, self.table = identity, options, table
        self.consistency, self.progress, self.words, self.tensors = consistency, progress, words, tensors
        self.read_data = read_data
        first_worker = identity.generation * WORKERS_PER_GENERATION
        self.sessions = Sessions(first_worker, identity.workers, identity.shard, identity.shards, identity.tokens)
        self.waiting, self.push_counts = WaitingRequests(), PushCounts()
        self.counters: Counter[str] = Counter()
        self.network = NetworkCounts()
        self.publisher = Publisher(identity.run, identity.shard, started)
        self.cuts = Cuts(table, consistency, identity.checkpoint_rounds, self.checkpoint_facts)
        leased = LeasedPushes(identity.tokens, identity.shard, consistency) if isinstance(consistency, Blocks) else None
        self.pull_push = PullPush(table, consistency, options, self.cuts, self.counters, self.waiting, tensors, leased)
        self.checkpoint_s = -1.0
        self.left_bytes_sent = 0
        self.ending: RunEnd | None = None
        self.over: RunEnd | None = None

    def checkpoint_facts(self) -> dict[str, Any]:
        """Return the facts that a checkpoint stores beside this shard's rows; NotReady while tensors lack values."""
        table = self.table
        return {
            "entries": self.progress.losses.entries,
            "updates": self.consistency.version(table.first) if table.versions is not None else 0,
            **({} if self.tensors is None else {"tensors": self.tensors.require_complete().text}),
            "gradients": self.consistency.gradients,
            "generation": self.identity.generation,
            "dataset": self.identity.dataset,
            "options": self.options.as_message(),
            "rows": [table.first, table.last],
            "shard": self.identity.shard,
            "shards": self.identity.shards,
        }
