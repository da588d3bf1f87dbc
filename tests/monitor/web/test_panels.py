"""The dashboard without a browser: words and tables as HTML, columns for charts, and what the server hands out."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pytest
from monitor_fakes import loss, run_of, server_sample, shard, worker

from glovewire.common.protocol.messages import Event, QualitySample
from glovewire.monitor.history.history import History
from glovewire.monitor.web import neighbours_panel as nearby
from glovewire.monitor.web import panels
from glovewire.monitor.web.charts import ALL_POINTS, Trace, each_worker
from glovewire.monitor.web.neighbours import Known, unit

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


def everything(history: History, now: float = 1.0) -> str:
    parts = [panels.status(history, now, [HOSTILE]), panels.tiles(history), panels.workers(history, now)]
    return "".join([*parts, panels.shards(history), panels.events(history), panels.comparison([history], [HOSTILE])])


def test_hostile_names_are_text_everywhere() -> None:
    history = History(HOSTILE)
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


@pytest.mark.parametrize("history", [History(), History("x")])
def test_nothing_is_shown_as_nothing(history: History) -> None:
    text = Tags(everything(history)).text
    for part in ("waiting for", "no workers yet", "no shard has said anything", "nothing yet", "nothing to compare"):
        assert part in text


def test_once_it_is_over_servers_tell_what_they_moved_in_all() -> None:
    history = History()
    history.add(loss(), 1.0)
    assert "servers receive" not in panels.tiles(history)  # a replay knows of no shards
    history.add(server_sample(1.0, 0, 1, 10, 0, 3_000_000, bytes_out=2_000_000), 1.0)
    assert "servers receive<" in panels.tiles(history)
    history.add(Event(2.0, "finished", "shard 0", "complete"), 2.0)
    text = Tags(panels.tiles(history)).text
    assert "servers received3 MBand sent 2 MB" in text


def test_silence_ending_and_failure_are_told() -> None:
    history = History()
    history.add(loss(), 10.0)
    assert panels.state(history, 11.0) == ("good", "training")
    assert panels.state(history, 30.0) == ("warn", "no data for 20 s")
    history.finished = True
    assert panels.state(history, 30.0) == ("calm", "finished")
    history.failed = "disk full"
    assert panels.state(history, 30.0) == ("bad", "failed: disk full")


def test_lost_workers_stand_first_and_many_are_cut() -> None:
    history = History()
    for number in range(100):
        history.add(worker(f"w{number}"), 1.0)
    history.add(worker("w99", "lost"), 1.0)
    text = Tags(panels.workers(history, 1.0)).text
    assert text.index("w99") < text.index("w0")
    assert text.index("w2training") < text.index("w10training")
    assert "and 36 more" in text


def replayed(trace: Trace, history: History) -> tuple[dict[str, list[float]], int]:
    """What a reader has that follows `trace` while a run goes on, and how often it had to start over."""
    columns: dict[str, list[float]] = {}
    restarts = 0
    for number, sample in enumerate(run_of(seconds=20, hz=50)):
        history.add(sample, 0.0)
        if number % 7:
            continue
        change = trace.change()
        restarts += change.replace
        for name, values in change.columns.items():
            columns[name] = values if change.replace else columns[name] + values
        assert len({len(values) for values in columns.values()}) == 1
    return columns, restarts


@pytest.mark.parametrize("limit", [64, 10_000])
def test_a_reader_that_follows_a_trace_has_the_curve(limit: int) -> None:
    history = History()
    history.overall.limit = limit
    trace = Trace(history)
    columns, restarts = replayed(trace, history)
    change = trace.change()
    assert columns["t"] + change.columns["t"] == [
        round(history.since_start(point.t), 2) for point in history.overall.points
    ]
    assert change.head["t"][-1] == pytest.approx(19.98)
    assert restarts <= 6


def test_a_trace_says_nothing_twice() -> None:
    history = History()
    for number, value in enumerate([1.0, 0.0, 1.0], start=1):
        history.add(loss(float(number), entries=100 * number, value=value, mean_loss=0.5), 0.0)
    trace = Trace(history)
    change = trace.change()
    assert (change.columns["loss"], change.columns["mean"]) == ([1.0, 0.0, 1.0], [0.5] * 3)
    assert change.replace
    change = trace.change()
    assert (change.columns["loss"], change.replace) == ([], False)
    assert change.head["mean"][-1] == 0.5


def test_another_run_replaces_the_curve() -> None:
    history = History()
    history.begin("a")
    history.add(loss(), 0.0)
    trace = Trace(history)
    trace.change()
    history.begin("b", anew=True)
    history.add(loss(0.5, entries=3), 0.0)
    change = trace.change()
    assert change.replace
    assert change.columns["entries"] == [3e-6]


def test_each_worker_has_a_coarse_curve() -> None:
    history = History()
    for sample in run_of(["w10", "w2"], seconds=20, hz=50):
        history.add(sample, 0.0)
    found = each_worker(history)
    assert found["worker"] == ["w2", "w10"]
    assert all(100 < len(curve) <= 150 for curve in found["loss"])
    assert [len(curve) for curve in found["t"]] == [len(curve) for curve in found["loss"]]


def test_fifty_workers_have_coarser_curves_than_two() -> None:
    history = History()
    for sample in run_of([f"w{n}" for n in range(50)], seconds=20, hz=20):
        history.add(sample, 0.0)
    assert sum(map(len, each_worker(history)["loss"])) <= ALL_POINTS


MARKUP = "<img src=x>"


@dataclass
class Fixed:
    """A lookup that knows what it knows."""

    known: Known | None = None
    trouble: str = ""
    share: float | None = None

    def want(self, now: float) -> None:
        raise AssertionError

    def step(self) -> None:
        raise AssertionError


def known(*words: str) -> Known:
    vectors = unit(np.eye(len(words), dtype=np.float32) + 1)
    return Known(words, {word: row for row, word in enumerate(words)}, vectors)


@pytest.mark.parametrize(
    ("word", "lookup", "says"),
    [
        ("", Fixed(), "Asks the running server"),
        ("one", None, "nobody to ask"),
        ("one", Fixed(share=0.0), "asking for the vectors"),
        ("one", Fixed(known("one", MARKUP), share=0.4), "width:40%"),
        ("one", Fixed(known("one", MARKUP)), "&lt;img src=x&gt;"),
        ("ONE", Fixed(known("one", "two")), "0.80"),
        (MARKUP, Fixed(known("one", "two")), "&lt;img src=x&gt; is not among the 2 words"),
        ("one", Fixed(trouble=MARKUP), "&lt;img src=x&gt;"),
    ],
)
def test_nearest_words_are_told_as_text(word: str, lookup: Fixed | None, says: str) -> None:
    told = nearby.near(word, lookup, 0.5)
    assert says in told
    assert "<img" not in told
    assert "ago" not in told
    if lookup is not None and lookup.known is not None:
        assert "as of 30 s ago" in nearby.near(word, lookup, 30.0) or "not among" in told


def test_runs_are_asked_side_by_side() -> None:
    first, second = History("a <b>"), History("b")
    lookups = [Fixed(known("one", "two")), Fixed(trouble="no vectors")]
    told = nearby.compared("one", [first, second], lookups, ["red", "blue"])
    assert "a &lt;b&gt;" in told
    assert "two" in told
    assert "no vectors" in told


def test_staleness_and_hot_rows_are_shown_with_their_words() -> None:
    history = History()
    assert "no shard" in nearby.staleness(history)
    told = {"staleness": {"0": 3, "1": 1}, "hot_rows": {"1": 9, "0": 2, "40-79": 1, "99": 1}}
    history.add(server_sample(1.0, 0, 1, 100, 5, 0, **told), 0.0)
    assert "75.0%" in nearby.staleness(history)
    assert "row 1" in nearby.hottest(history, None)
    rows = nearby.hottest(history, Fixed(known("one", MARKUP)))
    assert "&lt;img src=x&gt;" in rows
    assert "rows 40 to 79" in rows
    assert "row 99" in rows
