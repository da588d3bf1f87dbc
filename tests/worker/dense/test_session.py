"""A dense model over shards, of which some have nothing to train: who counts what, and what is sent."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_shards import addresses, shards_of
from processes import until

from glovewire.common.errors import RunOver
from glovewire.common.model.tensor_layout import ROW
from glovewire.common.protocol import messages as m
from glovewire.common.transport.client import RequestClient
from glovewire.server.checkpoints import files as checkpoint
from glovewire.worker.dense.client import Client

HEAD = {"head": np.zeros(10, np.float32)}
MODELS: dict[str, dict[str, Any]] = {
    "shard 0 has no rows": HEAD,
    "shard 1 has a frozen backbone": {**HEAD, "backbone": np.ones((3, ROW), np.float16)},
    "nothing is trained": {"backbone": np.ones((3, ROW), np.float16)},
}
STEPS = 6


@pytest.mark.parametrize("consistency", ["async", "sync", "ssp:0", "softsync:1"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_every_shard_counts_every_step(tmp_path: Path, model: dict[str, Any], consistency: str) -> None:
    """So the run ends, whichever shard owns what, and checkpoints are whole.

    The workers begin and leave together: a worker joins and leaves one shard after the other, and shards would count
    the gradients of one worker as a step, or wait for both.
    """
    run, over, together = tmp_path / "run", [], threading.Barrier(2)
    how: dict[str, Any] = {"consistency": consistency, "steps": STEPS, "checkpoint_every": 2}
    with shards_of(run, 2, 2, **how) as daemons:

        def work(name: str) -> None:
            with Client(addresses(daemons), name) as ps:
                ps.create(model, fixed=[name for name in model if name == "backbone"])
                together.wait(60)
                with contextlib.suppress(RunOver):
                    for _ in range(5 * STEPS):
                        ps.push({name: np.ones_like(value) for name, value in ps.pull().items()})
                together.wait(60)
                over.append(not list(ps.steps()) and ps.over)

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert over == [True, True]
        first, second = (daemon.state for daemon in daemons)
        assert first.consistency.version(0) >= STEPS
        assert first.consistency.version(0) == second.consistency.version(0)
        assert first.consistency.gradients == second.consistency.gradients
        whole = f"update-{STEPS:08d}"
        until(lambda: not checkpoint.missing(run, whole, 2), "both shards have written the last checkpoint")
    assert checkpoint.newest(run)[1] == 2


def test_setting_a_fixed_tensor_leaves_the_others_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may have set them meanwhile; and a frozen backbone is not sent along."""
    model = {"w": np.zeros(10, np.float32), "frozen": np.ones((40, ROW), np.float16)}
    counts = {name: np.zeros(ROW, np.int16) for name in "xyz"}
    with (
        shards_of(tmp_path / "run", 2) as daemons,
        Client(addresses(daemons), "a") as a,
        Client(addresses(daemons), "b") as b,
    ):
        for ps in (a, b):
            ps.create({**model, **counts}, fixed=["frozen"])
            ps.pull_fixed()
        send, pushed = RequestClient.send, []

        def watched(client: RequestClient, shard: int, message: m.Message, on_reply: Any) -> None:
            pushed.append(message.values.nbytes if isinstance(message, m.Push) else 0)
            send(client, shard, message, on_reply)

        monkeypatch.setattr(RequestClient, "send", watched)
        b.push_fixed({"y": counts["y"] + 2})
        b.pull_fixed()  # it is in: requests keep their order
        assert 0 < sum(pushed) < 3 * ROW * 4
        a.push_fixed({"z": counts["z"] + 3, "x": counts["x"] + 1})
        found = a.pull_fixed()
        assert [int(found[name][0]) for name in "xyz"] == [1, 2, 3]
        assert (found["frozen"] == 1).all()
