"""metrics.jsonl: what is written, and where it must not be."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

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
