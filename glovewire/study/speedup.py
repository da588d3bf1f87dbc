"""Implement `glovewire study speedup`: compare the server with `--preset baseline` and with shared memory.

Each variant is a separate `glovewire train`; they run one after the other with the same entry weights, so that losses
are comparable. The figures are read from the metrics in the run folders and can be checked there.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.model.options import PRESETS, TrainingOptions
from glovewire.common.storage import run_folder as runs
from glovewire.common.storage.artifacts import write_text_atomically
from glovewire.common.storage.dataset import Dataset
from glovewire.common.text import printable
from glovewire.monitor.history.curve import Point, sweep_means
from glovewire.monitor.history.records import read_metrics

from ..bench.measured_run import run_measured
from ..bench.measurements import surroundings
from ..launch.config import LocalConfig
from .config import SpeedupConfig
from .speedup_plot import Curve, draw

BASELINE = "baseline: random batches of 64, plain SGD, one process"
REPORT, FACTS, PLOT = "REPORT.md", "report.json", "speedup"

FEWEST = 0.002
"""Curves start after this share of a variant's entries, because the mean loss of a few batches is noise."""


@dataclass(frozen=True)
class Variant:
    """One way to train; the training is stopped after `limit_s` seconds, None for no limit."""

    title: str
    trial: LocalConfig
    limit_s: float | None = None


def run(config: SpeedupConfig, tell: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    """Train every variant, write report and plot, and return the figures and the report as Markdown."""
    dataset, name = Dataset.open(config.dataset), printable(config.dataset.name)
    runs.prepare(config.out)
    before, curves = surroundings(), list[Curve]()
    for variant in variants(config):
        tell(f"training: {variant.title}")
        outcome = run_measured(variant.trial, config.out / "logs", variant.limit_s)
        curves.append(_curve(variant, dataset.total_entries, outcome.facts))
    _compare(curves)
    result = {
        "surroundings": before,
        "dataset": {"name": name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": config.options.as_message(),
        "variants": [row for row, _ in curves],
    }
    text = report(result)
    write_text_atomically(config.out / REPORT, text)
    write_text_atomically(config.out / FACTS, json.dumps(result, indent=1) + "\n")
    draw(curves, _heading(result), config.out / PLOT)
    return {"out": str(config.out), **result}, text


def variants(config: SpeedupConfig) -> list[Variant]:
    """Return the variants: baseline, one process, shared memory, and the server with 1 to `config.workers` workers."""
    plain: dict[str, Any] = {**PRESETS["baseline"], "consistency": "async", "optimizer": "sgd"}
    shared = {name: getattr(config.options, name) for name in ("x_max", "alpha")}  # the same loss for all
    baseline = dataclasses.replace(config.options, **{**plain, **shared})

    def trial(name: str, store: str, workers: int, options: TrainingOptions = config.options) -> LocalConfig:
        return LocalConfig(
            dataset=config.dataset,
            out=config.out / name,
            store=store,
            workers=workers,
            servers=config.servers if store == "server" else 1,
            progress=False,
            options=options,
        )

    found = [
        Variant(BASELINE, trial("baseline", "local", 1, baseline), config.seconds_limit),
        Variant("blocks, one process", trial("local", "local", 1)),
    ]
    if config.workers > 1:
        title = f"blocks, shared memory (Hogwild), {config.workers} processes"
        found.append(Variant(title, trial(f"shared-{config.workers}", "shared", config.workers)))
    for workers in range(1, config.workers + 1):
        title = f"blocks, server, {workers} worker{'s' if workers > 1 else ''}"
        found.append(Variant(title, trial(f"server-{workers}", "server", workers)))
    return found


def _curve(variant: Variant, entries: int, facts: dict[str, Any] | None) -> Curve:
    """Return the figures and the losses of a variant; a run that was stopped has no `facts`.

    The samples that are averaged may span the end of a sweep; the last point of a complete run has the exact means
    over the last sweep, which the run itself reports.
    """
    trial = variant.trial
    points = _points(trial.out, entries * trial.options.local_epochs)
    last = points[-1]
    found = {"seconds": last.t, "entries": last.position, "entries_per_second": last.position / max(last.t, 1e-9)}
    if facts is not None:
        found = facts
        # nine digits: sums of equal trainings differ in the last bits, because reports arrive in any order
        loss, bias_only, norm = (float(f"{facts[name]:.9g}") for name in ("loss", "bias_only_loss", "mean_vector_norm"))
        points[-1] = last = dataclasses.replace(last, loss=loss, bias_only_loss=bias_only, norm=norm)
    return {
        "variant": variant.title,
        "run": trial.out.name,
        "store": trial.store,
        "workers": trial.workers,
        "complete": facts is not None,
        "seconds": round(found["seconds"], 3),
        "entries": found["entries"],
        "entries_per_second": round(found["entries_per_second"]),
        "loss": last.loss,
        "bias_only_loss": last.bias_only_loss,
        "mean_vector_norm": last.norm,
    }, points


def _points(run: Path, per_sweep: int) -> list[Point]:
    """Return the mean losses of a run by sweep, with times in seconds since training began."""
    samples = read_metrics(run).overall.all_points()
    first = samples[0]
    began = first.t - first.position / first.entries_per_second if first.entries_per_second > 0 else first.t
    placed: list[Point] = []
    for point in sweep_means(samples, per_sweep):
        if placed and point.t - began <= placed[-1].t:
            placed.pop()  # of two points at the same time, keep the later
        placed.append(dataclasses.replace(point, t=point.t - began))
    return [point for point in placed if point.position >= FEWEST * placed[-1].position]


def _compare(curves: list[Curve]) -> None:
    """Add to each row its speed relative to the baseline and the time at which it reached the baseline's final loss."""
    pace, goal = (curves[0][0][name] for name in ("entries_per_second", "loss"))
    for row, points in curves:
        row["times_baseline"] = round(row["entries_per_second"] / max(pace, 1), 2)
        reached = (round(point.t, 3) for point in points if point.loss <= goal)
        row["seconds_to_baseline_loss"] = next(reached, None)


def _heading(result: dict[str, Any]) -> tuple[str, str]:
    where, data = result["surroundings"], result["dataset"]
    return (
        "GloVe training: one process, shared memory, parameter server",
        f"{data['name']}   ·   {data['entries'] / 1e6:,.1f} million entries, {data['words']:,} words   ·   "
        f"{result['options']['dim']} dimensions   ·   {result['options']['epochs']} epochs   ·   "
        f"{where['cores']} cores in all",
    )


def report(result: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    title, caption = _heading(result)
    lines = [
        f"# {title}",
        "",
        re.sub(" +", " ", caption) + f" ({result['surroundings']['processor']}).",
        "",
        "| variant | seconds | M entries/s | times the baseline | loss | bias-only loss | seconds to the "
        "baseline's final loss |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["variants"]:
        reached = row["seconds_to_baseline_loss"]
        seconds = f"{row['seconds']:.1f}" + ("" if row["complete"] else " (stopped)")
        lines.append(
            f"| {row['variant']} | {seconds} | {row['entries_per_second'] / 1e6:.3f} | {row['times_baseline']:.1f} | "
            f"{row['loss']:.4f} | {row['bias_only_loss']:.4f} | {'never' if reached is None else f'{reached:.1f}'} |"
        )
    lines += ["", f"Losses are means over the last sweep. Run folders, `{FACTS}` and the plot are in this folder."]
    return "\n".join(lines) + "\n"
