"""Make the tokens by which one shard proves a fact to another; workers carry them. No I/O, no clock.

A token is a MAC over a fact: keyed BLAKE2b of 63 bits, a non-negative integer on the wire. Its key is the secret of the
generation, which the shards share through the run folder and no client sees. So a shard that does not know leases can
tell that shard 0 granted one, and shard 0 can tell that the rows of a block are in the tables of the other shards.
"""

import hashlib
import struct

TOKEN_BYTES = 8


class Tokens:
    """Computes tokens with `secret`, at most 64 bytes; each takes about a microsecond."""

    def __init__(self, secret: bytes) -> None:
        self._kinds = {
            kind: hashlib.blake2b(digest_size=TOKEN_BYTES, key=secret, person=kind)
            for kind in (b"worker", b"lease", b"low-water", b"receipt")
        }

    def worker(self, number: int, name: str, incarnation: int) -> int:
        """Return the token of: shard 0 gave `number` to this incarnation of the worker called `name`."""
        return self._token(b"worker", struct.pack("<2q", number, incarnation) + name.encode())

    def lease(self, lease: int, worker: int, round: int) -> int:
        """Return the token of: shard 0 granted `worker` the strip of `round` as `lease`."""
        return self._token(b"lease", struct.pack("<3q", lease, worker, round))

    def low_water(self, round: int) -> int:
        """Return the token of: every round before `round` is in every table."""
        return self._token(b"low-water", struct.pack("<q", round))

    def receipt(self, shard: int, lease: int, partition: int) -> int:
        """Return the token of: `shard` has all its rows of `partition` as they were pushed under `lease`; never 0."""
        return self._token(b"receipt", struct.pack("<3q", shard, lease, partition)) | 1

    def _token(self, kind: bytes, fact: bytes) -> int:
        hasher = self._kinds[kind].copy()
        hasher.update(fact)
        return int.from_bytes(hasher.digest(), "little") >> 1
