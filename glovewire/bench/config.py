"""Define the options of `glovewire bench`. No I/O."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.option import Config, Range, at_least, between, like, option
from glovewire.preprocess.config import PreprocessConfig

from ..launch.config import LocalConfig

ROW: dict[str, Any] = {
    "schedule": "minibatch", "consistency": "async", "tied": True, "optimizer": "adagrad-row", "batch_size": 1,
    "epochs": 1_000_000,
}  # fmt: skip
"""Fixed options of `bench wire`, so that versions can be compared; the epochs keep the run from completing."""
NULL_ROWS = 32
"""Rows that a null step pulls and pushes; the smallest allowed table."""
MAX_ROWS, MAX_BYTES = 4_000_000, 8 << 30
"""Limits of each of the two tables; one of them is on a server with encrypted connections."""


@dataclass(frozen=True, kw_only=True)
class WireConfig(Config):
    """Options of `glovewire bench wire`."""

    rows: int = option(32_768, range=at_least(NULL_ROWS), help="Rows of the table.")
    dim: int = like(
        TrainingOptions, "dim", help="Numbers in a vector; a row also holds its bias and the optimizer's state."
    )
    sizes: tuple[int, ...] = option((1, 32, 256, 1024, 4096), flags=("--size",), help="Rows in a message.")
    windows: tuple[int, ...] = option((1, 8), flags=("--window",), range=between(1, 64), help="Messages in flight.")
    repeats: int = option(5, range=at_least(1), help="Repeats of every measurement.")
    seconds: float = option(
        0.15, range=Range("between 0 and 60", lambda value: 0 < value <= 60), help="Time for one figure of one repeat."
    )
    seed: int = option(0, range=between(0, (1 << 64) - 1, "between 0 and 2^64 - 1"), help="Seed for drawing rows.")

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        problems = []
        if not self.sizes or not all(1 <= size <= self.rows for size in self.sizes):
            problems.append(f"rows in a message must be between 1 and the table's {self.rows}")
        if 1 <= self.dim <= 4096:
            most = min(MAX_ROWS, MAX_BYTES // (4 * RowLayout.of(self.options).width))
            if self.rows > most:
                problems.append(f"rows must be at most {most:,} of {self.dim} numbers, not {self.rows:,}")
        return problems

    @property
    def options(self) -> TrainingOptions:
        """Return the training options of the server and of its worker."""
        return TrainingOptions(**ROW, dim=self.dim)


@dataclass(frozen=True, kw_only=True)
class TrainBenchConfig(Config):
    """Options of `glovewire bench train`."""

    dataset: Path = option(argument=True)
    workers: int = option(range=at_least(1), shown="2, 1 for --store local by itself", help="Worker processes.")
    servers: int = like(LocalConfig, "servers")
    store: str = like(LocalConfig, "store", help="Where parameters live.")
    beside: tuple[str, ...] = like(
        LocalConfig, "store", default=(), help="Another store to compare with; repeat for more."
    )
    repeats: int = option(5, range=at_least(1), help="Trainings of each store; they take turns.")
    options: TrainingOptions

    @property
    def is_one_process(self) -> bool:
        """Return whether only the local store is measured, which trains in one process."""
        return self.store == "local" and not self.beside

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        problems = self.options.conflicts_with_dataset()
        if self.store in self.beside:
            problems.append(f"store {self.store} cannot be compared with itself (--beside)")
        if self.is_one_process and self.workers > 1:
            problems.append(f"--store local is one process, so --workers {self.workers} needs --beside")
        return problems


@dataclass(frozen=True, kw_only=True)
class DenseBenchConfig(Config):
    """Options of `glovewire bench dense`."""

    workers: int = option(2, range=at_least(1), help="Worker processes.")
    batch: int = option(128, range=at_least(1), help="Images of one gradient.")
    seconds: float = option(5.0, range=at_least(0.1), help="Time for one figure of one repeat.")
    repeats: int = option(3, range=at_least(1), help="Repeats of every measurement.")
    shards: int = option(1, range=at_least(1), help="Server shards.")


@dataclass(frozen=True, kw_only=True)
class PreprocessBenchConfig(Config):
    """Options of `glovewire bench preprocess`."""

    corpus: Path = option(argument=True, path={"exists": True, "dir_okay": False})
    vocab_size: int = like(PreprocessConfig, "vocab_size", help="Words of the vocabulary.")
    window: int = like(PreprocessConfig, "window", help="Longest distance of a pair.")
    processes: int = like(PreprocessConfig, "processes")
    memory: int = like(PreprocessConfig, "memory")
    runs: int = option(1, range=at_least(1), help="Runs; the fastest counts.")
    sample: int = option(20_000, range=at_least(1), help="Lines for the comparison of tokenisers.")

    def of_run(self, out: Path) -> PreprocessConfig:
        """Return the preprocessing options of one run, which writes its dataset to `out`."""
        shared = {name: getattr(self, name) for name in ("vocab_size", "window", "processes", "memory")}
        return PreprocessConfig(corpus=(str(self.corpus),), out=out, **shared)


@dataclass(frozen=True, kw_only=True)
class ScaleBenchConfig(Config):
    """Options of `glovewire bench scale`."""

    corpus: str = option(argument=True)
    sizes: tuple[int, ...] = like(
        PreprocessConfig,
        "vocab_size",
        default=(2_000, 8_000, 32_000, 100_000, 400_000),
        flags=("--vocab-size",),
        help="Words in a vocabulary; repeat for more.",
    )
    work: Path | None = option(
        None, metavar="DIR", shown="a temporary folder", help="Keep the datasets in this folder, and use those in it."
    )
    workers: int = option(2, range=at_least(1), help="Worker processes; threads of the peer.")
    shared: bool = option(False, help="Compare with --store shared.")
    peer: Path | None = option(None, metavar="DIR", help="Compare with the program `glove` in DIR or DIR/build.")
    peer_epochs: int = option(1, range=at_least(1), help="Epochs of each of the peer's trainings.")
    repeats: int = option(1, range=at_least(1), help="Trainings of each size and store; they take turns.")
    plot: Path | None = option(None, metavar="FILE.png", help="Draw the figures (.png or .svg).")
    window: int = like(PreprocessConfig, "window", help="Longest distance of a pair.")
    processes: int = like(PreprocessConfig, "processes", help="Processes of preprocessing.")
    memory: int = like(PreprocessConfig, "memory", help="Limit for all processes of preprocessing together.")
    options: TrainingOptions

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        problems = self.options.conflicts_with_dataset()
        if self.corpus == "-":
            problems.append("standard input (-) cannot be read once for each size: name a file")
        if self.peer is not None and self.options.objective != "glove":
            problems.append(f"--peer trains GloVe, not --objective {self.options.objective}")
        return problems

    def of_size(self, words: int, out: Path) -> PreprocessConfig:
        """Return the preprocessing options for a vocabulary of `words` words, whose dataset goes to `out`."""
        shared = {name: getattr(self, name) for name in ("window", "processes", "memory")}
        return PreprocessConfig(corpus=(self.corpus,), vocab_size=words, out=out, **shared)

    def of_training(self, dataset: Path) -> TrainBenchConfig:
        """Return the options of the trainings on one of the datasets."""
        return TrainBenchConfig(
            dataset=dataset,
            workers=self.workers,
            beside=("shared",) if self.shared else (),
            repeats=self.repeats,
            options=self.options,
        )
