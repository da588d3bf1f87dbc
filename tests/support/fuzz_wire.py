"""Bytes that a coverage-guided fuzzer (atheris) invents, into the decoder and, when they are a message, into a core.

    make fuzz FUZZ_S=60

Whatever the bytes: an error that the protocol names, or a message that encodes to what decodes to the same. A core that
gets such messages must answer each and stay as it is for everybody else. Ends by itself; exit status 0 is a clean run.
The corpus of interesting inputs grows in the folder that is named on the command line; arguments are libFuzzer's.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any, get_type_hints

import atheris
import msgpack
import numpy as np

COMPILED = ["glovewire.server.table.kernels", "glovewire.common.model.random_streams"]
"""Numba must see these as they were written."""

with atheris.instrument_imports(include=["common", "server"], exclude=COMPILED):
    from shards import ASYNC, MINIBATCH, Shard, in_memory, shard
    from strategies import same

    from glovewire.common.errors import NotFinite, ProtocolError
    from glovewire.common.protocol import messages as m
    from glovewire.common.protocol import wire
    from glovewire.common.protocol.schema import Message, Scalar, arrays_of

FINE = (ProtocolError, NotFinite)
PEERS = (b"w0", b"w1", b"eye", b"stranger")
NAMES = sorted(m.MESSAGES)
BYTES = 1 << 12


class Inventor:
    """Turns the fuzzer's bytes into frames: any bytes at all, or a message whose parts are each nearly right."""

    def __init__(self, data: bytes) -> None:
        self._data = atheris.FuzzedDataProvider(data)

    def more(self) -> bool:
        """Whether there are bytes left to make something of."""
        return bool(self._data.remaining_bytes() > 8)

    def peer(self) -> bytes:
        """Who sends it."""
        return PEERS[self._data.ConsumeIntInRange(0, len(PEERS) - 1)]

    def frames(self) -> list[bytes]:
        """What arrives."""
        kind = self._data.ConsumeIntInRange(0, 15)
        if kind == 1:
            return [self._bytes(64) for _ in range(self._data.ConsumeIntInRange(0, 10))]
        if kind == 2:
            return [wire.GREETING, self._bytes(BYTES), *(self._bytes(64) for _ in range(self._small()))]
        name = NAMES[self._data.ConsumeIntInRange(0, len(NAMES) - 1)]
        arrays = [self._array(spec.metadata) for spec in arrays_of(m.MESSAGES[name])]
        shapes = [None if made is None else made[0] for made in arrays]
        payloads = [made[1] for made in arrays if made is not None]
        fields = self._fields(m.MESSAGES[name])
        header = [
            self._text() if self._odd() else name,
            self._scalar(int) if kind == 3 else self._small(),
            fields,
            shapes,
        ]
        return [wire.GREETING, _packed(header, binary=self._data.ConsumeBool()), *payloads]

    def _fields(self, kind: type[Message]) -> dict[Any, Any]:
        hints, arrays = get_type_hints(kind), {spec.name for spec in arrays_of(kind)}
        made = {f.name: self._scalar(hints[f.name]) for f in dataclasses.fields(kind) if f.name not in arrays}
        if self._odd():
            made[self._text()] = self._scalar(int)
        return made

    def _scalar(self, kind: Any) -> Any:
        if self._odd():
            kind = (int, float, str, bool, bytes, list, dict[str, Scalar])[self._data.ConsumeIntInRange(0, 6)]
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
            words = ("rows", "add", "assign", "gradient", "worker", "observer", "w0", "w1", self._text())
            return words[self._data.ConsumeIntInRange(0, len(words) - 1)]
        return {self._text(): self._scalar(float) for _ in range(self._small())}

    def _array(self, metadata: Any) -> tuple[Any, bytes] | None:
        if metadata["optional"] and self._data.ConsumeBool():
            return None
        dtype = metadata["dtypes"][self._data.ConsumeIntInRange(0, len(metadata["dtypes"]) - 1)]
        shape = [self._small() for _ in range(metadata["rank"])]
        size = int(np.prod(shape)) * dtype.itemsize
        payload = self._bytes(size).ljust(size, b"\0")
        if self._odd():
            shape, payload = [self._scalar(int) for _ in range(self._small())], payload[:-1]
        return [dtype.str, shape], payload

    def _small(self) -> int:
        return int(self._data.ConsumeIntInRange(0, 24))

    def _odd(self) -> bool:
        """Now and then: something that is not as it should be."""
        return self._small() == 7

    def _text(self) -> str:
        return str(self._data.ConsumeUnicode(self._small()))

    def _bytes(self, most: int) -> bytes:
        return bytes(self._data.ConsumeBytes(self._data.ConsumeIntInRange(0, most)))


def _packed(header: list[Any], *, binary: bool) -> bytes:
    """Half a surrogate pair is no text: it goes out as the bytes that nobody may send."""
    packed: bytes = msgpack.packb(header, use_bin_type=binary, unicode_errors="surrogatepass")
    return packed


def decoded(frames: list[bytes]) -> wire.Numbered | None:
    """The message, which must survive another trip; None for what the protocol refuses."""
    try:
        found = wire.decode(frames)
    except FINE:
        return None
    again = wire.decode([bytes(part) for part in wire.encode(found.number, found.message)])
    assert same(again.message, found.message), found
    assert again.number == found.number
    return found


def sampled(frames: list[bytes]) -> None:
    """The same for a sample of the stream."""
    try:
        wire.decode_sample(frames)
    except FINE:
        return


def greeted(one: Shard) -> Shard:
    for name in ("w0", "w1"):
        one.hello(name)
    one.hello("eye", role="observer")
    return one


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = in_memory(Path(folder) / "d")

    def once(data: bytes) -> None:
        inventor = Inventor(data)
        one: Shard | None = None
        while inventor.more():
            frames = inventor.frames()
            sampled(frames)
            found = decoded(frames)
            if found is not None:
                one = one or greeted(shard(dataset, **(ASYNC, MINIBATCH, {})[len(data) % 3]))
                one.send(inventor.peer(), found.message, found.number)
                one.tick(0.01)
        if one is not None:
            assert np.isfinite(one.state.table.values).all()
            for replies in one.inbox.values():
                for reply in replies:
                    wire.encode(0, reply)
            for sample in one.samples:
                wire.decode_sample(wire.encode_sample("run", 1, sample))

    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
