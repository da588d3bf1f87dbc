"""metrics.jsonl: what is written, and where it must not be."""

from __future__ import annotations

import errno
from contextlib import closing
from io import FileIO
from pathlib import Path
from unittest import mock

import pytest
from monitor_fakes import loss

from glovewire.server.telemetry.metrics_file import MetricsFile


def test_a_symbolic_link_is_not_followed_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    (tmp_path / "metrics.jsonl").symlink_to(outside)
    with closing(MetricsFile(tmp_path / "metrics.jsonl")) as metrics:
        metrics.add(loss())
        metrics.add(loss())
    assert outside.read_text() == "mine\n"
    assert metrics.lost == 2
    assert "a symbolic link, which is not followed" in caplog.text


def test_a_disk_that_fails_does_not_end_the_training(tmp_path: Path) -> None:
    class Failing(FileIO):
        def write(self, _: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        def truncate(self, _: int | None = None) -> int:
            raise OSError(errno.EIO, "Input/output error")

    with mock.patch("glovewire.server.telemetry.metrics_file.FileIO", Failing):
        metrics = MetricsFile(tmp_path / "metrics.jsonl")
        metrics.add(loss())
    metrics.close()
    assert metrics.lost == 1
