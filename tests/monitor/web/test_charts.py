"""Columns for the dashboard's charts: a reader that follows them has the whole curve, and no point comes twice."""

from __future__ import annotations

import html

import pytest
from monitor_fakes import loss, run_of

from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.web.charts import MAX_POINTS_OF_ALL_WORKERS, Charts, RunSources, worker_columns


def sources(history: RunHistory) -> RunSources:
    """Return the sources of a run; skip the test without Bokeh."""
    pytest.importorskip("bokeh")
    return RunSources(history, "red")


def is_sent_anew(source: RunSources) -> bool:
    """Update the sources; return whether the whole curve was sent, rather than points to append."""
    before = source.curve.data
    source.update(workers=False)
    assert len({len(values) for values in source.curve.data.values()}) == 1
    return source.curve.data is not before


@pytest.mark.parametrize("limit", [64, 10_000])
def test_a_reader_that_follows_the_columns_has_the_curve(limit: int) -> None:
    history = RunHistory()
    history.overall.limit = limit
    source, restarts = sources(history), 0
    for number, sample in enumerate(run_of(seconds=20, hz=50)):
        history.add(sample, 0.0)
        if number % 7 == 0:
            restarts += is_sent_anew(source)
    is_sent_anew(source)
    assert source.curve.data["t"] == [round(history.since_start(point.t), 2) for point in history.overall.points]
    assert source.head.data["t"][-1] == pytest.approx(19.98)
    assert 1 <= restarts <= 6


def test_no_point_is_sent_twice() -> None:
    history = RunHistory()
    for number, value in enumerate([1.0, 0.0, 1.0], start=1):
        history.add(loss(float(number), entries=100 * number, value=value, mean_loss=0.5), 0.0)
    source = sources(history)
    assert is_sent_anew(source)
    assert (source.curve.data["loss"], source.curve.data["mean"]) == ([1.0, 0.0, 1.0], [0.5] * 3)
    history.add(loss(4.0, entries=400, value=0.0, mean_loss=0.5), 0.0)
    for _ in range(2):
        assert not is_sent_anew(source)
        assert source.curve.data["loss"] == [1.0, 0.0, 1.0, 0.0]
    assert source.head.data["mean"][-1] == 0.5


def test_another_run_replaces_the_curve() -> None:
    history = RunHistory()
    history.begin("a")
    history.add(loss(), 0.0)
    source = sources(history)
    is_sent_anew(source)
    history.begin("b", restarted=True)
    history.add(loss(0.5, entries=3), 0.0)
    assert is_sent_anew(source)
    assert source.curve.data["done"] == [3]


def test_each_worker_has_a_coarse_curve() -> None:
    history = RunHistory()
    for sample in run_of(["w10", "w2"], seconds=20, hz=50):
        history.add(sample, 0.0)
    found = worker_columns(history)
    assert found["worker"] == ["w2", "w10"]
    assert all(100 < len(curve) <= 150 for curve in found["loss"])
    assert [len(curve) for curve in found["t"]] == [len(curve) for curve in found["loss"]]


def test_fifty_workers_have_coarser_curves_than_two() -> None:
    history = RunHistory()
    for sample in run_of([f"w{n}" for n in range(50)], seconds=20, hz=20):
        history.add(sample, 0.0)
    assert sum(map(len, worker_columns(history)["loss"])) <= MAX_POINTS_OF_ALL_WORKERS


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "@<b>t", "@t", "$index", "@{done}"])
def test_a_tooltip_shows_a_name_as_it_is(name: str) -> None:
    """Bokeh puts values in place of @t and $index, and takes the rest as HTML."""
    models = pytest.importorskip("bokeh.models")
    charts = Charts([RunHistory(name), RunHistory(name)])
    tooltips = [tool.tooltips for tool in charts.by_time.select({"type": models.HoverTool})]
    assert tooltips
    for tooltip in tooltips:
        run = tooltip.partition(">run</span>")[2].partition("</span>")[0].partition(">")[2]
        assert html.unescape(run) == name
        assert not set(run) & set("@$<>{}")
