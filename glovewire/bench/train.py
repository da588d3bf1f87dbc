"""Measure training for `glovewire bench train`: speed, cost per role, and speed relative to other stores.

All stores train in turns on the same matrix, so that ratios stay valid if the machine's speed changes.
"""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from glovewire.common.errors import ProcessDied, UsageError
from glovewire.common.storage.dataset import Dataset

from ..launch.config import LocalConfig
from .config import TrainBenchConfig
from .measured_run import RunOutcome, run_measured
from .measurements import spread, surroundings

ROLES = ("server", "worker")
RATE = "entries_per_second"

Figures = dict[str, Any]
Trainings = dict[str, Callable[[], Figures]]
"""Functions by store name; each trains once and returns its figures."""


def bench(config: TrainBenchConfig, report: Callable[[str], None]) -> dict[str, Any]:
    """Train `repeats` times on each store, in turns; `report` gets a line per repeat.

    A failed training lowers `success` and excludes its repeat; raises ProcessDied if no repeat is complete.
    """
    dataset, before = Dataset.open(config.dataset), surroundings()
    with tempfile.TemporaryDirectory(prefix="glovewire-bench-") as folder:
        repeats, success = in_turns(config.repeats, trainings(config, Path(folder)), report)
    return {"surroundings": before, **facts(config, dataset, repeats), "success": success}


def facts(config: TrainBenchConfig, dataset: Dataset, repeats: list[dict[str, Figures]]) -> dict[str, Any]:
    """Return dataset, options, store and processes, and the figures of all stores."""
    return {
        "dataset": {"name": config.dataset.name, "words": len(dataset.words), "entries": dataset.total_entries},
        "options": config.options.as_message(),
        "store": config.store,
        "workers": config.workers,
        "servers": config.servers if config.store == "server" else 0,
        "repeats": config.repeats,
        **_summary([one[config.store] for one in repeats]),
        "beside": {store: _beside(config.store, store, repeats) for store in config.beside},
    }


def trainings(config: TrainBenchConfig, folder: Path) -> Trainings:
    """Return one training for each store; trainings leave nothing but logs in `folder`."""
    return {store: partial(_train, config, store, folder) for store in (config.store, *config.beside)}


def _train(config: TrainBenchConfig, store: str, folder: Path) -> Figures:
    """Train once on a store; the local store is always a single process."""
    how = LocalConfig(
        dataset=config.dataset,
        out=folder / store,
        store=store,
        workers=1 if store == "local" else config.workers,
        servers=config.servers if store == "server" else 1,
        progress=False,
        options=config.options,
    )
    try:
        return _figures(run_measured(how, folder / "logs"), store)
    finally:
        shutil.rmtree(folder / store, ignore_errors=True)


def in_turns(
    repeats: int, trainings: Trainings, report: Callable[[str], None]
) -> tuple[list[dict[str, Figures]], float]:
    """Run all trainings in turns; return the figures of each complete repeat, and the share of successful trainings.

    Raises ProcessDied if no repeat is complete.
    """
    complete: list[dict[str, Figures]] = []
    failed = 0
    for repeat in range(1, repeats + 1):
        found: dict[str, Figures] = {}
        for name, train in trainings.items():
            try:
                found[name] = train()
            except ProcessDied as error:
                failed += 1
                if repeat == repeats and not complete:
                    raise
                report(f"repeat {repeat} of {repeats}: {name} failed: {error}")
        if len(found) == len(trainings):
            complete.append(found)
            rates = (f"{name} {one[RATE] / 1e6:.4g}" for name, one in found.items())
            report(f"repeat {repeat} of {repeats}: M entries/s {', '.join(rates)}")
    return complete, 1 - failed / (repeats * len(trainings))


def _figures(outcome: RunOutcome, store: str) -> Figures:
    """Return the figures of one training; figures of a role are named `role.figure`."""
    run = outcome.facts or {}
    entries = max(run["entries"], 1)
    if store == "server" and {process.role for process in outcome.processes} < set(ROLES):
        raise UsageError(f"a training of {entries:,} entries is over before it can be measured: give more --epochs")
    found: Figures = {name: run[name] for name in ("seconds", RATE, "loss", "bias_only_loss")}
    found["bytes_pushed_per_entry"] = run["bytes_sent"] / entries
    found["bytes_pulled_per_entry"] = run["bytes_received"] / entries
    for role in ROLES:
        if processes := [process for process in outcome.processes if process.role == role]:
            found[f"{role}.cpu_s_per_million_entries"] = outcome.cpu_seconds(role) * 1e6 / entries
            found[f"{role}.peak_pss_mb"] = max(process.pss_bytes for process in processes) / 1e6
            found[f"{role}.peak_private_mb"] = max(process.private_bytes for process in processes) / 1e6
    return found


def _summary(repeats: list[Figures]) -> dict[str, Any]:
    """Return medians and ranges over the repeats; figures named `role.figure` are nested under their role."""
    result: dict[str, Any] = {}
    for name in repeats[0]:
        role, dot, figure = name.partition(".")
        place = result.setdefault(role, {}) if dot else result
        place[figure if dot else name] = spread(one[name] for one in repeats if name in one)
    return result


def _beside(store: str, other: str, repeats: list[dict[str, Figures]]) -> dict[str, Any]:
    """Return the figures of store `other`, and the speed of `store` relative to `other`."""
    ratios = spread(one[store][RATE] / one[other][RATE] for one in repeats)
    return {**_summary([one[other] for one in repeats]), f"{store}_is_times_as_fast": ratios}


def table(result: dict[str, Any]) -> str:
    """Return the result of `bench` as text."""
    lines = _lines(result, result["store"])
    lines[0] += f", workers {result['workers']}, servers {result['servers']}, {result['options']['dim']} dimensions"
    for store, one in result["beside"].items():
        lines += _lines(one, store)
        ratio = one[f"{result['store']}_is_times_as_fast"]
        lines.append(f"store {result['store']} is {shown(ratio)} times as fast as store {store}")
    return "\n".join(lines)


def _lines(result: dict[str, Any], store: str) -> list[str]:
    lines = [
        f"{shown(result[RATE], 1e-6)} M entries/s, store {store}",
        f"bytes per entry: pushed {shown(result['bytes_pushed_per_entry'])}, pulled "
        f"{shown(result['bytes_pulled_per_entry'])}; loss {shown(result['loss'])}, "
        f"bias-only loss {shown(result['bias_only_loss'])}",
    ]
    for role in ROLES:
        if role in result:
            one = result[role]
            lines.append(
                f"{role:<7} {shown(one['cpu_s_per_million_entries'])} CPU s per million entries, peak memory of one "
                f"process {shown(one['peak_pss_mb'])} MB (PSS), {shown(one['peak_private_mb'])} MB private"
            )
    return lines


def shown(figure: dict[str, float], scale: float = 1.0) -> str:
    """Return a median with its range as text, multiplied by `scale`, to four significant digits."""
    low, high = figure["min"] * scale, figure["max"] * scale
    return f"{figure['median'] * scale:.4g} ({low:.4g} to {high:.4g})"
