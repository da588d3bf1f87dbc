"""A shard of a dense model without sockets: who brings the first values, what is refused, when it is over."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards import SECRET, Shard, applied, code, pull, push, statistics

from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import NotReady
from glovewire.common.model.bfloat16 import to_bfloat16
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.tensor_layout import ROW, ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.service import prepare
from glovewire.server.sessions import MAX_DECLARATIONS

MODEL = {"w": np.arange(600, dtype=np.float32), "b": np.ones(3, np.float32), "n": np.array(7)}
SPEC = ModelSpec.of(MODEL)  # rows: w 0-2, b 3, n 4
OTHER = ModelSpec.of({"w": np.zeros(5, np.float32)})


def tensor_shard(number: int = 0, shards: int = 1, **options: Any) -> Shard:
    own = {name: options.pop(name) for name in ("lease_s", "patience_s") if name in options}
    training = TrainingOptions.of_tensors(**{"optimizer": "sgd", "learning_rate": 1.0, **options})
    config = ServerConfig(out=Path("run"), options=training, shard=number, shards=shards, checkpoint_every=2, **own)
    return Shard(prepare(config, None, Generation(0, "run", shards, secret=SECRET), 0.0), NO_DATASET)


class NoDataset:
    """No dataset: its checksum is empty."""

    checksum = ""


NO_DATASET: Any = NoDataset()


def tensors_push(operation: str, first: int, last: int, value: float | np.ndarray = 1.0, **fields: Any) -> m.Push:
    values = np.full((last - first, ROW), value) if np.isscalar(value) else value
    return push(operation, values, first, last, table="tensors", **fields)


def half(operation: str, first: int, last: int, value: float = 1.0, width: int = ROW) -> m.Push:
    """A push in bfloat16."""
    whole = tensors_push(
        operation, first, last, np.full((last - first, width), value, np.float32), sequence=2, rate=2.0
    )
    return dataclasses.replace(whole, values=to_bfloat16(whole.values))


def create(spec: ModelSpec | None = SPEC) -> m.Create:
    return m.Create(None if spec is None else spec.to_json())


def filled(**options: Any) -> Shard:
    """A shard to which `a` has brought zeros."""
    one = tensor_shard(**options)
    one.hello("a")
    assert fill_of(one.ask(b"a", create())) is True
    one.ask(b"a", tensors_push("assign", 0, 5, 0.0, sequence=1))
    return one


def fill_of(reply: m.Message | None) -> bool | None:
    return reply.fill if isinstance(reply, m.Created) else None


def test_the_first_brings_the_values_and_the_others_wait_for_them() -> None:
    one = tensor_shard()
    for name in "abe":
        one.hello(name, role="observer" if name == "e" else "worker")
    assert fill_of(one.ask(b"e", create())) is None
    assert fill_of(one.ask(b"a", create())) is True
    waiting = one.send(b"b", create())
    assert code(one.ask(b"b", pull(0, 5, table="tensors"))) == "not-ready"
    one.ask(b"a", tensors_push("assign", 0, 3, sequence=1))
    assert one.reply(b"b", waiting) is None
    one.ask(b"a", tensors_push("assign", 3, 5, sequence=2))
    assert fill_of(one.reply(b"b", waiting)) is False
    rows = one.ask(b"b", pull(0, 5, table="tensors"))
    assert isinstance(rows, m.Rows)
    assert (rows.values == 1.0).all()
    assert code(one.ask(b"b", create(OTHER))) == "model-mismatch"


@pytest.mark.parametrize("declared", [None, SPEC, OTHER])
def test_an_observer_that_waits_with_another_model_is_refused_once_there_is_one(declared: ModelSpec | None) -> None:
    """`declared`: the model of a worker that has left before the observer asks."""
    one = tensor_shard()
    for name in "ab":
        one.hello(name)
    for name in ("same", "other"):
        one.hello(name, role="observer")
    if declared is not None:
        one.ask(b"a", create(declared))
        one.ask(b"a", m.Leave(Ending.LEFT))
    same, other = one.send(b"same", create()), one.send(b"other", create(OTHER))
    assert fill_of(one.ask(b"b", create())) is True
    one.ask(b"b", tensors_push("assign", 0, 5, 0.0, sequence=1))
    assert fill_of(one.reply(b"same", same)) is False
    assert code(one.reply(b"other", other)) == "model-mismatch"


def test_a_session_cannot_have_one_foreign_model_parsed_after_the_other() -> None:
    """Each takes up to 0.1 s: 2,048 of them made a run four times as long."""
    one = filled()
    one.hello("b")
    found = [code(one.ask(b"b", create(OTHER))) for _ in range(MAX_DECLARATIONS + 1)]
    assert found == ["model-mismatch"] * MAX_DECLARATIONS + ["limit"]
    assert fill_of(one.ask(b"b", create())) is False  # the server's own costs nothing
    many = ModelSpec(tuple(dataclasses.replace(SPEC.tensors[0], name=f"t{n}") for n in range(2000)))
    one.hello("c")
    found = [code(one.ask(b"c", create(many))) for _ in range(MAX_DECLARATIONS + 1)]
    assert found == ["model-mismatch"] * (MAX_DECLARATIONS + 1)  # unread


def test_when_the_one_who_brings_them_is_lost_the_next_brings_all() -> None:
    one = tensor_shard()
    for name in "abc":
        one.hello(name)
    assert fill_of(one.ask(b"a", create(OTHER))) is True
    assert code(one.ask(b"b", create())) == "model-mismatch"
    assert fill_of(one.ask(b"a", create())) is True  # it may change its mind
    one.ask(b"a", tensors_push("assign", 0, 4, 5.0, sequence=1))
    b, c = one.send(b"b", create()), one.send(b"c", create())
    one.ask(b"a", m.Leave(Ending.LEFT, pushes=1))
    assert fill_of(one.reply(b"b", b)) is True
    assert one.reply(b"c", c) is None
    one.ask(b"b", tensors_push("assign", 4, 5, 2.0, sequence=1))
    assert one.reply(b"c", c) is None  # rows of the one who was lost do not count
    one.ask(b"b", tensors_push("assign", 0, 4, 2.0, sequence=2))
    assert fill_of(one.reply(b"c", c)) is False
    assert (one.state.table.values == 2.0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        tensors_push("gradient", 0, 5, sequence=2),  # covers what is not trained
        tensors_push("assign", 0, 5, sequence=2),  # covers what is trained
        tensors_push("add", 0, 4, sequence=2),
        push("gradient", np.ones((2, ROW)), table="tensors", rows=[0, 1], sequence=2),
        push("gradient", np.ones((4, ROW - 1)), 0, 4, table="tensors", sequence=2),
        tensors_push("gradient", 0, 6, sequence=2),
        push("gradient", np.ones((4, ROW)), 0, 4, sequence=2),  # of another table
        half("assign", 4, 5),
        half("gradient", 0, 3, width=ROW - 1),
    ],
)
def test_what_a_push_may_not_do(wrong: m.Push) -> None:
    one = filled()
    assert code(one.ask(b"a", wrong)) == "bad-request"
    assert not one.state.table.values.any()


def test_gradients_step_and_values_of_fixed_tensors_are_no_update() -> None:
    one = filled()
    assert one.ask(b"a", tensors_push("gradient", 0, 4, 0.5, sequence=2, rate=2.0)) == applied(2, 1, False)
    assert one.ask(b"a", tensors_push("assign", 4, 5, 9.0, sequence=3)) == applied(3, 1, False)
    np.testing.assert_array_equal(one.state.table.values[:, 0], [-1, -1, -1, -1, 9])
    assert code(one.ask(b"a", tensors_push("gradient", 0, 4, np.nan, sequence=4))) == "not-finite"


def test_a_gradient_may_come_in_half_the_bytes() -> None:
    one = filled()
    assert one.ask(b"a", half("gradient", 0, 4, 0.5)) == applied(2, 1, False)
    np.testing.assert_array_equal(one.state.table.values[:, 0], [-1, -1, -1, -1, 0])
    assert code(one.ask(b"a", dataclasses.replace(half("gradient", 0, 4, np.inf), sequence=3))) == "not-finite"


def test_a_pull_waits_for_the_updates_that_it_names() -> None:
    one = filled()
    one.hello("eye", role="observer")
    waiting = one.send(b"eye", pull(0, 4, 2, table="tensors"))
    one.ask(b"a", tensors_push("gradient", 0, 4, sequence=2, rate=1.0))
    assert one.reply(b"eye", waiting) is None
    one.ask(b"a", tensors_push("gradient", 0, 4, sequence=3, rate=1.0))
    rows = one.reply(b"eye", waiting)
    assert isinstance(rows, m.Rows)
    assert (rows.version, float(rows.values[0, 0])) == (2, -2.0)


def test_the_run_is_over_after_its_steps_and_checkpoints_come_on_the_way() -> None:
    one = filled(steps=4)
    for sequence in range(2, 6):
        assert one.state.over is None
        one.ask(b"a", tensors_push("gradient", 0, 4, sequence=sequence))
    assert one.state.over == RunEnd(Ending.COMPLETE)
    assert [snapshot.label for snapshot in one.take_snapshots()] == ["update-00000002", "update-00000004"]
    assert code(one.ask(b"a", pull(0, 4, table="tensors"))) == "finishing"


def test_gradients_on_their_way_at_the_last_update_are_dropped_so_that_steps_is_exact() -> None:
    one = filled(steps=2, consistency="async")
    one.hello("b")
    one.ask(b"b", create())
    for sequence in (2, 3):
        one.ask(b"a", tensors_push("gradient", 0, 4, 1.0, sequence=sequence, rate=1.0))
    assert one.state.over == RunEnd(Ending.COMPLETE)
    for is_repeat in (False, True):  # the first answer may be lost
        late = one.ask(b"b", tensors_push("gradient", 0, 4, 1.0, sequence=1, rate=1.0))
        assert isinstance(late, m.Applied)
        assert (late.late, late.repeated) == (True, is_repeat)
    assert one.state.checkpoint_facts()["updates"] == 2
    assert one.state.table.values[0, 0] == -2.0


def test_the_stream_tells_updates_of_how_many_and_what_is_trained() -> None:
    one = filled(steps=5, consistency="async")
    for sequence in (2, 3, 4):
        one.ask(b"a", tensors_push("gradient", 0, 4, sequence=sequence))
    one.ask(b"a", m.Report(1, -1, 30, 3.0, 0.0, 1.0, 0.1, 100))
    one.tick(1.0)
    loss = next(sample for sample in one.samples if isinstance(sample, m.LossSample))
    assert (loss.epoch, loss.epochs, loss.total) == (3, 5, 0)
    about = next(sample for sample in one.samples if isinstance(sample, m.RunSample))
    assert (about.name, about.dataset, about.options["objective"], about.options["steps"]) == ("run", "", "tensors", 5)
    assert one.samples.index(about) < one.samples.index(loss), "also in one tick: metrics.jsonl begins with it"
    one.tick(100.0)
    assert sum(isinstance(sample, m.RunSample) for sample in one.samples) == 4


def test_the_loss_at_the_end_is_that_of_the_end() -> None:
    one = filled()
    for number in range(1, 101):
        one.ask(b"a", m.Report(number, -1, 10, 1000.0 if number < 60 else 5.0, 0.0, 1.0, 0.1, 100))
    assert statistics(one)["loss"] == 0.5


def test_an_observer_that_rests_between_two_looks_is_not_reported_as_late() -> None:
    one = filled(lease_s=10.0)
    one.hello("eye", role="observer")
    one.tick(9.0)
    assert one.events("late") == ["a"]


def test_without_values_there_is_nothing_to_save() -> None:
    """A checkpoint without tensors would be the newest, and nothing could begin with it."""
    one = tensor_shard()
    one.hello("a")
    one.hello("eye", role="observer")
    for _ in range(2):
        assert code(one.ask(b"eye", m.Checkpoint(1))) == "not-ready"
        assert one.core.final() is None
        one.ask(b"a", create())
    assert one.take_snapshots() == []
    one.ask(b"a", tensors_push("assign", 0, 5, 0.0, sequence=1))
    assert one.ask(b"eye", m.Checkpoint(1)) is None  # until it is written
    assert [snapshot.facts["tensors"] for snapshot in one.take_snapshots()] == [SPEC.text]


def test_a_loss_may_be_negative_but_not_beyond_all_measure() -> None:
    one = filled()
    said = m.Report(1, -1, 10, -15.0, 0.0, 1.0, 0.1, 100)
    assert one.ask(b"a", said) == m.Recorded(False, 0, 10)
    assert one.state.progress.losses.sweep_means(0)[0] == -1.5
    for wrong in ({"loss": -1e31}, {"loss": 1e31}, {"norm": -1.0}, {"bias_only_loss": -1.0}):
        assert code(one.ask(b"a", dataclasses.replace(said, sequence=2, **wrong))) == "bad-request"


@pytest.mark.parametrize("consistency", ["async", "sync", "ssp:0", "softsync:1"])
@pytest.mark.parametrize("staleness", ["none", "inverse", "gap", "dc:0.1"])
def test_a_shard_without_trained_rows_counts_steps_of_no_rows(consistency: str, staleness: str) -> None:
    """As its sister does that has rows: they have to agree on updates, checkpoints and whose turn it is."""
    spec = ModelSpec.of({"w": np.ones(3, np.float32), "n": np.zeros(1200, np.int16)})  # rows: w 0, n 1-5
    one = tensor_shard(1, 2, consistency=consistency, staleness=staleness, clock="table", optimizer="adam")
    for worker, name in enumerate("ab"):
        one.hello(name, worker=worker)
    one.ask(b"a", create(spec))
    assert (one.state.table.first, one.state.table.last) == (3, 6)
    one.ask(b"a", tensors_push("assign", 3, 6, 7.0, sequence=1))
    for version in range(2):
        for name, sequence in (("a", 2 + version), ("b", 1 + version)):
            one.ask(name.encode(), pull(3, 3, table="tensors"))
            none = tensors_push("gradient", 3, 3, sequence=sequence, version=version, then_pull=True)
            one.send(name.encode(), none)
    in_one = 1 if consistency in ("async", "ssp:0") else 2
    assert (one.state.consistency.version(3), one.state.consistency.gradients) == (4 // in_one, 4)
    assert len(one.take_snapshots()) == 2 // in_one
    assert (one.state.table.values[:, :ROW] == 7.0).all()
    assert one.state.pull_push.hot_rows.hottest() == {}
    for wrong in ((0, 0), (7, 7), (3, 4)):
        assert code(one.ask(b"a", tensors_push("gradient", *wrong, sequence=4, version=2))) == "bad-request"


def test_shards_own_ranges_of_all_rows_also_none() -> None:
    owned = []
    for number in range(7):
        one = tensor_shard(number, 7)
        one.hello("a")
        assert one.ask(b"a", create()) is not None
        owned.append((one.state.table.first, one.state.table.last))
    assert owned == [(0, 0), (0, 1), (1, 2), (2, 2), (2, 3), (3, 4), (4, 5)]


def test_a_model_whose_gradient_fits_in_no_message_asks_for_shards() -> None:
    one = tensor_shard()
    one.hello("a")
    big = ModelSpec.from_json(b'[["w", [20000000], "<f4", true]]')
    reply = one.ask(b"a", create(big))
    assert isinstance(reply, m.Refused)
    assert "needs 2 shards" in reply.text
    assert one.state.tensors is not None
    with pytest.raises(NotReady):
        one.state.tensors.require_complete()


def test_a_server_of_word_vectors_takes_no_tensors(tmp_path: Path) -> None:
    from shards import in_memory, shard

    one = shard(in_memory(tmp_path / "d"))
    one.hello("a")
    assert code(one.ask(b"a", create())) == "bad-request"
    halves = dataclasses.replace(push("gradient", np.ones((1, 1)), 0, 1), values=np.ones((1, 1), np.uint16))
    assert code(one.ask(b"a", halves)) == "bad-request"


def test_a_push_may_ask_for_the_rows_after_it() -> None:
    """In step: who comes first hears after a while that its gradient is in, and gets the rows with the other."""
    one = filled(consistency="sync")
    one.hello("b")
    gradients = {
        name: tensors_push("gradient", 0, 4, value, sequence=sequence, version=0, rate=1.0, then_pull=True)
        for name, sequence, value in (("a", 2, 1.0), ("b", 1, 3.0))
    }
    first = one.send(b"a", gradients["a"])
    assert (b"a", first) not in one.inbox
    one.tick(0.005)
    assert [type(reply) for reply in one.inbox[b"a", first]] == [m.Applied]
    last = one.send(b"b", gradients["b"])
    assert [type(reply) for reply in one.inbox[b"b", last]] == [m.Rows]
    for name, number in (("a", first), ("b", last)):
        rows = one.reply(name.encode(), number)
        assert isinstance(rows, m.Rows)
        assert rows.version == 1
        assert (rows.values == -2).all()
    again = one.ask(b"b", gradients["b"], last)
    assert isinstance(again, m.Rows)
    assert again.version == 1
    assert one.state.push_counts.summary()["repeated"] == 1


def test_a_gradient_that_is_too_late_or_refused_hears_that_whatever_rows_it_asks_for() -> None:
    one = filled(consistency="sync", backup=1)
    one.hello("b")
    one.ask(b"a", tensors_push("gradient", 0, 4, sequence=2, version=0))
    late = one.send(b"b", tensors_push("gradient", 0, 4, sequence=1, version=0, then_pull=True))
    said, rows = one.inbox[b"b", late]
    assert isinstance(said, m.Applied)
    assert said.late
    assert isinstance(rows, m.Rows)
    assert one.state.push_counts.summary() == {"sent": 3, "heard": 3, "applied": 2, "repeated": 0, "refused": 1}
    wrong = tensors_push("gradient", 0, 4, np.nan, sequence=2, version=1, then_pull=True)
    assert [code(reply) for reply in one.inbox[b"b", one.send(b"b", wrong)]] == ["not-finite"]
    assert one.state.push_counts.summary()["refused"] == 2


def test_the_push_that_completes_a_run_is_in_though_its_rows_are_refused() -> None:
    one = filled(steps=1)
    last = tensors_push("gradient", 0, 4, 1.0, sequence=2, rate=1.0, then_pull=True)
    assert code(one.ask(b"a", last)) == "finishing"
    assert one.state.progress.complete
    assert one.state.push_counts.summary()["refused"] == 0


def test_a_worker_that_brings_no_values_is_lost_and_the_next_one_brings_them() -> None:
    """It sent heartbeats, and the others waited for ever; one that brings them slowly is not lost."""
    for brings in (False, True):
        one = tensor_shard(lease_s=10.0, patience_s=4.0)
        for name in ("lazy", "b"):
            one.hello(name)
        assert fill_of(one.ask(b"lazy", create())) is True
        waits = one.send(b"b", create())
        for row in range(4):
            for _ in range(3):
                one.tick(1.0)
                for name in ("lazy", "b"):
                    one.send(name.encode(), m.Heartbeat())
            if brings:
                one.ask(b"lazy", tensors_push("assign", row, row + 1, sequence=row + 1))
        assert one.events("lost")[:1] == ([] if brings else ["lazy"])
        assert fill_of(one.reply(b"b", waits)) is (None if brings else True)
