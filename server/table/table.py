"""Keep the rows of one shard in this process's memory; read and change them by range or by row number.

Row numbers count from the start of the whole table, over all shards. Requests are checked here for range, shape and
finiteness. No I/O, no clock, no sessions.
"""

from functools import lru_cache

import numpy as np

from glovewire.common.array_types import Array, Halves, Indices, Rows, Scales
from glovewire.common.errors import BadRequest, LimitExceeded, NotFinite
from glovewire.common.model import bfloat16_kernels
from glovewire.common.model.bfloat16 import BFLOAT16, from_bfloat16
from glovewire.common.model.options import MAX_RATE
from glovewire.common.protocol.messages import Pull, Push
from glovewire.common.protocol.wire import MAX_FRAME_BYTES

from . import kernels
from .optimizers import Step


class Table:
    """Rows [first, last) of the table `name`; `values` has shape (last - first, width), float32 for word vectors.

    The leading `parameters` columns are the model's, the others the optimizer's. Requests carry whole rows or, with
    `parameters_only`, the parameters alone. `versions` (last - first,) counts the changes of each row, if not None.
    `rows` is the number of rows, even after `release`.
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
    ) -> None:
        self._parameters_only = parameters_only
        self.name = name
        self.first = first
        self.versions = versions
        self.parameters = parameters
        self._step = step
        self.values = values

    @property
    def values(self) -> Rows:
        """Return all rows, as they are in the table."""
        return self._values

    @values.setter
    def values(self, values: Rows) -> None:
        """Hold these rows, and cache the bound and width that every request is checked against."""
        self._values, self.rows = values, len(values)
        self.last = self.first + self.rows
        self._request_width = self.parameters if self._parameters_only else values.shape[1]

    def release(self) -> None:
        """Free the rows' memory, once the run is over and they are on disk."""
        self._values = self._values[:0].copy()
        self.last = self.first  # so that every request is refused

    def check_pull(self, pull: Pull) -> None:
        """Raise BadRequest unless all rows are on this shard, LimitExceeded if they are too many for one message."""
        if pull.rows is None:
            low, high = self.local_range(pull.first, pull.last)
            count = high - low
        else:
            count = pull.rows.size
            if count > self.rows:
                raise LimitExceeded(f"{count} rows of {self.rows}: name each row once")
        if pull.bfloat16 and not self._sends_bfloat16:
            raise BadRequest(f"rows of the table {self.name!r} are sent as {self.values.dtype} alone")
        itemsize = BFLOAT16.itemsize if pull.bfloat16 else self._values.itemsize
        if count * self._request_width * itemsize > MAX_FRAME_BYTES:
            raise LimitExceeded(f"{count} rows do not fit in one message: pull fewer at a time")
        if pull.rows is not None:
            self._check_rows(pull.rows)

    @property
    def _sends_bfloat16(self) -> bool:
        """Return whether rows and differences may be bfloat16: rows of a model of words, not of tensors."""
        return self._values.dtype == np.float32 and not self._parameters_only

    def read(self, pull: Pull) -> Array:
        """Return the current rows of a pull that has passed `check_pull`; later changes do not affect them."""
        if pull.rows is None:
            low, high = self.local_range(pull.first, pull.last)
            if pull.bfloat16:
                return bfloat16_kernels.narrow(self._values[low:high])
            return self._values[low:high, : self._request_width].copy()
        if self._parameters_only:
            return self.parameters_of(pull.rows - self.first)
        gather = kernels.gather_bfloat16 if pull.bfloat16 else kernels.gather
        return gather(self._values, kernels.aligned(pull.rows), self.first)

    def exchange(self, push: Push) -> tuple[Array, Halves | None]:
        """Assign the rows of a push that has passed `check_push`, or add bfloat16; return a copy of them before it.

        The copy is float32 and None, or if the push is bfloat16, what `kernels.exchange_bfloat16` returns.
        """
        values = kernels.aligned(push.values)
        if values.dtype == BFLOAT16:
            return kernels.exchange_bfloat16(self._values, kernels.aligned(self.local_rows(push)), values)
        if push.rows is not None:
            return kernels.exchange(self._values, kernels.aligned(push.rows), values, self.first), None
        low, high = self.local_range(push.first, push.last)
        before = self._values[low:high].copy()
        self._values[low:high] = values
        return before, None

    def check_push(self, push: Push) -> None:
        """Raise BadRequest or NotFinite unless `apply`, `exchange` or `step` can carry out the push."""
        if push.operation not in ("assign", "add", "gradient"):
            raise BadRequest(f"no operation is called {push.operation[:40]!r}")
        if not 0 <= push.rate <= MAX_RATE:
            raise BadRequest(f"rate must be between 0 and {MAX_RATE:g}, not {push.rate}")
        count = push.last - push.first if push.rows is None else push.rows.size
        width = self.parameters if push.operation == "gradient" else self._request_width
        dtype, narrow_too = self._values.dtype, push.operation == "add" and self._sends_bfloat16
        if push.values.shape != (count, width) or not (
            push.values.dtype == dtype or (narrow_too and push.values.dtype == BFLOAT16)
        ):
            raise BadRequest(f"values must be {dtype}{' or bfloat16' * narrow_too} of shape ({count}, {width})")
        if push.rows is None:
            self.local_range(push.first, push.last)
        else:
            self._check_rows(push.rows)
            if push.operation == "gradient" and (np.diff(push.rows) <= 0).any():
                raise BadRequest("rows of a gradient must be ascending and distinct")
        all_finite = (bfloat16_kernels if push.values.dtype == BFLOAT16 else kernels).all_finite
        if not all_finite(kernels.aligned(push.values)):
            raise NotFinite(f"the push to rows of {self.name!r} has NaN or infinite values")

    def apply(self, push: Push) -> None:
        """Assign or add the rows of a push that has passed `check_push`."""
        values = kernels.aligned(push.values)
        if values.dtype == BFLOAT16:
            values = from_bfloat16(values)
        if push.rows is None:
            low, high = self.local_range(push.first, push.last)
            if push.operation == "assign":
                self._values[low:high, : values.shape[1]] = values
            else:
                self._values[low:high, : values.shape[1]] += values
        elif push.operation == "assign":
            self._values[push.rows - self.first, : values.shape[1]] = values
        else:
            kernels.add_rows(self._values, kernels.aligned(push.rows), values, self.first)

    def step(self, rows: Indices, gradients: Rows, rate: float, scales: Scales) -> None:
        """Take an optimizer step on distinct local rows; `gradients` (rows, parameters), `scales` (rows,)."""
        self._step(self._values, rows, gradients, rate, scales)
        if self.versions is not None:
            kernels.count_rows(self.versions, rows, 0)

    def versions_of(self, pull: Pull) -> Indices | None:
        """Return the version of each row of a pull, None if versions are not counted."""
        if self.versions is None:
            return None
        if pull.rows is None:
            low, high = self.local_range(pull.first, pull.last)
            return self.versions[low:high].copy()
        return self.versions.take(pull.rows - self.first)

    def local_rows(self, request: Pull | Push) -> Indices:
        """Return the rows of a checked request, counted from this table's first."""
        if request.rows is None:
            return row_numbers(*self.local_range(request.first, request.last))
        return request.rows - self.first

    def parameters_of(self, rows: Indices) -> Rows:
        """Return a copy of the parameters of `rows`, counted from this table's first."""
        return np.ascontiguousarray(self.values[rows, : self.parameters])

    def local_range(self, first: int, last: int) -> tuple[int, int]:
        """Return rows [first, last) counted from this table's first; BadRequest if some are not on this shard."""
        if not self.first <= first <= last <= self.last:
            raise BadRequest(f"rows {first}..{last} are not on this shard, which has {self.first}..{self.last}")
        return first - self.first, last - self.first

    def _check_rows(self, rows: Indices) -> None:
        if not kernels.all_within(kernels.aligned(rows), self.first, self.last):
            raise BadRequest(f"some rows are not on this shard, which has {self.first}..{self.last}")


@lru_cache(maxsize=8)
def row_numbers(first: int, last: int) -> Indices:
    """Return first to last - 1, shape (last - first,): a shared array that must not be written to."""
    return np.arange(first, last)
