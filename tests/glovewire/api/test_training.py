"""The library trains in background processes: typed errors, callbacks, interruptions, and nothing left behind."""

from __future__ import annotations

import json
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from forked import programs_fork
from handmade import random_dataset
from processes import until

import glovewire
from glovewire import errors
from glovewire.api import background, child
from glovewire.common.cli.config_file import to_toml
from glovewire.common.transport.curve_keys import make_keys
from glovewire.vectors import cli

TEXTS = ["the cat sits on the mat", "the dog sits on the rug", "a cat and a dog play"] * 20
LONG = {"dim": 4, "epochs": 1_000_000, "workers": 1, "subwords": 0.0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return glovewire.preprocess(TEXTS, tmp_path_factory.mktemp("made") / "data").path


def processes_of(run: Path) -> list[int]:
    """The ids of all processes that name the run on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(run) in words:
            found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
def _forks() -> Iterator[None]:
    with programs_fork():
        yield


# ---- corpora


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Carry out commands without a process for each, for tests of what they are given."""

    def run(command: str, arguments: Sequence[str], options: dict[str, Any], *_: Any, show: bool) -> dict[str, Any]:
        file = tmp_path_factory.mktemp("options") / "options.toml"
        file.write_text(to_toml(command, {name.replace("_", "-"): value for name, value in options.items()}))
        result: dict[str, Any] = child.outcome(command, [*arguments, "--config", str(file)])["result"]
        return result

    monkeypatch.setattr(background, "run", run)


@pytest.mark.usefixtures("in_this_process")
def test_texts_tokens_rows_and_files_are_the_same_corpus(tmp_path: Path) -> None:
    import datasets  # whose hash of a table, from_dict's, fails with some versions of dill
    import pyarrow as pa

    (tmp_path / "file.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    corpora = {
        "path": tmp_path / "file.txt",
        "name": str(tmp_path / "file.txt"),
        "paths": [tmp_path / "file.txt"],
        "list": TEXTS,
        "generator": (text for text in TEXTS),
        "tokens": [text.split() for text in TEXTS],
        "rows": [{"text": text} for text in TEXTS],
        "hub": datasets.Dataset(pa.table({"text": TEXTS}), fingerprint="text"),
    }
    made = {name: glovewire.preprocess(corpus, tmp_path / name, processes=1) for name, corpus in corpora.items()}
    for name, found in made.items():
        assert found.words == made["path"].words, name
        np.testing.assert_array_equal(found.entries, made["path"].entries, name)
    column = glovewire.preprocess(
        datasets.Dataset(pa.table({"body": TEXTS}), fingerprint="body"),
        tmp_path / "column",
        text_column="body",
        processes=1,
    )
    assert column.words == made["path"].words
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["file.txt", "column", *corpora])


@pytest.mark.usefixtures("_forks")
def test_lists_of_tokens_are_taken_as_they_are(tmp_path: Path) -> None:
    made = glovewire.preprocess([["New_York", "isn't", "U.S."]] * 2, tmp_path / "data")
    assert made.words == ("New_York", "U.S.", "isn't")


@pytest.mark.usefixtures("_forks")
@pytest.mark.parametrize(
    ("corpus", "options", "error", "says"),
    [
        ("no/such/file", {}, errors.CorpusError, "no/such/file does not exist"),
        ([["new york"]], {}, errors.CorpusError, "text 1 has the token 'new york'"),
        (["a", 3], {}, errors.CorpusError, "text 2 is int"),
        ([{"body": "x"}], {}, errors.CorpusError, "row 1 has no 'text', but body"),
        ([], {}, errors.CorpusError, "is empty"),
        (TEXTS, {"vocab_siz": 9}, errors.UsageError, "unknown option 'vocab-siz' in .*; did you mean 'vocab-size'?"),
        (TEXTS, {"window": 99}, errors.UsageError, "window must be between 1 and 15"),
        (TEXTS, {"min_count": 1000}, errors.CorpusError, "no word of the corpus occurs 1000 times"),
    ],
)
def test_a_corpus_that_cannot_be_counted_is_an_error(
    tmp_path: Path, corpus: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        glovewire.preprocess(corpus, tmp_path / "data", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_function_is_also_the_package() -> None:
    import glovewire.preprocess.config as config
    from glovewire.preprocess import pipeline

    assert callable(glovewire.preprocess)
    assert glovewire.preprocess.config is config  # type: ignore[attr-defined]
    assert pipeline.__name__ == "glovewire.preprocess.pipeline"


# ---- trainings


@pytest.mark.usefixtures("_forks")
def test_a_training_tells_callbacks_and_leaves_a_run(
    dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[glovewire.Progress] = []
    handlers: set[Any] = set()

    def note(state: glovewire.Progress) -> None:
        seen.append(state)
        handlers.add((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), threading.current_thread()))

    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), threading.current_thread())
    opened = glovewire.Dataset.open(dataset)
    run = glovewire.train(opened, tmp_path / "run", dim=8, epochs=5, workers=2, servers=2, callbacks=note)
    assert capfd.readouterr() == ("", "")
    assert handlers == {before}
    assert [state.entries for state in seen] == sorted(state.entries for state in seen)
    last = seen[-1]
    assert (last.run, last.epoch, last.epochs) == (run.path, 5, 5)
    assert 0 < last.loss < last.bias_only_loss
    assert run.facts["epochs"] == 5
    metrics = run.metrics()
    assert [line["entries"] for line in metrics] == [state.entries for state in seen]
    assert metrics[-1]["mean_loss"] == pytest.approx(last.loss)
    assert run.vectors.index_to_key[0] == "the"
    assert run.vectors.counts is not None
    assert run.vectors.counts.tolist() == sorted(glovewire.Dataset.open(dataset).counts.tolist(), reverse=True)
    assert repr(glovewire.Run(run.path)) == repr(run)
    assert len(run.plot().axes) == 2
    with pytest.raises(errors.OutputError, match="exists already"):
        glovewire.train(dataset, run.path)


