"""Define the options of `glovewire monitor`. No I/O."""

from dataclasses import dataclass
from pathlib import Path

from glovewire.common.option import SECONDS, Config, SharedOptions, at_least, between, like, option


@dataclass(frozen=True, kw_only=True)
class MonitorConfig(Config):
    """Options of `glovewire monitor`: `addresses` of a running server, or finished runs to `replay`."""

    addresses: tuple[str, ...] = option((), argument=True, metavar="RUN|tcp://HOST:PORT...")
    web: int | None = option(
        None,
        range=between(0, 65535),
        bare=0,
        metavar="[PORT]",
        help="Serve a live dashboard until Ctrl-C; without PORT, on a free port, which is printed.",
    )
    linger: float | None = option(
        None,
        range=at_least(0, "a number of seconds, at least 0"),
        metavar="SECONDS",
        shown="until Ctrl-C",
        help="End --web this long after the run.",
    )
    host: str = option("127.0.0.1", help="Where --web and --prometheus listen; 0.0.0.0 is everywhere.")
    allow_host: tuple[str, ...] = option(
        (),
        metavar="NAME",
        help="A host name in the addresses of --web, in addition to localhost and this machine's; may be repeated.",
    )
    tensorboard: Path | None = option(None, path={"file_okay": False}, metavar="DIR", help="Write scalars.")
    run: Path | None = option(
        None,
        metavar="RUN",
        help="With --tensorboard: the run's folder on this machine, whose vectors go to the projector at the end.",
    )
    prometheus: int | None = like(SharedOptions, "prometheus", help="Serve metrics to Prometheus.")
    log: Path | None = option(
        None, path={"dir_okay": False}, metavar="FILE.jsonl", help="Append every sample, one JSON object a line."
    )
    plot: Path | None = option(
        None,
        path={"dir_okay": False},
        metavar="FILE.png",
        help="At the end, draw the losses (.png or .svg); several --replay are compared.",
    )
    replay: tuple[Path, ...] = option((), metavar="RUN", help="Show a finished run; may be repeated.")
    keys: Path | None = like(SharedOptions, "keys")
    timeout: float = option(
        120.0,
        range=SECONDS,
        metavar="SECONDS",
        help="Give up when one address is silent for this long after the start, or all of them later on.",
    )

    def conflicts(self) -> list[str]:
        """Return a message for each combination of options that cannot work."""
        of_web = {"linger": self.linger is not None, "allow-host": bool(self.allow_host)}
        if self.web is None and any(of_web.values()):
            return [f"--{name} is an option of --web: give both" for name, is_given in of_web.items() if is_given]
        if self.replay:
            live = {"prometheus": self.prometheus, "log": self.log, "run": self.run}
            problems = [
                f"--{name} needs a running server, not --replay" for name, value in live.items() if value is not None
            ]
            if self.tensorboard is not None and len(self.replay) > 1:
                problems.append("--tensorboard takes one --replay at a time: give each run a folder of its own")
            return problems + (["give either addresses or --replay"] if self.addresses else [])
        if self.run is not None and self.tensorboard is None:
            return ["--run names the run whose vectors go to --tensorboard: give both"]
        if not self.addresses:
            return ["give a run folder, or the publish address of a server, such as tcp://127.0.0.1:5556"]
        return []
