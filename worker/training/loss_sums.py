"""What training brings between two reports: sums of losses; and the end of one whose loss is no longer a number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from glovewire.common.errors import TrainingDiverged
from glovewire.common.protocol import messages as m

REPORT_EVERY_S = 0.2

MakeReport = Callable[[int, int], m.Report]
"""(sequence, bytes sent so far): the report."""


@dataclass(frozen=True)
class BatchResult:
    """What one batch brought: entries, the sums of their losses, the mean norm of its vectors."""

    entries: int
    loss: float
    floor: float
    norm: float


@dataclass
class LossSums:
    """What minibatches brought since the last report."""

    entries: int = 0
    loss: float = 0.0
    floor: float = 0.0
    norm: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def add(self, brought: BatchResult) -> None:
        """Count one batch."""
        self.entries += brought.entries
        self.loss += brought.loss
        self.floor += brought.floor
        self.norm += brought.norm * brought.entries

    @property
    def due(self) -> bool:
        """Whether it is time to report."""
        return time.perf_counter() - self.began >= REPORT_EVERY_S

    def message(self, sequence: int, sent: int) -> m.Report:
        """The report."""
        seconds, norm = time.perf_counter() - self.began, self.norm / max(self.entries, 1)
        return m.Report(sequence, -1, self.entries, self.loss, self.floor, norm, seconds, sent)


def check_finite(loss: float, where: str) -> None:
    """Raise TrainingDiverged unless the loss is a number."""
    if not math.isfinite(loss):
        raise TrainingDiverged(f"the loss became {loss} in {where}: use a smaller learning rate")
