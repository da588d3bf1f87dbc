"""Measure how stale pushes are, and apply the staleness policies to gradients. No I/O, no clock.

The staleness, or age, of a push is the number of changes to its rows since they were pulled: 0 in exclusive order, any
number in asynchronous modes. Policies that scale do so after the preconditioner (`optimizers.Step`), so that
accumulators see the unscaled gradients; delay compensation corrects the gradient itself, to estimate the gradient at
the current rows. Memory is bounded.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from glovewire.common.array_types import Indices, Rows, Scales
from glovewire.common.errors import BadRequest
from glovewire.common.model.options import Mode
from glovewire.common.protocol.messages import Push

from ..table import kernels
from ..table.table import Table
from .minibatch import PendingPush

BINS = 14
"""The last bin holds everything from 4,096 on."""
_LOWEST = 1 << np.arange(BINS - 1)
"""The lowest age of each bin but the first."""
KEPT_PULLS = 2
MAX_KEPT_BYTES = 1 << 30
MEMORY = 0.98
"""Weight of the past in the moving average of step lengths."""


class StalenessHistogram:
    """Counts of pushes by age, in bins 0, 1, 2-3, 4-7 and so on by powers of two."""

    def __init__(self) -> None:
        self.counts = [0] * BINS

    def count(self, age: int, times: int = 1) -> None:
        """Count `times` pushes of one age; a negative age counts as 0."""
        self.counts[min(max(age, 0).bit_length(), BINS - 1)] += times

    def count_all(self, ages: Indices) -> None:
        """Count one push for each age in an array; none may be negative."""
        bins = np.bincount(np.searchsorted(_LOWEST, ages, "right"), minlength=BINS)
        self.counts = [count + int(more) for count, more in zip(self.counts, bins, strict=True)]

    def as_fields(self) -> dict[str, int]:
        """Return pushes by bin, in order, up to the last that has any: `{"0": 12, "1": 3, "2-3": 1}`."""
        used = max((bin for bin, count in enumerate(self.counts) if count), default=-1) + 1
        return {bin_label(bin): self.counts[bin] for bin in range(used)}


def bin_label(bin: int) -> str:
    """Return the ages of a bin as text: `0`, `1`, `2-3`, ..., `4096+`."""
    if bin < 2:
        return str(bin)
    low = 1 << (bin - 1)
    return f"{low}+" if bin == BINS - 1 else f"{low}-{2 * low - 1}"


@dataclass(frozen=True, eq=False)
class WeightedGradient:
    """A gradient ready to be applied: local rows (ascending, distinct), values (rows, parameters), scales (rows,)."""

    rows: Indices
    gradients: Rows
    scales: Scales


def combine(parts: Sequence[WeightedGradient], *, mean: bool) -> WeightedGradient:
    """Return one gradient over the rows of all parts: the sum of the parts, or with `mean` that sum / len(parts).

    A row's scale is the mean of its parts' scales, and in the sum each part is weighted by its own scale over that
    mean. So a step of plain descent is exactly the sum of scaled gradients, and an accumulator sees weights that
    average 1.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if all(part.rows is first.rows and part.scales is first.scales for part in parts):  # of one range, none scaled
        rows, scales, total = first.rows, first.scales, reduce(np.add, (part.gradients for part in parts))
    else:
        rows, scales, total = _union(parts)
    if mean:
        total /= total.dtype.type(len(parts))
    return WeightedGradient(rows, total, scales)


def _union(parts: Sequence[WeightedGradient]) -> tuple[Indices, Scales, Rows]:
    """Return the rows of all parts, each row's mean scale, and the weighted sum of the gradients."""
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


