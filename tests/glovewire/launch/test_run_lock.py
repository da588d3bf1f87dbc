"""The run folder of a training: had by one at a time, and with every option in it; no process is started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from handmade import HARD_TO_DRAW

from glovewire.common.cli.config_file import read_toml
from glovewire.common.errors import OutputError
from glovewire.common.model.options import TrainingOptions
from glovewire.launch import run_lock as folder
from glovewire.launch.config import LocalConfig
from glovewire.launch.run_lock import locked_run_folder

ODD = 'a\nb\x7f"c'


def config(run: Path, *, resume: bool = False, watch: tuple[Path, ...] = ()) -> LocalConfig:
    latency = ("20ms", "exp:5ms")
    return LocalConfig(
        dataset=run / "data",
        out=run,
        options=TrainingOptions(dim=8),
        workers=2,
        resume=resume,
        watch=watch,
        latency=latency,
    )


def test_a_folder_is_had_by_one_training_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused = pytest.raises(OutputError, match="in use by another glovewire train")
    for resume in (False, True):
        with locked_run_folder(config(run, resume=resume)), refused, locked_run_folder(config(run, resume=True)):
            pass
        assert [path.name for path in run.iterdir()] == ["config.toml"]


def test_where_the_file_system_has_no_locks_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_run_folder(config(tmp_path / "run")):
        assert (tmp_path / "run" / "config.toml").exists()


def test_of_two_that_begin_at_the_same_time_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is over before this one has the lock."""

    @contextlib.contextmanager
    def late(run: Path) -> Iterator[None]:
        (run / "config.toml").write_text("of the other")
        yield

    monkeypatch.setattr(folder, "_held", late)
    with pytest.raises(OutputError, match="exists already"), locked_run_folder(config(tmp_path / "run")):
        pass
    assert (tmp_path / "run" / "config.toml").read_text() == "of the other"


def test_a_run_that_was_started_before_is_kept_and_the_error_names_resume(tmp_path: Path) -> None:
    with locked_run_folder(config(tmp_path / "run")):
        pass
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with (
        pytest.raises(OutputError, match=r"exists already: continue it \(--resume\)"),
        locked_run_folder(config(tmp_path / "run")),
    ):
        pass
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_a_folder_that_is_not_there_cannot_be_resumed(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="cannot be read: No such file"),
        locked_run_folder(config(tmp_path / "x", resume=True)),
    ):
        pass


def test_the_config_holds_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with locked_run_folder(config(Path("run"), watch=(Path("a"), Path(ODD)))):
        found = read_toml(tmp_path / "run" / "config.toml")["train"]
    assert found["latency"] == ["20ms", "exp:5ms"]
    assert found["watch"] == [str(tmp_path / name) for name in ("a", ODD)]
    assert "init" not in found


def test_the_config_says_of_a_name_that_toml_cannot_hold_that_it_was_given(tmp_path: Path) -> None:
    with locked_run_folder(config(tmp_path / "run", watch=(Path(HARD_TO_DRAW),))):
        text = (tmp_path / "run" / "config.toml").read_text()
    assert "# watch was given, with a name that is not UTF-8\n" in text
    assert "watch" not in read_toml(tmp_path / "run" / "config.toml")["train"]
