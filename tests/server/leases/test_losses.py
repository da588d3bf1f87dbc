"""Losses and samples: means over entries, rates over a moment, at most ten samples a second."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import Report
from glovewire.server.leases import losses as module
from glovewire.server.leases.losses import MAX_PARTS, SAMPLE_EVERY_S, Losses, MatrixMean


def report(
    entries: int = 10, loss: float = 20.0, floor: float = 30.0, norm: float = 2.0, seconds: float = 0.5
) -> Report:
    return Report(1, -1, entries, loss, floor, norm, seconds, 0)


def samples(losses: Losses, now: float, **force: Any) -> dict[str, Any]:
    return {sample.worker: sample for sample in losses.samples(now, **force)}


def test_samples_carry_means_over_the_entries_since_the_last() -> None:
    losses = Losses(total=100, epochs=2)
    losses.add("a", 0, report(10, 20.0, 30.0, 2.0), 1.0)
    losses.add("b", 0, report(30, 20.0, 60.0, 4.0), 1.0)
    found = samples(losses, 1.0, force=True)
    assert list(found) == ["a", "b", "all"]
    assert (found["a"].loss, found["a"].bias_only_loss, found["a"].norm) == (2.0, 3.0, 2.0)
    assert (found["all"].loss, found["all"].bias_only_loss) == (1.0, pytest.approx(90 / 40))
    assert found["all"].norm == pytest.approx((2.0 * 10 + 4.0 * 30) / 40)
    assert (found["a"].entries, found["b"].entries, found["all"].entries) == (10, 30, 40)
    assert found["all"].total == 100
    losses.add("a", 0, report(10, 50.0), 2.0)
    found = samples(losses, 2.0, force=True)
    assert list(found) == ["a", "all"]
    assert found["a"].loss == 5.0
    assert found["a"].entries == 20
    assert found["all"].entries == 50


def test_workers_that_come_under_new_names_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of all workers counts what those did that are forgotten."""
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    losses = Losses(total=10**9, epochs=1)
    for number in range(100):
        losses.add(f"w{number}", 0, report(), float(number))
        losses.add("w0", 0, report(), float(number))
    found = samples(losses, 100.0, force=True)
    assert list(found) == ["w0", "w98", "w99", "all"]
    assert (found["w0"].entries, found["all"].entries) == (1010, 2000)


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_there_are_ten_samples_a_second_however_many_workers_there_are(workers: int) -> None:
    losses = Losses(total=10**9, epochs=1)
    told: list[tuple[float, str, int]] = []
    for n in range(30_000):  # thirty seconds of a report each millisecond
        now = n / 1000
        losses.add(f"w{n % workers}", 0, report(), now)
        told += [(now, sample.worker, sample.entries) for sample in losses.samples(now)]
    assert 290 <= len(told) <= 301
    assert sum(name == "all" for _, name, _ in told) >= 6 * 30
    last = {name: entries for _, name, entries in told}
    assert len(last) == workers + 1, "every worker has a turn"
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(told)]
    assert min(gaps) >= SAMPLE_EVERY_S - 2e-3


def test_what_a_worker_did_between_its_turns_is_in_its_next_sample() -> None:
    losses, entries, loss = Losses(total=10**9, epochs=1), 0, 0.0
    for n in range(1, 2_000):
        losses.add(f"w{n % 7}", 0, report(10, float(n)), n / 100)
        for sample in losses.samples(n / 100, force=n == 1_999):
            if sample.worker == "w3":
                loss += sample.loss * (sample.entries - entries)
                entries = sample.entries
    assert loss == pytest.approx(sum(n for n in range(1, 2_000) if n % 7 == 3))


def test_the_mean_holds_each_block_once_and_so_does_not_jump_from_block_to_block() -> None:
    losses = Losses(total=4_000, epochs=10)
    hard = {"easy": 1.0, "hard": 9.0, "middle": 5.0, "small": 3.0}
    means, raw = [], []
    for epoch in range(3):
        for part in sorted(hard, key=lambda name: (epoch % 2, name), reverse=bool(epoch % 2)):
            losses.add("a", epoch, report(100, 100 * hard[part], 200.0), len(means) + 1.0, part)
            found = samples(losses, len(means) + 1.0, force=True)["all"]
            means.append(found.mean_loss)
            raw.append(found.loss)
    assert set(raw) == {1.0, 3.0, 5.0, 9.0}
    assert means[3:] == [4.5] * 9
    assert found.mean_bias_only_loss == 2.0


def test_the_norm_of_all_is_over_the_whole_matrix_too() -> None:
    """Seen to fail: the last sample had the norm of the last strips, and the results that of all."""
    losses = Losses(total=80, epochs=2)
    losses.add("a", 0, report(10, norm=4.0), 1.0, part=0)
    losses.add("b", 0, report(30, norm=2.0), 1.0, part=1)
    losses.samples(1.0, force=True)
    losses.add("a", 1, report(30, norm=3.0), 2.0, part=1)
    found = samples(losses, 2.0, force=True)
    assert (found["a"].norm, found["all"].norm) == (3.0, (4.0 * 10 + 3.0 * 30) / 40)


