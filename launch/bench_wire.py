"""`glovewire bench wire`: how fast rows travel between a worker and a server that are both real.

A server process on loopback TCP holds a table; this process is its only worker and uses the same client and store as
training does. Every row pushed is counted and compared with the table at the end: a figure for rows that did not
arrive would be worthless.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common import messages as m
from common.allocation import keep_buffers, settle
from common.errors import GlovewireError
from common.measured import surroundings
from common.options import TrainingOptions
from common.settings import require
from worker.remote import NO_LEASE, ServerStore
from worker.stores import Reply

from .bench_server import served
from .bench_tally import Measurement, Tally
from .usage import cpu_seconds

ROW: dict[str, Any] = {
    "schedule": "minibatch", "consistency": "async", "tied": True, "optimizer": "adagrad-row", "batch_size": 1,
    "epochs": 1_000_000,
}  # fmt: skip
"""What a row holds does not follow the defaults of training, so that figures of different versions compare; and the
training is so long that the server does not take it for complete."""
PLACES = 16
"""Different rows that messages of one size are about, drawn once."""
NULL_ROWS = 32
NULL_STEPS = {
    "null_step": "both awaited",
    "null_step_push_not_awaited": "push not awaited",
    "null_step_in_one": "in one message, as in training",
}
"""Ways to take a step of training without the training."""
WARM_S = 0.3

Start = Callable[[int], Reply[Any]]


@dataclass(frozen=True)
class WireConfig:
    """Options of `glovewire bench wire`; `seconds` is for one figure of one repeat."""

    rows: int = 32_768
    dim: int = 256
    sizes: tuple[int, ...] = (1, 32, 256, 1024, 4096)
    windows: tuple[int, ...] = (1, 8)
    repeats: int = 5
    seconds: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        problems = []
        if self.repeats < 1:
            problems.append(f"repeats must be at least 1, not {self.repeats}")
        if not 0 < self.seconds <= 60:
            problems.append(f"seconds must be between 0 and 60, not {self.seconds}")
        if not self.sizes or not all(1 <= size <= self.rows for size in self.sizes):
            problems.append(f"rows in a message must be between 1 and the table's {self.rows}")
        if self.rows < NULL_ROWS:
            problems.append(f"rows must be at least {NULL_ROWS}, not {self.rows}")
        if not all(1 <= window <= 64 for window in self.windows):
            problems.append("windows must be between 1 and 64 messages")
        require(problems)


@dataclass(frozen=True, order=True)
class Case:
    """One figure: an operation on random rows or on a contiguous range, so many at a time, perhaps encrypted."""

    operation: str
    place: str
    size: int
    window: int
    encrypted: bool = False


def bench(config: WireConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything that `config` names; `tell` hears a line for each repeat."""
    keep_buffers()  # as server and workers do
    settle()
    before = surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        options = TrainingOptions(**ROW, dim=config.dim)
        plain, secret = (
            served(Path(folder, name), config.rows, options, encrypted=name == "secret") for name in ("plain", "secret")
        )
        with plain as (store, server), secret as others:
            wires = Wire(config, store, server), Wire(config, *others)
            tallies, steps = _measure(config, wires, tell)
            lost = sum(wire.rows_not_as_pushed() for wire in wires)
    row_bytes = store.width * 4
    results = [{**vars(case), **tally.figures(row_bytes)} for case, tally in sorted(tallies.items())]
    every = (*tallies.values(), *steps.values())
    sent, failed = sum(tally.sent for tally in every), sum(tally.failed for tally in every)
    return {
        "surroundings": before,
        "table": {"rows": config.rows, "dim": config.dim, "floats_per_row": store.width, "bytes_per_row": row_bytes},
        "repeats": config.repeats,
        "seconds_per_figure": config.seconds,
        "results": results,
        **{name: {"rows": NULL_ROWS, **tally.figures(row_bytes)} for name, tally in steps.items()},
        "success": (sent - failed) / sent,
        "rows_not_as_pushed": lost,
    }


