"""The run folder of a training: had by one at a time, and with every option in it; no process is started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import OutputError
from common.options import TrainingOptions
from launch import folder
from launch.folder import begun
from launch.local import LocalConfig


def config(run: Path, *, resume: bool = False) -> LocalConfig:
    return LocalConfig(run / "data", run, TrainingOptions(dim=8), 2, resume=resume)


def test_a_folder_is_had_by_one_training_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused = pytest.raises(OutputError, match="in use by another glovewire train")
    for resume in (False, True):
        with begun(config(run, resume=resume)), refused, begun(config(run, resume=True)):
            pass
        assert [path.name for path in run.iterdir()] == ["config.toml"]


def test_where_the_file_system_has_no_locks_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with begun(config(tmp_path / "run")):
        assert (tmp_path / "run" / "config.toml").exists()


def test_of_two_that_begin_at_the_same_time_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is over before this one has the lock."""

    @contextlib.contextmanager
    def late(run: Path) -> Iterator[None]:
        (run / "config.toml").write_text("of the other")
        yield

    monkeypatch.setattr(folder, "_held", late)
    with pytest.raises(OutputError, match="exists already"), begun(config(tmp_path / "run")):
        pass
    assert (tmp_path / "run" / "config.toml").read_text() == "of the other"


def test_a_folder_that_is_not_there_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be read: No such file"), begun(config(tmp_path / "x", resume=True)):
        pass
