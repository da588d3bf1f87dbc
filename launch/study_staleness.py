"""`glovewire study staleness`: modes and staleness policies on equal terms, by the clock and by entries.

Every method first trains once at each of a few learning rates; the best at which no seed diverges is repeated with all
of them. So none is compared with another at a rate that does not suit it. What is on disk is not trained again.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import write_text_atomically
from common.measured import surroundings
from common.modes import POLICIES, Mode
from common.options import TrainingOptions
from common.settings import require

from .crowd import Scene, Seen, check
from .staleness_report import report

SEEN, FACTS, REPORT = "seen.json", "report.json", "REPORT.md"
POLICY_DEFAULTS = ("inverse", "hyperbolic:8", "gap", "dc:0.01")
GOAL_AT = 2 / 3
"""The goal is the loss that plain asynchronous training at its best rate has after so much of its entries."""
AROUND_S = 7.0
"""What a training with real processes takes beside itself on a busy machine: its start and its end."""


@dataclass(frozen=True)
class Method:
    """One way to train: what differs from the study's options."""

    title: str
    consistency: str = "async"
    staleness: str = "none"
    alone: bool = False
    only_share: float = 0.0


@dataclass(frozen=True)
class StalenessConfig:
    """Options of `glovewire study staleness`; `shares` are the fractions of the learning rate that are tried."""

    out: Path
    options: TrainingOptions
    workers: tuple[int, ...] = (16,)
    batch_sizes: tuple[int, ...] = (2048,)
    latencies: tuple[str, ...] = ("pareto:100ms",)
    policies: tuple[str, ...] = POLICY_DEFAULTS
    modes: tuple[str, ...] = ("sync",)
    shares: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25, 0.125)
    seeds: int = 3
    seconds: float = 15.0
    goal: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        problems = [problem for scene in self.scenes() for problem in check(scene)]
        if not 1 <= self.seeds <= 100:
            problems.append(f"seeds must be between 1 and 100, not {self.seeds}")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            problems.append("rates are tried at fractions of the learning rate above 0, up to 1")
        require(list(dict.fromkeys(problems)))
        for policy in self.policies:
            Mode.parse(policy, POLICIES)

    def scenes(self) -> list[Scene]:
        """Every number of workers with every latency."""
        return [Scene(n, (latency,), self.seconds) for n in self.workers for latency in self.latencies]

    def methods(self, workers: int) -> list[Method]:
        """Baseline, modes, plain asynchronous training, the honest control, and every policy."""
        control = Method(f"async, rate / {workers}", only_share=1 / workers)
        found = [
            Method("one worker", alone=True),
            *(Method(mode, mode) for mode in self.modes),
            Method("async"),
            control,
        ]
        return found + [Method(policy, staleness=policy) for policy in self.policies]

    @property
    def trainings(self) -> int:
        """How many there are if of no method a further seed diverges at its best rate."""
        each = [len(self.shares_of(m)) + self.seeds - 1 for m in self.methods(1)]
        return sum(each) * len(self.scenes()) * len(self.batch_sizes)

    def shares_of(self, method: Method) -> tuple[float, ...]:
        """The fractions of the learning rate at which a method is tried."""
        return (method.only_share,) if method.only_share else self.shares


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
    """Train everything, write table and pictures; returns the facts."""
    before = surroundings()
    config.out.mkdir(parents=True, exist_ok=True)
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
        folder = f"{scene.workers}-workers-batch-{batch}-{_plain(scene.latency[0])}"
        rows = [self._row(method, scene, batch, folder) for method in self._config.methods(scene.workers)]
        setting = {"workers": scene.workers, "batch_size": batch, "latency": scene.latency[0], "methods": rows}
        return {**setting, "goal": self._config.goal or _goal(rows), "folder": folder}

    def _row(self, method: Method, scene: Scene, batch: int, folder: str) -> dict[str, Any]:
        """One method at every rate, and with every seed at the best at which none diverges."""
        options, place = self._config.options, self._config.out / folder / _plain(method.title)
        there = dataclasses.replace(scene, workers=1) if method.alone else scene

        def seen(share: float, seed: int) -> Seen:
            rate = options.learning_rate * share
            own = dataclasses.replace(
                options, learning_rate=rate, seed=options.seed + seed, batch_size=batch,
                consistency=method.consistency, staleness=method.staleness,
            )  # fmt: skip
            return self._once(own, there, place / f"rate-{rate:g}-seed-{seed}")

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

    def _once(self, options: TrainingOptions, scene: Scene, place: Path) -> Seen:
        """One training, unless it is on disk; what was cut short, or done in another way, is done anew."""
        self._asked.add(place)
        found, told = place / SEEN, self._told(options, scene)
        if found.exists() and (before := json.loads(found.read_text(encoding="utf-8")))["told"] == told:
            return Seen(**before["seen"])
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


def _plain(text: str) -> str:
    """A name for a folder."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in text).replace("--", "-").strip("-")
