"""Cut consistent checkpoints without stopping the table: copy each partition when it reaches the round of the cut.

Every shard does this by itself. In exclusive order, the parts of all shards form one state of the training. With
asynchronous blocks, a shard copies its rows once all blocks of earlier rounds are in the table, which may already hold
some of later rounds. No I/O, no clock.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glovewire.common.array_types import Indices, Rows
from glovewire.common.errors import BadRequest, GlovewireError, LimitExceeded, NotReady
from glovewire.common.protocol.messages import Push

from ..consistency.blocks import AsynchronousBlocks, Blocks, ExclusiveBlocks
from ..consistency.interface import Consistency
from ..sessions import Peer
from ..table.table import Table

MAX_REQUESTS = 256
MAX_UNWRITTEN, MAX_REQUESTED = 4, 1
"""Automatic checkpoints, and requested ones, that are planned or being written."""
REQUEST_EVERY_S = 1.0
"""Seconds from one requested checkpoint to the next; requests for the same one are free."""
LAST_CHECKPOINT = "the run is ending and leaves its final checkpoint"
FINAL = "final"
SUMMARY = "summary"
"""Fact of a final checkpoint: the summary of the training, with how the generation ended."""


def final_label(generation: int) -> str:
    """Return the label of the final checkpoint of a generation."""
    return f"{FINAL}-{generation:06d}" if generation else FINAL


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint of one shard holds: its rows and the facts to resume them with."""

    label: str
    rows: Rows
    facts: dict[str, Any]
    versions: Indices | None = None


@dataclass(frozen=True)
class WriteResult:
    """A checkpoint that is on disk after `seconds`, or the error that prevented it; `removed` are older labels."""

    label: str
    seconds: float = 0.0
    removed: Sequence[str] = ()
    error: GlovewireError | None = None


class Cut:
    """A copy of the rows of one shard after `round` rounds; NotReady if the table is past them already."""

    def __init__(self, round: int, table: Table, blocks: Blocks) -> None:
        self.round = round
        self.rows = np.empty_like(table.values)
        self._table, self._blocks = table, blocks
        self._missing = set(blocks.here())
        if blocks.is_past(round):
            raise NotReady(f"some rows are past round {round} already: ask for a later one")
        for partition in sorted(self._missing):
            self.copy(partition)

    @property
    def complete(self) -> bool:
        """Return whether every partition has been copied."""
        return not self._missing

    def copy(self, partition: int) -> None:
        """Copy a partition if it has reached the round and was not copied before."""
        if partition in self._missing and self._blocks.rounds[partition] >= self.round:
            first, last = self._blocks.bounds[partition : partition + 2].tolist()
            here = slice(first - self._table.first, last - self._table.first)
            self.rows[here] = self._table.values[here]
            self._missing.discard(partition)


