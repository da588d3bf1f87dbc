"""The dashboard without a browser: words and tables as HTML, columns for charts, and what the server hands out."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from monitor_fakes import loss, run_of, shard, worker

from common.messages import Event, QualitySample
from monitor import panels
from monitor.history import History
from monitor.traces import Trace, each_worker

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
        change = trace.change(0.0)
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
    change = trace.change(0.0)
    assert columns["t"] + change.columns["t"] == [history.since_start(point.t) for point in history.overall.points]
    assert change.head["t"][-1] == pytest.approx(19.98)
    assert restarts <= 6


def test_another_span_of_means_starts_over() -> None:
    history = History()
    for number, value in enumerate([1.0, 0.0, 1.0, 0.0], start=1):
        history.add(loss(float(number), entries=100 * number, value=value, total=400), 0.0)  # type: ignore[arg-type]
    trace = Trace(history)
    assert trace.change(0.0).columns["smooth"] == [1.0, 0.0, 1.0, 0.0]
    change = trace.change(1.0)
    assert change.replace
    assert change.columns["smooth"] == [0.5, 0.5], "two whole epochs"
    assert change.columns["entries"] == [1e-4, 3e-4], "each in its middle"
    assert change.head["smooth"] == [0.5, 0.5]
    assert change.head["entries"][-1] == 4e-4
    assert not trace.change(1.0).replace
    half = trace.change(0.5)
    assert half.replace
    assert half.columns["smooth"] == [1.0, 0.0, 1.0, 0.0]


def test_another_run_replaces_the_curve() -> None:
    history = History()
    history.begin("a")
    history.add(loss(), 0.0)
    trace = Trace(history)
    trace.change(0.0)
    history.begin("b", anew=True)
    history.add(loss(0.5, entries=3), 0.0)
    change = trace.change(0.0)
    assert change.replace
    assert change.columns["entries"] == [3e-6]


def test_each_worker_has_a_coarse_curve() -> None:
    history = History()
    for sample in run_of(["w10", "w2"], seconds=20, hz=50):
        history.add(sample, 0.0)
    found = each_worker(history, 0.5)
    assert found["worker"] == ["w2", "w10"]
    assert all(100 < len(curve) <= 150 for curve in found["loss"])
    assert [len(curve) for curve in found["t"]] == [len(curve) for curve in found["loss"]]
