"""`glovewire monitor`: watch a run in the terminal, a browser, files and metrics systems, in any combination.

Parses options and loops around `Watcher.step`. The monitor only subscribes: interrupting it ends nothing but itself.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command, keys_option, positive
from glovewire.common.errors import require

if TYPE_CHECKING:
    from .history.history import RunHistory
    from .sinks.tensorboard import TensorBoard
    from .watch import Watcher

STEP_S = 0.2
FILE = click.Path(dir_okay=False, path_type=Path)


def _no_nan(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Raise BadParameter for nan, which no comparison of times would ever reach."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds")
    return value


@click.command("monitor", cls=Command)
@click.argument("addresses", nargs=-1, metavar="tcp://HOST:PORT...")
@click.option("--web", type=click.IntRange(0, 65535), metavar="PORT", help="Serve a live dashboard until Ctrl-C.")
@click.option(
    "--linger",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    show_default="until Ctrl-C",
    callback=_no_nan,
    help="End --web so long after the run.",
)
@click.option("--host", default="127.0.0.1", help="Where --web and --prometheus listen; 0.0.0.0 is everywhere.")
@click.option("--tensorboard", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write scalars.")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="With --tensorboard: the run's folder on this machine, whose vectors go to the projector at the end.",
)
@click.option("--prometheus", type=click.IntRange(0, 65535), metavar="PORT", help="Serve metrics to Prometheus.")
@click.option("--log", type=FILE, metavar="FILE.jsonl", help="Append every sample, one JSON object a line.")
@click.option("--plot", type=FILE, metavar="FILE.png", help="Draw the losses at the end (.png or .svg).")
@click.option(
    "--replay",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Show finished runs; may be repeated.",
)
@keys_option
@click.option(
    "--timeout",
    default=120.0,
    metavar="SECONDS",
    callback=positive,
    help="Give up when an address has said nothing for so long after the start, or all for so long later on.",
)
def monitor(addresses: tuple[str, ...], replay: tuple[Path, ...], **options: Any) -> dict[str, Any]:
    """Watch a run: loss curves, workers, shards and events.

    tcp://HOST:PORT is the publish address of a server, the second one of its `ready` line; give one for each shard.
    The monitor may be started before the server. It ends when the run has finished (exit status 0) or failed (1), when
    all servers have been silent for --timeout (1; --web without --linger continues), or with Ctrl-C (0).
    """
    require(_problems(addresses, replay, options))
    if replay:
        return _replay(replay, options)
    return _watch(addresses, options)


def _problems(addresses: tuple[str, ...], replay: tuple[Path, ...], options: dict[str, Any]) -> list[str]:
    if replay:
        live = [f"--{name}" for name in ("prometheus", "log", "run") if options[name] is not None]
        found = [f"{name} needs a running server, not --replay" for name in live]
        if options["tensorboard"] is not None and len(replay) > 1:
            found.append("--tensorboard takes one --replay at a time: give each run a folder of its own")
        return found + (["give either addresses or --replay"] if addresses else [])
    if options["run"] is not None and options["tensorboard"] is None:
        return ["--run names the run whose vectors go to --tensorboard: give both"]
    return [] if addresses else ["give the publish address of a server, such as tcp://127.0.0.1:5556"]


def _watch(addresses: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    from .stream.feed import RunFailed
    from .watch import Watcher

    with (
        _stop_requests() as stopped,
        Watcher(
            addresses,
            log=options["log"],
            picture=options["plot"],
            stream=sys.stdout,
            timeout_s=options["timeout"],
            silence_s=None if options["web"] is not None and options["linger"] is None else options["timeout"],
            keys=options["keys"],
        ) as watcher,
    ):
        board = _open_sinks(watcher, options)
        _loop(watcher, stopped, options)
        if board is not None and options["run"] is not None and watcher.history.finished:
            _project(board, options["run"])
    if watcher.feed.failed is not None:
        raise RunFailed(f"the run failed: {watcher.history.failed}")
    return _summary(watcher)


def _open_sinks(watcher: Watcher, options: dict[str, Any]) -> TensorBoard | None:
    """Open the sinks of `options`; return the one for TensorBoard, if any."""
    board = None
    if options["tensorboard"] is not None:
        from .sinks.tensorboard import TensorBoard

        board = TensorBoard(options["tensorboard"])
        watcher.sinks.append(board)
    if options["prometheus"] is not None:
        from .sinks.prometheus import Prometheus

        metrics = Prometheus(watcher.history, options["host"], options["prometheus"])
        watcher.sinks.append(metrics)
        click.echo(f"metrics {metrics.url}", err=True)
    return board


def _project(board: TensorBoard, run: Path) -> None:
    """Write the vectors of a finished run for TensorBoard's projector."""
    from glovewire.common.storage.run_folder import load_vectors

    found = load_vectors(run)
    board.project(found.words, found.vectors)


