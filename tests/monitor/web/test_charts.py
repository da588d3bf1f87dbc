"""Columns for the dashboard's charts: a reader that follows them has the whole curve, and no point comes twice."""

from __future__ import annotations

import html

import pytest
from monitor_fakes import loss, run_of

from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.web.charts import MAX_POINTS_OF_ALL_WORKERS, Charts, CurveColumns, worker_columns


def replayed(source: CurveColumns, history: RunHistory) -> tuple[dict[str, list[float]], int]:
    """Return what a reader has that follows `source` during a run, and how often it had to start over."""
    columns: dict[str, list[float]] = {}
    restarts = 0
    for number, sample in enumerate(run_of(seconds=20, hz=50)):
        history.add(sample, 0.0)
        if number % 7:
            continue
        update = source.update()
        restarts += update.replace
        for name, values in update.columns.items():
            columns[name] = values if update.replace else columns[name] + values
        assert len({len(values) for values in columns.values()}) == 1
    return columns, restarts


@pytest.mark.parametrize("limit", [64, 10_000])
def test_a_reader_that_follows_the_columns_has_the_curve(limit: int) -> None:
    history = RunHistory()
    history.overall.limit = limit
    source = CurveColumns(history)
    columns, restarts = replayed(source, history)
    update = source.update()
    assert columns["t"] + update.columns["t"] == [
        round(history.since_start(point.t), 2) for point in history.overall.points
    ]
    assert update.head["t"][-1] == pytest.approx(19.98)
    assert restarts <= 6


def test_no_point_is_sent_twice() -> None:
    history = RunHistory()
    for number, value in enumerate([1.0, 0.0, 1.0], start=1):
        history.add(loss(float(number), entries=100 * number, value=value, mean_loss=0.5), 0.0)
    source = CurveColumns(history)
    update = source.update()
    assert (update.columns["loss"], update.columns["mean"]) == ([1.0, 0.0, 1.0], [0.5] * 3)
    assert update.replace
    update = source.update()
    assert (update.columns["loss"], update.replace) == ([], False)
    assert update.head["mean"][-1] == 0.5


def test_another_run_replaces_the_curve() -> None:
    history = RunHistory()
    history.begin("a")
    history.add(loss(), 0.0)
    source = CurveColumns(history)
    source.update()
    history.begin("b", restarted=True)
    history.add(loss(0.5, entries=3), 0.0)
    update = source.update()
    assert update.replace
    assert update.columns["done"] == [3]


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
