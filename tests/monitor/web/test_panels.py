"""The dashboard's tiles, tables and events as HTML: names are text, states and figures are there."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from monitor_fakes import dense_history, loss, run_sample, server_sample, shard, worker

from glovewire.common.model.neighbours import UnitVectors
from glovewire.common.protocol.messages import Event, QualitySample
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.web import panels
from glovewire.monitor.web.charts import worker_columns

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


def test_nothing_is_shown_that_says_nothing() -> None:
    history = RunHistory()
    alike = {"staleness": {"0": 9}, "hot_rows": {f"{n * 100}-{n * 100 + 99}": 129 - n % 2 for n in range(8)}}
    history.add(loss(total=100), 1.0)
    assert "class=bar" not in panels.tiles(history), "no full bar for 100 %"
    history.add(server_sample(1.0, 0, 1, 800, 9, 0, **alike), 0.0)
    assert panels.staleness(history) == panels.hot_rows(history, None) == "", "no single bar, no eight equal ones"
    history.add(loss(total=1000), 1.0)
    assert "class=bar" in panels.tiles(history)


def test_a_dense_model_is_shown_as_what_it_is() -> None:
    history = dense_history()
    text = Tags(panels.tiles(history) + panels.workers(history, 10.0) + panels.status(history, 10.0)).text
    for part in (
        "training loss0.0909",
        "steps200of 1,000",
        "test accuracy91.2 %",
        "steps/s20",
        "examples/s1.28 k",
    ):
        assert part in text, text
    assert "gradient norm0.5" in text
    assert "ETA 0:40" in text
    assert not any(word in text for word in ("bias-only", "epoch", "vector norm", "entries"))
    assert panels.hot_rows(history, None) == ""


def test_settings_are_those_that_people_compare_and_those_that_differ_from_the_defaults() -> None:
    history = RunHistory()
    assert panels.settings(history) == ""
    history.add(run_sample("one", "<b>wiki", dim=50, x_max=20.0, warmup=0.25), 0.0)
    text = panels.settings(history)
    assert "&lt;b&gt;wiki" in text
    seen = Tags(text).text
    for part in ("dim50", "learning rate0.4", "x max20", "warmup0.25", "optimizeradagrad-row"):
        assert part in seen
    assert "clip norm" not in seen
    other = RunHistory()
    other.add(run_sample("two", "<b>wiki", dim=60, x_max=20.0, warmup=0.25), 0.0)
    compared = Tags(panels.compared_settings([history, other], ["red", "blue"])).text
    assert compared == "rundimone50two60"


def test_after_the_end_figures_are_final_ones() -> None:
    history = RunHistory()
    for t, moved in ((1.0, 1_000_000), (2.0, 3_000_000)):
        history.add(loss(t, entries=int(100 * t)), t)
        history.add(worker("w0", t=t, sent=moved), t)
        history.add(server_sample(t, 0, 1, 10, int(10 * t), moved), t)
    assert all(part in Tags(panels.workers(history, 2.0)).text for part in ("entries/s", "last seen", "now"))
    assert "pulls/s" in panels.shards(history)
    history.add(Event(2.0, "finished", "shard 0", "complete"), 2.0)
    after = Tags(panels.workers(history, 9.0) + panels.shards(history)).text
    assert "/s" not in after
    assert "last seen" not in after
    assert "3 MB" in after, "what the worker has sent"
    assert "6 MB" in after, "what the shard has received and sent"


def test_each_worker_has_its_colour_in_table_and_chart() -> None:
    history = RunHistory()
    for name in ("w10", "w2"):
        history.add(loss(1.0, name), 1.0)
        history.add(worker(name), 1.0)
    columns = worker_columns(history)
    table = panels.workers(history, 1.0)
    for name, colour in zip(columns["worker"], columns["colour"], strict=True):
        assert re.search(rf"background:{colour}'></i>{name}<", table)


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
    assert panels.staleness(history) == panels.hot_rows(history, None) == ""
    fields = {"staleness": {"0": 3, "1": 1}, "hot_rows": {"1": 9, "0": 2, "40-79": 1, "99": 1}}
    history.add(server_sample(1.0, 0, 1, 100, 5, 0, **fields), 0.0)
    assert "75.0%" in panels.staleness(history)
    assert "row 1" in panels.hot_rows(history, None)
    rows = panels.hot_rows(history, UnitVectors(("one", "<img src=x>"), np.eye(2, dtype=np.float32)))
    assert "&lt;img src=x&gt;" in rows
    assert "rows 40 to 79" in rows
    assert "row 99" in rows
