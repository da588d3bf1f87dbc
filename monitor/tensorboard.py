"""Samples as TensorBoard scalars, over entries done. It writes event files and nothing else; needs tensorboardX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import OutputError
from common.messages import LossSample, Message, QualitySample, WorkerSample

from .extras import require_extra
from .history import ALL, MAX_WORKERS
from .units import plain

FLUSH_S = 5


class TensorBoard:
    """Writes into `folder`; OutputError when it cannot. Workers beyond the first 256 are left out."""

    def __init__(self, folder: Path) -> None:
        require_extra("tensorboardX", "metrics", "--tensorboard")
        from tensorboardX import SummaryWriter

        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = SummaryWriter(str(folder), flush_secs=FLUSH_S)
        except OSError as error:
            raise OutputError(f"{folder} cannot be written: {error.strerror or error}") from error
        self._entries = 0
        self._workers: set[str] = set()

    def add(self, message: Message) -> None:
        """Write the scalars of one sample; the step is the number of entries that all workers have done."""
        match message:
            case LossSample(worker="all"):
                self._entries = message.entries
                self._write("loss/all", message.loss)
                self._write("loss/vectors_at_zero", message.bias_only_loss)
                self._write("vectors/norm", message.norm)
                self._write("entries_per_second/all", message.entries_per_second)
            case LossSample() if self._known(message.worker):
                self._write(f"loss/worker/{plain(message.worker)}", message.loss)
            case WorkerSample() if self._known(message.worker):
                self._write(f"entries_per_second/worker/{plain(message.worker)}", message.entries_per_second)
            case QualitySample():
                self._write(f"quality/{plain(message.test)}", message.score)

    def close(self) -> None:
        """Write what is left; twice is fine."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, tag: str, value: float) -> None:
        self._writer.add_scalar(tag, value, self._entries)

    def _known(self, worker: str) -> bool:
        if worker != ALL and len(self._workers) < MAX_WORKERS:
            self._workers.add(worker)
        return worker in self._workers
