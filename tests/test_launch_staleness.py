"""`glovewire study staleness`: every method trained by real processes, one report, and nothing trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade import random_dataset
from processes import Flow

from common.errors import UsageError
from common.options import TrainingOptions
from launch.crowd import Scene
from launch.staleness_report import time_to
from launch.study_staleness import StalenessConfig
from launch.virtual import VirtualGlove

LONG_S = 110.0
OPTIONS = TrainingOptions(schedule="minibatch", consistency="async")


def test_one_command_compares_the_methods_and_goes_on_where_it_was(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    words = (
        "study", "staleness", "data", "--out", "study", "--workers", 2, "--batch", 64, "--latency", "5ms", "--policy",
        "inverse", "--share", 1, "--seeds", 1, "--seconds", 1.0, "--lr", 0.5, "--dim", 8, "--epochs", 20, "--json",
    )  # fmt: skip
    with Flow(tmp_path) as flow:
        first = flow.start(*words).ends(0, LONG_S)
        again = flow.start(*words).ends(0, LONG_S)
    (setting,) = first.json["settings"]
    titles = ["one worker", "sync", "async", "async, rate / 2", "inverse"]
    assert [method["method"] for method in setting["methods"]] == titles
    assert [method["rate"] for method in setting["methods"]] == [0.5, 0.5, 0.5, 0.25, 0.5]
    for method in setting["methods"]:
        (run,) = method["runs"]
        assert run["gradients"][0] == 0
        assert run["gradients"][-1] > 0
        assert run["loss"][-1] < run["loss"][0]
        assert (set(run["staleness"]) <= {"0"}) == (method["method"] in ("one worker", "sync"))
    assert again.json["settings"] == first.json["settings"]
    assert "2-workers" in first.err
    assert "2-workers" not in again.err, "what is on disk is not trained again"
    report = (tmp_path / "study" / "REPORT.md").read_text(encoding="utf-8")
    for title in titles:
        assert f"| {title} |" in report
    pictures = {path.suffix for path in (tmp_path / "study").iterdir() if path.is_file()}
    assert pictures == {".md", ".json", ".png", ".svg"}
    assert json.loads((tmp_path / "study" / "report.json").read_text(encoding="utf-8"))["seeds"] == 1


def test_the_time_to_a_loss_lies_between_the_samples_around_it() -> None:
    run = {"t": [0.0, 1.0, 2.0, 3.0], "gradients": [0, 10, 20, 30], "loss": [4.0, 2.0, 1.0, 1.5]}
    assert time_to(run, 5.0) == (0.0, 0)
    assert time_to(run, 3.0) == (0.5, 5)
    assert time_to(run, 1.25) == (1.75, 18)
    assert time_to(run, 0.5) is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": (0,)}, "workers must be between 1 and 256, not 0"),
        ({"latencies": ("fast",)}, "latency must look like"),
        ({"seconds": 0.0}, "seconds must be a positive number"),
        ({"seeds": 0}, "seeds must be between 1 and 100"),
        ({"shares": (2.0,)}, "fractions of the learning rate above 0, up to 1"),
        ({"policies": ("magic",)}, "must be one of none, inverse"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        StalenessConfig(tmp_path, OPTIONS, **options)  # type: ignore[arg-type]


def test_the_control_is_the_largest_rate_divided_by_the_workers(tmp_path: Path) -> None:
    methods = StalenessConfig(tmp_path, OPTIONS).methods(8)
    assert [(m.title, m.only_share) for m in methods if m.only_share] == [("async, rate / 8", 1 / 8)]
    assert [m.title for m in methods if m.alone] == ["one worker"]


def test_virtual_time_is_the_same_every_time_and_knows_what_waiting_costs(tmp_path: Path) -> None:
    """Four workers, one of them slow: in step all go at its pace; otherwise its gradients alone are old."""
    random_dataset(tmp_path / "data", size=40)
    glove = VirtualGlove(tmp_path / "data")
    scene = Scene(4, ("95ms", "5ms"), 1000.0)
    seen = {}
    for mode in ("async", "sync", "ssp:2"):
        options = TrainingOptions(
            schedule="minibatch", consistency=mode, optimizer="sgd", mean_gradient=True, learning_rate=0.1, dim=8,
            tied=True, batch_size=16, epochs=6,
        )  # fmt: skip
        seen[mode], again = glove.watch(options, scene), glove.watch(options, scene)
        assert seen[mode] == again
        assert seen[mode].ended == "complete"
        assert seen[mode].loss[-1] < seen[mode].loss[0]
    gradients = seen["sync"].gradients[-1]
    assert seen["sync"].t[-1] == pytest.approx(gradients / 4 * 0.1, rel=0.01)
    assert seen["async"].t[-1] == pytest.approx(gradients / (3 / 0.01 + 1 / 0.1), rel=0.05)
    assert seen["ssp:2"].t[-1] == pytest.approx(seen["sync"].t[-1], rel=0.1), "a slow worker sets the pace in the end"
    assert set(seen["sync"].staleness) == {"0"}
    assert seen["async"].staleness["16-31"] > 0
