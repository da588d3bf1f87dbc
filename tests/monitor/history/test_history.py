"""The history: bounded whatever arrives, right after restarts, without a clock."""

from __future__ import annotations

import pytest
from monitor_fakes import loss, run_of, run_sample, server_sample, shard, worker

from glovewire.common.protocol.messages import Event, QualitySample
from glovewire.common.text import amount, shown_loss
from glovewire.monitor.history import history as module
from glovewire.monitor.history.curve import LossCurve, Point, rolling_means, sweep_means
from glovewire.monitor.history.formatting import age, duration, sanitize
from glovewire.monitor.history.history import RunHistory


def point(t: float, value: float = 1.0) -> Point:
    return Point(t, int(t * 10), 0, value, 2.0, 1.0, 10.0)


@pytest.mark.parametrize("count", [1, 3, 16, 17, 100, 12_345])
def test_a_curve_is_bounded_and_keeps_both_ends(count: int) -> None:
    curve = LossCurve(16)
    for t in range(count):
        curve.add(point(float(t), float(t)))
    points = curve.all_points()
    assert len(points) <= 17
    assert points[-1].t == count - 1
    assert [p.t for p in points] == sorted(p.t for p in points)
    assert points[0].t <= max(1, count / 4)


def test_thinning_keeps_means_and_says_that_points_changed() -> None:
    curve, values = LossCurve(8), [float(n % 7) for n in range(64)]
    for t, value in enumerate(values):
        curve.add(point(float(t), value))
    whole = sum(p.loss * p.samples for p in curve.points)
    kept = sum(p.samples for p in curve.points)
    assert whole == pytest.approx(sum(values[:kept]))
    assert curve.generation > 0