@pytest.mark.usefixtures("_forks")
def test_a_training_in_a_thread_scores_every_test_set(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "pets.txt").write_text("cat dog 9\ncat mat 3\ndog rug 2\ncat rug 1\n")
    options: dict[str, Any] = {"dim": 8, "epochs": 3, "workers": 1, "watch": [tmp_path / "pets.txt"]}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(lambda: glovewire.train(dataset, tmp_path / "run", **options)).result()
    assert run.facts["epochs"] == 3
    assert {line["test"] for line in run.metrics("quality")} == {"pets"}
    with pytest.raises(errors.UsageError, match="no metrics 'losses'"):
        run.metrics("losses")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"dimm": 9}, errors.UsageError, "unknown option 'dimm' in .*; did you mean 'dim'?"),
        ({"dim": 0}, errors.UsageError, "dim must be between 1 and 4,096"),
        ({"store": "local", "workers": 2}, errors.UsageError, "--store local is one process"),
        ({"init": "no-run"}, errors.ArtifactError, "no-run does not exist"),
    ],
)
def test_a_training_that_cannot_begin_is_an_error(
    dataset: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        glovewire.train(dataset, tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match="is not the folder of a training"):
        glovewire.Run(tmp_path)


def test_a_callback_ends_a_training_that_keeps_its_vectors(dataset: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    run = glovewire.train(
        dataset, tmp_path / "run", servers=2, keys=tmp_path / "keys", **LONG, callbacks=lambda state: state.epoch >= 2
    )
    assert 2 <= run.facts["epochs"] < 1_000_000
    assert len(run.vectors) == len(glovewire.Dataset.open(dataset).words)
    assert processes_of(tmp_path) == []


@pytest.mark.usefixtures("_forks")
def test_a_callback_ends_a_training_that_was_resumed_with_fewer_servers(dataset: Path, tmp_path: Path) -> None:
    run = glovewire.train(dataset, tmp_path / "run", servers=2, dim=4, epochs=1, workers=1, subwords=0.0)
    (run.path / "logs" / "server-0.out").write_text("")
    done = run.resume(epochs=1_000_000, servers=1, workers=1, callbacks=lambda state: state.epoch >= 2)
    assert 2 <= done.facts["epochs"] < 1_000_000


@pytest.mark.usefixtures("_forks")
def test_a_callback_cannot_end_a_training_without_servers(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="store='server'"):
        glovewire.train(dataset, tmp_path / "run", **LONG, store="local", callbacks=lambda _: True)


def test_an_exception_of_a_callback_ends_a_training_that_can_be_resumed(dataset: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(state: glovewire.Progress) -> None:
        if state.epoch >= 1 and any((state.run / "checkpoints").glob("[!.]*.shard-0-of-1")):
            raise Enough

    with pytest.raises(Enough):
        glovewire.train(
            dataset, tmp_path / "run", callbacks=[stop], latency=["60ms"], checkpoint_every=1, **{**LONG, "epochs": 20}
        )
    until(lambda: processes_of(tmp_path) == [], "every process has ended")
    run = glovewire.Run(tmp_path / "run")
    reached = run.metrics()[-1]["epoch"]
    assert 1 <= reached < 20
    seen: list[glovewire.Progress] = []
    with programs_fork():
        done = run.resume()
        assert done.metrics()[-1]["epoch"] == 20
        assert done.facts["ending"] == "complete"
        assert done.resume(epochs=24, callbacks=seen.append).facts["epochs"] == 24
    assert (seen[0].epoch >= 20, seen[-1].epoch, seen[-1].epochs) == (True, 24, 24)


@pytest.mark.usefixtures("_forks")
def test_a_checkpoint_is_read_with_its_dataset(dataset: Path, tmp_path: Path) -> None:
    run = glovewire.train(
        dataset, tmp_path / "run", dim=8, epochs=4, workers=1, servers=2, checkpoint_every=1, subwords=0.0
    )
    parts = sorted((run.path / "checkpoints").glob("[!.]*.shard-1-of-2"))
    loaded = [glovewire.load(part, dataset=dataset) for part in parts[:1]] + [glovewire.load(p) for p in parts[1:]]
    final = [each for each in loaded if np.array_equal(each.vectors, run.vectors.vectors)]
    assert final, "no checkpoint has the final vectors"
    assert all(each.index_to_key == run.vectors.index_to_key for each in loaded)
    for command, words in (
        (cli.neighbours, ["cat"]),
        (cli.info, []),
        (cli.export, ["--format", "glove", "--out", str(tmp_path / "checkpoint.txt")]),
    ):
        outcome = CliRunner().invoke(command, [str(parts[0]), *words])
        assert outcome.exit_code == 0, outcome.output
    np.testing.assert_array_equal(glovewire.load(tmp_path / "checkpoint.txt").vectors, loaded[0].vectors)
    (tmp_path / "a link").symlink_to(parts[0])
    np.testing.assert_array_equal(glovewire.load(tmp_path / "a link", dataset=dataset).vectors, loaded[0].vectors)
    for name in ("manifest.json", "vectors.npy"):
        (run.path / name).unlink()
    unfinished = glovewire.load(run.path)
    np.testing.assert_array_equal(unfinished.vectors, run.vectors.vectors)
    other, _ = random_dataset(tmp_path / "other")
    with pytest.raises(errors.ArtifactError, match="was not trained on"):
        glovewire.load(parts[0], dataset=other.path)


@pytest.mark.usefixtures("_forks")
def test_an_estimator_leaves_nothing_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing.util.get_temp_dir()  # made once in a process, and removed at its end
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    model = glovewire.GloVe(vector_size=6, min_count=1, epochs=2, workers=1, objective="sgns", negatives=5.0)
    with pytest.raises(errors.UsageError, match="call fit"):
        _ = model.wv
    assert model.fit(TEXTS).wv.vector_size == 6
    assert "cats" in model.wv  # by n-grams
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "counting", "training"),
    [
        ({"engine": "ray"}, True, False),
        ({"launcher": "ray"}, False, True),
        ({"engine": "ray", "launcher": "ray"}, True, True),
        ({}, True, False),  # which refuses it
    ],
)
def test_an_estimator_takes_the_address_of_a_cluster_to_what_runs_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str], counting: bool, training: bool
) -> None:
    given: list[dict[str, Any]] = []
    for name in ("preprocess", "train"):
        monkeypatch.setattr(f"glovewire.api.glove.{name}", lambda *_, **options: given.append(options) or mock.Mock())
    glovewire.GloVe(**options, address="auto", out=tmp_path).fit(TEXTS)
    assert [each.get("address") == "auto" for each in given] == [counting, training]
    assert [each["seed"] for each in given] == [0, 0]


