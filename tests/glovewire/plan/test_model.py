"""The model behind `glovewire plan`: against arithmetic where that is easy, and against its own limits elsewhere."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from forked import PROGRAM
from handmade import random_dataset
from processes import Flow

from glovewire.common.errors import UsageError
from glovewire.common.model.options import TrainingOptions
from glovewire.plan.cli import plan
from glovewire.plan.config import bytes_per_second
from glovewire.plan.kernel_rate import measured_rate
from glovewire.plan.model import LINK_SHARE, Cluster, forecast, partitions_advised, servers_needed
from glovewire.plan.work import Work, counted, estimated, zipf_counts

FAST = 1e15
"""Bytes a second that hold nobody up."""


def work(partitions: int = 8) -> Work:
    """Of 8,000 words with 8 million entries."""
    return estimated(zipf_counts(8_000, 8e6), 8e6, partitions)


CLUSTER = Cluster(
    work=work(), row_bytes=1_000, workers=1, servers=1, entries_per_second=1e6, bytes_per_second=FAST,
    served_per_second=FAST,
)  # fmt: skip


def test_one_worker_without_a_network_takes_what_its_kernel_takes() -> None:
    found = forecast(CLUSTER)
    assert found.seconds == pytest.approx(8.0)
    assert found.bottleneck == "worker"
    assert found.bytes_pushed == pytest.approx(CLUSTER.work.rows.sum() * 1_000)
    assert found.bytes_pulled == pytest.approx(found.bytes_pushed)


def test_rows_are_sent_once_in_the_epochs_of_a_sweep() -> None:
    one, two = (forecast(dataclasses.replace(CLUSTER, epochs=4, local_epochs=n)) for n in (1, 2))
    assert two.seconds == pytest.approx(one.seconds)
    assert two.bytes_pushed == pytest.approx(one.bytes_pushed / 2)
    assert two.bytes_pulled == pytest.approx(one.bytes_pulled / 2)


def test_the_work_of_a_dataset_is_counted(tmp_path: Path) -> None:
    dataset, _ = random_dataset(tmp_path / "data", size=40)
    found = counted(dataset)
    assert found.entries.sum() == dataset.total_entries
    assert found.rows.diagonal().tolist() == [dataset.layout.size(p) for p in range(3)]
    assert found.rows[2, 1] == len(dataset.distinct(2, 1))
    assert not found.entries[0, 1:].any()


@pytest.mark.parametrize("partitions", [1, 5, 16])
def test_the_work_of_unknown_text_is_estimated(partitions: int) -> None:
    found = work(partitions)
    assert found.partitions == partitions
    assert found.entries.sum() == pytest.approx(8e6)
    assert found.rows.diagonal().sum() == 8_000
    assert (found.rows.max(axis=0) <= found.rows.diagonal()).all()


def test_more_workers_share_the_work_until_there_are_no_more_blocks() -> None:
    seconds = [forecast(dataclasses.replace(CLUSTER, workers=workers)).seconds for workers in (1, 2, 4, 16, 64)]
    assert seconds[1] == pytest.approx(seconds[0] / 2, rel=0.25)
    assert seconds[3] == pytest.approx(seconds[4])  # each strip visits the first partition
    assert 8.0 / 4 < seconds[3] < seconds[1]
    assert forecast(dataclasses.replace(CLUSTER, workers=64)).bottleneck == "rounds"


def test_a_slow_link_takes_what_its_bytes_take() -> None:
    slow = dataclasses.replace(CLUSTER, workers=4, bytes_per_second=1e6)
    found = forecast(slow)
    assert found.bottleneck.startswith("server link")
    assert found.bytes_pushed / 1e6 / LINK_SHARE < found.seconds < 1.5 * found.bytes_pushed / 1e6 / LINK_SHARE
    assert servers_needed(CLUSTER) == 1


def test_connections_that_share_links_leave_a_part_of_them_idle() -> None:
    """Two workers push to two shards: now and then both to the same one, whose link is then all that works."""
    slow = dataclasses.replace(CLUSTER, workers=2, servers=2, bytes_per_second=1e6, entries_per_second=FAST)
    found = forecast(slow)
    least = found.bytes_pushed / 2 / 1e6 / LINK_SHARE
    assert 1.1 * least < found.seconds < 3 * least


def test_pulls_wait_behind_the_rows_that_the_worker_pushes() -> None:
    """Partitions of 100 MB are more than a worker's credit: it asks for the next rows when most of them are sent."""
    slow = dataclasses.replace(CLUSTER, row_bytes=100_000, bytes_per_second=1e8, entries_per_second=FAST)
    found = forecast(slow)
    one_way = found.bytes_pushed / 1e8 / LINK_SHARE
    assert 1.3 * one_way < found.seconds < 2 * one_way


def test_a_shard_that_copies_slowly_and_a_long_way_cost_time() -> None:
    base = forecast(dataclasses.replace(CLUSTER, workers=2))
    copying = forecast(dataclasses.replace(CLUSTER, workers=2, served_per_second=2e6))
    assert copying.bottleneck == "server"
    assert copying.seconds == pytest.approx((copying.bytes_pulled + copying.bytes_pushed) / 2e6, rel=0.1)
    far = forecast(dataclasses.replace(CLUSTER, workers=2, round_trip_s=0.1))
    assert base.seconds < far.seconds < base.seconds + 8 * 8 * 0.1


def test_rows_on_their_way_keep_nobody_from_the_next() -> None:
    """A visit takes 0.2 s to train, and its rows as long to come and to go."""
    near = dataclasses.replace(CLUSTER, workers=2, epochs=10)
    far = forecast(dataclasses.replace(near, round_trip_s=0.2))
    assert far.seconds < 1.3 * forecast(near).seconds


