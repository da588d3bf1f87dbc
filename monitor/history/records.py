"""Samples on disk: `metrics.jsonl`, one JSON object a line, written as they come and read back into a History.

A loss line has `t` (seconds), `entries` (done), `loss`, `epoch`, `worker` (or `all`), `bias_only_loss`, `norm` and
`entries_per_second`. A log of everything also holds other samples, marked by their `topic`. Each line is on disk when
`add` returns; a crash can tear only the last one, which readers pass over and the next Recorder cuts off.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from glovewire.common.errors import ArtifactError, GlovewireError, OutputError
from glovewire.common.protocol.messages import STREAM, LossSample, Message
from glovewire.common.protocol.wire import message_of

from .history import History

_BY_TOPIC = {kind.topic: kind for kind in STREAM}
_LEFT_OUT = {"epochs", "total"}
_UNSAID = {"epochs": 0, "total": 0, "bias_only_loss": 0.0, "norm": 0.0, "entries_per_second": 0.0}
_TAIL = 1 << 16


class Recorder:
    """Appends samples to `path`: the losses, or with `everything` every sample. OutputError when it cannot."""

    def __init__(self, path: Path, *, everything: bool = False) -> None:
        self.path = path
        self._everything = everything
        try:
            if path.is_file():
                _mend(path)
            self._file: BinaryIO = path.open("ab")
        except OSError as error:
            raise _cannot(path, error) from error

    def add(self, message: Message) -> None:
        """Write one sample and hand it to the operating system."""
        if not (self._everything or isinstance(message, LossSample)):
            return
        try:
            self._file.write(json.dumps(as_record(message), allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise _cannot(self.path, error) from error

    def close(self) -> None:
        """Close the file; twice is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_record(message: Message) -> dict[str, Any]:
    """A sample as the object that stands in a line."""
    values = {name: _rounded(value) for name, value in vars(message).items()}
    if isinstance(message, LossSample):
        return {name: value for name, value in values.items() if name not in _LEFT_OUT}
    return {"topic": message.topic, **values}


def read_metrics(path: Path) -> History:
    """The History of a `metrics.jsonl`, or of the RUN folder that holds one; raises as `read_samples` does."""
    history = History(_name(_file(path)))
    for sample in read_samples(path):
        history.add(sample, sample.t)
    if history.overall.last is None:
        raise ArtifactError(f"{_file(path)} holds no losses yet")
    history.finished = True
    return history


def read_samples(path: Path) -> Iterator[Any]:
    """The samples in a `metrics.jsonl`, or in the RUN folder that holds one.

    A torn last line is passed over; ArtifactError when the file is missing or is damaged elsewhere.
    """
    file = _file(path)
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror or error}") from error
    yield from _samples(file, lines)


def _file(path: Path) -> Path:
    return path / "metrics.jsonl" if path.is_dir() else path


def _samples(file: Path, lines: list[bytes]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield from_record(json.loads(line))
        except (GlovewireError, ValueError, TypeError, KeyError, RecursionError) as error:
            if number == len(lines):  # no newline after it: torn by a crash
                return
            raise ArtifactError(f"{file}, line {number} is not a sample: {error}") from error


def from_record(record: dict[str, Any]) -> Any:
    """The sample that a line holds; ValueError, TypeError, KeyError or a GlovewireError for anything else."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    kind = _BY_TOPIC[record.get("topic", LossSample.topic)]
    given = {**_UNSAID, **record}
    if kind is LossSample:  # records of before there were means over the whole matrix
        given = {"mean_loss": given["loss"], "mean_bias_only_loss": given["bias_only_loss"], **given}
    return message_of(kind, {spec.name: given[spec.name] for spec in dataclasses.fields(kind)})


def _rounded(value: Any) -> Any:
    """Floats to nine significant digits: more than a float32 has, fewer bytes than all of them."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _name(file: Path) -> str:
    return file.resolve().parent.name if file.name == "metrics.jsonl" else file.stem


def _mend(path: Path) -> None:
    """Cut a torn last line off an earlier recording; leave files that are something else alone."""
    with path.open("r+b") as file:
        if file.read(1) not in (b"", b"{"):
            raise OutputError(f"{path} exists and is not a recording of samples")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def _cannot(path: Path, error: OSError) -> OutputError:
    if error.errno == errno.ENOSPC:
        return OutputError(f"{path} cannot be written: no space left on the disk")
    return OutputError(f"{path} cannot be written: {error.strerror or error}")
