"""Define the options of `glovewire preprocess`, and how a run divides its memory. No I/O."""

import os
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.addresses import check_place
from glovewire.common.option import Config, at_least, between, key, option, options_of, parse_size
from glovewire.common.storage.dataset import MAX_PARTITION_ROWS, MAX_PARTITIONS, WIDE

from .tokens.tokenizers import make_tokenizer

LONGEST_WINDOW = 15
_OF_TEXT = {
    "vocab_size", "min_count", "window", "tokenizer", "sentences", "lowercase", "digits", "phrases", "lines",
    "text_column", "split", "weighting",
}  # fmt: skip
"""Options for reading and counting text; they do not apply to counts made by Stanford's GloVe."""

# Memory that Python, numpy and numba take before any data: once per run, and then for each process.
_BASE_BYTES = 160 << 20
_PROCESS_BYTES = 48 << 20
_LEAST_SHARE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig(Config):
    """Options of `glovewire preprocess`; `memory` in bytes."""

    corpus: tuple[str, ...] = option((), argument=True, path={}, check=check_place)
    out: Path = option(check=check_place, help="The dataset: a new folder, or a URL such as s3://bucket/data.")
    vocab_size: int = option(32_000, range=between(1, 4_000_000), help="Keep this many of the most frequent words.")
    min_count: int = option(1, range=at_least(1), help="Keep only words that occur at least this often.")
    window: int = option(5, range=between(1, LONGEST_WINDOW), help="Count pairs up to this distance, 1 to 15.")
    processes: int = option(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        range=between(1, 256),
        shown="cores",
        help="Worker processes.",
    )
    memory: int = option(4 << 30, parse=parse_size, shown="4GB", help="Limit for all processes together.")
    tokenizer: str = option(
        "nltk",
        check=make_tokenizer,
        metavar="NAME",
        help="nltk, whitespace (already tokenised), regex:PATTERN, or bpe:FILE of the tokenizers library.",
    )
    sentences: str = option(
        "punkt", choices=("punkt", "off"), help="punkt: split off full stops that end sentences (nltk only)."
    )
    lowercase: bool = option(True, flags=("--lowercase/--keep-case",), help="Lower-case the text, or keep its case.")
    digits: str = option("keep", choices=("keep", "zero"), help="zero: write each digit as 0.")
    phrases: int = option(0, range=between(0, 4), help="Join words into phrases such as new_york, in this many passes.")
    lines: int | None = option(None, range=at_least(1), help="Read at most this many lines.")
    text_column: str = option("text", help="Key or column that holds the text in jsonl, parquet and data sets.")
    split: str = option("train", help="Split of a Hugging Face data set to read.")
    partitions: int | None = option(
        None, range=between(1, MAX_PARTITIONS), shown="by size", help="Minimum number of vocabulary parts for training."
    )
    tile: int = option(256, range=between(1, MAX_PARTITION_ROWS // WIDE), help="Rows of a tile, inside a block.")
    seed: int = option(0, range=at_least(0), help="Seed of the permutation of the rows.")
    symmetric: bool = option(
        True, flags=("--symmetric/--left-only",), help="Count the words on both sides of a word, or only on its left."
    )
    weighting: str = option("distance", choices=("distance", "uniform"), help="Weight of a pair: 1/distance, or 1.")
    engine: str = option("local", choices=("local", "ray"), help="Run the processes directly, or through Ray.")
    address: str | None = option(
        None, metavar="ADDRESS", help="Ray cluster, such as auto; without it, Ray runs on this machine only."
    )
    resume: bool = option(False, help="Continue an interrupted run of the same command.")
    from_stanford: tuple[Path, Path] | None = option(
        None, metavar="COOC VOCAB", help="Use counts made by Stanford's GloVe instead of a CORPUS."
    )

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        least = _BASE_BYTES + self.processes * (_PROCESS_BYTES + _LEAST_SHARE_BYTES)
        rules = {
            "name a CORPUS (pydoc, a file, a folder, hf:NAME, or - for standard input)": self.corpus
            or self.from_stanford,
            "--address is for --engine ray": self.address is None or self.engine == "ray",
            "--from-stanford takes no CORPUS": not (self.corpus and self.from_stanford),
            f"--memory must be at least {-(-least >> 20)}MB for {self.processes} processes": self.memory >= least,
            "--resume cannot read standard input again": not (self.resume and "-" in self.corpus),
        }
        changed = [known for known, _ in options_of(type(self)) if getattr(self, known.name) != known.default]
        of_text = ", ".join(f"--{key(known)}" for known in changed if known.name in _OF_TEXT)
        rules[f"--from-stanford takes no {of_text}: Stanford's programs have counted the text already"] = not (
            self.from_stanford and of_text
        )
        return [problem for problem, good in rules.items() if not good]

    @property
    def splits_sentences(self) -> bool:
        """Return whether full stops that end sentences are split off inside lines."""
        return self.sentences == "punkt" and self.tokenizer == "nltk"

    @property
    def share(self) -> int:
        """Return the memory that each process may fill with data, in bytes."""
        return (self.memory - _BASE_BYTES) // self.processes - _PROCESS_BYTES

    @property
    def longest_line(self) -> int:
        """Return the maximum length of a line in bytes; tokenising a line takes about thirty times its size."""
        return max(1 << 20, self.share // 32)
