"""Append losses and scores to `metrics.jsonl`: whole lines only, and a full disk never stops training."""

import errno
import logging
import os
from io import FileIO
from pathlib import Path

from glovewire.common import log
from glovewire.common.protocol.messages import LossSample, QualitySample, as_line

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends samples to `path`, created with the first one; `lost` counts those that the disk refused."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._file: FileIO | None = None
        self._bytes = 0

    def add(self, sample: LossSample | QualitySample) -> None:
        """Append one line, or nothing when the disk refuses."""
        line = as_line(sample).encode()
        try:
            if self._file is None:
                self._file = FileIO(self._path, "ab", opener=_open)
                self._bytes = self._file.tell()
            if self._file.write(line) == len(line):
                self._bytes += len(line)
                return
            why = "no space left on the disk"
        except OSError as error:
            linked = error.errno == errno.ELOOP
            why = "a symbolic link, which is not followed" if linked else error.strerror or str(error)
        if self._file is not None:
            self._file.truncate(self._bytes)
        self.lost += 1
        if self.lost == 1:
            logger.warning(log.line("metrics_lost", path=self._path, why=why))

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()


def _open(path: str, flags: int) -> int:
    """Open `path` unless it is a symbolic link, which could lead out of the run folder."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
