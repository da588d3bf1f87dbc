"""The terminal view: fits, tells what matters, survives hostile names, and falls back to lines."""

from __future__ import annotations

import io
import re

import pytest
from monitor_fakes import dense_history, loss, run_of, shard, worker
from rich.console import Console

from glovewire.common.protocol.messages import Event, QualitySample
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.terminal.braille import braille_plot
from glovewire.monitor.terminal.screen import plan_layout, render_screen
from glovewire.monitor.terminal.view import LineView, LiveView, open_view, status_line


def history_of(workers: int = 3, shards: int = 2, until: float = 6.0) -> RunHistory:
    history = RunHistory("pydoc")
    for sample in run_of([f"w{n}" for n in range(workers)], seconds=10, shards=shards):
        if sample.t > until:  # type: ignore[attr-defined]
            break
        history.add(sample, sample.t)  # type: ignore[attr-defined]
    return history


def shown(history: RunHistory, now: float, width: int = 80, height: int = 23, **options: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height + 1, color_system=None, highlight=False)
    console.print(render_screen(history, now, width, height, ["tcp://127.0.0.1:9"], **options))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1, 3, 50])
@pytest.mark.parametrize("shards", [0, 1, 9])
@pytest.mark.parametrize(("width", "height"), [(80, 23), (200, 60), (60, 12), (40, 5)])
def test_the_screen_is_never_higher_or_wider_than_asked(workers: int, shards: int, width: int, height: int) -> None:
    lines = shown(history_of(workers, shards), 6.1, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_everything_that_matters_is_on_a_small_screen() -> None:
    text = "\n".join(shown(history_of(), 6.1))
    for part in ("training", "60%", "32.4 M of 54 M", "epoch 7/10", "ETA", "bias-only loss 0.0750", "entries/s", "w2"):
        assert part in text
    for part in ("worker", "shard", "0/2", "1/2", "epoch  6", "norm 2.32"):
        assert part in text


def test_scores_are_on_a_screen_of_80_columns_and_in_the_lines() -> None:
    history = history_of()
    assert any("wordsim353" in text and re.search(r"wordsim353 \d\d\.\d", text) for text in shown(history, 6.1, 80, 23))
    assert re.search(r" score_wordsim353=\d\d\.\d ", status_line(history, 6.1))
    history.add(QualitySample(6.0, 1, "event=x workers", 50.0), 6.0)
    assert " score_event_x_workers=50.0 " in status_line(history, 6.1), "a name cannot pose as another key"


@pytest.mark.parametrize("steps", [0, 1000])
def test_a_dense_model_is_shown_as_what_it_is(steps: int) -> None:
    history = dense_history(steps)
    text = "\n".join(shown(history, 10.0, 120, 39))
    line = status_line(history, 10.0)
    for part in ("net", "training loss 0.0909", "test accuracy 91.2", "20 steps/s", "examples/s", "gradient norm 0.5"):
        assert part in text, text
    for part in ("loss=0.0909", "score_test_accuracy=91.2", "steps_per_second=20", "examples=12800"):
        assert part in line, line
    assert ("20%  200 of 1,000 steps" in text) == ("ETA 0:40" in text) == bool(steps)
    assert ("steps=200/1000" in line) == ("eta=0:40" in line) == bool(steps)
    assert not any(word in text + line for word in ("bias", "epoch", "entries", "vector norm"))
    assert "training loss 0.0909" in "\n".join(shown(history, 10.0, 80, 23))


def test_states_are_told() -> None:
    history = history_of()
    history.add(worker("w1", "lost", t=6.0, age_s=3.0), 6.0)
    assert any("w1" in text and "lost" in text and "5 s" in text for text in shown(history, 8.0))
    assert "no data for 60 s" in shown(history, 66.0)[0]
    history.add(Event(6.0, "failed", "shard 0", "disk full"), 66.0)
    assert "failed: disk full" in shown(history, 66.0)[0]
    assert "waiting for tcp://127.0.0.1:9" in shown(RunHistory(), 1.0)[0]


def test_no_worker_trains_once_the_run_has_finished() -> None:
    history = history_of()
    history.add(worker("w1", "lost", t=6.0, age_s=3.0), 6.0)
    history.finished = True
    lines = shown(history, 8.0)
    assert not any("training" in text for text in lines)
    assert any("w0" in text and "done" in text for text in lines)
    assert any("w1" in text and "lost" in text for text in lines)


def test_lost_workers_come_first_when_there_is_no_room_for_all() -> None:
    history = history_of(50)
    history.add(worker("w49", "lost"), 6.0)
    lines = shown(history, 6.1)
    assert any(text.startswith("w49") for text in lines)
    assert any("more" in text for text in lines)


def test_a_hostile_name_is_text() -> None:
    history = history_of()
    history.add(worker("[red]x[/red]\x1b[2J\r\n"), 6.0)
    text = "\n".join(shown(history, 6.1))
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_simple_terminal_gets_ascii() -> None:
    text = "\n".join(shown(history_of(), 6.1, ascii_only=True))
    assert text.replace("…", "").isascii()
    assert "*" in text


def test_the_curve_falls_from_the_top_left_to_the_bottom_right() -> None:
    rows, (low, high) = braille_plot([[(float(t), 1.0 / (t + 1)) for t in range(50)]], 20, 6)
    assert (low, high) == pytest.approx((0.02, 1.0))
    assert rows[0][0][1] == 0
    assert rows[-1][-1][1] == 0
    assert rows[-1][0] == (" ", -1)


@pytest.mark.parametrize("curve", [[], [(1.0, 0.0)], [(1.0, 2.0)], [(0.0, 1.0), (0.0, 1.0)]])
def test_a_curve_of_little_is_drawn(curve: list[tuple[float, float]]) -> None:
    rows, _ = braille_plot([curve, []], 10, 3)
    assert [len(row) for row in rows] == [10, 10, 10]


def test_room_is_shared_so_that_nothing_is_lost() -> None:
    layout = plan_layout(23, workers=3, shards=1, events=9)
    assert (layout.workers, layout.shards) == (3, 1)
    assert layout.events >= 3
    assert layout.plot >= 6


def test_lines_come_every_few_seconds_and_events_at_once() -> None:
    stream, history = io.StringIO(), RunHistory()
    lines = LineView(stream)
    assert isinstance(open_view(stream), LineView)
    for tick in range(200):
        now = tick / 10
        if tick == 20:
            history.add(loss(1.0), now)
            history.add(Event(1.0, "joined", "w 1\n", "hello"), now)
        elif tick > 20:
            history.add(shard(t=now), now)
        lines.show(history, now, ["tcp://127.0.0.1:9"])
    history.add(loss(20.0, entries=900), 20.0)
    lines.close(history, 20.0)
    texts = [text.split(" ", 1)[1] for text in stream.getvalue().splitlines()]
    assert [text.split()[0] for text in texts] == [
        "event=waiting", "event=joined", "event=progress", "event=progress", "event=progress", "event=progress",
    ]  # fmt: skip
    assert "address=tcp://127.0.0.1:9" in texts[0]
    assert "subject='w 1" in texts[1]
    assert "entries=900" in texts[-1]


def test_lines_tell_silence() -> None:
    stream, history = io.StringIO(), RunHistory()
    history.add(loss(), 0.0)
    lines = LineView(stream)
    lines.show(history, 30.0)
    lines.show(history, 36.0)
    assert "event=silence no_data_for=36s" in stream.getvalue()


def test_lines_say_that_a_server_writes_its_results() -> None:
    history = RunHistory()
    for sample in (loss(), worker("w0"), Event(2.0, "left", "w0", "complete"), worker("w0", "left")):
        history.add(sample, 10.0)
    assert status_line(history, 40.0) == "event=writing text='trained, writing the results' seconds=30"
    history.add(Event(3.0, "finished", "", ""), 41.0)
    assert status_line(history, 42.0).startswith("event=progress ")


def test_the_live_view_redraws_in_place_and_leaves_the_last_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in (("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    stream, history = Terminal(), history_of()
    live = open_view(stream)
    assert isinstance(live, LiveView)
    for tick in range(20):
        live.show(history, 6.0 + tick / 20)
    live.close(history, 7.0)
    live.close(history, 7.0)
    text = stream.getvalue()
    assert text.count("glovewire") <= 7
    assert "\x1b[2J" not in text, "clearing the whole screen flickers"
    assert text.count("\x1b[?25h") == 1, "the cursor comes back"
