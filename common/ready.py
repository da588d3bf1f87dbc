"""Define the line that a server prints once its sockets are bound; programs that start a server wait for it."""

import re
from dataclasses import dataclass
from typing import Self

from .errors import ProtocolError

_LINE = re.compile(r"ready (\S+) publish (\S+) shard (\d+)/(\d+)")


@dataclass(frozen=True)
class Ready:
    """Where a shard can be reached: `address` for workers, `stream` for monitors."""

    address: str
    stream: str
    shard: int
    shards: int

    def format(self) -> str:
        """Return the line, without a newline."""
        return f"ready {self.address} publish {self.stream} shard {self.shard}/{self.shards}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Parse a line that `format` made; ProtocolError for any other line."""
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ProtocolError(f"a server's first line begins with `ready`, not {line!r}")
        return cls(found[1], found[2], int(found[3]), int(found[4]))
