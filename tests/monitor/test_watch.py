"""The watcher: which error is told when the picture at its end fails, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from monitor_fakes import Publisher, loss, until

from glovewire.common.errors import OutputError, ProcessDied
from glovewire.monitor import watch
from glovewire.monitor.history.history import RunHistory


def full(_: RunHistory, path: Path) -> None:
    raise OutputError(f"{path.name} cannot be written")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, r"^loss\.png cannot be written$"),
        (ProcessDied("server 0 ended"), r"^server 0 ended; loss\.png cannot be written$"),
        (KeyboardInterrupt("x"), "^x$"),
    ],
)
def test_a_picture_that_fails_hides_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, told: str
) -> None:
    monkeypatch.setattr(watch, "plot", full)

    def follow() -> None:
        with watch.Watcher(publisher.address, picture=tmp_path / "loss.png") as watcher:

            def step() -> None:
                publisher.publish(loss())
                watcher.step(0.05)

            until(lambda: watcher.history.overall.last is not None, "a sample", step)
            if error is not None:
                raise error

    with Publisher() as publisher, pytest.raises(OutputError if error is None else type(error), match=told):
        follow()
