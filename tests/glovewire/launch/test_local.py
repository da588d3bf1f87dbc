"""A training on this machine, whose monitor is in this process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from handmade import random_dataset

from glovewire.common.model.options import TrainingOptions
from glovewire.launch.config import LocalConfig
from glovewire.launch.local import train
from glovewire.monitor.stream.feed import Feed


@pytest.mark.usefixtures("fonts_are_closed")
def test_a_run_that_is_over_before_its_monitor_has_heard_of_it_has_its_losses_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_dataset(tmp_path / "data", size=40)
    pause = threading.Event()
    monkeypatch.setattr(Feed, "poll", lambda _, wait_s: iter(()) if not pause.wait(wait_s) else pytest.fail("set"))
    options = TrainingOptions(dim=4, epochs=1, subwords=0.0)
    config = LocalConfig(dataset=tmp_path / "data", out=tmp_path / "run", options=options, workers=1, progress=False)
    assert train(config)["ending"] == "complete"
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
