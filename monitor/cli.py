"""`glovewire monitor`: watch a run from anywhere, in as many ways at once as one likes.

Options in, a loop around `Watch.step`, an exit status out. It must never disturb a run: it only listens, and
interrupting it ends nothing but itself.
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
    from .sinks.tensorboard import TensorBoard
    from .watch import Watch

STEP_S = 0.2
FILE = click.Path(dir_okay=False, path_type=Path)


def _no_nan(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """BadParameter for nan, which no wait reaches."""
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
    """Watch a run: curves, workers, shards and events.

    Give the address that a server publishes at (its `ready` line says it), and those of further shards. The monitor
    may be started before the server. It ends when the run has finished (0) or failed (1), when its servers are gone
    without a word (1; --web without --linger stays), or with Ctrl-C (0).
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
        return ["--run says where the vectors for --tensorboard will be: give both"]
    return [] if addresses else ["give the address that a server publishes at, such as tcp://127.0.0.1:5556"]


def _watch(addresses: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    from .stream.feed import RunFailed
    from .watch import Watch

    with (
        _stopping() as stopped,
        Watch(
            addresses,
            log=options["log"],
            picture=options["plot"],
            stream=sys.stdout,
            timeout_s=options["timeout"],
            silence_s=None if options["web"] is not None and options["linger"] is None else options["timeout"],
            keys=options["keys"],
        ) as watch,
    ):
        board = _attach(watch, options)
        _loop(watch, stopped, options)
        if board is not None and options["run"] is not None and watch.history.finished:
            _project(board, options["run"])
    if watch.feed.failed is not None:
        raise RunFailed(f"the run failed: {watch.history.failed}")
    return _summary(watch)


def _attach(watch: Watch, options: dict[str, Any]) -> TensorBoard | None:
    """Open the sinks that were asked for; the one for TensorBoard, if any."""
    board = None
    if options["tensorboard"] is not None:
        from .sinks.tensorboard import TensorBoard

        board = TensorBoard(options["tensorboard"])
        watch.sinks.append(board)
    if options["prometheus"] is not None:
        from .sinks.prometheus import Prometheus

        metrics = Prometheus(watch.history, options["host"], options["prometheus"])
        watch.sinks.append(metrics)
        click.echo(f"metrics {metrics.url}", err=True)
    return board


def _project(board: TensorBoard, run: Path) -> None:
    """Hand the vectors of a finished run to the projector."""
    from glovewire.common.storage.run_folder import load_vectors

    found = load_vectors(run)
    board.project(found.words, found.vectors)


def _loop(watch: Watch, stopped: Callable[[], bool], options: dict[str, Any]) -> None:
    if options["web"] is not None:
        from .web.neighbours import ServerLookup
        from .web.server import serve

        with closing(ServerLookup(lambda: watch.feed.requests, watch.feed.keys)) as lookup:
            serve(
                [watch.history],
                options["host"],
                options["web"],
                lookups=[lookup],
                step=watch.step,
                silent=lambda: watch.feed.silent,
                stopped=_stopped_or_over(lambda: watch.over, stopped, options["linger"]),
            )
        return
    while not (watch.over or stopped()):
        watch.step(STEP_S)


def _stopped_or_over(
    over: Callable[[], bool], stopped: Callable[[], bool], linger_s: float | None
) -> Callable[[], bool]:
    """Whether to end the dashboard: when told to, or `linger_s` seconds after the run is over."""
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

        with _stopping() as stopped:
            lookups = [RunLookup(run) for run in runs]
            ended = _stopped_or_over(lambda: True, stopped, options["linger"])
            serve(histories, options["host"], options["web"], lookups=lookups, stopped=ended)
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


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or a polite kill has asked for an end; the handlers of before come back afterwards."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
