"""The report of `glovewire study staleness`: one table a setting, and its pictures."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .staleness_plot import ages, curves

CURVES, AGES = "curves", "staleness"


def time_to(run: dict[str, Any], goal: float) -> tuple[float, int] | None:
    """Seconds and gradients when a run first had the loss `goal`, between its samples; None if it never had."""
    before: tuple[float, int, float] | None = None
    for t, done, loss in zip(run["t"], run["gradients"], run["loss"], strict=True):
        if loss <= goal:
            if before is None or before[2] <= loss:
                return t, done
            part = (before[2] - goal) / (before[2] - loss)
            return before[0] + part * (t - before[0]), round(before[1] + part * (done - before[1]))
        before = (t, done, loss)
    return None


def report(result: dict[str, Any], out: Path) -> str:
    """The report as Markdown; its pictures are drawn into `out`."""
    where, options = result["surroundings"], result["options"]
    lines = [
        "# Staleness: modes and policies by the clock",
        "",
        f"{result['workload']}; {options['optimizer']}, {options['dim']} dimensions, "
        f"{options['epochs']} epochs or {result['seconds']:g} s; {where['cores']} cores ({where['processor']}).",
        "",
        "Every method was tried at the same few learning rates with the first seed; the best of them at which no seed "
        f"diverges is repeated with {result['seeds']} in all. The control is plain asynchronous training at the "
        "largest rate divided by the workers. The goal is a loss on entries that are the same for all.",
    ]
    for setting in result["settings"]:
        lines += ["", *_section(setting, out)]
    return "\n".join(lines) + "\n"


def _section(setting: dict[str, Any], out: Path) -> list[str]:
    heading = f"{setting['workers']} workers, batches of {setting['batch_size']}, latency {setting['latency']}"
    for name, draw in ((CURVES, curves), (AGES, ages)):
        for suffix in (".png", ".svg"):
            draw(setting, heading, out / f"{setting['folder']}-{name}{suffix}")
    plain = _median([time_to(run, setting["goal"]) for run in _of(setting, "async")["runs"]])
    rows = [
        f"## {heading}",
        "",
        f"![loss]({setting['folder']}-{CURVES}.png)",
        "",
        f"| method | rate | reached {setting['goal']:g} | seconds to it, median (range) | beside async | "
        "entries to it, M | last loss, median |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows += [_row(setting, method, plain) for method in setting["methods"]]
    tried = list(_of(setting, "async")["tried"])
    rows += [
        "",
        "| last loss with the first seed at rate | " + " | ".join(tried) + " |",
        "|---|" + "---:|" * len(tried),
    ]
    for method in setting["methods"]:
        if all(rate in method["tried"] for rate in tried):
            rows.append(f"| {method['method']} | " + " | ".join(method["tried"][rate] for rate in tried) + " |")
    return [*rows, "", f"![staleness]({setting['folder']}-{AGES}.png)"]


def _of(setting: dict[str, Any], title: str) -> dict[str, Any]:
    found: dict[str, Any] = next(method for method in setting["methods"] if method["method"] == title)
    return found


def _median(reached: list[tuple[float, int] | None]) -> float | None:
    """The median of the seconds, None unless all got there."""
    times = [each[0] for each in reached if each is not None]
    return statistics.median(times) if len(times) == len(reached) else None


def _row(setting: dict[str, Any], method: dict[str, Any], plain: float | None) -> str:
    reached = [time_to(run, setting["goal"]) for run in method["runs"]]
    there = [each for each in reached if each is not None]
    median, last = _median(reached), statistics.median(run["loss"][-1] for run in method["runs"])
    seconds = entries = beside = "never"
    if there:
        times = [each[0] for each in there]
        seconds = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        entries = f"{statistics.median(each[1] for each in there) * setting['batch_size'] / 1e6:.2f}"
        beside = f"{100 * (median / plain - 1):+.0f} %" if median is not None and plain else ""
    diverged = sum(run["ended"] == "diverged" for run in method["runs"])
    told = f"{last:.4f}" if not diverged else f"{diverged} diverged"
    return (
        f"| {method['method']} | {method['rate']:g} | {len(there)} of {len(reached)} | {seconds} | {beside} | "
        f"{entries} | {told} |"
    )
