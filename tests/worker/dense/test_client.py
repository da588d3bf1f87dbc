"""A dense model on real shards in this process: what clients of people's own see, with faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_shards import SHAPES, addresses, begin_again, shards_of, values
from processes import until

from glovewire.common import errors
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.bfloat16 import from_bfloat16, to_bfloat16
from glovewire.common.model.tensor_layout import ROW
from glovewire.common.storage.run_folder import load_tensors
from glovewire.common.transport.client import RequestClient
from glovewire.server import limits as credit
from glovewire.server.checkpoints.generations import Generation
from glovewire.server.config import ServerConfig
from glovewire.server.leaving import Leaving
from glovewire.server.peers import Peers
from glovewire.server.service import prepare
from glovewire.worker.dense import session as tensors
from glovewire.worker.dense.client import Client


def test_create_pull_push_finish(tmp_path: Path) -> None:
    began, gradient = values(0), values(1)
    with shards_of(tmp_path / "run", 3) as daemons, Client(addresses(daemons), "a") as ps:
        ps.create({**began, "seen": np.array(7)})
        for parameters in ps.steps():
            if ps.updates == 3:
                break
            assert {name: value.shape for name, value in parameters.items()} == SHAPES
            ps.push(gradient, loss=1.5, examples=10)
        for name, value in parameters.items():
            np.testing.assert_allclose(value, began[name] - 3 * 0.5 * gradient[name], rtol=1e-5, atol=1e-6)
        ps.push_fixed({"seen": np.array(1 << 40)})
        with Client(addresses(daemons), "eye", observe=True) as eye:
            eye.attach()
            assert eye.pull_fixed()["seen"] == 1 << 40
            assert eye.pull(after=3)["scale"] == parameters["scale"]
            eye.score("test", 50.0)
        ps.finish()
        assert ps.over
        with Client(addresses(daemons), "late") as late:
            late.create(began)
            assert late.over
            assert list(late.steps()) == []
        assert list(ps.steps()) == []
        ps.score("test", 60.0)  # too late: it is not sent
        losses = daemons[0].state.progress.losses
        until(lambda: losses.entries == 30, "the report is in")
        assert losses.sweep_means(0)[0] == pytest.approx(1.5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("<f4", 1e-5), ("<f8", 1e-12)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_workers_in_step_are_one_with_the_mean_gradient(
    tmp_path: Path, optimizer: str, dtype: str, tolerance: float
) -> None:
    """Three workers on two shards, and one worker that pushes the mean of what they push."""
    began, steps = values(0, dtype), 5
    gradients = [[values(100 * rank + step, dtype) for step in range(steps)] for rank in range(3)]

    def train(run: str, each: list[list[dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
        options = {"consistency": "sync", "optimizer": optimizer, "learning_rate": 0.01}
        with shards_of(tmp_path / run, 2, len(each), **options) as daemons:
            found: list[dict[str, np.ndarray]] = []

            def work(rank: int) -> None:
                with Client(addresses(daemons), f"w{rank}") as ps:
                    ps.create(began)
                    for gradient in each[rank]:
                        ps.pull()
                        ps.push(gradient)
                    found.append(ps.pull())

            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(each))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert len(found) == len(each)
            return found[0]

    together = train("together", gradients)
    means = [{n: np.mean([g[s][n] for g in gradients], axis=0).astype(dtype) for n in SHAPES} for s in range(steps)]
    alone = train("alone", [means])
    for name in SHAPES:
        assert together[name].dtype == np.dtype(dtype)
        np.testing.assert_allclose(together[name], alone[name], rtol=tolerance, atol=tolerance)


def test_what_cannot_be_is_refused_in_words_and_nothing_is_sent(tmp_path: Path) -> None:
    with shards_of(tmp_path / "run") as daemons, Client(addresses(daemons), "a") as ps:
        with pytest.raises(errors.UsageError, match="say which tensors"):
            ps.push({})
        ps.create(values(0))
        with Client(addresses(daemons), "b") as other, pytest.raises(errors.ModelMismatch, match="it has no 'b'"):
            other.create({"w": np.zeros((40, 30), np.float32)})
        for wrong, error, says in (
            ({"x": 1.0}, errors.BadRequest, "no tensor is called 'x'"),
            ({"b": np.zeros(3)}, errors.BadRequest, r"'b' has shape \(30,\), not \(3,\)"),
            ({"b": np.full(30, np.nan)}, errors.NotFinite, "gradient of 'b' has NaN or infinity"),
        ):
            with pytest.raises(error, match=says):
                ps.push(wrong)
        with pytest.raises(errors.NotFinite, match="the loss became nan"):
            ps.push({}, loss=float("nan"))
        assert ps.pull()["scale"] == values(0)["scale"]
        assert ps.updates == 0


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_gradient_travels_in_half_the_bytes(tmp_path: Path, dtype: str) -> None:
    began, gradient = values(0, dtype), values(1, dtype)
    with shards_of(tmp_path / "run", 2) as daemons, Client(addresses(daemons), half=True) as ps:
        ps.create(began)
        ps.push(gradient)
        for name, value in ps.pull().items():
            arrived = from_bfloat16(to_bfloat16(gradient[name])).astype(dtype)
            np.testing.assert_allclose(value, began[name] - arrived.dtype.type(0.5) * arrived, rtol=1e-6)


def test_a_gradient_that_is_too_long_is_shortened(tmp_path: Path) -> None:
    with shards_of(tmp_path / "run", clip_norm=2.0, learning_rate=1.0) as daemons, Client(addresses(daemons)) as ps:
        ps.create({"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)})
        ps.push({"w": [3.0, 0.0, 0.0], "b": [4.0]})
        found = ps.pull()
        np.testing.assert_allclose([*found["w"], *found["b"]], [-1.2, 0, 0, -1.6], rtol=1e-6)


def test_a_shard_that_comes_back_with_nothing_gets_its_rows_from_a_worker(tmp_path: Path) -> None:
    with shards_of(tmp_path / "run", 2) as daemons, Client(addresses(daemons), "a") as ps:
        ps.create({**values(0), "n": np.array(5)})
        ps.push(values(1))
        last = ps.pull()
        begin_again(daemons, tmp_path / "run")
        after = ps.pull()
        for name, value in last.items():
            np.testing.assert_array_equal(after[name], value)
        assert ps.pull_fixed()["n"] == 5
        ps.push(values(1))
        ps.pull()
        assert ps.updates == 1


@pytest.mark.parametrize("joins", [Client.pull_fixed, lambda ps: ps.score("test", 50.0)])
def test_a_gradient_of_rows_from_before_a_server_began_again_is_dropped(
    tmp_path: Path, joins: Callable[[Client], Any]
) -> None:
    """Nothing that the worker does between the pull and the push gives the gradient a version that it has not."""
    with shards_of(tmp_path / "run", 2, consistency="sync") as daemons, Client(addresses(daemons), "a") as ps:
        ps.create({**values(0), "n": np.array(5)})
        ps.pull()
        ps.push({})
        before = ps.pull()
        begin_again(daemons, tmp_path / "run")
        joins(ps)
        ps.push(values(1), loss=1.0)
        after = ps.pull()
        assert ps.updates == 0
        np.testing.assert_array_equal(after["w"], before["w"])
        ps.push(values(1))
        np.testing.assert_allclose(ps.pull()["w"], before["w"] - 0.5 * values(1)["w"], rtol=1e-5, atol=1e-6)
        assert ps.updates == 1


def test_who_has_no_values_yet_waits_for_those_who_have_when_a_server_begins_again(tmp_path: Path) -> None:
    with (
        shards_of(tmp_path / "run", 2) as daemons,
        Client(addresses(daemons), "a") as one,
        Client(addresses(daemons), "b") as other,
    ):
        one.create({**values(0), "n": np.array(5)})
        one.pull()
        other.attach(wait_s=0.5)
        begin_again(daemons, tmp_path / "run")
        with pytest.raises(errors.DeadlineExceeded, match="no worker has brought values for the tensors"):
            other.pull()
        one.pull()
        other.attach()
        np.testing.assert_array_equal(other.pull()["w"], values(0)["w"])


def test_numbers_may_come_from_any_library(tmp_path: Path) -> None:
    """And a loss may be negative, as that of a log-likelihood."""
    with shards_of(tmp_path / "run") as daemons, Client(addresses(daemons), "a") as ps:
        ps.create(values(0))
        for loss, examples in ((np.float32(-0.5), np.int64(10)), (np.array(-1.5), np.array(10)), (-1, 10.0)):
            ps.push({}, loss=loss, examples=examples)
        ps.pull(after=np.int64(3))
        ps.score("accuracy", np.float32(91.5))
        ps.finish()
        losses = daemons[0].state.progress.losses
        assert losses.entries == 30
        assert losses.sweep_means(0)[0] == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("loss", "examples", "error", "says"),
    [
        ("low", 1, errors.BadRequest, "the loss must be a number, not 'low'"),
        (np.zeros(2), 1, errors.BadRequest, "the loss must be a number"),
        (None, 1, errors.BadRequest, "the loss must be a number, not None"),
        pytest.param(10**400, 1, errors.BadRequest, "the loss must be a number", id="huge"),
        (np.float32("inf"), 1, errors.NotFinite, "the loss became inf"),
        (0.0, 1.5, errors.BadRequest, "examples must be a whole number from 0 to .*, not 1.5"),
        (0.0, -1, errors.BadRequest, "examples must be a whole number"),
        (0.0, 1 << 41, errors.BadRequest, "examples must be a whole number"),
        (0.0, "2", errors.BadRequest, "examples must be a whole number"),
        (0.0, None, errors.BadRequest, "examples must be a whole number"),
        (0.0, float("nan"), errors.BadRequest, "examples must be a whole number"),
    ],
)
def test_what_is_no_number_is_named_and_the_training_goes_on(
    tmp_path: Path, loss: Any, examples: Any, error: type[errors.GlovewireError], says: str
) -> None:
    with shards_of(tmp_path / "run") as daemons, Client(addresses(daemons), "a") as ps:
        ps.create(values(0))
        ps.pull()
        with pytest.raises(error, match=says):
            ps.push({}, loss=loss, examples=examples)
        with pytest.raises(errors.BadRequest, match="the score must be a number, not 'high'"):
            ps.score("accuracy", "high")  # type: ignore[arg-type] # that is the point
        with pytest.raises(errors.NotFinite, match="the score became nan"):
            ps.score("accuracy", float("nan"))
        ps.push({})
        ps.pull()
        assert ps.updates == 1


def test_a_finished_run_keeps_its_tensors_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run, began = tmp_path / "run", {**values(0, "<f8"), "n": np.array(3, np.int32)}
    with shards_of(run, optimizer="momentum") as daemons:
        with Client(addresses(daemons), "a") as ps:
            ps.create(began)
            ps.push(values(1, "<f8"))
            last = ps.pull()
            ps.finish()
        one, end = daemons[0], RunEnd(Ending.COMPLETE)
        until(lambda: all(thread.name != "daemon" for thread in threading.enumerate()), "it has served")
        rows = one.state.table.values.copy()  # leaving gives the table's memory back
        config = ServerConfig(out=run, options=one.state.options)
        facts = one.core.summary(end)
        peers, generation = Peers(config, None), Generation(0, "run", 1)
        Leaving(config, None, one.core, one, peers, generation, end, facts, lambda: None).leave()
    kept, manifest = load_tensors(run)
    assert kept["n"] == 3
    for name, value in last.items():
        assert kept[name].tobytes() == value.tobytes()
    assert manifest.facts["parameters"] == 1231
    resumed = prepare(config, None, Generation(1, "again", 1, "final", 1), 0.0)
    np.testing.assert_array_equal(resumed.table.values, rows)
    assert resumed.consistency.version(0) == 1


def test_values_wait_at_home_while_more_would_be_on_their_way_than_the_server_lets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, send, seen = 4 * ROW, RequestClient.send, []
    monkeypatch.setattr(tensors, "PIECE_BYTES", row)
    monkeypatch.setattr(credit, "WORKER_CREDIT_BYTES", 2 * row)

    def sent(client: RequestClient, *words: Any) -> None:
        send(client, *words)
        seen.append(sum(channel.in_flight for channel in client.channels))

    monkeypatch.setattr(RequestClient, "send", sent)
    with shards_of(tmp_path / "run") as daemons, Client(addresses(daemons), "a") as ps:
        ps.create(values(0))
        assert max(seen) == 2 * row
        np.testing.assert_array_equal(ps.pull()["w"], values(0)["w"])
