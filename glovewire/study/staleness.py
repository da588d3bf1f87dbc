"""`glovewire study staleness`: modes and staleness policies on equal terms, by the clock and by entries.

Every method first trains once at each of a few learning rates; the best at which no seed diverges is repeated with all
of them. So none is compared with another at a rate that does not suit it. What is on disk is not trained again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.errors import ArtifactError, OutputError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.storage.artifacts import write_text_atomically

from ..bench.measurements import surroundings
from .emulation import Scene, Seen
from .report import report
from .trainings import Method, StalenessConfig, Training, folder

SEEN, FACTS, REPORT = "seen.json", "report.json", "REPORT.md"
GOAL_AT = 2 / 3
"""The goal is the loss that plain asynchronous training at its best rate has after so much of its entries."""
AROUND_S = 7.0
"""What a training with real processes takes beside itself on a busy machine: its start and its end."""


@dataclass(frozen=True)
class Subject:
    """What is trained, what its examples are called, and whether in virtual time or with real processes."""

    name: str
    unit: str
    virtual: bool

    @property
    def clock(self) -> str:
        """By which the curves are drawn, for people."""
        return "virtual time" if self.virtual else "server and worker processes"


Watch = Callable[[TrainingOptions, Scene, Path], Seen]
"""Carries out one training, which may leave files in a folder."""


def run(config: StalenessConfig, watch: Watch, what: Subject, tell: Callable[[str], None]) -> dict[str, Any]:
    """Train everything, write table and pictures; returns the facts.

    Raises OutputError or ArtifactError, before anything is made, for what is in the way or damaged.
    """
    before = surroundings()
    try:
        _check_what_is_there(config)
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"study {config.out} cannot be written: {error.strerror or error}") from error
    tell(_announced(config, what))
    study = _Study(config, watch, what, tell)
    settings = [study.setting(scene, batch) for scene in config.scenes() for batch in config.batch_sizes]
    result = {
        "surroundings": before,
        "workload": what.name,
        "clock": what.clock,
        "unit": what.unit,
        "options": config.options.as_message(),
        "seeds": config.seeds,
        "seconds": config.seconds,
        "settings": settings,
    }
    write_text_atomically(config.out / FACTS, json.dumps(result, indent=1) + "\n")
    write_text_atomically(config.out / REPORT, report(result, config.out))
    return result


def _check_what_is_there(config: StalenessConfig) -> None:
    for place in dict.fromkeys(training.place(config) for training in config.possible()):
        for above in (place, *place.parents):
            if above.exists() and not above.is_dir():
                raise OutputError(f"study {config.out} cannot be written: {above} is not a folder")
        if (place / SEEN).exists():
            _read(place / SEEN)
    if config.out.exists() and not os.access(config.out, os.W_OK | os.X_OK):
        raise OutputError(f"study {config.out} cannot be written: no permission")


def _announced(config: StalenessConfig, what: Subject) -> str:
    """What is going to be done, and for how long."""
    methods = ", ".join(method.title for method in config.methods(config.workers[0]))
    minutes = config.trainings * (config.seconds + AROUND_S) / 60
    return (
        f"{what.name}; {what.clock}\n"
        f"methods: {methods}\n"
        f"{config.trainings} trainings of at most {config.seconds:g} s each, "
        f"{'as fast as this machine computes them' if what.virtual else f'about {minutes:.0f} min'}; "
        f"what is in {config.out} already is not done again"
    )


class _Study:
    """Carries out what a study is made of and tells of each training."""

    def __init__(self, config: StalenessConfig, watch: Watch, what: Subject, tell: Callable[[str], None]) -> None:
        self._config, self._watch, self._what, self._tell = config, watch, what, tell
        self._asked: set[Path] = set()

    def setting(self, scene: Scene, batch: int) -> dict[str, Any]:
        """All methods in one scene with one size of batches."""
        rows = [self._row(method, scene, batch) for method in self._config.methods(scene.workers)]
        setting = {"workers": scene.workers, "batch_size": batch, "latency": scene.latency[0], "methods": rows}
        return {**setting, "goal": self._config.goal or _goal(rows), "folder": folder(scene, batch)}

    def _row(self, method: Method, scene: Scene, batch: int) -> dict[str, Any]:
        """One method at every rate, and with every seed at the best at which none diverges."""
        options = self._config.options

        def seen(share: float, seed: int) -> Seen:
            return self._once(Training(scene, batch, method, share, seed))

        shares = self._config.shares_of(method)
        tried = {share: seen(share, 0) for share in shares}
        for best in sorted(shares, key=lambda share: (tried[share].ended == "diverged", tried[share].loss[-1])):
            runs = [seen(best, seed) for seed in range(self._config.seeds)]
            if all(one.ended != "diverged" for one in runs):
                break
        return {
            "method": method.title,
            "mode": method.consistency,
            "policy": method.staleness,
            "rate": options.learning_rate * best,
            "tried": {f"{options.learning_rate * share:g}": _ending(one) for share, one in tried.items()},
            "runs": [one.as_json() for one in runs],
        }

    def _once(self, training: Training) -> Seen:
        """One training, unless it is on disk; what was cut short, or done in another way, is done anew."""
        options, place, scene = training.options(self._config), training.place(self._config), training.scene
        if training.method.alone:
            scene = dataclasses.replace(scene, workers=1)
        self._asked.add(place)
        found, told = place / SEEN, self._told(options, scene)
        if found.exists():
            before, seen = _read(found)
            if before == told:
                return seen
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        seen = self._watch(options, scene, place)
        counted = f"{len(self._asked)}/{max(self._config.trainings, len(self._asked))}"
        self._tell(
            f"{counted} {'/'.join(place.parts[-3:])}: {seen.ended} after {seen.t[-1]:.1f} s, loss {seen.loss[-1]:.4f}"
        )
        write_text_atomically(found, json.dumps({"told": told, "seen": seen.as_json()}) + "\n")
        return seen

    def _told(self, options: TrainingOptions, scene: Scene) -> dict[str, Any]:
        """All that makes one training another one than those before it in the same place."""
        there = {"workers": scene.workers, "latency": list(scene.latency), "seconds": scene.seconds}
        what = [self._what.name, self._what.clock, self._what.unit]
        return {"what": what, "scene": there, "options": options.as_message()}


def _read(found: Path) -> tuple[Any, Seen]:
    """What a training was told, and what was seen of it; ArtifactError unless the file is whole."""
    try:
        whole = json.loads(found.read_text(encoding="utf-8"))
        told, seen = whole["told"], Seen(**whole["seen"])
        counts = (*seen.staleness.values(), *seen.row_ages.values())
        lengths = {len(seen.t), len(seen.gradients), len(seen.loss)}
        numbers = all(type(one) in (int, float) for one in (*seen.t, *seen.gradients, *seen.loss, *counts))
        if len(lengths) > 1 or 0 in lengths or not numbers:
            raise ValueError("its figures are not whole")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{found} is damaged ({error}): without it that training is done again") from error
    return told, seen


def _goal(rows: Sequence[dict[str, Any]]) -> float:
    """The loss of plain asynchronous training after GOAL_AT of its entries, the median over seeds."""
    plain = next(row for row in rows if row["method"] == "async")
    losses = []
    for one in plain["runs"]:
        done = GOAL_AT * one["gradients"][-1]
        losses.append(next(loss for n, loss in zip(one["gradients"], one["loss"], strict=True) if n >= done))
    return float(f"{statistics.median(losses):.3g}")


def _ending(seen: Seen) -> str:
    return "diverged" if seen.ended == "diverged" else f"{seen.loss[-1]:.4f}"
