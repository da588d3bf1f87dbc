"""What a gradient of rows that have changed since counts: staleness policies, applied when a gradient is carried out.

Policies that scale do so behind the preconditioner (`optimizers.Step`), so that accumulators see gradients as they
came; delay compensation corrects the gradient itself, which is then its best estimate for the rows as they are now.
What is kept to measure how far rows moved is bounded. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from glovewire.common.array_types import Indices, Rows, Scales
from glovewire.common.errors import BadRequest
from glovewire.common.model.options import Mode
from glovewire.common.protocol.messages import Push

from ..table import kernels
from ..table.table import Table, ones
from .minibatch import Arrived

KEPT_PULLS = 2
MAX_KEPT_BYTES = 1 << 30
MEMORY = 0.98
"""How much of the mean step is remembered from one change to the next."""


@dataclass(frozen=True, eq=False)
class Part:
    """One gradient, ready: local rows (ascending, distinct), values (rows, parameters), a scale for each row."""

    rows: Indices
    gradients: Rows
    scales: Scales


def combined(parts: Sequence[Part], *, mean: bool) -> Part:
    """One gradient of all rows in any part: the sum, or the mean, over the parts in their order.

    A row's scale is the mean of its parts' scales; within the sum each part counts in the proportion of its own. So a
    step of plain descent is exactly the sum of scaled gradients, and an accumulator sees weights that average 1.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if all(part.rows is first.rows and part.scales is first.scales for part in parts):  # of one range, none scaled
        rows, scales, total = first.rows, first.scales, reduce(np.add, (part.gradients for part in parts))
    else:
        rows, scales, total = _united(parts)
    if mean:
        total /= total.dtype.type(len(parts))
    return Part(rows, total, scales)


def _united(parts: Sequence[Part]) -> tuple[Indices, Scales, Rows]:
    """All rows in any part, the mean scale of each, and the sum of the gradients, each in the proportion of its own."""
    rows = np.unique(np.concatenate([part.rows for part in parts]))
    places = [np.searchsorted(rows, part.rows) for part in parts]
    count, scales = np.zeros((2, len(rows)), np.float32)
    for part, at in zip(parts, places, strict=True):
        count[at] += 1
        scales[at] += part.scales
    scales /= count
    total = np.zeros((len(rows), parts[0].gradients.shape[1]), parts[0].gradients.dtype)
    for part, at in zip(parts, places, strict=True):
        share = np.divide(part.scales, scales[at], out=np.ones_like(part.scales), where=scales[at] > 0)
        kernels.add_rows(total, at, part.gradients if (share == 1).all() else part.gradients * share[:, None], 0)
    return rows, scales, total