# ---- programs of a user

SCRIPT = """
import json, sys, glovewire
def note(state):
    print(json.dumps(state.epoch), flush=True)
try:
    glovewire.train(sys.argv[1], sys.argv[2], dim=4, epochs=1_000_000, workers=1, callbacks=[note])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def program(dataset: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of a user that trains without end, and has begun."""
    words = [sys.executable, "-c", SCRIPT, str(dataset), str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        yield process
        if process.poll() is None:
            process.kill()


def test_ctrl_c_ends_every_process(program: subprocess.Popen[str], tmp_path: Path) -> None:
    assert len(processes_of(tmp_path / "run")) >= 3  # the program, its background process, a server
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert out.splitlines()[-1] == "interrupted"
    assert err == ""
    until(lambda: processes_of(tmp_path / "run") == [], "every process has ended")


def test_no_process_outlives_a_program_that_is_killed(program: subprocess.Popen[str], tmp_path: Path) -> None:
    assert len(processes_of(tmp_path / "run")) >= 3
    program.kill()
    program.communicate(timeout=60)
    until(lambda: processes_of(tmp_path / "run") == [], "every process has ended")


def test_the_library_is_imported_without_libraries_and_lists_its_names() -> None:
    code = "import sys, glovewire, json; print(json.dumps([sorted(sys.modules), dir(glovewire)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, names = json.loads(done.stdout)
    assert not {"numpy", "zmq", "click", "rich", "tempfile"} & set(loaded)
    assert set(glovewire.__all__) <= set(names)
    for name in glovewire.__all__:
        assert getattr(glovewire, name)
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = glovewire.tarin  # type: ignore[attr-defined]
