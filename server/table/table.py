"""The rows of one shard: plain arrays in this process's memory, read and changed by ranges or by row numbers.

Row numbers are those of the whole table. Checks what the network may not be trusted with (range, shape, finiteness);
knows nothing of sessions or time. `versions`, where it is kept, counts the changes of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from glovewire.common.array_types import Array, Indices, Rows, Scales
from glovewire.common.errors import BadRequest, LimitExceeded, NotFinite
from glovewire.common.model.options import MAX_RATE
from glovewire.common.protocol.messages import Pull, Push
from glovewire.common.protocol.wire import MAX_FRAME_BYTES

from . import kernels
from .optimizers import Step


class Table:
    """Rows [first, last) of the table `name`; `values` is of shape (last - first, width), float32 for word vectors.

    `bounds` (of the whole table, from first to last) part rows that `replace` exchanges; any other change joins them.
    The leading `parameters` columns are the model's, the others the optimizer's. Whole rows travel, or, with
    `parameters_only`, those columns alone. `versions` (last - first,) counts changes of each row, or is None. `rows` is
    how many there are, also when they have been given up.
    """

    def __init__(
        self,
        name: str,
        first: int,
        values: Rows,
        parameters: int,
        step: Step,
        versions: Indices | None = None,
        *,
        parameters_only: bool = False,
        bounds: Sequence[int] = (),
    ) -> None:
        self._parameters_only = parameters_only
        self.name = name
        self.first, self.rows = first, len(values)
        self.versions = versions
        self.parameters = parameters
        self._step = step
        self._keep(Pages(values, [bound - first for bound in bounds]))

    @property
    def values(self) -> Rows:
        """All rows: the array that they are in, or a copy where `bounds` part them."""
        return self._pages.whole()

    @values.setter
    def values(self, values: Rows) -> None:
        self.rows = len(values)
        self._keep(Pages(values))

    def _keep(self, pages: Pages) -> None:
        """What every message is compared with, at hand."""
        self._pages = pages
        self.last = self.first + pages.shape[0]
        self._travelling = self.parameters if self._parameters_only else pages.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._pages.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows."""
        return self._pages.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def give_up(self) -> None:
        """The run is over and the rows are on disk: let their memory go."""
        self._keep(Pages(self.values[:0].copy()))

    def check_pull(self, pull: Pull) -> None:
        """Raise BadRequest unless the rows are all ours, LimitExceeded when they do not fit in one message."""
        if pull.rows is None:
            low, high = self._range(pull.first, pull.last)
            self._fits(high - low)
        else:
            self._fits(pull.rows.size)
            self._check_rows(pull.rows)

    def read(self, pull: Pull) -> Rows:
        """The rows asked for by a pull that `check_pull` has passed, as they are now; they will not change."""
        if pull.rows is None:
            low, high = self._range(pull.first, pull.last)
            rows = self._pages.between(low, high)[:, : self._travelling]
            return rows if self._pages.divided else rows.copy()
        if self._parameters_only:
            return self.parameters_of(self._local(pull.rows))
        return self._pages.gather(pull.rows, self.first)

    def between(self, first: int, last: int) -> Rows:
        """Rows [first, last) of this shard, to be looked at before anything changes."""
        return self._pages.between(*self._range(first, last))

    def replace(self, push: Push) -> Rows:
        """Assign all rows between two bounds by a push that `check` has passed; the rows as they were."""
        return self._pages.replace(push.first - self.first, kernels.aligned(push.values))

    def join(self) -> Rows:
        """All rows in one array, from now on."""
        return self._pages.join()

    def check(self, push: Push) -> None:
        """Raise BadRequest or NotFinite unless `write` can carry this out."""
        if push.operation not in ("assign", "add", "gradient"):
            raise BadRequest(f"no operation is called {push.operation[:40]!r}")
        if not 0 <= push.rate <= MAX_RATE:
            raise BadRequest(f"rate must be between 0 and {MAX_RATE:g}, not {push.rate}")
        count = push.last - push.first if push.rows is None else push.rows.size
        width = self.parameters if push.operation == "gradient" else self._travelling
        if push.values.dtype != self.dtype or push.values.shape != (count, width):
            raise BadRequest(f"values must be {self.dtype} of shape ({count}, {width})")
        if push.rows is None:
            self._range(push.first, push.last)
        else:
            self._check_rows(push.rows)
            if push.operation == "gradient" and (np.diff(push.rows) <= 0).any():
                raise BadRequest("rows of a gradient must be ascending and distinct")
        if not kernels.all_finite(kernels.aligned(push.values)):
            raise NotFinite(f"the push to rows of {self.name!r} has NaN or infinite values")

    def write(self, push: Push) -> None:
        """Carry out a push that `check` has passed."""
        values = kernels.aligned(push.values)
        if push.operation == "gradient":
            rows = self.local(push)
            self.step(rows, values, push.rate, ones(len(rows)))
        elif push.rows is None:
            low, high = self._range(push.first, push.last)
            if push.operation == "assign":
                self.join()[low:high, : values.shape[1]] = values
            else:
                kernels.add_range(self.join(), low, values)
        elif push.operation == "assign":
            self.join()[self._local(push.rows), : values.shape[1]] = values
        else:
            kernels.add_rows(self.join(), kernels.aligned(push.rows), values, self.first)

    def step(self, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        """Let the optimizer step distinct local rows; `gradients` (rows, parameters), `scales` (rows,)."""
        self._step(self.join(), rows, gradients, rate, scales)
        if self.versions is not None:
            kernels.count(self.versions, rows, 0)

    def versions_of(self, pull: Pull) -> Indices | None:
        """How often each row asked for has changed, where that is counted."""
        if self.versions is None:
            return None
        if pull.rows is None:
            low, high = self._range(pull.first, pull.last)
            return self.versions[low:high].copy()
        return kernels.counted(self.versions, kernels.aligned(pull.rows), self.first)

    def local(self, request: Pull | Push) -> Indices:
        """The rows of a request that was checked, counted from this table's first."""
        if request.rows is None:
            return numbers(*self._range(request.first, request.last))
        return self._local(request.rows)

    def parameters_of(self, rows: Indices) -> Rows:
        """A copy of the parameters of local rows."""
        return np.ascontiguousarray(self.values[rows, : self.parameters])

    def _range(self, first: int, last: int) -> tuple[int, int]:
        if not self.first <= first <= last <= self.last:
            raise BadRequest(f"rows {first}..{last} are not on this shard, which has {self.first}..{self.last}")
        return first - self.first, last - self.first

    def _check_rows(self, rows: Indices) -> None:
        if not kernels.within(kernels.aligned(rows), self.first, self.last):
            raise BadRequest(f"some rows are not on this shard, which has {self.first}..{self.last}")

    def _local(self, rows: Indices) -> Indices:
        """Where rows that were checked stand in `values`."""
        return rows - self.first

    def _fits(self, count: int) -> None:
        if count * self._travelling * self.dtype.itemsize > MAX_FRAME_BYTES:
            raise LimitExceeded(f"{count} rows do not fit in one message: pull fewer at a time")


@lru_cache(maxsize=8)
def ones(count: int) -> Scales:
    """So many ones, shape (count,), the same array every time: nobody writes into it."""
    return np.ones(count, np.float32)


@lru_cache(maxsize=8)
def numbers(first: int, last: int) -> Indices:
    """first to last - 1, shape (last - first,), the same array every time: nobody writes into it."""
    return np.arange(first, last)


# ---- Rows in one piece, or in several that are exchanged whole: what has arrived takes a place and is not copied.


class Pages:
    """Takes `rows` (rows, width) over. `bounds` are where pages begin and end, counted from the first row.

    With several pages none is ever changed in place: whoever has been given one may keep it.
    """

    def __init__(self, rows: Array, bounds: Sequence[int] = ()) -> None:
        cuts = sorted({0, *bounds, len(rows)})
        self.shape: tuple[int, int] = rows.shape[0], rows.shape[1]
        self.dtype = rows.dtype
        self._starts = np.array(cuts[:-1] or [0])
        self._pages = [rows] if len(cuts) <= 2 else _divided(rows, cuts)

    @property
    def divided(self) -> bool:
        """Whether there are several."""
        return len(self._pages) > 1

    def whole(self) -> Array:
        """All rows as one array: the one that they are in, or a copy of all pages."""
        return np.concatenate(self._pages) if self.divided else self._pages[0]

    def join(self) -> Array:
        """The same, and they stay in that array; never is more than a page there twice."""
        if self.divided:
            rows = np.empty(self.shape, self.dtype)
            for number, start in enumerate(self._starts.tolist()):
                page, self._pages[number] = self._pages[number], rows[:0]
                rows[start : start + len(page)] = page
            self._starts, self._pages = self._starts[:1], [rows]
        return self._pages[0]

    def between(self, low: int, high: int) -> Array:
        """Rows [low, high): part of a page, or a copy when they are in several."""
        number = int(np.searchsorted(self._starts, low, "right")) - 1
        page, start = self._pages[number], int(self._starts[number])
        if high > start + len(page):
            page = np.concatenate(self._pages[number : int(np.searchsorted(self._starts, high))])
        return page[low - start : high - start]

    def gather(self, rows: Indices, first: int = 0) -> Array:
        """A copy of the given rows, in their order; they are counted from `first`."""
        if not self.divided:
            return kernels.gather(self._pages[0], kernels.aligned(rows), first)
        rows, found = rows - first, np.empty((len(rows), self.shape[1]), self.dtype)
        numbers = np.searchsorted(self._starts, rows, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._pages[number][rows[here] - self._starts[number]]
        return found

    def replace(self, low: int, rows: Array) -> Array:
        """Put `rows` at [low, ...) and return what was there. A page takes them as they are, and must not be split."""
        if not self.divided:
            before = self._pages[0][low : low + len(rows)].copy()
            self._pages[0][low : low + len(rows)] = rows
            return before
        number = int(np.searchsorted(self._starts, low))
        before, self._pages[number] = self._pages[number], rows
        assert len(before) == len(rows)
        return before


def _divided(rows: Array, cuts: Sequence[int]) -> list[Array]:
    """Pages of their own, from the last to the first: what is copied is cut off, so that memory holds all but once."""
    pages = []
    rows = rows if rows.flags.owndata else rows.copy()
    for low in reversed(cuts[:-1]):
        pages.append(rows[low:].copy())
        rows.resize((low, rows.shape[1]), refcheck=False)
    return pages[::-1]
