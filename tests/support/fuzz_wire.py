"""Feed bytes from a coverage-guided fuzzer (atheris) to the decoder and, if they are a message, to a core.

    make fuzz FUZZ_S=60

Whatever the bytes, decoding must give an error that the protocol names, or a message that survives another round trip.
A core gets these messages from strangers, observers and workers, some with the leases, rounds and tokens of earlier
replies. It must answer each with something that can be encoded, and keep finite rows and bounded queues. Once those
peers are silent, an honest worker must be able to train to the end. The fuzzer ends by itself, with status 0 after a
clean run. Its corpus grows in the folder that is named on the command line; arguments are libFuzzer's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_type_hints

import atheris
import msgpack
import numpy as np

COMPILED = [
    "glovewire.server.table.kernels",
    "glovewire.common.model.bfloat16_kernels",
    "glovewire.common.model.random_streams",
]
"""Modules that numba must see without instrumentation."""

with atheris.instrument_imports(include=["glovewire.common", "glovewire.server"], exclude=COMPILED):
    from shards import (
        ASYNC,
        MINIBATCH,
        SECRET,
        Shard,
        in_memory,
        leased,
        pull,
        push,
        report,
        rounds_of,
        shard,
        span,
        trained,
    )  # fmt: skip
    from strategies import same

    from glovewire.common.errors import GlovewireError, NotFinite, ProtocolError
    from glovewire.common.model.options import TrainingOptions
    from glovewire.common.model.tensor_layout import ModelSpec
    from glovewire.common.protocol import messages as m
    from glovewire.common.protocol import wire
    from glovewire.common.protocol.schema import ArraySchema, Message, Scalar, arrays_of
    from glovewire.common.storage.dataset import Dataset
    from glovewire.server.checkpoints.generations import Generation
    from glovewire.server.config import ServerConfig
    from glovewire.server.core.waiting import MAX_WAITING_PER_SESSION
    from glovewire.server.service import prepare

FINE = (ProtocolError, NotFinite)
PEERS = (b"w0", b"w1", b"eye", b"stranger")
HONEST = b"honest"
NAMES = sorted(m.MESSAGES)
REQUESTS = ("Hello", "Lease", "Pull", "Push", "Report", "Leave", "Create", "Checkpoint", "Score")
BYTES = 1 << 12
LEASE_S = 4.0
MODES: tuple[dict[str, Any] | None, ...] = (
    {}, {"bfloat16": True}, {"epochs": 2}, ASYNC, MINIBATCH,
    {"schedule": "minibatch", "consistency": "sync", "workers": 2}, None,
)  # fmt: skip
"""Options of the core, chosen by a first byte; None stands for a core of tensors. With the first two, a run must end
well: their peers do not know the secret of the shards."""
WITHOUT_SECRET = MODES[:2]
SPEC_WORDS = ("w", "b", "", "<f4", "<f8", "|u1", "<c8", "\ud800", "x\n", "w" * 600)


class Inventor:
    """Turns the fuzzer's bytes into frames: arbitrary bytes, or a message whose parts are all nearly right.

    `seen` has integers and texts of the core's replies, which the next messages may use.
    """

    def __init__(self, data: bytes) -> None:
        self._data = atheris.FuzzedDataProvider(data)
        self.seen: dict[type, list[Any]] = {int: [], str: []}

    def more(self) -> bool:
        """Whether bytes are left."""
        return bool(self._data.remaining_bytes() > 8)

    def choice(self, among: Any) -> Any:
        """One of several values."""
        return among[self._data.ConsumeIntInRange(0, len(among) - 1)]

    def note(self, reply: Message) -> None:
        """Remember the values in a reply."""
        for value in vars(reply).values():
            if type(value) in self.seen:
                self.seen[type(value)] = [*self.seen[type(value)][-30:], value]

    def frames(self) -> list[bytes]:
        """The frames that arrive next."""
        kind = self._data.ConsumeIntInRange(0, 15)
        if kind == 1:
            return [self._bytes(64) for _ in range(self._data.ConsumeIntInRange(0, 10))]
        if kind == 2:
            return [wire.GREETING, self._bytes(BYTES), *(self._bytes(64) for _ in range(self._small()))]
        name = self.choice(NAMES if kind < 6 else REQUESTS)
        arrays = [self._array(name, spec) for spec in arrays_of(m.MESSAGES[name])]
        shapes = [None if made is None else made[0] for made in arrays]
        payloads = [made[1] for made in arrays if made is not None]
        header = [
            self._text() if self._odd() else name,
            self._scalar(int) if kind == 3 else self._small(),
            self._fields(m.MESSAGES[name]),
            shapes,
        ]
        return [wire.GREETING, _packed(header, binary=self._data.ConsumeBool()), *payloads]

    def vouched(self, message: Message, of: Shard) -> Message:
        """Give some pushes and reports valid tokens, so that lies of peers with a lease are tried, too."""
        if not isinstance(message, m.Push | m.Report) or self._data.ConsumeBool():
            return message
        if isinstance(message, m.Push):
            return leased(message, worker=self._data.ConsumeIntInRange(0, 1), lease=self._small())
        granted = [reply for replies in of.inbox.values() for reply in replies if isinstance(reply, m.Granted)]
        found = next((trained(1, strip, of) for strip in granted if strip.lease == message.lease), message)
        return dataclasses.replace(message, receipt=found.receipt)

    def _fields(self, kind: type[Message]) -> dict[Any, Any]:
        hints, arrays = get_type_hints(kind), {spec.name for spec in arrays_of(kind)}
        made = {f.name: self._scalar(hints[f.name]) for f in dataclasses.fields(kind) if f.name not in arrays}
        if self._odd():
            made[self._text()] = self._scalar(int)
        return made

    def _scalar(self, kind: Any) -> Any:
        if self._odd():
            kind = (int, float, str, bool, bytes, list, dict[str, Scalar])[self._data.ConsumeIntInRange(0, 6)]
        if kind in (int, str) and self.seen[kind] and self._data.ConsumeIntInRange(0, 3) == 0:
            return self.choice(self.seen[kind])
        if kind is int:
            if self._odd():
                return int(self._data.ConsumeIntInRange(-(1 << 63), (1 << 64) - 1))
            return self._small() - 1
        if kind is float:
            return self._data.ConsumeFloat() if self._odd() else self._small() / 8
        if kind is bool:
            return self._data.ConsumeBool()
        if kind is bytes:
            return self._bytes(16)
        if kind is list:
            return [self._small()] * self._small()
        if kind is str:
            return self.choice(
                ("rows", "tensors", "add", "assign", "gradient", "worker", "observer", "w0", "w1", self._text())
            )
        return {self._text(): self._scalar(float) for _ in range(self._small())}

    def _array(self, name: str, schema: ArraySchema) -> tuple[Any, bytes] | None:
        if schema.optional and self._data.ConsumeBool():
            return None
        if name == "Create" and not self._odd():
            spec = self._spec().encode()
            return ["|u1", [len(spec)]], spec
        dtype = self.choice(tuple(schema.dtypes.values()))
        shape = [self._small() for _ in range(schema.rank)]
        size = int(np.prod(shape)) * dtype.itemsize
        payload = self._bytes(size).ljust(size, b"\0")
        if self._odd():
            shape, payload = [self._scalar(int) for _ in range(self._small())], payload[:-1]
        return [dtype.str, shape], payload

    def _spec(self) -> str:
        """A list of tensors as JSON, valid or nearly so; raw fuzzing would waste half of the bytes on brackets."""
        tensors = []
        for _ in range(self._data.ConsumeIntInRange(0, 3)):
            shape = [self._scalar(int) if self._odd() else self._small() for _ in range(self._small() % 4)]
            item = [self._spec_part(str), shape, self._spec_part(str), self._data.ConsumeBool()]
            tensors.append(item[: self._small()] if self._odd() else item)
        text = json.dumps(tensors, default=repr)
        return text[:-1] if self._odd() else text

    def _spec_part(self, kind: Any) -> Any:
        return self._scalar(kind) if self._odd() else self.choice(SPEC_WORDS)

    def _small(self) -> int:
        return int(self._data.ConsumeIntInRange(0, 24))

    def _odd(self) -> bool:
        """True now and then, to make a part invalid."""
        return self._small() == 7

    def _text(self) -> str:
        return str(self._data.ConsumeUnicode(self._small()))

    def _bytes(self, most: int) -> bytes:
        return bytes(self._data.ConsumeBytes(self._data.ConsumeIntInRange(0, most)))


def _packed(header: list[Any], *, binary: bool) -> bytes:
    """Pack a header; half a surrogate pair, which is no text, becomes bytes that no peer may send."""
    packed: bytes = msgpack.packb(header, use_bin_type=binary, unicode_errors="surrogatepass")
    return packed


def decoded(frames: list[bytes]) -> wire.Numbered | None:
    """The message, which must survive encoding and decoding; None if the protocol refuses it."""
    try:
        found = wire.decode(frames)
    except FINE:
        return None
    again = wire.decode([bytes(part) for part in wire.encode(found.number, found.message)])
    assert same(again.message, found.message), found
    assert again.number == found.number
    return found


def stream_decoded(frames: list[bytes]) -> None:
    """The same for a sample of the stream, and for the headers in a `History`."""
    with contextlib.suppress(*FINE):
        wire.decode_sample(frames)
    with contextlib.suppress(*FINE):
        for header in wire.split_headers(b"".join(frames)):
            wire.decode_header(header)


def spec_decoded(message: Message) -> None:
    """Check a list of tensors, as a server gets it from a worker and a worker from its server."""
    spec = getattr(message, "spec", None)
    if spec is None:
        return
    with contextlib.suppress(GlovewireError):
        found = ModelSpec.from_json(spec)
        assert ModelSpec.from_json(found.to_json()) == found


def begun(dataset: Dataset, options: dict[str, Any] | None) -> Shard:
    """A shard with two workers and an observer; without options, a shard for tensors."""
    if options is None:
        training = TrainingOptions.of_tensors(optimizer="sgd", learning_rate=0.5)
        config = ServerConfig(out=Path("run"), options=training, lease_s=LEASE_S)
        one = Shard(prepare(config, None, Generation(0, "run", 1, secret=SECRET), 0.0), dataset)
    else:
        one = shard(dataset, lease_s=LEASE_S, **options)
    for name in ("w0", "w1"):
        one.send(name.encode(), m.Hello("worker", name, 1, one.state.identity.dataset))
    one.hello("eye", role="observer")
    return one


def trains_to_the_end(one: Shard) -> None:
    """Once its peers are silent, an honest worker trains every strip that is left."""
    one.tick(3 * LEASE_S)
    one.hello("honest", peer=HONEST, incarnation=7)
    sequence = 0
    for number in range(1, 100):
        if one.state.over is not None:
            return
        granted = one.ask(HONEST, m.Lease(number))
        assert isinstance(granted, m.Granted | m.Done), granted
        if isinstance(granted, m.Done):
            return
        receipt = 0
        for partition in rounds_of(one).visits(granted.round):
            first, last = span(one, partition)
            rows = one.ask(HONEST, pull(first, last, granted.round, bfloat16=one.state.options.bfloat16))
            assert isinstance(rows, m.Rows), rows
            sequence += 1
            operation = "add" if one.state.options.bfloat16 else "assign"
            change = push(operation, rows.values, first, last, sequence=sequence, version=granted.round)
            own = {"lease": granted.lease, "token": granted.token, "values": rows.values}
            applied = one.ask(HONEST, dataclasses.replace(change, **own))
            assert isinstance(applied, m.Applied), applied
            receipt ^= applied.receipt
        recorded = one.ask(HONEST, report(number, granted.lease, receipt=receipt))
        assert isinstance(recorded, m.Recorded), recorded
    raise AssertionError("the run does not end")


def holds(one: Shard) -> None:
    """Check what must hold whatever arrived."""
    assert np.isfinite(one.state.table.values).all()
    assert len(one.state.waiting) <= MAX_WAITING_PER_SESSION * len(PEERS)
    assert sum(one.state.table.values.shape) < 1 << 22
    for replies in one.inbox.values():
        for reply in replies:
            wire.encode(0, reply)
    for sample in one.samples:
        wire.decode_sample(wire.encode_sample("run", 1, sample))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = in_memory(Path(folder) / "d")

    def once(data: bytes) -> None:
        inventor = Inventor(data)
        options = inventor.choice(MODES)
        one: Shard | None = None
        while inventor.more():
            peer, frames = inventor.choice(PEERS), inventor.frames()
            stream_decoded(frames)
            found = decoded(frames)
            if found is None:
                continue
            spec_decoded(found.message)
            one = one or begun(dataset, options)
            alone = options is None or options in WITHOUT_SECRET
            message = found.message if alone else inventor.vouched(found.message, one)
            one.send(peer, message, found.number)
            for reply in one.inbox.get((peer, found.number), [])[-1:]:
                inventor.note(reply)
            one.tick(0.01)
        if one is not None:
            holds(one)
            if options in WITHOUT_SECRET:
                trains_to_the_end(one)
                holds(one)

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
