"""`glovewire study speedup`: every variant trained, one table, one picture, nothing left; no figure is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from handmade import HARD_TO_DRAW, random_dataset
from processes import Flow

from glovewire.bench.measured_run import run_measured
from glovewire.common.errors import ProcessDied
from glovewire.common.model.options import TrainingOptions
from glovewire.launch.config import LocalConfig
from glovewire.study.config import SpeedupConfig
from glovewire.study.speedup import variants

LONG_S = 110.0


def test_one_command_trains_every_variant_and_leaves_table_and_pictures(tmp_path: Path) -> None:
    random_dataset(tmp_path / HARD_TO_DRAW, size=40)
    with Flow(tmp_path) as flow:
        words = ("--dim", 8, "--epochs", 3, "--workers", 1, "--float32", "--json")
        result = flow.start("study", "speedup", HARD_TO_DRAW, "--out", "study", *words).ends(0, LONG_S).json
    names = ["baseline", "local", "server-1"]
    assert [one["run"] for one in result["variants"]] == names
    assert all(one["complete"] and one["entries"] > 0 and one["seconds"] > 0 for one in result["variants"])
    assert result["variants"][0]["times_baseline"] == 1
    assert_losses_are_those_of_the_runs(tmp_path / "study", result["variants"])
    out = tmp_path / "study"
    assert {path.name for path in out.iterdir()} == {
        *names, "REPORT.md", "report.json", "speedup.png", "speedup.svg", "logs",
    }  # fmt: skip
    saved = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert saved["variants"] == result["variants"]
    assert saved["surroundings"].keys() >= {"commit", "cores", "versions"}
    assert (out / "speedup.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (out / "speedup.svg").read_bytes()
    table = (out / "REPORT.md").read_text(encoding="utf-8")
    assert sum(line.startswith("| ") for line in table.splitlines()) == 1 + len(names)
    assert all((out / name / "vectors.npy").exists() for name in names)


def assert_losses_are_those_of_the_runs(study: Path, variants: list[dict[str, Any]]) -> None:
    """Compare with what each run says itself; and of equal vectors the loss is equal, however they were trained."""
    for one in variants:
        facts = json.loads((study / one["run"] / "manifest.json").read_text(encoding="utf-8"))["facts"]
        assert one["loss"] == pytest.approx(facts["loss"], rel=1e-8)
        assert one["bias_only_loss"] == pytest.approx(facts["bias_only_loss"], rel=1e-8)
    by_vectors: dict[bytes, set[float]] = {}
    for one in variants:
        by_vectors.setdefault((study / one["run"] / "vectors.npy").read_bytes(), set()).add(one["loss"])
    assert len(by_vectors) == 2, "the baseline's, and one for all block trainings"
    assert all(len(losses) == 1 for losses in by_vectors.values()), by_vectors.values()


def test_the_variants_are_the_baseline_shared_memory_and_the_server_with_up_to_all_workers(tmp_path: Path) -> None:
    options = TrainingOptions(x_max=7.0, dim=12)
    config = SpeedupConfig(dataset=tmp_path, out=tmp_path / "out", options=options, workers=3, servers=2)
    found = variants(config)
    assert [(v.trial.out.name, v.trial.store, v.trial.workers, v.trial.servers) for v in found] == [
        ("baseline", "local", 1, 1), ("local", "local", 1, 1), ("shared-3", "shared", 3, 1),
        ("server-1", "server", 1, 2), ("server-2", "server", 2, 2), ("server-3", "server", 3, 2),
    ]  # fmt: skip
    baseline = found[0].trial.options
    assert (baseline.batch_size, baseline.mean_gradient, baseline.optimizer) == (64, True, "sgd")
    assert {(v.trial.options.x_max, v.trial.options.dim) for v in found} == {(7.0, 12)}
    assert [v.limit_s for v in found] == [120.0, *[None] * 5]


def test_a_trial_is_stopped_at_its_limit_and_keeps_its_losses(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    options = TrainingOptions(dim=8, epochs=1_000_000, schedule="minibatch", consistency="async")
    trial = LocalConfig(
        dataset=tmp_path / "data", out=tmp_path / "run", options=options, store="local", workers=1, progress=False
    )
    outcome = run_measured(trial, tmp_path / "logs", seconds_limit=0.3)
    assert outcome.facts is None
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0
    assert [process.role for process in outcome.processes] == ["worker"]


def test_a_trial_that_fails_says_why(tmp_path: Path) -> None:
    trial = LocalConfig(dataset=tmp_path / "nowhere", out=tmp_path / "run", options=TrainingOptions(), workers=1)
    with pytest.raises(ProcessDied, match="does not exist"):
        run_measured(trial, tmp_path / "logs")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--workers", 0), "workers must be between 1 and 256"),
        (("--seconds-limit", 0), "seconds-limit must be a positive number"),
        (("--schedule", "minibatch"), "leave --schedule blocks"),
        (("--objective", "sgns"), "leave --objective glove"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, words: tuple[str | float, ...], complaint: str) -> None:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        flow.start("study", "speedup", "data", "--out", "refused", *words).fails(complaint, status=2)
    assert not (tmp_path / "refused").exists()


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work").write_text("x")
    with Flow(tmp_path) as flow:
        flow.start("study", "speedup", "data", "--out", "mine").fails("exists already")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["work"]
