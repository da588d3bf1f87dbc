"""Datasets, checkpoints, runs and vectors in a store that speaks S3, which fails, dawdles and refuses on purpose."""

from __future__ import annotations

import gzip
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from handmade import random_dataset
from object_store import SECRET, Answer, ObjectStore
from processes import FORKED, FREE, Flow, Running, free_port, until

import glovewire
from glovewire.common.errors import ArtifactError, StoreError
from glovewire.common.storage.stores import Store

pytest.importorskip("s3fs", reason="needs the extra 'cloud'")

EPOCHS = 80
TEXT = "the cat sits on the mat and the dog sits on the rug\n"


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(one_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in one_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    yield one_store
    one_store.answer = Answer.WELL


@pytest.fixture
def flow(store: ObjectStore, tmp_path: Path) -> Iterator[Flow]:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path, forked=(*FORKED, "preprocess", "info", "neighbours", "export")) as flow:
        yield flow


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The vectors of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("calm")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("calm", "--workers", 1, "--epochs", EPOCHS).ends(0)
        return flow.vectors("calm")


def names(url: str) -> set[str]:
    with Store(url) as store:
        return set(store.names())


def shown(flow: Flow) -> str:
    """All that was said, and all that was written in text."""
    files = [path for path in flow.folder.rglob("*") if path.suffix in (".toml", ".json", ".jsonl", ".log", ".out")]
    return "".join(each.out + each.err for each in flow.all) + "".join(path.read_text() for path in files)


# ---- datasets, runs and vectors