def test_the_mean_of_minibatches_is_over_the_last_epoch_and_bounded() -> None:
    whole = MatrixMean(per_sweep=1000)
    for n in range(500):
        whole.add(None, report(10, 10.0 * n))
    assert whole.means()[0] == pytest.approx(sum(range(400, 500)) / 100)
    whole = MatrixMean(per_sweep=10**12)
    for _ in range(MAX_PARTS + 10):
        whole.add(None, report(10, 20.0))
    assert len(whole._parts) == MAX_PARTS
    assert whole.means()[0] == 2.0


def test_nothing_new_is_nothing_to_say_and_the_end_is_said_at_once() -> None:
    losses = Losses(total=100, epochs=1)
    assert samples(losses, 5.0) == {}
    losses.add("a", 0, report(), 5.0)
    assert samples(losses, 5.0)
    losses.add("a", 0, report(), 5.01)
    assert samples(losses, 5.01) == {}
    assert samples(losses, 5.02, force=True)["a"].entries == 20
    assert samples(losses, 9.0, force=True) == {}


def test_the_rate_is_that_of_the_last_moments_and_shared_by_entries() -> None:
    losses = Losses(total=10**9, epochs=1)
    for n in range(1, 101):  # ten seconds at 1,000 entries a second, then at 5,000
        speed = 100 if n <= 50 else 500
        losses.add("a", 0, report(speed // 5), n / 10)
        losses.add("b", 0, report(4 * speed // 5), n / 10)
        found = samples(losses, n / 10, force=True)
    assert found["all"].entries_per_second == pytest.approx(5000, rel=0.01)
    assert found["a"].entries_per_second == pytest.approx(1000, rel=0.01)
    assert len(losses.recent) < 30


def test_a_first_report_of_a_moment_makes_no_spike() -> None:
    losses = Losses(total=10**9, epochs=1)
    losses.add("a", 0, report(1_000, seconds=0.001), 5.0)  # of a block that was ready before the clock started
    rates = [samples(losses, 5.0)["all"].entries_per_second]
    for n in range(1, 60):
        losses.add("a", 0, report(1_000, seconds=0.1), 5.0 + n / 10)
        rates += [found["all"].entries_per_second for found in [samples(losses, 5.0 + n / 10)] if "all" in found]
    assert len(rates) > 30
    assert max(rates) < 2.1 * rates[-1]


def test_the_first_rate_counts_from_the_start_of_the_work() -> None:
    losses = Losses(total=1000, epochs=1)
    losses.add("a", 0, report(50, seconds=0.5), 7.0)
    assert samples(losses, 7.0)["all"].entries_per_second == pytest.approx(100)
    assert losses.seconds() == pytest.approx(0.5)


def test_what_was_trained_before_a_resume_is_no_part_of_the_pace() -> None:
    losses = Losses(total=10**6, epochs=1, entries=900_000)
    assert losses.entries_per_second() == 0.0
    losses.add("a", 0, report(1000, seconds=0.5), 10.0)
    assert samples(losses, 10.0)["all"].entries_per_second == pytest.approx(2000)
    losses.add("a", 0, report(1000, seconds=0.5), 11.0)
    assert losses.entries_per_second() == pytest.approx(2000 / 1.5)


def test_epochs_are_counted_by_entries_and_have_means_of_their_own() -> None:
    losses = Losses(total=100, epochs=2)
    assert losses.epoch == 0
    losses.add("a", 0, report(50, 100.0), 1.0)
    losses.add("a", 1, report(25, 25.0), 2.0)
    assert losses.epoch == 1
    assert losses.sweep_means(0)[0] == 2.0
    assert losses.last_means() == losses.sweep_means(1) == (1.0, 1.2, 2.0)
    assert losses.sweep_means(7) == (0.0, 0.0, 0.0)
    losses.add("a", 1, report(90), 3.0)
    assert losses.epoch == 2


def test_epochs_of_a_sweep_are_complete_together_and_have_one_mean() -> None:
    losses = Losses.of(TrainingOptions(epochs=6, local_epochs=3), 100, started=0.0)
    assert losses.total == 600
    losses.add("a", 0, report(200, 100.0), 1.0, part=0)
    assert (losses.epoch, losses.sweep) == (0, 0)
    losses.add("a", 0, report(100, 200.0), 2.0, part=1)
    assert (losses.epoch, losses.sweep) == (3, 1)
    assert losses.last_means()[0] == samples(losses, 2.0, force=True)["all"].mean_loss == 1.0
    losses.add("a", 1, report(200, 40.0), 3.0, part=0)
    assert samples(losses, 3.0, force=True)["all"].mean_loss == (40.0 + 200.0) / 300
    losses.add("a", 1, report(100, 20.0), 4.0, part=1)
    assert (losses.epoch, losses.last_means()[0]) == (6, 0.2)


def test_times_count_from_the_servers_start() -> None:
    losses = Losses(total=100, epochs=1, started=100.0)
    losses.add("a", 0, report(), 103.5)
    assert samples(losses, 104.0)["all"].t == pytest.approx(4.0)
