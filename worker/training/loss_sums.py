"""Sum up losses between two reports, and check that a loss is finite."""

import math
from dataclasses import dataclass

from glovewire.common.errors import TrainingDiverged
from glovewire.common.protocol import messages as m

REPORT_EVERY_S = 0.2


@dataclass
class LossSums:
    """The sums over the batches since the last report, at the time `began`."""

    began: float
    entries: int = 0
    loss: float = 0.0
    bias_only_loss: float = 0.0
    norm: float = 0.0

    def add(self, entries: int, loss: float, bias_only_loss: float, norm: float) -> None:
        """Add the loss sums of a batch of `entries` entries, and the mean norm of its vectors."""
        self.entries += entries
        self.loss += loss
        self.bias_only_loss += bias_only_loss
        self.norm += norm * entries

    def is_due(self, now: float) -> bool:
        """Return whether it is time to report."""
        return now - self.began >= REPORT_EVERY_S

    def report(self, now: float, sequence: int, sent: int) -> m.Report:
        """Return the report of the batches; its norm is the mean over their entries."""
        seconds, norm = now - self.began, self.norm / max(self.entries, 1)
        return m.Report(sequence, -1, self.entries, self.loss, self.bias_only_loss, norm, seconds, sent)


def check_finite(loss: float, where: str) -> None:
    """Raise TrainingDiverged unless the loss is finite."""
    if not math.isfinite(loss):
        raise TrainingDiverged(f"the loss became {loss} in {where}: use a smaller learning rate")