class StalenessPolicy:
    """Applies the policy `mode` to one table; ages count changes of the row if `by_row`, else of the whole shard.

    `measures`: the policy compares rows with their values at the pull. Those values are kept for the last KEPT_PULLS
    pulls of each worker, up to MAX_KEPT_BYTES; rows whose values are no longer kept count as unchanged.
    """

    def __init__(self, mode: Mode, table: Table, *, by_row: bool) -> None:
        self._kind, self._strength, self._table, self._by_row = mode.kind, np.float32(mode.number), table, by_row
        self.measures = mode.kind in ("gap", "dc")
        self.ages = StalenessHistogram()
        self._pulls: dict[int, deque[_PulledRows]] = {}
        self._pulled_by_push: dict[tuple[int, int], Rows | None] = {}
        self._bytes = 0
        self._mean_step = 0.0

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of rows kept from pulls."""
        return self._bytes + sum(rows.nbytes for rows in self._pulled_by_push.values() if rows is not None)

    def pulled(self, worker: int, rows: Indices, version: int, values: Rows) -> None:
        """Keep the parameters of local `rows` that a worker has pulled, if the policy measures."""
        if not self.measures:
            return
        kept = self._pulls.setdefault(worker, deque())
        copy = _PulledRows(version, rows, values[:, : self._table.parameters].copy())
        kept.append(copy)
        self._bytes += copy.values.nbytes
        while len(kept) > KEPT_PULLS or (kept and self._bytes > MAX_KEPT_BYTES):
            self._bytes -= kept.popleft().values.nbytes

    def check(self, push: Push, version: int) -> None:
        """Raise BadRequest if the age of a gradient is unknown or impossible; the shard is at `version`."""
        if push.version > version:
            raise BadRequest(f"version {push.version} is ahead of the shard's, {version}")
        rows = self._table.local_rows(push)
        if push.versions is not None and self._table.versions is not None:
            if push.versions.shape != rows.shape:
                raise BadRequest(f"there must be {len(rows)} versions, one per row")
            if ((push.versions < 0) | (push.versions > self._table.versions[rows])).any():
                raise BadRequest("the push names versions that its rows never had")
        if self._kind != "none" and (push.version < 0 or (self._by_row and push.versions is None)):
            raise BadRequest("a gradient must say which version its rows had")

    def admitted(self, worker: int, push: Push) -> None:
        """Keep the rows that an admitted gradient was computed from until it is weighed, if the policy measures."""
        if not self.measures:
            return
        rows = self._table.local_rows(push)
        found = (copy.at(push.version, rows) for copy in reversed(self._pulls.get(worker, ())))
        self._pulled_by_push[worker, push.sequence] = next((values for values in found if values is not None), None)

    def forget(self, worker: int, *, lost: bool) -> None:
        """Drop the pulled rows kept for a worker that left; if it was `lost`, also those kept for its pushes."""
        self._bytes -= sum(copy.values.nbytes for copy in self._pulls.pop(worker, ()))
        if lost:
            self._pulled_by_push = {key: rows for key, rows in self._pulled_by_push.items() if key[0] != worker}

    def weigh(self, pending: PendingPush, version: int) -> WeightedGradient:
        """Return a gradient with the scales or the correction of the policy, and count its ages at `version`."""
        push = pending.push
        rows, gradients = self._table.local_rows(push), kernels.aligned(push.values)
        ages = self._ages(push, rows, version)
        scales = ones(len(rows))
        if self._kind == "inverse":
            scales = scales / np.maximum(ages, 1).astype(np.float32)
        elif self._kind == "hyperbolic":
            scales = scales * self._strength / (self._strength + np.float32(ages))
        elif self.measures:
            moved = self._moved(pending, rows)
            if self._kind == "dc":
                gradients = gradients + self._strength * gradients * gradients * moved
            elif self._mean_step > 0:
                scales = np.float32(1) / (np.float32(1) + _norms(moved) / np.float32(self._mean_step))
        return WeightedGradient(rows, gradients, scales)

    def step(self, part: WeightedGradient, rate: float) -> None:
        """Take an optimizer step with a weighted gradient; the policy `gap` also updates its mean step length."""
        if self._kind != "gap" or not len(part.rows):
            self._table.step(part.rows, part.gradients, rate, part.scales)
            return
        before = self._table.parameters_of(part.rows)
        self._table.step(part.rows, part.gradients, rate, part.scales)
        size = float(_norms(self._table.parameters_of(part.rows) - before).mean())
        self._mean_step = MEMORY * self._mean_step + (1 - MEMORY) * size if self._mean_step else size

    def _ages(self, push: Push, rows: Indices, version: int) -> Indices | int:
        """Count and return the age of each row, or one age for all rows; 0 if the push names no version."""
        if self._by_row and push.versions is not None and self._table.versions is not None:
            ages = self._table.versions[rows] - push.versions
            self.ages.count_all(ages)
            return ages
        age = version - push.version if push.version >= 0 else 0
        self.ages.count(age, len(rows))
        return age

    def _moved(self, pending: PendingPush, rows: Indices) -> Rows:
        """Return by how much the parameters of `rows` have changed since the pull; zeros if they were not kept."""
        now = self._table.parameters_of(rows)
        before = self._pulled_by_push.pop((pending.worker, pending.push.sequence), None)
        return now - (now if before is None else before)


@dataclass(frozen=True, eq=False)
class _PulledRows:
    """Parameters of local rows, as pulled at a version."""

    version: int
    rows: Indices
    values: Rows

    def at(self, version: int, rows: Indices) -> Rows | None:
        """Return the parameters of `rows` if this pull was of that version and has them all."""
        if version != self.version:
            return None
        if np.array_equal(rows, self.rows):
            return self.values
        places = np.searchsorted(self.rows, rows)
        if not len(self.rows) or (self.rows[np.minimum(places, len(self.rows) - 1)] != rows).any():
            return None
        return self.values[places]


@lru_cache(maxsize=8)
def ones(count: int) -> Scales:
    """Return `count` ones, shape (count,): a shared array that must not be written to."""
    return np.ones(count, np.float32)


def _norms(rows: Rows) -> Rows:
    norms: Rows = np.sqrt(np.einsum("nk,nk->n", rows, rows))
    return norms
