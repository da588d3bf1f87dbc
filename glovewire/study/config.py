"""Define the options of `glovewire study speedup`. No I/O."""

from dataclasses import dataclass
from pathlib import Path

from glovewire.common.model.options import TrainingOptions
from glovewire.common.option import SECONDS, Config, like, option

from ..launch.config import LocalConfig


@dataclass(frozen=True, kw_only=True)
class SpeedupConfig(Config):
    """Options of `glovewire study speedup`; `seconds_limit` applies only to the baseline."""

    dataset: Path = option(argument=True)
    out: Path = option(help="Folder to make; it gets a run folder for each variant.")
    workers: int = like(
        LocalConfig,
        "workers",
        default=2,
        shown="",
        help="Try the server with 1 to this many workers, shared memory with all of them.",
    )
    servers: int = like(LocalConfig, "servers")
    seconds_limit: float = option(
        120.0,
        range=SECONDS,
        metavar="SECONDS",
        help="Stop the baseline after this long; at its speed an epoch takes minutes.",
    )
    options: TrainingOptions

    def conflicts(self) -> list[str]:
        """Return a message for each option that does not suit the study."""
        problems = self.options.conflicts_with_dataset()
        if self.options.objective != "glove":
            problems.append("the study compares ways to train GloVe: leave --objective glove")
        if self.options.schedule != "blocks":
            problems.append(
                "the study compares block training with the minibatches of the baseline: leave --schedule blocks"
            )
        return problems
