"""Implement `glovewire stats`, `finish` and `checkpoint`: one request to each shard of a running server."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glovewire.common.cli.command import Command
from glovewire.common.cli.options import Given, takes
from glovewire.common.errors import GlovewireError, UsageError
from glovewire.common.option import SECONDS, Config, SharedOptions, like, option
from glovewire.common.roles import Role
from glovewire.common.text import amount, printable, shown_loss

if TYPE_CHECKING:
    from glovewire.common.protocol.messages import Message
    from glovewire.common.transport.client import RequestClient

AGAIN_MS = 200
MOST_AHEAD = 1024
"""Maximum distance of the round at which a checkpoint is requested, in rounds from the current one."""


@dataclass(frozen=True, kw_only=True)
class AdminConfig(Config):
    """Options of `glovewire stats` and `finish`: the `servers` are the shards of one run."""

    servers: tuple[str, ...] = option(argument=True, metavar="tcp://HOST:PORT...")
    keys: Path | None = like(SharedOptions, "keys")
    timeout: float = option(
        10.0,
        range=SECONDS,
        metavar="SECONDS",
        help="Give up without a reply within this time; until then, wait for a server that has not started yet.",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(AdminConfig):
    """Options of `glovewire checkpoint`, with a longer default timeout."""

    timeout: float = like(AdminConfig, "timeout", default=60.0)


@click.command(cls=Command)
@takes(AdminConfig)
def stats(given: Given[AdminConfig]) -> dict[str, Any]:
    """Show the statistics of each server."""
    config = given.config()
    with _client(config, Role.MONITOR) as client:
        found = [client.status(shard, config.timeout) for shard in range(len(config.servers))]
    for address, one in zip(config.servers, found, strict=True):
        for line in described(address, one):
            click.echo(printable(line))
    return {"shards": found}


@click.command(cls=Command)
@takes(AdminConfig)
def finish(given: Given[AdminConfig]) -> dict[str, Any]:
    """End training cleanly and keep the vectors. Give the address of every shard."""
    from glovewire.common.endings import Ending
    from glovewire.common.protocol.messages import Finish, Finishing

    config, finishing = given.config(), []
    with _client(config, Role.ADMIN) as client:
        _all_shards(client, config.servers, config.timeout)
        for shard, address in enumerate(config.servers):
            reply = client.ask(shard, Finish(Ending.ASKED), config.timeout)
            workers = reply.workers if isinstance(reply, Finishing) else 0
            finishing.append({"address": address, "workers": workers})
            click.echo(f"{address} is finishing; workers that were training: {workers}")
    return {"finishing": finishing}


@click.command(cls=Command)
@takes(CheckpointConfig)
def checkpoint(given: Given[CheckpointConfig]) -> dict[str, Any]:
    """Cut a checkpoint of a running training, and wait until it is on disk.

    Give the address of every shard, so that all cut at one point.
    """
    from glovewire.common.endings import Ending, RunEnd

    config = given.config()
    with _client(config, Role.ADMIN) as client:
        shards = [one["shard"] for one in _all_shards(client, config.servers, config.timeout)]
    in_order = tuple(address for _, address in sorted(zip(shards, config.servers, strict=True)))
    with _client(config, Role.ADMIN, in_order, f"checkpoint-{secrets.token_hex(4)}") as client:
        client.connect("observer", config.timeout)
        names = _cut(client, in_order, config.timeout)
        with suppress(GlovewireError):  # the checkpoint is on disk, even if the run has ended since
            client.part(RunEnd(Ending.LEFT))
    for name in names:
        click.echo(f"checkpoint {name} is written")
    return {"checkpoints": names}


def _cut(client: RequestClient, servers: tuple[str, ...], timeout: float) -> list[str]:
    """Cut a checkpoint at one round on all shards, at a later one if it has passed; return each shard's label.

    In a run without rounds a random number identifies the cut; it is sent until every shard has accepted it. Raises
    NotReady, LimitExceeded or DeadlineExceeded if no checkpoint is written within `timeout` seconds.
    """
    from glovewire.common.client.pending import Pending
    from glovewire.common.errors import DeadlineExceeded, LimitExceeded, NotReady
    from glovewire.common.protocol.messages import Checkpoint, Checkpointed

    deadline, ahead, without_rounds = time.monotonic() + timeout, 2, secrets.randbits(32)
    refused: NotReady | LimitExceeded | None = None
    while True:
        if not isinstance(refused, LimitExceeded):  # then repeat the same cut: some shards may have accepted it
            reached = max(one["round"] for one in _all_shards(client, servers, timeout))
            cut = Checkpoint(reached + ahead if reached >= 0 else without_rounds)
        written: list[Pending[Message]] = [Pending() for _ in servers]
        for shard, each in enumerate(written):
            client.request(shard, cut, each)
        try:
            text = f"no checkpoint was written within {timeout:g} s: is a worker training?"
            replies = [
                client.wait_for(shard, each, deadline - time.monotonic(), text, silence=False)
                for shard, each in enumerate(written)
            ]
            return [reply.name for reply in replies if isinstance(reply, Checkpointed)]
        except DeadlineExceeded as late:
            raise refused or late from None
        except (NotReady, LimitExceeded) as error:
            refused = error
            if time.monotonic() > deadline:
                raise
            if reached < 0 or ahead >= MOST_AHEAD or isinstance(error, LimitExceeded):  # a later round does not help
                client.poll(AGAIN_MS)
            else:
                ahead *= 2


def _all_shards(client: RequestClient, servers: tuple[str, ...], timeout: float) -> list[dict[str, Any]]:
    """Return the statistics of every shard; UsageError unless these are all the shards of one run, in any order."""
    found = [client.status(shard, timeout) for shard in range(len(servers))]
    shards = found[0]["shards"]
    if sorted(one["shard"] for one in found) != list(range(shards)) or len({one["shards"] for one in found}) > 1:
        given = ", ".join(f"{a} is shard {one['shard']}/{one['shards']}" for a, one in zip(servers, found, strict=True))
        raise UsageError(f"give the address of every shard once; {given}")
    return found


def _client(config: AdminConfig, role: Role, servers: tuple[str, ...] = (), name: str = "observer") -> RequestClient:
    """Return a client called `name` of `servers` (default: `config.servers`); `role` chooses its keys."""
    from glovewire.common.transport.client import RequestClient
    from glovewire.common.transport.curve_keys import load_client_keys

    keys = None if config.keys is None else load_client_keys(config.keys, role)
    return RequestClient(servers or config.servers, name, keys=keys)


def described(address: str, one: dict[str, Any]) -> list[str]:
    """Return the statistics `one` of the shard at `address` as lines to print."""
    counters = ", ".join(f"{name} {count}" for name, count in sorted(one["counters"].items())) or "none yet"
    pushes = one["pushes"]
    lines = [
        f"{address}  shard {one['shard']}/{one['shards']}  run {one['run']}  {one['state']}",
        f"  rows      {one['rows'][0]} to {one['rows'][1]}",
        f"  pushes    {pushes['sent']} sent, {pushes['heard']} heard = {pushes['applied']} applied + "
        f"{pushes['repeated']} repeated + {pushes['refused']} refused",
        f"  requests  {counters}; {one['waiting']} waiting",
    ]
    if one["shard"] == 0:
        lines[1:1] = _progress(one)
    lines += [
        f"  worker    {w['name']}: {w['state']}, {w['entries']:,} entries, heard {w['age_s']:.1f} s ago"
        for w in one["workers"]
    ]
    return lines


def _progress(one: dict[str, Any]) -> list[str]:
    """Return lines on the progress of training; a dense model has no known total."""
    rate = one["entries"] / one["seconds"] if one["seconds"] else 0.0
    if one["total"]:
        done = f"epoch {one['epoch']}/{one['epochs']}, {one['entries']:,} of {one['total']:,} entries"
        pace = f"{amount(rate)} entries/s"
        beside = f"bias-only loss {shown_loss(one['bias_only_loss'])}; mean vector norm {one['norm']:.3f}"
    else:
        of = f" of {one['steps']:,}" if one["steps"] else ""
        done, pace = f"{one['updates']:,}{of} updates, {one['entries']:,} examples", f"{rate:,.0f} examples/s"
        beside = f"mean norm of gradients {one['norm']:.3f}"
    loss = f"{shown_loss(one['loss'])}; {beside}" if one["loss"] else "none yet"
    return [f"  training  {done}, {pace}", f"  loss      {loss}"]