class Cuts:
    """Every checkpoint of one shard that is planned, requested, or ready to be written."""

    def __init__(self, table: Table, consistency: Consistency, every: int, facts: Callable[[], dict[str, Any]]) -> None:
        self._table, self._consistency, self._every, self._facts = table, consistency, every, facts
        self._blocks = consistency if isinstance(consistency, Blocks) else None
        self._rounds = 0 if self._blocks is None else self._blocks.order.total
        self._cuts: list[Cut] = []
        self._ready: list[Snapshot] = []
        self._requests: list[tuple[str, Peer, int]] = []
        self._unwritten: set[str] = set()
        self._on_disk: set[str] = set()
        self._requested: set[str] = set()
        self._newest_request = "", -REQUEST_EVERY_S
        """Label of the checkpoint requested last, and when."""
        self._periods: int | None = None
        self._planned = 0
        self._stride = 1
        """Of the automatic checkpoints, those are taken whose number is a multiple of this power of two."""
        self._plan()

    @property
    def in_order(self) -> bool:
        """Return whether every partition goes through its rounds one after the other (exclusive order)."""
        return isinstance(self._blocks, ExclusiveBlocks)

    @property
    def reached(self) -> tuple[int, int]:
        """Return the first and last round at whose start the rows are as they are now, (-1, -1) if there is none."""
        return (-1, -1) if self._blocks is None else self._blocks.reached()

    @property
    def is_trained(self) -> bool:
        """Return whether, in exclusive order, all rows of this shard have been through every round of the training."""
        return self.in_order and self.reached[1] >= self._rounds

    @property
    def requested(self) -> bool:
        """Return whether a client waits for a checkpoint."""
        return bool(self._requests)

    def request(self, round: int, peer: Peer, number: int, now: float) -> str | None:
        """Take a client's request for a checkpoint after `round` rounds (-1: as soon as possible).

        For minibatches the checkpoint is the table as it is now, and `round` is a number of the client's choice, the
        same for every shard. Returns the label if the checkpoint is on disk, None if the client is answered later.
        Raises NotReady if the table is past the round or too much is unwritten, LimitExceeded if another one was
        requested just before, BadRequest if the number is missing.
        """
        if any((peer, number) == request[1:] for request in self._requests):
            return None
        if len(self._requests) >= MAX_REQUESTS:
            raise NotReady(f"{MAX_REQUESTS} requests for checkpoints wait already: ask again later")
        if self._blocks is None and round < 0:
            raise BadRequest("minibatches have no rounds: give a checkpoint of them a number, the same to every shard")
        label, round = self._choose(round, now)
        if label in self._on_disk:
            return label
        if label not in self._unwritten:
            self._begin_requested(label, round, now)
        self._requested.add(label)
        self._requests.append((label, peer, number))
        return None

    def _choose(self, round: int, now: float) -> tuple[str, int]:
        """Return the label of a requested checkpoint, and its round."""
        if self._blocks is None:
            return f"asked-{self._facts()['generation']:06d}-{round:010d}", round
        newest, since = self._newest_request
        if round < 0 and (newest in self._unwritten or (newest in self._on_disk and now - since < REQUEST_EVERY_S)):
            return newest, round
        round = min(round if round >= 0 else int(self._blocks.rounds.max()) + 2, self._rounds)
        return _label(round), round

    def _begin_requested(self, label: str, round: int, now: float) -> None:
        if (wait_s := self._newest_request[1] + REQUEST_EVERY_S - now) > 0:
            raise LimitExceeded(f"a checkpoint was requested just before: ask again in {wait_s:.1f} s")
        if len(self._unwritten & self._requested) >= MAX_REQUESTED:
            raise NotReady("a requested checkpoint is unwritten: ask again when it is on disk")
        if self._blocks is None:
            self._facts()  # NotReady while tensors lack values
            self._requested.add(label)  # the snapshot says so
            self._add(self.snapshot(label, self._table.values.copy()))
        else:
            cut = Cut(round, self._table, self._blocks)
            self._requested.add(label)
            self._take_cut(cut)
        self._newest_request = label, now

    def push_applied(self, push: Push) -> None:
        """In exclusive order, copy the partition of an applied push for the cuts at the round that it has reached.

        Call it without any cuts, too: after one that was not due, the next one has to be planned.
        """
        if isinstance(self._blocks, ExclusiveBlocks):
            self._advance(self._blocks, [self._blocks.partition(push.first, push.last)])

    def advance_low_water(self, low_water: int) -> None:
        """Record that every round before `low_water` is in the table; for asynchronous blocks only."""
        blocks = self._blocks
        if isinstance(blocks, AsynchronousBlocks) and blocks.advance_low_water(min(low_water, self._rounds)):
            self._advance(blocks, range(len(blocks.rounds)))

    def updates_applied(self, updates: int) -> None:
        """Cut the automatic checkpoint that is due after `updates` gradients (tensors: updates); none for blocks.

        Every shard counts the same numbers, so that all parts of a checkpoint have one label.
        """
        if self._blocks is not None or not self._every:
            return
        before = (updates - 1) // self._every if self._periods is None else self._periods
        self._periods = updates // self._every
        label = f"update-{self._periods * self._every:08d}"
        if self._periods > before and self._is_due(self._periods, label):
            self._add(self.snapshot(label, self._table.values.copy()))

    def take_ready(self) -> list[Snapshot]:
        """Return the snapshots that are ready to be written, and forget them."""
        ready, self._ready = self._ready, []
        return ready

    def mark_written(self, written: WriteResult) -> list[tuple[Peer, int]]:
        """Record that a checkpoint was written or failed; remove and return its requests, (peer, request number)."""
        self._unwritten.discard(written.label)
        if self._backlog < MAX_UNWRITTEN / 2:
            self._stride = max(self._stride // 2, 1)
        if written.error is None:
            self._on_disk.add(written.label)
        self._on_disk.difference_update(written.removed)
        self._requested.difference_update(written.removed)
        return self._take_requests([written.label])

    def cancel_incomplete(self) -> list[tuple[Peer, int]]:
        """Remove and return the requests, (peer, request number), for cuts that cannot complete as the run ends."""
        return self._take_requests({_label(cut.round) for cut in self._cuts})

    def snapshot(self, label: str, rows: Rows, round: int = -1, last_round: int | None = None) -> Snapshot:
        """Return a snapshot of `rows` with the versions and facts to resume from.

        This shard's rows equal `rows` at the start of every round from `round` to `last_round` (by default the same).
        Only the shard with the first partition, which every round changes, knows exactly which one it is.
        """
        last_round = round if last_round is None else last_round
        facts = {**self._facts(), "label": label, "round": round, "last_round": last_round}
        facts["asked"] = label in self._requested
        versions = None if self._table.versions is None else self._table.versions.copy()
        return Snapshot(label, rows, facts, versions)

    def _take_requests(self, labels: Collection[str]) -> list[tuple[Peer, int]]:
        taken = [(peer, number) for label, peer, number in self._requests if label in labels]
        self._requests = [request for request in self._requests if request[0] not in labels]
        return taken

    def _plan(self) -> None:
        """Plan the next automatic checkpoint; called once a partition has reached the round of the previous one.

        No partition is past the new round then, and every shard plans the same rounds.
        """
        if self._blocks is None or not self._every:
            return
        period = int(self._blocks.rounds.max()) // self._every + 1
        self._planned = period * self._every
        if self._planned < self._rounds and self._is_due(period, _label(self._planned)):
            self._take_cut(Cut(self._planned, self._table, self._blocks))

    def _advance(self, blocks: Blocks, partitions: Sequence[int]) -> None:
        """Copy what the cuts need of partitions that have advanced."""
        for cut in self._cuts:
            for partition in partitions:
                cut.copy(partition)
        if any(blocks.rounds[partition] >= self._planned for partition in partitions):
            self._plan()
        self._collect()

    def _is_due(self, period: int, label: str) -> bool:
        """Return whether the automatic checkpoint of a period is taken: none is while too many are unwritten.

        After one that was not, only every second one is, then every fourth, and so on until they are written in time.
        So all shards that cannot keep up take the same ones: parts that the others lack are of no use.
        """
        if period % self._stride or label in self._unwritten:
            return False
        if self._backlog < MAX_UNWRITTEN:
            return True
        self._stride *= 2
        return False

    @property
    def _backlog(self) -> int:
        return len(self._unwritten - self._requested)

    def _take_cut(self, cut: Cut) -> None:
        self._cuts.append(cut)
        self._unwritten.add(_label(cut.round))
        self._collect()

    def _collect(self) -> None:
        complete = [cut for cut in self._cuts if cut.complete]
        self._cuts = [cut for cut in self._cuts if not cut.complete]
        for cut in complete:
            self._add(self.snapshot(_label(cut.round), cut.rows, cut.round))

    def _add(self, snapshot: Snapshot) -> None:
        self._ready.append(snapshot)
        self._unwritten.add(snapshot.label)


def _label(round: int) -> str:
    return f"round-{round:08d}"
