"""Ctrl-C, a full disk and impossible names end a command in one line, a reader who has gone away in none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import PROGRAM
from processes import Flow, until

from glovewire.cli.main import program
from glovewire.common.runtime.signals import PARENT_VARIABLE, die_with_parent

INTERRUPTED = "error: interrupted by SIGINT\n"


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    with Flow(tmp_path) as flow:
        yield flow


@pytest.mark.parametrize("command", ["stats", "finish", "checkpoint"])
def test_ctrl_c_ends_a_question_in_one_line(flow: Flow, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        asking = flow.start(command, f"tcp://127.0.0.1:{silent.getsockname()[1]}", "--timeout", 60)
        with silent.accept()[0]:  # so it waits for an answer now
            asking.signal(signal.SIGINT)
            asking.ends(130)
    assert (asking.out, asking.err) == ("", INTERRUPTED)


def test_ctrl_c_while_a_command_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        program.main(["train", "--help"], prog_name="glovewire")
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", INTERRUPTED)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["stats", "--help"], ["keys", "keys"]])
def test_a_disk_that_is_full_under_stdout_is_one_line(tmp_path: Path, words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            [*PROGRAM, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (run.returncode, run.stderr) == (1, "error: output cannot be written: no space left on the disk\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["monitor", "--replay"], " cannot be a file: the name is too long"),
        (["info"], "/manifest.json cannot be read: File name too long"),
        (["stats", "tcp://127.0.0.1:9", "--keys"], " cannot be read: File name too long"),
    ],
)
def test_a_name_that_no_file_can_have_is_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main([*words, 130 * "ü"], prog_name="glovewire")
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", f"error: {130 * 'ü'}{why}\n")


def test_a_reader_who_has_gone_away_hears_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([*PROGRAM, "--help"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    until(lambda: process.poll() is not None, "glovewire --help ends")
    with process.stderr as stderr:
        assert stderr.read() == b""


@pytest.mark.parametrize("value", ["x", "1", "1:", "1:x", "1:999"])
def test_what_is_no_word_of_a_parent_is_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, value)
    die_with_parent()
    assert PARENT_VARIABLE not in os.environ
