"""Keep parameters in this machine's memory: a local array, or one that processes share (Hogwild, Niu et al. 2011).

Strips are trained in place, without copies. An update may be lost when two processes change the same row at once.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Array, Indices, Rows
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.rounds import Rounds
from glovewire.common.protocol import messages as m

from .interface import Change, Pulled

Step = Callable[[Rows, Indices, Rows, float, npt.NDArray[np.float32]], None]


class MemoryStore:
    """A Store with all rows in one array of shape (rows, width).

    `next_round` counts up from 0 over the strips of all processes. `step` is the optimizer for minibatches. `count`
    adds its argument to the number of gradients of all processes and returns the sum. `on_report` takes a report and
    returns whether training is over.
    """

    in_place = True

    def __init__(
        self,
        rows: Rows,
        partitions: int,
        options: TrainingOptions,
        next_round: Callable[[], int],
        step: Step,
        count: Callable[[int], int],
        on_report: Callable[[m.Report], bool],
    ) -> None:
        self._rows, self._rounds = rows, Rounds.of(options, partitions)
        self._next_round, self._step, self._count, self._on_report = next_round, step, count, on_report

    def now(self) -> float:
        """See Store."""
        return time.perf_counter()

    def lease(self, has: npt.NDArray[np.uint8] | None = None) -> Pending[m.Granted | m.Done]:
        """Return the next strip, in the order in which a server grants strips; Done after the last."""
        del has
        round = self._next_round()
        return Pending(m.Done(Ending.COMPLETE) if round >= self._rounds.total else m.Granted(0, round, 0), 0)

    def pull_range(
        self, first: int, last: int, version: int, rows: Indices | None = None, *, bfloat16: bool = False
    ) -> Pending[Array]:
        """Return rows [first, last) themselves, not a copy; the other arguments have no effect."""
        del version, rows, bfloat16
        return Pending(self._rows[first:last], 0)

    def pull_rows(self, rows: Indices) -> Pending[Pulled]:
        """Return a copy of the rows."""
        return Pending(Pulled(self._rows[rows], gradients=self._count(0)), 0)

    def push_range(self, operation: str, lease: m.Granted, change: Change) -> Pending[int]:
        """Do nothing: the rows were changed in place."""
        del operation, lease, change
        return Pending(0, 0)

    def push_rows(
        self, operation: str, rows: Indices, values: Rows, rate: float, pulled: Pulled, wanted: Indices
    ) -> tuple[Pending[bool], Pending[Pulled]]:
        """Step the optimizer on `rows`, and return a copy of the rows `wanted`."""
        del operation, pulled
        self._step(self._rows, rows, values, rate, np.ones(len(rows), np.float32))
        self._count(1)
        return Pending(True, 0), self.pull_rows(wanted)

    def report(self, report: Callable[[int, int], m.Report]) -> Pending[m.Recorded]:
        """Pass a report on to `on_report`; its number and the bytes sent are 0, and so is what is recorded of it."""
        return Pending(m.Recorded(self._on_report(report(0, 0)), epoch=0, entries=0), 0)

    def poll(self) -> None:
        """Do nothing: nothing arrives."""

    wait = flush = poll

    def leave(self, end: RunEnd) -> None:
        """Do nothing: there is no server."""
