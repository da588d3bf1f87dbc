"""A worker of a dense model, for programs of your own: create tensors, pull them, push gradients, finish.

    with Client(["tcp://127.0.0.1:5555"]) as ps:
        ps.create({"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)})
        for parameters in ps.steps():
            gradients, loss = ...
            ps.push(gradients, loss=loss, examples=128)

The optimizer, its rates and the order of updates are the server's (`glovewire server --objective tensors`). Knows
nothing of GloVe, of frameworks or of sockets (those are `common.transport.client`'s). One thread, no locks.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from glovewire.common import errors, log
from glovewire.common.array_types import Array
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.tensor_layout import MAX_EXAMPLES, ModelSpec, to_bfloat16
from glovewire.common.protocol.messages import NO_VERSION, Finish, Score
from glovewire.common.runtime.memory import keep_buffers
from glovewire.common.transport.curve_keys import of_client

from .session import TensorSession

AFRESH = (errors.UnknownSession, errors.NotReady, errors.LeaseLost)
"""What a server says that was away, or took us for lost: we join again with what we have."""

WAIT_S = 600.0
"""For another worker to bring the first values."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Client:
    """Speaks to the servers of a dense model as the worker `name`, or, with `observe`, as somebody who only looks.

    `addresses` are those of every shard, in order. Errors are those of common.errors, in words: ModelMismatch for
    another architecture than the server's, NotFinite for a gradient with NaN, BadRequest for an unknown tensor or a
    wrong shape, DeadlineExceeded naming a server that is silent for `timeout_s`, Finishing when the run is over. A
    server that is started again is joined again: a push that was on its way to it may be lost, nothing else.
    `keys` is as in `--keys`. With `half`, gradients travel as bfloat16: half the bytes, each number within 1/256.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str = "",
        *,
        observe: bool = False,
        timeout_s: float = 30.0,
        keys: Path | None = None,
        half: bool = False,
    ) -> None:
        self._addresses, self._timeout_s = addresses, timeout_s
        self._name = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
        self._keys = None if keys is None else of_client(keys)
        self._role = "observer" if observe else "worker"
        self._half = half
        self._over, self._wait_s = False, WAIT_S
        self._session: TensorSession | None = None
        self._pulled_in: TensorSession | None = None
        self._spec: ModelSpec | None = None
        self._trained: Array | None = None  # as pulled last: a shard that comes back with nothing gets them from us
        self._fixed: Array | None = None

    def create(self, tensors: Mapping[str, npt.ArrayLike], fixed: Collection[str] = ()) -> None:
        """Say which tensors the model has, by name. The first worker brings their values, those of others are ignored.

        Those named in `fixed`, and all that are no floats, are kept as they are and not trained. Waits while another
        worker brings the values. Who comes when the run is over is told so by `over`, and by the first `pull`.
        """
        spec = ModelSpec.of(tensors, fixed)
        self._spec, self._trained, self._fixed = spec, *spec.pack_all(tensors)
        self._until_joined()

    def attach(self, wait_s: float = WAIT_S) -> None:
        """Take part in whatever model the servers have, waiting until they have one."""
        self._wait_s = wait_s
        self._until_joined()

    def pull(self, *, after: int = NO_VERSION) -> dict[str, Array]:
        """The trained tensors by name; yours to change.

        In synchronous training this waits for the update that the last push belongs to; with `after`, until so many
        updates are in.
        """
        if self.over:  # what the last push asked for may be here: nobody needs a gradient of it
            raise errors.RunOver("the run is over")
        rows = self._again(lambda session: session.pull(trained=True, after=int(after)))
        self._trained, self._pulled_in = rows, self._session
        return self.spec.unpack(rows.copy(), trained=True)

    def pull_fixed(self) -> dict[str, Array]:
        """The tensors that are not trained, by name; yours to change."""
        self._fixed = self._again(lambda session: session.pull(trained=False))
        return self.spec.unpack(self._fixed.copy(), trained=False)

    def steps(self) -> Iterator[dict[str, Array]]:
        """`pull` again and again, until the run is over."""
        while not self.over:
            try:
                parameters = self.pull()
            except errors.RunOver:
                return
            yield parameters

    def push(self, gradients: Mapping[str, npt.ArrayLike], *, loss: float = 0.0, examples: int = 1) -> None:
        """Hand in the gradients of the mean loss of `examples` examples; a tensor that is left out has gradient zero.

        Longer than the server's clip-norm (the norm over all tensors), they are shortened to it. Returns before the
        server has answered: what it says is raised by the next call. For NaN, an unknown tensor, a wrong shape or a
        loss that is no number nothing is sent; nor when a server has begun again since the parameters were pulled.
        """
        rows = self.spec.pack(gradients, trained=True)
        loss, examples = _number(loss, "the loss"), _count(examples)
        norm = self._norm(rows)
        if 0 < self.options.clip_norm < norm:
            rows *= rows.dtype.type(self.options.clip_norm / norm)
        rate = self.options.rate_of_step(max(self.updates, 0))
        sent = to_bfloat16(rows) if self._half else rows
        self._unless_over(lambda session: session.push(sent, rate) if self._is_of(session) else None)
        if self._is_of(self._session):
            self._unless_over(lambda session: session.count(examples, loss, norm))
        else:
            logger.warning(log.line("dropped", why="a gradient of parameters from before a server began again"))

    def push_fixed(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Set tensors that are not trained, such as running means, for whoever pulls them next: the last one wins.

        Those that are not named stay as they are.
        """
        if self._fixed is None:
            self.pull_fixed()
        assert self._fixed is not None
        runs = self.spec.pack_fixed(values)
        for first, rows in runs:
            at = first - self.spec.trained_rows
            self._fixed[at : at + len(rows)] = rows

        def hand_in(session: TensorSession) -> None:
            for first, rows in runs:
                session.assign(rows, first)

        self._unless_over(hand_in)

    def score(self, test: str, percent: float) -> None:
        """Put a score on the stream, for the monitor and `metrics.jsonl`."""
        score = Score(test, _number(percent, "the score"))
        self._unless_over(lambda session: session.ask(0, score))

    def finish(self) -> None:
        """End the run for everybody, once what was pushed is in; the servers keep the tensors."""

        def tell(session: TensorSession) -> None:
            session.flush()
            for shard in range(len(self._addresses)):
                session.ask(shard, Finish("complete"))

        self._unless_over(tell)
        self._over = True

    def close(self) -> None:
        """Hand in what is on its way, say goodbye and close; twice is fine."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.leave()
        except errors.GlovewireError as error:  # they are gone: there is nobody to take leave of
            logger.info(log.line("parted", why=error))
        finally:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @property
    def over(self) -> bool:
        """Whether a server has said that the run is over."""
        return self._over or (self._session is not None and self._session.over)

    @property
    def spec(self) -> ModelSpec:
        """Which tensors there are."""
        if self._spec is None:
            raise errors.UsageError("say which tensors there are (create), or take part in what is there (attach)")
        return self._spec

    @property
    def options(self) -> TrainingOptions:
        """How the servers train."""
        return self._joined().options

    @property
    def updates(self) -> int:
        """Updates that the parameters of the last pull had seen, -1 before the first."""
        return max(self._joined().versions)

    def _joined(self) -> TensorSession:
        if self._session is None or not self._session.joined:
            if self._over:
                raise errors.RunOver("the run is over")
            raise errors.UsageError("say which tensors there are (create), or take part in what is there (attach)")
        return self._session

    def _is_of(self, session: TensorSession | None) -> bool:
        """Whether the parameters of the last pull, if any, have a version in this session."""
        return self._pulled_in in (None, session)

    def _norm(self, rows: Array) -> float:
        """Euclidean norm of a gradient; NotFinite, naming the tensor, for one that is none."""
        norm = float(np.linalg.norm(rows))
        if not math.isfinite(norm) and not (finite := np.isfinite(rows).all(axis=1)).all():
            raise errors.NotFinite(f"the gradient of {self.spec.name_of(int(finite.argmin()))!r} has NaN or infinity")
        return norm

    def _join(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._session = TensorSession(self._addresses, self._name, self._role, self._timeout_s, self._keys)
        spec = self._spec if self._trained is not None and self._fixed is not None else None  # else others have values
        self._spec = self._session.join(spec, self._trained, self._fixed, self._wait_s)

    def _until_joined(self) -> None:
        """Join, for as long as servers that come up may take to know what they serve."""
        keep_buffers()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._join()
            except errors.RunOver:
                self._over = True
                return None
            except AFRESH:
                if time.monotonic() > deadline:
                    raise

    def _again(self, action: Callable[[TensorSession], T]) -> T:
        """The result of `action`; when a server was away, after joining again."""
        while True:
            try:
                return action(self._joined())
            except AFRESH as error:
                logger.warning(log.line("afresh", why=error))
                self._until_joined()
            except errors.RunOver:
                self._over = True
                raise

    def _unless_over(self, action: Callable[[TensorSession], object]) -> None:
        """Do what is pointless at the end of a run."""
        try:
            self._again(action)
        except errors.RunOver:
            return


def _number(value: Any, what: str) -> float:
    """A number of whatever library as Python's own; BadRequest or NotFinite when it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.BadRequest(f"{what} must be a number, not {value!r:.80}") from error
    if not math.isfinite(number):
        raise errors.NotFinite(f"{what} became {number}")
    return number


def _count(value: Any) -> int:
    """A number of examples of whatever library as Python's own; BadRequest when it is none."""
    try:
        count = int(value)
        if count == value and 0 <= count <= MAX_EXAMPLES:
            return count
    except (TypeError, ValueError, OverflowError):
        pass
    raise errors.BadRequest(f"examples must be a whole number from 0 to {MAX_EXAMPLES}, not {value!r:.80}")
