"""A training with many workers on one machine, each a forked process, watched from outside while it goes on.

A real server, real workers over TCP, simulated latency: workers mostly sleep, and forking spares each its start. No
socket of this process may be open when it forks. Knows nothing of what is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any, Protocol, cast

from glovewire.common.endings import Ending
from glovewire.common.errors import GlovewireError, NotReady, ProcessDied, RunOver
from glovewire.common.model.options import BATCH_MODES, Mode, TrainingOptions
from glovewire.common.model.tensor_layout import TABLE
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.signals import Signalled
from glovewire.common.transport.client import Conversation, raised
from glovewire.worker.config import WorkerConfig
from glovewire.worker.dense.client import Client
from glovewire.worker.kernels import objectives
from glovewire.worker.service import work
from glovewire.worker.simulated_latency import Latency

from ..launch.local import training_arguments
from ..launch.processes import READY_S, Child, Children
from .workloads import GloveProblem, ImageProblem, Problem

NETWORK = "network"
LOOK_EVERY_S = 0.1
LEAVE_S = 10.0
DESERTED = "deserted"
DIVERGED = 4.0
"""So many times the first loss, and it will not come back."""


@dataclass(frozen=True)
class Scene:
    """What a training takes place in: how many workers, how long their pushes take, for how long at most."""

    workers: int
    latency: tuple[str, ...]
    seconds: float


@dataclass
class Seen:
    """What was seen: seconds, gradients in the table and loss, moment by moment; how it ended; how stale it was."""

    t: list[float] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    ended: str = "complete"
    staleness: dict[str, int] = field(default_factory=dict)
    row_ages: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


Ask = Callable[[m.Message], m.Message]
"""The server's answer to a request; Finishing when it has ended."""


class Workload(Protocol):
    """A problem that real processes train: its server's arguments, its worker, its loss."""

    def serve(self, options: TrainingOptions, scene: Scene, run: Path) -> list[str]:
        """Arguments of `glovewire` that start its server, but for addresses and workers."""

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """Train as one worker until the run is over."""

    def loss(self, ask: Ask, options: TrainingOptions) -> tuple[int, float]:
        """Gradients in the table by now, and the loss on entries that are the same every time."""


def workload(problem: Problem) -> Workload:
    """How real processes train a problem."""
    return GloveWorkload(problem) if isinstance(problem, GloveProblem) else ImageWorkload(cast(ImageProblem, problem))


class GloveWorkload:
    """Minibatches of a dataset, by the workers of `glovewire worker`."""

    def __init__(self, problem: GloveProblem) -> None:
        self._problem, self._path = problem, problem.dataset.path
        objectives.warm()

    def serve(self, options: TrainingOptions, scene: Scene, run: Path) -> list[str]:
        """See Workload."""
        del scene
        return ["server", str(self._path), "--out", str(run), "--no-verify", *training_arguments(options)]

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """See Workload."""
        del options
        work(WorkerConfig(self._path, (address,), f"w{number}", verify=False, latency=latency))

    def loss(self, ask: Ask, options: TrainingOptions) -> tuple[int, float]:
        """See Workload."""
        rows = ask(m.Pull("rows", 0, self._problem.dataset.layout.rows, m.NO_VERSION, 0))
        assert isinstance(rows, m.Rows)
        sample = self._problem.sample
        return rows.gradients, self._problem.gradients(sample, rows.values[sample.rows], options)[1]


