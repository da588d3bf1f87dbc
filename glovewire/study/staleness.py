"""Implement `glovewire study staleness`: compare modes and staleness policies by time and by entries.

Every method trains once at each of a few learning rates, then with all seeds at the best rate at which no seed
diverges, so that no method is judged at an unsuitable rate. Trainings that are already on disk are not repeated.
"""

import json
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glovewire.common.errors import ArtifactError, OutputError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.artifacts import output_errors, write_text_atomically

from ..bench.measurements import surroundings
from .emulation import Trace
from .report import report
from .trainings import Conditions, Method, StalenessConfig, Training, folder
from .workloads import Problem

TRACE, FACTS, REPORT = "trace.json", "report.json", "REPORT.md"
GOAL_AT = 2 / 3
"""The goal is the loss of plain asynchronous training at its best rate after this share of its gradients."""
AROUND_S = 7.0
"""Estimated seconds to start and end a training with real processes on a busy machine."""
VIRTUAL, REAL = "virtual time", "server and worker processes"
"""Names of the clocks in reports."""


Train = Callable[[TrainingOptions, Conditions, Path], Trace]
"""Carries out one training and returns its trace; may write files to the given folder."""


def run(
    config: StalenessConfig, train: Train, problem: Problem, clock: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Carry out all trainings by `clock` (VIRTUAL or REAL), write report and plots, and return the figures.

    Raises OutputError or ArtifactError before any work if files are in the way or damaged.
    """
    before = surroundings()
    with output_errors(config.out, "study"):
        _check_folder(config)
        config.out.mkdir(parents=True, exist_ok=True)
    tell(_announcement(config, problem, clock))
    study = _Study(config, train, problem, clock, tell)
    settings = [study.setting(conditions, batch) for conditions in config.conditions() for batch in config.batch_sizes]
    result = {
        "surroundings": before,
        "workload": problem.name,
        "clock": clock,
        "unit": problem.unit,
        "options": config.options.as_message(),
        "seeds": config.seeds,
        "seconds": config.seconds,
        "settings": settings,
    }
    write_text_atomically(config.out / FACTS, json.dumps(result, indent=1) + "\n")
    write_text_atomically(config.out / REPORT, report(result, config.out))
    return result


def _check_folder(config: StalenessConfig) -> None:
    for place in dict.fromkeys(config.training(*case).place for case in config.possible()):
        for above in (place, *place.parents):
            if above.exists() and not above.is_dir():
                raise OutputError(f"study {config.out} cannot be written: {above} is not a folder")
        if (place / TRACE).exists():
            _read(place / TRACE)
    if config.out.exists() and not os.access(config.out, os.W_OK | os.X_OK):
        raise OutputError(f"study {config.out} cannot be written: no permission")


def _announcement(config: StalenessConfig, problem: Problem, clock: str) -> str:
    """Return a text that says what the study will do and roughly how long it will take."""
    methods = ", ".join(method.title for method in config.methods(config.workers[0]))
    minutes = config.trainings * (config.seconds + AROUND_S) / 60
    return (
        f"{problem.name}; {clock}\n"
        f"methods: {methods}\n"
        f"{config.trainings} trainings of at most {config.seconds:g} s each, "
        f"{'as fast as this machine computes them' if clock == VIRTUAL else f'about {minutes:.0f} min'}; "
        f"trainings that are complete in {config.out} are not repeated"
    )


class _Study:
    """Carries out the trainings of a study and reports every one through `tell`."""

    def __init__(
        self, config: StalenessConfig, train: Train, problem: Problem, clock: str, tell: Callable[[str], None]
    ) -> None:
        self._config, self._train, self._tell = config, train, tell
        self._subject = [problem.name, clock, problem.unit]
        self._visited: set[Path] = set()

    def setting(self, conditions: Conditions, batch: int) -> dict[str, Any]:
        """Train all methods under `conditions` with batch size `batch`; return their results."""
        rows = [self._row(method, conditions, batch) for method in self._config.methods(conditions.workers)]
        return {
            "workers": conditions.workers,
            "batch_size": batch,
            "latency": conditions.latency[0],
            "methods": rows,
            "goal": self._config.goal or _goal(rows),
            "folder": folder(conditions, batch),
        }

    def _row(self, method: Method, conditions: Conditions, batch: int) -> dict[str, Any]:
        """Train one method at every rate, then with every seed at the best rate at which no seed diverges."""
        config, rate = self._config, self._config.options.learning_rate

        def trace(share: float, seed: int) -> Trace:
            return self._once(config.training(conditions, batch, method, share, seed))

        shares = config.shares_of(method)
        tried = {share: trace(share, 0) for share in shares}
        for best in sorted(shares, key=lambda share: (tried[share].ended == "diverged", tried[share].loss[-1])):
            runs = [trace(best, seed) for seed in range(config.seeds)]
            if all(one.ended != "diverged" for one in runs):
                break
        return {
            "method": method.title,
            "mode": method.consistency,
            "policy": method.staleness,
            "rate": rate * best,
            "tried": {
                f"{rate * share:g}": "diverged" if one.ended == "diverged" else f"{one.loss[-1]:.4f}"
                for share, one in tried.items()
            },
            "runs": [vars(one) for one in runs],
        }

    def _once(self, training: Training) -> Trace:
        """Return a training's trace from disk; train if there is no trace or it was made with other settings."""
        place, conditions = training.place, training.conditions
        self._visited.add(place)
        found = place / TRACE
        settings = {  # everything that distinguishes one training from another in the same folder
            "subject": self._subject,
            "conditions": {**vars(conditions), "latency": list(conditions.latency)},
            "options": training.options.as_message(),
        }
        if found.exists():
            before, trace = _read(found)
            if before == settings:
                return trace
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        trace = self._train(training.options, conditions, place)
        counted = f"{len(self._visited)}/{max(self._config.trainings, len(self._visited))}"
        name = "/".join(place.parts[-3:])
        self._tell(f"{counted} {name}: {trace.ended} after {trace.t[-1]:.1f} s, loss {trace.loss[-1]:.4f}")
        write_text_atomically(found, json.dumps({"settings": settings, "trace": vars(trace)}) + "\n")
        return trace


def _read(found: Path) -> tuple[Any, Trace]:
    """Read the settings and the trace of a training; ArtifactError if the file is incomplete or damaged."""
    try:
        whole = json.loads(found.read_text(encoding="utf-8"))
        settings, trace = whole["settings"], Trace(**whole["trace"])
        counts = (*trace.staleness.values(), *trace.row_ages.values())
        lengths = {len(trace.t), len(trace.gradients), len(trace.loss)}
        numbers = all(type(one) in (int, float) for one in (*trace.t, *trace.gradients, *trace.loss, *counts))
        if len(lengths) > 1 or 0 in lengths or not numbers:
            raise ValueError("its figures are incomplete")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{found} is damaged ({error}): remove it, and that training is repeated") from error
    return settings, trace


def _goal(rows: Sequence[dict[str, Any]]) -> float:
    """Return the median over seeds of the loss of plain asynchronous training after GOAL_AT of its gradients."""
    plain = next(row for row in rows if row["method"] == "async")
    losses = []
    for one in plain["runs"]:
        done = GOAL_AT * one["gradients"][-1]
        losses.append(next(loss for n, loss in zip(one["gradients"], one["loss"], strict=True) if n >= done))
    return float(f"{statistics.median(losses):.3g}")