def test_whole_epochs_do_not_show_which_block_a_sample_comes_from() -> None:
    curve = LossCurve(100)
    for number in range(1, 41):  # an epoch is 10 samples, one of them of a block that is hard to fit
        value = 1.0 if number % 10 == 3 else 0.1
        curve.add(Point(float(number), 50 * number, number // 10, value, 0.7, 1.0, 100.0, entries=50))
    means = sweep_means(curve.all_points(), 500)[-5:]
    assert [p.loss for p in means] == pytest.approx([0.19] * 5)
    assert [p.position for p in means] == [250, 750, 1250, 1750, 2000]
    assert [p.loss for p in rolling_means(curve.all_points(), 0.0)][2] == 1.0


def test_the_curve_of_a_worker_shows_its_progress_and_not_which_block_it_trains() -> None:
    """Seen to fail: the curve jumped from block to block, by a factor of ten."""
    history = RunHistory()
    history.add(run_sample(epochs=5, local_epochs=1), 0.0)  # an epoch is 200 entries, ten samples of two workers
    for number in range(1, 51):
        values = {"value": 1.0 if number % 10 < 2 else 0.1, "total": 1000.0}
        history.add(loss(float(number), "w0", entries=20 * number, **values), 0.0)
    assert [p.loss for p in history.worker_points("w0")[20:]] == pytest.approx([0.28] * 30)


def test_the_loss_over_the_whole_matrix_is_what_the_server_says() -> None:
    history = RunHistory()
    assert history.overall.last is None
    history.add(loss(entries=50, value=0.9, mean_loss=0.4, mean_bias_only_loss=0.6), 0.0)
    assert history.overall.last is not None
    assert (history.overall.last.mean_loss, history.overall.last.mean_bias_only_loss) == (0.4, 0.6)


def test_staleness_and_hot_rows_are_those_of_all_shards() -> None:
    history = RunHistory()
    for number in (0, 1):
        told = {
            "staleness": {"0": 5, "1": 1, "2-3": 2, "16-31": 1},
            "hot_rows": {"7": 10 + number, "1200-1299": 3, "200-299": 3},
        }
        history.add(server_sample(1.0, number, 2, 100, 5, 0, **told), 0.0)
    assert list(history.staleness.items()) == [("0", 10), ("1", 2), ("2-3", 4), ("16-31", 2)]
    assert history.hot_rows == [("7", 11), ("7", 10), *[("200-299", 3)] * 2, *[("1200-1299", 3)] * 2]


def test_shards_that_began_at_other_times_do_not_push_the_clock() -> None:
    history = RunHistory()
    for t in range(1, 60):
        history.add(loss(float(t), entries=t), 0.0)
        history.add(shard(1, t + 40.0), 0.0)
        history.add(Event(t - 0.9 if t > 1 else 0.0, "checkpoint", "x", ""), 0.0)
    assert history.t == 59.0


def test_a_rewound_curve_forgets_what_is_beyond() -> None:
    curve = LossCurve(100)
    for t in range(50):
        curve.add(point(float(t)))
    curve.rewind(200)
    assert curve.last is not None
    assert curve.last.position == 200
    assert max(p.position for p in curve.all_points()) == 200


def test_a_whole_run_can_be_read_off() -> None:
    history = RunHistory("pydoc")
    for sample in run_of():
        history.begin("run-1")
        history.add(sample, getattr(sample, "t", 0.0))
    assert history.finished
    assert history.progress == 1.0
    assert history.eta_s == 0.0
    assert sorted(history.workers) == ["w0", "w1", "w2"]
    assert len(history.shards) == 2
    assert history.shards[1].bytes_per_second == pytest.approx(32e6, rel=0.01)
    assert history.quality["wordsim353"][-1].score == pytest.approx(58)
    assert [event.kind for event in history.events][-1] == "finished"
    places = [p.position for p in history.workers["w1"].curve.all_points()]
    assert places[-1] == pytest.approx(54e6, rel=0.01), "a worker's curve lies along the entries of all"


def test_eta_and_pace_come_from_the_last_seconds() -> None:
    history = RunHistory()
    history.add(loss(1.0, entries=200, entries_per_second=50.0), 1.0)
    history.add(loss(9.0, entries=600, entries_per_second=100.0), 9.0)
    assert history.entries_per_second == 100.0
    assert history.eta_s == pytest.approx(4.0)


def test_once_it_is_over_the_pace_is_that_of_all_of_it() -> None:
    history = RunHistory()
    for t, entries in ((1.0, 200), (2.0, 500), (9.0, 1000), (12.0, 1000)):
        history.add(loss(t, entries=entries, entries_per_second=7.0), t)
    assert history.entries_per_second == 7.0
    history.add(Event(12.0, "finished", "shard 0", "complete"), 12.0)
    assert history.entries_per_second == 100.0, "the wait until all is saved is no training"


def test_age_and_silence_grow_with_the_given_clock() -> None:
    history = RunHistory()
    assert history.silence_s(5.0) is None
    history.add(worker(age_s=0.5), 10.0)
    assert history.workers["w0"].age_s(12.0) == pytest.approx(2.5)
    assert history.silence_s(13.0) == pytest.approx(3.0)


def test_a_worker_that_is_gone_has_no_rates() -> None:
    history = RunHistory()
    for number, state in enumerate(("training", "training", "left")):
        history.add(worker("w2", state, t=float(number), sent=100 * number), 1.0)
        assert history.workers["w2"].bytes_per_second == (100.0 if number == 1 else 0.0)
    history.add(worker("w0"), 1.0)
    history.add(worker("w1", "lost"), 1.0)
    assert history.active_workers == 1
    assert history.workers["w1"].entries_per_second == 0.0


def test_a_server_that_starts_anew_goes_on_in_time() -> None:
    history = RunHistory()
    for t in range(1, 6):
        history.add(loss(float(t), entries=100 * t), 0.0)
    history.add(loss(0.5, entries=200, value=0.4), 0.0)
    history.add(loss(1.5, entries=300, value=0.3), 0.0)
    curve = history.overall.all_points()
    assert [p.position for p in curve] == [100, 200, 200, 300]
    assert [p.t for p in curve] == [1.0, 2.0, 5.0, 6.0]
    assert history.events[-1].kind == "rewound"


def test_another_run_starts_from_nothing_and_shards_of_one_run_do_not() -> None:
    history = RunHistory()
    history.begin("a")
    history.add(loss(), 1.0)
    history.begin("shard-1-says-b")
    assert history.overall.last is not None
    history.begin("c", restarted=True)
    assert history.overall.last is None
    assert history.run == "c"


def test_hostile_names_and_numbers_of_names_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WORKERS", 10)
    history = RunHistory()
    history.add(worker("\x1b[2Jgone\nline" + "x" * 500), 1.0)
    for number in range(1_000):
        history.add(worker(f"w{number}"), 1.0)
        history.add(loss(worker=f"l{number}"), 1.0)
        history.add(shard(number), 1.0)
        history.add(QualitySample(1.0, 1, f"test{number}", 1.0), 1.0)
        history.add(Event(1.0, "joined", "\x07", "y" * 1_000), 1.0)
    assert len(history.workers) == 10
    assert len(history.shards) <= module.MAX_SHARDS
    assert len(history.quality) <= module.MAX_TESTS
    assert len(history.events) <= module.MAX_EVENTS
    assert all(name.isprintable() and len(name) <= 48 for name in history.workers)
    assert history.events[-1].subject.isprintable()


def test_rates_come_from_counters_and_survive_their_reset() -> None:
    history = RunHistory()
    history.add(shard(t=1.0, pulls=10, traffic=1_000), 0.0)
    history.add(shard(t=3.0, pulls=30, traffic=3_000), 0.0)
    assert history.shards[0].pulls_per_second == 10.0
    assert history.shards[0].bytes_per_second == 2_000.0
    history.add(shard(t=4.0, pulls=0, traffic=0), 0.0)
    assert history.shards[0].pulls_per_second == 0.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (amount(999), "999"),
        (amount(1234), "1.23 k"),
        (amount(54_100_000), "54.1 M"),
        (amount(0.5), "0.50"),
        (amount(2_500_000, "B"), "2.50 MB"),
        (amount(999_900), "1.00 M"),
        (duration(42), "0:42"),
        (duration(3_725), "1:02:05"),
        (duration(90_000), "1 d 1:00:00"),
        (age(0.2), "now"),
        (age(45), "45 s"),
        (shown_loss(0.03125), "0.0312"),
        (shown_loss(0.00012), "1.200e-04"),
        (sanitize("a\x1b[31mb"), "a\ufffd[31mb"),
    ],
)
def test_numbers_are_written_for_people(text: str, wanted: str) -> None:
    assert text == wanted


