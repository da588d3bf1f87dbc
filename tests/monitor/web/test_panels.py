"""The dashboard's tiles, tables and events as HTML: names are text, states and figures are there."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from monitor_fakes import loss, server_sample, shard, worker

from glovewire.common.model.neighbours import UnitVectors
from glovewire.common.protocol.messages import Event, QualitySample
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.web import panels

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
ALLOWED = {"div", "b", "span", "small", "i", "table", "thead", "tbody", "tr", "th", "td", "ol", "li", "time", "p"}


class Tags(HTMLParser):
    """Collects the elements, attributes and text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def everything(history: RunHistory, now: float = 1.0) -> str:
    parts = [panels.status(history, now, [HOSTILE]), panels.tiles(history), panels.workers(history, now)]
    return "".join([*parts, panels.shards(history), panels.events(history), panels.comparison([history], [HOSTILE])])


def test_hostile_names_are_text_everywhere() -> None:
    history = RunHistory(HOSTILE)
    for sample in (
        loss(worker=HOSTILE),
        loss(),
        worker(HOSTILE, HOSTILE),
        shard(),
        QualitySample(1.0, 1, HOSTILE, 50.0),
        Event(1.0, HOSTILE, HOSTILE, HOSTILE),
        Event(1.0, "failed", "shard 0", HOSTILE),
    ):
        history.add(sample, 1.0)
    seen = Tags(everything(history))
    assert seen.tags <= ALLOWED
    assert seen.attributes <= {"class", "style", "role", "scope"}
    assert seen.text.count("<img src=x onerror") >= 5


@pytest.mark.parametrize("history", [RunHistory(), RunHistory("x")])
def test_nothing_is_shown_as_nothing(history: RunHistory) -> None:
    text = Tags(everything(history)).text
    for part in ("waiting for", "no workers yet", "no shard has reported", "no events yet", "nothing to compare"):
        assert part in text


def test_once_it_is_over_servers_tell_what_they_moved_in_all() -> None:
    history = RunHistory()
    history.add(loss(), 1.0)
    assert "servers receive" not in panels.tiles(history)  # a replay knows of no shards
    history.add(server_sample(1.0, 0, 1, 10, 0, 3_000_000, bytes_out=2_000_000), 1.0)
    assert "servers receive<" in panels.tiles(history)
    history.add(Event(2.0, "finished", "shard 0", "complete"), 2.0)
    text = Tags(panels.tiles(history)).text
    assert "servers received3 MBand sent 2 MB" in text


def test_lost_workers_stand_first_and_many_are_cut() -> None:
    history = RunHistory()
    for number in range(100):
        history.add(worker(f"w{number}"), 1.0)
    history.add(worker("w99", "lost"), 1.0)
    text = Tags(panels.workers(history, 1.0)).text
    assert text.index("w99") < text.index("w0")
    assert text.index("w2training") < text.index("w10training")
    assert "and 36 more" in text


def test_staleness_and_hot_rows_are_shown_with_their_words() -> None:
    history = RunHistory()
    assert "no shard" in panels.staleness(history)
    fields = {"staleness": {"0": 3, "1": 1}, "hot_rows": {"1": 9, "0": 2, "40-79": 1, "99": 1}}
    history.add(server_sample(1.0, 0, 1, 100, 5, 0, **fields), 0.0)
    assert "75.0%" in panels.staleness(history)
    assert "row 1" in panels.hot_rows(history, None)
    rows = panels.hot_rows(history, UnitVectors(("one", "<img src=x>"), np.eye(2, dtype=np.float32)))
    assert "&lt;img src=x&gt;" in rows
    assert "rows 40 to 79" in rows
    assert "row 99" in rows
