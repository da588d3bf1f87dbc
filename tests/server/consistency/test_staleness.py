"""Staleness: the histogram, and each policy on written-out examples, alone, with others, and across shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shards
from shards import MINIBATCH, Shard, add, code, in_memory, pull, push, shard, statistics

from glovewire.common.errors import BadRequest
from glovewire.common.model.options import POLICIES, Mode
from glovewire.common.model.sharding import Sharding
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.server.consistency import staleness
from glovewire.server.consistency.minibatch import PendingPush
from glovewire.server.consistency.staleness import (
    BINS,
    StalenessHistogram,
    StalenessPolicy,
    WeightedGradient,
    bin_label,
    combine,
    ones,
)
from glovewire.server.table.table import Table, row_numbers

RATE = 0.5
WIDTH = 4


def descend(table: np.ndarray, rows: np.ndarray, gradients: np.ndarray, rate: float, scales: np.ndarray) -> None:
    """Plain gradient descent in numpy."""
    table[rows, : gradients.shape[1]] -= (np.float32(rate) * scales)[:, None] * gradients


def make(policy: str, *, by_row: bool = True, first: int = 10, rows: int = 6) -> tuple[StalenessPolicy, Table]:
    """A policy on a table of zeros: two parameters a row, and two columns that are none."""
    versions = np.zeros(rows, np.int64)
    table = Table("rows", first, np.zeros((rows, WIDTH), np.float32), 2, descend, versions)
    return StalenessPolicy(Mode.parse(policy, POLICIES), table, by_row=by_row), table


def gradient(rows: list[int], values: list[list[float]], version: int, versions: list[int] | None = None) -> m.Push:
    known = None if versions is None else np.array(versions, np.int64)
    return shards.push("gradient", values, rows=rows, version=version, rate=RATE, sequence=1, versions=known)


# ---- one gradient


@pytest.mark.parametrize(
    ("policy", "by_row", "by_table"),
    [
        ("none", [1, 1, 1], [1, 1, 1]),
        ("inverse", [1, 1, 1 / 4], [1 / 5, 1 / 5, 1 / 5]),
        ("hyperbolic:2", [1, 2 / 3, 2 / 6], [2 / 7, 2 / 7, 2 / 7]),
    ],
)
def test_a_gradient_counts_by_its_age_row_by_row_or_all_alike(
    policy: str, by_row: list[float], by_table: list[float]
) -> None:
    """Five changes since the pull: none to row 10, one to row 12, four to row 13."""
    for clock, expected in ((True, by_row), (False, by_table)):
        judge, table = make(policy, by_row=clock)
        assert table.versions is not None
        table.versions[:] = [3, 0, 7, 9, 0, 0]
        push = gradient([10, 12, 13], [[1, 2], [3, 4], [5, 6]], version=20, versions=[3, 6, 5])
        judge.check(push, 25)
        part = judge.weigh(PendingPush(0, push), 25)
        np.testing.assert_allclose(part.scales, expected, rtol=1e-6)
        np.testing.assert_array_equal(part.rows, [0, 2, 3])
        judge.step(part, RATE)
        np.testing.assert_allclose(table.values[[0, 2, 3], :2], -RATE * np.array(expected)[:, None] * push.values)
        assert table.versions.tolist() == [4, 0, 8, 10, 0, 0]
        counted = {"0": 1, "1": 1, "2-3": 0, "4-7": 1} if clock else {"0": 0, "1": 0, "2-3": 0, "4-7": 3}
        assert judge.ages.as_fields() == counted


def test_the_gap_is_the_distance_moved_in_mean_steps() -> None:
    """A first step of length 5 makes the mean step 5; row 10 has moved by 5 since the pull then, and row 11 not."""
    judge, table = make("gap")
    judge.pulled(7, np.array([0, 1]), 0, table.values[:2].copy())
    other = gradient([10], [[-6, -8]], version=0, versions=[0])
    judge.admitted(8, other)
    judge.step(judge.weigh(PendingPush(8, other), 0), RATE)
    np.testing.assert_array_equal(table.values[0], [3, 4, 0, 0])
    push = gradient([10, 11], [[1, 0], [0, 1]], version=0, versions=[0, 0])
    judge.admitted(7, push)
    np.testing.assert_allclose(judge.weigh(PendingPush(7, push), 1).scales, [1 / 2, 1])


def test_delay_compensation_corrects_the_gradient_by_its_square_times_the_distance() -> None:
    judge, table = make("dc:0.1")
    judge.pulled(7, np.array([0, 1]), 0, table.values[:2].copy())
    table.values[0] = [3, -4, 9, 9]
    push = gradient([10, 11], [[2, 5], [1, 1]], version=0, versions=[0, 0])
    judge.admitted(7, push)
    part = judge.weigh(PendingPush(7, push), 1)
    np.testing.assert_allclose(part.gradients, [[2 + 0.1 * 4 * 3, 5 - 0.1 * 25 * 4], [1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(part.scales, [1, 1])


def test_a_part_of_what_was_pulled_is_measured_and_what_was_not_kept_counts_as_unmoved() -> None:
    judge, table = make("dc:1")
    judge.pulled(7, np.array([0, 2, 4]), 3, table.values[[0, 2, 4]].copy())
    table.values[:] = 1
    for rows, version, moved in (([12, 14], 3, 1.0), ([12, 13], 3, 0.0), ([12], 2, 0.0)):
        push = gradient(rows, [[1, 1]] * len(rows), version)
        judge.admitted(7, push)
        np.testing.assert_array_equal(judge.weigh(PendingPush(7, push), 5).gradients, 1 + moved)


def test_what_is_kept_is_bounded_and_goes_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, table = make("gap")
    rows = np.arange(6)
    size = 6 * 2 * 4
    for version in range(5):
        judge.pulled(1, rows, version, table.values)
        judge.pulled(2, rows, version, table.values)
    assert judge.kept_bytes == 4 * size
    judge.admitted(1, gradient(list(range(10, 16)), [[0, 0]] * 6, 4))
    assert judge.kept_bytes == 5 * size
    judge.forget(2, lost=False)
    judge.forget(1, lost=True)
    assert judge.kept_bytes == 0
    monkeypatch.setattr(staleness, "MAX_KEPT_BYTES", 2 * size)
    for worker in range(5):
        judge.pulled(worker, rows, 0, table.values)
    assert judge.kept_bytes <= 2 * size
    plain, _ = make("inverse")
    plain.pulled(1, rows, 0, table.values)
    assert plain.kept_bytes == 0


@pytest.mark.parametrize(
    ("policy", "push", "complaint"),
    [
        ("inverse", gradient([10], [[1, 1]], version=1), "must say which version"),
        ("hyperbolic:1", gradient([10], [[1, 1]], version=-1, versions=[0]), "must say which version"),
        ("none", gradient([10], [[1, 1]], version=9), "ahead of the shard's, 5"),
        ("none", gradient([10, 11], [[1, 1], [1, 1]], version=1, versions=[0]), "2 versions, one per row"),
        ("none", gradient([10], [[1, 1]], version=1, versions=[1]), "never had"),
        ("none", gradient([10], [[1, 1]], version=1, versions=[-1]), "never had"),
    ],
)
def test_a_gradient_whose_age_cannot_be_is_refused(policy: str, push: m.Push, complaint: str) -> None:
    judge, _ = make(policy)
    with pytest.raises(BadRequest, match=complaint):
        judge.check(push, 5)


# ---- the histogram


def test_bins_are_powers_of_two_and_the_last_holds_the_rest() -> None:
    histogram = StalenessHistogram()
    for tau in (-3, 0, 1, 2, 3, 4, 7, 8, 4095, 4096, 10**12):
        histogram.count(tau)
    fields = histogram.as_fields()
    assert {bin: n for bin, n in fields.items() if n} == {
        "0": 2, "1": 1, "2-3": 2, "4-7": 2, "8-15": 1, "2048-4095": 1, "4096+": 2
    }  # fmt: skip
    assert list(fields) == [bin_label(bin) for bin in range(BINS)]
    assert sum(fields.values()) == 11
    assert StalenessHistogram().as_fields() == {}


def test_a_push_is_as_stale_as_its_rows_have_grown_since(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), **MINIBATCH)
    for name in ("w0", "w1"):
        one.hello(name)
    one.ask(b"w0", push("add", np.ones((2, one.state.table.values.shape[1])), 0, 2, version=0))
    one.ask(b"w1", push("add", np.ones((2, one.state.table.values.shape[1])), 0, 2, version=0))
    one.ask(b"w0", add(one, 2))  # without a version it is unknown
    assert one.state.pull_push.staleness.as_fields() == {"0": 1, "1": 1}
    assert statistics(one)["staleness"] == {"0": 1, "1": 1}
    assert statistics(one)["hot_rows"] == {"0-1": 3}


# ---- several gradients in one update


def test_together_gradients_are_their_mean_or_sum_over_all_rows_and_each_has_its_own_scale() -> None:
    """Row 2 stands in both, with scales 1 and 1/2: the step is exactly the sum of scaled gradients."""
    one = WeightedGradient(np.array([0, 2]), np.array([[1, 2], [3, 4]], np.float32), np.array([1, 1], np.float32))
    two = WeightedGradient(np.array([2, 3]), np.array([[5, 6], [7, 8]], np.float32), np.array([0.5, 0.25], np.float32))
    for mean, share in ((False, 1), (True, 2)):
        both = combine([one, two], mean=mean)
        np.testing.assert_array_equal(both.rows, [0, 2, 3])
        steps = both.scales[:, None] * both.gradients * share
        np.testing.assert_allclose(steps, [[1, 2], [3 + 2.5, 4 + 3], [7 / 4, 2]], rtol=1e-6)
        np.testing.assert_allclose(both.scales, [1, 0.75, 0.25])
    assert combine([one], mean=True) is one


def test_gradients_of_one_range_and_one_weight_are_just_added_up_and_others_are_not() -> None:
    """All of them have the arrays of rows and scales in common that are kept, or one of them, or none."""
    rows, once = row_numbers(0, 2), ones(2)
    half, above = np.full(2, 0.5, np.float32), np.array([1, 2])
    one, two = np.float32([[3], [6]]), np.float32([[9], [12]])
    for other, weight, expected, scale in (
        (rows, once, {0: 12, 1: 18}, 1.0),
        (rows.copy(), once.copy(), {0: 12, 1: 18}, 1.0),
        (rows, half, {0: 3 * 4 / 3 + 9 * 2 / 3, 1: 6 * 4 / 3 + 12 * 2 / 3}, 0.75),
        (above, once, {0: 3, 1: 15, 2: 12}, 1.0),
    ):
        sums = combine([WeightedGradient(rows, one, once), WeightedGradient(other, two, weight)], mean=False)
        assert dict(zip(sums.rows.tolist(), sums.gradients[:, 0].tolist(), strict=True)) == pytest.approx(expected)
        assert sums.scales.tolist() == [scale] * len(expected)
    assert (one.tolist(), once.tolist()) == ([[3], [6]], [1, 1])


# ---- through whole shards


def cluster(dataset: Dataset, count: int, workers: int, **options: Any) -> list[Shard]:
    """Shards of a plain descent by minibatches, with workers w0, w1, ... that all know."""
    usual = {"schedule": "minibatch", "consistency": "async", "optimizer": "sgd", "dim": 4, "batch_size": 1}
    found = [shard(dataset, number=n, shards=count, workers=workers, **{**usual, **options}) for n in range(count)]
    for one in found:
        for worker in range(workers):
            one.hello(f"w{worker}", worker=worker)
    return found


class Worker:
    """Pulls rows and pushes gradients of them to every shard of a cluster."""

    def __init__(self, number: int, cluster: list[Shard]) -> None:
        self.name, self.cluster, self.sequence = b"w%d" % number, cluster, 0
        self.sharding = Sharding(cluster[0].dataset.layout.rows, len(cluster))

    def pull(self, rows: list[int]) -> None:
        """Ask every shard for its part, even an empty one."""
        self.rows = np.array(rows)
        self.spans = self.sharding.split_rows(self.rows)
        replies = [self.cluster[s].ask(self.name, pull(rows=self.rows[span])) for s, span in self.spans]
        self.found = [reply for reply in replies if isinstance(reply, m.Rows)]
        assert len(self.found) == len(self.cluster)

    def push(self, gradients: np.ndarray, rate: float = RATE) -> None:
        self.sequence += 1
        for (s, span), known in zip(self.spans, self.found, strict=True):
            request = shards.push(
                "gradient", gradients[span], rows=self.rows[span], sequence=self.sequence, version=known.version,
                versions=known.versions, rate=rate,
            )  # fmt: skip
            reply = self.cluster[s].ask(self.name, request)
            assert isinstance(reply, m.Applied), reply


def parameters(cluster: list[Shard]) -> np.ndarray:
    return np.concatenate([one.state.table.values[:, : one.state.table.parameters] for one in cluster])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("policy", ["inverse", "gap", "dc:0.5"])
def test_repeated_rows_across_shards_step_as_written_out(dataset: Dataset, policy: str, count: int) -> None:
    """w0 pulls rows 3, 9, 20; w1 then changes 9 twice and 20 once; then w0 pushes."""
    shards_ = cluster(dataset, count, 2, staleness=policy)
    start = parameters(shards_)
    slow, fast = Worker(0, shards_), Worker(1, shards_)
    width = shards_[0].state.table.parameters
    one = np.ones((1, width), np.float32)
    slow.pull([3, 9, 20])
    for rows in ([9], [9, 20]):
        fast.pull(rows)
        fast.push(np.repeat(one, len(rows), axis=0))
    moved = np.array([0.0, -2 * RATE, -RATE])  # of each element of rows 3, 9 and 20 since the pull
    now = parameters(shards_)[[3, 9, 20]] - start[[3, 9, 20]]
    np.testing.assert_allclose(now, np.repeat(moved[:, None], width, 1), atol=1e-6)
    slow.push(np.repeat(one, 3, axis=0) * 2)
    step = {
        "inverse": 2 * RATE * np.array([1, 1 / 2, 1]),
        "gap": 2 * RATE / (1 + np.array([0, 2, 1])),  # all steps so far were of one length
        "dc:0.5": RATE * (2 + 0.5 * 4 * moved),
    }[policy]
    after = parameters(shards_)[[3, 9, 20]] - start[[3, 9, 20]]
    np.testing.assert_allclose(after, np.repeat((moved - step)[:, None], width, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adagrad-row"])
def test_sync_with_three_workers_is_one_worker_with_batches_three_times_as_large(
    dataset: Dataset, optimizer: str, mean: bool
) -> None:
    """Whatever the order of arrival: and the same bytes each time."""
    draw = np.random.default_rng(5)
    options: dict[str, Any] = {"optimizer": optimizer, "mean_gradient": mean}
    batches = [[np.sort(draw.choice(25, 6, replace=False)) for _ in range(3)] for _ in range(4)]
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        shards_ = cluster(dataset, 2, 3, consistency="sync", **options)
        single = cluster(dataset, 1, 1, **options)
        workers, alone = [Worker(n, shards_) for n in range(3)], Worker(0, single)
        values = np.random.default_rng(6)
        for step in batches:
            gradients = [values.normal(size=(6, single[0].state.table.parameters)).astype(np.float32) for _ in step]
            for n in order:
                workers[n].pull(step[n].tolist())
            for n in order:
                workers[n].push(gradients[n])
            rows = np.unique(np.concatenate(step))
            whole = np.zeros((len(rows), gradients[0].shape[1]))
            for each, its in zip(gradients, step, strict=True):
                np.add.at(whole, np.searchsorted(rows, its), each)
            alone.pull(rows.tolist())
            alone.push((whole / (3 if mean else 1)).astype(np.float32))
        np.testing.assert_allclose(parameters(shards_), parameters(single), rtol=1e-5, atol=1e-6)
        results.append(parameters(shards_).tobytes())
    assert results[0] == results[1]


def test_a_worker_that_is_lost_frees_those_that_waited_for_it(dataset: Dataset) -> None:
    """The pull that waits for the step's end is answered when the third worker's lease is over."""
    (one,) = cluster(dataset, 1, 3, consistency="sync", lease_s=10.0)
    first, second = Worker(0, [one]), Worker(1, [one])
    for worker in (first, second):
        worker.pull([1, 2])
    one.tick(6.0)
    for worker in (first, second):
        worker.push(np.ones((2, one.state.table.parameters), np.float32))
    waits = one.send(b"w0", pull(rows=[1]))
    assert one.reply(b"w0", waits) is None
    one.tick(6.0)
    assert isinstance(one.reply(b"w0", waits), m.Rows)
    assert one.state.consistency.version(0) == 1
    assert code(one.ask(b"w2", m.Heartbeat())) == "unknown-session"


def test_who_never_comes_is_waited_for_no_longer_than_a_lease(dataset: Dataset) -> None:
    one = shard(dataset, schedule="minibatch", consistency="ssp:1", workers=2, lease_s=10.0)
    one.hello("w0")
    waits = one.send(b"w0", pull(rows=[1]))
    for _ in range(2):
        one.tick(6.0)
        one.ask(b"w0", m.Heartbeat())
    assert isinstance(one.reply(b"w0", waits), m.Rows)
    assert one.events("begun") == ["shard 0"]
