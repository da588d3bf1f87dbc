"""Run a training with many worker processes on one machine, and sample its loss from outside.

Server and workers are real processes that communicate over TCP; only the latency is simulated, so workers mostly sleep.
Workers are forked to save start-up time, so this process must have no open socket when it forks them.
"""

import contextlib
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Semaphore
from pathlib import Path

from glovewire.common.cli.config_file import configured
from glovewire.common.client.pending import Pending
from glovewire.common.endings import Ending
from glovewire.common.errors import GlovewireError, NotReady, ProcessDied, RunOver
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol import messages as m
from glovewire.common.runtime.signals import Signalled
from glovewire.common.transport.client import RequestClient
from glovewire.server.config import ServerConfig

from ..launch.config import ANY_PORT
from ..launch.processes import Child, Children
from .trainings import Conditions
from .workloads import Problem

LOOK_EVERY_S = 0.1
LEAVE_S = 10.0
DESERTED = "deserted"
DIVERGED = 4.0
"""A training whose loss exceeds its initial loss by this factor counts as diverged."""


@dataclass
class Trace:
    """Loss samples of a training (seconds, applied gradients, loss), how it ended, and histograms of staleness."""

    t: list[float] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    ended: str = "complete"
    staleness: dict[str, int] = field(default_factory=dict)
    row_ages: dict[str, int] = field(default_factory=dict)

    def add(self, t: float, gradients: int, loss: float) -> None:
        """Add a sample of the loss; one that exceeds DIVERGED times the first, or is no number, ends the training."""
        self.t.append(t)
        self.gradients.append(gradients)
        self.loss.append(loss)
        if not loss <= DIVERGED * self.loss[0] < math.inf:
            self.ended = "diverged"


Ask = Callable[[m.Message], m.Message]
"""Sends a request and returns the server's reply; raises RunOver when the server has ended."""


def sample_loss(problem: Problem, ask: Ask, options: TrainingOptions) -> tuple[int, float]:
    """Pull the parameters; return the number of gradients applied so far and the loss on a fixed sample."""
    sample = problem.sample
    try:
        pulled = ask(m.Pull(problem.table, 0, problem.table_rows, m.NO_VERSION))
    except NotReady:  # the first worker has not sent the network yet
        return 0, problem.gradients(sample, problem.initial(options)[0][sample.rows], options).mean_loss
    assert isinstance(pulled, m.Rows)
    return pulled.gradients, problem.gradients(sample, pulled.values[sample.rows], options).mean_loss


def emulate(problem: Problem, options: TrainingOptions, conditions: Conditions, folder: Path) -> Trace:
    """Train until the run is complete, has diverged or has used up its time; write its run and logs to `folder`.

    Raises ProcessDied when the server fails for another reason, or every worker ends before its first gradient.
    """
    children = Children(folder / "logs")
    workers: list[multiprocessing.process.BaseProcess] = []
    fork = multiprocessing.get_context("fork")
    go = fork.Semaphore(0)  # not an Event: a signal at the wrong moment can leave an Event unusable
    try:
        how = ServerConfig(
            dataset=problem.folder,
            out=folder / "run",
            bind=ANY_PORT,
            publish=ANY_PORT,
            workers=conditions.workers,
            verify=False,
            log_level="warning",
            options=problem.served(options, conditions.workers),
        )
        server = children.start("server", configured("server", how, children.logs / "server.toml"))
        address = server.ready().address
        for number in range(conditions.workers):
            log = folder / "logs" / f"worker-{number}.log"
            what = (problem, options, address, number, conditions.latency_of(number), log, go)
            begun = fork.Process(target=_one, args=what, daemon=True)
            begun.start()
            workers.append(begun)
        with RequestClient([address], "watcher") as client:
            trace = _observe(problem, client, partial(_ask, client, server), options, conditions, go, workers)
        if trace.ended == DESERTED:
            raise ProcessDied(f"every worker ended before its first gradient: see {folder / 'logs'}")
        if trace.ended == "complete" and server.failed:
            raise server.died()
        return trace
    except Signalled:
        for worker in workers:
            worker.kill()
        raise
    finally:
        _begin(workers, go)
        for worker in workers:
            worker.join(LEAVE_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
        children.patience_s = LEAVE_S
        children.end()


def _begin(workers: Sequence[multiprocessing.process.BaseProcess], go: Semaphore) -> None:
    """Release every worker; one that is not yet waiting on `go` will not block later."""
    for _ in workers:
        go.release()


def _one(
    problem: Problem, options: TrainingOptions, address: str, number: int, latency: str, log: Path, go: Semaphore
) -> None:
    """Run one worker in this forked process: redirect its output to `log`, wait for `go`, train."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    go.acquire()
    with contextlib.suppress(GlovewireError):  # a diverged worker has told the server
        problem.work(options, address, number, latency)


def _ask(client: RequestClient, server: Child, request: m.Message) -> m.Message:
    """Implement Ask; detect the end of the server process at once instead of at the client's deadline."""
    answer: Pending[m.Message] = Pending()
    client.request(0, request, answer)
    while not answer.done:
        ended = not server.running
        client.poll(int(LOOK_EVERY_S * 1e3))
        if ended and not answer.done:
            raise RunOver(text="the server has ended")
    return answer.get()


def _observe(
    problem: Problem,
    client: RequestClient,
    ask: Ask,
    options: TrainingOptions,
    conditions: Conditions,
    go: Semaphore,
    workers: Sequence[multiprocessing.process.BaseProcess],
) -> Trace:
    """Release the workers and sample the loss until the end; time 0 is the last sample before the first gradient."""
    trace = Trace()
    client.connect(role="observer")
    began, begun = time.monotonic(), False
    try:
        while True:
            alive = any(worker.is_alive() for worker in workers)
            gradients, loss = sample_loss(problem, ask, options)
            now = time.monotonic()
            if not gradients:
                began, trace.t, trace.gradients, trace.loss = now, [], [], []
            trace.add(now - began, gradients, loss)
            if not begun:
                begun = True
                _begin(workers, go)
            status = ask(m.GetStatus())
            assert isinstance(status, m.Status)
            facts = json.loads(bytes(status.body))
            trace.staleness, trace.row_ages = facts["staleness"], facts["row_ages"]
            if trace.ended == "complete":
                if now - began > conditions.seconds:
                    trace.ended = "out of time"
                elif not (gradients or alive):
                    trace.ended = DESERTED
            if trace.ended != "complete":
                ask(m.Finish(Ending.ASKED))
                return trace
            client.poll(int(LOOK_EVERY_S * 1e3))
            time.sleep(max(LOOK_EVERY_S - (time.monotonic() - now), 0.0))
    except GlovewireError as error:
        if isinstance(error, RunOver) and error.ending is Ending.FAILED:
            trace.ended = "diverged"
        return trace