def test_workers_wait_longer_at_the_beginning_and_the_end_of_a_training() -> None:
    far = dataclasses.replace(CLUSTER, workers=4, round_trip_s=0.1)
    short, usual, long = (forecast(dataclasses.replace(far, epochs=epochs)).seconds for epochs in (1, 10, 1000))
    assert short > 1.2 * usual > 1.2 * long
    assert long == pytest.approx(forecast(dataclasses.replace(far, epochs=2000)).seconds, rel=0.01)


def test_fewer_partitions_are_advised_for_slow_links_and_more_for_many_workers() -> None:
    assert partitions_advised(CLUSTER, work) == 8
    assert partitions_advised(dataclasses.replace(CLUSTER, bytes_per_second=1e5), work) == 4
    assert partitions_advised(dataclasses.replace(CLUSTER, workers=8), work) == 16


@pytest.mark.parametrize(
    ("text", "bytes_a_second"), [("100Mbit", 12.5e6), ("2.5 Gbit/s", 312.5e6), ("8kbit", 1e3), ("1gbit", 125e6)]
)
def test_rates_are_bits(text: str, bytes_a_second: float) -> None:
    assert bytes_per_second(text) == bytes_a_second


@pytest.mark.parametrize("text", ["100", "fast", "0Mbit", "-1Gbit", "1GB", "0.1kbit", "9999Tbit", "9" * 400 + "Gbit"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="100Mbit"):
        bytes_per_second(text)


def test_the_command(tmp_path: Path) -> None:
    with Flow(tmp_path) as flow:
        words = ["plan", "--entries", 1e9, "--dim", 300, "--workers", 8, "--bandwidth", "1Gbit", "--kernel-rate", 1e7]
        plan = flow.run(*words, "--json")
        assert plan.json["bottleneck"] in {*plan.json["busy"], "rounds"}
        assert plan.json["entries_per_second"] == pytest.approx(1e9 / plan.json["epoch_seconds"])
        assert "more than" in plan.out
        assert "add servers" not in plan.out
        assert "links" in flow.run(*words, "--servers", 1, "--bandwidth", "10Mbit").out
        assert "tcp_wmem" not in plan.out
        assert json.loads(plan.out.splitlines()[-1]) == plan.json
        far = flow.run(*words[:-2], "--round-trip", 45, "--kernel-rate", 1e7, "--json")
        assert far.json["bytes_in_flight"] == pytest.approx(1e9 / 8 * 0.045)
        assert "tcp_wmem" in far.out
        flow.start("plan", "--words", 1, "--workers", 0, program=PROGRAM).fails(
            "--entries", "words", "workers", status=2
        )
        flow.start("plan", "--entries", 1e6, "--dim", 16).ends(0)  # measures this machine


def refused(*arguments: str) -> str:
    outcome = CliRunner().invoke(plan, ["--kernel-rate", "1e6", *arguments])
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1), outcome.output
    return outcome.stderr


@pytest.mark.parametrize("entries", ["inf", "nan", "0", "-5", "1e300"])
def test_entries_that_cannot_be_are_named(entries: str) -> None:
    said = refused("--entries", entries)
    assert "entries must be between 1 and 1e15, not " in said
    assert "give a DATASET" not in said


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--round-trip", ["inf", "nan", "-1"]),
        ("--kernel-rate", ["1e-310", "inf", "nan", "0"]),
        ("--words", ["10000000000000000000000000", "99999999999", "-4"]),
        ("--epochs", ["-3", "0", "1" + "0" * 400]),
        ("--workers", ["0", "10000"]),
        ("--servers", ["0", "257"]),
        ("--partitions", ["0", "257"]),
    ],
)
def test_numbers_that_no_cluster_has_or_that_take_hours_are_refused(option: str, values: list[str]) -> None:
    for value in values:
        about = option[2:]
        said = refused("--entries", "1e9", option, value)
        assert said.startswith(f"error: {about} must be between "), said
        assert ";" not in said


def test_partitions_that_are_given_count_before_those_of_the_dataset(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)  # 3 partitions
    with Flow(tmp_path) as flow:
        plan = flow.run("plan", "data", "--kernel-rate", 1e6)
        assert "40 words in 3 partitions" in plan.out
        other = flow.run("plan", "data", "--kernel-rate", 1e6, "--partitions", 8)
        assert "40 words in 8 partitions" in other.out
        flow.start("plan", "data", "--partitions", 41).fails("between 1 and 40 for 40 words, not 41", status=2)


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_kernel_rate_is_measured_on_the_entries_of_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symmetric: bool
) -> None:
    monkeypatch.setattr("glovewire.plan.kernel_rate.MEASURE_S", 0.01)
    dataset, _ = random_dataset(tmp_path / "data", size=40, symmetric=symmetric)
    before = dataset.entries.tobytes()
    assert measured_rate(TrainingOptions(dim=16), dataset) > 0
    assert dataset.entries.tobytes() == before


def test_what_a_dataset_tells_is_not_said_twice(tmp_path: Path) -> None:
    random_dataset(tmp_path / "data", size=40)
    with Flow(tmp_path) as flow:
        flow.start("plan", "data", "--words", 32_000).fails("a DATASET tells its words: leave out --words", status=2)
        twice = flow.start("plan", "data", "--words", 1, "--entries", 1e9)
        twice.fails("a DATASET tells its words and entries: leave out --words and --entries", status=2)
