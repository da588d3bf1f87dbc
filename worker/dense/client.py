"""Train a dense model from a program of your own: create tensors, pull them, push gradients, finish.

    with Client(["tcp://127.0.0.1:5555"]) as ps:
        ps.create({"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)})
        for parameters in ps.steps():
            gradients, loss = ...
            ps.push(gradients, loss=loss, examples=128)

The servers decide the optimizer, its learning rates and the order of updates (`glovewire server --objective tensors`).
A client belongs to one thread: it has no locks.
"""

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from glovewire.common import errors, log
from glovewire.common.array_types import Array
from glovewire.common.endings import Ending
from glovewire.common.model.bfloat16 import to_bfloat16
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.tensor_layout import MAX_EXAMPLES, ModelSpec
from glovewire.common.protocol.messages import NO_VERSION, Finish, Score
from glovewire.common.roles import Role
from glovewire.common.runtime.memory import keep_freed_memory
from glovewire.common.transport.curve_keys import load_client_keys

from .session import TensorSession

REJOIN = (errors.UnknownSession, errors.NotReady, errors.LeaseLost)
"""Errors after which the client rejoins: a server was restarted, or took this worker for lost."""

WAIT_S = 600.0
"""Seconds to wait for another worker to send the initial values."""

NOT_JOINED = "say which tensors there are (create), or take part in what is there (attach)"

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Client(contextlib.AbstractContextManager["Client"]):
    """Trains a dense model on servers as worker `name`; with `observe`, as an observer that pushes no gradients.

    `addresses` lists every shard, in order; one may be given alone. Raises the errors of `glovewire.common.errors`:
    ModelMismatch for an architecture other than the server's, NotFinite for a gradient with NaN, BadRequest for an
    unknown tensor or a wrong shape, DeadlineExceeded naming a server that is silent for `timeout_s`, RunOver. Rejoins
    after the restart of a server, when only pushes in flight may be lost. `keys` is a file or folder as for `--keys`;
    the name then begins with that of the key, and `finish` needs the key of an administrator. With `half`, gradients
    are sent as bfloat16: half the bytes, with a relative error of at most 1/256.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        name: str = "",
        *,
        observe: bool = False,
        timeout_s: float = 30.0,
        keys: str | PathLike[str] | None = None,
        half: bool = False,
    ) -> None:
        self._addresses, self._timeout_s = [addresses] if isinstance(addresses, str) else addresses, timeout_s
        self._name = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
        # An observer may need the right to publish scores and to end the run.
        self._keys = None if keys is None else load_client_keys(Path(keys), Role.ADMIN if observe else Role.WORKER)
        self._role = "observer" if observe else "worker"
        self._half = half
        self._over, self._wait_s = False, WAIT_S
        self._session: TensorSession | None = None
        self._pulled_in: TensorSession | None = None
        self._spec: ModelSpec | None = None
        self._options: TrainingOptions | None = None
        self._trained: Array | None = None  # as last pulled, to fill a shard that was restarted without values
        self._fixed: Array | None = None

    def create(self, tensors: Mapping[str, npt.ArrayLike], fixed: Collection[str] = ()) -> None:
        """Define the model's tensors by name. The values of the first worker to call this are used, others ignored.

        Tensors in `fixed`, and all that are not floats, are stored but not trained. If another worker is sending the
        values, waits for it. If the run is already over, sets `over`, and `pull` raises RunOver.
        """
        spec = ModelSpec.of(tensors, fixed)
        self._spec, self._trained, self._fixed = spec, *spec.pack_all(tensors)
        self._until_joined()

    def attach(self, wait_s: float = WAIT_S) -> None:
        """Join the model on the servers, waiting up to `wait_s` seconds for another worker to create it."""
        self._wait_s = wait_s
        self._until_joined()

    def pull(self, *, after: int = NO_VERSION) -> dict[str, Array]:
        """Return a copy of each trained tensor, by name.

        In synchronous training, waits for the update that includes the last push. With `after`, waits until `after`
        updates are done. Raises RunOver once the run is over.
        """
        if self.over:  # even if the reply to the last push already brought rows
            raise errors.RunOver()
        rows = self._with_rejoin(lambda session: session.pull(trained=True, after=int(after)))
        self._trained, self._pulled_in = rows, self._session
        return self.spec.unpack(rows.copy(), trained=True)

    def pull_fixed(self) -> dict[str, Array]:
        """Return a copy of each tensor that is not trained, by name."""
        self._fixed = self._with_rejoin(lambda session: session.pull(trained=False))
        return self.spec.unpack(self._fixed.copy(), trained=False)

    def steps(self) -> Iterator[dict[str, Array]]:
        """Yield the result of `pull` repeatedly, until the run is over and its tensors are on disk.

        By then this client has left the servers, and nothing more can be pushed or published.
        """
        while True:
            while not self.over:
                try:
                    parameters = self.pull()
                except errors.RunOver:
                    break
                yield parameters
            if self._has_left():
                return

    def push(self, gradients: Mapping[str, npt.ArrayLike], *, loss: float = 0.0, examples: int = 1) -> None:
        """Push the gradients of the mean loss of `examples` examples; a tensor that is left out has gradient zero.

        Scales the gradients down if their norm over all tensors exceeds the server's clip-norm. Returns before the
        server has answered; the next call raises its error. Sends nothing, but raises, for NaN, an unknown tensor, a
        wrong shape or a loss that is not a number. Drops the gradients, with a warning, if a server was restarted after
        their parameters were pulled.
        """
        rows = self.spec.pack(gradients, trained=True)
        loss, examples = _to_float(loss, "the loss"), _to_count(examples)
        norm = self._norm(rows)

        def push(session: TensorSession) -> None:
            if self._is_of(session):
                if 0 < session.options.clip_norm < norm:
                    np.multiply(rows, rows.dtype.type(session.options.clip_norm / norm), out=rows)
                rate = session.options.rate_of_step(max(self.updates, 0))
                session.push(to_bfloat16(rows) if self._half else rows, rate)

        self._unless_over(push)
        if self._is_of(self._session):
            self._unless_over(lambda session: session.count(examples, loss, norm))
        elif not self.over:
            logger.warning(log.line("dropped", why="a gradient of parameters from before a server was restarted"))

    def push_fixed(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Set the given fixed tensors, such as running means; the last write by any worker wins."""
        if self._fixed is None:
            self.pull_fixed()
        assert self._fixed is not None
        runs = self.spec.pack_fixed(values)
        for first, rows in runs:
            at = first - self.spec.trained_rows
            self._fixed[at : at + len(rows)] = rows

        def assign(session: TensorSession) -> None:
            for first, rows in runs:
                session.assign(rows, first)

        self._unless_over(assign)

    def score(self, test: str, percent: float) -> None:
        """Publish the model's score in `test`, in percent, to the monitor and `metrics.jsonl`."""
        score = Score(test, _to_float(percent, "the score"))
        self._unless_over(lambda session: session.ask(0, score))

    def finish(self) -> None:
        """Wait for the answers to this worker's pushes and end the run for all; the servers keep the tensors."""

        def finish(session: TensorSession) -> None:
            session.flush()
            for shard in range(len(self._addresses)):
                session.ask(shard, Finish(Ending.COMPLETE))

        self._unless_over(finish)
        self._over = True

    def close(self) -> None:
        """Wait until every push is answered, leave the servers and close; a second call does nothing."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.leave(over=self._over)
        except errors.GlovewireError as error:  # the servers have ended
            logger.info(log.line("parted", why=error))
        finally:
            session.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def over(self) -> bool:
        """Return whether a server has reported that the run is over."""
        return self._over or (self._session is not None and self._session.over)

    @property
    def spec(self) -> ModelSpec:
        """Return the names, shapes and types of the tensors; UsageError before `create` or `attach`."""
        if self._spec is None:
            raise errors.UsageError(NOT_JOINED)
        return self._spec

    @property
    def options(self) -> TrainingOptions:
        """Return the training options of the servers."""
        return self._options or self._joined().options

    @property
    def updates(self) -> int:
        """Return the number of updates in the last pulled parameters, -1 before the first pull."""
        return -1 if self._pulled_in is None else max(self._pulled_in.clocks.values())

    def _has_left(self) -> bool:
        """Leave a run that is over; return False if it continues: a server was restarted before tensors were saved."""
        if self._session is None:
            return True
        try:
            self._session.leave(over=True)
        except errors.RunOver:  # a restarted server has found that the tensors are saved
            return True
        except REJOIN as error:
            logger.warning(log.line("rejoin", why=error))
            self._over = False
            self._until_joined()
            return False
        return True

    def _joined(self) -> TensorSession:
        if self._session is None or not self._session.joined:
            if self._over:
                raise errors.RunOver()
            raise errors.UsageError(NOT_JOINED)
        return self._session

    def _is_of(self, session: TensorSession | None) -> bool:
        """Return whether `session` made the last pull, if any: another session does not know the pulled version."""
        return self._pulled_in in (None, session)

    def _norm(self, rows: Array) -> float:
        """Return the Euclidean norm of a gradient; raise NotFinite, naming the tensor, if it is not finite."""
        norm = float(np.linalg.norm(rows))
        if not math.isfinite(norm) and not (finite := np.isfinite(rows).all(axis=1)).all():
            raise errors.NotFinite(f"the gradient of {self.spec.name_of(int(finite.argmin()))!r} has NaN or infinity")
        return norm

    def _join(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._session = TensorSession(self._addresses, self._name, self._role, self._timeout_s, self._keys)
        self._options = self._session.options
        spec = self._spec if self._trained is not None and self._fixed is not None else None  # else others have them
        self._spec = self._session.join(spec, self._trained, self._fixed, self._wait_s)

    def _until_joined(self) -> None:
        """Join; for up to `timeout_s`, retry while freshly started servers do not know their model yet."""
        keep_freed_memory()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._join()
            except errors.RunOver:
                self._over = True
                return None
            except REJOIN as error:
                if time.monotonic() > deadline:
                    late = f"the servers have not let this client join for {self._timeout_s:g} s: {error}"
                    raise errors.DeadlineExceeded(late) from error

    def _with_rejoin(self, action: Callable[[TensorSession], T]) -> T:
        """Return the result of `action`; if a server was restarted, rejoin and repeat `action`."""
        while True:
            try:
                session = self._joined()
                if session.left:
                    raise errors.RunOver()
                return action(session)
            except REJOIN as error:
                logger.warning(log.line("rejoin", why=error))
                self._until_joined()
            except errors.RunOver:
                self._over = True
                raise

    def _unless_over(self, action: Callable[[TensorSession], object]) -> None:
        """Run `action` like `_with_rejoin`, but return quietly if the run is over."""
        with contextlib.suppress(errors.RunOver):
            self._with_rejoin(action)


def _to_float(value: Any, what: str) -> float:
    """Convert a scalar of any library to float; raise BadRequest if it is not a number, NotFinite if not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.BadRequest(f"{what} must be a number, not {value!r:.80}") from error
    if not math.isfinite(number):
        raise errors.NotFinite(f"{what} became {number}")
    return number


def _to_count(value: Any) -> int:
    """Convert a scalar of any library to a number of examples; raise BadRequest unless it is whole and in range."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        count = int(value)
        if count == value and 0 <= count <= MAX_EXAMPLES:
            return count
    raise errors.BadRequest(f"examples must be a whole number from 0 to {MAX_EXAMPLES}, not {value!r:.80}")
