"""Define the options of `glovewire worker`. No I/O."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from glovewire.common.addresses import check_address, check_place
from glovewire.common.option import SECONDS, Config, SharedOptions, like, option
from glovewire.common.protocol.schema import NAME_RULE, is_name

from .simulated_latency import parse_latency


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(Config):
    """Options of `glovewire worker`."""

    dataset: Path | None = option(None, argument=True, check=check_place)
    servers: tuple[str, ...] = option(
        ("tcp://127.0.0.1:5555",),
        flags=("--server",),
        check=check_address,
        metavar="tcp://HOST:PORT",
        help="Address of a server; repeat it for every shard, in order.",
    )
    name: str = option(
        "",
        shown="host and process id",
        help="Name of this worker on the server and in the monitor; with --keys after the key's name and a dot.",
    )
    timeout_s: float = option(
        30.0,
        flags=("--timeout",),
        range=SECONDS,
        metavar="SECONDS",
        help="Give up on a server that is silent for longer; a server that has not started yet is waited for.",
    )
    latency: str = option(
        "0ms",
        check=parse_latency,
        metavar="TIME",
        help="Simulated latency of each push: 20ms, 20ms..80ms, exp:50ms or pareto:20ms.",
    )
    cache: Path = like(SharedOptions, "cache")
    cache_bytes: int = like(SharedOptions, "cache_bytes")
    keys: Path | None = like(SharedOptions, "keys")
    prometheus: int | None = like(SharedOptions, "prometheus")
    verify: bool = like(SharedOptions, "verify")
    log_level: str = like(SharedOptions, "log_level")

    def conflicts(self) -> list[str]:
        """Return the problems that checks of single options do not find."""
        problems = [] if self.servers else ["at least one --server is needed"]
        return problems + ([] if is_name(self.full_name) else [NAME_RULE])

    @property
    def full_name(self) -> str:
        """Return the worker's name: `name`, or host and process id. With keys, a session's name has theirs in front."""
        return self.name or f"{socket.gethostname()[:40]}-{os.getpid()}"
