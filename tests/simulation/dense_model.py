"""A dense model whose training can be checked: what a worker does with it, and which tensors must result.

The gradient depends on each parameter alone and has few digits, so the mean of equal gradients is exact. In synchronous
training the parameters after N updates are therefore the same, whichever workers made them. The gradient of `count` is
1, so `count` counts the updates of every shard in every mode.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from oracles import require

from glovewire.common.array_types import Array
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.tensor_layout import ROW
from glovewire.common.storage import run_folder
from glovewire.common.storage.run_folder import CHECKPOINTS
from glovewire.server.checkpoints import files
from glovewire.server.checkpoints.generations import GENERATION
from glovewire.worker.dense.client import Client

RATE = 1 / 8
WEIGHTS = 3 * ROW
COUNTS = 5 * ROW
FEW, MANY = 7, 7 * ROW // 2
"""Elements of the fixed tensor: with MANY, which take fourteen rows, the last of several shards has no other rows."""
SCORED = 5
"""A worker publishes a score each time after this many updates, and waits for the answer before it pushes."""
WEIGHT = (np.arange(WEIGHTS, dtype=np.float32) / 64).reshape(8, -1)


def rows(fixed: int) -> int:
    """Return the rows of the model with `fixed` fixed elements, each of which takes four elements of a row."""
    return WEIGHTS // ROW + COUNTS // ROW + -(-4 * fixed // ROW)


def gradients(parameters: dict[str, Array]) -> dict[str, Array]:
    """Return the gradient at `parameters`."""
    weight = parameters["weight"]
    return {"weight": np.round(weight) / 4, "count": np.ones(COUNTS, np.float32)}


def after(updates: int) -> Array:
    """Return `weight` after a number of synchronous updates."""
    weight = WEIGHT
    for _ in range(updates):
        weight = weight - np.float32(RATE) * gradients({"weight": weight})["weight"]
    return weight


def work(addresses: tuple[str, ...], name: str, timeout_s: float, fixed: int) -> dict[str, Any]:
    """Train the model as worker `name`, which waits for at most `timeout_s` for an answer, until the run is over."""
    with Client(addresses, name, timeout_s=timeout_s) as client:
        client.create({"weight": WEIGHT, "count": np.zeros(COUNTS, np.float32), "fixed": np.arange(fixed)})
        for parameters in client.steps():
            if client.updates % SCORED == 0:
                client.score("made up", 50.0)
            client.push(gradients(parameters), loss=1.0, examples=4)
    return RunEnd(Ending.COMPLETE).as_fields()


def check(run: Path, options: TrainingOptions, *, undisturbed: bool) -> None:
    """Raise Broken unless the tensors of a complete run are those after the updates that every shard has made.

    Shard 0 ends the run. Another shard may lack an update whose gradient a lost worker has sent to some shards only.
    """
    values, _ = run_folder.load_tensors(run)
    require(
        np.array_equal(values["fixed"], np.arange(len(values["fixed"]))),
        f"the fixed tensor has become {values['fixed']}",
    )
    parts = files.read_facts(run, *files.newest(run))
    for facts in parts:
        require(facts["updates"] > 0, f"shard {facts['shard']} has counted none of {options.steps} updates")
    begun = [json.loads(path.read_text()) for path in (run / CHECKPOINTS).glob(f"{GENERATION}*[0-9]")]
    if any(each["number"] and not each["label"].startswith("update-") for each in begun):
        return  # a worker filled it with what it had pulled, or shards had made different numbers of updates when asked
    trained = np.concatenate([values[name].reshape(-1, ROW) for name in ("weight", "count")])
    # The run may have ended in the generation before the newest one.
    for facts in parts:
        (first, last), updates, shard = facts["rows"], facts["updates"], facts["shard"]
        if shard == 0 or undisturbed:
            require(updates == options.steps, f"shard {shard} has made {updates} of {options.steps} updates")
        weight, count = after(updates).reshape(-1, ROW), np.full((COUNTS // ROW, ROW), -RATE * updates)
        right = (trained == np.concatenate([weight, count])).all(axis=1)
        if options.consistency != "sync":
            right[: len(weight)] = True
        require(right[first:last].all(), f"shard {shard} has not the tensors of {updates} updates")
