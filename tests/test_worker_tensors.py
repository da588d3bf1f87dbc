"""A dense model over shards, of which some have nothing to train: who counts what, and what is sent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until
from test_worker_dense import addresses, shards_of

from common.tensors import ROW
from server import checkpoint
from worker.dense import Client

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
    """So the run ends, whichever shard owns what, and checkpoints are whole."""
    run, over = tmp_path / "run", []
    how: dict[str, Any] = {"consistency": consistency, "steps": STEPS, "checkpoint_every": 2}
    with shards_of(run, 2, 2, **how) as daemons:

        def work(name: str) -> None:
            with Client(addresses(daemons), name) as ps:
                ps.create(model, fixed=[name for name in model if name == "backbone"])
                for pushed, parameters in enumerate(ps.steps()):
                    if pushed == 5 * STEPS:
                        break
                    ps.push({name: np.ones_like(value) for name, value in parameters.items()})
                over.append(ps.over)

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert over == [True, True]
        first, second = (daemon._core for daemon in daemons)
        assert first.consistency.version(0) >= STEPS
        assert first.consistency.version(0) == second.consistency.version(0)
        assert first.consistency.gradients == second.consistency.gradients
        whole = f"update-{STEPS:08d}"
        until(lambda: not checkpoint.missing(run, whole, 2), "both shards have written the last checkpoint")
    assert checkpoint.newest(run)[1] == 2