def _measure(
    config: WireConfig, wires: tuple[Wire, Wire], tell: Callable[[str], None]
) -> tuple[dict[Case, Tally], dict[str, Tally]]:
    """Every case over the plain wire, and those of ranges with the most messages in flight over the encrypted one."""
    cases = [
        Case(operation, place, size, window)
        for operation in ("pull", "push")
        for place in ("random", "range")
        for size in config.sizes
        for window in config.windows
    ]
    cases += [
        replace(case, encrypted=True) for case in cases if case.place == "range" and case.window == max(config.windows)
    ]
    tallies: dict[Case, Tally] = defaultdict(Tally)
    steps = {name: Tally() for name in NULL_STEPS}
    for wire in wires:
        wire.run(wire.starter(Case("pull", "random", NULL_ROWS, 1)), 1, min(WARM_S, config.seconds))
    for repeat in range(config.repeats):
        for case in cases:
            wire = wires[case.encrypted]
            tallies[case].add(case.size, wire.run(wire.starter(case), case.window, config.seconds))
        for name, tally in steps.items():
            tally.add(NULL_ROWS, wires[False].null_steps(config.seconds, name))
        tell(f"repeat {repeat + 1} of {config.repeats} is done")
    return dict(tallies), steps


class Wire:
    """Drives one store as a worker would, and remembers which rows it has changed how often."""

    def __init__(self, config: WireConfig, store: ServerStore, server: int) -> None:
        self._store, self._rows, self._server = store, config.rows, server
        self._draw = np.random.default_rng(config.seed)
        self._places: dict[int, list[npt.NDArray[np.int64]]] = {}
        self._pushed = np.zeros(config.rows, np.int64)
        self._ones = np.ones((max(*config.sizes, NULL_ROWS), store.width), np.float32)

    def starter(self, case: Case) -> Start:
        """The function that starts the n-th message of a case."""
        places = self._of_size(case.size)
        first = [int(place[0]) for place in self._ranges(case.size)]
        ones, store = self._ones[: case.size], self._store

        def pull_rows(n: int) -> Reply[Any]:
            return store.pull_rows(places[n % PLACES])

        def pull_range(n: int) -> Reply[Any]:
            return store.pull_range(first[n % PLACES], first[n % PLACES] + case.size, m.NO_VERSION)

        def push_rows(n: int) -> Reply[Any]:
            self._pushed[places[n % PLACES]] += 1
            return store.push_rows("add", places[n % PLACES], ones, 0.0)[0]

        def push_range(n: int) -> Reply[Any]:
            self._pushed[first[n % PLACES] : first[n % PLACES] + case.size] += 1
            return store.push_block("add", NO_LEASE, [(first[n % PLACES], ones)])

        return {
            ("pull", "random"): pull_rows,
            ("pull", "range"): pull_range,
            ("push", "random"): push_rows,
            ("push", "range"): push_range,
        }[case.operation, case.place]

    def run(self, start: Start, window: int, seconds: float) -> Measurement:
        """Keep `window` messages in flight for so long, then wait for the last answer."""
        pending: deque[tuple[float, Reply[Any]]] = deque()
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
                if _came(reply):
                    latencies.append(now - asked)
                else:
                    failed += 1
        return self._trial(clock() - began, latencies, failed, before)

    def null_steps(self, seconds: float, how: str) -> Measurement:
        """Steps in one of the ways in NULL_STEPS: pull rows, wait for them, push as many.

        Where the push is not awaited a step ends when it is sent, and the next pull follows it. In one message, a step
        pushes rows, asks for the next ones with it, as training by minibatches does, and ends when they are here.
        """
        pull, push = (self.starter(Case(operation, "random", NULL_ROWS, 1)) for operation in ("pull", "push"))
        latencies: list[float] = []
        pushes: list[Reply[Any]] = []
        failed, before = 0, self._cpu()
        began = now = time.perf_counter()
        while now - began < seconds:
            asked, number = now, len(latencies)
            if how == "null_step_in_one":
                pushed, pulled = self._push_and_pull(number)
                pushes.append(pushed)
                good = self._await(pulled)
            else:
                good = self._await(pull(number))
                pushes.append(push(number))
            if how == "null_step":
                good = self._await(pushes[-1]) and good
            settled = [reply for reply in pushes if reply.done]
            pushes = [reply for reply in pushes if not reply.done]
            now = time.perf_counter()
            if good and all(map(_came, settled)):
                latencies.append(now - asked)
            else:
                failed += 1
        self._store.flush()
        return self._trial(now - began, latencies, failed, before)

    def _push_and_pull(self, number: int) -> tuple[Reply[Any], Reply[Any]]:
        rows, wanted = (self._of_size(NULL_ROWS)[each % PLACES] for each in (number, number + 1))
        self._pushed[rows] += 1
        return self._store.push_rows("add", rows, self._ones[:NULL_ROWS], 0.0, wanted=wanted)

    def _await(self, reply: Reply[Any]) -> bool:
        while not reply.done:
            self._store.wait()
        return _came(reply)

    def rows_not_as_pushed(self) -> int:
        """How many rows of the table are not what the pushes must have made of them (in a column that began at 0)."""
        wrong = 0
        for first in range(0, self._rows, 4096):
            last = min(first + 4096, self._rows)
            reply = self._store.pull_range(first, last, m.NO_VERSION)
            self._await(reply)
            rows = reply.get()
            assert rows is not None
            wrong += int(np.count_nonzero(rows[:, -1] != self._pushed[first:last]))
        return wrong

    def _cpu(self) -> tuple[float, float]:
        return time.process_time(), cpu_seconds(self._server)

    def _trial(self, seconds: float, latencies: list[float], failed: int, before: tuple[float, float]) -> Measurement:
        client, server = self._cpu()
        return Measurement(seconds, latencies, failed, client - before[0], server - before[1])

    def _of_size(self, size: int) -> list[npt.NDArray[np.int64]]:
        if size not in self._places:
            self._places[size] = [
                np.sort(self._draw.choice(self._rows, size, replace=False)).astype(np.int64) for _ in range(PLACES)
            ]
        return self._places[size]

    def _ranges(self, size: int) -> list[npt.NDArray[np.int64]]:
        return [np.arange(first, first + size) for first in self._draw.integers(0, self._rows - size + 1, PLACES)]


