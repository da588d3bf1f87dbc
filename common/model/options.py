"""How a model is trained: one frozen record that the server decides, sends in its welcome, and every worker obeys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import UsageError, require
from ..protocol.schema import Scalar

# ---- Ways to train that carry a number, written as one word: `sync`, `ssp:3`, `hyperbolic:4`. Pure, no I/O.

BLOCK_MODES: Mapping[str, str] = {"exclusive": "", "async": ""}
BATCH_MODES: Mapping[str, str] = {"async": "", "sync": "", "ssp": "S", "softsync": "N"}
POLICIES: Mapping[str, str] = {"none": "", "inverse": "", "hyperbolic": "B", "gap": "", "dc": "L"}
CLOCKS = ("row", "table")
WHOLE: Mapping[str, int] = {"ssp": 0, "softsync": 1}
"""Kinds whose number counts something, and the least that it can be; others take any number above 0."""


@dataclass(frozen=True)
class Mode:
    """One of several ways, with its number where it has one (0 otherwise)."""

    kind: str
    number: float = 0.0

    @classmethod
    def parse(cls, text: str, known: Mapping[str, str]) -> Self:
        """`KIND` or `KIND:NUMBER`, as `known` has it (kind -> name of the number, or ""); UsageError otherwise."""
        kind, colon, number = text.partition(":")
        if kind not in known or bool(known[kind]) != bool(colon):
            raise UsageError(f"must be one of {spelled(known)}, not {text!r}")
        return cls(kind, _number(kind, known[kind], number)) if colon else cls(kind)


def spelled(known: Mapping[str, str]) -> str:
    """The ways to write `known`, for people."""
    return ", ".join(f"{kind}:{number}" if number else kind for kind, number in known.items())


def _number(kind: str, name: str, text: str) -> float:
    try:
        value = float(int(text) if kind in WHOLE else text)
    except ValueError as error:
        raise UsageError(f"must have a {'whole ' * (kind in WHOLE)}number after {kind}:, not {text!r}") from error
    if not math.isfinite(value) or (value < WHOLE[kind] if kind in WHOLE else value <= 0):
        least = f"at least {WHOLE[kind]}" if kind in WHOLE else "above 0"
        raise UsageError(f"must have {name} {least} in {kind}:{name}, not {text}")
    return value


# ---- options

OBJECTIVES = ("glove", "sgns", "tensors")
SCHEDULES = ("blocks", "minibatch")
CONSISTENCIES = {"blocks": BLOCK_MODES, "minibatch": BATCH_MODES}
EXPORTS = ("sum", "word")
OPTIMIZERS = ("adagrad-row", "adagrad", "sgd", "momentum", "nesterov", "adam", "adamw")
BLOCK_OPTIMIZERS = OPTIMIZERS[:3]
RATE_SHAPES = ("linear", "cosine", "constant")
DEFAULTS: dict[str, dict[str, Scalar]] = {
    "glove": {},
    "sgns": {"epochs": 24, "x_max": 10.0, "alpha": 0.85, "initial_accumulator": 1.0, "spectrum": 0.8},
    "tensors": {
        "schedule": "minibatch",
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "rate_shape": "constant",
        "final_rate": 0.0,
        "initial_accumulator": 0.0,
        "mean_gradient": True,
        "clock": "table",
    },
}
"""Where an objective's defaults differ from those of TrainingOptions, which are GloVe's."""
PRESETS: dict[str, dict[str, Scalar]] = {
    "seeds": {
        "schedule": "minibatch",
        "optimizer": "sgd",
        "batch_size": 64,
        "mean_gradient": True,
        "learning_rate": 0.01,
        "final_rate": 1.0,
        "tied": True,
        "x_max": 100.0,
        "alpha": 0.75,
        "spectrum": 1.0,
        "init_scale": 0.2771,  # the standard deviation of 0.01 that the seeds draw with, at 256 dimensions
    },
}


MAX_RATE = 1e6
"""A server takes no step with a larger one."""


def _between(least: int, most: int) -> tuple[Callable[[float], bool], str]:
    return lambda value: least <= value <= most, f"between {least} and {most}"


BOUNDS: dict[tuple[str, ...], tuple[Callable[[float], bool], str]] = {
    ("dim",): _between(1, 4096),
    ("epochs",): _between(1, 1_000_000),
    ("batch_size",): _between(1, 1 << 20),
    ("backup",): _between(0, 1023),
    ("seed",): _between(0, (1 << 63) - 1),
    ("steps",): _between(0, 1 << 53),
    ("learning_rate",): (lambda value: 0 < value <= MAX_RATE, f"a positive number, at most {MAX_RATE:,.0f}"),
    ("x_max", "negatives", "sample"): (lambda value: value > 0, "a positive number"),
    ("alpha", "final_rate", "spectrum", "init_scale", "initial_accumulator", "epsilon", "weight_decay", "clip_norm"): (
        lambda value: value >= 0, "a number of at least 0",
    ),
    ("momentum", "beta1", "beta2", "warmup"): (lambda value: 0 <= value < 1, "at least 0 and less than 1"),
}  # fmt: skip
KNOWN = {
    "objective": OBJECTIVES,
    "export": EXPORTS,
    "schedule": SCHEDULES,
    "optimizer": OPTIMIZERS,
    "clock": CLOCKS,
    "rate_shape": RATE_SHAPES,
}


def spoken(name: str) -> str:
    """A field's name as its flag and its key in a file have it."""
    return name.replace("_", "-")


