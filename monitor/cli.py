"""Implement `glovewire monitor`: watch a run in the terminal, a browser, files and metrics systems."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes
from glovewire.common.runtime.signals import signals_noted

from .config import MonitorConfig

if TYPE_CHECKING:
    from .sinks.tensorboard import TensorBoard
    from .watch import Watcher

STEP_S = 0.2


@click.command("monitor", cls=Command)
@takes(MonitorConfig)
def monitor(given: Given[MonitorConfig]) -> dict[str, Any]:
    """Watch a run: loss curves, workers, shards and events.

    RUN is a run folder on this machine. The addresses of a running training's servers are read from it; a finished run
    is shown as with --replay. tcp://HOST:PORT is the publish address of a server, the second one of its `ready` line;
    give one for each shard.

    The monitor may be started before a server whose address is given. It ends when the run has finished (exit status 0)
    or failed (1), when all servers have been silent for --timeout (1; --web without --linger continues), or with Ctrl-C
    (0).
    """
    from .run_addresses import found_addresses

    config = given.config()
    addresses, replay = found_addresses(config.addresses)
    config = given.config(addresses=addresses, replay=(*config.replay, *replay))
    return _replay(config) if config.replay else _watch(config)


def _watch(config: MonitorConfig) -> dict[str, Any]:
    from .stream.feed import RunFailed
    from .watch import Watcher

    with (
        signals_noted() as stopped,
        Watcher(
            config.addresses,
            log=config.log,
            picture=config.plot,
            stream=sys.stdout,
            timeout_s=config.timeout,
            silence_s=None if config.web is not None and config.linger is None else config.timeout,
            keys=config.keys,
        ) as watcher,
    ):
        board = _open_sinks(watcher, config)
        _loop(watcher, stopped, config)
        if board is not None and config.run is not None and watcher.history.finished:
            board.project(config.run)
    if watcher.feed.failed is not None:
        raise RunFailed(f"the run failed: {watcher.history.failed}")
    return _summary(watcher)


def _open_sinks(watcher: Watcher, config: MonitorConfig) -> TensorBoard | None:
    """Add the configured sinks to `watcher`; return the TensorBoard sink, or None."""
    board = None
    if config.tensorboard is not None:
        from .sinks.tensorboard import TensorBoard

        board = TensorBoard(config.tensorboard)
        watcher.sinks.append(board)
    if config.prometheus is not None:
        from .sinks.prometheus import Prometheus

        metrics = Prometheus(watcher.history, config.host, config.prometheus)
        watcher.sinks.append(metrics)
        click.echo(f"metrics {metrics.url}", err=True)
    return board


def _loop(watcher: Watcher, stopped: Callable[[], bool], config: MonitorConfig) -> None:
    if config.web is None:
        while not (watcher.feed.over or stopped()):
            watcher.step(STEP_S)
        return
    from .web.neighbours import ServerLookup
    from .web.server import serve

    with closing(ServerLookup(lambda: watcher.feed.requests, watcher.feed.keys)) as lookup:
        serve(
            [watcher.history],
            config.host,
            config.web,
            lookups=[lookup],
            step=watcher.step,
            silent=lambda: watcher.feed.silent,
            stopped=_stopped_or_lingered(stopped, config.linger, lambda: watcher.feed.over),
            names=config.allow_host,
        )


def _stopped_or_lingered(
    stopped: Callable[[], bool], linger_s: float | None, over: Callable[[], bool] = lambda: True
) -> Callable[[], bool]:
    """Return a predicate that is true once `stopped()` is, or `linger_s` seconds after the run is over."""
    ends_at = math.inf

    def ended() -> bool:
        nonlocal ends_at
        if linger_s is not None and over():
            ends_at = min(ends_at, time.monotonic() + linger_s)
        return time.monotonic() >= ends_at or stopped()

    return ended


def _replay(config: MonitorConfig) -> dict[str, Any]:
    from .history.records import read_metrics, read_samples

    histories = [read_metrics(run) for run in config.replay]
    if config.tensorboard is not None:
        from .sinks.tensorboard import TensorBoard

        with closing(TensorBoard(config.tensorboard)) as board:
            for sample in read_samples(config.replay[0]):
                board.add(sample)
            board.project(config.replay[0])
    if config.plot is not None:
        from .sinks.plot import plot

        plot(histories, config.plot)
    if config.web is not None:
        from .web.neighbours import RunLookup
        from .web.server import serve

        with signals_noted() as stopped:
            ended = _stopped_or_lingered(stopped, config.linger)
            lookups = [RunLookup(run) for run in config.replay]
            serve(histories, config.host, config.web, lookups=lookups, stopped=ended, names=config.allow_host)
    else:
        from rich.console import Console

        from .terminal.screen import render_screen

        console = Console(highlight=False)
        for history in histories:
            console.print(render_screen(history, history.t, console.width, 16))
    return {"runs": [history.name for history in histories]}


def _summary(watcher: Watcher) -> dict[str, Any]:
    history, last = watcher.history, watcher.history.overall.last
    summary: dict[str, Any] = {"run": history.run, "finished": history.finished, "lost_samples": watcher.feed.lost}
    if last is not None:
        losses = {"loss": last.mean_loss, "bias_only_loss": last.mean_bias_only_loss}
        summary |= {"t": last.t, "entries": last.position, **losses}
    return summary
