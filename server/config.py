"""What one server process is told: a frozen record, checked whole before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import UsageError, require
from glovewire.common.model.options import TrainingOptions
from glovewire.common.transport.sockets import check_address, is_loopback


@dataclass(frozen=True)
class ServerConfig:
    """Options of `glovewire server`; `checkpoint_every` counts epochs (of tensors updates), 0 is never.

    `keep_checkpoints` 0 keeps all. Minibatch modes that go in step begin when so many `workers` have joined.
    """

    dataset: Path | None
    out: Path
    options: TrainingOptions
    bind: str = "tcp://127.0.0.1:5555"
    publish: str = "tcp://127.0.0.1:5556"
    shard: int = 0
    shards: int = 1
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    lease_s: float = 30.0
    insecure: bool = False
    join: bool = False
    verify: bool = True
    resume: bool = False
    init: Path | None = None
    recover: bool = False
    keys: Path | None = None
    workers: int = 1
    prometheus: int | None = None

    @property
    def open_to_all(self) -> list[str]:
        """Addresses where anybody on other machines may connect."""
        return [] if self.keys else [at for at in (self.bind, self.publish) if not is_loopback(at)]

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        problems = []
        if not 0 <= self.shard < self.shards <= 256:
            problems.append(f"shard must be K/S with 0 <= K < S <= 256, not {self.shard}/{self.shards}")
        if not (math.isfinite(self.lease_s) and self.lease_s > 0):
            problems.append(f"lease must be a positive number of seconds, not {self.lease_s}")
        if not 1 <= self.workers <= 1024:
            problems.append(f"workers must be between 1 and 1024, not {self.workers}")
        if self.checkpoint_every < 0:
            problems.append("checkpoint-every must be at least 0 epochs")
        if self.keep_checkpoints < 0:
            problems.append("keep-checkpoints must be at least 1, or 0 to keep all")
        for address in (self.bind, self.publish):
            check_address(address)
            if not is_loopback(address) and not self.insecure and self.keys is None:
                problems.append(
                    f"{address} can be reached from other machines: give --keys, or say --insecure to let everybody in"
                )
        if self.resume and self.recover:
            problems.append("--resume needs a checkpoint and --recover does without: give one of them")
        if self.resume and self.init is not None:
            problems.append("--resume goes on from a checkpoint: it cannot be given with --init")
        of_tensors = self.options.objective == "tensors"
        if of_tensors and self.dataset is not None:
            problems.append("the objective tensors takes no DATASET: workers bring the model")
        if not of_tensors and self.dataset is None:
            problems.append("a DATASET is needed, or --objective tensors")
        if of_tensors and self.init is not None:
            problems.append("--init is for word vectors: the first worker brings the values of tensors")
        require(problems)


@dataclass(frozen=True)
class Identity:
    """What does not change while the server runs; so many `workers` will come."""

    run: str
    shard: int
    shards: int
    dataset: str
    lease_s: float
    checkpoint_rounds: int = 0
    generation: int = 0
    workers: int = 1

    @property
    def awaited(self) -> int:
        """Workers that a complete run waits for before it ends: shard 0 does, whose goodbye the others follow."""
        return 0 if self.shard else self.workers


def parse_shard(text: str) -> tuple[int, int]:
    """`K/S` as two numbers; UsageError otherwise."""
    shard, slash, shards = text.partition("/")
    if not (slash and text.isascii() and shard.isdecimal() and shards.isdecimal()):
        raise UsageError(f"shard must look like 0/1, not {text!r}")
    return int(shard), int(shards)