def test_text_becomes_vectors_in_the_store(flow: Flow, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "ab":
        (texts / f"{name}.txt.gz").write_bytes(gzip.compress((TEXT * 50).encode()))
    with Store("s3://bucket/one") as store:
        store.upload(texts, "text")
    flow.run("preprocess", "s3://bucket/one/text/*.txt.gz", "--out", "s3://bucket/one/data", "--processes", 1)
    flow.start("preprocess", "s3://bucket/one/text/a.txt.gz", "--out", "s3://bucket/one/data").fails("exists already")
    flow.run("preprocess", *sorted(texts.glob("*")), "--out", "here", "--processes", 1)
    assert names("s3://bucket/one/data") == {path.name for path in tmp_path.joinpath("here").iterdir()}

    train = ["--dim", 8, "--epochs", 2, "--workers", 1, "--quiet"]
    flow.run("train", "s3://bucket/one/data", "--out", "s3://bucket/one/run", *train)
    flow.run("train", "here", "--out", "calm", *train)
    here, there = glovewire.load(tmp_path / "calm"), glovewire.load("s3://bucket/one/run")
    assert there.index_to_key == here.index_to_key
    assert np.array_equal(there.vectors, here.vectors)
    assert {"config.toml", "metrics.jsonl", "manifest.json"} <= names("s3://bucket/one/run")
    flow.start("train", "s3://bucket/one/data", "--out", "s3://bucket/one/run", *train).fails("exists already")

    flow.run("export", "s3://bucket/one/run", "--format", "glove", "--out", "s3://bucket/one/vectors.txt")
    assert "rug" in flow.run("neighbours", "s3://bucket/one/vectors.txt", "cat").out
    assert flow.run("info", "s3://bucket/one/data", "--json").json["path"] == "s3://bucket/one/data"
    assert SECRET not in shown(flow)


def test_a_server_and_its_worker_read_the_dataset_from_the_store(flow: Flow) -> None:
    with Store("s3://bucket/two") as store:
        store.upload(flow.path("data"), "data")
    server = flow.start(
        "server", "s3://bucket/two/data", "--out", "run", "--bind", FREE, "--publish", FREE, "--dim", 8, "--epochs", 2
    )
    address, _ = server.ready()
    flow.worker(address, data="s3://bucket/two/data", how=["--cache", "cache"]).ends(0)
    server.ends(0)
    assert len(list(flow.path("cache").glob("*.blocks/manifest.json"))) == 1
    assert not list(flow.path("cache").glob("*/entries.npy")), "strips come with their leases"
    flow.train("calm", "--workers", 1, "--epochs", 2).ends(0)
    assert flow.vectors("run") == flow.vectors("calm")


@pytest.mark.parametrize(
    ("answer", "says"),
    [(Answer.UNAVAILABLE, "cannot be used"), (Answer.REFUSED, "access is refused"), (Answer.NOT_AT_ALL, "cannot")],
)
def test_a_store_that_fails_is_one_clear_error(flow: Flow, store: ObjectStore, answer: Answer, says: str) -> None:
    store.answer = answer
    flow.start("info", "s3://bucket/no/data").fails("s3://bucket/no/data", says)
    assert SECRET not in shown(flow)


def test_nothing_is_lost_when_the_upload_fails(flow: Flow, store: ObjectStore, tmp_path: Path) -> None:
    """Seen to end with "exists already" without the look for what is complete."""
    (tmp_path / "text.txt").write_text(TEXT * 50)
    words = ["preprocess", "text.txt", "--out", "s3://bucket/three/data", "--processes", 1]
    running = flow.start(*words)
    running.says("phase=tokenise")
    store.answer = Answer.UNAVAILABLE
    assert "--resume" in running.fails("s3://bucket/three/data cannot be used")
    store.answer = Answer.WELL
    with pytest.raises(ArtifactError, match="not finished"):
        glovewire.load("s3://bucket/three/data")
    again = flow.run(*words, "--resume")
    assert "phase=tokenise" not in again.err
    assert "manifest.json" in names("s3://bucket/three/data")


@pytest.mark.parametrize("url", ["s3://somebody:password@bucket/data", "s3://bucket/data?sig=password"])
def test_a_url_with_credentials_is_refused_and_not_repeated(flow: Flow, url: str) -> None:
    assert "password@" not in flow.start("info", url).fails("environment", status=2)
    assert "=password" not in flow.start("train", url, "--out", "run").fails("environment", status=2)
    flow.start("server", "data", "--out", "run", "--checkpoints", url).fails("environment", status=2)


def test_a_library_that_is_missing_is_named(flow: Flow) -> None:
    flow.start("info", "gs://bucket/data").fails("gcsfs")


# ---- checkpoints


class Shards:
    """Shards with a folder of their own each, whose checkpoints are in the store, too."""

    def __init__(self, flow: Flow, url: str, shards: int, *words: str | float) -> None:
        self.flow, self.words = flow, ["--checkpoints", url, *words]
        self.ports = [(free_port(), free_port()) for _ in range(shards)]
        self.all = [self.start(number) for number in range(shards)]

    def start(self, number: int, how: str = "--recover") -> Running:
        shards = len(self.ports)
        peers = [word for _, port in self.ports for word in ("--peer", f"tcp://127.0.0.1:{port}")] if shards > 1 else []
        return self.flow.start(
            "server", "data", "--out", f"run-{number}", "--shard", f"{number}/{shards}",
            "--bind", f"tcp://127.0.0.1:{self.ports[number][0]}", "--publish", FREE, "--dim", 8, "--epochs", EPOCHS,
            "--checkpoint-every", 1, how, *peers, *self.words,
        )  # fmt: skip

    def worker(self) -> Running:
        return self.flow.worker(*(f"tcp://127.0.0.1:{port}" for port, _ in self.ports), how=["--latency", "15ms"])

    def lose_all(self, how: str = "--recover") -> None:
        """Kill every shard, remove its folder, and start it again."""
        for number, shard in enumerate(self.all):
            shard.signal(signal.SIGKILL)
            shard.ends(-signal.SIGKILL)
            shutil.rmtree(self.flow.path(f"run-{number}"))
        self.all = [self.start(number, how) for number in range(len(self.ports))]


def await_rounds(url: str, shards: int) -> None:
    """Wait until two checkpoints of all shards are in the store."""
    with Store(url) as store:
        until(lambda: all(_rounds(store, shard, shards) >= 2 for shard in range(shards)), "checkpoints are stored")


def _rounds(store: Store, shard: int, shards: int) -> int:
    ends = f".shard-{shard}-of-{shards}/manifest.json"
    return sum(name.startswith("round-") and name.endswith(ends) for name in store.names())


def test_a_run_goes_on_though_every_disk_is_lost(flow: Flow, calm: bytes) -> None:
    url, shards = "s3://bucket/two-shards", 2
    cluster = Shards(flow, url, shards)
    worker = cluster.worker()
    await_rounds(url, shards)
    cluster.lose_all()
    for process in (*cluster.all, worker):
        process.ends(0)
    assert worker.err.count("event=joined") >= 2, "it was over too soon to show anything"
    assert any("event=brought" in shard.err for shard in cluster.all)
    with Store(url) as store:
        ends = f".shard-0-of-{shards}"
        here = {path.name for path in flow.path("run-0", "checkpoints").glob(f"[!.]*{ends}")}
        there = {folder for folder, _, _ in (name.partition("/") for name in store.names()) if folder.endswith(ends)}
        assert there == here, "the same ones are kept"
        assert any(name.startswith("final-") for name in there)
        assert b'"secret": ""' in (store.read(f"shard-0-of-{shards}.json") or b"")
    assert flow.vectors("run-0") == calm


def test_a_run_is_resumed_from_the_store_alone(flow: Flow, calm: bytes) -> None:
    """Seen to fail: the options were looked for on the empty disk, before anything was brought."""
    url = "s3://bucket/resumed"
    cluster = Shards(flow, url, 1)
    worker = cluster.worker()
    await_rounds(url, 1)
    cluster.lose_all("--resume")
    for process in (*cluster.all, worker):
        process.ends(0)
    assert "event=brought" in cluster.all[0].err
    assert flow.vectors("run-0") == calm


def test_training_goes_on_whatever_the_store_does(flow: Flow, calm: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStore(flow.folder) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        cluster = Shards(flow, "s3://bucket/run", 1)
        shard, worker = cluster.all[0], cluster.worker()
        await_rounds("s3://bucket/run", 1)
        for times, fail in enumerate((Answer.UNAVAILABLE, Answer.REFUSED, None), 1):
            if fail is None:
                store.kill()
            store.answer = fail or Answer.WELL
            made = shard.err.count("event=checkpoint")
            until(lambda made=made: shard.err.count("event=checkpoint") > made, shard.story)
            worker.signal(signal.SIGSTOP)  # so that it is not over too soon
            until(lambda times=times: shard.err.count("event=not_stored") == times, shard.story)
            if fail is None:
                store.start()
            store.answer = Answer.WELL
            until(lambda times=times: shard.err.count("event=stored_again") == times, shard.story)
            worker.signal(signal.SIGCONT)
        store.answer = Answer.SLOWLY
        for process in (shard, worker):
            process.ends(0)
        store.answer = Answer.WELL
        assert any(name.startswith("final") for name in names("s3://bucket/run"))
    assert SECRET not in shown(flow)
    assert "access is refused" in shard.err
    assert flow.vectors("run-0") == calm


def test_a_shard_that_knows_nothing_does_not_begin_anew_while_the_store_fails(flow: Flow, store: ObjectStore) -> None:
    store.answer = Answer.REFUSED
    Shards(flow, "s3://bucket/anew", 1).all[0].fails("access is refused")
    assert not flow.path("run-0").exists()


def test_a_new_run_takes_no_place_of_another(flow: Flow) -> None:
    with Store("s3://bucket/taken") as store:
        store.write("shard-0-of-1.json", b"{}")
    flow.server("run", "--checkpoints", "s3://bucket/taken").fails("s3://bucket/taken", "--recover")


def test_the_store_may_close_while_another_thread_waits_for_it(store: ObjectStore) -> None:
    store.answer = Answer.SLOWLY
    with Store("s3://bucket/closed") as closed:
        closed.close()
        with pytest.raises(StoreError, match="closed"):
            closed.names()
