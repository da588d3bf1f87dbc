"""Follow a run's stream from a program of your own: `glovewire.subscribe`, for dashboards and notebooks."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from glovewire.common.protocol.messages import TOPICS
from glovewire.monitor.stream.feed import Feed, RunFailed


def subscribe(
    addresses: str | Sequence[str],
    topics: Sequence[str] = TOPICS,
    *,
    timeout_s: float | None = 60.0,
    silence_s: float | None = 60.0,
    keys: str | PathLike[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the samples of a run as dicts, from its beginning until it ends: its losses, scores, events, ...

    `addresses` are those at which the servers publish: `Server.streams`, or `tcp://HOST:PORT` of `glovewire server
    --publish`. Each sample has its `topic` (of `topics`) and `address`, and the fields that docs/protocol.md lists.
    Subscribing does not slow training down. Raises DeadlineExceeded if an address is silent for the first `timeout_s`
    seconds, or if all are silent for `silence_s` seconds later; RunFailed if the run fails.

    >>> with glovewire.serve("runs/none") as server, glovewire.Client(server.addresses, "anna") as ps:
    ...     ps.create({"weight": 1.0})
    ...     for sample in glovewire.subscribe(server.streams, ["event"]):
    ...         print(sample["kind"], sample["subject"])
    ...         break
    joined anna
    """
    place = None if keys is None else Path(keys)
    with Feed(addresses, topics, timeout_s=timeout_s, silence_s=silence_s, keys=place) as feed:
        for received in feed:
            yield {"topic": received.message.topic, "address": received.address, **vars(received.message)}
        if feed.failed:
            raise RunFailed(feed.failed)
