"""A server process with a table of any size for benchmarks, and a store that speaks to it as a worker's would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from glovewire.common.cli.config_file import configured
from glovewire.common.model.options import TrainingOptions
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage.artifacts import writing
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient
from glovewire.server.config import ServerConfig
from glovewire.worker.stores.server_store import ServerStore

from ..launch.config import ANY_PORT
from ..launch.processes import Children


@contextmanager
def served(
    folder: Path, rows: int, options: TrainingOptions, *, encrypted: bool = False
) -> Iterator[tuple[ServerStore, int]]:
    """A store on a server of its own, which ends with it, and that process's id; `encrypted` with fresh keys."""
    mine = None
    if encrypted:
        keys.make_keys(folder / "keys")
        mine = keys.load_client_keys(folder / "keys")
    dataset = _words_alone(folder, rows)
    children = Children(folder / "logs")
    try:
        how = ServerConfig(
            dataset=dataset.path,
            out=folder / "run",
            bind=ANY_PORT,
            publish=ANY_PORT,
            keys=folder / "keys" if encrypted else None,
            verify=False,
            options=options,
        )
        server = children.start("server 0", configured("server", how, children.logs / "server.toml"))
        address = server.ready().address
        with RequestClient([address], "bench", dataset.checksum, keys=mine) as client:
            client.connect()
            yield ServerStore(client, options, rows, RowLayout.of(options).width), server.process.pid
    finally:
        children.patience_s = 0.0
        children.end()


def _words_alone(folder: Path, rows: int) -> datasets.Dataset:
    """A dataset of so many words that met once: what a server needs to hold a table of so many rows."""
    layout = datasets.Layout(rows, -(-rows // 4096), 256, symmetric=True)
    facts = {"vocabulary": rows, "partitions": layout.partitions, "tile": layout.tile, "symmetric": True, "entries": 1}
    with writing(folder / "data", datasets.KIND, datasets.SCHEMA, facts) as scratch:
        (scratch / datasets.VOCABULARY).write_text("".join(f"w{n:07}\n" for n in range(rows)), encoding="utf-8")
        np.save(scratch / datasets.COUNTS, np.ones(rows, np.int64))
        np.save(scratch / datasets.PERMUTATION, np.arange(rows, dtype=np.int32))
        np.save(scratch / datasets.ENTRIES, np.array([(0, 0, 1.0)], datasets.ENTRY))
        np.save(scratch / datasets.TILES, np.minimum(np.arange(layout.first_tile[-1] + 1), 1))
    return datasets.Dataset.open(folder / "data")
