"""`glovewire monitor`: watches a run from anywhere, in any number of ways at once.

It must never disturb a run: it only listens, and interrupting it ends nothing but itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes
from glovewire.common.runtime.signals import signals_noted

from .config import MonitorConfig

if TYPE_CHECKING:
    from .sinks.tensorboard import TensorBoard
    from .watch import Watch

STEP_S = 0.2


@click.command("monitor", cls=Command)
@takes(MonitorConfig)
def monitor(given: Given[MonitorConfig]) -> dict[str, Any]:
    """Watch a run: curves, workers, shards and events.

    Give the address that a server publishes at (its `ready` line says it), and those of further shards. The monitor
    may be started before the server. It ends when the run has finished (0) or failed (1), when its servers have fallen
    silent (1; --web without --linger stays), or with Ctrl-C (0).
    """
    config = given.config()
    return _replay(config) if config.replay else _watch(config)


def _watch(config: MonitorConfig) -> dict[str, Any]:
    from .stream.feed import RunFailed
    from .watch import Watch

    with (
        signals_noted() as stopped,
        Watch(
            config.addresses,
            log=config.log,
            picture=config.plot,
            stream=sys.stdout,
            timeout_s=config.timeout,
            silence_s=None if config.web is not None and config.linger is None else config.timeout,
            keys=config.keys,
        ) as watch,
    ):
        board = _attach(watch, config)
        _loop(watch, stopped, config)
        if board is not None and config.run is not None and watch.history.finished:
            _project(board, config.run)
    if watch.feed.failed is not None:
        raise RunFailed(f"the run failed: {watch.history.failed}")
    return _summary(watch)


def _attach(watch: Watch, config: MonitorConfig) -> TensorBoard | None:
    """Open the configured sinks; return the one for TensorBoard, if any."""
    board = None
    if config.tensorboard is not None:
        from .sinks.tensorboard import TensorBoard

        board = TensorBoard(config.tensorboard)
        watch.sinks.append(board)
    if config.prometheus is not None:
        from .sinks.prometheus import Prometheus

        metrics = Prometheus(watch.history, config.host, config.prometheus)
        watch.sinks.append(metrics)
        click.echo(f"metrics {metrics.url}", err=True)
    return board


def _project(board: TensorBoard, run: Path) -> None:
    """Hand the vectors of a finished run to the projector."""
    from glovewire.common.storage.run_folder import load_vectors

    found = load_vectors(run)
    board.project(found.words, found.vectors)


def _loop(watch: Watch, stopped: Callable[[], bool], config: MonitorConfig) -> None:
    if config.web is not None:
        from .web.neighbours import ServerLookup
        from .web.server import serve

        with closing(ServerLookup(lambda: watch.feed.requests, watch.feed.keys)) as lookup:
            serve(
                [watch.history],
                config.host,
                config.web,
                lookups=[lookup],
                step=watch.step,
                silent=lambda: watch.feed.silent,
                stopped=_stopped_or_over(lambda: watch.over, stopped, config.linger),
            )
        return
    while not (watch.over or stopped()):
        watch.step(STEP_S)


def _stopped_or_over(
    over: Callable[[], bool], stopped: Callable[[], bool], linger_s: float | None
) -> Callable[[], bool]:
    """Return when to end the dashboard: once stopped, or `linger_s` seconds after the end of the run."""
    over_since: float | None = None

    def ended() -> bool:
        nonlocal over_since
        if over() and over_since is None:
            over_since = time.monotonic()
        lingered = linger_s is not None and over_since is not None and time.monotonic() - over_since >= linger_s
        return lingered or stopped()

    return ended


def _replay(config: MonitorConfig) -> dict[str, Any]:
    from .history.records import read_metrics, read_samples

    histories = [read_metrics(run) for run in config.replay]
    if config.tensorboard is not None:
        from .sinks.tensorboard import TensorBoard

        with closing(TensorBoard(config.tensorboard)) as board:
            for sample in read_samples(config.replay[0]):
                board.add(sample)
            _project(board, config.replay[0])
    if config.plot is not None:
        from .sinks.plot import plot

        plot(histories[0], config.plot)
    if config.web is not None:
        from .web.neighbours import RunLookup
        from .web.server import serve

        with signals_noted() as stopped:
            lookups = [RunLookup(run) for run in config.replay]
            ended = _stopped_or_over(lambda: True, stopped, config.linger)
            serve(histories, config.host, config.web, lookups=lookups, stopped=ended)
    else:
        _print(histories)
    return {"runs": [history.name for history in histories]}


def _print(histories: list[Any]) -> None:
    from rich.console import Console

    from .terminal.screen import screen

    console = Console(highlight=False)
    for history in histories:
        console.print(screen(history, history.t, console.width, 16))


def _summary(watch: Watch) -> dict[str, Any]:
    history, last = watch.history, watch.history.overall.last
    told: dict[str, Any] = {"run": history.run, "finished": history.finished, "lost_samples": watch.feed.lost}
    if last is not None:
        mean = {"loss": history.mean.loss, "bias_only_loss": history.mean.bias_only_loss}
        told |= {"t": last.t, "entries": last.position, **mean}
    return told
