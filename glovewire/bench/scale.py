"""Measure for `glovewire bench scale` how speed, traffic and memory of training change with the vocabulary.

All sizes and programs train in turns, so that ratios stay valid if the machine's speed changes.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage.artifacts import output_errors
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.monitor.sinks.plot import INK, check_path

from ..figures import dress, save, slide
from . import train as bench_train
from .config import ScaleBenchConfig
from .measurements import spread, surroundings
from .stanford import PEER, beside_peer, program, stanford_training
from .train import RATE, Figures
from .vocabularies import make_datasets

Line = tuple[str, str, Callable[[dict[str, Any]], float]]
"""Name and colour of a line of the plot, and its value for the figures of a vocabulary."""

REFERENCE = 32_000
"""Costs are relative to the vocabulary that is nearest to this many words."""
_OF_ALL_SIZES = ("options", "store", "workers", "servers", "repeats")
SERVER, SHARED, THEIRS, WORKER, TABLE = "#0b62d6", "#2a9d8f", "#8c959f", "#e9a23b", "#9cc7f5"


def bench(config: ScaleBenchConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Train `repeats` times with each vocabulary, in turns; `report` gets a line for each step.

    Raises UsageError for a missing peer, and for a plot that cannot be written.
    """
    glove = None if config.peer is None else program(config.peer, "glove")
    if config.plot is not None:
        check_path(config.plot)
    before = surroundings()
    if config.work is not None:
        with output_errors(config.work, "folder"):
            config.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-", dir=config.work) as name:
        folder = Path(name)
        opened = {size: Dataset.open(path) for size, path in make_datasets(config, folder, report).items()}
        trainings: bench_train.Trainings = {}
        for size, dataset in opened.items():
            for program_name, train in _trainings(config, dataset, glove, folder / f"training-{size}").items():
                name = f"{size} {program_name}"
                trainings[name] = partial(_reported, name, train, report)
        repeats, success = bench_train.in_turns(config.repeats, trainings, report)
    reference = min(opened, key=lambda size: abs(size - REFERENCE))
    result = {
        "surroundings": before,
        "corpus": printable(Path(config.corpus).name),
        "options": config.options.as_message(),
        "workers": config.workers,
        "servers": 1,
        "repeats": config.repeats,
        "relative_to": reference,
        "sizes": [_of_size(config, dataset, reference, repeats) for dataset in opened.values()],
        "success": success,
    }
    if config.plot is not None:
        draw(result, config.plot)
    return result


def _trainings(config: ScaleBenchConfig, dataset: Dataset, glove: Path | None, folder: Path) -> bench_train.Trainings:
    """Return the trainings on one dataset: on each store, and the peer's."""
    folder.mkdir()
    found = bench_train.trainings(config.of_training(dataset.path), folder)
    if glove is not None:
        how = {"threads": config.workers, "epochs": config.peer_epochs}
        found[PEER] = stanford_training(glove, dataset, folder, config.options, **how)
    return found


def _reported(name: str, train: Callable[[], Figures], report: Callable[[str], None]) -> Figures:
    report(f"training: {name}")
    return train()


def _of_size(
    config: ScaleBenchConfig, dataset: Dataset, reference: int, repeats: list[dict[str, Figures]]
) -> dict[str, Any]:
    """Return the figures of one vocabulary; its cost is relative to that of the vocabulary of `reference` words."""
    case, size = config.of_training(dataset.path), len(dataset.words)
    ours = [{name.partition(" ")[2]: one[name] for name in one if name.startswith(f"{size} ")} for one in repeats]
    facts = bench_train.facts(case, dataset, ours)
    rates = [(one[f"{reference} {case.store}"][RATE], one[f"{size} {case.store}"][RATE]) for one in repeats]
    found = {
        "words": size,
        "partitions": dataset.layout.partitions,
        "table_mb": round(size * RowLayout.of(config.options).width * 4 / 1e6, 1),
        "ns_per_entry": spread(1e9 / rate for _, rate in rates),
        "times_as_costly": spread(usual / rate for usual, rate in rates),
        **{name: value for name, value in facts.items() if name not in _OF_ALL_SIZES},
    }
    if config.peer is not None:
        found |= beside_peer(ours, case.store, config.workers, config.peer_epochs)
    return found


