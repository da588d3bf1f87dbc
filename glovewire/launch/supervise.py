"""Supervise the processes of a local training: restart workers, and end the run when a server is lost.

A killed worker is replaced at once; a killed server raises ServerLost, and the caller restarts from a checkpoint.
"""

import time
from collections.abc import Callable

from glovewire.common.endings import Ending
from glovewire.common.errors import ProcessDied
from glovewire.monitor.watch import Watcher

from .processes import Child, Children

LAST_WORDS_S = 600.0
"""Time for a server to write its results; n-grams of a million words take a minute or two of processor time."""
GOODBYE_S = 3.0
LAST_ROUNDS_S = 5.0
"""Time for workers to complete their rounds; a terminated server waits for them slightly less."""


class ServerLost(ProcessDied, code="server-lost"):
    """A server was killed; the run can continue from its newest checkpoint."""


def until_over(
    watch: Watcher, servers: list[Child], workers: list[Child], children: Children, score: Callable[[int], None]
) -> None:
    """Show progress and restart killed workers until the servers are done; ProcessDied if training cannot complete.

    `score` is called again and again with the number of completed epochs.
    """
    while any(server.running for server in servers) and not watch.feed.over:
        watch.step(0.1)
        score(watch.history.loss.epoch if watch.history.loss is not None else 0)
        _raise_if_failed(servers, children)
        for rank, worker in enumerate(workers):
            if worker.killed and children.may_restart(worker.role):
                workers[rank] = children.start(worker.role, worker.arguments)
            elif worker.failed:
                raise worker.died()
        if not any(worker.running for worker in workers):
            # A worker that left after a signal says nothing about the run; any other left because the run was over.
            over = any(worker.facts()["ending"] != Ending.INTERRUPTED for worker in workers)
            deadline = time.monotonic() + (LAST_WORDS_S if over else GOODBYE_S)
            while any(server.running for server in servers) and not watch.feed.over and time.monotonic() < deadline:
                watch.step(0.1)
            if any(server.running for server in servers) and not watch.feed.over:
                raise ProcessDied("every worker has left, and training is not complete")


def _raise_if_failed(servers: list[Child], children: Children) -> None:
    for server in servers:
        if server.failed:
            children.patience_s = 0.0  # without every shard there are no vectors to wait for
            raise ServerLost(str(server.died())) if server.killed else server.died()


def await_end(servers: list[Child], children: Children) -> None:
    """Wait until the servers have written their results and ended; ProcessDied if one fails or takes too long."""
    until(lambda: any(s.failed for s in servers) or not any(s.running for s in servers), LAST_WORDS_S)
    _raise_if_failed(servers, children)
    for server in servers:
        if server.running:
            raise ProcessDied(f"{server.role} did not end within {LAST_WORDS_S:.0f} s after training")


def end_in_order(servers: list[Child]) -> None:
    """End the servers so that the run can be resumed: workers complete the rounds that were begun, and leave."""
    for server in servers:
        server.terminate()
    until(lambda: not any(server.running for server in servers), LAST_ROUNDS_S)


def until(happened: Callable[[], bool], seconds: float) -> None:
    """Wait until `happened()` returns True, but at most `seconds` seconds."""
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
