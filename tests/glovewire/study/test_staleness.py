"""`glovewire study staleness`: every method trained by real processes, one report, and nothing trained twice."""

from __future__ import annotations

import contextlib
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from forked import programs_fork
from handmade import HARD_TO_DRAW, random_dataset
from processes import Flow

from glovewire.common.errors import ArtifactError, OutputError, ProcessDied, UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.study import emulation
from glovewire.study import staleness as study_staleness
from glovewire.study.cli import study
from glovewire.study.emulation import Trace
from glovewire.study.report import time_to, verdict
from glovewire.study.simulation import Simulation
from glovewire.study.staleness import run
from glovewire.study.trainings import Conditions, StalenessConfig
from glovewire.study.workloads import ImageProblem, problem

LONG_S = 110.0
OPTIONS = TrainingOptions(schedule="minibatch", consistency="async")


def test_one_command_compares_the_methods_and_goes_on_where_it_was(tmp_path: Path) -> None:
    random_dataset(tmp_path / HARD_TO_DRAW, size=40)
    words = (
        "study", "staleness", HARD_TO_DRAW, "--out", "study", "--workers", 2, "--batch", 64, "--latency", "5ms",
        "--policy", "inverse", "--share", 1, "--seeds", 1, "--seconds", 1.0, "--lr", 0.5, "--dim", 8, "--epochs", 20,
        "--json",
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
        if method["method"] in ("one worker", "sync"):  # of the others one gradient may be all that was seen
            assert set(run["staleness"]) <= {"0"}
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


def test_a_goal_that_was_had_before_any_training_compares_nobody() -> None:
    """Where async diverges at every rate, what it has after two thirds of its entries is worse than the beginning."""
    run = {"t": [0.0, 1.0], "gradients": [0, 10], "loss": [0.6, 0.1]}
    methods = [{"method": name, "policy": policy, "runs": [run]} for name, policy in (("sync", "none"), ("gap", "gap"))]
    assert "before any training" in verdict({"goal": 6.0, "methods": methods}, "gap", None)
    assert "0 % later" in verdict({"goal": 0.35, "methods": methods}, "gap", None)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": (0,)}, "workers must be between 1 and 256, not 0"),
        ({"latencies": ("fast",)}, "latency must look like"),
        ({"seconds": 0.0}, "seconds must be a positive number"),
        ({"seeds": 0}, "seeds must be between 1 and 100"),
        ({"shares": (2.0,)}, "fractions of the learning rate above 0, up to 1"),
        ({"policies": ("magic",)}, "policy must be one of none, inverse"),
        ({"modes": ("sync", "bogus")}, "mode must be one of async, sync, ssp:S, softsync:N, not 'bogus'"),
        ({"batch_sizes": (32, 0)}, "batch-size must be between 1 and"),
        ({"goal": float("nan")}, "goal must be a loss, or 0 for that of async, not nan"),
        ({"goal": -1.0}, "goal must be a loss, or 0 for that of async, not -1"),
        ({"workers": ()}, "workers, batch and latency need at least one value each"),
        ({"options": TrainingOptions()}, "by minibatches, not with --schedule blocks"),
        ({"options": replace(OPTIONS, consistency="sync", backup=1)}, "backup drops the slowest gradients"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        StalenessConfig(**{"out": tmp_path, "options": OPTIONS, **options})


@pytest.mark.parametrize("flag", ["--batch-size", "--consistency", "--staleness"])
def test_what_the_study_sets_itself_is_no_option(tmp_path: Path, flag: str) -> None:
    done = CliRunner().invoke(study, ["staleness", "digits", "--out", str(tmp_path / "out"), flag, "1"])
    assert done.exit_code == 2
    assert f"no such option '{flag}'" in done.stderr.lower()


def never(options: TrainingOptions, conditions: Conditions, place: Path) -> Trace:
    raise AssertionError(f"{options}, {conditions}: {place} is trained")


SEEN = {"t": [0.0], "gradients": [0], "loss": [1.0]}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("", None, "{} cannot be written: .* is not a folder"),
        ("2-workers-batch-32-0ms", None, "{} cannot be written: .*0ms is not a folder"),
        ("trace.json", '{"settings": ', "trace.json is damaged"),
        ("trace.json", "[]", "trace.json is damaged"),
        ("trace.json", json.dumps({"trace": SEEN}), "trace.json is damaged"),
        ("trace.json", json.dumps({"settings": {}, "trace": {**SEEN, "more": 1}}), "trace.json is damaged"),
        ("trace.json", json.dumps({"settings": {}, "trace": {**SEEN, "loss": []}}), "trace.json is damaged"),
        ("trace.json", json.dumps({"settings": {}, "trace": {**SEEN, "t": ["0"]}}), "trace.json is damaged"),
    ],
)
def test_what_is_in_the_way_or_damaged_is_told_before_anything_is_trained(
    tmp_path: Path, name: str, text: str | None, complaint: str
) -> None:
    out = tmp_path / "out"
    place = out / "2-workers-batch-32-0ms" / "inverse" / "rate-0.4-seed-0"
    found = place / name if text is not None else out / name
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text(text or "in the way")
    config = StalenessConfig(
        out=out,
        options=replace(OPTIONS, learning_rate=0.4),
        workers=(2,),
        batch_sizes=(32,),
        latencies=("0ms",),
        seeds=1,
    )
    before, told = set(tmp_path.rglob("*")), list[str]()
    with pytest.raises((ArtifactError, OutputError), match=complaint.format(out)):
        run(config, never, Images(), study_staleness.VIRTUAL, told.append)
    assert (set(tmp_path.rglob("*")), told) == (before, [])


