"""Server shards of a dense model on this machine, from a program of one's own: started, watched over, ended.

A shard that is killed is started again at its address; all shards then go on from their last common checkpoint, or from
what the workers have. Workers are the caller's: any processes that know the addresses.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glovewire.common.endings import Ending
from glovewire.common.errors import DeadlineExceeded
from glovewire.common.model.options import TrainingOptions
from glovewire.common.protocol.messages import Finish
from glovewire.common.storage import run_folder as runs
from glovewire.common.transport.client import RequestClient
from glovewire.common.transport.curve_keys import ClientKeys, load_client_keys

from .local import training_arguments
from .processes import READY_S, Child, Children
from .supervise import LAST_WORDS_S, until

LOOK_EVERY_S = 0.1
FINISH_S = 2.0


@dataclass
class Serving:
    """Where the shards are, in order: `addresses` for workers, `streams` for `glovewire monitor`; their processes."""

    run: Path
    addresses: list[str]
    streams: list[str]
    servers: list[Child]


@contextmanager
def serving(
    run: Path | str,
    shards: int = 1,
    *,
    workers: int = 1,
    checkpoint_every: int = 0,
    lease_s: float = 30.0,
    keys: Path | None = None,
    **options: Any,
) -> Iterator[Serving]:
    """Serve tensors into the folder `run` while the block lasts; what they are at its end is in `run/tensors.npz`.

    `options` are those of `glovewire server --objective tensors`: optimizer, learning_rate, consistency, steps, ...
    Modes that go in step begin when `workers` have joined, and wait `lease_s` seconds for one that fell silent. A run
    that is complete waits as long for those of them that have never come: they hear that there is nothing left to do.
    `checkpoint_every` counts updates. With a folder of `keys`, as made by `glovewire keys`, clients need theirs.
    """
    known = None if keys is None else load_client_keys(keys)
    folder = runs.prepare(Path(run))
    children = Children(folder / "logs")
    over = threading.Event()
    training = training_arguments(TrainingOptions.of_tensors(**options))
    protected = [] if keys is None else ["--keys", str(keys.resolve())]
    try:
        servers = [
            children.start(
                f"server {shard}",
                [
                    "server", "--out", str(folder), "--bind", "tcp://127.0.0.1:0", "--publish", "tcp://127.0.0.1:0",
                    "--shard", f"{shard}/{shards}", "--workers", str(workers), "--checkpoint-every",
                    str(checkpoint_every), "--lease", str(lease_s), "--join", "--json", *protected, *training,
                ],
            )
            for shard in range(shards)
        ]  # fmt: skip
        lines = [server.ready_line(time.monotonic() + READY_S).split() for server in servers]
        place = Serving(folder, [words[1] for words in lines], [words[3] for words in lines], servers)
        watching = threading.Thread(target=_watch_over, args=(place, children, over), name="serving")
        watching.start()
        try:
            yield place
            _finish(place, known)
            until(lambda: not any(server.running for server in place.servers), LAST_WORDS_S)
        finally:
            over.set()
            watching.join()
    finally:
        children.end()
    for server in place.servers:
        if server.failed:
            raise server.died()


def _finish(place: Serving, keys: ClientKeys | None) -> None:
    """End the run on the shards where nobody has."""
    with (
        RequestClient(place.addresses, "serving", silence_s=FINISH_S, keys=keys) as client,
        contextlib.suppress(DeadlineExceeded),
    ):
        for shard, server in enumerate(place.servers):
            if server.running:
                client.ask(shard, Finish(Ending.COMPLETE), FINISH_S)


def _watch_over(place: Serving, children: Children, over: threading.Event) -> None:
    """Start every shard again that was killed, where it was."""
    while not over.wait(LOOK_EVERY_S):
        for shard, server in enumerate(place.servers):
            if server.killed and children.may_restart(server.role):
                place.servers[shard] = children.start(server.role, _again(place, shard))


def _again(place: Serving, shard: int) -> list[str]:
    arguments = list(place.servers[shard].arguments)
    for flag, address in (("--bind", place.addresses[shard]), ("--publish", place.streams[shard])):
        arguments[arguments.index(flag) + 1] = address
    return arguments if "--recover" in arguments else [*arguments, "--recover"]