class ImageWorkload:
    """A dense network, by workers of `worker.dense.client` as a program of one's own has them."""

    def __init__(self, problem: ImageProblem) -> None:
        self._problem = problem

    def serve(self, options: TrainingOptions, scene: Scene, run: Path) -> list[str]:
        """See Workload. The run is over after so many updates that all examples have been seen."""
        gradients = -(-self._problem.examples * options.epochs // options.batch_size)
        whole = dataclasses.replace(options, steps=-(-gradients // _together(options, scene.workers)))
        return ["server", "--out", str(run), *training_arguments(whole)]

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """See Workload."""
        with Client([address], f"w{number}") as server:
            server.create({NETWORK: self._problem.network(options.seed)})
            batches = self._problem.batches(options, number)
            delays = Latency.parse(latency).draws(options.seed, number)
            for now in server.steps():
                gradient, loss = self._problem.slope(now[NETWORK], batches().images)
                time.sleep(delays())
                server.push({NETWORK: gradient}, loss=loss, examples=options.batch_size)

    def loss(self, ask: Ask, options: TrainingOptions) -> tuple[int, float]:
        """See Workload."""
        problem = self._problem
        try:
            rows = ask(m.Pull(TABLE, 0, len(problem.rows), m.NO_VERSION, 0))
        except NotReady:  # the first worker has not brought the network yet
            return 0, problem.gradients(problem.sample, problem.initial(options)[0], options)[1]
        assert isinstance(rows, m.Rows)
        return rows.gradients, problem.gradients(problem.sample, rows.values, options)[1]


def _together(options: TrainingOptions, workers: int) -> int:
    """How many gradients make one update."""
    mode = Mode.parse(options.consistency, BATCH_MODES)
    if mode.kind == "sync":
        return max(workers - options.backup, 1)
    return max(workers // int(mode.number), 1) if mode.kind == "softsync" else 1


def watch(workload: Workload, options: TrainingOptions, scene: Scene, folder: Path) -> Seen:
    """Train until it is complete, has diverged, or `scene.seconds` have passed; leaves the run in `folder`.

    Raises ProcessDied when the server ended in any other way, or no worker is left that might begin: what was seen
    until then is no training.
    """
    children = Children(folder / "logs")
    crowd: list[multiprocessing.process.BaseProcess] = []
    fork = multiprocessing.get_context("fork")
    go = fork.Semaphore(0)  # not an Event, which a signal between two of its steps leaves broken
    try:
        free = "tcp://127.0.0.1:0"
        where = ["--bind", free, "--publish", free, "--workers", str(scene.workers), "--log-level", "warning"]
        server = children.start("server", [*workload.serve(options, scene, folder / "run"), *where])
        address = server.ready_line(time.monotonic() + READY_S).split()[1]
        for number in range(scene.workers):
            latency = scene.latency[min(number, len(scene.latency) - 1)]
            log = folder / "logs" / f"worker-{number}.log"
            what = (workload, options, address, number, latency, log, go)
            begun = fork.Process(target=_one, args=what, daemon=True)
            begun.start()
            crowd.append(begun)
        with Conversation([address], "watcher") as client:
            seen = _look(workload, client, partial(_ask, client, server), options, scene, go, crowd)
        if seen.ended == DESERTED:
            raise ProcessDied(f"every worker ended before its first gradient: see {folder / 'logs'}")
        if seen.ended == "complete" and server.failed:
            raise server.died()
        return seen
    except Signalled:
        for worker in crowd:
            worker.kill()
        raise
    finally:
        _begin(crowd, go)
        for worker in crowd:
            worker.join(LEAVE_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
        children.patience_s = LEAVE_S
        children.end()


def _begin(crowd: Sequence[multiprocessing.process.BaseProcess], go: Semaphore) -> None:
    """Let every worker begin, whether it waits already or not."""
    for _ in crowd:
        go.release()


def _one(
    workload: Workload, options: TrainingOptions, address: str, number: int, latency: str, log: Path, go: Semaphore
) -> None:
    """A worker in a process of its own, which begins when it is told to."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    go.acquire()
    with contextlib.suppress(GlovewireError):  # who diverged has told the server
        workload.work(options, address, number, latency)


def _ask(client: Conversation, server: Child, request: m.Message) -> m.Message:
    """See Ask. A server that has ended says nothing, and its silence would be noticed after half a minute."""
    answer: list[m.Message] = []
    client.send(0, request, answer.append)
    while not answer:
        ended = not server.running
        client.poll(int(LOOK_EVERY_S * 1e3))
        if ended and not answer:
            raise RunOver(text="the server has ended")
    return raised(answer[0])


def _look(
    workload: Workload,
    client: Conversation,
    ask: Ask,
    options: TrainingOptions,
    scene: Scene,
    go: Semaphore,
    crowd: Sequence[multiprocessing.process.BaseProcess],
) -> Seen:
    """Let it begin, and sample the loss until the end; time 0 is the last moment without a gradient."""
    seen = Seen()
    client.connect(role="observer")
    began, begun = time.monotonic(), False
    try:
        while True:
            anybody = any(worker.is_alive() for worker in crowd)
            gradients, loss = workload.loss(ask, options)
            now = time.monotonic()
            if not gradients:
                began, seen.t, seen.gradients, seen.loss = now, [], [], []
            seen.t.append(now - began)
            seen.gradients.append(gradients)
            seen.loss.append(loss)
            if not begun:
                begun = True
                _begin(crowd, go)
            _count(ask, seen)
            if not math.isfinite(loss) or loss > DIVERGED * seen.loss[0]:
                seen.ended = "diverged"
            elif now - began > scene.seconds:
                seen.ended = "out of time"
            elif not (gradients or anybody):
                seen.ended = DESERTED
            if seen.ended != "complete":
                ask(m.Finish(Ending.ASKED))
                return seen
            client.poll(int(LOOK_EVERY_S * 1e3))
            time.sleep(max(LOOK_EVERY_S - (time.monotonic() - now), 0.0))
    except GlovewireError as error:
        told = isinstance(error, RunOver) and error.ending is Ending.FAILED
        if told or (seen.loss and not seen.loss[-1] <= DIVERGED * seen.loss[0]):
            seen.ended = "diverged"
        return seen


def _count(ask: Ask, seen: Seen) -> None:
    reply = ask(m.GetStatus())
    assert isinstance(reply, m.Status)
    facts = json.loads(bytes(reply.body))
    seen.staleness, seen.row_ages = facts["staleness"], facts["row_ages"]


def check(scene: Scene) -> list[str]:
    """What cannot be meant in a scene, in words."""
    problems = []
    if not 1 <= scene.workers <= 256:
        problems.append(f"workers must be between 1 and 256, not {scene.workers}")
    if not (math.isfinite(scene.seconds) and scene.seconds > 0):
        problems.append(f"seconds must be a positive number, not {scene.seconds}")
    for text in scene.latency:
        try:
            Latency.parse(text)
        except GlovewireError as error:
            problems.append(str(error))
    return problems