def test_the_control_is_the_largest_rate_divided_by_the_workers(tmp_path: Path) -> None:
    methods = StalenessConfig(out=tmp_path, options=OPTIONS).methods(8)
    assert [(m.title, m.only_share) for m in methods if m.only_share] == [("async, rate / 8", 1 / 8)]
    assert [m.title for m in methods if m.alone] == ["one worker"]


class Images(ImageProblem):
    """A few random images, of which a server and workers know as much as of any others."""

    def __init__(self) -> None:
        draw = np.random.default_rng(3)
        super().__init__("noise", draw.random((40, 3, 2)), draw.integers(0, 10, 40))


def test_the_slope_of_the_network_is_that_of_its_loss() -> None:
    """By finite differences, in double precision, at every parameter of each layer that is looked at."""
    images, some = Images(), np.arange(30)
    network = images.network(1).astype(np.float64)
    slope, loss = images.slope(network, some)
    assert loss == pytest.approx(np.log(10), rel=0.5)
    for at in (*range(0, images.size, 97), images.size - 1):
        above, below = network.copy(), network.copy()
        above[at] += 1e-5
        below[at] -= 1e-5
        difference = (images.slope(above, some)[1] - images.slope(below, some)[1]) / 2e-5
        assert slope[at] == pytest.approx(difference, rel=1e-4, abs=1e-8)


def test_processes_and_virtual_time_train_the_same_network_in_step(tmp_path: Path) -> None:
    """Dense: a server of tensors and two workers over TCP; the same losses as without any process."""
    images, conditions = Images(), Conditions(2, ("1ms",), 60.0)
    options = TrainingOptions.of_tensors(
        consistency="sync", optimizer="sgd", learning_rate=0.5, epochs=10, batch_size=8
    )
    with programs_fork():
        real = emulation.emulate(images, options, conditions, tmp_path)
    thought = Simulation(images, options, conditions).trace()
    assert (real.ended, thought.ended) == ("complete", "complete")
    assert thought.gradients[-1] == 50
    assert thought.loss[-1] < thought.loss[0]
    by_gradients = dict(zip(thought.gradients, thought.loss, strict=True))
    assert real.gradients[0] == 0
    for gradients, loss in zip(real.gradients, real.loss, strict=True):
        assert gradients % 2 == 0
        assert loss == pytest.approx(by_gradients[gradients], rel=1e-4)


