"""Define the options of `glovewire train`, and the options of the processes that it starts. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.addresses import absolute, check_place
from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import Config, SharedOptions, at_least, between, like, option
from glovewire.server.config import ServerConfig
from glovewire.worker.config import WorkerConfig

ANY_PORT = "tcp://127.0.0.1:0"


@dataclass(frozen=True, kw_only=True)
class LocalConfig(Config):
    """Options of `glovewire train`; worker n gets element n of `latency`, or the last one if there are fewer."""

    dataset: Path = option(argument=True, check=check_place)
    out: Path = option(check=check_place, help="Run folder, or the URL to upload it to at the end; must not exist yet.")
    workers: int = option(range=between(1, 256), shown="one per processor core", help="Worker processes.")
    servers: int = option(1, range=between(1, 256), help="Server shards.")
    store: str = option(
        "server",
        choices=("server", "shared", "local"),
        help="Where parameters live: in server shards, memory that all workers share (Hogwild), or a single process.",
    )
    launcher: str = option("local", choices=("local", "ray"), help="Start the processes directly, or through Ray.")
    address: str | None = option(
        None, metavar="ADDRESS", help="Ray cluster, such as auto; without it, Ray runs on this machine only."
    )
    checkpoint_every: int = like(ServerConfig, "checkpoint_every")
    keep_checkpoints: int = like(ServerConfig, "keep_checkpoints")
    resume: bool = like(ServerConfig, "resume")
    init: Path | None = like(ServerConfig, "init")
    watch: tuple[Path, ...] = option(
        (), metavar="FILE", help="Similarity set to score the vectors on while training; repeat for more."
    )
    patience: int = option(
        0,
        range=at_least(0),
        metavar="EPOCHS",
        help="Stop once the mean of the --watch scores has not risen for this many epochs; 0: never.",
    )
    keep_best: bool = option(False, help="Keep the vectors of the epoch with the best mean of the --watch scores.")
    keys: Path | None = like(SharedOptions, "keys")
    latency: tuple[str, ...] = like(
        WorkerConfig,
        "latency",
        default=(),
        help="Simulated latency of pushes: 20ms, 20ms..80ms, exp:50ms or pareto:20ms; one per worker, in order; "
        "the last is for all remaining workers.",
    )
    web: int | None = option(
        None,
        range=between(0, 65535),
        bare=0,
        metavar="[PORT]",
        help="Serve the dashboard on this machine while training; without PORT, on a free port, which is printed.",
    )
    progress: bool = option(True, flags=("--progress/--quiet",), help="Show progress on stderr.")
    verbose: bool = option(False, help="Log every detail of servers and workers in RUN/logs.")
    options: TrainingOptions

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        options, store, on_ray = self.options, f"--store {self.store}", self.launcher == "ray"
        other = self.store != "server"
        in_step = options.schedule == "minibatch" and options.consistency != "async"
        judged, web = self.patience or self.keep_best, self.web is not None
        problems = {
            "--address is for --launcher ray": self.address and not on_ray,
            "--launcher ray runs shard 0 on this machine, which must be part of the cluster: give auto or HOST:PORT, "
            f"not --address {self.address}": on_ray and (self.address or "").startswith("ray://"),
            f"--launcher ray starts servers: it goes with --store server, not {self.store}": on_ray and other,
            "--watch needs --launcher local": on_ray and self.watch,
            f"--store local is one process: use --workers 1 or --store shared, not {self.workers} workers": (
                self.store == "local" and self.workers != 1
            ),
            f"--servers are shards of a server, and {store} has none": other and self.servers > 1,
            f"{store} keeps no checkpoints to resume from": other and self.resume,
            f"--latency is that of a network, and {store} has none": other and self.latency,
            f"--keys protects connections, and {store} has none": other and self.keys is not None,
            f"{store} never waits: --consistency and --staleness need a server": (
                other and (in_step or options.staleness != "none")
            ),
            "--patience and --keep-best judge by scores: give --watch FILE": judged and not self.watch,
            "--patience and --keep-best score whole epochs: they need --schedule blocks": (
                judged and options.schedule != "blocks"
            ),
            "--web needs --launcher local": web and on_ray,
            f"--web shows what a server publishes, and {store} has none: see `monitor --replay`": web and other,
            f"--watch scores what a server holds, not {store}": other and self.watch,
        }
        return options.conflicts_with_dataset() + [problem for problem, found in problems.items() if found]

    def of_servers(self, **others: Any) -> ServerConfig:
        """Return the options of every server of this run; `others` are options of `ServerConfig` to add."""
        return ServerConfig(
            dataset=absolute(self.dataset),
            out=self.out.resolve(),
            options=self.options,
            workers=self.workers,
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            init=self.init and absolute(self.init),
            keys=self.keys and self.keys.resolve(),
            verify=False,
            log_level=self._log_level,
            hold=bool(self.watch) and self.options.schedule == "blocks",
            **others,
        )

    def of_workers(self, **others: Any) -> WorkerConfig:
        """Return the options that all workers of this run share; `others` are options of `WorkerConfig` to add."""
        return WorkerConfig(
            dataset=absolute(self.dataset),
            keys=self.keys and self.keys.resolve(),
            verify=False,
            log_level=self._log_level,
            **others,
        )

    @property
    def _log_level(self) -> str:
        return "debug" if self.verbose else "info"

    def of_worker(self, rank: int, addresses: Sequence[str]) -> list[str]:
        """Return the command-line arguments specific to worker `rank`: its name, server addresses and latency."""
        latency = ["--latency", self.latency[min(rank, len(self.latency) - 1)]] if self.latency else []
        return ["--name", f"w{rank}", *(word for address in addresses for word in ("--server", address)), *latency]
