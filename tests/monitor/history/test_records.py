"""Records: lines that are there at once, read back equal, torn lines passed over, and the picture drawn from them."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.text import Text
from monitor_fakes import dense_history, loss, run_of, run_sample, worker

from glovewire.common.errors import ArtifactError, OutputError, UsageError
from glovewire.monitor.cli import monitor
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.history.records import Recorder, read_metrics
from glovewire.monitor.sinks import plot as module
from glovewire.monitor.sinks.plot import check_path, draw, plot

KEYS = {
    "mean_loss",
    "mean_bias_only_loss",
    "t",
    "entries",
    "loss",
    "epoch",
    "worker",
    "bias_only_loss",
    "norm",
    "entries_per_second",
}


pytestmark = pytest.mark.usefixtures("fonts_are_closed")


def test_lines_are_on_disk_at_once_and_hold_what_was_promised(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with closing(Recorder(path)) as recorder:
        recorder.add(loss(2.5, entries=7, value=0.25))
        recorder.add(worker())
        record, other = [json.loads(text) for text in path.read_text().splitlines()]
    assert record.keys() == KEYS
    assert other["topic"] == "worker"
    assert (record["t"], record["entries"], record["loss"], record["worker"]) == (2.5, 7, 0.25, "all")


def test_a_log_of_everything_gives_the_same_history(tmp_path: Path) -> None:
    live, path = RunHistory(), tmp_path / "all.jsonl"
    with closing(Recorder(path)) as recorder:
        for sample in run_of(seconds=10):
            live.add(sample, sample.t)  # type: ignore[attr-defined]
            recorder.add(sample)
    again = read_metrics(path)
    assert again.overall.all_points()[-1].loss == pytest.approx(live.overall.all_points()[-1].loss)
    assert sorted(again.workers) == sorted(live.workers)
    assert [event.kind for event in again.events] == [event.kind for event in live.events]
    assert again.shards.keys() == live.shards.keys()


def test_a_torn_last_line_is_passed_over_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with closing(Recorder(path)) as recorder:
        recorder.add(loss(1.0, entries=1))
        recorder.add(loss(2.0, entries=2))
    path.write_bytes(path.read_bytes()[:-20])
    assert [p.position for p in read_metrics(tmp_path).overall.all_points()] == [1]
    with closing(Recorder(path)) as recorder:
        recorder.add(loss(3.0, entries=3))
    assert [p.position for p in read_metrics(path).overall.all_points()] == [1, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "no losses"),
        (b'{"t": 1}\n{"t": 2}\n', "line 1"),
        (b"[1]\n{}\n", "line 1"),
        (b'{"t": NaN, "entries": 1, "loss": 1, "epoch": 0, "worker": "all"}\n\n', "line 1"),
        (b'{"topic": "nothing"}\n\n', "line 1"),
        (b"\xff\xfe\n\n", "line 1"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=says) as error:
        read_metrics(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["no newline at the end", '{"my": "settings"}', '{\n "my": "settings"\n}'])
def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text(text)
    with pytest.raises(OutputError, match="not a recording"):
        Recorder(path)
    assert path.read_text() == text
    with pytest.raises(OutputError, match="cannot be written"):
        Recorder(tmp_path / "missing" / "metrics.jsonl")


def history_of(*names: str) -> RunHistory:
    history = RunHistory("pydoc")
    for sample in run_of(names, seconds=10):
        history.add(sample, 0.0)
    return history


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"loss.{suffix}"
    plot(history_of("w0", "_hidden", "$x^", "火", "<svg/>"), path)
    data = path.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG")
    else:
        ElementTree.fromstring(data)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_picture_says_nothing_of_an_objective_that_it_does_not_know() -> None:
    figure = draw(history_of("w0"))
    assert figure.axes[0].get_ylabel() == "loss per entry"
    told = " ".join(text.get_text() for text in figure.findobj(Text)).lower()
    assert not any(word in told for word in ("glove", "squared"))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_what_cannot_be_drawn_in_a_name_is_spelt_out(tmp_path: Path, suffix: str) -> None:
    history = RunHistory("r\udcff\x07 $x^")  # a folder whose name is not UTF-8
    history.add(loss(), 1.0)
    plot(history, path := tmp_path / f"loss.{suffix}")
    assert draw(history).get_suptitle() == r"Training r\udcff\x07 $x^"
    if suffix == "svg":
        ElementTree.fromstring(path.read_bytes())


def test_the_picture_says_what_it_shows() -> None:
    figure = draw(history_of("w0", "w1"))
    by_time, by_entries, scores = figure.axes
    assert by_time.get_xlabel() == "training time (s)"
    assert by_entries.get_xlabel() == "million entries"
    assert scores.get_ylabel() == "score (%)"
    assert [text.get_text() for text in scores.get_legend().get_texts()] == ["wordsim353"]
    assert by_time.get_yscale() == "log"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["all workers, over the whole matrix", "bias-only loss", "w0", "w1"]
    bold = max(by_time.lines, key=lambda line: line.get_linewidth())
    assert bold.get_label() == "all workers, over the whole matrix"


def test_several_runs_are_drawn_in_one_picture(tmp_path: Path) -> None:
    first, second = history_of("w0"), history_of("w0", "w1")
    first.name, second.name = "A", "B"
    figure = draw([first, second])
    assert figure.get_suptitle() == "Training A, B"
    bold = [line.get_label() for line in figure.axes[0].lines if line.get_linewidth() > 2]
    assert bold == ["A", "B"]
    colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines if line.get_linewidth() > 2}
    assert len(set(colours.values())) == 2
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        with closing(Recorder(tmp_path / name / "metrics.jsonl")) as recorder:
            for sample in run_of(["w0"], seconds=3):
                recorder.add(sample)
    arguments = ["--replay", str(tmp_path / "A"), "--replay", str(tmp_path / "B"), "--plot", str(tmp_path / "f.svg")]
    assert CliRunner().invoke(monitor, arguments).exit_code == 0
    drawn = (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("A", "B")), "a legend that names both"


def test_a_dense_model_is_drawn_over_its_updates_without_a_bias_only_loss() -> None:
    figure = draw(dense_history())
    by_time, by_updates, _ = figure.axes
    assert (by_updates.get_xlabel(), by_time.get_ylabel()) == ("updates", "loss per example")
    assert max(by_updates.lines[-1].get_xdata()) == 200
    told = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "200 updates, 12.8 k examples" in told
    assert "gradient norm 0.5" in told
    assert not any(word in told for word in ("bias-only", "entries", "vector norm", "epochs"))


def test_what_is_trained_survives_a_recording(tmp_path: Path) -> None:
    with closing(Recorder(tmp_path / "metrics.jsonl")) as recorder:
        for sample in (run_sample(dataset="wiki", dim=50), loss()):
            recorder.add(sample)
    history = read_metrics(tmp_path)
    assert (history.dataset, history.settings["dim"]) == ("wiki", "50")


def test_a_loss_that_falls_below_zero_is_in_the_picture() -> None:
    history = RunHistory("likelihood")
    for t, value in enumerate((3.0, 0.5, -1.0, -2.0)):
        history.add(loss(float(t), entries=100 * (t + 1), value=value, bias_only_loss=0.0), float(t))
    by_time, _ = draw(history).axes
    assert by_time.get_yscale() == "linear"
    assert by_time.get_ylim()[0] < -2.0


def test_many_workers_share_one_entry_in_the_legend() -> None:
    figure = draw(history_of(*(f"w{n}" for n in range(20))))
    assert "20 workers" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("history", [RunHistory(), RunHistory("one")])
def test_little_is_drawn_as_little(history: RunHistory, tmp_path: Path) -> None:
    if history.name:
        history.add(loss(), 1.0)
    plot(history, tmp_path / "loss.png")


def test_names_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        check_path(tmp_path / "loss.gif")
    with pytest.raises(OutputError, match="no such folder"):
        plot(RunHistory(), tmp_path / "missing" / "loss.png")


def test_a_picture_that_cannot_be_written_or_drawn_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cache(*_: object) -> None:
        raise OSError("Matplotlib requires access to a writable cache directory")  # it has no number

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # a read-only disk
        with pytest.raises(OutputError, match="no permission in"):
            check_path(tmp_path / "loss.png")
    monkeypatch.setattr(module, "draw", no_cache)
    with pytest.raises(OutputError, match="MPLCONFIGDIR"):
        plot(RunHistory(), tmp_path / "loss.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("epochs", "label", "ends"), [(8, "dotted: every 2 epochs", 3), (5, "dotted: ends of epochs", 4), (100, "", 0)]
)
def test_the_ends_of_epochs_are_where_they_were_however_few_samples_there_are(
    epochs: int, label: str, ends: int
) -> None:
    history = RunHistory()
    history.add(run_sample(epochs=epochs), 0.0)
    for t, entries in ((1.0, 90), (2.0, 700), (3.0, 1000)):
        history.add(loss(t, entries=entries, epochs=epochs), t)
    axes = draw([history]).axes[1]
    dotted = sorted(line.get_xdata()[0] for line in axes.lines if list(line.get_xdata()) == [line.get_xdata()[0]] * 2)
    assert dotted == pytest.approx([number * 1000e-6 / (ends + 1) for number in range(1, ends + 1)])
    assert [each.get_text() for each in axes.texts] == [label] * bool(label)
