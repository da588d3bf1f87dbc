"""A dense model whose training can be checked: what a worker does with it, and where it must end.

Its gradient is a function of each parameter alone and has few digits, so that the mean of equal gradients is exact: in
synchronous training the parameters after so many updates are the same, whichever workers made them. The gradient of
`count` is 1, so it counts the updates of every shard in every mode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from world import Broken

from glovewire.common.array_types import Array
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.model.tensor_layout import ROW
from glovewire.common.storage import run_folder
from glovewire.server.checkpoints import files
from glovewire.server.checkpoints.cuts import final_label
from glovewire.server.checkpoints.generations import newest
from glovewire.worker.dense.client import Client

RATE = 1 / 8
WEIGHTS = 3 * ROW
COUNTS = 5 * ROW
VALUES: dict[str, Array] = {
    "weight": (np.arange(WEIGHTS, dtype=np.float32) / 64).reshape(8, -1),
    "count": np.zeros(COUNTS, np.float32),
    "fixed": np.arange(7),
}


def gradients(parameters: dict[str, Array]) -> dict[str, Array]:
    """Return the gradient at `parameters`."""
    weight = parameters["weight"]
    return {"weight": np.round(weight) / 4, "count": np.ones(COUNTS, np.float32)}


def after(updates: int) -> Array:
    """Return `weight` after so many synchronous updates."""
    weight = VALUES["weight"]
    for _ in range(updates):
        weight = weight - np.float32(RATE) * gradients({"weight": weight})["weight"]
    return weight


def work(addresses: tuple[str, ...], name: str) -> dict[str, Any]:
    """Train the model as worker `name`, until the run is over."""
    with Client(addresses, name, timeout_s=20.0) as client:
        client.create(VALUES)
        for parameters in client.steps():
            client.push(gradients(parameters), loss=1.0, examples=4)
    return RunEnd(Ending.COMPLETE).as_fields()


def check(run: Any, shards: int, mode: str, steps: int) -> None:
    """Raise Broken unless the tensors of a complete run are those of its updates."""
    values, _ = run_folder.load_tensors(run)
    if not np.array_equal(values["fixed"], VALUES["fixed"]):
        raise Broken(f"the fixed tensor has become {values['fixed']}")
    generation = newest(run)
    assert generation is not None
    if generation.number and not generation.label:  # filled with what a worker has pulled in the generation before
        return
    count = values["count"].reshape(-1, ROW)
    firsts = np.arange(len(count)) + WEIGHTS // ROW
    for facts in files.read_facts(run, final_label(generation.number), shards):
        first, last = facts["rows"]
        here = count[(first <= firsts) & (firsts < last)]
        if (here != -RATE * facts["updates"]).any():
            raise Broken(f"shard {facts['shard']} has made {facts['updates']} updates, and counts {here / -RATE}")
        if mode == "sync" and facts["updates"] != steps:
            raise Broken(f"shard {facts['shard']} has made {facts['updates']} of {steps} updates")
    if mode == "sync" and not np.array_equal(values["weight"], after(steps)):
        raise Broken("the weights are not those of an undisturbed run")
