"""Pull and push rows as a worker does, for `glovewire bench wire`, and check that every pushed row arrived."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glovewire.common.client.pending import Pending
from glovewire.common.errors import GlovewireError
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.procfs import cpu_seconds
from glovewire.worker.stores.interface import Change
from glovewire.worker.stores.server_store import NO_LEASE, ServerStore

from .config import NULL_ROWS
from .measurements import Repeat

PLACES = 16
"""Number of row sets per message size, drawn once and used in turns."""
NULL_STEPS = {
    "null_step": "both awaited",
    "null_step_push_not_awaited": "push not awaited",
    "null_step_in_one": "in one message, as in training",
}
"""Variants of a null step, a training step without the computation, and how `table` describes them."""

Start = Callable[[int], Pending[Any]]


@dataclass(frozen=True, order=True)
class Case:
    """An operation (pull, push) on `size` rows at a `place` (random, range), with `window` messages in flight."""

    operation: str
    place: str
    size: int
    window: int
    encrypted: bool = False


class WireDriver:
    """Drives `store`, a table of `rows` rows in the process with id `server`, with at most `most` rows per message."""

    def __init__(self, store: ServerStore, server: int, rows: int, most: int, seed: int) -> None:
        self._store, self._rows, self._server = store, rows, server
        self._draw = np.random.default_rng(seed)
        self._places: dict[int, list[npt.NDArray[np.int64]]] = {}
        self._pushed: list[npt.NDArray[np.int64] | slice] = []  # rows of each push, counted at the end
        self._ones = np.ones((max(most, NULL_ROWS), store.width), np.float32)

    def starter(self, case: Case) -> Start:
        """Return a function of n that sends message n of a case and returns its reply."""
        ones, store = self._ones[: case.size], self._store
        drawn: list[Any] = self._of_size(case.size)
        first = self._draw.integers(0, self._rows - case.size + 1, PLACES).tolist()
        places = drawn if case.place == "random" else [slice(low, low + case.size) for low in first]
        ways: dict[tuple[str, str], Callable[[Any], Pending[Any]]] = {
            ("pull", "random"): store.pull_rows,
            ("pull", "range"): lambda rows: store.pull_range(rows.start, rows.stop, m.NO_VERSION),
            ("push", "random"): lambda rows: store.push_rows("add", rows, ones, 0.0)[0],
            ("push", "range"): lambda rows: store.push_range("add", NO_LEASE, Change(rows.start, rows.stop, ones)),
        }
        send, pushes = ways[case.operation, case.place], case.operation == "push"

        def start(n: int) -> Pending[Any]:
            rows = places[n % PLACES]
            if pushes:
                self._pushed.append(rows)
            return send(rows)

        return start

    def run(self, start: Start, window: int, seconds: float) -> Repeat:
        """Keep `window` messages in flight for `seconds`, wait for the last reply, and return the measurements."""
        pending: deque[tuple[float, Pending[Any]]] = deque()
        latencies: list[float] = []
        failed = number = 0
        clock, before = time.perf_counter, self._cpu()
        began = now = clock()
        while now - began < seconds or pending:
            while len(pending) < window and now - began < seconds:
                pending.append((clock(), start(number)))
                number += 1
            self._store.wait()
            now = clock()
            while pending and pending[0][1].done:
                asked, reply = pending.popleft()
                if _succeeded(reply):
                    latencies.append(now - asked)
                else:
                    failed += 1
        return self._repeat(clock() - began, latencies, failed, before)

    def null_steps(self, seconds: float, how: str) -> Repeat:
        """Repeat the variant `how` of NULL_STEPS for `seconds`: pull rows, wait for them, push as many rows.

        If the push is not awaited, a step ends when the push is sent. In the variant with one message, as in minibatch
        training, a step pushes rows, requests the next rows with the same message, and ends when those have arrived.
        """
        pull, push = (self.starter(Case(operation, "random", NULL_ROWS, 1)) for operation in ("pull", "push"))
        latencies: list[float] = []
        pushes: list[Pending[Any]] = []
        failed, before = 0, self._cpu()
        clock = time.perf_counter
        began = asked = clock()
        while asked - began < seconds:
            number = len(latencies)
            if how == "null_step_in_one":
                pushed, pulled = self._push_and_pull(number)
                pushes.append(pushed)
                good = self._await(pulled)
            else:
                good = self._await(pull(number))
                pushes.append(push(number))
            if how == "null_step":
                good = self._await(pushes[-1]) and good
            took = clock() - asked
            settled = [reply for reply in pushes if reply.done]
            pushes = [reply for reply in pushes if not reply.done]
            if good and all(map(_succeeded, settled)):
                latencies.append(took)
            else:
                failed += 1
            asked = clock()
        self._store.flush()
        return self._repeat(asked - began, latencies, failed, before)

    def _push_and_pull(self, number: int) -> tuple[Pending[Any], Pending[Any]]:
        places = self._of_size(NULL_ROWS)
        rows, wanted = places[number % PLACES], places[(number + 1) % PLACES]
        self._pushed.append(rows)
        return self._store.push_rows("add", rows, self._ones[:NULL_ROWS], 0.0, wanted=wanted)

    def _await(self, reply: Pending[Any]) -> bool:
        while not reply.done:
            self._store.wait()
        return _succeeded(reply)

    def rows_not_as_pushed(self) -> int:
        """Return the number of rows whose last column, initially 0, differs from the number of pushes to the row."""
        wrong, pushed = 0, np.zeros(self._rows, np.int64)
        for rows in self._pushed:  # rows are distinct within a push
            pushed[rows] += 1
        for first in range(0, self._rows, 4096):
            last = min(first + 4096, self._rows)
            reply = self._store.pull_range(first, last, m.NO_VERSION)
            self._await(reply)
            found = reply.get()
            wrong += int(np.count_nonzero(found[:, -1] != pushed[first:last]))
        return wrong

    def _cpu(self) -> tuple[float, float]:
        return time.process_time(), cpu_seconds(self._server)

    def _repeat(self, seconds: float, latencies: list[float], failed: int, before: tuple[float, float]) -> Repeat:
        client, server = self._cpu()
        return Repeat(seconds, latencies, failed, client - before[0], server - before[1])

    def _of_size(self, size: int) -> list[npt.NDArray[np.int64]]:
        if size not in self._places:
            self._places[size] = [
                np.sort(self._draw.choice(self._rows, size, replace=False)).astype(np.int64) for _ in range(PLACES)
            ]
        return self._places[size]


def _succeeded(reply: Pending[Any]) -> bool:
    try:
        reply.get()
    except GlovewireError:
        return False
    return True
