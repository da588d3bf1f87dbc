"""Progress of preprocessing as a person sees it on a terminal."""

import io
import re

import pytest

from glovewire.preprocess.parallel.progress import Phase


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("unit", "total", "shown"),
    [
        ("bytes", None, "2.5 MB"),
        ("bytes", 5_000_000, "2.5/5.0 MB"),
        ("blocks", None, "2,500,000 blocks"),
        ("blocks", 5_000_000, "2500000/5000000 blocks"),
    ],
)
def test_an_amount_without_a_known_total_is_not_shown_as_a_share_of_it(
    monkeypatch: pytest.MonkeyPatch, unit: str, total: int | None, shown: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with Phase("tokenise", unit, total, {}) as phase:
        phase.advance(2_500_000)
    text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", terminal.getvalue())
    assert shown in text
    assert "?" not in text
