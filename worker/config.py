"""What one worker process is told: a frozen record, checked whole before anything starts."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.errors import UsageError, require
from glovewire.common.protocol.schema import NAME_RULE, is_name
from glovewire.common.transport.sockets import check_address

from .simulated_latency import Latency


@dataclass(frozen=True)
class WorkerConfig:
    """Options of `glovewire worker`; `timeout_s` bounds the silence of a server, also before its first answer."""

    dataset: Path
    servers: tuple[str, ...]
    name: str = ""
    timeout_s: float = 30.0
    verify: bool = True
    keys: Path | None = None
    latency: str = "0ms"
    prometheus: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, all problems in one UsageError."""
        for address in self.servers:
            check_address(address)
        problems = []
        if not self.servers:
            problems.append("at least one --server is needed")
        if not is_name(self.full_name):
            problems.append(NAME_RULE)
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            problems.append(f"timeout must be a positive number of seconds, not {self.timeout_s}")
        try:
            Latency.parse(self.latency)
        except UsageError as error:
            problems.append(str(error))
        require(problems)

    @property
    def full_name(self) -> str:
        """The name on the stream: the one given, or host and process id."""
        return self.name or f"{socket.gethostname()[:40]}-{os.getpid()}"
