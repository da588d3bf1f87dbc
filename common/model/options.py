"""Define the options of a training: a frozen record that the server sends to every worker."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..errors import UsageError
from ..option import FRACTION, POSITIVE, Config, Range, at_least, between, option, options_of, spoken
from ..protocol.schema import Scalar

OBJECTIVES = ("glove", "sgns", "tensors")
SCHEDULES = ("blocks", "minibatch")
BLOCK_MODES: Mapping[str, str] = {"exclusive": "", "async": ""}
BATCH_MODES: Mapping[str, str] = {"async": "", "sync": "", "ssp": "S", "softsync": "N"}
CONSISTENCIES = {"blocks": BLOCK_MODES, "minibatch": BATCH_MODES}
POLICIES: Mapping[str, str] = {"none": "", "inverse": "", "hyperbolic": "B", "gap": "", "dc": "L"}
INTEGER_MIN: Mapping[str, int] = {"ssp": 0, "softsync": 1}
"""Modes whose number is an integer, and its minimum; the number of any other mode is a positive float."""
CLOCKS = ("row", "table")
EXPORTS = ("sum", "word")
OPTIMIZERS = ("adagrad-row", "adagrad", "sgd", "momentum", "nesterov", "adam", "adamw")
BLOCK_OPTIMIZERS = OPTIMIZERS[:3]
RATE_SHAPES = ("linear", "cosine", "constant")
LOCAL_EPOCHS = 2
"""Consecutive epochs for which GloVe trains a block. GloVe's scores stay the same; skip-gram's would be lower."""
MAX_RATE = 1e6
"""Largest learning rate that a server accepts."""
PRESETS: dict[str, dict[str, Scalar]] = {  # baseline: GloVe as a simple first implementation trains it
    "baseline": {
        "schedule": "minibatch",
        "local_epochs": 1,
        "optimizer": "sgd",
        "batch_size": 64,
        "mean_gradient": True,
        "learning_rate": 0.01,
        "final_rate": 1.0,
        "tied": True,
        "x_max": 100.0,
        "alpha": 0.75,
        "spectrum": 1.0,
        "subwords": 0.0,
        "init_scale": 0.2771,  # a standard deviation of 0.01 at 256 dimensions
    }
}


@dataclass(frozen=True)
class Mode:
    """A consistency mode or staleness policy such as `sync`, `ssp:3` or `hyperbolic:4`; `number` is 0 without one."""

    kind: str
    number: float = 0.0

    @classmethod
    def parse(cls, text: str, known: Mapping[str, str]) -> Self:
        """Parse `KIND` or `KIND:NUMBER`; `known` maps each kind to its number's name, or "". UsageError if invalid."""
        kind, colon, number = text.partition(":")
        if kind not in known or bool(known[kind]) != bool(colon):
            spelled = ", ".join(f"{each}:{name}" if name else each for each, name in known.items())
            raise UsageError(f"must be one of {spelled}, not {text!r}")
        return cls(kind, _number(kind, known[kind], number)) if colon else cls(kind)


def _number(kind: str, name: str, text: str) -> float:
    try:
        value = float(int(text) if kind in INTEGER_MIN else text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"must have a {'whole ' * (kind in INTEGER_MIN)}number after {kind}:, not {text!r}") from error
    if not math.isfinite(value) or (value < INTEGER_MIN[kind] if kind in INTEGER_MIN else value <= 0):
        least = f"at least {INTEGER_MIN[kind]}" if kind in INTEGER_MIN else "above 0"
        raise UsageError(f"must have {name} {least} in {kind}:{name}, not {text}")
    return value


def usual_local_epochs(objective: str, schedule: str, epochs: int) -> int:
    """Return the default of `local_epochs`, which depends on other options."""
    return LOCAL_EPOCHS if (objective, schedule, epochs % LOCAL_EPOCHS) == ("glove", "blocks", 0) else 1


