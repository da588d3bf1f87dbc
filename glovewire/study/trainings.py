"""Define the methods and trainings that `glovewire study staleness` compares, and validate them all up front.

Starts and writes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from glovewire.common.errors import UsageError, require
from glovewire.common.model.options import BATCH_MODES, POLICIES, Mode, TrainingOptions

from .emulation import Conditions, problems_of

POLICY_DEFAULTS = ("inverse", "hyperbolic:8", "gap", "dc:0.01")


@dataclass(frozen=True)
class Method:
    """One way to train: how it differs from the study's options."""

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
        """Raise one UsageError that names every invalid value."""
        problems = [problem for conditions in self.conditions() for problem in problems_of(conditions)]
        if not 1 <= self.seeds <= 100:
            problems.append(f"seeds must be between 1 and 100, not {self.seeds}")
        if not (self.workers and self.batch_sizes and self.latencies):
            problems.append("workers, batch and latency need at least one value each")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            problems.append("rates are tried at fractions of the learning rate above 0, up to 1")
        if not (math.isfinite(self.goal) and self.goal >= 0):
            problems.append(f"goal must be a loss, or 0 for that of async, not {self.goal}")
        if self.options.schedule != "minibatch":
            problems.append(
                f"this study compares ways to train by minibatches, not with --schedule {self.options.schedule}"
            )
        known = [("mode", self.modes, BATCH_MODES), ("policy", self.policies, POLICIES)]
        for what, named, ways in known:
            problems += [f"{what} {told}" for told in _refusals(partial(Mode.parse, known=ways), named)]
        require(list(dict.fromkeys(problems)))
        require(list(dict.fromkeys(_refusals(lambda training: training.options(self), self.possible()))))

    def conditions(self) -> list[Conditions]:
        """Return every combination of number of workers and latency."""
        return [Conditions(n, (latency,), self.seconds) for n in self.workers for latency in self.latencies]

    def methods(self, workers: int) -> list[Method]:
        """Return the baseline, the modes, plain asynchronous training, the control, and every policy."""
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
        """Return the number of trainings if no further seed diverges at a method's best rate."""
        each = [len(self.shares_of(m)) + self.seeds - 1 for m in self.methods(1)]
        return sum(each) * len(self.conditions()) * len(self.batch_sizes)

    def possible(self) -> Iterator[Training]:
        """Yield every training that may be needed; which ones are is known only as others complete."""
        for conditions, batch in product(self.conditions(), self.batch_sizes):
            for method in self.methods(conditions.workers):
                for share, seed in product(self.shares_of(method), range(self.seeds)):
                    yield Training(conditions, batch, method, share, seed)

    def shares_of(self, method: Method) -> tuple[float, ...]:
        """Return the fractions of the learning rate at which a method is tried."""
        return (method.only_share,) if method.only_share else self.shares


@dataclass(frozen=True)
class Training:
    """One training of a study: a method at a fraction of the learning rate, with the study's `seed`-th seed."""

    conditions: Conditions
    batch: int
    method: Method
    share: float
    seed: int

    def options(self, config: StalenessConfig) -> TrainingOptions:
        """Return its training options; UsageError if they are invalid."""
        return dataclasses.replace(
            config.options, learning_rate=config.options.learning_rate * self.share, batch_size=self.batch,
            seed=config.options.seed + self.seed, consistency=self.method.consistency, staleness=self.method.staleness,
        )  # fmt: skip

    def place(self, config: StalenessConfig) -> Path:
        """Return its folder."""
        rate = config.options.learning_rate * self.share
        own = f"rate-{rate:g}-seed-{self.seed}"
        return config.out / folder(self.conditions, self.batch) / _plain(self.method.title) / own


def folder(conditions: Conditions, batch: int) -> str:
    """Return the folder name for some conditions and batch size."""
    return f"{conditions.workers}-workers-batch-{batch}-{_plain(conditions.latency[0])}"


def _refusals(check: Callable[[Any], object], values: Iterable[Any]) -> list[str]:
    """Return the messages of the UsageErrors that `check` raises for some values."""
    found = []
    for value in values:
        try:
            check(value)
        except UsageError as error:
            found.append(str(error))
    return found


def _plain(text: str) -> str:
    """Return a text as a folder name."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in text).replace("--", "-").strip("-")