def _loop(watcher: Watcher, stopped: Callable[[], bool], options: dict[str, Any]) -> None:
    if options["web"] is None:
        while not (watcher.over or stopped()):
            watcher.step(STEP_S)
        return
    from .web.neighbours import ServerLookup
    from .web.server import serve

    with closing(ServerLookup(lambda: watcher.feed.requests, watcher.feed.keys)) as lookup:
        serve(
            [watcher.history],
            options["host"],
            options["web"],
            lookups=[lookup],
            step=watcher.step,
            silent=lambda: watcher.feed.silent,
            stopped=_stopped_or_lingered(stopped, options["linger"], lambda: watcher.over),
        )


def _stopped_or_lingered(
    stopped: Callable[[], bool], linger_s: float | None, over: Callable[[], bool] = lambda: True
) -> Callable[[], bool]:
    """Return a function that says whether to end the dashboard: when `stopped`, or `linger_s` after the run is over."""
    over_since: float | None = None

    def ended() -> bool:
        nonlocal over_since
        if over() and over_since is None:
            over_since = time.monotonic()
        lingered = linger_s is not None and over_since is not None and time.monotonic() - over_since >= linger_s
        return lingered or stopped()

    return ended


def _replay(runs: tuple[Path, ...], options: dict[str, Any]) -> dict[str, Any]:
    from .history.records import read_metrics, read_samples

    histories = [read_metrics(run) for run in runs]
    if options["tensorboard"] is not None:
        from .sinks.tensorboard import TensorBoard

        with closing(TensorBoard(options["tensorboard"])) as board:
            for sample in read_samples(runs[0]):
                board.add(sample)
            _project(board, runs[0])
    if options["plot"] is not None:
        from .sinks.plot import plot

        plot(histories[0], options["plot"])
    if options["web"] is not None:
        from .web.neighbours import RunLookup
        from .web.server import serve

        with _stop_requests() as stopped:
            ended = _stopped_or_lingered(stopped, options["linger"])
            serve(histories, options["host"], options["web"], lookups=[RunLookup(run) for run in runs], stopped=ended)
    else:
        _print(histories)
    return {"runs": [history.name for history in histories]}


def _print(histories: list[RunHistory]) -> None:
    from rich.console import Console

    from .terminal.screen import render_screen

    console = Console(highlight=False)
    for history in histories:
        console.print(render_screen(history, history.t, console.width, 16))


def _summary(watcher: Watcher) -> dict[str, Any]:
    history, last = watcher.history, watcher.history.overall.last
    summary: dict[str, Any] = {"run": history.run, "finished": history.finished, "lost_samples": watcher.feed.lost}
    if last is not None:
        summary |= {"t": last.t, "entries": last.position}
        summary |= {"loss": last.mean_loss, "bias_only_loss": last.mean_bias_only_loss}
    return summary


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGINT or SIGTERM has arrived; restore the former handlers afterwards."""
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