class Policy:
    """The policy `mode` on one table; ages count changes of the row where `by_row`, else of the whole shard.

    `measures`: it has to know the rows as they were pulled.
    """

    def __init__(self, mode: Mode, table: Table, *, by_row: bool) -> None:
        self._kind, self._strength, self._table, self._by_row = mode.kind, np.float32(mode.number), table, by_row
        self.measures = mode.kind in ("gap", "dc")
        self.ages = Histogram()
        self.unmeasured = 0
        self._pulled: dict[int, deque[_Copy]] = {}
        self._before: dict[tuple[int, int], Rows | None] = {}
        self._bytes = 0
        self._mean_step = 0.0

    @property
    def kept_bytes(self) -> int:
        """Bytes of rows kept as they were pulled."""
        return self._bytes + sum(rows.nbytes for rows in self._before.values() if rows is not None)

    def pulled(self, worker: int, rows: Indices, version: int, values: Rows) -> None:
        """Remember local `rows` as a worker got them, if this policy measures how far they move."""
        if not self.measures:
            return
        kept = self._pulled.setdefault(worker, deque())
        copy = _Copy(version, rows, values[:, : self._table.parameters].copy())
        kept.append(copy)
        self._bytes += copy.values.nbytes
        while len(kept) > KEPT_PULLS or (kept and self._bytes > MAX_KEPT_BYTES):
            self._bytes -= kept.popleft().values.nbytes

    def check(self, push: Push, version: int) -> None:
        """Raise BadRequest unless the age of a gradient can be told; `version` is the shard's now."""
        if push.version > version:
            raise BadRequest(f"version {push.version} is ahead of the shard's, {version}")
        rows = self._table.local_rows(push)
        if push.versions is not None and self._table.versions is not None:
            if push.versions.shape != rows.shape:
                raise BadRequest(f"there must be {len(rows)} versions, one a row")
            if ((push.versions < 0) | (push.versions > self._table.versions[rows])).any():
                raise BadRequest("some rows are said to have versions that they never had")
        if self._kind != "none" and (push.version < 0 or (self._by_row and push.versions is None)):
            raise BadRequest("a gradient must say which version its rows had")

    def admitted(self, worker: int, push: Push) -> None:
        """A gradient waits to be carried out: keep the rows that it was computed from."""
        if not self.measures:
            return
        rows = self._table.local_rows(push)
        found = (copy.at(push.version, rows) for copy in reversed(self._pulled.get(worker, ())))
        self._before[worker, push.sequence] = next((values for values in found if values is not None), None)

    def forget(self, worker: int, *, lost: bool) -> None:
        """A worker is gone; what waits of one that is lost was dropped."""
        self._bytes -= sum(copy.values.nbytes for copy in self._pulled.pop(worker, ()))
        if lost:
            self._before = {key: rows for key, rows in self._before.items() if key[0] != worker}

    def weigh(self, arrived: Arrived, version: int) -> Part:
        """A gradient as it counts now that the shard is at `version`."""
        push = arrived.push
        rows, gradients = self._table.local_rows(push), kernels.aligned(push.values)
        ages = self._ages(push, rows, version)
        scales = ones(len(rows))
        if self._kind == "inverse":
            scales = scales / np.maximum(ages, 1).astype(np.float32)
        elif self._kind == "hyperbolic":
            scales = scales * self._strength / (self._strength + np.float32(ages))
        elif self.measures:
            moved = self._moved(arrived, rows)
            if self._kind == "dc":
                gradients = gradients + self._strength * gradients * gradients * moved
            elif self._mean_step > 0:
                scales = np.float32(1) / (np.float32(1) + _norms(moved) / np.float32(self._mean_step))
        return Part(rows, gradients, scales)

    def step(self, part: Part, rate: float) -> None:
        """Let the optimizer take the step; learn from it how far rows move in one."""
        if self._kind != "gap" or not len(part.rows):
            self._table.step(part.rows, part.gradients, rate, part.scales)
            return
        before = self._table.parameters_of(part.rows)
        self._table.step(part.rows, part.gradients, rate, part.scales)
        size = float(_norms(self._table.parameters_of(part.rows) - before).mean())
        self._mean_step = MEMORY * self._mean_step + (1 - MEMORY) * size if self._mean_step else size

    def _ages(self, push: Push, rows: Indices, version: int) -> Indices | int:
        """Changes of each row, or of all, that the gradient knows nothing of; 0 where it does not say. Counts them."""
        if self._by_row and push.versions is not None and self._table.versions is not None:
            ages = self._table.versions[rows] - push.versions
            self.ages.count_all(ages)
            return ages
        age = version - push.version if push.version >= 0 else 0
        self.ages.count(age, len(rows))
        return age

    def _moved(self, arrived: Arrived, rows: Indices) -> Rows:
        """By how much the parameters have changed since they were pulled; zeros where that was not kept."""
        now = self._table.parameters_of(rows)
        before = self._before.pop((arrived.worker, arrived.push.sequence), None)
        self.unmeasured += before is None
        return now - (now if before is None else before)


@dataclass(frozen=True, eq=False)
class _Copy:
    """Parameters of local rows as they were pulled at a version."""

    version: int
    rows: Indices
    values: Rows

    def at(self, version: int, rows: Indices) -> Rows | None:
        """The parameters of `rows` if this is the pull of that version and has them all."""
        if version != self.version:
            return None
        if np.array_equal(rows, self.rows):
            return self.values
        places = np.searchsorted(self.rows, rows)
        if not len(self.rows) or (self.rows[np.minimum(places, len(self.rows) - 1)] != rows).any():
            return None
        return self.values[places]


def _norms(rows: Rows) -> Rows:
    norms: Rows = np.sqrt(np.einsum("nk,nk->n", rows, rows))
    return norms


# ---- How stale pushes are when they are applied: counts in bins 0, 1, 2-3, 4-7 and so on by powers of two. Pure.
#
# The staleness of a push is what the version of its rows has grown by since they were pulled: how many changes it knows
# nothing of. Exclusive order makes it 0; the asynchronous modes make it a distribution that one wants to see.
#

BINS = 14
"""The last bin holds everything from 4,096 on."""
_LOWEST = 1 << np.arange(BINS - 1)
"""The least staleness of each bin but the first."""


class Histogram:
    """Counts pushes by staleness; bounded, whatever comes."""

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.last = 0

    def count(self, tau: int, times: int = 1) -> None:
        """So many pushes were applied that knew nothing of `tau` changes; less than none is none."""
        self.last = max(tau, 0)
        self.counts[min(self.last.bit_length(), BINS - 1)] += times

    def count_all(self, ages: npt.NDArray[np.int64]) -> None:
        """Count each of many, none below 0."""
        bins = np.bincount(np.searchsorted(_LOWEST, ages, "right"), minlength=BINS)
        self.counts = [count + int(more) for count, more in zip(self.counts, bins, strict=True)]

    @property
    def pushes(self) -> int:
        """Pushes counted."""
        return sum(self.counts)

    def as_fields(self) -> dict[str, int]:
        """Bin -> pushes, in order, up to the last bin that has any: `{"0": 12, "1": 3, "2-3": 1}`."""
        used = max((bin for bin, count in enumerate(self.counts) if count), default=-1) + 1
        return {label(bin): self.counts[bin] for bin in range(used)}


def label(bin: int) -> str:
    """What a bin is called: `0`, `1`, `2-3`, ..., `4096+`."""
    if bin < 2:
        return str(bin)
    low = 1 << (bin - 1)
    return f"{low}+" if bin == BINS - 1 else f"{low}-{2 * low - 1}"
