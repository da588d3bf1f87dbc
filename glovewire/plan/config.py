"""Define the options of `glovewire plan`. No I/O."""

import re
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import Config, between, like, option

WORDS = 32_000
MOST_WORDS = 4_000_000
"""The limit of `glovewire preprocess`."""
MOST_PARTITIONS = 256
"""Largest number of partitions: the simulation visits every pair of them, so that more would take hours."""
SLOWEST_BIT_S, FASTEST_BIT_S = 1e3, 1e15


def bytes_per_second(bandwidth: str) -> float:
    """Return a bandwidth such as `100Mbit` in bytes per second; raise UsageError for another form."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kMGT])bit(?:/s)?", bandwidth, re.IGNORECASE)
    bits = float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[found[2].lower()] if found else 0.0
    if not SLOWEST_BIT_S <= bits <= FASTEST_BIT_S:
        raise UsageError(f"bandwidth must look like 100Mbit or 10Gbit, from 1kbit to 1000Tbit, not {bandwidth!r}")
    return bits / 8


@dataclass(frozen=True, kw_only=True)
class PlanConfig(Config):
    """Options of `glovewire plan`; refuses impossible values, and values that would take hours to simulate."""

    dataset: Path | None = option(None, argument=True)
    entries: float | None = option(
        None, range=between(1, 1e15, "between 1 and 1e15"), help="Entries of the full matrix, unless DATASET is given."
    )
    words: int | None = option(
        None, range=between(2, MOST_WORDS), shown=f"{WORDS}", help="Words in the vocabulary, unless DATASET is given."
    )
    dim: int = like(TrainingOptions, "dim")
    tied: bool = like(TrainingOptions, "tied")
    partitions: int | None = option(
        None, shown="those of the DATASET, or as preprocess makes them", help="Parts of the vocabulary."
    )
    workers: int = option(2, range=between(1, 1_000), help="Worker processes, each with a core and a link of its own.")
    servers: int | None = option(None, shown="as many as help", help="Shards, each with a link of its own.")
    bandwidth: str = option(
        "10Gbit", check=bytes_per_second, metavar="RATE", help="Speed of each link in each direction, such as 100Mbit."
    )
    round_trip: float = option(
        0.2,
        range=between(0, 60_000, "between 0 and 60,000 milliseconds"),
        metavar="MILLISECONDS",
        help="Time of a message from a worker to a shard and back.",
    )
    kernel_rate: float | None = option(
        None,
        range=between(1, 1e12, "between 1 and 1e12 entries a second"),
        metavar="ENTRIES/S",
        shown="measured on this machine, in a second or two",
        help="Entries that one worker trains per second.",
    )
    epochs: int = like(TrainingOptions, "epochs", per={})
    local_epochs: int | None = like(TrainingOptions, "local_epochs", default=None)

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        problems = []
        if self.dataset is None and self.entries is None:
            problems.append("give a DATASET, or --entries")
        given = {"words": self.words, "entries": self.entries}
        twice = [name for name, value in given.items() if value is not None and self.dataset is not None]
        if twice:
            left_out = " and ".join(f"--{name}" for name in twice)
            problems.append(f"a DATASET tells its {' and '.join(twice)}: leave out {left_out}")
        if self.words is None or not 2 <= self.words <= MOST_WORDS:
            return problems
        most = min(self.words, MOST_PARTITIONS)
        if self.partitions is not None and not 1 <= self.partitions <= most:
            problems.append(
                f"partitions must be between 1 and {most} for {self.words:,} words, not {self.partitions}: "
                "the simulation visits every pair of them"
            )
        if self.servers is not None and not 1 <= self.servers <= most:
            problems.append(f"servers must be between 1 and {most}, not {self.servers}")
        return problems
