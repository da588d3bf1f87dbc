"""`glovewire train` from the shell: one command, a complete run folder, the same bytes however it is spread."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from handmade import random_dataset
from processes import Flow

from glovewire.server.telemetry.status import MEANS

COMPLETE = {
    "vectors.npy",
    "vocabulary.txt",
    "counts.npy",
    "ngrams.npy",
    "ngram_buckets.npy",
    "metrics.jsonl",
    "loss.png",
    "config.toml",
    "checkpoints",
    "logs",
}
FACTS = {
    "seconds", "entries", "entries_per_second", "loss", "bias_only_loss", "epochs", "workers", "servers", "bytes_sent",
}  # fmt: skip


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("train")
    random_dataset(folder / "data", size=40)
    with Flow(folder) as flow:
        flow.train("one", "--workers", 1, "--epochs", 5, "--json").ends()
        yield flow


def test_a_run_is_complete_and_told_as_json(flow: Flow) -> None:
    facts = flow.all[0].json
    assert facts.keys() >= FACTS
    assert {path.name for path in flow.path("one").iterdir()} == COMPLETE | {"manifest.json"}
    assert (facts["epochs"], facts["workers"], facts["servers"]) == (5, 1, 1)
    assert facts["entries"] == 5 * json.loads(flow.path("data", "manifest.json").read_text())["facts"]["entries"]
    assert facts["entries_per_second"] == pytest.approx(facts["entries"] / facts["seconds"])
    assert 0 < facts["loss"] < facts["bias_only_loss"]
    assert facts["bytes_sent"] > 0
    assert json.loads(flow.path("one", "manifest.json").read_text())["facts"]["ending"] == "complete"


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["--init", "nosuch"], "nosuch does not exist", 1),
        (["--init", "one", "--dim", 9], "one has vectors of 8 dimensions, not 9", 2),
        (["--store", "local", "--init", "nosuch", "--workers", 1], "nosuch does not exist", 1),
        (["--checkpoint-every", -1], "checkpoint-every must be at least 0", 2),
        (["--store", "shared", "--keep-checkpoints", -4], "keep-checkpoints must be at least 1, or 0", 2),
    ],
)
def test_what_is_refused_leaves_no_folder(flow: Flow, words: list[str | float], said: str, status: int) -> None:
    flow.train("refused", *words).fails(said, status=status)
    assert not flow.path("refused").exists()


def test_variables_for_servers_by_hand_are_not_for_those_of_a_training(flow: Flow) -> None:
    flow.train("alike", "--workers", 1, "--epochs", 5, GLOVEWIRE_SERVER_RESUME="1", GLOVEWIRE_WORKER_NAME="x y").ends()
    assert flow.vectors("alike") == flow.vectors("one")


def test_what_a_run_leaves_can_be_read(flow: Flow) -> None:
    vectors, words = np.load(flow.path("one", "vectors.npy")), flow.path("one", "vocabulary.txt").read_text().split()
    assert vectors.shape == (len(words), 8) == (40, 8)
    assert words == sorted(words)
    assert flow.path("one", "loss.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in flow.path("one", "metrics.jsonl").read_text().splitlines()]
    assert lines[-1].keys() >= {"t", "entries", "loss", "epoch", "worker"}
    last = [line for line in lines if line.get("worker") == "all"][-1]
    assert (lines[0]["topic"], lines[0]["name"], lines[0]["dataset"]) == ("run", "one", "data")
    assert (last["epoch"], last["entries"]) == (5, flow.all[0].json["entries"])


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 3), (1, 3)])
def test_the_bytes_are_the_same_however_training_is_spread(flow: Flow, workers: int, servers: int) -> None:
    out = f"spread-{workers}-{servers}"
    flow.train(out, "--workers", workers, "--servers", servers, "--epochs", 5).ends()
    for name in ("vectors.npy", "ngrams.npy", "ngram_buckets.npy"):
        assert flow.path(out, name).read_bytes() == flow.path("one", name).read_bytes()


def test_ngrams_added_afterwards_are_those_of_the_run(flow: Flow) -> None:
    flow.train("plain", "--workers", 1, "--epochs", 5, "--subwords", 0).ends()
    assert not flow.path("plain", "ngrams.npy").exists()
    assert flow.vectors("plain") != flow.vectors("one")
    assert flow.run("subwords", "plain", "--out", "added", "--json").json["factor"] == 1.2
    for name in ("vectors.npy", "ngrams.npy", "ngram_buckets.npy", "vocabulary.txt", "counts.npy"):
        assert flow.path("added", name).read_bytes() == flow.path("one", name).read_bytes()
    again = flow.start("subwords", "added", "--out", "twice")
    again.fails("added has n-grams already, and its vectors contain them: take a run with --subwords 0", status=2)
    assert not flow.path("twice").exists()


def test_skip_gram_is_trained_to_the_same_bytes_too(flow: Flow) -> None:
    how = ["--objective", "sgns", "--epochs", 5, "--json"]
    facts = flow.train("skip-1", *how, "--workers", 1).ends().json
    assert 0 < facts["loss"] < facts["bias_only_loss"]
    for workers, servers in ((2, 1), (4, 2)):
        flow.train(f"skip-{workers}", *how, "--workers", workers, "--servers", servers).ends()
        assert flow.vectors(f"skip-{workers}") == flow.vectors("skip-1") != flow.vectors("one")
    again = flow.start("train", "data", "--out", "skip-1", "--resume", "--objective", "glove")
    again.fails("skip-1 was begun with the objective sgns and cannot continue with glove", status=2)


def test_to_go_on_with_a_complete_run_leaves_it_as_it_is(flow: Flow) -> None:
    left = ("manifest.json", "metrics.jsonl", "vectors.npy")
    before = [flow.path("one", name).read_bytes() for name in left]
    again = flow.start("train", "data", "--out", "one", "--resume", "--json").ends()
    assert "one is complete" in again.out
    assert (again.json["loss"], again.json["workers"]) == (flow.all[0].json["loss"], 0)
    assert flow.start("server", "data", "--out", "one", "--resume").ends(0).out == ""
    assert [flow.path("one", name).read_bytes() for name in left] == before


def test_what_ended_behind_its_last_checkpoint_is_completed_without_figures_of_nothing(flow: Flow) -> None:
    shutil.copytree(flow.path("one"), flow.path("cut"))
    flow.path("cut", "manifest.json").unlink()
    again = flow.start("train", "data", "--out", "cut", "--resume", "--quiet").ends()
    assert again.out == "nothing was left to train; vectors, metrics and loss.png of 5 epochs are in cut\n"
    whole, cut = (json.loads(flow.path(run, "manifest.json").read_text())["facts"] for run in ("one", "cut"))
    assert [cut[name] for name in MEANS] == [whole[name] for name in MEANS], "seen to fail: they were 0"
    assert flow.vectors("cut") == flow.vectors("one")


def test_the_config_of_a_run_starts_it_again(flow: Flow) -> None:
    flow.train("first", "--workers", 2, "--servers", 2, "--checkpoint-every", 2, "--epochs", 5, "--seed", 3).ends()
    again = flow.start("train", "data", "--config", flow.path("first", "config.toml"), "--out", "again", "--json")
    assert (again.ends().json["workers"], again.json["servers"]) == (2, 2)
    assert flow.vectors("again") == flow.vectors("first") != flow.vectors("one")
    assert flow.path("again", "config.toml").read_text() == flow.path("first", "config.toml").read_text()
    checkpoints = sorted(path.name for path in flow.path("again", "checkpoints").glob("[!.]*"))
    assert checkpoints == [
        f"{label}.shard-{shard}-of-2" for label in ("final", "round-00000006", "round-00000012") for shard in (0, 1)
    ]


def test_the_config_of_a_run_also_tells_what_it_began_with(flow: Flow) -> None:
    how = ["--workers", 1, "--epochs", 5]
    flow.train("further", *how, "--init", "one", "--latency", "1ms").ends()
    config = flow.path("further", "config.toml")
    flow.start("train", "data", "--config", config, "--out", "further-2", "--quiet").ends()
    assert flow.vectors("further-2") == flow.vectors("further") != flow.vectors("one")
    assert flow.path("further-2", "config.toml").read_text() == config.read_text()
    resume = ["train", "data", "--resume", "--quiet", "--out", "further-2"]
    flow.start(*resume, "--init", "one").fails("cannot be given with --init", status=2)
    flow.path("further-2", "manifest.json").unlink()
    flow.start(*resume, "--config", config).ends()
    assert flow.vectors("further-2") == flow.vectors("further")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adagrad-row"])
def test_minibatches_learn_more_than_the_biases(flow: Flow, optimizer: str) -> None:
    how = ["--schedule", "minibatch", "--optimizer", optimizer, "--batch-size", 64, "--lr", 0.05, "--epochs", 30]
    facts = flow.train(optimizer, *how, "--workers", 2, "--servers", 2, "--json").ends().json
    assert facts["loss"] < 0.8 * facts["bias_only_loss"]
    assert facts["entries"] >= 30 * 600


def test_untied_vectors_of_a_matrix_that_is_not_symmetric(flow: Flow, tmp_path: Path) -> None:
    random_dataset(flow.path("oblong"), symmetric=False)
    command = ["train", "oblong", "--dim", 4, "--untied", "--epochs", 30, "--quiet", "--json"]
    facts = flow.run(*command, "--out", "untied", "--workers", 2).json
    assert facts["loss"] < facts["bias_only_loss"]
    flow.run(*command, "--out", "untied-alone", "--workers", 1)
    assert flow.vectors("untied") == flow.vectors("untied-alone")


def test_options_come_from_the_environment_below_flags(flow: Flow) -> None:
    variables = {"GLOVEWIRE_TRAIN_DIM": "3", "GLOVEWIRE_TRAIN_WORKERS": "1", "GLOVEWIRE_TRAIN_OUT": "by-environment"}
    flow.run("train", "data", "--epochs", 1, "--seed", 2, GLOVEWIRE_TRAIN_SEED="1", **variables)
    assert np.load(flow.path("by-environment", "vectors.npy")).shape == (40, 3)
    assert "seed = 2\n" in flow.path("by-environment", "config.toml").read_text()


def test_the_installed_program_trains_too(flow: Flow) -> None:
    program = shutil.which("glovewire", path=str(Path(sys.executable).parent))
    assert program is not None, "the package is not installed: pip install -e ."
    command = ["train", "data", "--out", "installed", "--dim", "8", "--epochs", "5", "--workers", "1"]
    shown = flow.start(*command, program=[program]).ends()
    assert flow.vectors("installed") == flow.vectors("one")
    assert "vectors, metrics and loss.png are in installed" in shown.out
    assert "epoch=5/5" in shown.err  # progress in plain lines: there is no terminal
