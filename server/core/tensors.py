"""Decide which tensors a shard serves and which worker brings their first values. No I/O.

A shard starts without tensors. The first worker that declares its model must bring the values; the others wait. If
that worker leaves before all rows have values, the next worker that declares the model takes its place.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from glovewire.common.errors import BadRequest, LimitExceeded, ModelMismatch, NotReady
from glovewire.common.model.bfloat16 import BFLOAT16, from_bfloat16
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import state_columns
from glovewire.common.model.sharding import Sharding
from glovewire.common.model.tensor_layout import ROW, TABLE, ModelSpec
from glovewire.common.protocol.messages import Create, Created, Push
from glovewire.common.protocol.wire import MAX_FRAME_BYTES

from ..leases.patience import Held
from ..sessions import Session
from ..table import optimizers
from ..table.table import Table

UNKNOWN = "the tensors of this server have no values yet: a worker must create them first"
MAX_COMPARED_BYTES = 16 << 10
"""A longer list of tensors is compared with the server's byte by byte, and not parsed."""


class Tensors:
    """The tensors of shard `shard` of `shards`; `table` is empty until a model is declared or restored."""

    def __init__(self, options: TrainingOptions, shard: int, shards: int) -> None:
        self.spec: ModelSpec | None = None
        self._declared: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        none, step = np.zeros((0, ROW), np.float32), optimizers.make(options)
        self.table = Table(TABLE, 0, none, ROW, step, np.zeros(0, np.int64), parameters_only=True)
        self._options, self._shard, self._shards = options, shard, shards
        self._filler: Session | None = None
        self._missing: npt.NDArray[np.bool_] = np.ones(0, bool)

    @property
    def complete(self) -> bool:
        """Return whether every row of this shard has had its first value."""
        return self.spec is not None and not self._missing.any()

    def restore(self, spec: ModelSpec, rows: npt.NDArray[np.floating]) -> None:
        """Continue from a checkpoint: `rows` are those of this shard, optimizer state included."""
        self._take(spec, Sharding(spec.rows, self._shards).bound(self._shard), rows)
        self._missing[:] = False

    def join(self, session: Session, create: Create) -> Created | None:
        """Return the reply to a Create that declares a model or, without a spec, asks for it; None while it must wait.

        Raises ModelMismatch when the server has another model, BadRequest or LimitExceeded for an impossible one.
        """
        fixed = self.complete or self._filler not in (None, session)
        spec = self._spec_of(create, session, fixed)
        if self.spec is not None and spec is not None and fixed:
            self.spec.require_same(spec)
        if self.complete:
            return Created(False, self._declared)
        if spec is None or fixed or not session.is_worker:
            return None
        if self._filler is None or self.spec != spec:
            self._allocate(spec)
        self._filler = session
        return Created(not self.complete, self._declared)

    def _spec_of(self, create: Create, session: Session, fixed: bool) -> ModelSpec | None:
        """Return the model that a Create declares, None if it declares none; parse no more than needed.

        The server's own list is known by its bytes. If the model is `fixed`, a long other list is refused unread.
        """
        if create.spec is None:
            return None
        if self._is_declared(create.spec):
            return self.spec
        if fixed and len(create.spec) > MAX_COMPARED_BYTES:
            raise ModelMismatch("this model is not the server's: their lists of tensors differ")
        session.declare()
        return ModelSpec.from_json(create.spec)

    def shared(self, create: Create) -> Create:
        """Return a Create for which `join` returned None, with the server's copy of the spec if that is the same.

        An observer may wait with another spec: no worker may have declared a model yet, or its model may be replaced.
        """
        return Create(self._declared) if self._is_declared(create.spec) else create

    def _is_declared(self, spec: npt.NDArray[np.uint8] | None) -> bool:
        if self.spec is None or spec is None:
            return False
        return spec is self._declared or np.array_equal(spec, self._declared)

    def left(self, worker: int) -> None:
        """Let another worker bring the first values if the worker that left was to bring them."""
        if self._filler is not None and self._filler.index == worker:
            self._filler = None

    def filling(self) -> dict[int, Held]:
        """Return the worker that is to bring first values, keyed by how many rows lack them; empty if there is none."""
        if self._filler is None or self.complete:
            return {}
        return {int(self._missing.sum()): (0, self._filler.name)}

    def is_step(self, push: Push) -> bool:
        """Return True for a gradient, False for an assignment; BadRequest or NotReady if neither is allowed now.

        The push has passed `Table.check_push`. A gradient of no rows may be anywhere: a shard without trained rows
        counts it as a step.
        """
        if self.spec is None:
            raise NotReady(UNKNOWN)
        if push.rows is not None or push.operation not in ("gradient", "assign"):
            raise BadRequest("tensors take gradients and values of ranges of rows")
        trained = self.spec.trained_rows
        beyond = push.first < push.last and push.last > trained
        if push.operation == "gradient" and (beyond or not self.complete):
            raise BadRequest("a gradient covers trained tensors whose values are all here")
        if push.operation == "assign" and self.complete and push.first < trained:
            raise BadRequest("trained tensors change by gradients alone")
        return push.operation == "gradient"

    def widen(self, push: Push) -> Push:
        """Return the push, a bfloat16 gradient converted to the dtype of the table."""
        if push.operation != "gradient" or push.values.dtype != BFLOAT16:
            return push
        values = from_bfloat16(push.values).astype(self.table.values.dtype, copy=False)
        return dataclasses.replace(push, values=values)

    def assigned(self, push: Push) -> bool:
        """Record that the rows of a push have their first values; return whether all rows of this shard have now."""
        self._missing[push.first - self.table.first : push.last - self.table.first] = False
        return self.complete

    def require_complete(self) -> ModelSpec:
        """Return the spec of the model; NotReady while values are missing."""
        if self.spec is None or not self.complete:
            raise NotReady(UNKNOWN)
        return self.spec

    def _allocate(self, spec: ModelSpec) -> None:
        first, last = Sharding(spec.rows, self._shards).range(self._shard)
        if (min(last, spec.trained_rows) - first) * ROW * spec.dtype.itemsize > MAX_FRAME_BYTES:
            needed = -(-spec.rows * ROW * spec.dtype.itemsize // MAX_FRAME_BYTES)
            raise LimitExceeded(
                f"a model of {spec.parameters:,} parameters needs {needed} shards: its gradient does not fit in "
                f"messages of {MAX_FRAME_BYTES >> 20} MiB"
            )
        state = state_columns(self._options.optimizer, ROW)
        try:
            values = np.zeros((last - first, ROW + state), spec.dtype)
        except MemoryError as error:
            raise LimitExceeded(f"a model of {spec.parameters:,} parameters does not fit in this server") from error
        if self._options.optimizer == "adagrad":
            values[:, ROW:] = self._options.initial_accumulator
        self._take(spec, first, values)

    def _take(self, spec: ModelSpec, first: int, values: npt.NDArray[np.floating]) -> None:
        self.spec, self.table.first, self.table.values = spec, first, values
        self._declared = spec.to_json()
        self.table.versions = np.zeros(len(values), np.int64)
        self._missing = np.ones(len(values), bool)
