"""Define the methods and trainings that `glovewire study staleness` compares, and validate all of them in advance.

Starts no training and writes no file.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from glovewire.common.errors import UsageError
from glovewire.common.model.options import BATCH_MODES, POLICIES, Mode, TrainingOptions
from glovewire.common.option import POSITIVE, Config, at_least, between, option
from glovewire.worker.simulated_latency import parse_latency


@dataclass(frozen=True)
class Method:
    """One way to train: what differs from the study's options. `only_share`, if not 0, replaces `shares`."""

    title: str
    consistency: str = "async"
    staleness: str = "none"
    alone: bool = False
    only_share: float = 0.0


@dataclass(frozen=True)
class Conditions:
    """Number of workers, latency of their pushes, and time limit of a training in seconds."""

    workers: int
    latency: tuple[str, ...]
    seconds: float

    def latency_of(self, worker: int) -> str:
        """Return the latency of a worker; workers beyond the listed latencies have the last of them."""
        return self.latency[min(worker, len(self.latency) - 1)]


@dataclass(frozen=True)
class Training:
    """One training of a study, and the folder that keeps it."""

    options: TrainingOptions
    conditions: Conditions
    place: Path


@dataclass(frozen=True, kw_only=True)
class StalenessConfig(Config):
    """Options of `glovewire study staleness`; every method is tried at the fractions `shares` of the learning rate."""

    out: Path = option(help="Folder for the results; trainings already in it are not repeated.")
    workers: tuple[int, ...] = option((16,), range=between(1, 256), help="Worker processes; repeat for more settings.")
    batch_sizes: tuple[int, ...] = option(
        (2048,),
        flags=("--batch",),
        shown="2048 entries, or 32 images",
        help="Examples in a batch; repeat for more settings.",
    )
    latencies: tuple[str, ...] = option(
        ("pareto:100ms",),
        flags=("--latency",),
        check=parse_latency,
        metavar="TIME",
        help="Simulated latency of pushes, as in `worker`; repeat for more settings.",
    )
    modes: tuple[str, ...] = option(
        ("sync",), flags=("--mode",), metavar="MODE", help="Modes to compare with; repeat for more."
    )
    policies: tuple[str, ...] = option(
        ("inverse", "hyperbolic:8", "gap", "dc:0.01"),
        flags=("--policy",),
        metavar="POLICY",
        help="Staleness policies; repeat for more.",
    )
    shares: tuple[float, ...] = option(
        (1.0, 0.75, 0.5, 0.25, 0.125),
        flags=("--share",),
        help="Fractions of the learning rate at which every method is tried.",
    )
    seeds: int = option(3, range=between(1, 100), help="Runs of each method at its best rate.")
    seconds: float = option(15.0, range=POSITIVE, help="Time limit of a run that has not trained all its entries.")
    goal: float = option(
        0.0,
        range=at_least(0, "a loss, or 0 for that of async"),
        shown="what async has after 2/3 of its entries",
        help="Loss to reach.",
    )
    options: TrainingOptions

    def conflicts(self) -> list[str]:
        """Return messages for invalid options, and for options that a training of the study would reject."""
        problems = []
        if not (self.workers and self.batch_sizes and self.latencies):
            problems.append("workers, batch and latency need at least one value each")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            problems.append("rates are tried at fractions of the learning rate above 0, up to 1")
        if self.options.schedule != "minibatch":
            problems.append(
                f"this study compares ways to train by minibatches, not with --schedule {self.options.schedule}"
            )
        known = [("mode", self.modes, BATCH_MODES), ("policy", self.policies, POLICIES)]
        for what, named, ways in known:
            problems += [f"{what} {told}" for told in _refusals(partial(Mode.parse, known=ways), named)]
        if problems or min(self.workers) < 1:  # there is no training to check
            return problems
        return _refusals(lambda case: self.training(*case), self.possible())

    def conditions(self) -> list[Conditions]:
        """Return every combination of number of workers and latency."""
        return [Conditions(n, (latency,), self.seconds) for n in self.workers for latency in self.latencies]

    def methods(self, workers: int) -> list[Method]:
        """Return the methods: one worker, the modes, plain async, async at rate / `workers`, and every policy."""
        return [
            Method("one worker", alone=True),
            *(Method(mode, mode) for mode in self.modes),
            Method("async"),
            Method(f"async, rate / {workers}", only_share=1 / workers),
            *(Method(policy, staleness=policy) for policy in self.policies),
        ]

    @property
    def trainings(self) -> int:
        """Return the number of trainings, assuming that no seed diverges at the best rate of a method."""
        each = [len(self.shares_of(m)) + self.seeds - 1 for m in self.methods(1)]
        return sum(each) * len(self.conditions()) * len(self.batch_sizes)

    def possible(self) -> Iterator[tuple[Conditions, int, Method, float, int]]:
        """Yield the arguments of `training` for all that may be needed, because the best rates are not known yet."""
        for conditions, batch in product(self.conditions(), self.batch_sizes):
            for method in self.methods(conditions.workers):
                for share, seed in product(self.shares_of(method), range(self.seeds)):
                    yield conditions, batch, method, share, seed

    def training(self, conditions: Conditions, batch: int, method: Method, share: float, seed: int) -> Training:
        """Return the training of a method at fraction `share` of the learning rate; `seed` is 0 for the first seed.

        Raises UsageError if its options are invalid.
        """
        rate = self.options.learning_rate * share
        options = dataclasses.replace(
            self.options, learning_rate=rate, batch_size=batch, seed=self.options.seed + seed,
            consistency=method.consistency, staleness=method.staleness,
        )  # fmt: skip
        place = self.out / folder(conditions, batch) / _plain(method.title) / f"rate-{rate:g}-seed-{seed}"
        return Training(options, dataclasses.replace(conditions, workers=1) if method.alone else conditions, place)

    def shares_of(self, method: Method) -> tuple[float, ...]:
        """Return the fractions of the learning rate at which a method is tried."""
        return (method.only_share,) if method.only_share else self.shares


def folder(conditions: Conditions, batch: int) -> str:
    """Return the name of the folder for trainings with these conditions and batch size."""
    return f"{conditions.workers}-workers-batch-{batch}-{_plain(conditions.latency[0])}"


def _refusals(check: Callable[[Any], object], values: Iterable[Any]) -> list[str]:
    """Apply `check` to every value; return the messages of the UsageErrors that it raises."""
    found = []
    for value in values:
        try:
            check(value)
        except UsageError as error:
            found.append(str(error))
    return found


def _plain(text: str) -> str:
    """Return `text` as a folder name: characters other than letters, digits, `.` and `-` become `-`."""
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in text).replace("--", "-").strip("-")