_AMOUNT = at_least(0, "a number of at least 0")
_RATE = Range(f"a positive number, at most {MAX_RATE:,.0f}", lambda value: 0 < value <= MAX_RATE)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Config):
    """All options that affect the result of a training; learning rates are per entry.

    The defaults are those of the objective `glove`, with each block trained for one epoch at a time; `from_flags` uses
    those of the objective, schedule and epochs given.
    """

    objective: str = option(
        "glove",
        choices=OBJECTIVES,
        shown="glove",
        help="What is minimised: GloVe's squared error of log counts, skip-gram with negative sampling, or tensors: "
        "what workers of your own compute (without a DATASET).",
    )
    schedule: str = option(
        "blocks",
        per={"tensors": "minibatch"},
        choices=SCHEDULES,
        help="Blocks of the matrix on copies of their rows, or random minibatches with the optimizer on the server.",
    )
    consistency: str = option(
        "exclusive",
        shown="exclusive for blocks, async for minibatch",
        metavar="MODE",
        help="Blocks: exclusive (the same bytes for any number of workers) or async (no waiting). Minibatch: async, "
        "sync (one step of all workers), ssp:S (no worker more than S steps ahead), softsync:N (N steps a round).",
    )
    dim: int = option(256, range=between(1, 4096), help="Numbers in a vector.")
    tied: bool = option(
        False, flags=("--tied/--untied",), help="One vector a word, or word and context vectors, summed."
    )
    optimizer: str = option("adagrad-row", per={"tensors": "adam"}, choices=OPTIMIZERS, help="How steps are scaled.")
    epochs: int = option(16, per={"sgns": 24}, range=between(1, 1_000_000), help="Passes over the whole matrix.")
    local_epochs: int = option(
        1,
        shown=f"{LOCAL_EPOCHS} for glove if --epochs is even, else 1",
        range=between(1, 1_000_000),
        help="Blocks: epochs in a row for which a block is trained; more send fewer rows. Must divide --epochs.",
    )
    learning_rate: float = option(
        0.4, per={"tensors": 1e-3}, range=_RATE, flags=("--learning-rate", "--lr"), help="Learning rate at the start."
    )
    final_rate: float = option(
        0.1, per={"tensors": 0.0}, range=_AMOUNT, help="Fraction of the rate that is left at the end."
    )
    x_max: float = option(
        8.0, per={"sgns": 20.0}, range=POSITIVE, help="Co-occurrence count from which the weight is 1."
    )
    alpha: float = option(0.6, per={"sgns": 0.85}, range=_AMOUNT, help="Exponent of the weight.")
    negatives: float = option(25.0, range=POSITIVE, help="Skip-gram: negatives for each entry.")
    sample: float = option(
        1e-4,
        range=POSITIVE,
        help="Skip-gram: words that make up more than this fraction of the text are thinned out; 1 thins out none.",
    )
    export: str = option(
        "sum",
        choices=EXPORTS,
        help="Vectors of an untied model in vectors.npy: word and context vectors summed, or word vectors only.",
    )
    spectrum: float = option(
        0.8,
        per={"sgns": 0.6},
        range=_AMOUNT,
        help="Power of the singular values in vectors.npy: below 1, directions that most words share count less; 1 is "
        "as trained.",
    )
    subwords: float = option(
        1.2,
        per={"sgns": 0.7, "tensors": 0.0},
        range=_AMOUNT,
        metavar="K",
        help="Weight, in vectors.npy, of the vector composed of a word's character n-grams, relative to its own; "
        "n-grams also give vectors to unseen words. 0 disables them.",
    )
    init_scale: float = option(0.5, range=_AMOUNT, help="Vectors start uniform in +-this / sqrt(dim).")
    initial_accumulator: float = option(
        3.0, per={"sgns": 1.0, "tensors": 0.0}, range=_AMOUNT, help="AdaGrad's state at the start."
    )
    batch_size: int = option(64, range=between(1, 1 << 20), help="Entries in a minibatch.")
    mean_gradient: bool = option(
        False,
        per={"tensors": True},
        flags=("--mean-gradient/--sum-gradient",),
        help="Minibatch: the gradient of the mean loss of a batch, or of its sum.",
    )
    backup: int = option(
        0, range=between(0, 1023), metavar="K", help="Sync: a step does not wait for its K slowest gradients."
    )
    staleness: str = option(
        "none",
        metavar="POLICY",
        help="Minibatch: weight of a gradient of old rows: none, inverse (1/age), hyperbolic:B (half at age B), gap "
        "(by how far the rows moved), dc:L (corrected by L times that).",
    )
    clock: str = option("row", per={"tensors": "table"}, choices=CLOCKS, help="Age counts changes of the row, or all.")
    rate_shape: str = option("linear", per={"tensors": "constant"}, choices=RATE_SHAPES, help="How the rate falls.")
    warmup: float = option(0.0, range=FRACTION, help="Fraction of the training in which the rate rises from zero.")
    momentum: float = option(0.9, range=FRACTION, help="For momentum and nesterov: decay of the velocity.")
    beta1: float = option(0.9, range=FRACTION, help="For adam and adamw: decay of the mean gradient.")
    beta2: float = option(0.999, range=FRACTION, help="For adam and adamw: decay of the mean squared gradient.")
    epsilon: float = option(1e-8, range=_AMOUNT, help="For adam and adamw: added to the root.")
    weight_decay: float = option(
        0.0,
        range=_AMOUNT,
        help="Minibatch: this times a parameter is added to its gradient; for adamw, taken off the parameter.",
    )
    clip_norm: float = option(0.0, range=_AMOUNT, help="Tensors: longest gradient that is pushed; 0 is no limit.")
    steps: int = option(0, range=between(0, 1 << 53), help="Tensors: updates until training is complete; 0 is endless.")
    bfloat16: bool = option(
        True,
        flags=("--bfloat16/--float32",),
        help="Blocks: send rows as bfloat16, in half the bytes, or as the server has them, which is float32.",
    )
    seed: int = option(0, range=between(0, (1 << 63) - 1), help="Fixes initial values and every order.")

    @classmethod
    def from_flags(cls, consistency: str | None = None, **flags: Any) -> Self:
        """Return options from a command's flags; None and missing ones get defaults, which depend on other options."""
        given = {name: value for name, value in flags.items() if value is not None}
        values = {**DEFAULTS[given.get("objective", cls.objective)], **given}
        objective, schedule, epochs = (
            values.get(name, getattr(cls, name)) for name in ("objective", "schedule", "epochs")
        )
        values.setdefault("local_epochs", usual_local_epochs(objective, schedule, epochs))
        return cls(consistency=consistency or next(iter(CONSISTENCIES[schedule])), **values)

    @classmethod
    def of_tensors(cls, **options: Any) -> Self:
        """Return the options of a dense model; those not given have the defaults of the objective `tensors`."""
        return cls.from_flags(objective="tensors", **options)

    @property
    def sweeps(self) -> int:
        """Return how often the strip of each partition is trained, each time for `local_epochs` epochs."""
        return self.epochs // self.local_epochs

    @property
    def wire_bytes(self) -> int:
        """Return how many bytes each number of a row takes in a message."""
        return 2 if self.sends_bfloat16 else 4

    @property
    def sends_bfloat16(self) -> bool:
        """Return whether workers pull rows, and push their differences, as bfloat16."""
        return self.bfloat16 and self.schedule == "blocks"

    def as_message(self) -> dict[str, Scalar]:
        """Return the options as plain values, for a Welcome message."""
        return dict(vars(self))

    @classmethod
    def from_message(cls, options: dict[str, Scalar]) -> Self:
        """Return options that were sent or saved; UsageError unless keys and types are exactly those of this class.

        A missing key means another program version, which trained without that option: a default could be wrong.
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
        """Return the learning rate at `progress` (0 to 1): warm-up, then decay to `final_rate` x `learning_rate`."""
        done = min(max(progress, 0.0), 1.0)
        fallen = {"linear": done, "cosine": (1.0 - math.cos(math.pi * done)) / 2.0, "constant": 0.0}[self.rate_shape]
        risen = min(done / self.warmup, 1.0) if self.warmup else 1.0
        return self.learning_rate * risen * (1.0 - (1.0 - self.final_rate) * fallen)

    def rate_of_step(self, step: int) -> float:
        """Return the learning rate for update `step` (from 0) of a dense model."""
        return self.rate((step + 1) / self.steps if self.steps else 0.0)

    def conflicts(self) -> list[str]:
        """Return the conflicts between options, and the errors of modes that cannot be parsed."""
        problems = []
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
        if self.schedule == "blocks" and self.optimizer in OPTIMIZERS and self.optimizer not in BLOCK_OPTIMIZERS:
            problems.append(f"blocks are trained with {', '.join(BLOCK_OPTIMIZERS)}: {self.optimizer} needs minibatch")
        if self.schedule != "blocks" and self.local_epochs != 1:
            problems.append("local-epochs is for blocks: it must be 1 for minibatches")
        elif self.local_epochs >= 1 and self.epochs % self.local_epochs:
            more = self.epochs + self.local_epochs - self.epochs % self.local_epochs
            problems.append(
                f"epochs must be a multiple of local-epochs, which is {self.local_epochs}: {more}, not {self.epochs}"
            )
        if self.schedule == "blocks" and self.weight_decay:
            problems.append("blocks are trained without weight-decay: it needs minibatch")
        if self.objective != "tensors" and (self.clip_norm or self.steps):
            problems.append("clip-norm and steps are for the objective tensors")
        of_objective = {"sgns": self._conflicts_of_sgns, "tensors": self._conflicts_of_tensors}
        return problems + of_objective.get(self.objective, list)()

    def conflicts_with_dataset(self) -> list[str]:
        """Return why these options cannot be used to train on a DATASET; empty if they can."""
        if self.objective != "tensors":
            return []
        return [
            "the objective tensors has no DATASET, and workers of your own: begin with `glovewire server --objective "
            "tensors`, or `glovewire.serve` (docs/dense.md)"
        ]

    def _conflicts_of_tensors(self) -> list[str]:
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

    def _conflicts_of_sgns(self) -> list[str]:
        """Return the options that the only kernel for skip-gram does not support."""
        only = {"schedule": "blocks", "optimizer": "adagrad-row", "tied": False}
        return [
            f"{spoken(name)} must be {value} for the objective sgns, not {getattr(self, name)}"
            for name, value in only.items()
            if getattr(self, name) != value
        ]


DEFAULTS: dict[str, dict[str, Scalar]] = {
    objective: {
        known.name: about.per[objective] for known, about in options_of(TrainingOptions) if objective in about.per
    }
    for objective in OBJECTIVES
}
"""For each objective, its defaults that differ from those of TrainingOptions, by field name."""
