"""Append what is trained, losses and scores to `metrics.jsonl`: whole lines only; a full disk never stops training."""

import contextlib
import errno
import logging
import os
from io import FileIO
from pathlib import Path

from glovewire.common import log
from glovewire.common.protocol.messages import LossSample, QualitySample, RunSample, as_line

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends samples to `path`, created with the first loss or score; `lost` counts those that the disk refused.

    The first RunSample is written before them, later ones are not.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._about: RunSample | None = None
        self._described = False
        self._path = path
        self._file: FileIO | None = None
        self._bytes = 0

    def add(self, sample: RunSample | LossSample | QualitySample) -> None:
        """Append one line, or nothing when the disk refuses."""
        if isinstance(sample, RunSample):
            self._about = sample
            return
        if self._about is not None and not self._described:
            self._described = True
            self._append(self._about)
        self._append(sample)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()

    def _append(self, sample: RunSample | LossSample | QualitySample) -> None:
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
            with contextlib.suppress(OSError):  # a disk that fails
                self._file.truncate(self._bytes)
        self.lost += 1
        if self.lost == 1:
            logger.warning(log.line("metrics_lost", path=self._path, why=why))


def _open(path: str, flags: int) -> int:
    """Open `path` unless it is a symbolic link, which could lead out of the run folder."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
