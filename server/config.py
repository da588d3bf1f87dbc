"""Define the options of `glovewire server` and the identity of a shard. No I/O."""

import re
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.addresses import check_address, check_place, check_url, is_loopback
from glovewire.common.errors import UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import SECONDS, Config, SharedOptions, at_least, between, like, option

from .tokens import Tokens

MAX_SHARDS = 256
DEFAULT_PATIENCE = 4.0
"""Leases of silence for which a worker may hold a block that others wait for, unless `--patience` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
    """Options of `glovewire server`, for shard `shard` of `shards`."""

    dataset: Path | None = option(None, argument=True, check=check_place)
    out: Path = option(help="Run folder: checkpoints, metrics and vectors.")
    bind: str = option(
        "tcp://127.0.0.1:5555", check=check_address, help="Where workers connect; port 0 takes a free one."
    )
    publish: str = option(
        "tcp://127.0.0.1:5556",
        check=check_address,
        help="Where losses and events are published, for `glovewire monitor`.",
    )
    shard: int = 0
    shards: int = 1
    peers: tuple[str, ...] = option(
        (),
        flags=("--peer",),
        check=check_address,
        metavar="tcp://HOST:PORT",
        help="For shards that share no folder: where they reach each other; repeat it for every shard, in order. "
        "RUN is then a folder of this shard's own, with copies of the others' checkpoints.",
    )
    checkpoint_every: int = option(
        0, range=at_least(0), metavar="EPOCHS", help="Checkpoint after this many epochs (tensors: updates); 0: never."
    )
    checkpoints: str | None = option(
        None,
        check=check_url,
        metavar="URL",
        help="Keep this shard's checkpoints in a store, too; a shard restarted on an empty disk downloads them.",
    )
    keep_checkpoints: int = option(
        3,
        range=at_least(0, "at least 1, or 0 to keep all"),
        metavar="N",
        help="Keep the last N automatic checkpoints, and the last N requested ones; 0 keeps all.",
    )
    lease_s: float = option(
        30.0,
        flags=("--lease",),
        range=SECONDS,
        metavar="SECONDS",
        help="A worker that is silent for longer is lost; its blocks go to others.",
    )
    patience_s: float = option(
        0.0,
        flags=("--patience",),
        range=at_least(0),
        metavar="SECONDS",
        help="A worker that holds a block, or is to bring a gradient or a model's first values, while the others wait "
        "for it is lost after this time, even if it sends heartbeats; 0 is four times the lease.",
    )
    workers: int = option(
        1,
        range=between(1, 1024),
        help="Number of workers to expect. Synchronous minibatches (sync, ssp, softsync) begin once they have joined; "
        "a finished run waits up to one lease for any that have not.",
    )
    cache: Path = like(SharedOptions, "cache")
    cache_bytes: int = like(SharedOptions, "cache_bytes")
    keys: Path | None = like(SharedOptions, "keys")
    prometheus: int | None = like(SharedOptions, "prometheus")
    insecure: bool = option(
        False, help="Without --keys, allow addresses that other machines can reach: they may all connect."
    )
    resume: bool = option(False, help="Resume from the newest checkpoint in the run folder, with its options.")
    recover: bool = option(
        False,
        help="For a shard that a supervisor restarts: rejoin the run in RUN from its newest checkpoint.",
    )
    init: Path | None = option(
        None, check=check_place, help="Run folder, or its URL, whose vectors initialise the words."
    )
    verify: bool = like(SharedOptions, "verify")
    hold: bool = option(False, hidden=True, help="After every sweep, wait until an observer has pulled the rows.")
    join: bool = option(False, hidden=True, help="The run folder was prepared by the parent process.")
    log_level: str = like(SharedOptions, "log_level")
    options: TrainingOptions

    @property
    def block_s(self) -> float:
        """Return for how many seconds a worker may hold a block that the others wait for."""
        return self.patience_s or DEFAULT_PATIENCE * self.lease_s

    @property
    def open_to_all(self) -> list[str]:
        """Return the addresses that other machines can reach without a key."""
        listening = (self.bind, self.publish, *self.peers[self.shard : self.shard + 1])
        return [] if self.keys else [address for address in listening if not is_loopback(address)]

    @property
    def downloads(self) -> bool:
        """Return whether this shard gets the dataset of its run from shard 0."""
        return self.dataset is None and self.options.objective != "tensors" and bool(self.peers) and self.shard > 0

    def conflicts(self) -> list[str]:
        """Return one message for every conflict between options."""
        problems = []
        if not 0 <= self.shard < self.shards <= MAX_SHARDS:
            problems.append(f"shard must be K/S with 0 <= K < S <= {MAX_SHARDS}, not {self.shard}/{self.shards}")
        if self.peers and len(self.peers) != self.shards:
            problems.append(f"--peer must be given for each of the {self.shards} shards, not {len(self.peers)} times")
        if not self.insecure:
            problems += [
                f"{address} can be reached from other machines: give --keys, or --insecure to let any of them connect"
                for address in self.open_to_all
            ]
        if self.resume and self.recover:
            problems.append("--resume needs a checkpoint and --recover does without: give one of them")
        if self.resume and self.init is not None:
            problems.append("--resume continues from a checkpoint: it cannot be given with --init")
        of_tensors = self.options.objective == "tensors"
        if of_tensors and self.dataset is not None:
            problems.append("the objective tensors takes no DATASET: workers bring the model")
        if not of_tensors and self.dataset is None and not self.downloads:
            problems.append("a DATASET is needed, or --objective tensors (with --peer, shards above 0 need none)")
        if of_tensors and self.init is not None:
            problems.append("--init is for word vectors: the first worker brings the values of tensors")
        return problems


@dataclass(frozen=True)
class Identity:
    """What does not change during a generation of a shard; `workers` is the number to expect.

    `dataset` is the checksum of the dataset, `asked` as in `Generation`, `name` and `dataset_name` are the names of
    the folders, for people.
    """

    run: str
    shard: int
    shards: int
    dataset: str
    lease_s: float
    tokens: Tokens
    checkpoint_rounds: int = 0
    generation: int = 0
    asked: str = ""
    workers: int = 1
    name: str = ""
    dataset_name: str = ""


def parse_shard(text: str) -> tuple[int, int]:
    """Return the two numbers of `K/S`; UsageError for any other text."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if match is None:
        raise UsageError(f"shard must look like 0/1, not {text[:80]!r}")
    return int(match[1]), int(match[2])
