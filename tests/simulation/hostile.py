"""A hostile peer: it joins like any client, and sends what our programs never send. Shards must refuse all of it.

What must hold of every run shows that nothing of it reaches rows, schedule or checkpoints.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dense_model
import numpy as np
from apart import address_of
from network import SimulatedLinks
from oracles import require
from visitors import ORDINARY

from glovewire.common.client.pending import expect
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import GlovewireError, LeaseLost, NotPermitted
from glovewire.common.model.rounds import Rounds
from glovewire.common.model.row_layout import RowLayout
from glovewire.common.model.sharding import Sharding
from glovewire.common.model.tensor_layout import ROW, ModelSpec
from glovewire.common.protocol import messages as m
from glovewire.common.protocol import wire
from glovewire.common.transport.client import RequestClient
from glovewire.server.sessions import ALL

if TYPE_CHECKING:
    from cluster import Cluster

LEASE_S, ANSWER_S = 2.0, 5.0
LIES = 12
"""Most lies of one session, after which the peer comes back under another name."""
POLL_MS = 200
TOO_MUCH = 1 << 40
GARBAGE = np.frombuffer(b'{"no": "model"}', np.uint8)
OTHER = ModelSpec.of({"weight": np.zeros(3, np.float32)}).to_json()

Lie = tuple[int, m.Message]
"""The number of a shard, and a message that it must refuse."""


def mislead(cluster: Cluster, name: str, connect: Callable[[str, str], RequestClient]) -> dict[str, Any]:
    """Join, lie, and leave, again and again until the run is over; `connect(name, dataset)` makes a client."""
    chance = cluster.world.chance(f"lies of {name} after {cluster.started[name]} starts")
    while True:
        cluster.world.sleep(chance.expovariate(1.0))
        _send_garbage(cluster, name, chance)
        if cluster.is_apart:
            with suppress(*ORDINARY):
                _ask_peers(cluster, name, chance)
        role = chance.choice(["worker", "worker", "observer"])
        dataset = cluster.dataset_checksum if role == "worker" else ""
        who = "w0" if cluster.has_roles and chance.random() < 0.3 else name
        with suppress(*ORDINARY, NotPermitted), connect(f"{who}.{chance.randrange(1 << 30)}", dataset) as client:
            client.connect(role, ANSWER_S)
            Liar(cluster, client, chance, is_worker=role == "worker").lie()
            client.part(RunEnd(Ending.LEFT))


def idle(cluster: Cluster, name: str, connect: Callable[[str, str], RequestClient]) -> dict[str, Any]:
    """Join, take a strip, and only send heartbeats until the session is over; repeat until the run is over."""
    chance = cluster.world.chance(f"idleness of {name} after {cluster.started[name]} starts")
    while True:
        cluster.world.sleep(chance.expovariate(1.0))
        session = f"{name}.{chance.randrange(1 << 30)}"
        with suppress(*ORDINARY, NotPermitted), connect(session, cluster.dataset_checksum) as client:
            client.connect("worker", ANSWER_S)
            if cluster.options.schedule == "blocks":
                client.send(0, m.Lease(1, client.worker), lambda _: None)
            while True:
                client.poll(POLL_MS)


def _ask_peers(cluster: Cluster, name: str, chance: random.Random) -> None:
    """Send a shard, at its address for other shards, requests that another shard would never make."""
    shard = chance.randrange(len(cluster.addresses))
    generation = json.dumps({"number": TOO_MUCH, "run": "liar", "shards": 1})
    lies = [
        m.GetStatus(), m.GetData("../run/rows.npy", 0), m.GetData("final.shard-9-of-9/rows.npy", 0),
        m.GetData("final.shard-0-of-1/manifest.json/", TOO_MUCH), m.Begin("{"), m.Begin(generation),
    ]  # fmt: skip
    addresses = (address_of(shard),)
    with RequestClient(addresses, name, "", ANSWER_S, None, SimulatedLinks(cluster.network, name, addresses)) as client:
        for lie in chance.sample(lies, 3):
            _require_refused(client, 0, lie)


def _require_refused(client: RequestClient, shard: int, lie: m.Message) -> None:
    """Send a lie; Broken unless it is refused, or dropped as a gradient for a past step."""
    try:
        reply = client.ask(shard, lie, ANSWER_S)
    except ORDINARY:
        raise
    except GlovewireError:
        return
    require(isinstance(reply, m.Applied) and reply.late, f"shard {shard} has taken the lie {lie}: {reply}")


def _send_garbage(cluster: Cluster, name: str, chance: random.Random) -> None:
    """Send a message with one bit flipped, or with the end of a frame missing."""
    links = SimulatedLinks(cluster.network, name, cluster.addresses)
    frames = [bytearray(frame) for frame in wire.encode(1, m.GetWords(0, 1))]
    frame = chance.choice([frame for frame in frames if frame])
    if chance.random() < 0.5:
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    else:
        del frame[chance.randrange(len(frame)) :]
    cluster.network.to_server(links, chance.randrange(len(cluster.addresses)), [bytes(frame) for frame in frames])


class Liar:
    """Sends, in one session, messages that shards must refuse; these are called lies."""

    def __init__(self, cluster: Cluster, client: RequestClient, chance: random.Random, *, is_worker: bool) -> None:
        self._cluster, self._client, self._chance, self._is_worker = cluster, client, chance, is_worker
        self._options = cluster.options
        self._shards = len(cluster.addresses)

    def lie(self) -> None:
        """Send some lies, and require that each is refused."""
        push, report = self._leased() if self._is_worker and self._options.schedule == "blocks" else (None, None)
        for _ in range(self._chance.randint(1, LIES)):
            kinds = [self._question, self._figure, self._hello, *([self._push] * 3)]
            if push is not None:
                kinds += [lambda: self._leased_push(push)] * 4
            if report is not None:
                kinds.append(lambda: (0, report))
            shard, lie = self._chance.choice(kinds)()
            _require_refused(self._client, shard, lie)
        if push is not None and self._options.consistency == "exclusive":
            self._desert(*push)

    # ---- with a lease

    def _leased(self) -> tuple[Lie | None, m.Report | None]:
        """Take a strip; return a push that a worker could make, and a report without receipts."""
        granted = self._client.ask(0, m.Lease(1, self._client.worker), LEASE_S)
        if not isinstance(granted, m.Granted):
            return None, None
        report = m.Report(1, granted.lease, 1, 0.5, 0.5, 1.0, 0.1, 1, self._chance.getrandbits(60), self._client.worker)
        layout = self._cluster.layout
        strip = Rounds.of(self._options, layout.partitions).strip(granted.round)
        spans = [
            (part.shard, part.first, part.last)
            for first, last in [*pairwise(layout.bounds)][: strip + 1]
            for part in Sharding(layout.rows, self._shards).split(first, last)
        ]
        shard, first, last = self._chance.choice(spans)
        return (shard, self._honest(granted, first, last)), report

    def _honest(self, granted: m.Granted, first: int, last: int) -> m.Push:
        operation, dtype = ("add", np.uint16) if self._options.sends_bfloat16 else ("assign", np.float32)
        values = np.zeros((last - first, RowLayout.of(self._options).width), dtype)
        return m.Push(
            "rows", 1, operation, first, last, granted.round, granted.lease, 0.0, values, token=granted.token,
            low_water=granted.low_water, low_water_token=granted.low_water_token, worker=self._client.worker,
        )  # fmt: skip

    def _leased_push(self, honest: Lie) -> Lie:
        """Return a push that a worker may make, with one field changed."""
        shard, push = honest
        assert isinstance(push, m.Push)
        values = push.values
        bad = values.copy()
        bad[-1, -1] = 0x7F80 if values.dtype == np.uint16 else np.nan
        middle = (push.first + push.last + 1) // 2
        lies = [
            replace(push, token=push.token ^ 1), replace(push, version=push.version + 1),
            replace(push, lease=push.lease + 1), replace(push, low_water=TOO_MUCH), replace(push, then_pull=True),
            replace(push, operation="gradient"), replace(push, values=values[:, 1:]), replace(push, values=bad),
            replace(push, values=values.astype(np.float64)), replace(push, rate=-1.0),
            replace(push, rows=np.array([push.last, push.first]), values=values[[0, 0]]),
            replace(push, first=0, last=self._cluster.layout.rows),
        ]  # fmt: skip
        if middle < push.last:
            lies.append(replace(push, first=middle, values=values[middle - push.first :]))
        return shard, self._chance.choice(lies)

    def _desert(self, shard: int, push: m.Message) -> None:
        """Push noise to half of the rows of a strip, let shard 0 give the strip to another worker, and push again.

        The other worker trains the whole strip, after which none of the noise may be left.
        """
        assert isinstance(push, m.Push)
        middle = (push.first + push.last) // 2
        if not shard or middle == push.first:
            return
        noise = np.full_like(push.values[: middle - push.first], 3)
        half = replace(push, last=middle, values=noise)
        with suppress(LeaseLost):
            expect(self._client.ask(shard, half, ANSWER_S), m.Applied)
            goodbye = m.Leave(Ending.LEFT, "", self._client.channels[0].pushes)
            expect(self._client.ask(0, goodbye, ANSWER_S), m.Left)
            self._cluster.world.sleep(self._chance.expovariate(2.0))
            _require_refused(self._client, shard, replace(half, sequence=2))

    # ---- without a lease

    def _push(self) -> Lie:
        """Return a push without a lease, which every shard refuses."""
        shard, of_tensors = self._chance.randrange(self._shards), self._options.objective == "tensors"
        total = dense_model.rows(self._cluster.fixed) if of_tensors else self._cluster.layout.rows
        first, _ = Sharding(total, self._shards).range(shard)
        values = np.ones((2, ROW if of_tensors else RowLayout.of(self._options).parameters), np.float32)
        rows, table = np.arange(first, first + 2), "tensors" if of_tensors else "rows"
        push = m.Push(table, 1, "gradient", first, first + 2, 0, -1, 0.1, values, worker=self._client.worker)
        lies = [
            replace(push, table="columns"), replace(push, operation="melt"), replace(push, first=-5, last=TOO_MUCH),
            replace(push, values=values * np.float32(np.nan)), replace(push, version=TOO_MUCH),
            replace(push, rows=rows[::-1]), replace(push, rows=rows, versions=rows + TOO_MUCH),
            replace(push, rows=rows, versions=rows[:1]), replace(push, rate=1e9), replace(push, operation="add"),
            replace(push, values=values[:1]), replace(push, first=total, last=total + 2),
        ]  # fmt: skip
        return shard, self._chance.choice(lies)

    def _question(self) -> Lie:
        """Return a question that has no answer."""
        questions = [
            m.GetWords(0, TOO_MUCH), m.GetWords(-1, 1), m.GetWords(2, 1), m.GetData("../secret", 0),
            m.GetData("manifest.json", -1), m.GetData("entries.npy", TOO_MUCH), m.GetData("none/rows.npy", 0),
            m.Pull("columns", 0, 1, m.NO_VERSION), m.Pull("rows", -1, 1, m.NO_VERSION),
            m.Pull("rows", 0, TOO_MUCH, m.NO_VERSION), m.Pull("rows", 0, 1, m.NO_VERSION, np.zeros(10_000, np.int64)),
            m.Finish("never"), m.Finish("left"), m.GetFolder(), m.Begin("{}"), m.Left(), m.Create(GARBAGE),
            m.Create(np.resize(GARBAGE, 1 << 15)),
        ]  # fmt: skip
        if not self._is_worker:  # the first worker decides which model is trained
            questions.append(m.Create(OTHER))
        if self._cluster.has_roles:  # this key is for a monitor
            questions += [m.Finish(Ending.ASKED), m.Score("similarity", 1.0), m.Proceed(TOO_MUCH), m.Checkpoint(1)]
        return self._chance.randrange(self._shards), self._chance.choice(questions)

    def _hello(self) -> Lie:
        """Return a greeting that opens no session."""
        hello = m.Hello("observer", f"liar.{self._chance.randrange(1 << 30)}", 1, "")
        hellos = [
            replace(hello, role="king"), replace(hello, name="liar.\n"), replace(hello, name=ALL),
            replace(hello, role="worker", dataset="another"),
        ]  # fmt: skip
        if self._shards > 1 and self._chance.random() < 0.2:
            numbered = replace(hello, role="worker", dataset=self._cluster.dataset_checksum, worker=TOO_MUCH)
            return self._shards - 1, numbered
        return self._chance.randrange(self._shards), self._chance.choice(hellos)

    def _figure(self) -> Lie:
        """Return a report, or a request for a lease, that shards refuse from everyone."""
        report = m.Report(1, -1, 1, 0.5, 0.5, 1.0, 0.1, 1, worker=self._client.worker)
        lies: list[Lie] = [
            (0, replace(report, entries=1 << 62)), (0, replace(report, entries=-1)), (0, replace(report, norm=-1.0)),
            (0, replace(report, loss=1e31)), (0, replace(report, lease=TOO_MUCH)), (self._shards - 1, m.Lease(0)),
        ]  # fmt: skip
        if self._shards > 1:
            lies.append((1, report))
        return self._chance.choice(lies)
