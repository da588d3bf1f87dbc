"""`glovewire bench`: tiny measurements give complete results; no figure is judged here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from forked import programs_fork
from handmade import random_dataset

from glovewire.bench import train as bench_train
from glovewire.bench.cli import bench
from glovewire.bench.config import TrainBenchConfig
from glovewire.bench.measured_run import ProcessUsage, RunOutcome
from glovewire.bench.measurements import CaseStatistics, Repeat, spread, surroundings
from glovewire.bench.wire_driver import NULL_STEPS
from glovewire.common.errors import ProcessDied, UsageError
from glovewire.common.model.options import TrainingOptions

SPREAD = {"median", "min", "max"}


def run(*words: object) -> Result:
    return CliRunner().invoke(bench, [str(word) for word in words])


@pytest.fixture(scope="module")
def wire() -> Result:
    """What `bench wire` prints of a small table."""
    with programs_fork():
        done = run(
            "wire", "--rows", 256, "--dim", 8, "--size", 1, "--size", 64, "--window", 1, "--window", 4, "--repeats", 2,
            "--seconds", 0.02, "--json",
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    return done


def test_the_wire_ends_with_a_summary_of_its_rows(wire: Result) -> None:
    lines = wire.stdout.splitlines()[:-1]
    told = lines[lines.index("in short, medians") + 1 :]
    assert [line.split()[0] for line in told] == ["pull", "push"]
    assert all("GB/s at most (64" in line and "encrypted" in line and "us at least" in line for line in told), told


def result_of(*words: object) -> dict[str, object]:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return last_line(done)


def last_line(done: Result) -> dict[str, object]:
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_the_wire_is_measured_and_every_push_counted(wire: Result) -> None:
    result = last_line(wire)
    assert result["surroundings"].keys() >= {"commit", "cores", "versions", "python"}  # type: ignore[attr-defined]
    names = ("operation", "place", "size", "window", "encrypted")
    cases = {tuple(one[name] for name in names) for one in result["results"]}  # type: ignore[attr-defined]
    plain = {
        (o, p, s, w, False) for o in ("pull", "push") for p in ("random", "range") for s in (1, 64) for w in (1, 4)
    }
    assert cases == plain | {(o, "range", s, 4, True) for o in ("pull", "push") for s in (1, 64)}
    for one in [*result["results"], *(result[name] for name in NULL_STEPS)]:  # type: ignore[misc]
        assert one["rows_per_second"].keys() == one["p50_us"].keys() == one["p99_us"].keys() == SPREAD
        assert 0 < one["rows_per_second"]["min"] <= one["rows_per_second"]["median"] <= one["rows_per_second"]["max"]
        assert one["success"] == 1
        assert one["messages"] > 0
    assert (result["success"], result["rows_not_as_pushed"]) == (1, 0)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What `bench train` measures on each store: on the servers in turns with the other one.

    Of processes as users start them, whose roles it finds by their command lines.
    """
    data = tmp_path_factory.mktemp("trained") / "data"
    random_dataset(data, size=40)
    arguments = ("train", data, "--repeats", 1, "--dim", 8, "--epochs", 3, "--store")
    return {"server": result_of(*arguments, "server", "--beside", "local"), "local": result_of(*arguments, "local")}


@pytest.mark.parametrize("store", ["server", "local"])
def test_training_is_measured_for_each_role(trainings: dict[str, dict[str, object]], store: str) -> None:
    result = trainings[store]
    assert result["workers"] == (1 if store == "local" else 2)
    roles = {"server", "worker"} if store == "server" else {"worker"}
    assert {"server", "worker"} & result.keys() - {"options"} == roles
    for role in roles:
        assert result[role].keys() == {"cpu_s_per_million_entries", "peak_pss_mb", "peak_private_mb"}  # type: ignore[attr-defined]
        assert result[role]["peak_pss_mb"]["min"] > 0  # type: ignore[index]
    for name in (
        "seconds",
        "entries_per_second",
        "bytes_pushed_per_entry",
        "bytes_pulled_per_entry",
        "loss",
        "bias_only_loss",
    ):
        assert result[name].keys() == SPREAD  # type: ignore[attr-defined]
    assert result["loss"]["max"] < result["bias_only_loss"]["min"]  # type: ignore[index]


def test_stores_train_in_turns(trainings: dict[str, dict[str, object]]) -> None:
    result = trainings["server"]
    assert (result["success"], result["workers"]) == (1, 2)
    assert result["beside"]["local"]["server_is_times_as_fast"].keys() == SPREAD  # type: ignore[index]
    assert result["beside"]["local"]["bytes_pulled_per_entry"]["max"] == 0 < result["bytes_pulled_per_entry"]["min"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("wire", "--repeats", 0), "repeats must be at least 1"),
        (("wire", "--size", 99, "--rows", 64), "between 1 and the table's 64"),
        (("wire", "--seconds", 0), "seconds must be between"),
        (("wire", "--seed", -1), "seed must be between 0 and"),
        (("wire", "--dim", 0), "dim must be between 1 and 4,096"),
        (("wire", "--dim", 1, "--rows", 4_000_001), "rows must be at most 4,000,000 of 1 numbers, not 4,000,001"),
        (("wire", "--dim", 4096, "--rows", 99_999_999_999), "of 4096 numbers, not 99,999,999,999"),
        (("train", "DATA", "--repeats", 0), "repeats must be at least 1"),
        (("train", "DATA", "--store", "local", "--workers", 2), "--store local is one process"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, words: tuple[object, ...], complaint: str) -> None:
    random_dataset(tmp_path / "data", size=40)
    done = run(*(tmp_path / "data" if word == "DATA" else word for word in words))
    assert done.exit_code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize("failing", [(), (1,), (1, 2), (2, 3), (1, 2, 3, 4)])
