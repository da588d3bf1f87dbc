"""Make the consistency mode that the options ask for. No I/O, no clock."""

from dataclasses import dataclass

from glovewire.common.array_types import Indices
from glovewire.common.model.options import CONSISTENCIES, Mode, TrainingOptions
from glovewire.common.model.rounds import Rounds

from .blocks import AsynchronousBlocks, ExclusiveBlocks
from .minibatch import Asynchronous, SoftSynchronous, StaleSynchronous, Synchronous

OBSERVER = -1
"""Worker number of a session that only reads."""


Consistency = Asynchronous
"""Decides when a pull may be answered and a push applied; workers are identified by the numbers from shard 0."""


@dataclass(frozen=True)
class Reached:
    """Progress of a training when its server starts: rounds (blocks), or updates and the gradients in them."""

    round: int = 0
    updates: int = 0
    gradients: int = 0


BEGINNING = Reached()


def make_consistency(options: TrainingOptions, bounds: Indices, reached: Reached, workers: int = 1) -> Consistency:
    """Return the mode that the options ask for; synchronous modes start once `workers` workers have joined.

    `bounds` (partitions + 1,): the first row of each partition, and the end of the last one.
    """
    mode = Mode.parse(options.consistency, CONSISTENCIES[options.schedule])
    counts = (reached.updates, reached.gradients)
    match mode.kind:
        case "exclusive":
            order = Rounds.of(options, len(bounds) - 1)
            return ExclusiveBlocks(bounds, reached.round, order, bfloat16=options.sends_bfloat16)
        case "sync":
            return Synchronous(options.backup, workers, *counts)
        case "ssp":
            return StaleSynchronous(int(mode.number), workers, *counts)
        case "softsync":
            return SoftSynchronous(int(mode.number), workers, *counts)
        case _ if options.schedule == "blocks":
            return AsynchronousBlocks(bounds, reached.round, Rounds.of(options, len(bounds) - 1))
        case _:
            return Asynchronous(0, 0, *counts)
