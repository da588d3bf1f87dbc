"""A checkpoint is written at ease while nobody waits, and without a rest when somebody does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from processes import until
from shards import MINIBATCH, Shard, in_memory, served, shard

from common import messages as m
from server import pace
from server.daemon import Daemon
from server.pace import Pace
from worker.client import Conversation

LOCAL = "tcp://127.0.0.1:0"


def test_it_rests_as_many_times_as_long_as_it_has_worked() -> None:
    one = Pace()
    one.begin()
    while time.thread_time() - one._since < 2e-3:
        pass
    worked_s, began = time.thread_time() - one._since, time.monotonic()
    one.rest()
    assert time.monotonic() - began >= pace.RESTS * worked_s


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """Whose rests take minutes."""
    monkeypatch.setattr(pace, "RESTS", 1e6)
    (tmp_path / "run").mkdir()
    return shard(in_memory(tmp_path / "d"), out=tmp_path / "run", now=time.monotonic(), **MINIBATCH)


def being_written(run: Path) -> bool:
    return any((run / "checkpoints").glob(".*.partial/rows.npy"))


def test_a_server_that_ends_waits_for_no_rest(one: Shard, tmp_path: Path) -> None:
    daemon, run, answers = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL), tmp_path / "run", []
    with served(daemon), Conversation([daemon.address], "eye") as client:
        client.send(0, m.Checkpoint(-1), answers.append)
        until(lambda: client.poll(10) or being_written(run), "it is being written")
        assert isinstance(client.ask(0, m.Stats()), m.Statistics)
        assert answers == []
        client.ask(0, m.Finish("asked"))
    assert len(list((run / "checkpoints").glob("asked-*"))) == 1


def test_a_checkpoint_that_waits_for_another_makes_it_hurry(one: Shard, tmp_path: Path) -> None:
    daemon, run, answers = Daemon(one.core, tmp_path / "run", LOCAL, LOCAL), tmp_path / "run", []
    with served(daemon), Conversation([daemon.address], "eye") as client:
        client.send(0, m.Checkpoint(-1), answers.append)
        until(lambda: client.poll(10) or being_written(run), "it is being written")
        client.send(0, m.Checkpoint(-1), answers.append)
        until(lambda: client.poll(10) or len(answers) == 2, "both are written")
    assert sorted(answer.name for answer in answers if isinstance(answer, m.Checkpointed)) == [
        "asked-000001",
        "asked-000002",
    ]
