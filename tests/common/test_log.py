"""One line an event: key=value, quoted where it must be, whatever a worker is called."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from glovewire.common import log


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_facts_stand_behind_the_event() -> None:
    assert log.line("joined", worker="w0", rows=3) == "event=joined worker=w0 rows=3"
    assert log.line("epoch", loss=0.123456789) == "event=epoch loss=0.1235"
    assert log.line("joined", worker="w0", text="") == "event=joined worker=w0"


@pytest.mark.parametrize("value", ["a b", "a=b", 'a"b', "a'b", "a\nb", "a\rb", "a\x1b[31mb", "a\tb"])
def test_a_value_that_would_look_like_more_is_quoted(value: str) -> None:
    line = log.line("event", value=value)
    assert line == f"event=event value={value!r}"
    assert line.isprintable()


@pytest.mark.parametrize("role", ["worker w0", "worker 100%", "worker %(message)s %d", "worker a\nb"])
def test_any_role_begins_one_line(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", role)
    logging.getLogger("glovewire.x").info(log.line("ready", port=1))
    logging.getLogger("glovewire.x").debug("hidden")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("event=ready port=1")
    assert "INFO role=" in lines[0]


def test_the_level_is_the_one_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("error", "server 0")
    logging.getLogger("glovewire.x").warning("hidden")
    logging.getLogger("glovewire.x").error(log.line("broken"))
    assert capsys.readouterr().err.splitlines()[0].endswith("ERROR role=server-0 event=broken")


def test_other_libraries_show_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("debug", "server 0")
    logging.getLogger("botocore").info("x-amz-security-token: secret")
    logging.getLogger("botocore").warning("slow")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["slow"]


def test_a_flood_of_one_kind_is_cut_short_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen to write every line without `Flood`."""
    log.configure("info", "server 0")
    logger = logging.getLogger("glovewire.x")
    for number in range(10_000):
        logger.info(log.line("joined", subject=f"w{number}"))
        logger.info(log.line("cut_off", where="10.0.0.1", why="too many"))
        logger.info(log.line("cut_off", where=f"10.1.0.{number % 256}", why="too many"))
    logger.info(log.line("epoch", subject=1))
    logger.info("a line without an event")
    logging.getLogger().handlers[0].close()
    lines = [line.split("role=server-0 ")[1] for line in capsys.readouterr().err.splitlines()]
    assert len(lines) <= 2 * log.PER_KIND + 2 + log.PER_ADDRESS + 1
    assert "event=joined subject=w0" in lines
    assert "event=epoch subject=1" in lines
    assert "a line without an event" in lines
    assert f"event=joined text='and {10_000 - log.PER_KIND:,} more'" in lines
    assert f"event=cut_off where=10.0.0.1 text='and {10_000 - log.PER_ADDRESS:,} more'" in lines
    assert lines[-1].startswith("event=more text=")


def test_a_new_window_shows_lines_again_and_says_what_the_last_one_left_out() -> None:
    flood = log.Flood()
    assert list(flood.ended(0.0)) == []
    shown = [flood.admits(log.line("joined", subject=n)) for n in range(log.PER_KIND + 3)]
    assert shown == [True] * log.PER_KIND + [False] * 3
    assert list(flood.ended(log.WINDOW_S / 2)) == []
    assert list(flood.ended(log.WINDOW_S)) == ["event=joined text='and 3 more'"]
    assert flood.admits("event=joined subject=9")
    assert list(flood.ended(2 * log.WINDOW_S)) == []
