"""Files of one or more bzip2 or xz streams, as `pbzip2`, `cat` and multistream dumps leave them.

Python's own readers take what does not begin like a stream for the end of the file, and so lose the rest of a damaged
one; here it is an error, as `bzip2 -t` and `xz -t` have it.
"""

from __future__ import annotations

import bz2
import io
import lzma
from pathlib import Path
from typing import IO, Any, cast

BUFFER_BYTES = 1 << 16
_READ_BYTES = 1 << 15
_XZ_PADDING = 4


def unpacked(path: Path, compression: str) -> IO[bytes]:
    """What the streams of a file hold, end to end; `compression` is `.bz2` or `.xz`.

    Reading raises EOFError, LZMAError or OSError where the file is damaged.
    """
    return cast(IO[bytes], io.BufferedReader(_Streams(path, compression), BUFFER_BYTES))


class _Streams(io.RawIOBase):
    def __init__(self, path: Path, compression: str) -> None:
        self._xz = compression == ".xz"
        self._file = path.open("rb", buffering=0)
        self._fed = b""
        self._decoder: Any = lzma.LZMADecompressor() if self._xz else bz2.BZ2Decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of `buffer`; nothing of it at the end of the last stream."""
        with memoryview(buffer).cast("B") as target:
            data = self._some(len(target))
            target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _some(self, most: int) -> bytes:
        while not self._decoder.eof or self._begin_next():
            piece = b""
            if self._decoder.needs_input:
                piece, self._fed = self._fed or self._file.read(_READ_BYTES), b""
                if not piece:
                    raise EOFError("it ends in the middle of a stream")
            if data := cast(bytes, self._decoder.decompress(piece, most)):
                return data
        return b""

    def _begin_next(self) -> bool:
        """Whether another stream follows; xz allows zeros before it and at the end, four at a time."""
        rest, zeros = cast(bytes, self._decoder.unused_data), 0
        while rest or (rest := self._file.read(_READ_BYTES)):
            if not self._xz:
                break
            found, rest = len(rest), rest.lstrip(b"\0")
            zeros += found - len(rest)
            if rest:
                break
        if zeros % _XZ_PADDING:
            raise lzma.LZMAError("zeros after a stream must come by fours")
        if not rest:
            return False
        self._fed = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ) if self._xz else bz2.BZ2Decompressor()
        return True
