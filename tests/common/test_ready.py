"""The line that a server prints once it is bound."""

from __future__ import annotations

import pytest

from glovewire.common.errors import ProtocolError
from glovewire.common.ready import Ready

READY = Ready("tcp://127.0.0.1:5555", "ipc:///tmp/stream", 2, 3)


def test_what_is_written_is_read() -> None:
    assert READY.format() == "ready tcp://127.0.0.1:5555 publish ipc:///tmp/stream shard 2/3"
    assert Ready.parse(READY.format() + "\n") == READY


@pytest.mark.parametrize("line", ["", "ready", '{"ending": "over"}', READY.format()[:-2], READY.format() + " more"])
def test_any_other_line_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError, match="first line begins with `ready`"):
        Ready.parse(line)