def test_a_run_shorter_than_a_sample_has_a_curve() -> None:
    whole = Point(t=1.0, position=410, epoch=4, loss=0.5, bias_only_loss=0.6, norm=1.0, entries_per_second=9.0)
    assert [p.position for p in sweep_means([whole], 100)] == [410]


def test_silence_ending_and_failure_are_the_status() -> None:
    history = RunHistory()
    assert history.status(1.0, ["tcp://127.0.0.1:9"]) == ("warn", "waiting for tcp://127.0.0.1:9")
    history.add(loss(), 10.0)
    assert history.status(11.0) == ("good", "training")
    assert history.status(30.0) == ("warn", "no data for 20 s")
    history.finished = True
    assert history.status(30.0) == ("calm", "finished")
    history.failed = "disk full"
    assert history.status(30.0) == ("bad", "failed: disk full")


def test_a_server_that_writes_its_results_is_not_said_to_be_silent() -> None:
    history = RunHistory()
    for sample in (loss(), worker("w0"), worker("w1"), Event(2.0, "left", "w0", "complete"), worker("w0", "left")):
        history.add(sample, 10.0)
    assert history.status(30.0) == ("warn", "no data for 20 s"), "another worker has not left"
    history.add(worker("w1", "left"), 10.0)
    assert history.status(30.0) == ("good", "trained, writing the results for 20 s")
    history.add(Event(3.0, "joined", "w2", ""), 20.0)
    assert history.status(30.0) == ("warn", "no data for 10 s")


@pytest.mark.parametrize(("entries", "shown"), [(0, "1/8"), (249, "2/8"), (250, "3/8"), (990, "8/8"), (1000, "8/8")])
def test_the_epoch_is_the_one_in_training_though_those_of_a_sweep_are_done_together(entries: int, shown: str) -> None:
    history = RunHistory("one")
    history.add(loss(entries=entries, epoch=8 if entries == 1000 else 0, epochs=8), 1.0)
    assert history.epoch == shown
