"""Write samples to a log, one JSON object a line, and read such a log or a run's `metrics.jsonl` into a RunHistory.

A loss line has `t` (seconds), `entries` (trained), `loss`, `epoch`, `worker` (or `all`), `bias_only_loss`, `norm` and
`entries_per_second`; lines of other samples name their `topic`. A line is flushed when `add` returns, so a crash can
truncate only the last line; readers skip a truncated line, and the next Recorder cuts it off.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from glovewire.common.errors import ArtifactError, GlovewireError, OutputError
from glovewire.common.protocol.messages import STREAM, LossSample, Message, as_line
from glovewire.common.protocol.wire import message_of
from glovewire.common.storage.artifacts import input_errors, output_errors
from glovewire.common.storage.run_folder import METRICS

from .history import RunHistory

_BY_TOPIC = {kind.topic: kind for kind in STREAM}
_LEFT_OUT = {"epochs": 0, "total": 0}
"""Fields of a LossSample that lines lack."""
_TAIL = 1 << 16
_NO_RECORD = (GlovewireError, ValueError, TypeError, KeyError, RecursionError)


class Recorder:
    """Appends samples to `path`; OutputError when `path` cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with output_errors(path):
            if path.is_file():
                _cut_torn_line(path)
            self._file: BinaryIO = path.open("ab")

    def add(self, message: Message) -> None:
        """Write one sample as a line and flush it to the operating system."""
        with output_errors(self.path):
            self._file.write(as_line(message).encode())
            self._file.flush()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


def _cut_torn_line(path: Path) -> None:
    """Cut a truncated last line off an earlier recording; OutputError for a file that is not a recording."""
    with path.open("r+b") as file:
        try:
            if first := file.readline():
                _from_record(json.loads(first))
        except _NO_RECORD as error:
            raise OutputError(f"{path} exists and is not a recording of samples: name another file") from error
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def read_metrics(path: Path) -> RunHistory:
    """Read a `metrics.jsonl`, or the one in a run folder, into a RunHistory; raises as `read_samples` does."""
    file = _metrics_file(path)
    history = RunHistory(file.resolve().parent.name if file.name == METRICS else file.stem)
    for sample in read_samples(path):
        history.add(sample, sample.t)
    if history.overall.last is None:
        raise ArtifactError(f"{file} holds no losses yet")
    history.finished = True
    return history


def read_samples(path: Path) -> Iterator[Any]:
    """Yield the samples in a `metrics.jsonl`, or in the one in a run folder.

    Skips a truncated last line. Raises ArtifactError when the file is missing or any other line is damaged.
    """
    file = _metrics_file(path)
    with input_errors(file):
        lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            sample = _from_record(json.loads(line))
        except _NO_RECORD as error:
            if number == len(lines):  # a last line without a newline: truncated by a crash
                return
            raise ArtifactError(f"{file}, line {number} is not a sample: {error}") from error
        yield sample


def _metrics_file(path: Path) -> Path:
    return path / METRICS if path.is_dir() else path


def _from_record(record: dict[str, Any]) -> Any:
    """Return the sample in a line; ValueError, TypeError, KeyError or GlovewireError if there is none."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    kind = _BY_TOPIC[record.get("topic", LossSample.topic)]
    values = {**_LEFT_OUT, **record}
    return message_of(kind, {spec.name: values[spec.name] for spec in dataclasses.fields(kind)})
