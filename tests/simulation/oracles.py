"""What must hold at every step of a simulated run. An oracle keeps its own account, and raises Broken if that differs.

`ShardOracle` watches one core from its first message to its last, `CheckpointOracle` every announced checkpoint.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from world import Broken

from glovewire.common.array_types import Rows
from glovewire.common.endings import Ending
from glovewire.common.errors import ArtifactError, GlovewireError, UnknownSession
from glovewire.common.model.options import CONSISTENCIES, Mode
from glovewire.common.protocol import messages as m
from glovewire.common.storage.artifacts import MANIFEST, Manifest
from glovewire.common.storage.dataset import Dataset
from glovewire.server import service
from glovewire.server.checkpoints import files, generations
from glovewire.server.checkpoints.cuts import FINAL
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.consistency.blocks import ExclusiveBlocks
from glovewire.server.consistency.staleness import KEPT_PULLS
from glovewire.server.core.core import Core, Effects
from glovewire.server.core.push_counts import OUTCOMES
from glovewire.server.core.waiting import MAX_WAITING_PER_SESSION, Outgoing
from glovewire.server.sessions import Peer, Session

NUMBERS_OF_SHARDS = (1, 2, 1, 3, 1, 4)
"""Numbers of shards on which successive checkpoints are restored, in turn."""
Sender = tuple[str, int]
"""A session: its name and incarnation."""


def require(holds: object, otherwise: str) -> None:
    """Raise Broken with the text `otherwise` unless `holds` is true."""
    if not holds:
        raise Broken(otherwise)


class ShardOracle:
    """Watches a core: call `receives` before and `received` after each message, `ticked` after each tick.

    Every push, report and lease counts once; minibatches stay within the bounds of their mode, and memory within its
    own. `said_by(peer)` returns how many pushes a leaving client has sent, -1 if that is unknown.
    """

    def __init__(self, core: Core, checkpoints: CheckpointOracle, said_by: Callable[[Peer], int]) -> None:
        self._state, self._said_by = core._state, said_by
        state = core._state
        self._checkpoints = checkpoints
        self._where = f"shard {state.identity.shard} in generation {state.identity.generation}"
        self._pushes = Counter[str]()
        self._pushed: set[tuple[Sender, int]] = set()
        self._reported: set[tuple[Sender, int]] = set()
        self._entries = state.progress.losses.entries
        self._first = 0 if state.progress.schedule is None else state.progress.schedule.round
        self._leases: dict[int, int] = {}
        self._trained: set[int] = set()
        self._steps = StepOracle(core, self._where)
        self._periods = PeriodOracle(core, self._where)
        self._waiting: set[Peer] = set()
        """Connections of workers that have said goodbye and wait for the answer."""
        self._was_over = False
        self._session: Session | None = None
        self._before = Counter[str]()

    def receives(self, peer: Peer, message: m.Message) -> None:
        """Record the state before a message is handled."""
        sessions, self._was_over = self._state.sessions, self._state.over is not None
        self._session = sessions.at(peer)
        name = self._session and self._session.name
        if isinstance(message, m.Push):
            self._before = Counter(self._state.push_counts.total)
        elif isinstance(message, m.Leave):
            said = self._said_by(peer)
            require(said < 0 or said == message.pushes, f"{name} has sent {said} pushes, and says {message.pushes}")

    def received(self, peer: Peer, number: int, message: m.Message, effects: Effects) -> None:
        """Check the effects of a message."""
        reply = next((each.message for each in effects.replies if (each.peer, each.number) == (peer, number)), None)
        if isinstance(message, m.Push):
            self._check_push(message)
            self._check_memory()
            self._periods.pushed(effects)
        elif isinstance(message, m.Report) and not self._state.identity.shard:
            self._check_report(message, reply)
        elif isinstance(message, m.Leave) and reply is None and self._session is not None:
            self._waiting.add(peer)
        elif isinstance(message, m.Heartbeat) and peer in self._waiting:
            require(not isinstance(reply, m.Refused), f"{self._where} refuses a worker that waits to be let go")
        self._check_replies(effects)

    def ticked(self, effects: Effects) -> None:
        """Check the effects of a tick."""
        self._check_replies(effects)
        if effects.finished is not None and effects.finished.ending is Ending.COMPLETE:
            self._check_rounds()

    def _check_push(self, push: m.Push) -> None:
        """Require that a push has one outcome, is applied once, and counts as a repeat only if it was applied."""
        now = self._state.push_counts.total
        self._pushes["heard"] += 1
        outcomes = [outcome for outcome in OUTCOMES if now[outcome] > self._before[outcome]]
        require(
            len(outcomes) == 1 and now["heard"] == self._pushes["heard"] == sum(now[each] for each in OUTCOMES),
            f"{self._where} heard {self._pushes['heard']} pushes and counts {dict(now)}",
        )
        if self._session is None:
            return
        key, (outcome,) = (self._sender, push.sequence), outcomes
        if outcome == "applied":
            require(key not in self._pushed, f"{self._where} has applied push {push.sequence} of {key[0][0]} twice")
        elif outcome == "repeated" and not isinstance(self._state.consistency, ExclusiveBlocks):
            require(key in self._pushed, f"push {push.sequence} of {key[0][0]} to {self._where} is no repeat")
        if outcome == "applied":
            self._checkpoints.trained.add(self._state.identity.run)
        if outcome == "applied" and push.operation != "assign":
            self._steps.pushed(self._session, push.version)
        if outcome != "refused" or self._session.pushed == push.sequence:
            self._pushed.add(key)

    def _check_report(self, report: m.Report, reply: m.Message | None) -> None:
        """Require that a report counts once, and a strip once, and that a repeated report is not refused."""
        if self._session is None:
            return
        key, progress = (self._sender, report.sequence), self._state.progress
        is_new = key not in self._reported
        if isinstance(reply, m.Recorded):
            self._entries += report.entries if is_new else 0
            if is_new and report.lease >= 0:
                round = self._leases[report.lease]
                require(round not in self._trained, f"round {round} was counted twice")
                self._trained.add(round)
            self._reported.add(key)
        elif isinstance(reply, m.Refused) and reply.code != UnknownSession.code:
            require(
                is_new, f"report {report.sequence} of {key[0][0]} was counted, and its repeat refused: {reply.text}"
            )
        require(
            progress.losses.entries == self._entries,
            f"{self._entries} entries were reported, and {progress.losses.entries} counted",
        )
        if self._state.over is not None and not self._was_over:
            self._check_rounds()

    def _check_rounds(self) -> None:
        """Require that every round that was begun has been trained when the run ends."""
        schedule = self._state.progress.schedule
        missing = set() if schedule is None else set(range(self._first, schedule.round)) - self._trained
        require(not missing, f"the run has ended without rounds {sorted(missing)}")

    def _check_replies(self, effects: Effects) -> None:
        for reply in effects.replies:
            if isinstance(reply.message, m.Granted):
                self._check_lease(reply.message)
        if self._steps.counts:
            self._steps.check(effects.replies)
        for published in effects.published:
            sample = published.sample
            if isinstance(sample, m.Event) and sample.kind == "checkpoint":
                self._periods.written(sample.subject)
            if isinstance(sample, m.Event) and sample.kind == "checkpoint" and sample.text.startswith("in "):
                self._checkpoints.announced(self._state.identity.generation, self._state.identity.shard, sample.subject)

    def _check_lease(self, granted: m.Granted) -> None:
        """Require that a strip has one holder at a time, and none once it is trained."""
        schedule = self._state.progress.schedule
        assert schedule is not None
        if granted.lease in self._leases:
            return
        held = [each for each in schedule.held.values() if each[0] == granted.round]
        require(len(held) <= 1, f"round {granted.round} is leased more than once: {held}")
        require(granted.round not in self._trained, f"round {granted.round} is leased again after it was trained")
        self._leases[granted.lease] = granted.round

    def _check_memory(self) -> None:
        """Require that the memory for pushes and requests stays within its bounds."""
        state = self._state
        sessions, waiting = len(state.sessions.by_name), len(state.waiting)
        require(
            waiting <= MAX_WAITING_PER_SESSION * sessions,
            f"{waiting} requests of {sessions} sessions wait at {self._where}",
        )
        pulled, most = state.pull_push._policy.kept_bytes, 2 * KEPT_PULLS * (sessions + 1) * state.table.values.nbytes
        require(pulled <= most, f"{self._where} keeps {pulled} of {most} bytes of what {sessions} clients have pulled")
        blocks = state.consistency
        if not isinstance(blocks, ExclusiveBlocks):
            return
        kept = state.pull_push.undo_log._kept
        partitions = len(blocks.rounds)
        require(len(kept) <= partitions, f"{self._where} keeps before-images of {len(kept)} rounds")
        for round, images in kept.items():
            for partition, found in images.items():
                rows = sum(len(image.values) for image in found)
                most = int(blocks.bounds[partition + 1] - blocks.bounds[partition])
                require(rows <= most, f"{self._where} keeps {rows} of {most} rows of {partition} in round {round}")

    @property
    def _sender(self) -> Sender:
        assert self._session is not None
        return self._session.name, self._session.incarnation


class PeriodOracle:
    """Requires, in exclusive order, that automatic checkpoints resume after some were skipped.

    If no checkpoint is unwritten when two consecutive periods begin, at least one of them ends with a checkpoint.
    """

    def __init__(self, core: Core, where: str) -> None:
        self._blocks, self._where = core._state.consistency, where
        self._every = core._state.identity.checkpoint_rounds
        self._begun: set[str] = set()
        self._written: set[str] = set()
        self._newest = self._period
        self._free = [self._newest]

    @property
    def _period(self) -> int:
        """Return the number of the newest period; the checkpoint at its end is planned when it begins."""
        counts = isinstance(self._blocks, ExclusiveBlocks) and self._every
        return int(self._blocks.rounds.max()) // self._every if counts else 0

    def written(self, label: str) -> None:
        """Record that a checkpoint is on disk, or has failed."""
        self._written.add(label)

    def pushed(self, effects: Effects) -> None:
        """Check the checkpoints and periods that a push begins or ends."""
        is_free = self._begun <= self._written
        self._begun.update(snapshot.label for snapshot in effects.snapshots)
        if not isinstance(self._blocks, ExclusiveBlocks) or not self._every:
            return
        if self._period > self._newest:
            self._newest = self._period
            self._free += [self._newest] if is_free else []
        for first, second in pairwise(self._free):
            if second == first + 1 and int(self._blocks.rounds.min()) > (second + 1) * self._every:
                labels = {f"round-{(period + 1) * self._every:08d}" for period in (first, second)}
                require(labels & self._begun, f"none of {sorted(labels)} was begun at {self._where}")


class StepOracle:
    """Counts the steps of every worker in minibatch training, and the gradients of every update, independently.

    ssp: no worker gets rows more than S steps ahead of the slowest. sync: no worker gets rows while its gradient waits,
    and an update lacks the gradients of at most `backup` workers. softsync: an update has floor(workers / N) gradients.
    """

    def __init__(self, core: Core, where: str) -> None:
        self._state, self._where = core._state, where
        options = self._state.options
        self.counts = options.schedule == "minibatch"
        self._mode = Mode.parse(options.consistency, CONSISTENCIES[options.schedule])
        self._number, self._backup = int(self._mode.number), options.backup
        self._steps: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._seen = self._reached()

    def pushed(self, session: Session, version: int) -> None:
        """Count an accepted gradient, which may wait for others; in sync, require that it is of the current rows."""
        worker, now = session.index, self._seen[0]
        is_late = self._mode.kind == "sync" and version < now
        require(not is_late, f"{session.name}'s gradient of update {version} counts in {now} at {self._where}")
        self._steps[worker] = self._steps.get(worker, 0) + 1
        self._waiting.add(worker)

    def check(self, replies: Sequence[Outgoing]) -> None:
        """Check the updates since the last call, and the rows that are sent."""
        sessions = self._state.sessions
        workers = {session.index for session in sessions.workers}
        stayed = workers & self._steps.keys()
        before = len(self._steps)
        self._steps = {worker: self._steps[worker] for worker in stayed}
        for worker in workers - stayed:
            self._steps[worker] = min(self._steps.values(), default=0)
        (updates, gradients), self._seen = self._seen, self._reached()
        made, of = self._seen[0] - updates, self._seen[1] - gradients
        most = self._state.options.steps or math.inf
        require(self._seen[0] <= most, f"{self._seen[0]} updates of {most} are made at {self._where}")
        if made:
            few, many = (max(count // max(self._number, 1), 1) for count in (len(stayed), before))
            self._check_update(made, of, stayed, range(few, many + 1))
            self._waiting.clear()
        for reply in replies:
            if isinstance(reply.message, m.Rows):
                session = sessions.at(reply.peer)
                if session is not None and session.is_worker:
                    self._check_rows(session)

    def _check_update(self, made: int, gradients: int, workers: set[int], sizes: Sequence[int]) -> None:
        told = f"{made} updates of {gradients} gradients of {sorted(self._waiting)} at {self._where}"
        match self._mode.kind:
            case "sync":
                late = workers - self._waiting
                require(made == 1 and len(late) <= self._backup, f"{told}, without those of {sorted(late)}")
            case "softsync":
                require(any(made * size == gradients for size in sizes), f"{told}, not of {sizes[0]} to {sizes[-1]}")
            case _:
                require(made == gradients, told)

    def _check_rows(self, session: Session) -> None:
        if self._mode.kind == "ssp":
            ahead = self._steps[session.index] - min(self._steps.values())
            require(ahead <= self._number, f"{session.name} gets rows {ahead} steps ahead at {self._where}")
        elif self._mode.kind == "sync":
            require(session.index not in self._waiting, f"{session.name} gets rows before its step at {self._where}")

    def _reached(self) -> tuple[int, int]:
        return (self._state.consistency.version(0), self._state.consistency.gradients) if self.counts else (0, 0)


class CheckpointOracle:
    """Restores, with the program's own code, every checkpoint that all shards have announced in one generation.

    `config` is that of any shard; `at(round)` returns the rows that exclusive order has at the start of a round, None
    if they are not known.
    """

    def __init__(
        self, config: ServerConfig, dataset: Dataset | None, at: Callable[[int], Rows | None],
        observing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self._config, self._dataset, self._at, self._observing = config, dataset, at, observing
        self._announced: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
        self._removed: set[str] = set()
        self.trained: set[str] = set()
        """The generations in which a shard has applied a push, by `Generation.run`."""
        self._lost: set[str] = set()
        self._damaged: set[tuple[str, int]] = set()
        self.has_damage = False
        """Whether any part has been damaged."""
        self.restored = 0

    def announced(self, generation: int, shard: int, label: str) -> None:
        """Record that a shard reports its part as on disk; restore the checkpoint once all parts are."""
        told = self._announced[generation, label]
        told.add(shard)
        self._lost.discard(label)
        self._damaged.discard((label, shard))
        if len(told) == self._config.shards and label not in self._removed and not self.is_damaged(label):
            with self._observing():
                self.restore(label)

    def answered(self, label: str) -> None:
        """Restore a checkpoint that a client was told is on disk."""
        if label not in self._removed | self._lost and not self.is_damaged(label):
            with self._observing():
                self.restore(label)

    def is_lost(self, label: str) -> bool:
        """Return whether a part of a checkpoint was lost with its disk, before another shard had a copy."""
        del label
        return False

    def damaged(self, label: str, shard: int) -> None:
        """Record that the part of a shard has changed on the disk; it may be written again."""
        self._damaged.add((label, shard))
        self.has_damage = True

    def is_damaged(self, label: str) -> bool:
        """Return whether a part of a checkpoint has changed on the disk."""
        return any(label == each for each, _ in self._damaged)

    def complete(self, generation: Generation) -> list[str]:
        """Return the labels of checkpoints that every shard announced in a generation, except lost or damaged ones."""
        return [
            label
            for (number, label), told in self._announced.items()
            if number == generation.number and len(told) == self._config.shards
            if not self.is_lost(label) and not self.is_damaged(label)
        ]

    def forget(self) -> None:
        """Record that all disks were lost, perhaps while the answer to a client is on its way."""
        self._lost.update(label for _, label in self._announced)
        self._announced.clear()

    def removed(self, labels: Sequence[str]) -> None:
        """Record that checkpoints were pruned; require that the newest generation did not begin from one of them."""
        self._removed.update(labels)
        if labels:
            with self._observing():
                begun = generation.label if (generation := self.newest()) is not None else ""
            require(begun not in labels, f"{begun} is removed, and shards that come late begin from it")

    def begins(self) -> None:
        """Require, except in exclusive order, that the newest generation begins from parts of one generation."""
        generation = self.newest()
        if generation is None or not generation.label or self._config.options.consistency == "exclusive":
            return
        with suppress(ArtifactError):  # it is lost, or damaged
            facts = files.read_facts(self._config.out, generation.label, generation.parts)
            of = sorted({each["generation"] for each in facts})
            require(len(of) == 1, f"{generation.label} has parts of generations {of}")

    def restore(self, label: str, run: Path | None = None) -> None:
        """Restore a checkpoint, from the folder `run` if given, on one to four shards; see NUMBERS_OF_SHARDS."""
        if run is None and self._is_being_removed(label):
            self.require_kept(reached(label))
            return
        self.restored += 1
        config = self._config if run is None else replace(self._config, out=run, peers=())
        shards, parts, run = NUMBERS_OF_SHARDS[self.restored % 6], config.shards, config.out
        begin = Generation(0, "oracle", shards, label, parts)
        try:
            states = [
                service.prepare(replace(config, shard=shard, shards=shards), self._dataset, begin, 0.0)
                for shard in range(shards)
            ]
            rows = np.concatenate([state.table.values for state in states])
            round = int(Manifest.read(files.part_folder(run, label, 0, parts)).facts["round"])
        except GlovewireError as error:
            raise Broken(f"checkpoint {label} cannot be restored on {shards} shards: {error}") from error
        if round >= 0 and (expected := self._at(round)) is not None:
            require(rows.tobytes() == expected.tobytes(), f"checkpoint {label} is not the state of round {round}")

    def _is_being_removed(self, label: str) -> bool:
        """Return whether a part of a checkpoint has lost its manifest, which is removed first."""
        run, parts = self._config.out, range(self._config.shards)
        folders = [files.part_folder(run, label, shard, self._config.shards) for shard in parts]
        return any(each.exists() and not (each / MANIFEST).exists() for each in folders)

    def newest(self) -> Generation | None:
        """Return the newest generation of the run."""
        return generations.newest(self._config.out)

    def furthest(self) -> float:
        """Return the progress that must not be lost: the rounds or updates of the furthest announced checkpoint."""
        generation = self.newest()
        if generation is None:
            return -1.0
        begun = "" if self.is_damaged(generation.label) else generation.label
        return max(map(reached, [begun, *self.complete(generation)]))

    def require_kept(self, furthest: float) -> None:
        """Require that the run can be resumed from `furthest` or later."""
        try:
            label, parts = files.newest(self._config.out)
        except ArtifactError:
            label, parts = "", 0
        require(
            reached(label, self._config.out, parts) >= furthest,
            f"{furthest:.0f} rounds or updates were on disk, and {label or 'none'} is left",
        )


def reached(label: str, run: Path | None = None, parts: int = 0) -> float:
    """Return the rounds or updates in a label; those of a requested checkpoint are read from `run`, if given."""
    kind, _, number = label.partition("-")
    if kind == "asked" and run is not None:
        return reached_by(files.read_facts(run, label, parts)[0])
    return math.inf if kind == FINAL else float(number) if kind in ("round", "update") else -1.0


def reached_by(facts: Mapping[str, Any]) -> float:
    """Return the rounds or updates in the facts of a part, counted as in labels."""
    if facts["round"] >= 0:
        return float(facts["round"])
    return float(facts["updates"] if facts.get("tensors") else facts["gradients"])