def test_a_server_that_dies_is_no_end_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed as soon as it has a gradient."""
    sample_loss = emulation.sample_loss

    def deadly(*arguments: Any) -> tuple[int, float]:
        found = sample_loss(*arguments)
        for child in psutil.Process().children() if found[0] else []:
            with contextlib.suppress(psutil.Error):  # dead since the last look
                if "server" in child.cmdline():
                    child.kill()
        return found

    monkeypatch.setattr(emulation, "sample_loss", deadly)
    monkeypatch.setattr(emulation, "LEAVE_S", 0.5)
    options = TrainingOptions.of_tensors(consistency="async", optimizer="sgd", learning_rate=0.1, epochs=10_000)
    with pytest.raises(ProcessDied, match="server was killed by signal 9"):
        emulation.emulate(Images(), options, Conditions(1, ("1ms",), 600.0), tmp_path)


class Idle(Images):
    """Its workers end before they have done anything."""

    def work(self, options: TrainingOptions, address: str, number: int, latency: str) -> None:
        """See Problem."""


def test_a_training_without_workers_is_not_waited_for(tmp_path: Path) -> None:
    options = TrainingOptions.of_tensors(consistency="async", optimizer="sgd", learning_rate=0.1, epochs=10_000)
    with programs_fork(), pytest.raises(ProcessDied, match="every worker ended"):
        emulation.emulate(Idle(), options, Conditions(2, ("1ms",), 600.0), tmp_path)


def test_a_training_that_a_worker_found_diverged_is_not_complete(tmp_path: Path) -> None:
    """Between two looks the loss goes from one that is fine to no number: the server knows it from the worker."""
    random_dataset(tmp_path / "data", size=40)
    options = replace(OPTIONS, dim=8, tied=True, optimizer="sgd", learning_rate=1e6, epochs=10_000)
    words = problem(tmp_path / "data")
    with programs_fork():
        found = emulation.emulate(words, options, Conditions(1, ("1ms",), LONG_S), tmp_path / "seen")
    assert found.ended == "diverged"


def test_what_was_cut_short_is_trained_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One training, of which an earlier run of the study has left half; without the pictures."""
    monkeypatch.setattr(study_staleness, "report", lambda *_: "")
    (tmp_path / "1-workers-batch-8-0ms" / "async" / "rate-0.5-seed-0" / "run").mkdir(parents=True)
    options = TrainingOptions.of_tensors(consistency="async", optimizer="sgd", learning_rate=0.5, epochs=2)
    config = StalenessConfig(
        out=tmp_path, options=options, workers=(1,), batch_sizes=(8,), latencies=("0ms",), policies=("inverse",),
        modes=("sync",), shares=(1.0,), seeds=1,
    )  # fmt: skip
    images, places, told = Images(), [], list[str]()

    def way(options: TrainingOptions, conditions: Conditions, place: Path) -> Trace:
        places.append(place)
        assert not list(place.iterdir())
        return Simulation(images, options, conditions).trace()

    run(config, way, images, study_staleness.VIRTUAL, told.append)
    assert len(places) == config.trainings == 5
    assert "5 trainings of at most 15 s each, as fast as this machine computes them" in told[0]
    assert told[1].startswith("1/5 ")
    run(config, way, images, study_staleness.VIRTUAL, told.append)
    assert len(places) == 5, "what is on disk is not trained again"
    run(replace(config, seconds=20.0), way, images, study_staleness.VIRTUAL, told.append)
    assert len(places) == 10, "unless it is another training"


def test_mnists_files_are_read_packed_or_not(tmp_path: Path) -> None:
    head = bytes([0, 0, 8, 3]) + np.array([2, 2, 1], ">i4").tobytes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head + bytes([0, 255, 51, 102]))
    labels = bytes([0, 0, 8, 1]) + np.array([2], ">i4").tobytes() + bytes([7, 9])
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    images = problem(tmp_path)
    assert (images.examples, images.unit) == (2, "images")
    packed = gzip.compress(labels)
    for damaged in (packed[:-9], packed[:10] + b"\xff" * 9):
        (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(damaged)
        with pytest.raises(ArtifactError, match="no images in train-labels"):
            problem(tmp_path)


def test_virtual_time_is_the_same_every_time_and_knows_what_waiting_costs(tmp_path: Path) -> None:
    """Four workers, one of them slow: in step all go at its pace; otherwise its gradients alone are old."""
    random_dataset(tmp_path / "data", size=40)
    glove = problem(tmp_path / "data")
    conditions = Conditions(4, ("95ms", "5ms"), 1000.0)
    trace = {}
    for mode in ("async", "sync", "ssp:2"):
        options = TrainingOptions(
            schedule="minibatch", consistency=mode, optimizer="sgd", mean_gradient=True, learning_rate=0.1, dim=8,
            tied=True, batch_size=16, epochs=6,
        )  # fmt: skip
        trace[mode], again = (Simulation(glove, options, conditions).trace() for _ in range(2))
        assert trace[mode] == again
        assert trace[mode].ended == "complete"
        assert trace[mode].loss[-1] < trace[mode].loss[0]
    gradients = trace["sync"].gradients[-1]
    assert trace["sync"].t[-1] == pytest.approx(gradients / 4 * 0.1, rel=0.01)
    assert trace["async"].t[-1] == pytest.approx(gradients / (3 / 0.01 + 1 / 0.1), rel=0.05)
    assert trace["ssp:2"].t[-1] == pytest.approx(trace["sync"].t[-1], rel=0.1), "a slow worker sets the pace in the end"
    assert set(trace["sync"].staleness) == {"0"}
    assert trace["async"].staleness["16-31"] > 0
