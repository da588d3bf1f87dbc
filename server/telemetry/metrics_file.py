"""The losses of a run on disk, `metrics.jsonl`: whole lines only, and never a reason for training to stop."""

from __future__ import annotations

import logging
from io import FileIO
from pathlib import Path

from glovewire.common import log
from glovewire.common.protocol.messages import LossSample, QualitySample
from glovewire.common.protocol.samples import as_line

logger = logging.getLogger(__name__)


class Record:
    """Appends samples to `path`, which is made with the first one. A disk that refuses loses samples, not training."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._file: FileIO | None = None
        self._bytes = 0

    def add(self, sample: LossSample | QualitySample) -> None:
        """Append one line, or, when the disk refuses, nothing at all."""
        line = as_line(sample).encode()
        try:
            if self._file is None:
                self._file = FileIO(self._path, "ab")
                self._bytes = self._file.tell()
            if self._file.write(line) == len(line):
                self._bytes += len(line)
                return
            why = "no space left on the disk"
        except OSError as error:
            why = error.strerror or str(error)
        self._lose(why)

    def close(self) -> None:
        """Close the file; twice is fine."""
        if self._file is not None:
            self._file.close()

    def _lose(self, why: str) -> None:
        if self._file is not None:
            self._file.truncate(self._bytes)
        self.lost += 1
        if self.lost == 1:
            logger.warning(log.line("metrics_lost", path=self._path, why=why))
