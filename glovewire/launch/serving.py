"""Start, supervise and end the server shards of a dense model, for a program of your own on this machine.

A killed shard is restarted at its address; all shards then continue from their last common checkpoint, or from the rows
that the workers hold. The caller starts the workers: any processes that know the addresses.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.cli.config_file import configured
from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import Finish
from glovewire.common.roles import Role
from glovewire.common.storage import run_folder as runs
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import ClientKeys, load_both_keys
from glovewire.server.config import ServerConfig

from .config import ANY_PORT
from .processes import Child, Children
from .supervise import LAST_WORDS_S, until

LOOK_EVERY_S = 0.1
FINISH_S = 2.0


@dataclass
class Serving:
    """Running shards in order: `addresses` for workers, `streams` for `glovewire monitor`, and their processes."""

    addresses: list[str]
    streams: list[str]
    servers: list[Child]


@contextmanager
def serving(
    run: Path,
    shards: int = 1,
    *,
    workers: int = 1,
    checkpoint_every: int = 0,
    lease_s: float = 30.0,
    keys: Path | None = None,
    **options: Any,
) -> Iterator[Serving]:
    """Serve tensors while the block lasts; at its end, the shards write their final values to `run/tensors.npz`.

    `options` are those of `glovewire server --objective tensors`: optimizer, learning_rate, consistency, steps, ...
    Synchronous modes begin once `workers` have joined, and wait `lease_s` seconds for a worker that falls silent;
    a finished run waits as long for workers that never joined. `checkpoint_every` counts updates. With a folder of
    `keys`, as made by `glovewire keys`, each client must authenticate with a key of that folder; the
    administrator's key is used to end the run.
    """
    known = None if keys is None else load_both_keys(keys, Role.ADMIN)
    training = TrainingOptions.of_tensors(**options)
    children = Children(runs.prepare(run) / "logs")
    over = threading.Event()
    how = ServerConfig(
        out=run,
        bind=ANY_PORT,
        publish=ANY_PORT,
        checkpoint_every=checkpoint_every,
        lease_s=lease_s,
        workers=workers,
        keys=keys and keys.resolve(),
        join=True,
        options=training,
    )
    words = configured("server", how, children.logs / "server.toml")
    with children:
        servers = children.start_shards(words, shards)
        ready = [server.ready() for server in servers]
        place = Serving([each.address for each in ready], [each.stream for each in ready], servers)
        watching = threading.Thread(target=_watch_over, args=(place, children, over), name="serving", daemon=True)
        watching.start()
        try:
            yield place
            _finish(place, known)
            until(lambda: not any(server.running for server in place.servers), LAST_WORDS_S)
        finally:
            over.set()
            watching.join()
    for server in place.servers:
        if server.failed:
            raise server.died()


def _finish(place: Serving, keys: ClientKeys | None) -> None:
    """End the run on the shards that still run."""
    with (
        RequestClient(place.addresses, "serving", silence_s=FINISH_S, keys=keys) as client,
        suppress(DeadlineExceeded),
    ):
        for shard, server in enumerate(place.servers):
            if server.running:
                client.ask(shard, Finish(Ending.COMPLETE), FINISH_S)


def _watch_over(place: Serving, children: Children, over: threading.Event) -> None:
    """Restart every killed shard at its address, until `over` is set."""
    while not over.wait(LOOK_EVERY_S):
        for shard, server in enumerate(place.servers):
            if server.killed and children.may_restart(server.role):
                words = list(server.arguments)
                if "--recover" not in words:
                    words += ["--bind", place.addresses[shard], "--publish", place.streams[shard], "--recover"]
                place.servers[shard] = children.start(server.role, words)