def test_trainings_that_fail_count_against_success_and_leave_out_their_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...]
) -> None:
    """Two stores in two repeats: four trainings in turn, of which those numbered `failing` do."""
    random_dataset(tmp_path / "data", size=40)
    numbers = itertools.count(1)
    names = ("seconds", "entries", "entries_per_second", "bytes_sent", "bytes_received", "loss", "bias_only_loss")

    def run_measured(*_: object) -> RunOutcome:
        number = next(numbers)
        if number in failing:
            raise ProcessDied(f"training {number} broke")
        return RunOutcome(dict.fromkeys(names, number), [], 1.0)

    monkeypatch.setattr(bench_train, "run_measured", run_measured)
    options, heard = TrainingOptions(dim=8), list[str]()
    config = TrainBenchConfig(
        dataset=tmp_path / "data", options=options, store="local", beside=("shared",), workers=1, repeats=2
    )
    good = [first for first in (1, 3) if not {first, first + 1} & set(failing)]
    if good:
        result = bench_train.bench(config, heard.append)
        assert result["success"] == 1 - len(failing) / 4
        assert (result["loss"]["min"], result["loss"]["max"]) == (good[0], good[-1])
        assert next(numbers) == 5
        assert sum("broke" in line for line in heard) == len(failing)
    else:
        with pytest.raises(ProcessDied, match="training 3 broke"):
            bench_train.bench(config, heard.append)


def test_a_training_that_is_too_short_to_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that lives for less than a sample has no memory, and the table of vocabularies failed for want of it."""
    facts = {"seconds": 0.01, "entries_per_second": 1e5, "loss": 1.0, "bias_only_loss": 1.0, "entries": 1000,
             "bytes_sent": 1, "bytes_received": 1}  # fmt: skip
    seen = [ProcessUsage("server", [0.0], [0.0])]
    monkeypatch.setattr(bench_train, "run_measured", lambda *_: RunOutcome(facts, seen, 0.0))
    random_dataset(tmp_path / "data")
    config = TrainBenchConfig(dataset=tmp_path / "data", workers=1, repeats=1, options=TrainingOptions(dim=4))
    with pytest.raises(UsageError, match="1,000 entries is over before it can be measured: give more --epochs"):
        bench_train.bench(config, lambda _: None)


def test_the_groups_commands_have_variables_of_their_own() -> None:
    context = click.Context(bench)
    for name in bench.list_commands(context):
        command = bench.get_command(context, name)
        assert command is not None
        variables = [p.envvar for p in command.params if isinstance(p, click.Option)]
        assert all(str(v).startswith(f"GLOVEWIRE_BENCH_{name.upper()}_") for v in variables)


def test_spreads_percentiles_and_surroundings() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2, "min": 1, "max": 3}
    assert spread([123456.0])["median"] == 123500
    case = CaseStatistics()
    case.add(1, Repeat(1.0, [float(n) for n in range(100, 0, -1)], 0, 0.0, 0.0))
    assert [case.repeats[0][name] for name in ("p50_us", "p99_us")] == [50e6, 99e6]
    assert surroundings()["cores"] >= 1


def test_failures_count_against_success() -> None:
    case = CaseStatistics()
    case.add(10, Repeat(2.0, [0.1, 0.2, 0.3], 1, 0.5, 0.25))
    figures = case.figures(row_bytes=4)
    assert figures["rows_per_second"]["median"] == 15
    assert figures["bytes_per_second"]["median"] == 60
    assert (figures["messages"], figures["success"]) == (4, 0.75)
    assert figures["p50_us"]["median"] == pytest.approx(200_000)


def test_processor_time_is_that_of_training_alone() -> None:
    usage = ProcessUsage("worker", times=[0.0, 1.0, 2.0, 3.0], cpu=[0.0, 0.8, 1.0, 1.5])
    outcome = RunOutcome({"seconds": 1.5}, [usage, ProcessUsage("server", [0.0, 3.0], [0.0, 3.0])], ended=2.5)
    assert outcome.cpu_seconds("worker") == pytest.approx(1.25 - 0.8)
    assert outcome.cpu_seconds("server") == pytest.approx(1.5)
    assert RunOutcome({"seconds": 104.0}, [usage], ended=99.0).cpu_seconds("worker") == 1.5