def _came(reply: Reply[Any]) -> bool:
    try:
        reply.get()
    except GlovewireError:
        return False
    return True


def table(result: dict[str, Any]) -> str:
    """The result as text for people."""
    lines = ["operation  rows/message  window   M rows/s (least to most)    GB/s   p50 us   p99 us"]
    for one in result["results"]:
        rate, name = one["rows_per_second"], f"{one['operation']} {'CURVE' if one['encrypted'] else one['place']}"
        lines.append(
            f"{name:<12}{one['size']:>11}{one['window']:>8}{rate['median'] / 1e6:>11.3f}"
            f" ({rate['min'] / 1e6:.3f} to {rate['max'] / 1e6:.3f}){one['bytes_per_second']['median'] / 1e9:>8.2f}"
            f"{one['p50_us']['median']:>9.0f}{one['p99_us']['median']:>9.0f}"
        )
    for name, what in NULL_STEPS.items():
        one = result[name]
        lines.append(
            f"null step (pull {NULL_ROWS} + push {NULL_ROWS} rows, {what}): p50 {one['p50_us']['median']:.0f} us "
            f"({one['p50_us']['min']:.0f} to {one['p50_us']['max']:.0f}), p99 {one['p99_us']['median']:.0f} us"
        )
    about = result["table"]
    lines.append("CURVE: ranges over an encrypted connection, to a server of its own")
    lines.append(
        f"rows of {about['floats_per_row']} float32 ({about['dim']} of them the vector); "
        f"success {result['success']:.2%}; {result['rows_not_as_pushed']} rows not as pushed"
    )
    return "\n".join(lines)
