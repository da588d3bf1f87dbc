"""What `glovewire stats` shows of a shard, and how `glovewire checkpoint` asks all of them for one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_server import Heard, fake_server, polite
from shards import MINIBATCH, in_memory, report, served, shard, statistics

from glovewire.cli.admin import _cut, described
from glovewire.common.errors import NotReady, ProtocolError
from glovewire.common.protocol import messages as m
from glovewire.common.storage.dataset import Dataset
from glovewire.common.transport.client import RequestClient
from glovewire.server.daemon import Daemon

WHERE = "tcp://127.0.0.1:5555"
FREE = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return in_memory(tmp_path_factory.mktemp("data") / "d")


def test_there_is_no_loss_before_anything_is_trained(dataset: Dataset, tmp_path: Path) -> None:
    one = shard(dataset, out=tmp_path, **MINIBATCH)
    one.hello("w0")
    assert "  loss      none yet" in described(WHERE, statistics(one))
    one.ask(b"w0", report(1))
    (loss,) = (line for line in described(WHERE, statistics(one)) if line.startswith("  loss"))
    assert loss == "  loss      0.1000; bias-only loss 0.2000; mean vector norm 1.000"


def test_an_answer_that_is_no_status_is_one_clear_error() -> None:
    def confused(heard: Heard) -> m.Message | None:
        return m.Finishing(0) if isinstance(heard.message, m.GetStatus) else polite(heard)

    with fake_server(confused) as server, RequestClient([server.address], "observer") as client:
        client.connect("observer")
        with pytest.raises(ProtocolError, match=r"^Finishing does not answer this query$"):
            client.status(0, 10.0)


def test_all_shards_call_a_checkpoint_of_minibatches_the_same_also_when_one_refuses_at_first(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [shard(dataset, number=k, shards=2, out=tmp_path, now=time.monotonic(), **MINIBATCH) for k in range(2)]
    cuts = both[1].state.cuts
    take, refusals = cuts.request, [NotReady("four are on their way")]

    def request(round: int, peer: bytes, number: int, now: float) -> str | None:
        if refusals:
            raise refusals.pop()
        return take(round, peer, number, now)

    monkeypatch.setattr(cuts, "request", request)
    first, second = (Daemon(one.core, tmp_path, FREE, FREE) for one in both)
    addresses = (first.address, second.address)
    with served(first), served(second), RequestClient(addresses, "observer") as client:
        client.connect("observer")
        names = [_cut(client, addresses, 60.0) for _ in range(2)]
    assert not refusals
    labels = {name for name, _ in names}
    assert names == [[name, name] for name, _ in names]
    assert len(labels) == 2
    found = {path.name for path in (tmp_path / "checkpoints").glob("[!.]*")}
    assert found == {f"{label}.shard-{k}-of-2" for label in labels for k in range(2)}
