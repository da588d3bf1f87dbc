"""A server process with a table of any size for benchmarks, and a store that speaks to it as a worker's would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage.artifacts import writing_artifact
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import Conversation
from glovewire.worker.stores.server_store import ServerStore

from ..launch.local import training_arguments
from ..launch.processes import READY_S, Children


@contextmanager
def served(
    folder: Path, rows: int, options: TrainingOptions, *, encrypted: bool = False
) -> Iterator[tuple[ServerStore, int]]:
    """A store on a server of its own, which ends with it, and that process's id; `encrypted` with fresh keys."""
    mine = None
    if encrypted:
        keys.make(folder / "keys")
        mine = keys.of_client(folder / "keys")
    dataset = _words_alone(folder, rows)
    children = Children(folder / "logs")
    try:
        server = children.start(
            "server 0",
            [
                "server", str(dataset.path), "--out", str(folder / "run"), "--bind", "tcp://127.0.0.1:0", "--publish",
                "tcp://127.0.0.1:0", "--no-verify", *(["--keys", str(folder / "keys")] if encrypted else []),
                *training_arguments(options),
            ],
        )  # fmt: skip
        address = server.ready_line(time.monotonic() + READY_S).split()[1]
        with Conversation([address], "bench", dataset.checksum, keys=mine) as client:
            client.connect()
            yield ServerStore(client, options, rows, RowLayout.of(options).width), server.process.pid
    finally:
        children.patience_s = 0.0
        children.end()


def _words_alone(folder: Path, rows: int) -> datasets.Dataset:
    """A dataset of so many words that met once: what a server needs to hold a table of so many rows."""
    layout = datasets.Layout(rows, -(-rows // 4096), 256, symmetric=True)
    facts = {"vocabulary": rows, "partitions": layout.partitions, "tile": layout.tile, "symmetric": True, "entries": 1}
    with writing_artifact(folder / "data", datasets.KIND, datasets.SCHEMA, facts) as scratch:
        (scratch / datasets.VOCABULARY).write_text("".join(f"w{n:07}\n" for n in range(rows)), encoding="utf-8")
        np.save(scratch / datasets.COUNTS, np.ones(rows, np.int64))
        np.save(scratch / datasets.PERMUTATION, np.arange(rows, dtype=np.int32))
        np.save(scratch / datasets.ENTRIES, np.array([(0, 0, 1.0)], datasets.ENTRY))
        np.save(scratch / datasets.TILES, np.minimum(np.arange(layout.first_tile[-1] + 1), 1))
    return datasets.Dataset.open(folder / "data")
