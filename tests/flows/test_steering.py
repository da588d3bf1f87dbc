"""Training that people steer: scores after every epoch, an early end, the best epoch kept, a run trained further."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade import random_dataset
from processes import Flow, Running

from glovewire.common.cli.config_file import read_toml

SMALL = ("--workers", 2, "--subwords", 0)


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    folder = tmp_path_factory.mktemp("steer")
    dataset, _ = random_dataset(folder / "data", size=40)
    random_dataset(folder / "other", size=30)
    words = dataset.words
    (folder / "many.txt").write_text("".join(f"{words[n]} {words[n + 1]} {n}\n" for n in range(20)))
    (folder / "few.txt").write_text("".join(f"{words[n]} {words[n + 1]} {n}\n" for n in range(2)))
    with Flow(folder) as flow:
        flow.train("one", "--epochs", 3, *SMALL, "--json").ends()
        yield flow


def facts_of(flow: Flow, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(flow.path(run, "manifest.json").read_text(encoding="utf-8"))["facts"]
    return found


def scores_of(flow: Flow, run: str) -> list[float]:
    lines = [json.loads(line) for line in flow.path(run, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["score"] for line in lines if line.get("topic") == "quality" and line["test"] == "many"]


def test_every_sweep_is_scored_however_short_it_is(flow: Flow) -> None:
    run = flow.train(
        "scored", "--epochs", 12, "--servers", 2, *SMALL, "--watch", "many.txt", "--keep-best", "--progress"
    ).ends()
    scores = scores_of(flow, "scored")
    assert len(scores) == 6, "two epochs are trained in a row"
    facts = facts_of(flow, "scored")
    assert facts["best_epoch"] == 2 * (1 + scores.index(max(scores)))
    assert facts["quality"]["many"] == pytest.approx(max(scores)), "the best epoch is kept"
    assert f"scores: many {max(scores):.1f}; the best epoch was {facts['best_epoch']}, which is kept" in run.out
    assert " score_many=" in run.err, "in the lines of progress"
    told = flow.start("info", "scored").ends().out
    assert "best epoch" in told
    assert "many: " in told


def test_training_stops_when_scores_have_not_risen_for_long_enough(flow: Flow) -> None:
    """Two pairs have a rank correlation of 100 or -100: a better one can come once."""
    words = ("--epochs", 40, *SMALL, "--watch", "few.txt", "--patience", 3, "--json")
    run = flow.train("patient", *words).ends()
    assert run.json["ending"] == "asked"
    assert run.json["epochs"] == run.json["best_epoch"] + 4 <= 8
    assert run.json["entries"] % run.json["epochs"] == 0, "at the end of an epoch"
    assert "stopped early: no better score in 3 epochs" in run.out
    assert f"stopped after {run.json['epochs']} of 40 epochs" in flow.start("info", "patient").ends().out


def test_a_finished_run_is_trained_further(flow: Flow) -> None:
    def resumed(*words: str | int) -> Running:
        return flow.train("one", "--workers", 1, "--resume", *words)

    assert "nothing is left to train" in resumed().ends().out
    assert "the run keeps the options it was started with: epochs 3" in resumed("--epochs", 2).ends().err
    run = resumed("--epochs", 5).ends()
    assert "continued to the end of 5 epochs" in run.out
    facts = facts_of(flow, "one")
    assert (facts["epochs"], facts["ending"]) == (5, "complete")
    assert facts["entries"] == 5 * json.loads(flow.path("data", "manifest.json").read_text())["facts"]["entries"]
    assert read_toml(flow.path("one", "config.toml"))["train"]["epochs"] == 5


def test_a_run_names_its_dataset_and_is_resumed_with_no_other(flow: Flow) -> None:
    assert facts_of(flow, "one")["dataset"] == "data"
    assert read_toml(flow.path("one", "config.toml"))["train"]["dataset"] == str(flow.path("data").resolve())
    words = ("train", "other", "--out", "one", "--resume", "--workers", 1)
    flow.start(*words).fails("one was trained on another dataset than other", status=2)
    flow.start("train", "--config", "one/config.toml", "--out", "again", "--epochs", 1, "--quiet").ends()
    assert facts_of(flow, "again")["dataset_checksum"] == facts_of(flow, "one")["dataset_checksum"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--patience", 2), "judge by scores: give --watch FILE"),
        (("--keep-best",), "judge by scores: give --watch FILE"),
        (("--keep-best", "--watch", "few.txt", "--schedule", "minibatch"), "they need --schedule blocks"),
    ],
)
def test_what_cannot_be_judged_is_refused(flow: Flow, words: tuple[str | int, ...], said: str) -> None:
    flow.train("refused", *words).fails(said, status=2)
    assert not flow.path("refused").exists()


def test_a_folder_that_is_no_run_is_not_resumed(flow: Flow, tmp_path: Path) -> None:
    flow.start("train", "data", "--out", tmp_path, "--resume").fails("checkpoint")
