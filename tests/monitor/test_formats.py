"""Formats that people use already: TensorBoard's event files and Prometheus' text, each read back by a reader."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from click.testing import CliRunner
from monitor_fakes import loss, run_of, worker

from glovewire.common.errors import BindError, MissingExtra, OutputError, require_extra
from glovewire.common.storage.run_folder import write_vectors
from glovewire.monitor.cli import monitor
from glovewire.monitor.history.history import RunHistory
from glovewire.monitor.history.records import Recorder
from glovewire.monitor.sinks.prometheus import Prometheus
from glovewire.monitor.sinks.tensorboard import TensorBoard


def scalars(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of every scalar in the event files of `folder`."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for file in folder.iterdir():
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_gets_scalars_over_entries(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    board = TensorBoard(tmp_path / "board")
    for sample in run_of(["w0", "<b>w 1</b>"], seconds=4):
        board.add(sample)
    board.close()
    board.close()
    found = list(scalars(tmp_path / "board"))
    overall = [(step, value) for tag, step, value in found if tag == "loss/all"]
    assert len(overall) == 20
    assert overall[-1] == (54_000_000, pytest.approx(0.0289, rel=0.01))
    tags = {tag for tag, _, _ in found}
    assert {"loss/bias_only", "vectors/norm", "loss/worker/w0", "quality/wordsim353"} <= tags


def test_tensorboards_own_reader_finds_the_scalars_and_the_words_with_their_vectors(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    projector = pytest.importorskip("tensorboard.plugins.projector.projector_plugin")
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    run, board = tmp_path / "run", tmp_path / "board"
    run.mkdir()
    with closing(Recorder(run / "metrics.jsonl")) as recorder:
        for sample in run_of(["w0"], seconds=4):
            recorder.add(sample)
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    write_vectors(run, ["one", "<b>two</b>", "thr\u0007ee"], vectors)
    result = CliRunner().invoke(monitor, ["--replay", str(run), "--tensorboard", str(board)])
    assert result.exit_code == 0, result.output

    events = accumulator.EventAccumulator(str(board)).Reload()
    assert "loss/all" in events.Tags()["scalars"]
    assert len(events.Scalars("loss/all")) == 20
    config = text_format.Parse((board / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    found = projector._read_tensor_binary_file(str(board / embedding.tensor_path), embedding.tensor_shape)
    assert np.array_equal(found, vectors)
    assert (board / embedding.metadata_path).read_text().splitlines() == ["one", "<b>two</b>", "thr\ufffdee"]


def test_tensorboard_that_cannot_write_says_so(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        TensorBoard(tmp_path / "file" / "board")


@pytest.fixture
def served() -> Iterator[tuple[RunHistory, Prometheus]]:
    pytest.importorskip("prometheus_client")
    history = RunHistory()
    metrics = Prometheus(history, "127.0.0.1", 0)
    yield history, metrics
    metrics.close()
    metrics.close()


def scrape(url: str) -> dict[tuple[str, str], float]:
    """Every sample of the page, as a Prometheus server would read it: (name, value of the first label) -> value."""
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(url, timeout=120) as answer:
        page = answer.read().decode()
    families = text_string_to_metric_families(page)
    return {(s.name, next(iter(s.labels.values()), "")): s.value for family in families for s in family.samples}


def test_prometheus_reads_the_run(served: tuple[RunHistory, Prometheus]) -> None:
    history, metrics = served
    before = scrape(metrics.url)
    assert before[("glovewire_run_info", "")] == 1
    history.begin("run-1")
    for sample in [*run_of(["w0", 'a "quoted"\\ name'], seconds=10), worker("w0", "lost")]:
        history.add(sample, 0.0)
        metrics.add(sample)
    found = scrape(metrics.url)
    assert found[("glovewire_entries_total", "")] == 54_000_000
    assert found[("glovewire_loss", "")] == pytest.approx(0.0289, rel=0.01)
    assert found[("glovewire_workers", "lost")] == 1
    assert found[("glovewire_workers", "training")] == 1
    assert found[("glovewire_shard_received_bytes_total", "1")] == 160_000_000
    assert found[("glovewire_worker_entries_total", 'a "quoted"\\ name')] == 27_000_000
    assert found[("glovewire_run_info", "run-1")] == 1
    assert all(name.startswith("glovewire_") for name, _ in found)


def test_prometheus_is_told_of_losses_of_any_objective(served: tuple[RunHistory, Prometheus]) -> None:
    _, metrics = served
    for sample in run_of(seconds=4):
        metrics.add(sample)
    told = {family.name: family.documentation for family in metrics.collect()}
    assert told["glovewire_loss"] == "Loss per entry, over the whole matrix."
    assert told["glovewire_worker_loss"] == "Mean loss per entry of a worker."


def test_the_grafana_dashboard_asks_for_metrics_that_there_are(served: tuple[RunHistory, Prometheus]) -> None:
    history, metrics = served
    for sample in run_of(seconds=4):
        history.add(sample, 0.0)
        metrics.add(sample)
    there = {name for name, _ in scrape(metrics.url)}
    text = (Path(__file__).parents[2] / "examples" / "grafana.json").read_text()
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"glovewire_\w+", query)}
    assert len(asked) > 15
    assert asked - there == set()


def test_a_port_in_use_is_told(served: tuple[RunHistory, Prometheus]) -> None:
    port = int(served[1].url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(BindError, match="the port is in use"):
        Prometheus(RunHistory(), "127.0.0.1", port)


def test_a_missing_extra_names_the_way_out() -> None:
    with pytest.raises(MissingExtra, match=r"--web needs nowhere: pip install 'glovewire\[web\]'"):
        require_extra("nowhere", "web", "--web")


def test_a_failed_or_silent_run_still_scrapes(served: tuple[RunHistory, Prometheus]) -> None:
    _, metrics = served
    metrics.add(loss(worker="only a loss"))
    assert ("glovewire_worker_loss", "only a loss") in scrape(metrics.url)