@dataclass(frozen=True)
class TrainingOptions:
    """Everything that shapes the result. Rates are per entry; `final_rate` is the fraction left at the end.

    The defaults are GloVe's; `from_flags` knows those of every objective. `warmup` is the fraction of the training in
    which the rate rises from zero. `negatives` and `sample` are for skip-gram alone; `clip_norm` and `steps` are for
    tensors: the longest gradient, the updates until the end, 0 for none.
    """

    objective: str = "glove"
    schedule: str = "blocks"
    consistency: str = "exclusive"
    dim: int = 256
    tied: bool = False
    optimizer: str = "adagrad-row"
    epochs: int = 16
    learning_rate: float = 0.4
    final_rate: float = 0.1
    x_max: float = 8.0
    alpha: float = 0.6
    negatives: float = 25.0
    sample: float = 1e-4
    export: str = "sum"
    spectrum: float = 0.95
    init_scale: float = 0.5
    initial_accumulator: float = 3.0
    batch_size: int = 64
    mean_gradient: bool = False
    backup: int = 0
    staleness: str = "none"
    clock: str = "row"
    rate_shape: str = "linear"
    warmup: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    steps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        require(self._problems())

    @classmethod
    def from_flags(cls, consistency: str | None = None, **flags: Any) -> Self:
        """The record for a command's flags; what is None or absent gets the default of its objective and schedule."""
        given = {name: value for name, value in flags.items() if value is not None}
        whole = {**DEFAULTS[given.get("objective", cls.objective)], **given}
        default = next(iter(CONSISTENCIES[whole.get("schedule", cls.schedule)]))
        return cls(consistency=consistency or default, **whole)

    @classmethod
    def of_vectors(cls, **flags: Any) -> Self:
        """`from_flags` for a command that trains on a DATASET; UsageError for tensors, of which it knows nothing."""
        if flags.get("objective") == "tensors":
            raise UsageError(
                "the objective tensors has no DATASET, and workers of your own: begin with `glovewire server "
                "--objective tensors`, or `glovewire.launch.serving` (docs/dense.md)"
            )
        return cls.from_flags(**flags)

    @classmethod
    def of_tensors(cls, **options: Any) -> Self:
        """The record for a dense model, by the same names; what is not given has the default for tensors."""
        return cls.from_flags(objective="tensors", **options)

    def as_message(self) -> dict[str, Scalar]:
        """Plain values for a Welcome."""
        return dataclasses.asdict(self)

    @classmethod
    def from_message(cls, options: dict[str, Scalar]) -> Self:
        """The record that was sent or saved as such; UsageError unless it has every key, none else, and values of ours.

        Who lacks one is of another version: that trained without it, and this one's default is not what it did.
        """
        known = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for strange, what in (
            (options.keys() - known.keys(), "unknown here"),
            (known.keys() - options.keys(), "missing"),
        ):
            if strange:
                names = ", ".join(map(spoken, sorted(strange)))
                raise UsageError(f"another version of this program chose the options; {what}: {names}")
        allowed = {key: (kind, int) if kind is float else (kind,) for key, kind in known.items()}
        wrong = [key for key, value in options.items() if type(value) not in allowed[key]]
        if wrong:
            raise UsageError(f"these options have another type than ours: {', '.join(wrong)}")
        values: dict[str, Any] = dict(options)
        return cls(**values)

    def rate(self, progress: float) -> float:
        """Learning rate after `progress` (0 to 1) of the training: rises, then falls to `final_rate` of its height."""
        done = min(max(progress, 0.0), 1.0)
        fallen = {"linear": done, "cosine": (1.0 - math.cos(math.pi * done)) / 2.0, "constant": 0.0}[self.rate_shape]
        risen = min(done / self.warmup, 1.0) if self.warmup else 1.0
        return self.learning_rate * risen * (1.0 - (1.0 - self.final_rate) * fallen)

    def rate_of_step(self, step: int) -> float:
        """Learning rate of update `step` (from 0) of tensors."""
        return self.rate((step + 1) / self.steps if self.steps else 0.0)

    def _problems(self) -> list[str]:
        problems = []
        for names, (allowed, text) in BOUNDS.items():
            for name in names:
                value = getattr(self, name)
                if not (allowed(value) and math.isfinite(value)):
                    problems.append(f"{spoken(name)} must be {text}, not {value}")
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                problems.append(f"{spoken(name)} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        modes = {"consistency": CONSISTENCIES.get(self.schedule, BATCH_MODES), "staleness": POLICIES}
        for name, ways in modes.items():
            try:
                Mode.parse(getattr(self, name), ways)
            except UsageError as error:
                problems.append(f"{name} {error}" + f" for {self.schedule}" * (name == "consistency"))
        if self.backup and self.consistency != "sync":
            problems.append("backup drops the slowest gradients of a step: it needs --consistency sync")
        if self.staleness != "none" and self.schedule != "minibatch":
            problems.append("staleness is of gradients: it needs --schedule minibatch")
        problems_of = {"sgns": self._problems_of_sgns, "tensors": self._problems_of_tensors}
        return problems + self._problems_together() + problems_of.get(self.objective, list)()

    def _problems_together(self) -> list[str]:
        """What only one schedule or objective knows."""
        problems = []
        if self.schedule == "blocks" and self.optimizer in OPTIMIZERS and self.optimizer not in BLOCK_OPTIMIZERS:
            problems.append(f"blocks are trained with {', '.join(BLOCK_OPTIMIZERS)}: {self.optimizer} needs minibatch")
        if self.schedule == "blocks" and self.weight_decay:
            problems.append("blocks are trained without weight-decay: it needs minibatch")
        if self.objective != "tensors" and (self.clip_norm or self.steps):
            problems.append("clip-norm and steps are for the objective tensors")
        return problems

    def _problems_of_tensors(self) -> list[str]:
        problems = []
        if self.schedule != "minibatch":
            problems.append(f"the objective tensors has no schedule {self.schedule!r}: leave it out")
        if self.optimizer == "adagrad-row":
            problems.append("adagrad-row keeps one number a word: use adagrad for tensors")
        if self.clock == "row":
            problems.append("all rows of tensors change together: use the clock table")
        if not self.steps and (self.warmup or self.rate_shape != "constant"):
            problems.append("a rate that changes needs to know the end: give steps, or rate-shape constant")
        return problems

    def _problems_of_sgns(self) -> list[str]:
        """Skip-gram is trained by one kernel, which knows one way."""
        only = {"schedule": "blocks", "optimizer": "adagrad-row", "tied": False}
        return [
            f"{spoken(name)} must be {value} for the objective sgns, not {getattr(self, name)}"
            for name, value in only.items()
            if getattr(self, name) != value
        ]
