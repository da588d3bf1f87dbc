"""Keep the progress of the whole run, on shard 0: blocks leased and trained, entries and losses. No I/O."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from glovewire.common.endings import RunEnd
from glovewire.common.errors import BadRequest, LeaseLost
from glovewire.common.model.tensor_layout import MAX_EXAMPLES
from glovewire.common.protocol.messages import Done, Event, Granted, Lease, Message, Report
from glovewire.common.text import shown_loss

from ..sessions import Session
from ..tokens import Tokens
from .losses import Losses
from .patience import Held, Patience
from .schedule import LEASES_PER_WORKER, MAX_ROUNDS, Schedule

LARGEST_FIGURE = 1e30


class Progress:
    """Grants the strips of `schedule` (None for minibatches, and on shards other than 0) and counts reports.

    Minibatch training is complete when `gradients()` minibatches of `batch` entries cover all epochs. `owners[p]` are
    the shards that have rows of partition p: a strip is trained when its report has the receipts of all of them. A
    worker that holds up the run for `patience_s` is overdue. The entries of a dense model are examples.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        losses: Losses,
        gradients: Callable[[], int],
        batch: int,
        tokens: Tokens | None = None,
        owners: Sequence[Sequence[int]] = (),
        patience_s: float = math.inf,
    ) -> None:
        self.schedule, self.losses = schedule, losses
        self._tokens, self._owners = tokens or Tokens(b""), owners
        self.patience = Patience(patience_s)
        self._gradients, self._batch = gradients, batch
        self._restored = losses.entries
        self._announced_epoch = losses.epoch
        self._allowed = MAX_ROUNDS
        is_dense = losses.updates is not None
        self._min_loss = -LARGEST_FIGURE if is_dense else 0.0  # a log-likelihood may be negative, a sum of squares not
        self.max_entries = MAX_EXAMPLES if is_dense else losses.total + batch
        """Largest number of entries that one report may have: the last batch may go beyond the end."""

    @property
    def complete(self) -> bool:
        """Return whether everything has been trained; of a dense model, whether the last update has been made."""
        if self.losses.updates is not None:
            done, of = self.losses.updates()
            return 0 < of <= done
        if self.schedule is not None:
            return self.schedule.complete and self._allowed > self.losses.epochs
        return max(self._gradients() * self._batch, self._restored) >= self.losses.total

    def allow(self, epochs: int) -> None:
        """Grant strips of the sweeps of the first `epochs` epochs only, and complete only once they are more than all.

        So an observer that scores the rows after every sweep finds them as the sweep has left them.
        """
        if self.schedule is not None:
            self._allowed = epochs
            sweeps = -(-epochs // self.schedule.rounds.local_epochs)
            self.schedule.limit = min(sweeps * self.schedule.rounds.partitions, MAX_ROUNDS)

    def proceed(self, epochs: int) -> None:
        """Allow more epochs than before; a client cannot hold up a run with this."""
        if epochs > self._allowed:
            self.allow(epochs)

    @property
    def low_water(self) -> int:
        """Return the first round that is not trained and reported; 0 where there are no rounds."""
        return self.schedule.low_water if self.schedule is not None else 0

    def stop(self) -> None:
        """Grant no further round."""
        self._allowed = MAX_ROUNDS
        if self.schedule is not None:
            self.schedule.stop()

    def grant(self, session: Session, lease: Lease, end: RunEnd) -> Message | None:
        """Return a strip for this worker, Done when there is none left, None while it must wait.

        A worker that has reported none yet gets one at a time: what it holds may be lost.
        """
        if self.schedule is None:
            raise BadRequest("only shard 0 leases blocks, and only in the block schedule")
        if lease.has is not None and len(lease.has) != self.schedule.rounds.partitions:
            raise BadRequest(f"`has` needs a number for each of {self.schedule.rounds.partitions} partitions")
        if self.schedule.complete:
            return Done(*end) if self.complete else None
        most = LEASES_PER_WORKER if self.patience.is_proven(session.name) else 1
        has = () if lease.has is None else np.flatnonzero(lease.has).tolist()
        granted = self.schedule.grant(session.name, most, frozenset(has))
        if granted is None:
            return None
        (number, round), low_water = granted, self.low_water
        token = self._tokens.lease(number, session.index, round)
        answer = Granted(number, round, low_water, self._tokens.low_water(low_water), token)
        session.ticket, session.grant = lease.ticket, answer  # for a repeat of the request
        return answer

    def count(self, session: Session, report: Report, now: float, t: float) -> list[Event]:
        """Count a report; return an event, at `t` s, if a sweep is complete.

        Raises LeaseLost without the lease, BadRequest if a push of the strip is not in the table of its shard.
        """
        self._check(report)
        sweep, part = self.losses.sweep, None
        if self.schedule is not None:
            round = self._finish(self.schedule, session, report)
            sweep, part = self.schedule.rounds.sweep(round), self.schedule.rounds.strip(round)
        self.losses.add(session.name, sweep, report, now, part)
        if self.losses.epoch <= self._announced_epoch:
            return []
        self._announced_epoch = self.losses.epoch
        loss, bias_only_loss, _ = self.losses.sweep_means(self.losses.sweep - 1)
        text = f"loss {shown_loss(loss)}, bias-only loss {shown_loss(bias_only_loss)}"
        return [Event(t, "epoch", str(self.losses.epoch), text)]

    def _finish(self, schedule: Schedule, session: Session, report: Report) -> int:
        round, holder = schedule.held.get(report.lease, (0, None))
        if holder != session.name:
            raise LeaseLost(f"lease {report.lease} is not yours (any more)")
        expected = 0
        for partition in schedule.rounds.visits(round):
            for shard in self._owners[partition]:
                expected ^= self._tokens.receipt(shard, report.lease, partition)
        if report.receipt ^ expected:
            raise BadRequest(f"the report of lease {report.lease} lacks the receipts of all its pushes")
        self.patience.reported(session.name)
        return schedule.finish(report.lease)

    def overdue(self, now: float, waited_for: Callable[[], dict[int, Held]]) -> list[str]:
        """Return the workers that hold up the run now; call it often, it checks about once a second.

        `waited_for()` returns those whose gradients others wait for, as `Patience.check` takes them.
        """
        if not self.patience.is_due(now):
            return []
        if self.schedule is None:
            return self.patience.check(0, waited_for(), now)
        round = self.schedule.low_water
        held = {lease: each for lease, each in self.schedule.held.items() if each[0] == round}
        return self.patience.check(round, held, now)

    def _check(self, report: Report) -> None:
        """Raise BadRequest for impossible figures: a single one could end the run or spoil every mean."""
        if (report.lease >= 0) != (self.schedule is not None):
            raise BadRequest("a report of blocks names its lease, a report of minibatches names none")
        if not 0 <= report.entries <= self.max_entries:
            raise BadRequest(f"entries must be between 0 and {self.max_entries}, not {report.entries}")
        if not self._min_loss <= report.loss <= LARGEST_FIGURE:
            raise BadRequest(f"the loss must be between {self._min_loss:g} and {LARGEST_FIGURE:g}, not {report.loss:g}")
        figures = (report.bias_only_loss, report.norm, report.seconds, float(report.bytes_sent))
        if not all(0.0 <= figure <= LARGEST_FIGURE for figure in figures):
            raise BadRequest(f"losses, norm, seconds and bytes must be between 0 and {LARGEST_FIGURE:g}")

    def release(self, worker: str, *, lost: bool) -> list[int]:
        """Take back the leases of a worker that left or was `lost`; return their rounds."""
        rounds = self.schedule.release(worker) if self.schedule is not None else []
        if rounds and not lost:
            self.patience.deserted(worker)
        return rounds