def table(result: dict[str, Any]) -> str:
    """Return the result of `bench` as text: a row for each vocabulary, medians."""
    sizes = result["sizes"]
    against = f"x {result['relative_to']:,}"
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "words": lambda one: f"{one['words']:,}",
        "entries": lambda one: f"{one['dataset']['entries']:,}",
        "M entries/s": lambda one: f"{one[RATE]['median'] / 1e6:.2f}",
        "ns/entry": lambda one: f"{one['ns_per_entry']['median']:.1f}",
        against: lambda one: f"{one['times_as_costly']['median']:.2f}",
        "B pushed/entry": lambda one: f"{one['bytes_pushed_per_entry']['median']:.1f}",
        "table MB": lambda one: f"{one['table_mb']:.0f}",
        "server MB": lambda one: f"{one['server']['peak_private_mb']['median']:.0f}",
        "worker MB": lambda one: f"{one['worker']['peak_private_mb']['median']:.0f}",
    }
    if sizes[0]["beside"]:
        columns["of shared"] = lambda one: f"{one['beside']['shared']['server_is_times_as_fast']['median']:.0%}"
    if PEER in sizes[0]:
        columns["peer M/s"] = lambda one: f"{one[PEER][RATE]['median'] / 1e6:.3f}"
        columns["x peer"] = lambda one: f"{one['times_as_fast_as_peer']['median']:.1f}"
    rows = [list(columns), *([cell(one) for cell in columns.values()] for one in sizes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    options = result["options"]
    lines.append(
        f"{options['dim']} dimensions, {'tied' if options['tied'] else 'untied'}, epochs {options['epochs']}, "
        f"servers 1, workers {result['workers']}; memory is the anonymous peak of a process; "
        f"success {result['success']:.0%}"
    )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the plot of a result of `bench` to `path` (.png or .svg) atomically."""
    sizes, options = result["sizes"], result["options"]
    caption = (
        f"{result['corpus']}: one server and {result['workers']} workers over TCP on {result['surroundings']['cores']} "
        f"cores, {options['dim']} dimensions, {'tied' if options['tied'] else 'untied'}, epochs {options['epochs']}"
    )
    panels: dict[str, list[Line]] = {
        "million entries per second": [("Glovewire, server", SERVER, lambda one: one[RATE]["median"] / 1e6)],
        "bytes per entry": [
            ("pushed", SERVER, lambda one: one["bytes_pushed_per_entry"]["median"]),
            ("pulled", WORKER, lambda one: one["bytes_pulled_per_entry"]["median"]),
        ],
        "peak anonymous memory, MB": [
            ("server", SERVER, lambda one: one["server"]["peak_private_mb"]["median"]),
            ("a worker", WORKER, lambda one: one["worker"]["peak_private_mb"]["median"]),
            ("the table", TABLE, lambda one: one["table_mb"]),
        ],
    }
    speeds = panels["million entries per second"]
    if sizes[0]["beside"]:
        speeds.append(("Glovewire, shared memory", SHARED, lambda one: one["beside"]["shared"][RATE]["median"] / 1e6))
    if PEER in sizes[0]:
        threads = f"glove, {sizes[0][PEER]['threads']} threads"
        speeds.append((threads, THEIRS, lambda one: one[PEER][RATE]["median"] / 1e6))
    words = [one["words"] for one in sizes]
    figure = slide("Training with vocabularies of different sizes", caption)
    for axes, (label, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name, colour, value in lines:
            values = [value(one) for one in sizes]
            axes.plot(words, values, "o-", color=colour, lw=2.6, ms=7, mec="white", label=name)
        axes.set_xscale("log")
        axes.set_xticks(words, [f"{size:,}" for size in words])
        axes.xaxis.set_minor_locator(NullLocator())
        if lines is speeds and PEER in sizes[0]:  # which is far slower
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(label, loc="left", fontsize=12, color=INK)
        axes.legend(frameon=False, fontsize=10, labelcolor=INK)
        dress(axes, "words in the vocabulary")
    save(figure, path)
