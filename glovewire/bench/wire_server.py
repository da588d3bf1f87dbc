"""Start a server process with a table of a given size, and connect a worker's store to the server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from glovewire.common.cli.config_file import configured
from glovewire.common.model.options import TrainingOptions
from glovewire.common.roles import Role
from glovewire.common.storage import dataset as datasets
from glovewire.common.storage.artifacts import writing_artifact
from glovewire.common.transport import curve_keys as keys
from glovewire.common.transport.client import RequestClient
from glovewire.server.config import ServerConfig
from glovewire.worker.stores.server_store import ServerStore

from ..launch.config import ANY_PORT
from ..launch.processes import Children


@contextmanager
def wire_server(
    folder: Path, rows: int, options: TrainingOptions, *, encrypted: bool
) -> Iterator[tuple[ServerStore, int]]:
    """Yield a store on a new server of `rows` rows, and the server's process id; `encrypted` uses new CURVE keys."""
    client_keys = None
    if encrypted:
        keys.make_keys(folder / "keys")
        client_keys = keys.load_client_keys(folder / "keys", Role.WORKER)
    dataset = _minimal_dataset(folder, rows)
    with Children(folder / "logs") as children:
        children.patience_s = 0.0  # the results that the server would write are not needed
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
        with RequestClient([address], "bench", dataset.checksum, keys=client_keys) as client:
            client.connect()
            yield ServerStore(client, options, rows), server.process.pid


def _minimal_dataset(folder: Path, rows: int) -> datasets.Dataset:
    """Write and open a dataset of `rows` words and one entry, so that a server holds a table of `rows` rows."""
    layout = datasets.Layout((*range(0, rows, 4096), rows), 256, symmetric=True)
    facts = {"vocabulary": rows, "bounds": layout.bounds, "tile": layout.tile, "symmetric": True, "entries": 1}
    with writing_artifact(folder / "data", datasets.KIND, datasets.SCHEMA, facts) as scratch:
        (scratch / datasets.VOCABULARY).write_text("".join(f"w{n:07}\n" for n in range(rows)), encoding="utf-8")
        np.save(scratch / datasets.COUNTS, np.ones(rows, np.int64))
        np.save(scratch / datasets.PERMUTATION, np.arange(rows, dtype=np.int32))
        entries, tiles = np.array([(0, 0, 1.0)], datasets.ENTRY), np.minimum(np.arange(layout.first_tile[-1] + 1), 1)
        np.save(scratch / datasets.ENTRIES, entries)
        np.save(scratch / datasets.TILES, tiles)
        np.save(scratch / datasets.CHECKSUMS, datasets.block_checksums(layout, tiles, entries))
    return datasets.Dataset.open(folder / "data")
