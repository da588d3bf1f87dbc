"""What a preprocessing run is asked to do, checked as a whole, and how it divides its memory. Reads no files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import UsageError, require
from glovewire.common.storage.dataset import MAX_PARTITION_ROWS

TOKENIZERS = ("nltk", "whitespace")
WEIGHTINGS = ("distance", "uniform")
LONGEST_WINDOW = 15
_ROWS_PER_PARTITION = 4096
_FEWEST_PARTITIONS = 8
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# What Python, numpy and numba take before any data: once, and again for each process (mostly shared pages).
_BASE_BYTES = 160 << 20
_PROCESS_BYTES = 48 << 20
_LEAST_SHARE_BYTES = 64 << 20


@dataclass(frozen=True)
class PreprocessConfig:
    """All options of `glovewire preprocess`; `memory` in bytes, `partitions` None for the default."""

    corpus: tuple[str, ...]
    out: Path
    vocab_size: int = 32_000
    min_count: int = 1
    window: int = 5
    processes: int = 1
    memory: int = 4 << 30
    tokenizer: str = "nltk"
    lines: int | None = None
    text_column: str = "text"
    split: str = "train"
    partitions: int | None = None
    tile: int = 256
    seed: int = 0
    symmetric: bool = True
    weighting: str = "distance"
    resume: bool = False
    from_stanford: tuple[Path, Path] | None = None
    engine: str = "local"
    address: str | None = None

    def check(self) -> None:
        """Raise UsageError that names everything that is wrong."""
        least = _BASE_BYTES + self.processes * (_PROCESS_BYTES + _LEAST_SHARE_BYTES)
        rules = {
            "name a CORPUS (pydoc, a file, a folder, hf:NAME, or - for standard input)": self.corpus
            or self.from_stanford,
            "--address is for --engine ray": self.address is None or self.engine == "ray",
            "--from-stanford takes no CORPUS": not (self.corpus and self.from_stanford),
            "--vocab-size must be from 1 to 4000000": 1 <= self.vocab_size <= 4_000_000,
            "--min-count must be at least 1": self.min_count >= 1,
            f"--window must be from 1 to {LONGEST_WINDOW}": 1 <= self.window <= LONGEST_WINDOW,
            "--processes must be from 1 to 256": 1 <= self.processes <= 256,
            f"--tokenizer must be {' or '.join(TOKENIZERS)}": self.tokenizer in TOKENIZERS,
            f"--weighting must be {' or '.join(WEIGHTINGS)}": self.weighting in WEIGHTINGS,
            "--lines must be at least 1": self.lines is None or self.lines >= 1,
            "--partitions must be at least 1": self.partitions is None or self.partitions >= 1,
            "--tile must be from 1 to 65536": 1 <= self.tile <= MAX_PARTITION_ROWS,
            "--seed must not be negative": self.seed >= 0,
            f"--memory must be at least {-(-least >> 20)}MB for {self.processes} processes": self.memory >= least,
            "--resume cannot read standard input again": not (self.resume and "-" in self.corpus),
        }
        require([problem for problem, good in rules.items() if not good])

    @property
    def share(self) -> int:
        """Memory that each process may fill with data, in bytes."""
        return (self.memory - _BASE_BYTES) // self.processes - _PROCESS_BYTES

    @property
    def longest_line(self) -> int:
        """The longest line that is taken, in bytes: tokenising takes about thirty times its size."""
        return max(1 << 20, self.share // 32)

    def partitions_for(self, words: int) -> int:
        """The number of partitions of a vocabulary of `words`; UsageError if --partitions does not fit it."""
        if self.partitions is None:
            return default_partitions(words)
        if self.partitions > words or -(-words // self.partitions) > MAX_PARTITION_ROWS:
            raise UsageError(f"--partitions {self.partitions} does not fit a vocabulary of {words} words")
        return self.partitions


def default_partitions(words: int) -> int:
    """Partitions of a vocabulary of `words` when nobody says how many."""
    return max(-(-words // _ROWS_PER_PARTITION), min(_FEWEST_PARTITIONS, words))


def parse_memory(text: str) -> int:
    """`4GB`, `800M`, `1.5g` or a number of bytes, as bytes (K, M, G, T are powers of 1024); ValueError otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if not match:
        raise ValueError(f"{text!r} is not an amount of memory, such as 4GB")
    return int(float(match[1]) * _UNITS[match[2]])
